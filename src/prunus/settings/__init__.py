"""Settings that Python users pass and the command line makes its flags from, as plain frozen data.

Nothing here imports torch, so that `prunus train --help` answers at once. The classes are public where they are used:
`prunus.training.FitConfig`, `prunus.training.Schedule`, `prunus.recovery.ReconstructOptions`,
`prunus.structure.Options`, `prunus.study.Settings`; those of the experiments with private sparsification in
`prunus.papers.noisy_topk`.
"""

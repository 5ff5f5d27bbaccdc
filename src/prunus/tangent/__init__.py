"""Tangent kernels of dense and pruned networks: what random pruning does to training, before anyone trains.

    limit = prunus.tangent.limit(x, depth=3)                         # infinitely wide; density=, rescale=, prune_input=
    net = prunus.tangent.parametrise(model)                          # NTK form: the scale stands in the forward pass
    kernel = prunus.tangent.empirical(net, x, masks=masks)           # exact, at the width it has
    prunus.tangent.spectrum(kernel)                                  # condition number, largest stable step

Source: Yang and Wang, "On the Neural Tangent Kernel Analysis of Randomly Pruned Neural Networks" (ledger K).
"""

from __future__ import annotations

from prunus.tangent._convolutional import limit_convolutional
from prunus.tangent._empirical import Effort, empirical
from prunus.tangent._form import NTKForm, parametrise, standardise
from prunus.tangent._limit import limit
from prunus.tangent._spectrum import Spectrum, spectrum
from prunus.tangent.diagnostics import DeadUnits, Drift, alignment, dead_units, distance, limit_of
from prunus.tangent.pseudo import BackwardSplit, PseudoNetwork, pseudo_network, split_backward
from prunus.tangent.regression import Regression, regress
from prunus.tangent.sampling import WidthPlan, plan_width, sample_kernels

__all__ = [
    "BackwardSplit",
    "DeadUnits",
    "Drift",
    "Effort",
    "NTKForm",
    "PseudoNetwork",
    "Regression",
    "Spectrum",
    "WidthPlan",
    "alignment",
    "dead_units",
    "distance",
    "empirical",
    "limit",
    "limit_convolutional",
    "limit_of",
    "parametrise",
    "plan_width",
    "pseudo_network",
    "regress",
    "sample_kernels",
    "spectrum",
    "split_backward",
    "standardise",
]

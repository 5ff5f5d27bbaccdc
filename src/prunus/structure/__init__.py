"""A smaller ordinary network: channels, heads and neurons leave with everything that reads them.

    small = prunus.shrink(model, 0.5, example=inputs, data=train)        # half of the multiply-adds
    removal = prunus.structure.find_removal(model, 0.5, example=inputs)  # the choice: masks, rows, apply()
    prunus.structure.save(small, "small.safetensors")

Which units belong together is read from the operators: `_walk.py` visits them, `_labels.py` says what a label is,
`groups.py` what comes out. `_surgery.py` cuts and checks.
"""

from prunus.settings.structure import Options
from prunus.structure._call import run_once
from prunus.structure._shrink import GroupRow, Removal, find_removal, shrink
from prunus.structure.files import load, save
from prunus.structure.groups import Coupling, FixedLayer, Group

__all__ = [
    "Coupling",
    "FixedLayer",
    "Group",
    "GroupRow",
    "Options",
    "Removal",
    "find_removal",
    "load",
    "run_once",
    "save",
    "shrink",
]

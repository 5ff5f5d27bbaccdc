"""Recovery: keep a network's quality while it is pruned, without training.

    masks = prunus.reconstruct(model, 0.5, data, pattern="2:4")    # a few hundred unlabelled samples
    masks.notes["layers"]                                          # the error of every layer, before and after

`_solve.py` holds the numerics of one layer, `_record.py` finds what a weight is multiplied with, `_units.py` runs a
model block by block.
"""

from __future__ import annotations

from prunus.recovery._damage import Damage
from prunus.recovery._plan import measure_damage
from prunus.recovery._reconstruct import reconstruct
from prunus.recovery._units import divide as blocks
from prunus.settings.recovery import ReconstructOptions

__all__ = ["Damage", "ReconstructOptions", "blocks", "measure_damage", "reconstruct"]

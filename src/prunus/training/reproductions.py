"""The training results of the papers at the scale of two CPU cores, for `prunus reproduce`.

Importing this module registers them. Every row carries the published number where there is one, and the ledger's own
small-scale measurement (I-14) where that is the fairer comparison.
"""

from __future__ import annotations

from prunus.training import _reproduce_lottery, _reproduce_tangent, _reproduce_tickets

__all__ = ["_reproduce_lottery", "_reproduce_tangent", "_reproduce_tickets"]

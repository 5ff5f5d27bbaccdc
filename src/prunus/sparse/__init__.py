"""Run it fast, store it small: packed weights, the layers that run on them, and their files."""

from __future__ import annotations

from prunus.sparse._modules import BalancedLinear, SparseConv2d
from prunus.sparse._packed import Packed, pack

__all__ = ["BalancedLinear", "Packed", "SparseConv2d", "pack"]

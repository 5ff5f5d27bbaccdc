"""Prune neural networks, and know before and after what it costs.

    import prunus

    masks = prunus.find_masks(model, 0.9, pattern="balanced:16")   # which weights stay
    cert = prunus.certify(model, masks, prunus.Ball(radius=1.0))   # how far the outputs can be off
    fast = prunus.compress(masks.apply_(model), example=inputs)    # a copy that runs faster and is smaller on disk

Names load on first use: importing the package costs nothing, and torch is imported when something needs it.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Masks": "contract",
    "Duration": "contract",
    "find_masks": "pruning",
    "prune": "pruning",
    "check_score": "pruning",
    "check_pattern": "pruning",
    "scores": "pruning",
    "patterns": "pruning",
    "allocations": "pruning",
    "certify": "certificates",
    "certify_statistically": "certificates",
    "certify_labels": "certificates",
    "equivalent": "certificates",
    "plan": "certificates",
    "Ball": "certificates",
    "Box": "certificates",
    "Samples": "certificates",
    "compress": "sparse",
    "reconstruct": "recovery",
    "shrink": "structure",
    "PrunusError": "errors",
    "BadInput": "errors",
    "BadFile": "errors",
}
_ROOMS = (
    "certificates",
    "contract",
    "data",
    "errors",
    "graph",
    "models",
    "operators",
    "private",
    "pruning",
    "recovery",
    "report",
    "select",
    "sparse",
    "structure",
    "study",
    "tangent",
    "theory",
    "training",
)

__all__ = ["__version__", *_HOME, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"prunus.{_HOME[name]}"), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"prunus.{name}")
    else:
        import difflib

        close = difflib.get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'prunus' has no attribute {name!r}{hint}", name=name, obj=None)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""How thoroughly `reconstruct` works."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from pathlib import Path

from prunus.errors import BadInput


@dataclass(frozen=True)
class ReconstructOptions:
    """Settings of `prunus.reconstruct` that rarely need a change.

    Attributes:
        damping: Added to the diagonal of the second moments, as a part of its mean; more is safer with few samples.
        towards: 1 aims at the dense network's outputs, so that layers undo the errors of those before them, as far as
            the samples show more than chance; 0 aims at what the dense weights would give on the pruned network's
            inputs (as SparseGPT does).
        aside: Where images or samples are few, a fifth of them is held aside to choose each layer's damping (this one
            or more) and whether correlations are drawn towards zero; then all are used. False takes the damping as it
            is given.
        refine: Rounds of the search for better masks after the first; 0 leaves it out.
        descent: Passes over the samples with gradient steps on the output of each block, zeros held; 0 leaves it out.
        rate: Learning rate of these steps, as a part of the typical size of a weight.
        batch_size: Samples that run at once, where the data do not come in batches. None takes 64, and cuts batches of
            large images into parts (10 photographs of 224 by 224 pixels): that is faster and needs less memory.
        memory: Bytes of activations kept in memory; what goes beyond is kept in a file for the time of the run.
        progress: Show a line with the time left; None shows it in a terminal.
        folder: Keep the state here after every block; a call with the same arguments goes on from it and ends in the
            same bytes. The files stay until you delete them.

    Example:
        >>> ReconstructOptions(refine=0).damping
        0.01
    """

    damping: float = 0.01
    towards: float = 1.0
    aside: bool = True
    refine: int = 18
    descent: int = 0
    rate: float = 0.01
    batch_size: int | None = None
    memory: float = 2e8
    progress: bool | None = None
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("damping", 0.0, math.inf), ("towards", 0.0, 1.0), ("rate", 0.0, math.inf), ("memory", 0.0, math.inf),
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, numbers.Real) or not math.isfinite(value) or not low <= float(value) <= high:
                raise BadInput(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.")
        for name, least in (("refine", 0), ("descent", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if name == "batch_size" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
                raise BadInput(f"{name} is {value!r}; it must be a whole number of at least {least}.")

"""How `shrink` chooses what goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Options:
    """How `shrink` chooses: its arguments, with their defaults.

    Attributes:
        score: "magnitude", "random", "taylor" or "reconstruction"; None takes "reconstruction" with data and
            "magnitude" without.
        measure: What the fraction is a fraction of: "multiply-adds", "parameters", or "time": seconds of one call with
            the example, measured on this machine.
        allocation: "uniform", "global" or "damage"; None takes "damage" with data, else "uniform".
        exclude: Names and globs of layers whose own outputs stay.
        embeddings: Names and globs of embeddings whose columns may leave.
        exact: False also narrows what layer norms see, which zeros cannot imitate.
        depth: Whole residual blocks leave first, those whose absence changes the outputs least; widths do the rest.
        multiple: Widths are multiples of this; None takes 1, and with "time" the multiple that is
            fastest on this machine.
        samples: Rows of data that are looked at; of texts as many as hold 12,288 tokens, however many are asked for.
        recover: Solve for the layers that stay, so that the outputs on the data stay.
        per_layer: What the configuration of a Hugging Face model cannot say may leave as well: alike layers that
            differ, heads of BERT.
        configured: Only what the configuration of a Hugging Face model can say leaves, however much of it must.
        loss: Loss of (outputs, labels), tensors, for "taylor".
        seed: Seed of every random choice.

    Example:
        >>> options = prunus.structure.Options(multiple=8)
        >>> options.measure, options.multiple
        ('multiply-adds', 8)
    """

    score: str | None = None
    measure: str = "multiply-adds"
    allocation: str | None = None
    exclude: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    exact: bool = True
    depth: bool = False
    multiple: int | None = None
    samples: int = 512
    recover: bool = True
    per_layer: bool = False
    configured: bool = False
    loss: Callable[[Any, Any], Any] | None = None
    seed: int = 0

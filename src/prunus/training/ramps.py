"""Sparsity over time: how masks grow during training."""

from __future__ import annotations

from dataclasses import dataclass

from prunus.contract import Duration, check_sparsity
from prunus.errors import BadInput, UnknownName

EXPONENTS = {"constant": 0.0, "linear": 1.0, "cubic": 3.0}


@dataclass(frozen=True)
class Ramp:
    """Sparsity over time, from `start` to the final one between `begin` and `end`, in steps of `every`.

    With t the part of the way in [0, 1], the sparsity is final + (start - final) (1 - t)^e, e = 1 for "linear" and 3
    for "cubic" (Zhu and Gupta 2017: fast while there is much to spare, slow at the end). "constant" is final from the
    first step.

    Attributes:
        shape: "cubic", "linear" or "constant".
        start: Sparsity at the beginning.
        begin: When the sparsity begins to rise, such as "2ep" or "500it".
        end: When the final sparsity is reached; None means after three quarters of the run.
        every: How often the masks change.

    Example:
        >>> ramp = prunus.training.Ramp("linear", end="10ep")
        >>> ramp.at(0.8, step=50, total=100, per_epoch=10)
        0.4
    """

    shape: str = "cubic"
    start: float = 0.0
    begin: str = "0ep"
    end: str | None = None
    every: str = "1it"

    def __post_init__(self) -> None:
        if self.shape not in EXPONENTS:
            raise UnknownName("shape of a ramp", self.shape, EXPONENTS)
        check_sparsity(self.start, " at the start of the ramp")
        for text in (self.begin, self.every, *((self.end,) if self.end is not None else ())):
            Duration.parse(text)

    def bounds(self, total: int, per_epoch: int) -> tuple[int, int, int]:
        """(first step, last step, steps between two changes).

        Args:
            total: steps of the run.
            per_epoch: steps of an epoch.

        Returns:
            The three numbers.

        Raises:
            BadInput: if the ramp does not lie inside the run.
        """
        begin = Duration.parse(self.begin).steps(per_epoch)
        end = 3 * total // 4 if self.end is None else Duration.parse(self.end).steps(per_epoch)
        every = max(1, Duration.parse(self.every).steps(per_epoch))
        if self.shape != "constant" and not begin <= end <= total:
            raise BadInput(
                f"The masks would grow from step {begin} to step {end}, but the run has {total} steps: "
                "choose begin and end inside it."
            )
        return begin, end, every

    def share(self, step: int, total: int, per_epoch: int) -> float:
        """The part of the way from `start` to the final sparsity that is done at `step`, in [0, 1].

        Args:
            step: number of the step.
            total: steps of the run.
            per_epoch: steps of an epoch.

        Returns:
            The share.
        """
        if self.shape == "constant":
            return 1.0
        begin, end, every = self.bounds(total, per_epoch)
        if step >= end:
            return 1.0
        held = begin + (step - begin) // every * every
        done = max(0.0, (held - begin) / max(1, end - begin))
        return float(1.0 - (1.0 - done) ** EXPONENTS[self.shape])

    def at(self, final: float, step: int, total: int, per_epoch: int) -> float:
        """The sparsity at `step`.

        Args:
            final: the sparsity at the end.
            step: number of the step.
            total: steps of the run.
            per_epoch: steps of an epoch.

        Returns:
            The sparsity.
        """
        start = min(self.start, final)
        return start + (final - start) * self.share(step, total, per_epoch)

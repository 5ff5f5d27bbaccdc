"""Lengths of training. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from prunus.errors import BadInput


@dataclass(frozen=True)
class Duration:
    """A length of training with its unit: "160ep" are epochs, "5000it" optimizer steps. Epochs may be fractions.

    Example:
        >>> import prunus
        >>> prunus.Duration.parse("2.5ep").steps(per_epoch=100)
        250
    """

    amount: Fraction
    unit: str

    @classmethod
    def parse(cls, text: str | Duration) -> Duration:
        """Read "160ep" or "5000it".

        Args:
            text: the text; a `Duration` is passed through.

        Returns:
            The duration.

        Raises:
            BadInput: It is neither.
        """
        if isinstance(text, Duration):
            return text
        body, unit = str(text).strip()[:-2], str(text).strip()[-2:]
        try:
            amount = Fraction(body)
        except (ValueError, ZeroDivisionError):
            amount = Fraction(-1)
        if unit not in ("ep", "it") or amount < 0 or (unit == "it" and amount.denominator != 1):
            raise BadInput(f'{text!r} is not a length of training: write epochs as "160ep" or steps as "5000it".')
        return cls(amount, unit)

    def steps(self, per_epoch: int) -> int:
        """Number of optimizer steps, if `per_epoch` steps make an epoch.

        Args:
            per_epoch: steps in one epoch.

        Returns:
            The number of steps.
        """
        return int(self.amount) if self.unit == "it" else round(self.amount * per_epoch)

    def __str__(self) -> str:
        amount = str(self.amount) if self.amount.denominator == 1 else f"{float(self.amount):g}"
        return f"{amount}{self.unit}"

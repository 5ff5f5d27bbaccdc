"""Plot of the order statistics page: share of energy removed against the fraction of weights removed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from _svg import line_chart

from prunus.theory import balanced

LEVELS = np.linspace(0.0, 1.0, 101)


def main() -> None:
    """Write removed-energy.svg beside this file."""
    series = {
        law: list(zip(LEVELS, balanced.limit_energy(LEVELS, law)["energy"]))
        for law in ("normal", "uniform", "laplace")
    }
    series["normal, banks of 4"] = [(r / 4, balanced.bank_energy(4, r)) for r in range(5)]
    line_chart(
        Path(__file__).with_name("removed-energy.svg"),
        series,
        title="Energy of the smallest weights",
        x_label="fraction of weights removed",
        y_label="share of energy removed",
        dashed=("normal, banks of 4",),
    )


if __name__ == "__main__":
    main()

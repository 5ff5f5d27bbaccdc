"""Plot of the order statistics page: share of energy removed against the fraction of weights removed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prunus.charts import Chart, write_charts
from prunus.theory import balanced

LEVELS = np.linspace(0.0, 1.0, 101)


def main() -> None:
    """Write removed-energy.svg beside this file."""
    series = {
        law: list(zip(LEVELS, balanced.limit_energy(LEVELS, law)["energy"])) for law in ("normal", "uniform", "laplace")
    }
    series["normal, banks of 4"] = [(r / 4, balanced.bank_energy(4, r)) for r in range(5)]
    chart = Chart(
        "Energy of the smallest weights",
        "fraction of weights removed",
        "share of energy removed",
        series,
        dashed=("normal, banks of 4",),
    )
    write_charts(Path(__file__).with_name("removed-energy.svg"), [chart])


if __name__ == "__main__":
    main()

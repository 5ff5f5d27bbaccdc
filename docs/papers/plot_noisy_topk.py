"""Plot of the noisy top-k page: privacy per swapped index against the part of the true top set that is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prunus.charts import Chart, write_charts
from prunus.theory import noisy_topk

DIMENSION = 1_000_000


def main() -> None:
    """Write swap-privacy.svg beside this file."""
    series = {}
    for k in (0.001, 0.01, 0.1, 0.5):
        m = round(k * DIMENSION)
        fractions = k + (0.98 - k) * np.linspace(0.0, 1.0, 160) ** 2  # denser where the curves are steep
        epsilons = [noisy_topk.theta_for_kept(DIMENSION, m, float(kept))["epsilon_swap"] for kept in fractions]
        series[f"k = {100 * k:g} %"] = list(zip(100 * fractions, epsilons))
    chart = Chart(
        "Privacy paid per swapped index",
        "part of the true top set that is kept (%)",
        "epsilon per swapped index (2 theta)",
        series,
    )
    write_charts(Path(__file__).with_name("swap-privacy.svg"), [chart])


if __name__ == "__main__":
    main()

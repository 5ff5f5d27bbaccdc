"""Failure of Lemma 6 against the number of bins: writes largest-load.svg beside this file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prunus.charts import Chart, write_charts
from prunus.theory import closeness


def main() -> None:
    # Dense enough to show the steps of the exact bound: a load is a whole number, three times the mean is not.
    bins = sorted({round(n) for n in np.geomspace(8, 1e7, 400)})
    series = {
        "provable n^-0.296": [(n, closeness.max_load_power(n)) for n in bins],
        "printed n^-1/3": [(n, closeness.max_load_power_printed(n)) for n in bins],
        "exact union bound": [(n, closeness.max_load_failure(n, closeness.balls_needed(n))) for n in bins],
    }
    chart = Chart(
        "P(some bin holds over 3 times the mean), n log n balls",
        "bins n",
        "failure probability",
        series,
        log_x=True,
        log_y=True,
        dashed=["printed n^-1/3"],
    )
    write_charts(Path(__file__).with_name("largest-load.svg"), [chart])


if __name__ == "__main__":
    main()

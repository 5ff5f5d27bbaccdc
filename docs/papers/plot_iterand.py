"""Plot of the tickets page: width against re-samplings, corrected and printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prunus.charts import Chart, write_charts
from prunus.theory import iterand

ERROR, DELTA = 0.1, 0.01


def main() -> None:
    """Write ticket-width.svg beside this file."""
    counts = sorted({int(count) for count in np.geomspace(1, 1000, 80)})
    series = {
        "corrected": [(r, iterand.resampled_width(ERROR, DELTA, r)) for r in counts],
        "as printed": [(r, iterand.resampled_width_printed(ERROR, DELTA, r)) for r in counts],
        "closed form": [(r, iterand.simple_width(ERROR, DELTA, r)["width"]) for r in counts],
    }
    chart = Chart(
        f"Width that holds one weight (error {ERROR}, failure {DELTA})",
        "values available per weight, R",
        "width",
        series,
        log_x=True,
        log_y=True,
        dashed=("as printed",),
    )
    write_charts(Path(__file__).with_name("ticket-width.svg"), [chart])


if __name__ == "__main__":
    main()

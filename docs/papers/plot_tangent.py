"""Plot of the tangent page: the limiting kernel against the angle, with the printed form beside it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from prunus.charts import Chart, write_charts
from prunus.theory import tangent

ANGLES = np.linspace(0, math.pi, 181)


def main() -> None:
    """Write limiting-kernel.svg beside this file."""
    degrees = np.degrees(ANGLES)
    series = {
        f"{depth} hidden layer{'s' * (depth > 1)}": list(
            zip(degrees, tangent.limiting_kernel(ANGLES, depth)["limit"] / (depth + 1))
        )
        for depth in (1, 2, 3, 5)
    }
    printed = tangent.limiting_kernel_printed(ANGLES, 3)["limit"] / 4
    series["3, as printed"] = list(zip(degrees, printed))
    chart = Chart(
        "Limiting tangent kernel of unit inputs",
        "angle between the inputs (degrees)",
        "kernel / (hidden layers + 1)",
        series,
        dashed=("3, as printed",),
        x_step=30,
    )
    write_charts(Path(__file__).with_name("limiting-kernel.svg"), [chart])


if __name__ == "__main__":
    main()

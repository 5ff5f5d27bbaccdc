"""Required width against exponent: writes required-width.svg beside this file."""

from __future__ import annotations

from pathlib import Path

from prunus.charts import Chart, write_charts
from prunus.theory import closeness

ERROR, FAILURE = 0.1, 0.05
UNIFORM = {"spread": 1.0, "norm_bound": 1.18, "latala": 0.63, "concentration": 0.00484}
XAVIER = {"spread": 3**0.5, "norm_bound": 2.04, "latala": 0.63, "concentration": 0.00484}


def theorem1(layers: int, law: dict[str, float]) -> list[tuple[float, float]]:
    """Theorem 1 from exponent 0.25 on; further left the widths only grow."""
    exponents = [0.25 + 0.01 * k for k in range(75)]
    return [(a, closeness.theorem1_width(layers, a, ERROR, FAILURE, **law)["width"]) for a in exponents]


def theorem2(layers: int, norm_bound: float, spread: float) -> list[tuple[float, float]]:
    """Theorem 2 up to exponent 1/2, which no layer reaches."""
    moments = closeness.moment_constants(spread, "uniform")
    exponents = [0.25 + 0.01 * k for k in range(26)]
    widths = [
        closeness.theorem2_width(a, layers, ERROR, FAILURE, norm_bound, **moments, latala=0.55) for a in exponents
    ]
    return [(a, 10 ** width["log10_width"]) for a, width in zip(exponents, widths)]


def main() -> None:
    series = {
        "Thm 1, l=3": theorem1(3, UNIFORM),
        "Thm 1, Xavier, l=5": theorem1(5, XAVIER),
        "Thm 2, l=3": theorem2(3, 1.18, 1.0),
        "Thm 2, Xavier, l=5": theorem2(5, 2.04, 3**0.5),
        "width 4096": [(0.25, 4096.0), (0.99, 4096.0)],
    }
    chart = Chart(
        "Width needed for error 0.1 with probability 0.95",
        "exponent a: D^(1-a) of D weights are pruned",
        "required width",
        series,
        log_y=True,
        dashed=["width 4096"],
    )
    write_charts(Path(__file__).with_name("required-width.svg"), [chart])


if __name__ == "__main__":
    main()

"""Runs the figures of the tangent guide again and draws them: python docs/guide/plot_tangent.py"""

from __future__ import annotations

from pathlib import Path

from prunus.tangent import reproductions
from prunus.tangent.plots import write_charts

FOLDER = Path(__file__).resolve().parent
RUNS = {
    "tangent-figure-1": reproductions.figure_1,
    "tangent-figure-2": reproductions.figure_2,
    "tangent-exponent": reproductions.exponent,
}


def main() -> None:
    """Write one .svg for each figure beside this file."""
    for name, run in RUNS.items():
        print(write_charts(FOLDER / f"{name}.svg", reproductions.charts(name, run(seed=0))))


if __name__ == "__main__":
    main()

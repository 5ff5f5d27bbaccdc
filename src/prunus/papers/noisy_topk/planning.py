"""What to expect before anything is sent: privacy and error of noisy top-k over a range of theta."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prunus.errors import BadInput
from prunus.papers import noisy_topk as theory
from prunus.private.mechanism import NoisyTopK, TwoLevelTopK

_RANGE = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)


def choose(
    k: float,
    d: int,
    theta: float | None = None,
    swap_epsilon: float | None = None,
    local_epsilon: float | None = None,
    error: float | None = None,
) -> NoisyTopK:
    """The mechanism for one of: theta, epsilon per swapped index, local epsilon, expected error over ||g||^2."""
    given = [value for value in (theta, swap_epsilon, local_epsilon, error) if value is not None]
    if len(given) != 1:
        raise BadInput("Give exactly one of theta, swap epsilon, local epsilon and error.")
    if theta is not None:
        return NoisyTopK(k, theta)
    if swap_epsilon is not None:
        return NoisyTopK.from_swap_epsilon(k, swap_epsilon)
    if local_epsilon is not None:
        return NoisyTopK.from_local_epsilon(k, local_epsilon, d)
    assert error is not None
    return NoisyTopK.from_error(k, error * d, d)


def row(mech: NoisyTopK, d: int, group: int | None = None) -> dict[str, Any]:
    """One line of the trade-off, for normal coordinates; the last column is the best under pure local privacy."""
    privacy = mech.privacy(d, group=group)
    local = privacy.local
    best = None
    if group is None and 0.0 < local <= 5000.0 and privacy.m < d:
        best = TwoLevelTopK(privacy.m, local).kept_fraction(d)
    return {
        "theta": mech.theta,
        "epsilon per swap": privacy.per_swap,
        "local epsilon": local,
        "kept of the top set": mech.kept_fraction(d if group is None else group),
        "expected error": mech.expected_error(d, group=group) / d,
        "two-level keeps at this local epsilon": best,
    }


def trade_off(mech: NoisyTopK, d: int, group: int | None = None) -> list[dict[str, Any]]:
    """The wanted mechanism among others, in ascending theta."""
    thetas = sorted({*_RANGE, mech.theta})
    return [row(NoisyTopK(mech.k, theta), d, group) for theta in thetas]


def summary(mech: NoisyTopK, d: int) -> dict[str, Any]:
    """Numbers beside the table: the message's size and the limits of the error."""
    m = mech.count(d, quiet=True)
    return {
        "d": d,
        "m": m,
        "index bits": theory.index_bits(d, m),
        "error of exact top-k": theory.topk_error(d, m)["relative"],
        "error of a random set": 1.0 - m / d,
        "theta used": mech.published_theta,
    }


def write_plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the trade-off as one chart (.svg, or an .html page)."""
    from prunus.charts import Chart, write_charts

    names = {
        "kept of the top set": "kept of the top set",
        "expected error": "expected error",
        "two-level keeps at this local epsilon": "kept by two-level rule",
    }
    lines = {
        shown: [(row["epsilon per swap"], row[name]) for row in rows if row[name] is not None]
        for name, shown in names.items()
    }
    title = "Noisy top-k: what is kept and what is lost"
    write_charts(path, [Chart(title, "epsilon per swapped index", "share", lines)], title)

"""Figures 1 and 2 of the paper, its open question, and kernels on digits, beside the values of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunus.charts import Chart
from prunus.papers.reproducing import reproduction
from prunus.papers.tangent import scaled_widths
from prunus.tangent import limit
from prunus.tangent.sampling import sample_kernels

_SOURCE = 'Yang and Wang, "On the Neural Tangent Kernel Analysis of Randomly Pruned Neural Networks"'
_ANGLE, _DEPTH = math.pi / 3, 3
_FIGURE_1 = {  # width: networks, then dense and pruned mean, s.d. and mean absolute deviation (ledger K-18)
    32: (256, (1.736, 1.262, 0.955), (1.806, 1.717, 1.223)),
    64: (256, (1.805, 0.914, 0.718), (1.785, 1.144, 0.831)),
    128: (256, (1.765, 0.593, 0.478), (1.737, 0.678, 0.533)),
    256: (256, (1.745, 0.394, 0.312), (1.726, 0.483, 0.376)),
    512: (128, (1.734, 0.278, 0.224), (1.723, 0.345, 0.277)),
    1024: (64, (1.718, 0.191, 0.147), (1.740, 0.240, 0.191)),
    2048: (64, (1.767, 0.154, 0.127), (1.759, 0.191, 0.153)),
    4096: (40, (1.741, 0.108, 0.082), (1.749, 0.118, 0.095)),
    8192: (40, (None, None, None), (None, None, None)),  # in the paper's figure, not in the ledger
}
_FIGURE_2 = {  # pruning probability: mean absolute deviation at linear and at quadratic width (ledger K-19)
    0.0: (0.335, 0.356),
    0.1: (0.309, 0.327),
    0.2: (0.322, 0.338),
    0.3: (0.287, 0.244),
    0.4: (0.311, 0.225),
    0.5: (0.257, 0.201),
    0.6: (0.242, None),  # quadratic widths end at one half, as in the paper
    0.7: (0.242, None),
    0.8: (0.232, None),
    0.9: (0.202, None),
}
_LEDGER_BASE = 256
_GRID = {128: 1200, 256: 800, 512: 400, 1024: 150}  # width: networks for each density
_DENSITIES = (1.0, 0.5, 0.2, 0.1, 0.05)
Rows = list[dict[str, Any]]


def pair() -> Tensor:
    """Two unit vectors at the angle pi / 3, float32: the kernels' spread is far above its rounding."""
    return torch.tensor([[1.0, 0.0], [math.cos(_ANGLE), math.sin(_ANGLE)]])


def _entries(width: int, density: float, networks: int, seed: int) -> Tensor:
    return sample_kernels(pair(), _DEPTH, width, density, networks, seed=seed)[:, 0, 1]


def _limit() -> float:
    return float(limit(pair().double(), depth=_DEPTH)[0, 1])


@reproduction(
    "tangent-figure-1",
    "Kernels of dense and pruned networks tend to one limit as the width grows",
    f"{_SOURCE}, figure 1; compared with ledger K-18 (angle pi/3, three hidden layers, density 0.5, rescaled)",
    minutes=4.0,
)
def figure_1(seed: int = 0, widths: Sequence[int] = tuple(_FIGURE_1), networks: int | None = None) -> Rows:
    """Mean, standard error, standard deviation and mean absolute deviation from the limit, by width.

    The mean hides the convergence: what shrinks is the spread, like one over the root of the width.
    """
    target, rows = _limit(), []
    for width in widths:
        count, *published = _FIGURE_1[width]
        for number, (kind, density) in enumerate((("dense", 1.0), ("pruned", 0.5))):
            values = _entries(width, density, networks or count, seed + number)
            mean, deviation, away = published[number]
            row = {"width": width, "network": kind, "networks": len(values), "limit": target}
            row |= {"mean": float(values.mean()), "error": float(values.std()) / math.sqrt(len(values))}
            row |= {"ledger mean": mean, "s.d.": float(values.std()), "ledger s.d.": deviation}
            row |= {"deviation": float((values - target).abs().mean()), "ledger deviation": away}
            rows.append(row)
    return rows


@reproduction(
    "tangent-figure-2",
    "Widening by 1/density makes up for pruning",
    f"{_SOURCE}, figure 2, at its full size; compared with ledger K-19, whose base width is {_LEDGER_BASE}",
    minutes=10.0,
)
def figure_2(
    seed: int = 0, base: int = 1024, networks: int = 100, probabilities: Sequence[float] = tuple(_FIGURE_2)
) -> Rows:
    """Mean absolute deviation from the limit when the width is base/density, and when it is base/density^2.

    The deviation goes like one over the root of the width, so the ledger's values are multiplied by the root of their
    base width over ours. The published claim: in both cases the deviation does not grow.
    """
    target, rows = _limit(), []
    for probability in probabilities:
        density = round(1 - probability, 10)
        widths = scaled_widths(base, density)
        row: dict[str, Any] = {"pruning probability": probability}
        for number, (kind, published) in enumerate(zip(("linear", "quadratic"), _FIGURE_2[probability])):
            row[f"{kind} width"] = None if published is None else widths[kind]
            if published is not None:
                away = (_entries(widths[kind], density, networks, seed + number) - target).abs()
                row[kind], row[f"{kind} error"] = float(away.mean()), float(away.std()) / math.sqrt(networks)
                published *= math.sqrt(_LEDGER_BASE / base)
            row[f"ledger {kind}, scaled"] = published
        rows.append(row)
    return rows


@reproduction(
    "tangent-exponent",
    "Is the width needed linear or quadratic in 1/density? (evidence, not proof)",
    f"{_SOURCE}, open question of section 7; compared with ledger K-18b",
    minutes=4.0,
)
def exponent(seed: int = 0, grid: Mapping[int, int] | None = None, densities: Sequence[float] = _DENSITIES) -> Rows:
    """Width x variance over widths and densities, fitted as A + B z + Q z^2 + C z^2 / width, z = (1 - a) / a.

    The leading order in 1/width is linear in 1/density if Q is zero. Both width and density vary: at one width the
    finite-size term C passes for Q. One depth and one angle only: evidence, not proof.
    """
    rows: Rows = []
    design, values, errors = [], [], []
    for width, networks in (grid or _GRID).items():
        for density in densities:
            sample = _entries(width, density, networks, seed + len(rows)).numpy()
            centred = (sample - sample.mean()) ** 2
            variance, error = float(sample.var(ddof=1)), float(centred.std()) / math.sqrt(networks)
            z = (1 - density) / density
            design.append([1.0, z, z * z, z * z / width])
            values.append(width * variance)
            errors.append(width * error)
            rows.append({"width": width, "density": density, "networks": networks, "z": z})
    coefficients, uncertainty = weighted_fit(np.array(design), np.array(values), np.array(errors))
    for row, line, value, error in zip(rows, design, values, errors):
        row |= {"width x variance": value, "error": error, "fitted": float(np.dot(line, coefficients))}
    ledger = {"A (dense)": "45", "B (linear)": "16", "Q (quadratic)": "0", "C (finite width)": "170 to 250"}
    for (name, published), value, error in zip(ledger.items(), coefficients, uncertainty):
        rows.append({"coefficient": name, "value": float(value), "error": float(error), "ledger": published})
    return rows


def weighted_fit(design: np.ndarray, values: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted least squares: coefficients and their standard errors."""
    scaled = design / errors[:, None]
    covariance = np.linalg.inv(scaled.T @ scaled)
    return covariance @ scaled.T @ (values / errors), np.sqrt(np.diag(covariance))


_DIGITS = {  # (width, density): smallest eigenvalue, condition, distance to the limit (ledger K-21); 0 is the limit
    (0, 1.0): (0.2749, 2441.0, 0.0),
    (64, 1.0): (0.030, 3.0e4, 0.51),
    (64, 0.5): (0.015, 3.9e4, 0.25),
    (64, 0.1): (0.0, math.inf, 0.95),
    (256, 1.0): (0.106, 6.8e3, 0.14),
    (256, 0.5): (0.091, 8.9e3, 0.28),
    (256, 0.1): (0.091, 1.7e4, 1.34),
    (512, 1.0): (0.148, 4.7e3, 0.16),
    (512, 0.1): (0.046, 1.1e4, 0.31),
}


@reproduction(
    "tangent-digits",
    "Kernels of dense and pruned networks on digits",
    "ledger K-21: 300 digits of unit norm, three hidden layers, mean of two networks (other draws, other digits)",
    minutes=2.0,
)
def digits(seed: int = 0, widths: Sequence[int] = (64, 256, 512), networks: int = 2, inputs: int = 300) -> Rows:
    """Smallest eigenvalue, condition number and distance to the limit, with regression accuracy on 1,000 others."""
    from prunus.data import load
    from prunus.models import make
    from prunus.tangent import parametrise
    from prunus.tangent.comparison import ComparisonPlan, Sample, compare, limit_row

    train, test = load("digits", split="train"), load("digits", split="test")
    sample = Sample.of(train, test, inputs, 1000, seed)

    def build(width: int, number: int) -> Any:
        return parametrise(make(f"fc:64-{width}-{width}-{width}-1", init="normal", seed=number))

    found = [(0, limit_row(build(8, 0), sample))]
    for width in widths:
        densities = [density for size, density in _DIGITS if size == width]
        plan = ComparisonPlan(densities=densities, networks=networks, seed=seed)
        found += [(width, row) for row in compare(partial(build, width), str(width), sample, plan)]
    rows = []
    for width, row in found:
        smallest, condition, away = _DIGITS[width, row["density"] or 1.0]
        line = {"width": str(width or "limit"), "density": row["density"], "smallest": row["smallest"]}
        line |= {"ledger smallest": smallest, "condition": row["condition"], "ledger condition": condition}
        rows.append(line | {"distance": row["distance"], "ledger distance": away, "accuracy": row["accuracy"]})
    return rows


def charts(id: str, rows: Rows) -> list[Chart]:
    """The figures drawn from the rows of a reproduction."""
    if id == "tangent-figure-1":
        kinds = ("dense", "pruned")
        means = {k: [(r["width"], r["mean"], r["s.d."]) for r in rows if r["network"] == k] for k in kinds}
        spread = {k: [(r["width"], r["s.d."]) for r in rows if r["network"] == k] for k in kinds}
        return [
            Chart("Mean and spread of the kernel", "width", "kernel", means, True, levels={"limit": rows[0]["limit"]}),
            Chart("Spread of the kernel", "width", "standard deviation", spread, True, True),
        ]
    if id == "tangent-figure-2":
        lines = {
            kind: [(r["pruning probability"], r[kind], r[f"{kind} error"]) for r in rows if r.get(kind) is not None]
            for kind in ("linear", "quadratic")
        }
        title = "Deviation from the limit at widths grown with 1/density"
        return [Chart(title, "pruning probability", "mean absolute deviation", lines)]
    points = [row for row in rows if "width x variance" in row]
    widths = sorted({row["width"] for row in points})
    by_width = {
        f"width {width}": [(r["z"], r["width x variance"], r["error"]) for r in points if r["width"] == width]
        for width in widths
    }
    return [Chart("Width x variance of the kernel", "(1 - density) / density", "width x variance", by_width)]

"""Energies of concrete weights, no law assumed (B-1b, B-10). Lists or numpy arrays; squares in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim

_CHUNK = 1 << 20  # tolerance

# Positions whose probability is below exp(-80) times the largest add nothing in double precision.
_NEGLIGIBLE = -80.0  # tolerance


@claim("B-1b")
def pruned_mean_square(weights: ArrayLike, r: int) -> dict[str, float]:
    """B-1b: mean square of the r smallest weights, and the share of the energy they hold (0 where all are 0)."""
    squares, scale = _squares(domain.array("weights", weights).ravel())
    r = domain.whole("r", r, 1, squares.size)
    removed = float(np.partition(squares, r - 1)[:r].sum())
    return {"mean_square": scale * (scale * removed / r), "energy": _share(removed, float(squares.sum()))}


@claim("B-10a")
def tensor_energy(weights: ArrayLike, bank: int, r: int) -> dict[str, Any]:
    """B-10a: energy removed from a given matrix (rows x columns): balanced, unstructured, and with a random layout.

    unstructured <= random_layout is the price of the bank size; balanced against random_layout is the price, or the
    gain, of where the weights stand. `keep` is 1 where the balanced mask keeps, as nested lists for nested lists and as
    an array for an array; among equal magnitudes the earlier position is pruned first.
    """
    matrix = domain.array("weights", weights, 2)
    bank = domain.whole("bank", bank, 1, matrix.shape[1])
    if matrix.shape[1] % bank:
        raise BadInput(f"bank must divide the row length, got banks of {bank} in rows of {matrix.shape[1]}.")
    r = domain.whole("r", r, 0, bank)
    banks = _squares(matrix)[0].reshape(-1, bank)
    # Ranks, not thresholds: a threshold would prune too many or too few among equal magnitudes.
    order = np.argsort(banks, axis=1, kind="stable")
    keep = np.ones(banks.shape, dtype=np.int8)
    np.put_along_axis(keep, order[:, :r], 0, axis=1)
    removed = float(np.take_along_axis(banks, order[:, :r], axis=1).sum())
    energies = _cumulative(banks)
    count = r * len(banks)
    total = float(energies[-1])
    mask = keep.reshape(matrix.shape)
    return {
        "balanced": _share(removed, total),
        "unstructured": _share(float(energies[count - 1]) if count else 0.0, total),
        "random_layout": _random_layout(energies, bank, r),
        "keep": mask if isinstance(weights, np.ndarray) else mask.tolist(),
    }


@claim("B-10b")
def random_layout_energy(weights: ArrayLike, bank: int, r: int) -> float:
    """B-10b: expected share of energy removed when the weights are dealt to banks at random; exact.

    The share is the mean of the cumulative energy at the position of the r-th smallest of a random sample, the
    discrete form of B-3; no cancellation, one sort, O(n).
    """
    values = domain.array("weights", weights).ravel()
    bank = domain.whole("bank", bank, 1, values.size)
    if values.size % bank:
        raise BadInput(f"bank must divide the number of weights, got banks of {bank} for {values.size} weights.")
    return _random_layout(_cumulative(_squares(values)[0]), bank, domain.whole("r", r, 0, bank))


def _cumulative(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Energy of the 1, 2, ..., n smallest."""
    energies = np.sort(squares, axis=None)
    return np.cumsum(energies, out=energies)


def _random_layout(energies: NDArray[np.float64], bank: int, r: int) -> float:
    """Mean of energies[L], P(L = l) = C(l, r-1) C(n-2-l, bank-r-1) / C(n-1, bank-1).

    A weight with l smaller ones is pruned if fewer than r of them join its bank; summing by parts moves the sum from
    weights to the position L of the r-th smallest of bank-1 others. Weights of L come from ratios outwards from near
    the mode: differences of log-gammas would lose seven digits at n = 10^8.
    """
    n = len(energies)
    if r in (0, bank) or energies[-1] == 0.0:
        return float(r == bank and energies[-1] > 0.0)
    first, last = r - 1, n - 1 - (bank - r)
    mode = min(max(r * n // bank, first), last)
    mass, energy = 1.0, float(energies[mode])
    for direction in (1, -1):
        level, position = 0.0, mode
        while level > _NEGLIGIBLE and first <= position + direction <= last:
            count = min(_CHUNK, last - position if direction == 1 else position - first)
            steps = position + direction * np.arange(count, dtype=np.float64)
            logs = np.cumsum(_log_ratio(steps, direction, n, bank, r))
            masses = np.exp(level + logs)
            block = np.arange(1, count + 1) * direction + position
            mass += float(masses.sum())
            energy += float((masses * energies[block]).sum())
            level, position = level + float(logs[-1]), position + direction * count
    return energy / mass / float(energies[-1])


def _log_ratio(position: NDArray[np.float64], direction: int, n: int, bank: int, r: int) -> NDArray[np.float64]:
    """log P(L = position + direction) - log P(L = position)."""
    start = position if direction == 1 else position - 1.0
    grow = np.log1p((r - 1) / (start + 2.0 - r))
    shrink = np.log1p(-(bank - r - 1) / (n - 2.0 - start))
    return direction * (grow + shrink)


def _squares(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Squares in units of the largest magnitude, so that none overflows, and that unit."""
    scale = float(np.abs(values).max()) or 1.0
    squares = values / scale
    return np.square(squares, out=squares), scale


def _share(part: float, total: float) -> float:
    return min(part / total, 1.0) if total > 0.0 else 0.0

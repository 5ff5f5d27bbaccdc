"""Before anything is trained: Theorem 1' for a network given by its widths; and whether trained weights fit it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from scipy import special
from torch import Tensor, nn

from prunus.contract import whole
from prunus.errors import BadInput, UnknownName
from prunus.formulas import closeness
from prunus.formulas import norms as random_norms
from prunus.layers import prunable_weights
from prunus.operators import matrix_norm

_LAWS = ("uniform", "normal")


@dataclass(frozen=True)
class APriori:
    """With `confidence` over the draw of the weights, pruning moves no input of the ball by more than `error`.

    Attributes:
        error: The bound on the output's distance in the 2-norm.
        norms: For every layer, a bound on its norm.
        differences: For every layer, a bound on the norm of what was removed.
        pruned: For every layer, how many weights were removed.
        confidence: The probability with which all of this holds.

    Example:
        >>> found = prunus.certificates.bound_a_priori([16, 64, 64, 4], 0.1)
        >>> found.pruned, found.confidence
        ((0, 410, 0), 0.95)
    """

    error: float
    norms: tuple[float, ...]
    differences: tuple[float, ...]
    pruned: tuple[int, ...]
    confidence: float


def bound_a_priori(
    widths: Sequence[int],
    sparsity: float,
    *,
    confidence: float = 0.95,
    spread: float = 1.0,
    law: str = "uniform",
    radius: float = 1.0,
) -> APriori:
    """Theorem 1' (ledger P-16) for a ReLU network without biases, inner layers pruned by magnitude at `sparsity`.

    Half of the risk goes to the norms, a quarter to the thresholds and a quarter to the concentration, evenly over
    their layers; for square layers this is P-16c.

    Args:
        widths: Inputs, hidden widths, outputs; the first and the last layer stay.
        sparsity: Fraction of zeros in the inner layers.
        confidence: The probability with which the bound holds.
        spread: Scale of the weights, see `law`.
        law: "uniform" on [-spread/sqrt(n), spread/sqrt(n)] or "normal" with deviation spread/sqrt(n), n the larger
            side.
        radius: Radius of the ball of inputs, in the 2-norm.

    Returns:
        The bound, with what it is made of.

    Raises:
        BadInput: Fewer than three layers, or a number outside its range.
        UnknownName: There is no such law.

    Example:
        >>> little = prunus.certificates.bound_a_priori([16, 64, 64, 4], 0.1)
        >>> much = prunus.certificates.bound_a_priori([16, 64, 64, 4], 0.5)
        >>> 0 < little.error < much.error
        True
    """
    layers = len(widths) - 1
    if layers < 3 or any(int(size) < 1 for size in widths):
        raise BadInput("Theorem 1' needs at least three layers: give inputs, two or more hidden widths, and outputs.")
    if not 0 <= sparsity < 1:
        raise BadInput(f"The sparsity is {sparsity}; it is the fraction of zeros and must lie in [0, 1).")
    if not 0 < confidence < 1:
        raise BadInput(f"The confidence is {confidence}: it must lie strictly between 0 and 1.")
    if law not in _LAWS:
        raise UnknownName("law of the weights", law, _LAWS)
    delta = 1 - confidence
    part = delta / (4 * (layers - 2))
    norms, differences, counts = [], [], []
    for number, (columns, rows) in enumerate(pairwise(widths)):
        norms.append(_norm(rows, columns, delta / (2 * layers), spread, law))
        inner = 0 < number < layers - 1
        removed = whole(sparsity, rows * columns) if inner else 0
        counts.append(removed)
        threshold = _threshold(rows, columns, removed, part, spread, law) if removed else 0.0
        differences.append(closeness.theorem1_prime_difference(rows, columns, threshold, part))
    error = closeness.recursion_error(norms, differences, radius=radius)
    return APriori(float(error), tuple(norms), tuple(differences), tuple(counts), confidence)


def _norm(rows: int, columns: int, delta: float, spread: float, law: str) -> float:
    if law == "uniform":
        return float(random_norms.uniform_norm_quantile(rows, columns, delta, spread))
    return float(random_norms.normal_norm_quantile(rows, columns, spread / math.sqrt(max(rows, columns)), delta))


def _threshold(rows: int, columns: int, removed: int, delta: float, spread: float, law: str) -> float:
    """Upper quantile of the smallest kept magnitude."""
    scale = spread / math.sqrt(max(rows, columns))
    level = float(closeness.threshold_quantile(rows * columns, removed, delta))
    return scale * level if law == "uniform" else scale * float(special.ndtri((1 + level) / 2))


@dataclass(frozen=True)
class AssumptionRow:
    """One weight matrix against the theorems' assumptions (ledger P-24, P-33).

    Attributes:
        name: The weight.
        shape: Its rows and columns.
        second: Variance * width, which the theorems take as a constant.
        fourth: Fourth moment * width^2, which the theorems take as a constant.
        mean_norm: The part of the norm that the mean alone explains.
        bulk_norm: The norm that independent weights of this variance would have.
        norm: The norm.
        glorot_ratio: Variance, divided by that of Glorot's initialisation.
        law: "uniform", "normal" or "laplace", whichever makes the weights likeliest.
        leading_share: The share of the energy in the leading singular direction.
        row_correlation: Mean correlation of pairs of rows.
        column_correlation: Mean correlation of pairs of columns.

    Example:
        >>> row = prunus.certificates.check_assumptions(prunus.models.make("fc:32-64-10", seed=0))[0]
        >>> row.name, row.shape, row.law, row.fits
        ('layers.0.weight', (64, 32), 'uniform', True)
    """

    name: str
    shape: tuple[int, ...]
    second: float
    fourth: float
    mean_norm: float
    bulk_norm: float
    norm: float
    glorot_ratio: float
    law: str
    leading_share: float
    row_correlation: float
    column_correlation: float

    @property
    def fits(self) -> bool:
        """Whether the norm is at most 1.5 times that of independent weights."""
        return self.norm <= 1.5 * self.bulk_norm


def check_assumptions(model: nn.Module) -> list[AssumptionRow]:
    """How far the weights of a (trained) network are from independent, centred draws.

    Args:
        model: Any module; a convolution counts as the matrix of its output channels.

    Returns:
        One row for each linear and convolution weight.

    Raises:
        BadInput: The model has no such weight.

    Example:
        >>> rows = prunus.certificates.check_assumptions(prunus.models.make("fc:32-64-10", seed=0))
        >>> [row.name for row in rows]
        ['layers.0.weight', 'layers.1.weight']
    """
    weights = {name: weight for name, weight in prunable_weights(model).items() if weight.numel}
    if not weights:
        raise BadInput("The model has no linear or convolution weights to check.")
    return [_row(name, weight.rows(weight.parameter.detach()).flatten(1)) for name, weight in weights.items()]


def _row(name: str, matrix: Tensor) -> AssumptionRow:
    matrix = matrix.double()
    count, width = matrix.shape
    mean, second = float(matrix.mean()), float(matrix.square().mean())
    variance = max(second - mean**2, 1e-300)
    kurtosis = max(1.0, float((matrix**4).mean()) / max(second, 1e-300) ** 2)
    constants = closeness.sample_moment_constants(max(second, 1e-300), kurtosis, count, width)
    parts = random_norms.mean_component_norm(mean, variance, count, width)
    norm = matrix_norm(matrix)
    return AssumptionRow(
        name=name,
        shape=(count, width),
        second=float(constants["second"]),
        fourth=float(constants["fourth"]),
        mean_norm=float(parts["mean_norm"]),
        bulk_norm=float(parts["bulk_norm"]),
        norm=norm,
        glorot_ratio=variance / float(random_norms.glorot_variance(width, count)),
        law=_fitted_law(matrix.flatten()),
        leading_share=norm**2 / max(float(matrix.square().sum()), 1e-300),
        row_correlation=_mean_correlation(matrix),
        column_correlation=_mean_correlation(matrix.T),
    )


def _fitted_law(values: Tensor) -> str:
    """Uniform, normal or Laplace, whichever makes the weights likeliest."""
    largest = max(float(values.abs().max()), 1e-300)
    deviation = max(float(values.std()), 1e-300)
    spread = max(float((values - values.median()).abs().mean()), 1e-300)
    likelihoods = {
        "uniform": -math.log(2 * largest),
        "normal": -0.5 * math.log(2 * math.pi * deviation**2) - 0.5,
        "laplace": -math.log(2 * spread) - 1,
    }
    return max(likelihoods, key=lambda law: likelihoods[law])


def _mean_correlation(matrix: Tensor) -> float:
    """Mean correlation of all pairs of rows: from the length of the sum of the standardised rows."""
    count = matrix.shape[0]
    if count < 2:
        return 0.0
    rows = matrix - matrix.mean(1, keepdim=True)
    rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-300)
    total = float(torch.linalg.vector_norm(rows.sum(0)) ** 2)
    return (total - count) / (count * (count - 1))

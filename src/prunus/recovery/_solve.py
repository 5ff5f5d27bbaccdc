"""Which weights of one layer go, and what the others become, so that its outputs on given inputs change least.

A layer's weight is a stack of matrices W (groups, rows, columns) that multiply inputs with second moments H (groups,
columns, columns). Everything here minimises, over matrices V with zeros where the pattern wants them,

    error(V) = sum over rows of (v - w) H (v - w)^T,

which is the squared change of the outputs. Two ways to choose the zeros, each followed by the exact optimum on them:

`sweep`       Optimal Brain Surgeon from left to right through a Cholesky factor of the inverse (Frantar and Alistarh
              2023, after Hassibi and Stork 1992): bank by bank, or block by block of columns, the weights with the
              smallest w^2 / [H^-1]_jj go, and the columns further right take over what they did.
`alternate`   ADMM between the optimum without zeros and the nearest matrix with the right zeros (Meng et al. 2024).

`optimum` is the least-squares solution for given zeros, by conjugate gradients for all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from prunus.select import drop_smallest

Choose = Callable[[Tensor], Tensor]
"""Scores (groups, rows, columns), none negative, to the mask of a pattern: True where kept."""

DOUBLE_BELOW = 4e7  # multiplications for one product with H; below it double precision costs nothing that matters
_STEADY = 3  # rounds of ADMM between two looks at the penalty
_RAISES = 40
"""How often the damping of moments that are not positive definite is raised tenfold."""


class Factors:
    """Second moments (groups, columns, columns), positive definite, and what is computed of them once.

    Layers with the same inputs share them.
    """

    def __init__(self, moments: Tensor) -> None:
        self.moments = moments
        self.known: dict[torch.dtype, tuple[Tensor, ...]] = {}

    @cached_property
    def lower(self) -> Tensor:
        """The Cholesky factor, in double precision."""
        found: Tensor = torch.linalg.cholesky(self.moments.double())
        return found

    @cached_property
    def uncertainty(self) -> Tensor:
        """The diagonal of the inverse (groups, columns), in double precision."""
        return torch.cholesky_inverse(self.lower).diagonal(dim1=-2, dim2=-1).clone()

    @cached_property
    def upper(self) -> Tensor:
        """L^T with H^-1 = L L^T, in double precision: row j leads the update when column j goes."""
        found: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(self.lower)).transpose(-1, -2)
        return found

    def spectrum(self, kind: torch.dtype) -> tuple[Tensor, ...]:
        """(scale, moments, values, vectors): the moments scaled to a diagonal of ones, and their eigenvectors."""
        if kind not in self.known:
            moments = self.moments.to(kind)
            scale = moments.diagonal(dim1=-2, dim2=-1).rsqrt().unsqueeze(-2)
            moments = moments * scale * scale.transpose(-1, -2)
            values, vectors = torch.linalg.eigh(moments)
            self.known[kind] = (scale, moments, values.clamp_min(0.0).unsqueeze(-2), vectors)
        return self.known[kind]


@dataclass(frozen=True, eq=False)
class Problem:
    """Reconstruct `weight` (groups, rows, columns) under the second moments of `factors` (groups, columns, columns).

    `choose` gives the mask of the layer's pattern, `banks` (start, length, drops) along a row where the pattern takes
    equally many weights from each bank of every row, and `by_row` says whether rows may be chosen independently.
    `drops` is how many weights go where any may go; None where the pattern says more than that.
    """

    weight: Tensor
    factors: Factors
    choose: Choose
    banks: Sequence[tuple[int, int, int]] = ()
    by_row: bool = False
    drops: int | None = None

    @property
    def moments(self) -> Tensor:
        return self.factors.moments

    @property
    def dtype(self) -> torch.dtype:
        groups, rows, columns = self.weight.shape
        return torch.float64 if groups * rows * columns**2 < DOUBLE_BELOW else torch.float32


def damped(moments: Tensor, damping: float) -> Tensor:
    """`moments` with `damping` times their mean diagonal added; columns that are always zero get a one.

    Where the inputs hardly vary about their mean, rounding leaves a matrix that is not positive definite: it gets ten
    times more until it is.
    """
    diagonal = moments.diagonal(dim1=-2, dim2=-1)
    mean = diagonal.mean(-1, keepdim=True)
    ridge = torch.where(mean > 0, damping * mean, torch.ones_like(mean)).expand_as(diagonal)
    ridge = torch.where(diagonal > 0, ridge, ridge.clamp_min(1e-30))
    for _ in range(_RAISES):
        made = moments + torch.diag_embed(ridge)
        failed = torch.linalg.cholesky_ex(made).info > 0
        if not bool(failed.any()):
            break
        least = torch.finfo(moments.dtype).eps * mean.abs().clamp_min(torch.finfo(moments.dtype).tiny)
        ridge = torch.where(failed.unsqueeze(-1), 10 * torch.maximum(ridge, least.expand_as(ridge)), ridge)
    return made


def errors(problem: Problem, solution: Tensor) -> Tensor:
    """(groups, rows): the squared change of every output."""
    change = solution - problem.weight.to(solution.dtype)
    return (change @ problem.moments.to(solution.dtype) * change).sum(-1).clamp_min(0.0)


def optimum(problem: Problem, mask: Tensor, start: Tensor | None = None, rounds: int = 60, gain: float = 0.0) -> Tensor:
    """The least-squares solution with zeros outside `mask`, by conjugate gradients scaled with the diagonal.

    It ends when a round lowers the error of all rows together by less than the part `gain` of it.
    """
    kind = problem.dtype
    tolerance = 1e-14 if kind == torch.float64 else 1e-8
    moments, weight = problem.moments.to(kind), problem.weight.to(kind)
    scale = moments.diagonal(dim1=-2, dim2=-1).rsqrt().unsqueeze(-2)
    moments = moments * scale * scale.transpose(-1, -2)
    target = (weight / scale) @ moments
    solution = (weight if start is None else start.to(kind)) / scale * mask
    residual = target - solution @ moments
    error = float(((weight / scale - solution) * residual).sum(dtype=torch.float64))
    residual = residual * mask
    direction = residual
    power = residual.square().sum(-1, keepdim=True)
    enough = tolerance * target.square().sum(-1, keepdim=True)
    for _ in range(rounds):
        if bool((power <= enough).all()):
            break
        product = direction @ moments
        step = power / (direction * product).sum(-1, keepdim=True).clamp_min(1e-300 if kind == torch.float64 else 1e-37)
        step = torch.where(power > enough, step, torch.zeros_like(step))
        solution = solution + step * direction
        gained = float((step * power).sum(dtype=torch.float64))
        residual = (residual - step * product) * mask
        fresh = residual.square().sum(-1, keepdim=True)
        direction = residual + torch.where(power > 0, fresh / power, torch.zeros_like(power)) * direction
        power, error = fresh, error - gained
        if gained < gain * error:
            break
    return torch.where(mask, solution * scale, torch.zeros_like(solution))


# ------------------------------------------------------------------------------------------------------ which to drop


def sweep(problem: Problem, block: int = 128) -> tuple[Tensor, Tensor]:
    """Mask and values that Optimal Brain Surgeon finds from left to right.

    Each bank is chosen when its turn comes, on the values it has by then, and so is each block of columns where any
    weights may go. Other patterns are asked once, with w^2 / [H^-1]_jj.
    """
    kind = problem.dtype
    weight = problem.weight.to(kind).clone()
    if not problem.banks and problem.drops is None:
        mask = problem.choose(weight.square() / problem.factors.uncertainty.to(kind).unsqueeze(-2))
        return mask, weight * mask
    upper = problem.factors.upper.to(kind)
    mask = torch.ones_like(weight, dtype=torch.bool)
    for begin, end, banks in _blocks(problem, block):
        if problem.drops is not None:  # as many in each block as its share of the columns
            before, after = (round(problem.drops * edge / weight.shape[-1]) for edge in (begin, end))
            pivots = upper.diagonal(dim1=-2, dim2=-1)[..., begin:end].unsqueeze(-2)
            mask[..., begin:end] = drop_smallest((weight[..., begin:end] / pivots).square(), after - before)
        _sweep_block(weight, mask, upper, banks, begin, end)
        change = weight[..., begin:end] * ~mask[..., begin:end]  # holds w_j / U_jj where dropped
        weight[..., end:] -= change @ upper[..., begin:end, end:]
    return mask, weight * mask


def _blocks(problem: Problem, block: int) -> Iterator[tuple[int, int, Sequence[tuple[int, int, int]]]]:
    """(begin, end, banks) of blocks of about `block` columns, each with whole banks."""
    columns, banks = problem.weight.shape[-1], problem.banks
    if not banks:
        for begin in range(0, columns, block):
            end = min(begin + block, columns)
            yield begin, end, [(begin, end - begin, 0)]
        return
    first = 0
    while first < len(banks):
        begin, last = banks[first][0], first
        while last < len(banks) and banks[last][0] + banks[last][1] <= begin + block:
            last += 1
        last = max(last, first + 1)
        yield begin, banks[last - 1][0] + banks[last - 1][1], banks[first:last]
        first = last


def _sweep_block(
    weight: Tensor, mask: Tensor, upper: Tensor, banks: Sequence[tuple[int, int, int]], begin: int, end: int
) -> None:
    """Choose and update the columns `begin` to `end`; dropped entries of `weight` are left holding w_j / U_jj."""
    for start, length, drops in banks:
        part = slice(start, start + length)
        pivots = upper.diagonal(dim1=-2, dim2=-1)[..., part].unsqueeze(-2)
        if drops:
            scores = (weight[..., part] / pivots).square()
            gone = scores.sort(dim=-1, stable=True).indices[..., :drops]
            mask[..., part].scatter_(-1, gone, False)
        for column in range(start, start + length):
            change = weight[..., column] * ~mask[..., column] / upper[..., column, column].unsqueeze(-1)
            weight[..., column + 1 : end] -= change.unsqueeze(-1) * upper[..., column, column + 1 : end].unsqueeze(-2)
            weight[..., column] = torch.where(mask[..., column], weight[..., column], change)


def alternate(problem: Problem, rounds: int = 100, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mask and values after ADMM. The penalty grows while the mask still moves, faster the more it moves."""
    kind = problem.dtype
    scale, moments, values, vectors = problem.factors.spectrum(kind)
    weight = problem.weight.to(kind) / scale
    back = vectors.transpose(-1, -2).contiguous()
    target = weight @ moments
    mask = problem.choose(weight.square()) if first is None else first
    sparse, dual, penalty = weight * mask, torch.zeros_like(weight), 0.2
    before, kept = mask, max(1, int(mask.count_nonzero()))
    many = weight.shape[-2] >= weight.shape[-1]  # then one product with the inverse is less work than two
    for number in range(1, rounds + 1):
        free = target - dual + penalty * sparse
        if not many:
            free = (free @ vectors / (values + penalty)) @ back
        else:
            if number % _STEADY == 1:
                inverse = (vectors / (values + penalty)) @ back
            free = free @ inverse
        point = free + dual / penalty
        mask = problem.choose(point.square())
        sparse = point * mask
        dual = dual + penalty * (free - sparse)
        if number % _STEADY == 0:
            moved = int((mask ^ before).count_nonzero())
            if not moved and number > 6:
                break
            penalty *= 1.3 if moved >= 0.1 * kept else 1.2 if moved >= 0.005 * kept else 1.1
            before = mask
    return mask, sparse * scale

"""One layer reconstructed: new values for its weight, its bias, and the batch norm behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from prunus.contract import Pattern, whole
from prunus.layers import Weight
from prunus.pruning import patterns
from prunus.recovery._moments import Moments, bias_of, rescale
from prunus.recovery._solve import Factors, Problem, alternate, damped, errors, optimum, sweep
from prunus.settings.recovery import ReconstructOptions

TRIAL = 4  # steps of conjugate gradients before two masks are compared
GAIN = 1e-4  # a step that lowers the error by less is the last one
LADDER = (1, 5, 20, 60, 180)  # dampings that are tried on batches held aside, as multiples of the least
STRENGTHS = (1.0, 0.0)  # of the shrinking, tried there as well
WORTH = 0.01  # another choice must lower the error there by this part
CLEAR = 0.1  # where there are fewer places than columns, and so hardly any aside, by this part
CHANCE = 0.05  # a smaller part of the correlations may be chance without harm where places are not few
FADED = 4  # so many places to a column are not few; without batches held aside they are not shrunk any more


@dataclass(frozen=True, eq=False)
class LayerResult:
    """What became of a layer: its mask, and the relative squared error of its outputs.

    before: with the magnitudes' choice of the same pattern and the old values; masked: with the mask found and the old
    values; after: with the new values.
    """

    mask: Tensor
    before: float
    masked: float
    after: float

    def errors(self) -> dict[str, float]:
        """The three errors by name."""
        return {"before": self.before, "masked": self.masked, "after": self.after}


def centred(moments: Moments, shift: bool) -> tuple[Tensor, Tensor | None]:
    """Means of z z^T and x z^T; about the means of x and z where the layer can shift its outputs."""
    count = max(1, moments.count)
    own, cross = moments.own / count, None if moments.cross is None else moments.cross / count
    if shift:
        x, z = moments.dense / count, moments.pruned / count
        own = own - z.unsqueeze(-1) * z.unsqueeze(-2)
        cross = None if cross is None else cross - x.unsqueeze(-1) * z.unsqueeze(-2)
    return own, cross


def chance(own: Tensor, count: int) -> Tensor:
    """The part of the correlations in `count` places that may be chance, by groups, from 0 to 1.

    The oracle-approximating one (Chen et al. 2010), on correlations so that scales do not matter.
    """
    columns = own.shape[-1]
    diagonal = own.diagonal(dim1=-2, dim2=-1)
    # Inputs that hardly vary leave nothing but rounding, perhaps below zero: they have no correlations.
    least = torch.finfo(own.dtype).eps * diagonal.mean(-1, keepdim=True).clamp_min(0.0)
    spread = torch.where(diagonal > least, diagonal.clamp_min(1e-300).rsqrt(), 0.0)
    square = (own * spread.unsqueeze(-1) * spread.unsqueeze(-2)).square().sum((-2, -1))
    above = (1 - 2 / columns) * square + columns**2
    return (above / ((count + 1 - 2 / columns) * (square - columns).clamp_min(1e-12))).clamp(max=1.0)


def uncertain(own: Tensor, count: int) -> bool:
    """Is there a choice between shrinking and not?"""
    return count < FADED * own.shape[-1] or float(chance(own, count).max()) >= CHANCE


def shrunk(
    own: Tensor, cross: Tensor | None, count: int, strength: float | None = None
) -> tuple[Tensor, Tensor | None]:
    """Moments of few places, their correlations drawn towards zero by `strength` times the part that may be chance.

    Directions that were never or hardly seen would else be changed freely by a fit: the more so the nearer the places
    come to the number of columns, from either side. How strong is best depends on the structure of the inputs, which
    batches held aside can tell. Without them it is 1 up to as many places as columns, and fades from there.
    """
    columns = own.shape[-1]
    if strength is None:
        strength = min(1.0, max(0.0, (FADED - count / columns) / (FADED - 1)))
    if not strength or columns < 2:
        return own, cross
    keep = 1 - strength * chance(own, count).unsqueeze(-1).unsqueeze(-1)

    def drawn(matrix: Tensor) -> Tensor:
        return keep * matrix + (1 - keep) * torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))

    return drawn(own), None if cross is None else drawn(cross)


def lack(weight: Weight, matrix: Tensor, moments: Moments, shift: bool) -> float:
    """Mean square of W x + g - W z: what the dense weights miss of the dense outputs on the pruned network's inputs.

    With `shift`, about its mean.
    """
    count = max(1, moments.count)
    middle = (matrix @ (moments.dense - moments.pruned).unsqueeze(-1)).reshape(-1) / count
    middle = middle if moments.gap is None else middle + moments.gap / count
    return moments.lack[weight.name] / count - (float(middle.square().sum()) if shift else 0.0)


def beside(moments: Moments, shift: bool) -> Tensor | None:
    """The mean of g z^T; g is what a residual connection adds in the dense network less what it adds in the pruned one.

    With `shift`, about the means of both.
    """
    if moments.beside is None or moments.gap is None:
        return None
    count = max(1, moments.count)
    middle = (moments.gap / count).unsqueeze(-1) * (moments.pruned / count) if shift else 0.0
    return moments.beside / count - middle


def wanted(matrix: Tensor, own: Tensor, cross: Tensor | None, moments: Moments, shift: bool, last: bool) -> Tensor:
    """The mean of (W x + g - W z) z^T: the wanted correction of the outputs, against the inputs it can be made of.

    With `shift`, about the means. Without `last` g is left out: a batch norm stands between the outputs and the sum.
    """
    if moments.target is None:
        assert cross is not None
        extra = beside(moments, shift) if last else None
        return matrix @ (cross - own) if extra is None else matrix @ (cross - own) + extra
    assert moments.aimed is not None
    count = max(1, moments.count)
    target = moments.target / count
    if shift:  # a bias in the outputs that were summed cancels here
        target = target - (moments.aimed / count).unsqueeze(-1) * (moments.pruned / count)
    return target - matrix @ own


def aim(weight: Tensor, ridge: Factors, lacking: Tensor) -> Tensor:
    """The unpruned weight that best gives the dense outputs on the pruned network's inputs.

    Minimises |W x + g - V z|^2 + damping |V - W|^2, where `ridge` are the damped moments of z and `lacking` is the mean
    of (W x + g - W z) z^T.
    """
    step = torch.cholesky_solve(lacking.transpose(-1, -2), ridge.lower)
    return weight + step.transpose(-1, -2)


def trusted(weight: Tensor, best: Tensor, own: Tensor, ridge: Factors, lack: float, count: int) -> float:
    """The part of the step from `weight` to `best` that is more than chance, from 0 to 1 (James and Stein 1961).

    Fitted to `count` places, the step accounts for a part of the mean square `lack` of the outputs. Noise alone would
    account for as much of it as there are free columns to a place.
    """
    step = best - weight
    explained = float((step @ own * step).sum())
    if explained <= 0 or lack <= 0:
        return 0.0 if lack > 0 else 1.0
    spread = ridge.moments.diagonal(dim1=-2, dim2=-1) - own.diagonal(dim1=-2, dim2=-1)
    free = float((1 - spread * ridge.uncertainty).sum(-1).mean())
    noise = max(0.0, lack - explained) * free / max(count - free, 1.0)
    return min(1.0, max(0.0, 1.0 - noise / explained))


def problem_for(weight: Weight, start: Tensor, factors: Factors, pattern: Pattern, sparsity: float) -> Problem:
    """The layer's problem with the choices its pattern allows."""
    form = weight.rows(weight.parameter.detach()).shape

    def choose(scores: Tensor) -> Tensor:
        mask = pattern.mask(weight.unrows(scores.reshape(form)).contiguous(), weight, sparsity)
        return weight.rows(mask).reshape(scores.shape)

    banks = patterns.bank_drops(pattern, weight, sparsity)
    free = whole(sparsity, start.numel()) if type(pattern) is patterns.Unstructured else None
    return Problem(start, factors, choose, banks, by_row=bool(banks), drops=free)


def loudness(norm: nn.Module | None, matrix: Tensor) -> Tensor:
    """How much the batch norm behind a layer enlarges each of its outputs, (groups, rows, 1); one without a norm.

    Rows times this are pruned as the network behind the norm sees them.
    """
    if not isinstance(norm, nn.modules.batchnorm._BatchNorm) or norm.running_var is None:
        return torch.ones_like(matrix[..., :1])
    found = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        found = found * norm.weight.detach().double().abs()
    found = (found / found.mean().clamp_min(1e-30)).clamp_min(1e-3)
    return found.reshape(*matrix.shape[:2], 1)


def held_aside(
    weight: Weight, matrix: Tensor, scale: Tensor, moments: Moments, *, pattern: Pattern, sparsity: float,
    given: Tensor | None, shift: bool, last: bool, settings: ReconstructOptions,
) -> tuple[ReconstructOptions, float | None]:  # fmt: skip
    """The settings with the damping, and the strength of the shrinking, that do best on the batches held aside.

    After a quick fit to the others. Both are then used on all batches: what is best for a part of them is best for all,
    which the number of places alone is not, as it may stand on either side of a limit.
    """
    rest, aside = moments.rest(), moments.aside
    assert aside is not None
    seen = centred(rest, shift)
    there, across = centred(aside, shift)
    aimed = matrix @ there
    size = float((matrix @ there * matrix * scale.square()).sum())
    if settings.towards:
        extra = settings.towards * wanted(matrix, there, across, aside, shift, last)
        aimed = aimed + extra
        if weight.name in aside.lack:  # else what the outputs lack is left out, and errors may be below zero
            size += 2 * float((matrix * extra * scale.square()).sum())
            size += settings.towards**2 * lack(weight, matrix, aside, shift) * float(scale.square().mean())

    def error(tried: ReconstructOptions, strength: float | None) -> float:
        inputs = shrunk(*seen, rest.count, strength)
        start, ridge = _start(weight, matrix, rest, *inputs, shift, last, tried, strength)
        task = problem_for(weight, start * scale, ridge, pattern, sparsity)
        mask = given
        if mask is None:
            mask = task.choose(task.weight.square() * ridge.moments.diagonal(dim1=-2, dim2=-1).unsqueeze(-2))
        values = optimum(task, mask, rounds=TRIAL, gain=GAIN).double()
        return size + float((values @ there * values - 2 * values * aimed * scale).sum())

    worth = CLEAR if rest.count < matrix.shape[-1] else WORTH
    best: tuple[ReconstructOptions, float | None] = settings, None
    least = math.inf
    for strength in (None, *STRENGTHS) if uncertain(seen[0], rest.count) else (None,):
        lowest = math.inf
        for step in LADDER:
            tried = replace(settings, damping=settings.damping * step)
            found = error(tried, strength)
            if not _lower(found, lowest, WORTH):
                break
            lowest = found
            if _lower(found, least, worth):
                best, least = (tried, strength), found
    return best


def _lower(found: float, least: float, worth: float) -> bool:
    """By more than chance: errors differ a little between any two fits."""
    return math.isinf(least) or found < least - worth * max(least, 0.0)


def find(problem: Problem, refine: int) -> tuple[Tensor, Tensor]:
    """(mask, values): the best of the sweep and of ADMM, row by row where the pattern allows it."""
    candidates = [sweep(problem)]
    if not problem.banks and problem.drops is None:  # what a unit does, also with its neighbours: exact for whole rows
        weight = problem.weight
        mask = problem.choose(weight * (weight @ problem.moments.to(weight.dtype)))
        candidates.append((mask, weight * mask))
    if refine:
        candidates.append(alternate(problem, refine, candidates[0][0]))
    best_mask, best = candidates[0][0], optimum(problem, *candidates[0], rounds=TRIAL, gain=GAIN)
    for mask, values in candidates[1:]:
        values = optimum(problem, mask, values, rounds=TRIAL, gain=GAIN)
        was, now = errors(problem, best), errors(problem, values)
        better = (now < was).unsqueeze(-1) if problem.by_row else now.sum() < was.sum()
        best_mask, best = torch.where(better, mask, best_mask), torch.where(better, values, best)
    return best_mask, optimum(problem, best_mask, best, gain=GAIN)


@torch.no_grad()
def rebuild(
    weight: Weight,
    original: Tensor,
    moments: Moments,
    *,
    pattern: Pattern,
    sparsity: float,
    given: Tensor | None,
    norm: nn.Module | None,
    settings: ReconstructOptions,
) -> LayerResult:
    """Choose (or take) the zeros of `weight`, set what stays, and correct the bias and the batch norm behind it."""
    lines = weight.rows(original.double())
    matrix = lines.reshape(moments.own.shape[0], -1, moments.own.shape[-1])
    bias = bias_of(weight)
    shift = bias is not None or norm is not None
    own, cross = centred(moments, shift)
    scale = loudness(norm, matrix)
    mask = None if given is None else weight.rows(given).reshape(matrix.shape)
    strength = None
    if moments.aside is not None and (weight.parameter.dim() > 2 or uncertain(own, moments.count)):
        settings, strength = held_aside(
            weight, matrix, scale, moments, pattern=pattern, sparsity=sparsity, given=mask, shift=shift,
            last=norm is None, settings=settings,
        )  # fmt: skip
    inputs = shrunk(own, cross, moments.count, strength)
    start, ridge = _start(weight, matrix, moments, *inputs, shift, norm is None, settings, strength)
    problem = problem_for(weight, start * scale, ridge, pattern, sparsity)
    if mask is None:
        mask, values = find(problem, settings.refine)
    else:
        values = optimum(problem, mask)
    problem = replace(problem, weight=start)
    naive = problem.choose(matrix.square()) if given is None else mask
    values = values.double() / scale * mask
    tried = (torch.zeros_like(matrix), matrix * naive, matrix * mask, values)
    size, *left = (float(errors(problem, each.to(problem.dtype)).sum(dtype=torch.float64)) for each in tried)
    result = LayerResult(
        weight.unrows(mask.reshape(lines.shape)).contiguous(), *(each / (size or 1.0) for each in left)
    )
    weight.parameter.copy_(weight.unrows(values.reshape(lines.shape)))
    keep_mean(weight, matrix, values, moments, own, bias, norm)
    return result


def _start(
    weight: Weight, matrix: Tensor, moments: Moments, own: Tensor, cross: Tensor | None, shift: bool, last: bool,
    settings: ReconstructOptions, strength: float | None,
) -> tuple[Tensor, Factors]:  # fmt: skip
    """(W*, H) as `aim` finds them, W* drawn towards the dense weight as far as the difference may be chance."""
    key = (shift, settings.damping, strength)
    if key not in moments.factors:
        moments.factors[key] = Factors(damped(own, settings.damping))
    ridge = moments.factors[key]
    if not settings.towards:
        return matrix, ridge
    best = aim(matrix, ridge, wanted(matrix, own, cross, moments, shift, last))
    part = settings.towards
    if weight.name in moments.lack:
        part *= trusted(matrix, best, own, ridge, lack(weight, matrix, moments, shift), moments.count)
    return best if part == 1.0 else matrix + part * (best - matrix), ridge


def keep_mean(
    weight: Weight,
    matrix: Tensor,
    values: Tensor,
    moments: Moments,
    own: Tensor,
    bias: Tensor | None,
    norm: nn.Module | None,
) -> None:
    """The mean output as it was: through the batch norm's statistics if there is one, else through the bias."""
    count = max(1, moments.count)
    x, z = moments.dense.unsqueeze(-1) / count, moments.pruned.unsqueeze(-1) / count
    moved = (values @ z - matrix @ x).reshape(-1)
    if moments.gap is not None and norm is None:
        moved = moved - moments.gap / count
    if norm is None:
        if bias is not None:
            bias -= moved.to(bias.dtype)
        return
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    mean = moments.outputs[weight.name] / count
    was = moments.squares[weight.name] / count - mean.square()
    now = (values @ own * values).sum(-1).reshape(-1).clamp_min(0.0)
    norm.running_mean += moved.to(norm.running_mean.dtype)
    rescale(norm.running_var, mean, was, now)

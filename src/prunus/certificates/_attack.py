"""A lower bound beside the certificate (ledger P-29): an input at which the networks really differ that much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair
from prunus.errors import BadInput

_SIFTED, _SIFTED_ENTRIES = 4096, 2**23
"""Random points tried before an ascent, and the most entries they may have in the widest layer."""


@dataclass(frozen=True)
class AttackSettings:
    """How the attack climbs: projected gradient ascent.

    Attributes:
        starts: Starts in all.
        steps: Steps of each.
        first_step: Length of the first step, as a part of the radius.
        last_step: Length of the last step, as a part of the radius.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> masks = prunus.find_masks(model, 0.5)
        >>> quick = prunus.certificates.AttackSettings(starts=4, steps=10)
        >>> prunus.certify(model, masks, prunus.Ball(1.0), attack=quick).attained > 0
        True
    """

    starts: int = 48
    steps: int = 120
    first_step: float = 0.3
    last_step: float = 0.01

    def __post_init__(self) -> None:
        if self.starts < 1 or self.steps < 0:
            raise BadInput("An attack needs at least one start, and no negative number of steps.")


@dataclass(frozen=True, eq=False)
class Attained:
    """What an attack found.

    Attributes:
        distance: The largest distance, evaluated in float64.
        witness: The input that shows it.
        each: The largest distance around each centre (points,).

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> pruned = prunus.find_masks(model, 0.5).apply_(prunus.models.make("fc:8-16-4", seed=0).eval())
        >>> pair = prunus.certificates.read_pair(model, pruned, (8,))
        >>> found = prunus.certificates.ascend(pair, prunus.Ball(1.0).region((8,)), AttackSettings(steps=5))
        >>> found.witness.shape, found.each.shape
        (torch.Size([8]), torch.Size([1]))
    """

    distance: float
    witness: Tensor
    each: Tensor


def ascend(
    pair: Pair,
    region: Region,
    settings: AttackSettings | None = None,
    seed: int = 0,
    extra: Tensor | None = None,
    norm: int | str = 2,
) -> Attained:
    """Climb `||f(x) - F(x)||` from the centres, from random points of the region, and from `extra` starts.

    The ascent runs in float32; every point it visits last or finds best is evaluated again in float64, inside the
    region, so the result is a lower bound whatever the ascent did.

    Args:
        pair: Both networks, from `read_pair`.
        region: Where to search, from `domain.region(shape)`.
        settings: Starts and steps.
        seed: Seed of the random starts.
        extra: More starts (n, *shape).
        norm: 2 for the 2-norm of the outputs' difference, "max" for its largest entry.

    Returns:
        The largest distance found, and where.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> pruned = prunus.find_masks(model, 0.5).apply_(prunus.models.make("fc:8-16-4", seed=0).eval())
        >>> pair = prunus.certificates.read_pair(model, pruned, (8,))
        >>> found = prunus.certificates.ascend(pair, prunus.Ball(1.0).region((8,)), AttackSettings(steps=5))
        >>> found.distance > 0
        True
    """
    settings = settings or AttackSettings()
    centres, starts = _starts(region, settings, seed, extra)
    if region.radius == 0.0:
        return _evaluated(pair, region, region.centres, torch.arange(region.points), norm)
    owners = torch.arange(centres.shape[0]) % region.points
    found = []
    light = pair.to(torch.float32)
    if region.points == 1 and settings.starts > 2:
        starts = _sifted(light, region, starts, settings, seed, norm)
    for begin in range(0, starts.shape[0], 64):
        rows = slice(begin, begin + 64)
        found.append(_climb(light, region, centres[rows], starts[rows], settings, norm))
    return _evaluated(pair, region, torch.cat(found), owners, norm)


def _starts(region: Region, settings: AttackSettings, seed: int, extra: Tensor | None) -> tuple[Tensor, Tensor]:
    """Start number i belongs to centre i modulo the number of centres; the first round starts near the centres."""
    rounds = max(1, math.ceil(settings.starts / region.points))
    centres = region.centres.repeat(rounds, *[1] * (region.centres.ndim - 1))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(centres.shape, dtype=torch.float64, generator=generator)
    if region.half is not None:
        starts = region.project(centres + 2 * noise * region.half, centres)
    else:
        length = torch.linalg.vector_norm(noise.flatten(1), dim=1).reshape(-1, *[1] * (noise.ndim - 1))
        starts = centres + region.radius * noise / length.clamp_min(1e-300)
    if extra is not None and region.points == 1:
        given = extra.detach().double().cpu()
        around = region.centres.expand_as(given)
        starts = torch.cat([starts, region.project(given, around)])
        centres = torch.cat([centres, around])
    return centres, starts


def _sifted(pair: Pair, region: Region, starts: Tensor, settings: AttackSettings, seed: int, norm: int | str) -> Tensor:
    """The last third of the starts replaced by the best of many random points."""
    entries = max(region.centres.numel(), *(math.prod(step.shape) for step in pair.steps))
    count = min(_SIFTED, _SIFTED_ENTRIES // entries)
    chosen = min(settings.starts // 3, count)
    if chosen < 1:
        return starts
    generator = torch.Generator().manual_seed(seed + 1)
    shape = (count, *region.centres.shape[1:])
    noise = torch.randn(shape, dtype=torch.float64, generator=generator)
    centres = region.centres.expand(shape)
    if region.half is not None:
        points = region.project(centres + 2 * noise * region.half, centres)
    else:
        length = torch.linalg.vector_norm(noise.flatten(1), dim=1).reshape(-1, *[1] * (noise.ndim - 1))
        points = centres + region.radius * noise / length.clamp_min(1e-300)
    with torch.no_grad():
        one, two = pair.outputs(points.float())
        sizes = (two - one).square().sum(1) if norm == 2 else (two - one).abs().amax(1)
    best = points[torch.nan_to_num(sizes, nan=-1.0).topk(chosen).indices]
    return torch.cat([starts[: settings.starts - chosen], best, starts[settings.starts :]])


def _climb(
    pair: Pair, region: Region, centres: Tensor, starts: Tensor, settings: AttackSettings, norm: int | str = 2
) -> Tensor:
    """The best input of every start; positions stay in float64, only the gradient is taken in float32."""
    place, best = starts.clone(), starts.clone()
    record = torch.full((starts.shape[0],), -1.0)
    for number in range(settings.steps + 1):
        leaf = place.float().requires_grad_()
        one, two = pair.outputs(leaf)
        distance = (two - one).square().sum(1) if norm == 2 else (two - one).abs().amax(1)
        better = distance.detach() > record
        record = torch.where(better, distance.detach(), record)
        best[better] = place[better]
        if number == settings.steps:
            break
        (gradient,) = torch.autograd.grad(distance.sum(), leaf)
        part = number / max(1, settings.steps - 1)
        size = settings.first_step * (settings.last_step / settings.first_step) ** part
        place = region.project(place + _direction(gradient.double(), region) * size, centres)
    return best


def _direction(gradient: Tensor, region: Region) -> Tensor:
    if region.half is not None:
        return gradient.sign() * region.half
    length = torch.linalg.vector_norm(gradient.flatten(1), dim=1).reshape(-1, *[1] * (gradient.ndim - 1))
    return cast("Tensor", gradient / length.clamp_min(1e-300) * region.radius)


def _evaluated(pair: Pair, region: Region, inputs: Tensor, owners: Tensor, norm: int | str) -> Attained:
    with torch.no_grad():
        one, two = pair.outputs(inputs)
        distances = torch.linalg.vector_norm(two - one, dim=1) if norm == 2 else (two - one).abs().amax(1)
    each = torch.zeros(region.points, dtype=torch.float64)
    each = each.scatter_reduce(0, owners, distances, "amax")
    top = int(distances.argmax())
    return Attained(float(distances[top]), inputs[top].clone(), each)

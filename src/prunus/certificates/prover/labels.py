"""`certify_labels`: near which points do both networks provably give the same label?"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus.certificates._certify import prepared, shared_graph
from prunus.certificates._guard import check_reading, check_seconds, run_module, with_gradients
from prunus.certificates.bounds.intervals import propagate_ranges
from prunus.certificates.bounds.recursion import Norms, propagate
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.bounds.rounding import computed_ranges
from prunus.certificates.domains import Region, Samples
from prunus.certificates.prover.goals import SameLabel, check_labels
from prunus.certificates.prover.search import batch_size
from prunus.certificates.reading.pair import input_shape, read_pair
from prunus.contract import Masks
from prunus.errors import BadInput
from prunus.graph import Graph


@dataclass(frozen=True, eq=False)
class LabelVerdict:
    """What `certify_labels` found.

    Attributes:
        agree: for every point, True where both networks provably give one and the same label everywhere within the
            radius.
        same: for every point, True where both networks give the same label at the point itself.
        radius: of the neighbourhoods, in the 2-norm.
        seconds: how long it took.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> found = prunus.certify_labels(model, prunus.find_masks(model, 0.0), prunus.Samples(torch.eye(8), 0.001))
        >>> found.same_fraction
        1.0
    """

    agree: tuple[bool, ...]
    same: tuple[bool, ...]
    radius: float
    seconds: float

    @property
    def fraction(self) -> float:
        """Share of the points whose label is proved."""
        return sum(self.agree) / len(self.agree)

    @property
    def same_fraction(self) -> float:
        """Share of the points at which both networks give the same label; proved ones are among them."""
        return sum(self.same) / len(self.same)

    @property
    def statement(self) -> str:
        """The result in words."""
        count = len(self.agree)
        return (
            f"Both networks give the same label at {sum(self.same):,} of {count:,} points, and provably everywhere "
            f"within {self.radius:g} of {sum(self.agree):,} of them ({self.fraction:.1%})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        return {
            "fraction": self.fraction,
            "same_fraction": self.same_fraction,
            "agree": list(self.agree),
            "same": list(self.same),
            "radius": self.radius,
            "seconds": self.seconds,
            "statement": self.statement,
        }


@with_gradients
def certify_labels(
    model: nn.Module,
    pruned: Masks | nn.Module,
    points: Samples,
    *,
    seconds: float = math.inf,
    seed: int = 0,
    graph: Graph | None = None,
) -> LabelVerdict:
    """For every point, prove that both networks give the same label everywhere in its neighbourhood.

    Args:
        model: the original network, in evaluation mode; its label is its largest output.
        pruned: masks, or the other network.
        points: `Samples(points, radius)`.
        seconds: stops the work; points that were not reached count as not proved.
        seed: of the points on which the reading of the networks is checked.
        graph: what was read of the model before, where masks are tried one after the other.

    Returns:
        `LabelVerdict`: `agree` (a bool for every point), `fraction`, `statement`.

    Raises:
        BadInput: no `Samples`, networks that do not fit each other, an operator without a rule.

    Example:
        >>> import prunus, torch
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> points = torch.linspace(-1, 1, 24).reshape(3, 8)
        >>> same = prunus.certify_labels(model, prunus.find_masks(model, 0.1), prunus.Samples(points, 0.001))
        >>> len(same.agree)
        3
    """
    begin = time.monotonic()
    if not isinstance(points, Samples):
        raise BadInput("certify_labels takes prunus.Samples(points, radius) as its domain.")
    check_seconds(seconds)
    original, other = prepared(model, pruned)
    shape = input_shape(original, points.shape, None)
    pair = read_pair(original, other, shape, graph=graph or shared_graph(original, pruned, shape))
    check_labels(pair)
    pair, region = pair.on(points.region(shape))
    goal = SameLabel.of(pair)
    norms = Norms(goal.pair)
    agree, same = [], []
    step = batch_size(goal)
    for first in range(0, region.points, step):
        part = region.part(first, min(first + step, region.points))
        one, two = (run_module(network, part.centres) for network in (model, other))
        equal = one.argmax(1) == two.argmax(1)
        same += equal.tolist()
        proved = torch.zeros_like(equal)
        chosen = torch.nonzero(equal).flatten()
        if chosen.numel() and time.monotonic() - begin < seconds:
            here = Region(part.centres[chosen], part.radius)
            proved[chosen] = proved_labels(goal, norms, here)
        agree += proved.tolist()
    check_reading(pair, (model, other), region, seed)
    return LabelVerdict(tuple(agree), tuple(same), region.radius, time.monotonic() - begin)


def proved_labels(goal: SameLabel, norms: Norms, region: Region) -> Tensor:
    """True (points,) where the label is proved in a whole neighbourhood."""
    pair = goal.pair
    with torch.no_grad():
        exact = propagate_ranges(pair, region, propagate(pair, region, norms))
        ranges = computed_ranges(pair, region, norms, exact)
        relaxation = Relaxation(pair, region, ranges, computed=True)
        relaxation.refresh()
        proved = goal.bound(relaxation, pair.outputs(region.centres)) < goal.limit
        rest = torch.nonzero(~proved).flatten()
        if rest.numel():
            here = Region(region.centres[rest], region.radius)
            left = [value.rows(rest) for value in relaxation.ranges]
            relaxation = Relaxation(pair, here, left, computed=True)
            relaxation.tighten()
            proved[rest] = goal.bound(relaxation, pair.outputs(here.centres)) < goal.limit
    return proved

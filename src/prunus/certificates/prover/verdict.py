"""`equivalent`: decides whether two networks stay within a tolerance, or give equal labels, on a whole domain."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus.certificates._attack import AttackSettings, ascend
from prunus.certificates._certify import prepared, shared_graph
from prunus.certificates._guard import check_reading, check_seconds, run_module, with_gradients
from prunus.certificates.domains import Ball, Box, Domain, Region, Samples
from prunus.certificates.prover.boxes import Boxes
from prunus.certificates.prover.goals import Close, Goal, SameLabel
from prunus.certificates.prover.search import Confirm, search
from prunus.certificates.reading.pair import Pair, dtype_of, input_shape, read_pair
from prunus.contract import Masks
from prunus.errors import BadInput, RunFailed


@dataclass(frozen=True, eq=False)
class Verdict:
    """What `equivalent` found.

    Attributes:
        status: "proved", "refuted" or "undecided".
        bound: no input of the domain exceeds it (infinite where refuted or nothing is known yet). For labels: at every
            input one and the same label comes within `bound` of the largest output in both networks (before a softmax
            at the end). Where it is negative that label leads by as much, and so it is the label of both.
        counterexample: an input of the domain, of the networks' own type, at which the real modules differ by more than
            the tolerance or give different labels; None unless refuted.
        difference: what the real modules show at the counterexample.
        boxes: how many input boxes were bounded.
        seconds: how long it took.
        tolerance, norm, labels: what was asked.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> verdict = prunus.equivalent(model, prunus.find_masks(model, 0.9), prunus.Ball(1.0), tolerance=0.001)
        >>> verdict.status, verdict.difference > 0.001
        ('refuted', True)
    """

    status: str
    bound: float
    counterexample: Tensor | None
    difference: float | None
    boxes: int
    seconds: float
    tolerance: float
    norm: int | str
    labels: bool

    @property
    def statement(self) -> str:
        """The verdict in words."""
        how = f"({self.boxes:,} box{'' if self.boxes == 1 else 'es'}, {self.seconds:.1f} s)"
        if self.labels:
            words = {
                "proved": "Proved: both networks give the same label on the whole domain",
                "refuted": "Refuted: the networks give different labels at the counterexample",
                "undecided": "Undecided: no input with different labels was found, and their absence is not proved",
            }[self.status]
            if self.status == "undecided" and math.isfinite(self.bound):
                words += f"; everywhere one label is within {self.bound:.4g} of the largest output in both networks"
            return f"{words} {how}."
        norm = "any output" if self.norm == "max" else "the output in the 2-norm"
        if self.status == "proved":
            words = f"Proved: no input of the domain moves {norm} by more than {self.bound:.4g}"
            return f"{words}, within {self.tolerance:g} {how}."
        if self.status == "refuted":
            words = f"Refuted: the counterexample moves {norm} by {self.difference:.4g}"
            return f"{words}, more than {self.tolerance:g} {how}."
        words = f"Undecided: {norm} moves by at most {self.bound:.4g}, and no input was found that exceeds"
        return f"{words} {self.tolerance:g} {how}."

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        return {
            "status": self.status,
            "bound": self.bound if math.isfinite(self.bound) else "infinite",
            "counterexample": None if self.counterexample is None else self.counterexample.tolist(),
            "difference": self.difference,
            "boxes": self.boxes,
            "seconds": self.seconds,
            "tolerance": None if self.labels else self.tolerance,
            "norm": None if self.labels else self.norm,
            "labels": self.labels,
            "statement": self.statement,
        }


@with_gradients
def equivalent(
    model: nn.Module,
    pruned: Masks | nn.Module,
    domain: Domain,
    tolerance: float = 0.05,
    norm: int | str = "max",
    *,
    labels: bool = False,
    seconds: float = 60.0,
    boxes: int | None = None,
    example: Tensor | None = None,
    seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None,
) -> Verdict:
    """Decide whether two networks differ by at most a tolerance, or give equal labels, everywhere in a domain.

    Branch and bound over boxes of inputs: the linear relaxation of the pair bounds each box, boxes whose bound is too
    large are halved (with many inputs, labels and probabilities by the sign of an activation), and every box also
    offers inputs that might refute. Rounding of both networks is part of the bound.

    Args:
        model: the original network, in evaluation mode.
        pruned: masks, or the other network: the same operators in the same order, with its own weights.
        domain: a `Box`, `Ball` or `Samples`.
        tolerance: the largest difference allowed.
        norm: "max" for every output by itself, or 2.
        labels: ask for the same label (the largest output) instead of a tolerance.
        seconds: stops the search; the answer is "undecided" then.
        boxes: stops the search after so many boxes; the answer then depends on them and not on the clock.
        example: a tensor (n, *input shape), where the domain does not show the inputs' shape.
        seed: of the attack that comes first.
        progress: called with boxes done, boxes waiting and the largest bound after every batch.

    Returns:
        A `Verdict`: `status`, `bound`, `counterexample`, `boxes`, `statement`.

    Raises:
        BadInput: a tolerance that is not positive, networks that do not fit each other, an operator without a rule.
        RunFailed: what was read of a network is not what it computes.

    Example:
        >>> import prunus, torch
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> box = prunus.Box(torch.zeros(8), torch.full((8,), 0.01))
        >>> prunus.equivalent(model, prunus.find_masks(model, 0.2), box, tolerance=10.0).status
        'proved'
    """
    begin = time.monotonic()
    _check(tolerance, norm, labels, seconds, boxes)
    original, other = prepared(model, pruned)
    if not isinstance(domain, (Ball, Box, Samples)):
        raise BadInput("The domain must be a prunus.Ball, prunus.Box or prunus.Samples.")
    shape = input_shape(original, domain.shape, example)
    pair = read_pair(original, other, shape, graph=shared_graph(original, pruned, shape))
    pair, region = pair.on(domain.region(shape))
    check_reading(pair, (model, other), region, seed)
    goal: Goal = SameLabel.of(pair) if labels else Close(pair, float(tolerance), norm)
    start = start_boxes(region)
    confirm = confirmed(goal, (model, other), start, pair)
    deadline = begin + (seconds if boxes is None else math.inf)
    found = _attacked(goal, region, confirm, seed) if region.points <= 64 else None
    if found is not None:
        status, bound, counted = "refuted", math.inf, 0
    else:
        result = search(goal, start, confirm, boxes, deadline, progress)
        found, bound, counted = result.counterexample, result.bound, result.boxes
        status = "proved" if result.settled else ("refuted" if found is not None else "undecided")
    difference = None
    if found is not None:
        one, two = run_module(model, found[None]), run_module(other, found[None])
        difference = float(goal.measure(one, two))
    spent = time.monotonic() - begin
    return Verdict(status, bound, found, difference, counted, spent, float(tolerance), norm, labels)


def _check(tolerance: Any, norm: Any, labels: bool, seconds: Any, boxes: Any) -> None:
    number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if not labels and (not number or not (math.isfinite(tolerance) and tolerance > 0)):
        raise BadInput(f"The tolerance is {tolerance!r}: it must be a positive number.")
    if norm not in (2, "max"):
        raise BadInput(f'The norm is 2 or "max", not {norm!r}.')
    check_seconds(seconds)
    if boxes is not None and (isinstance(boxes, bool) or not isinstance(boxes, int) or boxes < 1):
        raise BadInput(f"The number of boxes is {boxes!r}: it must be a positive whole number.")


def start_boxes(region: Region) -> Boxes:
    """The domain as boxes, one for each centre; balls are boxes of which only a part counts."""
    if region.half is not None:
        return Boxes(region.centres - region.half, region.centres + region.half)
    reach = region.radius
    return Boxes(region.centres - reach, region.centres + reach, region.centres, reach)


def confirmed(goal: Goal, models: tuple[nn.Module, nn.Module], start: Boxes, pair: Pair) -> Confirm:
    """A check of candidates on the real modules, at inputs of their own type inside the domain."""

    def confirm(candidate: Tensor) -> Tensor | None:
        kind = min((dtype_of(model) for model in models), key=lambda dtype: -torch.finfo(dtype).eps)
        rounded = candidate.to(kind)
        wide = rounded.double()[None].expand(len(start), *candidate.shape)
        if not bool(start.contain(wide).any()):
            near = (start.contain(candidate[None].expand_as(wide))).nonzero().flatten()
            if near.numel() == 0:
                return None
            row = int(near[0])
            moved = torch.where(rounded.double() > start.high[row], _next(rounded, -1), rounded)
            rounded = torch.where(moved.double() < start.low[row], _next(moved, 1), moved)
            if not bool(start[row : row + 1].contain(rounded.double()[None]).all()):
                return None
        one, two = (run_module(model, rounded[None]) for model in models)
        if not (bool(torch.isfinite(one).all()) and bool(torch.isfinite(two).all())):
            raise RunFailed("A network gives values that are not finite inside the domain.")
        return rounded if float(goal.measure(one, two)) > max(goal.limit, 0.0) else None

    return confirm


def _next(values: Tensor, direction: int) -> Tensor:
    return torch.nextafter(values, torch.full_like(values, math.inf * direction))


def _attacked(goal: Goal, region: Region, confirm: Confirm, seed: int) -> Tensor | None:
    """A counterexample that a short ascent of the difference finds."""
    norm = goal.norm if isinstance(goal, Close) else 2
    reached = ascend(goal.pair, region, AttackSettings(starts=16, steps=30), seed, None, norm)
    return confirm(reached.witness)

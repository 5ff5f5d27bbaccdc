"""Certificates for a data distribution instead of all inputs (ledger P-28), and over random masks (ledger P-30)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunus import adapters
from prunus.certificates._certify import Bounds, CertifyOptions, prepared, shared_graph
from prunus.certificates.domains import Ball, Box, Domain, Samples
from prunus.certificates.prover.goals import no_label
from prunus.certificates.reading.pair import input_shape, read_pair
from prunus.contract import Masks, Pattern
from prunus.errors import BadInput
from prunus.formulas import intervals
from prunus.formulas.closeness import label_margin


@dataclass(frozen=True)
class Statistic:
    """With `confidence`, an input of the distribution moves the output by more than `bound` with `probability` at most.

    Each statement holds on its own with the confidence.

    Attributes:
        bound: The distance.
        probability: Upper bound on the probability that an input exceeds it.
        confidence: The confidence.
        points: How many points were looked at.
        exceedances: How many of them lie beyond the bound.
        median: Median of the distances.
        largest: Largest of the distances.
        agreement: Share of points with the same label, the largest of one row of outputs.
        agreement_low: Its one-sided lower confidence bound.
        kept_by_margin: Share of points whose label is safe because the original's margin exceeds sqrt(2) times the
            distance (ledger P-27).
        median_margin: Median of the original's margins.
        unlabelled: Why nothing is said about labels (a single output, or several rows): the four fields before are
            None then. None where there are labels.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> found = prunus.certify_statistically(model, prunus.find_masks(model, 0.5), torch.randn(100, 8))
        >>> found.points, found.exceedances, found.bound == found.largest
        (100, 0, True)
    """

    bound: float
    probability: float
    confidence: float
    points: int
    exceedances: int
    median: float
    largest: float
    agreement: float | None
    agreement_low: float | None
    kept_by_margin: float | None
    median_margin: float | None
    unlabelled: str | None = None

    @property
    def statement(self) -> str:
        """The certificate in words."""
        labels = "" if self.agreement_low is None else f", and at least {self.agreement_low:.2%} keep their label"
        return (
            f"With confidence {self.confidence:.4g}, at most {self.probability:.3%} of the inputs of this "
            f"distribution move the output by more than {self.bound:.4g} ({self.exceedances} of {self.points} points "
            f"did){labels}."
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields and the statement as plain JSON."""
        return {**vars(self), "statement": self.statement}


@dataclass(frozen=True, eq=False)
class _Measured:
    """Distances (points,); margins and equal labels too, or why the outputs have no labels."""

    distances: Tensor
    margins: Tensor | None
    same: Tensor | None
    unlabelled: str | None


def certify_statistically(
    model: nn.Module,
    pruned: Masks | nn.Module,
    data: Any,
    error: float | None = None,
    confidence: float = 0.95,
    *,
    exceedances: int = 0,
    comparisons: int = 1,
) -> Statistic:
    """Bound the outputs' difference for a distribution, from held-out points drawn from it.

    Args:
        model: The original network, in evaluation mode.
        pruned: Masks, or the pruned module itself.
        data: A data set of (input, label) pairs, a tensor (n, *shape), or whatever `prunus.adapters.batches` reads,
            drawn independently and not used for pruning, tuning or choosing.
        error: The distance in question; its exceedances are counted (Clopper-Pearson). Without it the distance is an
            order statistic: the largest after setting aside `exceedances` points.
        confidence: The confidence of each statement.
        exceedances: How many points are set aside where no `error` is given; fix it beforehand.
        comparisons: How many prunings are compared on these points: they share the risk (Bonferroni).

    Returns:
        The `Statistic`; its `statement` says it in words.

    Raises:
        BadInput: No points, outputs that are not finite, or a number outside its range.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> masks = prunus.find_masks(model, 0.5)
        >>> found = prunus.certify_statistically(model, masks, torch.randn(100, 8), confidence=0.95)
        >>> round(found.probability, 4)
        0.0295
    """
    confidence = _confidence(confidence)
    _check_counts(error, exceedances, comparisons)
    found = _measure(*prepared(model, pruned), _inputs(data))
    count = found.distances.numel()
    ordered = found.distances.sort().values
    if error is None:
        if not 0 <= exceedances < count:
            raise BadInput(f"{exceedances} points cannot be set aside of {count}: give 0 to {count - 1}.")
        bound, beyond = float(ordered[count - 1 - exceedances]), exceedances
    else:
        bound, beyond = float(error), int((found.distances > error).sum())
    delta = 1 - confidence
    agreement = low = kept = margin = None
    if found.same is not None and found.margins is not None:
        differing = count - int(found.same.sum())
        agreement = float(found.same.double().mean())
        low = 1 - intervals.exceedance_upper(count, differing, delta, comparisons)
        kept = float((found.margins > label_margin(1.0) * found.distances).double().mean())
        margin = float(found.margins.median())
    return Statistic(
        bound=bound,
        probability=intervals.exceedance_upper(count, beyond, delta, comparisons),
        confidence=confidence,
        points=count,
        exceedances=beyond,
        median=float(ordered[count // 2]),
        largest=float(ordered[-1]),
        agreement=agreement,
        agreement_low=low,
        kept_by_margin=kept,
        median_margin=margin,
        unlabelled=found.unlabelled,
    )


def _confidence(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise BadInput(f"The confidence is {value!r}: it must lie strictly between 0 and 1.")
    return float(value)


def _check_counts(error: Any, exceedances: Any, comparisons: Any) -> None:
    def whole(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    number = isinstance(error, (int, float)) and not isinstance(error, bool)
    if error is not None and not (number and math.isfinite(error) and error >= 0):
        raise BadInput(f"The error is {error!r}: it must be 0 or a positive number.")
    if not whole(exceedances):
        raise BadInput(f"The exceedances are {exceedances!r}: give how many points are set aside, a whole number.")
    if not whole(comparisons) or comparisons < 1:
        raise BadInput(f"The comparisons are {comparisons!r}: give how many prunings are compared, 1 or more.")


def _inputs(data: Any) -> list[adapters.Batch]:
    """All points of a sample, in batches."""
    if isinstance(data, list) and data and all(isinstance(item, adapters.Batch) for item in data):
        return data
    if isinstance(data, (Tensor, np.ndarray)) and data.ndim < 2:
        raise BadInput("The sample is empty: a statistical certificate needs at least one point, as a row.")
    try:
        found = list(adapters.batches(data, 256))
    except BadInput as error:
        if "empty" in str(error):
            raise BadInput("The sample is empty: a statistical certificate needs at least one point.") from None
        raise
    return found


def halves(data: Any) -> tuple[list[adapters.Batch], list[adapters.Batch]]:
    """Every other point of a sample, and the rest; refuses samples of fewer than four points."""
    first, second = list[adapters.Batch](), list[adapters.Batch]()
    count = 0
    for batch in _inputs(data):
        for target, start in ((first, count % 2), (second, 1 - count % 2)):
            if batch.size > start:
                target.append(batch.every(start, 2))
        count += batch.size
    if count < 4:
        raise BadInput("A statistical plan needs at least four points: half of them guide it, half confirm it.")
    return first, second


@torch.no_grad()
def _measure(original: nn.Module, pruned: nn.Module, sample: Sequence[adapters.Batch]) -> _Measured:
    """Distances, margins and agreement as the networks really compute them, in their own types."""
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    shapes: set[tuple[int, ...]] = set()
    for batch in sample:
        one, two = (adapters.main_output(adapters.call(network, batch)).double() for network in (original, pruned))
        shapes.add(tuple(one.shape[1:]))
        one, two = one.reshape(one.shape[0], -1), two.reshape(two.shape[0], -1)
        distance = torch.linalg.vector_norm(two - one, dim=1)
        top = one.topk(min(2, one.shape[1]), dim=1).values
        columns.append((distance, top[:, 0] - top[:, -1], one.argmax(1) == two.argmax(1)))
    distances, margins, agree = (torch.cat(parts) for parts in zip(*columns))
    if not bool(torch.isfinite(distances).all()):
        raise BadInput(
            "A network gives outputs that are not finite on this sample, so there is no distance to certify."
        )
    reason = next((reason for shape in sorted(shapes) if (reason := no_label(shape)) is not None), None)
    return _Measured(distances, margins, agree, None) if reason is None else _Measured(distances, None, None, reason)


# ---------------------------------------------------------------------------------------------------------- over masks


@dataclass(frozen=True)
class MaskTrials:
    """How often a random pruning stays within an error, with the exact two-sided interval for the probability.

    Attributes:
        error: The error allowed.
        successes: How many masks stay within it.
        trials: How many masks were drawn.
        low: Lower end of the interval.
        high: Upper end of the interval.
        confidence: The probability with which the interval holds.
        values: The bound, or the largest distance, of every mask.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> found = prunus.certificates.certify_over_masks(model, torch.randn(20, 8), 100.0, sparsity=0.5, trials=5)
        >>> found.successes, found.trials, found.high
        (5, 5, 1.0)
    """

    error: float
    successes: int
    trials: int
    low: float
    high: float
    confidence: float
    values: tuple[float, ...]

    @property
    def statement(self) -> str:
        """The result in words."""
        return (
            f"{self.successes} of {self.trials} random masks stay within {self.error:.4g}: with confidence "
            f"{self.confidence:.4g} the probability lies in [{self.low:.4f}, {self.high:.4f}]."
        )


def certify_over_masks(
    model: nn.Module,
    where: Domain | Tensor | Any,
    error: float,
    *,
    sparsity: float,
    pattern: str | Pattern = "unstructured",
    exclude: Sequence[str] = (),
    trials: int = 60,
    confidence: float = 0.95,
    seed: int = 0,
) -> MaskTrials:
    """Monte Carlo over random masks (ledger P-30).

    A trial succeeds when its certificate on a domain, or its largest distance on data, is at most `error`.

    Args:
        model: The original network, in evaluation mode.
        where: A `Ball`, `Box` or `Samples`; or data, as `certify_statistically` takes them.
        error: The error allowed.
        sparsity: Fraction of zeros of each mask.
        pattern: Which sets of zeros are allowed.
        exclude: Names and globs that are never pruned.
        trials: How many masks are drawn.
        confidence: The probability with which the interval holds.
        seed: Seed of the draws.

    Returns:
        The counts and the interval.

    Raises:
        BadInput: No trials, or a confidence outside (0, 1).

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> found = prunus.certificates.certify_over_masks(model, prunus.Ball(1.0), 0.0, sparsity=0.5, trials=2)
        >>> found.successes, found.low
        (0, 0.0)
    """
    from prunus.pruning import find_masks

    confidence = _confidence(confidence)
    if trials < 1:
        raise BadInput(f"At least one mask is needed, not {trials}.")
    values = []
    for trial in range(trials):
        masks = find_masks(
            model, sparsity, score="random", pattern=pattern, exclude=exclude, seed=seed * 1_000_003 + trial
        )
        values.append(_value(model, masks, where))
    successes = sum(value <= error for value in values)
    interval = intervals.success_interval(trials, successes, 1 - confidence)
    return MaskTrials(error, successes, trials, interval["low"], interval["high"], confidence, tuple(values))


def _value(model: nn.Module, masks: Masks, where: Domain | Any) -> float:
    original, pruned = prepared(model, masks)
    if isinstance(where, (Ball, Box, Samples)):
        shape = input_shape(original, where.shape, None)
        options = CertifyOptions(methods=("recursion", "products", "intervals"))
        pair = read_pair(original, pruned, shape, graph=shared_graph(original, masks, shape))
        pair, region = pair.on(where.region(shape))
        return Bounds(pair, options).of(region).bound
    return float(_measure(original, pruned, _inputs(where)).distances.max())

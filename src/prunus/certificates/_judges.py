"""What a plan is judged by: the certificate of a domain, or a statistic on data; and the settings of a plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor, nn

from prunus.certificates._certify import Bounds, CertifyOptions, prepared, shared_graph
from prunus.certificates.bounds.recursion import LayerNorms
from prunus.certificates.domains import Ball, Box, Domain, Samples
from prunus.certificates.prover.labels import certify_labels
from prunus.certificates.reading.pair import input_shape, read_pair
from prunus.certificates.statistics import Statistic, certify_statistically, halves
from prunus.contract import Masks
from prunus.errors import BadInput

_GRID = tuple(round(0.05 * step, 2) for step in range(1, 20)) + (0.98,)
_METHODS = CertifyOptions()
_HAIR = 1.001


@dataclass(frozen=True)
class OnData:
    """Plan against a statistical error: with `confidence`, few inputs exceed the plan's bound.

    How few is the plan's `probability`. The data are split: one half guides the search, the other confirms what it
    found. Where that fails, a little less is pruned and tried again: the first try takes half of the risk
    1 - confidence, the second a quarter, and so on, so that all of them together take no more than the risk.

    Attributes:
        data: At least four points, as `certify_statistically` takes them.
        confidence: The confidence of the statement.
        exceedances: How many points may lie beyond the budget.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> settings = prunus.certificates.PlanSettings(grid=(0.5,), rounds=1)
        >>> found = prunus.plan(model, prunus.certificates.OnData(torch.randn(20, 8)), 0.5, settings=settings)
        >>> found.bound <= 0.5
        True
    """

    data: Any
    confidence: float = 0.95
    exceedances: int = 0


@dataclass(frozen=True)
class PlanSettings:
    """Finer control of `plan`.

    Attributes:
        grid: The sparsities at which every layer is scanned.
        rounds: Rounds of bisection.
        options: Methods of the certificate.
        data: Batches for the score, where it needs them, and for allocation="damage".
        loss: Loss of (outputs, labels) for the score.
        example: A tensor (n, *input shape), where nothing else shows the inputs' shape.
        seed: Seed of every random choice.
        allocation: "bound" lets the certificate alone choose how far each layer goes; "damage" also tries layers as
            their errors on `data` after the fit would spread them (`prunus.recovery.measure_damage`), and starts from
            the better of both.

    Example:
        >>> prunus.certificates.PlanSettings(grid=(0.25, 0.5)).rounds
        8
    """

    grid: tuple[float, ...] = _GRID
    rounds: int = 8
    options: CertifyOptions = _METHODS
    data: Any = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    example: Tensor | None = None
    seed: int = 0
    allocation: str = "bound"


class Search(Protocol):
    """What a judge may ask of the search."""

    error: float

    def masks(self, levels: Mapping[str, float]) -> Masks | None: ...

    def learn(self, levels: Mapping[str, float], bound: float) -> None: ...


class Judge(Protocol):
    """Bounds the error of masks; `quick` may be looser; `confirm` decides about the levels found.

    `probability` is how many inputs may exceed the bound of what was confirmed; None where none may.
    """

    probability: float | None

    def __call__(self, masks: Masks, levels: Mapping[str, float]) -> float: ...

    def quick(self, masks: Masks, levels: Mapping[str, float]) -> float: ...

    def confirm(self, search: Search, levels: dict[str, float]) -> dict[str, float]: ...


class _CertifiedJudge:
    """The certificate on a domain; norms of layers are remembered by their level."""

    probability: float | None = None

    def __init__(self, model: nn.Module, domain: Domain, error: float, settings: PlanSettings) -> None:
        self._original, _ = prepared(model, copy.deepcopy(model))
        self._shape = input_shape(model, domain.shape, settings.example)
        self._region = domain.region(self._shape)
        self._options, self._error = settings.options, error
        self._graph = shared_graph(self._original, Masks({}), self._shape)
        self._chosen: CertifyOptions | None = None
        self._norms: dict[tuple[str, float], LayerNorms] = {}

    def _bounds(self, masks: Masks, levels: Mapping[str, float], options: CertifyOptions) -> float:
        _, pruned = prepared(self._original, masks)
        pair, region = read_pair(self._original, pruned, self._shape, graph=self._graph).on(self._region)
        bounds = Bounds(pair, options)
        by_layer = {name.rpartition(".")[0]: level for name, level in levels.items()}
        names = [step.name for step in bounds.pair.steps]
        for number, name in enumerate(names):
            if names.count(name) == 1 and (name, by_layer.get(name, 0.0)) in self._norms:
                bounds.norms.put(number, self._norms[name, by_layer.get(name, 0.0)])
        found = bounds.of(region).bound
        for number, norm in bounds.norms.known():
            self._norms[names[number], by_layer.get(names[number], 0.0)] = norm
        return found

    def __call__(self, masks: Masks, levels: Mapping[str, float]) -> float:
        """The bound; norms and slopes are tuned only where that may decide about the budget."""
        options = self._methods(masks, levels)
        rough = self._bounds(masks, levels, replace(options, tune=False))
        if rough <= self._error or rough > 1.4 * self._error:
            return rough
        fine = self._bounds(masks, levels, options)
        if self._error < fine <= _HAIR * self._error and options is not self._options:
            return self._bounds(masks, levels, self._options)  # the relaxation also knows of smaller rounding
        return fine

    def _methods(self, masks: Masks, levels: Mapping[str, float]) -> CertifyOptions:
        """All methods once; then without the linear relaxation, unless its bound was best by more than rounding."""
        if self._chosen is None:
            without = tuple(name for name in self._options.methods if name != "relaxation")
            self._chosen = self._options
            if without and without != self._options.methods:
                fast = replace(self._options, methods=without)
                if self._bounds(masks, levels, fast) <= _HAIR * self._bounds(masks, levels, self._options):
                    self._chosen = fast
        return self._chosen

    def quick(self, masks: Masks, levels: Mapping[str, float]) -> float:
        return self._bounds(masks, levels, CertifyOptions(methods=("recursion",)))

    def confirm(self, search: Search, levels: dict[str, float]) -> dict[str, float]:
        return levels


class _StatisticalJudge:
    """The order statistic of the distances on one half of the data; the other half confirms."""

    def __init__(self, model: nn.Module, where: OnData) -> None:
        self._model, self._where = model, where
        self._guide, self._held = halves(where.data)
        self.probability: float | None = None

    def __call__(self, masks: Masks, levels: Mapping[str, float]) -> float:
        return self._on(self._guide, masks).bound

    def quick(self, masks: Masks, levels: Mapping[str, float]) -> float:
        return self._on(self._guide, masks).bound

    def _on(self, inputs: Any, masks: Masks, shares: int = 1) -> Statistic:
        """The statistic of masks that take one of `shares` equal parts of the risk."""
        where = self._where
        return certify_statistically(
            self._model, masks, inputs, None, where.confidence, exceedances=where.exceedances, comparisons=shares
        )

    def confirm(self, search: Search, levels: dict[str, float]) -> dict[str, float]:
        """Step back until the held-out half agrees; the bound then shown is that half's.

        Which masks are tried does not depend on the held-out half, only how many: try number t takes 1/2^t of the risk.
        """
        tries = 0
        for _ in range(40):
            masks = search.masks(levels)
            if masks is not None:
                tries += 1
                found = self._on(self._held, masks, 2**tries)
                if found.bound <= search.error:
                    search.learn(levels, found.bound)
                    self.probability = found.probability
                    return levels
            levels = {name: level * 0.95 for name, level in levels.items()}
        raise BadInput(f"No pruning found on one half of the data stays within {search.error:.4g} on the other half.")


class _LabelJudge:
    """The share of the points whose label is not proved to stay everywhere within their radius."""

    probability: float | None = None

    def __init__(self, model: nn.Module, points: Samples, settings: PlanSettings) -> None:
        self._model, self._points = model, points
        self._shape = input_shape(model, points.shape, settings.example)
        self._graph = shared_graph(model, Masks({}), self._shape)
        self._guide = _CertifiedJudge(model, points, 1.0, settings)

    def __call__(self, masks: Masks, levels: Mapping[str, float]) -> float:
        return 1.0 - certify_labels(self._model, masks, self._points, graph=self._graph).fraction

    def quick(self, masks: Masks, levels: Mapping[str, float]) -> float:
        """Distances guide the search: a share of points moves in steps."""
        return self._guide.quick(masks, levels)

    def confirm(self, search: Search, levels: dict[str, float]) -> dict[str, float]:
        return levels


def judge_of(
    model: nn.Module, domain: Domain | OnData, error: float, settings: PlanSettings, labels: bool = False
) -> Judge:
    """The judge of a domain; with labels, the error is a share of points."""
    if labels:
        if not isinstance(domain, Samples):
            raise BadInput("A plan that keeps labels needs prunus.Samples(points, radius) as its domain.")
        return _LabelJudge(model, domain, settings)
    if isinstance(domain, OnData):
        return _StatisticalJudge(model, domain)
    if not isinstance(domain, (Ball, Box, Samples)):
        raise BadInput("The domain of a plan must be a prunus.Ball, prunus.Box, prunus.Samples, or OnData.")
    return _CertifiedJudge(model, domain, error, settings)

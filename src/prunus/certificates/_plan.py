"""`plan`: the largest pruning whose certified error stays within a budget.

Every layer has an error curve: the bound when only this layer is pruned, made monotone. For a price on error, each
layer takes the sparsity with the best balance of weights removed against its own error (the marginal costs are then
equal); a bisection over the price meets the budget with the true certificate of all layers together. The best uniform
sparsity is searched too, and both are filled up layer by layer, cheapest first. What is returned has been certified as
a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from prunus.certificates._judges import OnData, PlanSettings, judge_of
from prunus.certificates.domains import Domain
from prunus.contract import LayerRow, Masks, Pattern, Score
from prunus.errors import BadInput, UnknownName
from prunus.layers import as_globs, prunable_weights, require_module
from prunus.pruning import find_masks, patterns


@dataclass(frozen=True)
class ScanRow:
    """One layer pruned alone, in the scan of a plan.

    Attributes:
        layer: The weight.
        sparsity: Its sparsity.
        bound: The bound this gives.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> settings = prunus.certificates.PlanSettings(grid=(0.5,), rounds=1)
        >>> row = prunus.plan(model, prunus.Ball(1.0), 0.5, settings=settings).scan[1]
        >>> row.layer, row.sparsity
        ('layers.0.weight', 0.5)
    """

    layer: str
    sparsity: float
    bound: float


@dataclass(frozen=True)
class PlannedLayer(LayerRow):
    """One layer of a plan.

    Attributes:
        name: Name of the parameter.
        shape: Its shape.
        total: Number of weights in it.
        kept: Number of weights the plan keeps.
        alone: The bound if only this layer were pruned.

    Example:
        >>> prunus.certificates.PlannedLayer("fc.weight", (10, 10), total=100, kept=25, alone=0.1).sparsity
        0.75
    """

    alone: float


@dataclass(frozen=True, eq=False)
class Plan:
    """Masks that prune as much as a budget allows.

    Attributes:
        masks: The masks.
        bound: Their certified error, at most `error`.
        error: The budget.
        layers: The layers, one by one.
        curve: (sparsity, bound) of every combination certified on the way, sparsest last.
        scan: Every layer alone, at every level of the scan.
        uniform: Sparsity of the best uniform pruning found within the budget.
        probability: On data, the largest share of the distribution's inputs that exceed the bound, with the confidence
            of `OnData`; None where no input of the domain does.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> settings = prunus.certificates.PlanSettings(grid=(0.5,), rounds=1)
        >>> found = prunus.plan(model, prunus.Ball(1.0), 0.5, settings=settings)
        >>> found.sparsity >= found.uniform
        True
    """

    masks: Masks
    bound: float
    error: float
    layers: tuple[PlannedLayer, ...]
    curve: tuple[tuple[float, float], ...]
    scan: tuple[ScanRow, ...]
    uniform: float
    probability: float | None = None

    @property
    def sparsity(self) -> float:
        """Fraction of zeros over all weights that the masks cover."""
        return self.masks.sparsity

    def to_dict(self) -> dict[str, Any]:
        """Everything but the masks as plain numbers, strings and lists."""
        return {
            "sparsity": self.sparsity,
            "bound": self.bound,
            "error": self.error,
            "uniform": self.uniform,
            "probability": self.probability,
            "layers": [{**vars(layer), "sparsity": layer.sparsity} for layer in self.layers],
            "curve": [list(point) for point in self.curve],
            "scan": [vars(row) for row in self.scan],
        }


def plan(
    model: nn.Module,
    domain: Domain | OnData,
    error: float | None = None,
    *,
    labels: float | None = None,
    score: str | Score = "magnitude",
    pattern: str | Pattern = "unstructured",
    exclude: Iterable[str] = (),
    settings: PlanSettings | None = None,
) -> Plan:
    """Masks that prune as much as the budget `error` on the output's distance allows; the model is not touched.

    Args:
        model: The network, in evaluation mode.
        domain: Where the error is certified: `Ball`, `Box`, `Samples`, or `OnData` for a statistical error.
        error: The budget, a positive number.
        labels: Given instead of `error`: at least this share of the `Samples` provably keeps its label everywhere
            within the radius. `bound` and `error` of the plan are then shares of points.
        score: What ranks the weights, by name or as a function.
        pattern: Which sets of zeros are allowed.
        exclude: Names and globs that are never pruned.
        settings: Finer control.

    Returns:
        The `Plan`: `masks`, their `bound`, a row for each layer.

    Raises:
        BadInput: The budget is no positive number, the domain is none, or the network cannot be certified.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> settings = prunus.certificates.PlanSettings(grid=(0.25, 0.5), rounds=2)
        >>> found = prunus.plan(model, prunus.Ball(1.0), 0.5, settings=settings)
        >>> found.bound <= 0.5 and found.sparsity > 0
        True
    """
    budget = _budget(error, labels)
    require_module(model)
    exclude = as_globs(exclude)
    settings = settings or PlanSettings()
    if settings.allocation not in ("bound", "damage"):
        raise UnknownName("allocation of a plan", settings.allocation, ("bound", "damage"))
    if settings.allocation == "damage" and settings.data is None:
        raise BadInput("allocation='damage' measures errors on data: give PlanSettings(data=...), labels are not used.")
    search = _Search(model, domain, budget, score, pattern, exclude, settings, labels is not None)
    return search.run()


def _budget(error: Any, labels: Any) -> float:
    def number(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

    if labels is None:
        if not number(error) or not error > 0:
            raise BadInput(f"The budget is {error!r}: it must be a positive number.")
        return float(error)
    if error is not None:
        raise BadInput("Give a plan a budget on the error or a share of labels, not both.")
    if not number(labels) or not 0 < labels <= 1:
        raise BadInput(f"The share of labels is {labels!r}: it must be above 0 and at most 1.")
    return 1.0 - float(labels) + 1e-12


class _Search:
    """One search; everything evaluated is remembered by the levels of the layers."""

    def __init__(
        self,
        model: nn.Module,
        domain: Domain | OnData,
        error: float,
        score: str | Score,
        pattern: str | Pattern,
        exclude: Sequence[str],
        settings: PlanSettings,
        labels: bool = False,
    ) -> None:
        self.model, self.error, self.settings, self._labels = model, error, settings, labels
        self._find: dict[str, Any] = {"score": score, "pattern": pattern, "seed": settings.seed}
        self._find |= {"data": settings.data, "loss": settings.loss}
        probe = find_masks(model, 0.0, pattern="unstructured", exclude=exclude)
        self._weights = {name: weight for name, weight in prunable_weights(model).items() if name in probe}
        self.sizes = {name: weight.numel for name, weight in self._weights.items()}
        self._masks: dict[tuple[str, float], Tensor | None] = {}
        self._judge = judge_of(model, domain, error, settings, labels)
        self._known: dict[tuple[tuple[str, float], ...], float] = {}
        self.curve: list[tuple[float, float]] = []

    # ------------------------------------------------------------------------------------------------- evaluation

    def mask(self, name: str, level: float) -> Tensor | None:
        """The layer's mask at a level; None where the pattern cannot give it."""
        key = (name, level)
        if key not in self._masks:
            try:
                found = find_masks(self.model, {name: level}, **{**self._find, "pattern": self._shape(level)})
                self._masks[key] = found[name]
            except BadInput:
                if level == 0.0:
                    raise
                self._masks[key] = None
        return self._masks[key]

    def _shape(self, level: float) -> str | Pattern:
        """The pattern at a level: in a mix by damage, layers may keep another N of every M."""
        shape = patterns.parse(self._find["pattern"])
        if self.settings.allocation == "damage" and isinstance(shape, patterns.NM):
            kept = (1 - level) * shape.m
            if kept >= 1 and abs(kept - round(kept)) < 1e-9:
                return patterns.NM(round(kept), shape.m)
        return self._find["pattern"]  # type: ignore[no-any-return]

    def masks(self, levels: Mapping[str, float]) -> Masks | None:
        found = {name: self.mask(name, level) for name, level in levels.items() if level > 0}
        if any(mask is None for mask in found.values()):
            return None
        kept = {name: mask for name, mask in found.items() if mask is not None}
        for name, weight in self._weights.items():
            if name not in kept:
                kept[name] = torch.ones(weight.shape, dtype=torch.bool, device=weight.parameter.device)
        notes = {"plan": {name: round(level, 9) for name, level in levels.items()}}
        return Masks.adopt({name: kept[name] for name in self.sizes}, notes)

    def removed(self, levels: Mapping[str, float]) -> int:
        masks = self.masks(levels)
        return 0 if masks is None else sum(int((~mask).sum()) for mask in masks.values())

    def bound(self, levels: Mapping[str, float]) -> float:
        """The certified error of a combination; infinite where the pattern refuses it."""
        key = tuple((name, levels.get(name, 0.0)) for name in self.sizes)
        if key not in self._known:
            masks = self.masks(levels)
            self._known[key] = math.inf if masks is None else self._judge(masks, dict(key))
            if masks is not None:
                self.curve.append((masks.sparsity, self._known[key]))
        return self._known[key]

    def learn(self, levels: Mapping[str, float], bound: float) -> None:
        """Remember a bound that was found elsewhere."""
        self._known[tuple((name, levels.get(name, 0.0)) for name in self.sizes)] = bound

    def fits(self, levels: Mapping[str, float]) -> bool:
        return self.bound(levels) <= self.error

    # ----------------------------------------------------------------------------------------------------- search

    def run(self) -> Plan:
        uniform = self._uniform()
        scan = self._scan()
        priced = self._priced(scan, self.removed(uniform))
        best = priced if self.removed(priced) > self.removed(uniform) else uniform
        best = self._damaged(best) if self.settings.allocation == "damage" else best
        best = self._exchange(self._fill(best, scan))
        if self.removed(best) == 0:
            best = self._smallest(scan)
        best = self._judge.confirm(self, best)
        masks = self.masks(best)
        assert masks is not None
        alone = {name: self._curve_at(scan, name, level) for name, level in best.items()}
        rows = tuple(PlannedLayer(r.name, r.shape, r.total, r.kept, alone.get(r.name, 0.0)) for r in masks.layers)
        table = tuple(ScanRow(name, level, value) for name, points in scan.items() for level, value in points)
        share = self.removed(uniform) / max(1, sum(self.sizes.values()))
        curve = tuple(sorted(set(self.curve)))
        return Plan(masks, self.bound(best), self.error, rows, curve, table, share, self._judge.probability)

    def _uniform(self) -> dict[str, float]:
        """The best uniform sparsity: bisection over the grid, then between its last two points."""
        grid = [0.0, *(level for level in self.settings.grid if self.masks(self._all(level)) is not None)]
        first, last = 0, len(grid)  # grid[first] fits, grid[last] does not
        while last - first > 1:
            middle = (first + last) // 2
            if self.fits(self._all(grid[middle])):
                first = middle
            else:
                last = middle
        low, high = grid[first], grid[last] if last < len(grid) else grid[first]
        for _ in range(self.settings.rounds if high > low else 0):
            between = (low + high) / 2
            if self.fits(self._all(between)):
                low = between
            else:
                high = between
        return self._all(low)

    def _damaged(self, best: dict[str, float]) -> dict[str, float]:
        """Levels by the errors on data where they remove more than `best` within the budget: bisection."""
        from prunus.recovery import measure_damage

        kept = [name for name in prunable_weights(self.model) if name not in self.sizes]
        grid = (0.0, *self.settings.grid)
        curves = measure_damage(
            self.model, self.settings.data, self._find["pattern"], kept, seed=self.settings.seed, grid=grid
        )
        low, high = 0.0, max(curves.choices)
        for _ in range(2 * self.settings.rounds):
            middle = (low + high) / 2
            tried = curves.levels(middle)[0]
            if self.removed(tried) <= self.removed(best):
                low = middle
            elif self.fits(tried):
                low, best = middle, tried
            else:
                high = middle
        return best

    def _all(self, level: float) -> dict[str, float]:
        return dict.fromkeys(self.sizes, level)

    def _scan(self) -> dict[str, list[tuple[float, float]]]:
        """Every layer alone, by the quick part of the judge, made monotone: (level, bound) with rising bounds."""
        scan: dict[str, list[tuple[float, float]]] = {}
        for name in self.sizes:
            points, top = [(0.0, 0.0)], 0.0
            for level in self.settings.grid:
                masks = self.masks({name: level})
                if masks is None:
                    continue
                top = max(top, self._judge.quick(masks, {name: level}))
                points.append((level, top))
            scan[name] = points
        return scan

    def _curve_at(self, scan: Mapping[str, list[tuple[float, float]]], name: str, level: float) -> float:
        points = scan[name]
        for (low, before), (high, after) in pairwise(points):
            if low <= level <= high:
                return before + (after - before) * (level - low) / (high - low)
        return points[-1][1]

    def _priced(self, scan: Mapping[str, list[tuple[float, float]]], least: int) -> dict[str, float]:
        """Levels of equal marginal cost at the price that fits the budget; only those above `least` are certified."""

        def levels(price: float) -> dict[str, float]:
            chosen = {}
            for name, points in scan.items():
                chosen[name] = max(points, key=lambda point: self.sizes[name] * point[0] - price * point[1])[0]
            return chosen

        total = float(sum(self.sizes.values()))
        tops = [points[-1][1] for points in scan.values()]
        high = 1e3 * total / max(min((top for top in tops if top > 0), default=1.0), 1e-300)
        low, best = 1e-6 * total / max(max(tops), 1e-300), self._all(0.0)
        for _ in range(3 * self.settings.rounds):
            price = math.sqrt(low * high)
            tried = levels(price)
            if self.removed(tried) <= least:
                high = price
            elif self.fits(tried):
                high, best, least = price, tried, self.removed(tried)
            else:
                low = price
        return best

    def _fill(self, start: Mapping[str, float], scan: Mapping[str, list[tuple[float, float]]]) -> dict[str, float]:
        """Raise layers one by one, cheapest in error per weight first, in steps that halve when nothing fits."""
        levels = dict(start)
        step = 0.04
        for _ in range(self.settings.rounds // 2):
            order = sorted(levels, key=lambda name: self._price(scan, name, levels[name], step))
            raised = False
            for name in order[: self.settings.rounds]:
                tried = {**levels, name: min(0.999, levels[name] + step)}
                if tried[name] > levels[name] and self.removed(tried) > self.removed(levels) and self.fits(tried):
                    levels, raised = tried, True
            if not raised:
                step /= 3
        return levels

    def _exchange(self, start: dict[str, float]) -> dict[str, float]:
        """Give from the layer where a weight costs most error to the one where it costs least, while it pays."""
        levels, step = start, 0.08
        names = sorted(self.sizes, key=lambda name: -self.sizes[name])[: self.settings.rounds]
        if len(names) < 2 or self.removed(start) == 0:
            return start
        prices = self._true_prices(levels, names)
        for _ in range(self.settings.rounds):
            cheap = min(prices, key=lambda n: prices[n], default="")
            dear = max(prices, key=lambda n: prices[n], default="")
            if len(prices) < 2 or prices[dear] <= 1.001 * prices[cheap]:
                break
            up = min(step, 0.999 - levels[cheap])
            down = 1.02 * up * self.sizes[cheap] / self.sizes[dear] * prices[cheap] / prices[dear]
            tried = {**levels, cheap: levels[cheap] + up, dear: max(0.0, levels[dear] - down)}
            if self.removed(tried) > self.removed(levels) and self.fits(tried):
                levels = tried
                prices |= self._true_prices(levels, [cheap, dear])
            else:
                step /= 2
        return levels

    def _true_prices(self, levels: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
        """Error per weight of each layer, from the certificate with this layer a little less pruned."""
        here, prices = self.bound(levels), {}
        for name in names:
            lower = {**levels, name: max(0.0, levels[name] - 0.02)}
            freed = self.removed(levels) - self.removed(lower)
            if freed > 0:
                prices[name] = max((here - self.bound(lower)) / freed, 1e-300)
        return prices

    def _price(self, scan: Mapping[str, list[tuple[float, float]]], name: str, level: float, step: float) -> float:
        rise = self._curve_at(scan, name, min(0.999, level + step)) - self._curve_at(scan, name, level)
        return rise / (step * self.sizes[name])

    def _smallest(self, scan: Mapping[str, list[tuple[float, float]]]) -> dict[str, float]:
        """The least that can be pruned at all, where it fits; else one sentence with the budget it would need."""
        smallest, which = math.inf, self._all(0.0)
        for name, points in scan.items():
            levels = [1.0 / self.sizes[name], *(level for level, _ in points if level > 0)]
            for level in levels:
                if self.masks({name: level}) is not None and self.removed({name: level}) > 0:
                    value = self.bound({name: level})
                    if value < smallest:
                        smallest, which = value, {**self._all(0.0), name: level}
                    break
        if smallest <= self.error:
            return which
        layer = next((name for name, level in which.items() if level > 0), "any layer")
        if self._labels:
            raise BadInput(
                f"Nothing can be pruned so that {1 - self.error:.4g} of the points provably keep their label: the "
                f"largest share that allows any pruning is {max(0.0, 1 - smallest):.6g} (in {layer}); a smaller radius "
                "allows more."
            )
        raise BadInput(
            f"Nothing can be pruned within an error of {self.error:.4g}: the smallest budget that allows any pruning "
            f"is {smallest:.6g} (in {layer})."
        )

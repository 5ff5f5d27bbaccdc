"""Cells that differ only in the seed, taken together: means, spreads, and which groups nothing beats."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prunus.contract import Duration
from prunus.errors import PrunusError
from prunus.study.store import MEASURED, Result

AXES = ("model", "width", "data", "method", "score", "pattern", "sparsity")


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its standard deviation (None for one seed) and the number of values."""

    value: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        spread = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), spread, len(values))


@dataclass(frozen=True)
class SeedGroup:
    """One configuration over its seeds; `results` are its cells in the order of their seeds.

    `spread` is how the zeros were spread over the layers ("damage"), where that differs among the cells of a study.
    """

    model: str
    width: float
    data: str
    method: str
    score: str
    pattern: str
    sparsity: float
    results: tuple[Result, ...]
    tuned: bool = False
    spread: str = ""
    means: dict[str, Mean] = field(default_factory=dict)

    def mean(self, column: str) -> float | None:
        found = self.means.get(column)
        return None if found is None else found.value

    @property
    def smaller(self) -> float | None:
        """How many times smaller the packed file is than the dense one."""
        now, before = self.mean("bytes"), self.mean("bytes_dense")
        return before / now if now and before else None

    @property
    def vacuous(self) -> bool:
        """Is a certificate of this group no better than the sum of both networks' largest output norms?"""
        return any(result.record.get("vacuous") for result in self.results)

    @property
    def chance(self) -> float:
        """The accuracy up to which a network may be guessing; 0 where it is not known."""
        return float(self.results[0].record.get("chance") or 0.0)

    @property
    def metric(self) -> str:
        """What its networks were judged by."""
        return str(self.results[0].config["settings"].get("metric", "accuracy"))

    @property
    def lower(self) -> bool:
        """Are smaller values of the metric better? A metric that is not here any more is taken to grow."""
        from prunus.training.metrics import lower_is_better

        try:
            return self.metric != "accuracy" and lower_is_better(self.metric)
        except PrunusError:
            return False

    @property
    def integers(self) -> bool:
        """Are its integer kernels the faster ones? Quality, size and speed are then reported for those."""
        return (self.mean("speedup_integers") or 0.0) > (self.mean("speedup") or 1.0)

    @property
    def faster(self) -> float | None:
        """How many times faster than dense its better kernels are."""
        return self.mean("speedup_integers" if self.integers else "speedup")

    @property
    def told(self) -> Mean | None:
        """The quality of the network whose speed is reported."""
        return (self.means.get("quality_integers") if self.integers else None) or self.means.get("quality")

    @property
    def agreement(self) -> float | None:
        """The share of answers that the network whose speed is reported has in common with the dense one."""
        return self.mean(f"agreement{self._answering}")

    @property
    def agreement_low(self) -> float | None:
        """What that share is at least for all such inputs, with 95 % confidence: the lowest of the seeds."""
        lows = [result.record.get(f"agreement_low{self._answering}") for result in self.results]
        return min((low for low in lows if low is not None), default=None)

    @property
    def _answering(self) -> str:
        return "_integers" if self.integers and self.method != "shrink" else ""

    @property
    def merit(self) -> float | None:
        """That quality, with its sign turned where less is better."""
        told = self.told
        return None if told is None else -told.value if self.lower else told.value

    @property
    def able(self) -> bool:
        """Is it more than guessing: nearer to the dense network than to chance, or at most three times its loss?"""
        merit, dense = self.merit, self.mean("quality_dense")
        if merit is None or dense is None:
            return merit is not None and (self.lower or merit > self.chance)
        return -merit <= 3 * dense if self.lower else merit > (self.chance + dense) / 2

    @property
    def network(self) -> str:
        return self.model if self.width == 1 else f"{self.model} width {self.width:g}"

    @property
    def way(self) -> str:
        """How the weights that go were chosen: the score of plain pruning, or the method."""
        way = self.score if self.method == "prune" else self.method
        return f"{way} by {self.spread}" if self.spread else way

    @property
    def title(self) -> str:
        """In full: "magnitude, balanced:16", "reconstruct, 2:4, tuned"."""
        return f"{self.way}, {self.pattern}, tuned" if self.tuned else f"{self.way}, {self.pattern}"

    @property
    def label(self) -> str:
        """What people call it: "balanced:16", "wanda, 2:4", "reconstruct, balanced:16, tuned"."""
        return self.title.removeprefix("magnitude, ")


def grouped(results: Iterable[Result]) -> list[SeedGroup]:
    """Finished cells by everything but the seed, in the order of the store.

    Where some cells were fine-tuned and others were not, those that were are marked so; and those with another
    allocation than equal shares, where both occur.
    """
    found: dict[tuple[Any, ...], list[Result]] = {}
    done = [result for result in results if result.status == "done"]
    mixed = len({_tuned(result) for result in done}) > 1
    several = len({_spread(result) for result in done}) > 1
    for result in done:
        settings = json.dumps(result.config["settings"], sort_keys=True)
        key = (*(result.config.get(axis, "prune") for axis in AXES), settings)
        found.setdefault(key, []).append(result)
    return [
        SeedGroup(
            **dict(zip(AXES, key)),
            results=tuple(ms),
            tuned=mixed and _tuned(ms[0]),
            spread=_spread(ms[0]) if several else "",
            means=_means(ms),
        )
        for key, ms in found.items()
    ]


def _spread(result: Result) -> str:
    found = str(result.config["settings"].get("allocation", "uniform"))
    return "" if found == "uniform" else found


def _tuned(result: Result) -> bool:
    return Duration.parse(result.config["settings"].get("finetune", "0ep")).amount > 0


def _means(members: Sequence[Result]) -> dict[str, Mean]:
    means = {}
    for column in MEASURED:
        earlier = column.replace("quality", "accuracy")  # records before there were other metrics
        values = [member.record.get(column, member.record.get(earlier)) for member in members]
        numbers = [float(value) for value in values if value is not None and math.isfinite(value)]
        if numbers:
            means[column] = Mean.of(numbers)
    return means


def pareto(groups: Sequence[SeedGroup]) -> list[SeedGroup]:
    """Groups that no other beats in quality and speed at once, the fastest first; none that has lost its skill."""
    known = [(group.merit, group) for group in groups if group.faster is not None]
    able = [(merit, group) for merit, group in known if merit is not None and group.able]
    front: list[tuple[float, SeedGroup]] = []
    for merit, group in sorted(able, key=lambda pair: (-(pair[1].faster or 0.0), -pair[0])):
        if not front or merit > front[-1][0]:
            front.append((merit, group))
    return [group for _, group in front]

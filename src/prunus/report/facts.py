"""The results of a study as plain data for the page: one panel for each network and data set."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prunus._by_path import is_import_path
from prunus.data.own import TEXT
from prunus.report.metrics import Metric, metric_of
from prunus.study.groups import SeedGroup, grouped, pareto
from prunus.study.speeds import fastest_engine
from prunus.study.store import MEASURED, Result

_NOT_SHOWN = (
    "accuracy_dense",
    "accuracy_pruned",
    "accuracy",
    "loss",
    "bytes_integers",
    "making_seconds",
    "kernel_effective_rank",
)
PAIRS = tuple(name for name in MEASURED if name not in _NOT_SHOWN)
"""Numbers of a cell that the page shows, each as mean and deviation over the seeds."""
_LAYER = (
    "kept",
    "total",
    "sparsity",
    "energy_removed",
    "energy_predicted",
    "norm",
    "norm_pruned",
    "norm_removed",
    "certificate_share",
    "sensitivity",
    "error_before",
    "error_after",
    "time_us",
    "time_dense_us",
    "mac_dense",
    "mac_kept",
)
_DIGITS = 6
_ROUNDING = 1e-9
"""What two means of the same values may differ by."""


@dataclass(frozen=True)
class Rival:
    """A dense network in the fastest engine of its kind: how many times faster than dense in torch, and its quality.

    `second` is how many times at the second batch size, `engines` are the fastest at both. Quality, answers that stay
    and bytes in int8 are those of the engine `judged`, which takes all data.
    """

    name: str
    faster: float
    quality: float
    second: float | None = None
    engines: tuple[str, ...] = ()
    judged: str = ""
    agreement: float | None = None
    agreement_low: float | None = None
    bytes: float | None = None


@dataclass(frozen=True)
class Panel:
    """One network on one data set: its groups by method and growing sparsity, and its dense networks."""

    name: str
    network: str
    data: str
    groups: tuple[SeedGroup, ...]
    bases: tuple[Mapping[str, Any], ...]

    def title(self, group: SeedGroup) -> str:
        """What the page calls a group: the pattern alone where nothing else varies."""
        return group.title if len({_way(other) for other in self.groups}) > 1 else group.label

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(self.title(group) for group in self.groups))

    @property
    def kernels(self) -> bool:
        """Were its networks judged in integers too? Then it must be said which kernels a number is of."""
        return any(group.mean("quality_integers") is not None for group in self.groups)

    def lost(self, group: SeedGroup) -> float | None:
        """How much worse than dense, in the kernels whose speed is told; for perplexity as a part of the dense one."""
        told, before = group.told, group.mean("quality_dense")
        return None if told is None or before is None else self.below(told.value, before)

    def below(self, quality: float, dense: float) -> float:
        return quality / dense - 1 if self.metric.lower and dense else dense - quality

    @property
    def front(self) -> list[SeedGroup]:
        """Groups that nothing beats in quality and speed at once, no dense network either."""
        return [group for group in pareto(self.groups) if not any(self._beats(rival, group) for rival in self.rivals)]

    @property
    def rivals(self) -> list[Rival]:
        """The dense network in torch, and in the fastest engines of each kind."""
        if self.dense is None:
            return []
        found = []
        for name, ratio, quality in (
            ("float32", "faster_than_dense", "quality_dense"),
            ("int8", "faster_than_int8", "quality_int8"),
        ):
            pairs = [(g.faster / rival, g.mean(quality)) for g in self.groups if g.faster and (rival := g.mean(ratio))]
            if pairs and pairs[0][1] is not None:
                faster = statistics.median(pair[0] for pair in pairs)
                found.append(self._engine(Rival(f"dense {name}", faster, pairs[0][1])))
        size = next((group.mean("bytes_dense") for group in self.groups), None)
        plain = Rival("torch" if found else "dense", 1.0, self.dense, 1.0 if found else None, bytes=size)
        return [plain, *(rival if rival.name == "dense int8" else replace(rival, bytes=size) for rival in found)]

    def _engine(self, rival: Rival) -> Rival:
        """What is known of the engines behind a rival, where the study has rows of them."""
        base = self.bases[0] if self.bases else {}
        peers, settings = base.get("peers") or [], self.groups[0].results[0].config["settings"]
        int8 = rival.name == "dense int8"
        sizes = [size for size in (settings.get("batch"), settings.get("second_batch")) if size]
        rows = [fastest_engine(peers, "int8" if int8 else "dense", size) for size in sizes]
        names = dict.fromkeys(str(row["name"]).partition(", ")[2] for row in rows if row is not None)
        second = rows[1]["faster"] if len(rows) > 1 and rows[1] is not None else None
        found = replace(rival, second=second, engines=tuple(names))
        if not int8:
            return found
        agreement, low = (base.get(f"{key}_int8") for key in ("agreement", "agreement_low"))
        judged, size = str(base.get("engine_int8", "")), base.get("bytes_dense_int8")
        return replace(found, judged=judged, agreement=agreement, agreement_low=low, bytes=size)

    def unbeaten(self, rival: Rival) -> bool:
        """Is no network, pruned or dense, at least as good and as fast, and better in one of both?"""
        pruned = [(group.faster or 0, self._merit(group)) for group in self.groups if group.able and group.faster]
        dense = [(other.faster, self._worth(other)) for other in self.rivals]
        return not any(_beats(other, (rival.faster, self._worth(rival))) for other in (*pruned, *dense))

    def _beats(self, rival: Rival, group: SeedGroup) -> bool:
        return _beats((rival.faster, self._worth(rival)), (group.faster or 0, self._merit(group)))

    def _merit(self, group: SeedGroup) -> float:
        return -math.inf if group.merit is None else group.merit

    def _worth(self, rival: Rival) -> float:
        return -rival.quality if self.metric.lower else rival.quality

    @property
    def dense(self) -> float | None:
        values = [group.mean("quality_dense") for group in self.groups]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else None

    @property
    def metric(self) -> Metric:
        return metric_of(self.groups[0])

    @property
    def seeds(self) -> int:
        return max((len(group.results) for group in self.groups), default=0)


def panels(results: Sequence[Result], bases: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    """The groups of a study by network and data set, largest first; magnitude comes first in each."""
    found: dict[tuple[str, str], list[SeedGroup]] = {}
    for group in grouped(results):
        found.setdefault((group.network, group.data), []).append(group)
    made = []
    for (network, data), unsorted in found.items():
        groups = sorted(unsorted, key=_place)
        keys = dict.fromkeys(result.base for group in groups for result in group.results)
        mine = tuple(bases[key] for key in keys if key in bases)
        made.append(Panel(f"{plain_name(network)} on {plain_name(data)}", network, data, tuple(groups), mine))
    names = [panel.name for panel in made]
    made = [  # plain names only where they tell the panels apart
        panel if names.count(panel.name) == 1 else replace(panel, name=f"{panel.network} on {panel.data}")
        for panel in made
    ]
    return sorted(made, key=lambda panel: -len(panel.groups))


def plain_name(name: str) -> str:
    """What people call a model or data set: "minilm" for "hf:models/minilm", "mine" for "package.module:mine"."""
    spec, space, width = name.partition(" width ")
    if spec.startswith("hf:"):
        spec = spec.rstrip("/").rpartition("/")[2].removeprefix("hf:") or spec
    elif own_module(spec):
        spec = spec.partition(":")[2]
    return f"{spec}{space}{width}"


def own_module(name: str) -> str:
    """The module of a name such as "package.module:function", "" for other names; "texts.csv:answer" is a column."""
    module = name.partition(":")[0]
    return module if is_import_path(name) and not module.endswith(TEXT) else ""


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Is the first, speed and merit, at least as good in both and more than a rounding error better in one?"""
    gains = [mine - yours for mine, yours in zip(one, other)]
    slack = [_ROUNDING * max(1.0, abs(yours)) for yours in other]
    return all(gain >= -least for gain, least in zip(gains, slack)) and any(
        gain > least for gain, least in zip(gains, slack)
    )


def _place(group: SeedGroup) -> tuple[Any, ...]:
    return (group.pattern != "unstructured", group.pattern, *_way(group), group.sparsity)


def payload(panel: Panel) -> dict[str, Any]:
    """What the page's script draws from, short and without anything it does not show."""
    front = {id(group) for group in panel.front}
    base = panel.bases[0] if panel.bases else {}
    return {
        "name": panel.name,
        "methods": panel.methods,
        **_looks(panel),
        "dense": _short(panel.dense),
        "metric": {
            "name": panel.metric.name,
            "axis": panel.metric.axis,
            "percent": panel.metric.percent,
            "lower": panel.metric.lower,
            "digits": panel.metric.digits,
        },
        "rivals": [
            {"name": r.name, "faster": _short(r.faster), "quality": _short(r.quality), "front": panel.unbeaten(r)}
            for r in panel.rivals
        ],
        "groups": [_group(panel.title(group), group, id(group) in front) for group in panel.groups],
        "eigenvalues": [_short(value) for value in base.get("kernel", {}).get("eigenvalues", [])],
    }


def _looks(panel: Panel) -> dict[str, Any]:
    """For each method two numbers, its colour and shape, and its line and filling; and what both stand for.

    Colour goes to what takes more values in this study: the pattern, or the way weights were chosen (if equal, too).
    """
    firsts = {panel.title(group): group for group in reversed(panel.groups)}
    groups = [firsts[name] for name in panel.methods]
    patterns = list(dict.fromkeys(group.pattern for group in groups))
    ways = sorted({_way(group) for group in groups})
    names = {_way(group): group.way + (", tuned" if group.tuned else "") for group in groups}
    axes = [(patterns, [patterns.index(group.pattern) for group in groups])]
    axes.insert(int(len(patterns) > len(ways)), ([names[way] for way in ways], [ways.index(_way(g)) for g in groups]))
    return {"looks": [list(pair) for pair in zip(axes[0][1], axes[1][1])], "legend": [axes[0][0], axes[1][0]]}


def _way(group: SeedGroup) -> tuple[bool, bool, bool, str, str, str]:
    """How the weights were chosen; plain pruning by magnitude, the yardstick, comes first."""
    return (group.method != "prune", group.score != "magnitude", group.tuned, group.method, group.score, group.spread)


def _group(title: str, group: SeedGroup, on_front: bool) -> dict[str, Any]:
    first = group.results[0].record
    values = {name: [_short(mean.value), _short(mean.deviation)] for name, mean in group.means.items() if name in PAIRS}
    return {
        "method": title,
        "sparsity": group.sparsity,
        "seeds": len(group.results),
        "front": on_front,
        "able": group.able,
        "smaller": _short(group.smaller),
        "faster": _short(group.faster),
        "told": _short(None if group.told is None else group.told.value),
        "integers": group.integers,
        "values": values,
        "layers": layer_means(group),
        "masks": first.get("masks", []),
        "examples": first.get("examples", []),
        "changed": {name: first.get(f"labels_{name}") for name in ("changed", "seen", "mended", "broken")},
        "eigenvalues": [_short(value) for value in first.get("kernel", {}).get("eigenvalues", [])],
    }


def layer_means(group: SeedGroup) -> list[dict[str, Any]]:
    """Each layer of a group, averaged over the seeds."""
    rows = []
    for number, layer in enumerate(group.results[0].record.get("layers", [])):
        peers = [result.record["layers"][number] for result in group.results]
        row: dict[str, Any] = {"name": layer["name"], "shape": layer["shape"], "format": layer.get("format")}
        for name in _LAYER:
            values = [peer.get(name) for peer in peers]
            known = [value for value in values if value is not None]
            row[name] = _short(statistics.fmean(known)) if known else None
        rows.append(row)
    return rows


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")

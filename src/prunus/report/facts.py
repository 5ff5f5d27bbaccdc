"""The results of a study as plain data for the page: one panel for each network and data set."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prunus.report.metrics import Metric, metric_of
from prunus.study.groups import SeedGroup, grouped, pareto
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


@dataclass(frozen=True)
class Panel:
    """One network on one data set: its groups by method and growing sparsity, and its dense networks."""

    name: str
    network: str
    data: str
    groups: tuple[SeedGroup, ...]
    bases: tuple[Mapping[str, Any], ...]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(group.label for group in self.groups))

    @property
    def front(self) -> list[SeedGroup]:
        return pareto(self.groups)

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
        made.append(Panel(f"{network} on {data}", network, data, tuple(groups), mine))
    return sorted(made, key=lambda panel: -len(panel.groups))


def _place(group: SeedGroup) -> tuple[Any, ...]:
    return (group.pattern != "unstructured", group.pattern, *_way(group), group.sparsity)


def payload(panel: Panel) -> dict[str, Any]:
    """What the page's script draws from, short and without anything it does not show."""
    front = {id(group) for group in panel.front}
    base = panel.bases[0] if panel.bases else {}
    return {
        "name": panel.name,
        "methods": panel.methods,
        "looks": _looks(panel),
        "dense": _short(panel.dense),
        "metric": {
            "name": panel.metric.name,
            "axis": panel.metric.axis,
            "percent": panel.metric.percent,
            "lower": panel.metric.lower,
            "digits": panel.metric.digits,
        },
        "rivals": _rivals(panel),
        "groups": [_group(group, id(group) in front) for group in panel.groups],
        "eigenvalues": [_short(value) for value in base.get("kernel", {}).get("eigenvalues", [])],
    }


def _rivals(panel: Panel) -> list[dict[str, Any]]:
    """The fastest dense engines of each kind, in the units of the picture of quality and speed."""
    found = []
    for name, ratio, quality in (
        ("float32", "faster_than_dense", "quality_dense"),
        ("int8", "faster_than_int8", "quality_int8"),
    ):
        pairs = [(g.faster / rival, g.mean(quality)) for g in panel.groups if g.faster and (rival := g.mean(ratio))]
        if pairs and pairs[0][1] is not None:
            faster = statistics.median(pair[0] for pair in pairs)
            found.append({"name": f"dense {name}", "faster": _short(faster), "quality": _short(pairs[0][1])})
    return found


def _looks(panel: Panel) -> list[list[int]]:
    """For each method two numbers: its colour and shape, and its line and filling.

    Colour goes to what takes more values in this study: the pattern, or the way weights were chosen (if equal, too).
    """
    firsts = {group.label: group for group in reversed(panel.groups)}
    groups = [firsts[label] for label in panel.methods]
    patterns = list(dict.fromkeys(group.pattern for group in groups))
    ways = sorted({_way(group) for group in groups})
    pairs = [[patterns.index(group.pattern), ways.index(_way(group))] for group in groups]
    return pairs if len(patterns) > len(ways) else [[way, pattern] for pattern, way in pairs]


def _way(group: SeedGroup) -> tuple[bool, bool, bool, str, str]:
    """How the weights were chosen; plain pruning by magnitude, the yardstick, comes first."""
    return (group.method != "prune", group.score != "magnitude", group.tuned, group.method, group.score)


def _group(group: SeedGroup, on_front: bool) -> dict[str, Any]:
    first = group.results[0].record
    values = {name: [_short(mean.value), _short(mean.deviation)] for name, mean in group.means.items() if name in PAIRS}
    return {
        "method": group.label,
        "sparsity": group.sparsity,
        "seeds": len(group.results),
        "front": on_front,
        "smaller": _short(group.smaller),
        "faster": _short(group.faster),
        "told": _short(None if group.told is None else group.told.value),
        "integers": group.integers,
        "values": values,
        "layers": layer_means(group),
        "masks": first.get("masks", []),
        "examples": first.get("examples", []),
        "changed": [first.get("labels_changed"), first.get("labels_seen")],
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

"""The page's table of every number: its columns, a row for each group, and rows of the dense network beside them."""

from __future__ import annotations

from collections.abc import Sequence

from prunus.report import words
from prunus.report.facts import Panel, Rival
from prunus.report.metrics import percent
from prunus.study.groups import SeedGroup

Row = dict[str, tuple[str, float | str | None]]
TABLE = (
    ("method", "method", "how the weights to drop were chosen, and their pattern"),
    ("sparsity", "zeros", "fraction of zeros that was asked for; of a smaller network, of multiply-adds removed"),
    ("quality", "quality", "on the test set; mean and standard deviation over seeds"),
    ("integers", "in integers", "the same with integer products"),
    ("lost", "lost", "how much worse than the dense network, in the kernels whose speed is told"),
    (
        "agreement",
        "same answer",
        "held-out inputs with the answer of the dense network (of all such inputs, with 95 % confidence)",
    ),
    ("labels", "proved", "test points whose label is proved the same in their whole neighbourhood"),
    ("int8", "than int8", "times as fast as the fastest dense int8 engine"),
    ("float32", "than float32", "times as fast as the fastest dense float32 engine"),
    ("speedup", "than torch", "time of the dense network in torch over time of the packed one in its better kernels"),
    ("smaller", "smaller", "bytes of the dense file over bytes of the packed one"),
    ("disk", "on disk", "bytes of the tensors in its file"),
    ("memory", "in memory", "tensors of the network as it runs; layers that are faster dense stay dense"),
    ("minutes", "minutes", "spent on making this network, on one core"),
    ("seeds", "seeds", "how many times it was made, with other random choices"),
    ("bound", "off by at most", "certified: largest change of the outputs near the test points"),
    ("attained", "attained", "the largest change a search found there"),
    ("condition", "condition", "tangent kernel: largest over smallest eigenvalue"),
    ("held_out", "nearly all within", "change that at most a small share of inputs exceeds, with 95 % confidence"),
    ("energy", "energy lost", "share of the sum of squared weights that pruning removes"),
)
_NONE: tuple[str, None] = ("–", None)


def columns(found: Sequence[Row]) -> list[tuple[str, str, str]]:
    """The columns that any row fills; the speed beside torch only where nothing faster was timed.

    Where qualities in integers stand beside those in float32, the names say which is which.
    """
    filled = [column for column in TABLE if any(row[column[0]][1] is not None for row in found)]
    names = [column[0] for column in filled]
    if "integers" in names:
        filled = [(key, "in float32" if key == "quality" else name, about) for key, name, about in filled]
    return [column for column in filled if column[0] != "speedup" or "float32" not in names]


def rows(panel: Panel) -> list[Row]:
    """A line for each group: for each column what is shown and what is sorted by."""
    return [_row(panel, group) for group in panel.groups]


def dense_rows(panel: Panel) -> list[Row]:
    """The dense network in the fastest engines of each kind, in the same columns."""
    found = []
    for rival in panel.rivals:
        row: Row = dict.fromkeys((column[0] for column in TABLE), _NONE)
        row |= {"method": (_called(rival), rival.name), "sparsity": ("0\u00a0%", 0.0)}
        whole = "integers" if panel.kernels and rival.name == "dense int8" else "quality"
        row |= {whole: (panel.metric.show(rival.quality), rival.quality), "speedup": times(rival.faster)}
        if panel.dense is not None:
            lost = panel.below(rival.quality, panel.dense)
            row["lost"] = (panel.metric.show_lost(lost), lost)
        for key, other in (("float32", "dense float32"), ("int8", "dense int8")):
            beside = next((one for one in panel.rivals if one.name == other), None)
            if beside is not None:
                later = rival.second / beside.second if rival.second and beside.second else None
                row[key] = times(rival.faster / beside.faster, later)
        if rival.agreement is not None:
            row["agreement"] = _agreement(rival.agreement, rival.agreement_low)
        if rival.bytes:
            row["disk"] = (size(rival.bytes), rival.bytes)
            before = panel.rivals[0].bytes
            row["smaller"] = times(before / rival.bytes) if before and rival.name == "dense int8" else _NONE
        found.append(row)
    return found


def _called(rival: Rival) -> str:
    """dense, int8 (OpenVINO; quality: ONNX Runtime)"""
    if rival.name in ("torch", "dense"):
        return "dense, torch" if rival.name == "torch" else "dense"
    engines = " / ".join(rival.engines) or "fastest engine"
    judged = f"; quality: {rival.judged}" if rival.judged and rival.engines != (rival.judged,) else ""
    return f"{rival.name.replace(' ', ', ')} ({engines}{judged})"


def _row(panel: Panel, group: SeedGroup) -> Row:
    metric, quality = panel.metric, group.means.get("quality")
    lost, integers = panel.lost(group), group.means.get("quality_integers")
    smaller, disk = words.size_of(group)
    memory, seconds, energy = (group.mean(name) for name in ("bytes_memory", "making_seconds", "energy_removed"))
    title, plain = panel.title(group), ("bound", "attained", "held_out_bound", "kernel_condition")
    return {
        "method": (title, title),
        "sparsity": (percent(group.sparsity, 0), group.sparsity),
        "quality": _NONE if quality is None else (metric.spread(quality), quality.value),
        "lost": _NONE if lost is None else (metric.show_lost(lost), lost),
        "integers": _NONE if integers is None else (metric.spread(integers), integers.value),
        "agreement": _agreement(group.agreement, group.agreement_low),
        "labels": _share(group.mean("labels_proved"), 0),
        "int8": times(group.mean("faster_than_int8"), group.mean("faster_than_int8_second")),
        "float32": times(group.mean("faster_than_dense"), group.mean("faster_than_dense_second")),
        "speedup": times(group.faster),
        "smaller": times(smaller),
        "disk": (size(disk), disk) if disk else _NONE,
        "memory": _NONE if memory is None else (size(memory), memory),
        "minutes": _NONE if seconds is None else ("< 0.1" if seconds < 6 else f"{seconds / 60:.1f}", seconds),
        "energy": _share(energy, 1),
        "seeds": (str(len(group.results)), len(group.results)),
        **{
            key: _NONE if (value := group.mean(name)) is None else (words.number(value), value)
            for key, name in zip(("bound", "attained", "held_out", "condition"), plain)
        },
    }


def _agreement(share: float | None, low: float | None) -> tuple[str, float | None]:
    """97.6 % (≥ 96.1), the second with 95 % confidence for all such inputs, where that can be said."""
    shown, value = _share(share, 1)
    if low is None or value is None:
        return shown, value
    return f"{shown} (≥\u00a0{words.at_least(low)})", value


def times(ratio: float | None, second: float | None = None) -> tuple[str, float | None]:
    """1.26 ×, or 1.26 / 1.54 × for two batch sizes"""
    if ratio is None:
        return _NONE
    return (f"{ratio:.2f} / {second:.2f}\u00a0×" if second is not None else f"{ratio:.2f}\u00a0×"), ratio


def _share(value: float | None, digits: int) -> tuple[str, float | None]:
    return _NONE if value is None else (percent(value, digits), value)


def size(count: float) -> str:
    """217 kB or 1.0 MB"""
    return f"{count / 1e3:.0f}\u00a0kB" if count < 1e6 else f"{count / 1e6:.1f}\u00a0MB"

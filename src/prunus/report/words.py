"""A study in words: the summary at the top, and what each picture shows, for screen readers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from prunus.report.facts import Panel
from prunus.report.metrics import percent
from prunus.study.groups import SeedGroup


def number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def best(panel: Panel) -> SeedGroup | None:
    """The group the summary names: of those close to dense the one that gains most, else the best in quality."""
    known = [group for group in panel.groups if group.merit is not None]
    if not known:
        return None
    for loss in panel.metric.close if panel.dense is not None else ():
        close = [group for group in known if (lost := panel.metric.lost(group)) is not None and lost <= loss]
        if close:
            return max(close, key=lambda group: ((group.faster or 1.0) * (group.smaller or 1), group.sparsity))
    return max(known, key=lambda group: (group.merit or 0, group.sparsity))


def headline(panel: Panel) -> str:
    """With 90 % zeros (balanced:16), the network gives the same answer on ... It keeps 91.2 ± 0.3 % accuracy, ..."""
    group = best(panel)
    if group is None or group.told is None:
        return f"No cell of {panel.name} has been measured yet."
    metric, quality = panel.metric, group.told
    verb = "keeps" if metric.percent else "has"
    what = f"{metric.spread(quality)} accuracy" if metric.percent else f"a {metric.name} of {metric.spread(quality)}"
    parts = [f"{verb} {what}" + (f" ({metric.show(panel.dense)} dense)" if panel.dense else "")]
    smaller, _ = size_of(group)
    if group.faster is not None:
        faster, than = speed_of(group)
        how = " in integers" if group.integers else ""
        parts.append(f"runs{how} {faster:.1f} times faster{than}" if faster >= 1.05 else "runs as fast as dense")
    if smaller is not None:
        parts.append(f"is {smaller:.1f} times smaller" if smaller >= 1.05 else "is no smaller")
    joined = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    what = f"With {percent(group.sparsity, 0)} zeros ({group.label}), the network"
    same = same_answers(group)
    said = f"{what} {same}. It {joined}." if same else f"{what} {joined}."
    rival = against_int8(panel, group)
    return f"{said} {rival}" if rival else said


def speed_of(group: SeedGroup) -> tuple[float, str]:
    """How many times faster it is, and than what: the fastest dense engine in float32 where others were timed."""
    rival = group.mean("faster_than_dense")
    return (group.faster or 1.0, "") if rival is None else (rival, " than the fastest dense float32 engine")


def size_of(group: SeedGroup) -> tuple[float | None, float]:
    """How many times smaller the file of that network is than the dense one, and its bytes."""
    small = group.mean("bytes_integers") if group.integers else None
    small, whole = small or group.mean("bytes") or 0.0, group.mean("bytes_dense")
    return (whole / small if small and whole else None), small


def against_int8(panel: Panel, group: SeedGroup) -> str:
    """That is 1.4 times as fast as dense int8, which has 91.0 %."""
    ratio, quality = group.mean("faster_than_int8"), group.mean("quality_int8")
    if ratio is None:
        return ""
    other = f", which has {panel.metric.show(quality)}" if quality is not None else ""
    if ratio < 0.95:
        return f"Dense int8 is {1 / ratio:.1f} times as fast as that{other.replace(', which', ' and')}."
    return f"That is {ratio:.1f} times as fast as dense int8{other}."


def same_answers(group: SeedGroup) -> str:
    """Gives the same answer on 98.7 % of held-out inputs and is proved to for 94 % of 100 test points, ..."""
    agreement, proved = group.mean("agreement"), group.mean("labels_proved")
    parts = []
    if agreement is not None:
        verb = {"perplexity": "chooses the same next token", "spearman": "finds the same nearest sentence"}
        what = verb.get(group.metric, "gives the same answer")
        parts.append(f"{what} as the dense one on {percent(agreement)} {asked(group)}")
    if proved is not None:
        settings, count = group.results[0].config["settings"], group.results[0].record.get("labels_points")
        parts.append(
            f"is proved to give it for {percent(proved, 0)} of {count} test points, whatever change of 2-norm up to "
            f"{settings['radius']:g} they suffer"
        )
    return " and ".join(parts)


def asked(group: SeedGroup) -> str:
    """What the share of same answers is a share of: of 500 held-out inputs, of 4,096 places in held-out text."""
    record, settings = group.results[0].record, group.results[0].config["settings"]
    count = record.get("answers") or settings.get("held_out") or 0
    kind = {"perplexity": "places in held-out text", "spearman": "held-out sentences"}
    return f"of {count:,} {kind.get(group.metric, 'held-out inputs')}"


def remarks(panel: Panel) -> list[str]:
    """A few sentences more: the price of the pattern, the theory, the certificate, the limits."""
    found = []
    drop = _steepest(panel)
    if drop is not None:
        before, after = drop
        found.append(
            f"The steepest fall: {after.label} from {panel.metric.show(before.mean('quality') or 0)} at "
            f"{percent(before.sparsity, 0)} zeros to {panel.metric.show(after.mean('quality') or 0)} at "
            f"{percent(after.sparsity, 0)}."
        )
    energy = [
        abs((group.mean("energy_removed") or 0) - (group.mean("energy_predicted") or 0))
        for group in panel.groups
        if group.mean("energy_predicted") is not None
    ]
    if energy:
        found.append(
            f"Theory for independent normal weights predicts the removed energy to within {percent(max(energy))} "
            "of the whole."
        )
    ratios = [
        (group.mean("bound") or 0) / (group.mean("attained") or 1)
        for group in panel.groups
        if group.mean("bound") is not None and group.mean("attained")
    ]
    if ratios:
        found.append(f"Certificates are {number(min(ratios))} to {number(max(ratios))} times what a search attains.")
    chosen = best(panel)
    bound = chosen.mean("bound") if chosen is not None and not chosen.vacuous else None
    if chosen is not None and bound is not None:
        count = int(chosen.results[0].config["settings"]["certify"])
        points = "1 test point" if count == 1 else f"{count} test points"
        found.append(f"Proved: near {points} the outputs of that network move by at most {number(bound)}.")
    if chosen is not None and chosen.mean("held_out_bound") is not None:
        found.append(
            f"With 95 % confidence, at most {percent(chosen.mean('held_out_probability') or 0)} of inputs like the "
            f"held-out ones move the outputs of that network by more than {number(chosen.mean('held_out_bound') or 0)}."
        )
    if any(group.vacuous for group in panel.groups):
        found.append(
            "Some certificates are vacuous: they are no better than the sum of both networks' largest output norms. "
            "Deep networks need smaller neighbourhoods, or a spectral penalty in training."
        )
    if panel.seeds > 1:
        found.append(f"Means and standard deviations are over {panel.seeds} seeds; a bar on a point is one of them.")
    return found


def _steepest(panel: Panel) -> tuple[SeedGroup, SeedGroup] | None:
    worst, pair = 0.02, None
    for method in panel.methods:
        groups = [group for group in panel.groups if group.label == method]
        for before, after in pairwise(groups):
            losses = [panel.metric.lost(group) for group in (before, after)]
            fall = 0.0 if None in losses else (losses[1] or 0.0) - (losses[0] or 0.0)
            if fall > worst:
                worst, pair = fall, (before, after)
    return pair


def describe(panel: Panel) -> dict[str, str]:
    """Text alternatives of the pictures, by their name."""
    return {
        "accuracy": _series(panel, f"{_title(panel)} against sparsity.", "quality", panel.metric.show),
        "pareto": _front(panel),
        "certificate": " ".join(
            (
                _series(panel, "Certified bound against sparsity.", "bound", number),
                _series(panel, "Bound for nearly all held-out inputs.", "held_out_bound", number),
            )
        ),
        "energy": _series(panel, "Share of weight energy removed, against sparsity.", "energy_removed", percent),
        "macs": _series(panel, "Times faster than dense.", "speedup", lambda value: f"{value:.2f}"),
        "kernel": _series(panel, "Condition number of the tangent kernel.", "kernel_condition", number),
    }


def _series(panel: Panel, title: str, column: str, show: Callable[[float], str]) -> str:
    sentences = [title]
    for method in panel.methods:
        points = [
            f"{show(value)} at {percent(group.sparsity, 0)}"
            for group in panel.groups
            if group.label == method and (value := group.mean(column)) is not None
        ]
        if points:
            sentences.append(f"{method}: {', '.join(points)}.")
    return " ".join(sentences) if len(sentences) > 1 else f"{title} Nothing was measured."


def _front(panel: Panel) -> str:
    points = [
        f"{group.label} at {percent(group.sparsity, 0)} ({group.faster:.2f} times faster, "
        f"{panel.metric.show(group.told.value)})"
        for group in panel.front
        if group.told is not None
    ]
    if not points:
        return f"{_title(panel)} against speed. Nothing was timed."
    return f"{_title(panel)} against speed. Not beaten in both: {'; '.join(points)}."


def _title(panel: Panel) -> str:
    return panel.metric.name[:1].upper() + panel.metric.name[1:]

"""A study in words: the summary at the top, and what each picture shows, for screen readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from prunus.report.facts import Panel
from prunus.report.metrics import percent
from prunus.study.groups import SeedGroup
from prunus.study.methods import METHODS, parse

_NOISE = 0.05
"""What two measurements of the same gain may differ by."""
_ALIKE = (0.95, 1.05)
"""Times as fast: between these nobody is faster."""


def number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def at_least(share: float) -> str:
    """A bound from below in percent, never rounded up: 96.4 for .96459"""
    return f"{math.floor(1000 * share + 1e-9) / 10:.1f}"


def best(panel: Panel) -> SeedGroup | None:
    """The group the summary names: of those close to dense the one that gains most, else the best in quality.

    Times of one run differ by a few percent, and which weights stay does not change them: of those that gain as much
    but for that, or have zeros of the same pattern, the one with most answers kept.
    """
    known = [group for group in panel.groups if group.merit is not None]
    if not known:
        return None
    for loss in panel.metric.close if panel.dense is not None else ():
        close = [group for group in known if (lost := panel.lost(group)) is not None and lost <= loss]
        if close:
            gains = [(group.faster or 1.0) * (group.smaller or 1.0) for group in close]
            top = close[gains.index(max(gains))]
            alike = [
                group
                for group, gain in zip(close, gains)
                if gain >= (1 - _NOISE) * max(gains) or _runs_alike(group) == _runs_alike(top)
            ]
            return max(alike, key=lambda group: (group.agreement or 0, group.merit or 0, group.sparsity))
    return max(known, key=lambda group: (group.merit or 0, group.sparsity))


def _runs_alike(group: SeedGroup) -> tuple[str, float]:
    return group.pattern, group.sparsity


def headline(panel: Panel) -> str:
    """With 90 % zeros (balanced:16), the network gives the same answer on ... It is 1.4 times as fast as dense int8"""
    group = best(panel)
    if group is None or group.told is None:
        return f"No cell of {panel.name} has been measured yet."
    who = f"With {percent(group.sparsity, 0)} zeros ({panel.title(group)}), the network"
    same, speed, rest = same_answers(group), speeds(group), [kept(panel, group)]
    smaller, _ = size_of(group)
    if smaller is not None:
        rest.append(f"is {smaller:.1f} times smaller" if smaller >= 1.05 else "is no smaller")
    if speed and speed[0]:
        first = f"{who} {same}. It {speed[0]}" if same else f"{who} {speed[0]}"
        return " ".join((f"{first}, {' and '.join(rest)}.", *speed[1:]))
    first = f"{who} {same}. It {' and '.join(rest)}." if same else f"{who} {' and '.join(rest)}."
    return " ".join((first, *speed[1:]))


def kept(panel: Panel, group: SeedGroup) -> str:
    """Keeps 91.2 ± 0.3 % accuracy in integers (91.7 % dense, 91.6 % in int8)"""
    metric, told, int8 = panel.metric, group.told, group.mean("quality_int8")
    assert told is not None
    shown = f"{metric.spread(told)} accuracy" if metric.percent else f"a {metric.name} of {metric.spread(told)}"
    shown += kernels_of(panel, group)
    others = [] if panel.dense is None else [f"{metric.show(panel.dense)} dense"]
    others += [] if int8 is None else [f"{metric.show(int8)} in int8"]
    return f"{'keeps' if metric.percent else 'has'} {shown}" + (f" ({', '.join(others)})" if others else "")


def kernels_of(panel: Panel, group: SeedGroup) -> str:
    """Which kernels the told speed and quality are of, " in integers" or " in float32"; "" where there is one kind."""
    if not panel.kernels:
        return ""
    return " in integers" if group.integers and group.mean("quality_integers") is not None else " in float32"


def speeds(group: SeedGroup) -> list[str]:
    """How its speed compares: first as what the network does (empty where others are faster), then whole sentences."""
    if group.faster is None:
        return []
    int8, float32 = (group.mean(name) for name in ("faster_than_int8", "faster_than_dense"))
    if int8 is None and float32 is None:
        return [f"runs {group.faster:.1f} times faster" if group.faster >= 1.05 else "runs no faster than dense"]
    said, more = "", []
    for name, ratio in (("dense int8", int8), ("the fastest dense float32 engine", float32)):
        if ratio is None:
            continue
        second = _second(group, "faster_than_int8" if ratio is int8 else "faster_than_dense")
        if ratio < _ALIKE[0]:
            beside = f" ({second})" if second else ""
            more.append(
                f"{name[:1].upper()}{name[1:]} is faster: the pruned network has {ratio:.2f} of its speed{beside}."
            )
        elif not said and not more:
            said = f"is {as_fast(ratio, name, second)}"
        else:
            more.append(f"{'The pruned network' if more else 'It'} is {as_fast(ratio, name, second)}.")
    return [said, *more]


def as_fast(ratio: float, name: str, second: str = "") -> str:
    """1.4 times as fast as dense int8 (1.2 at batch 8), or: about as fast as dense int8 (1.03, and 0.98 at batch 8)"""
    if _ALIKE[0] <= ratio < _ALIKE[1]:
        return f"about as fast as {name} ({ratio:.2f}{f', and {second}' if second else ''})"
    return f"{ratio:.1f} times as fast as {name}" + (f" ({second})" if second else "")


def _second(group: SeedGroup, column: str) -> str:
    """1.2 at batch 8"""
    ratio, batch = group.mean(f"{column}_second"), group.results[0].config["settings"].get("second_batch")
    return "" if ratio is None else f"{ratio:.{1 if ratio >= _ALIKE[1] else 2}f} at batch {batch}"


def size_of(group: SeedGroup) -> tuple[float | None, float]:
    """How many times smaller the file of that network is than the dense one, and its bytes."""
    small = group.mean("bytes_integers") if group.integers else None
    small, whole = small or group.mean("bytes") or 0.0, group.mean("bytes_dense")
    return (whole / small if small and whole else None), small


def same_answers(group: SeedGroup) -> str:
    """Gives the same answer as the dense one on 98.7 % of held-out images; proved for 94 % of 100 test points, ..."""
    agreement, proved = group.agreement, group.mean("labels_proved")
    said = ""
    if agreement is not None:
        verb = {"perplexity": "chooses the same next token", "spearman": "finds the same nearest sentence"}
        what = verb.get(group.metric, "gives the same answer")
        said = f"{what} as the dense one on {percent(agreement)} {asked(group)}"
    if proved is not None:
        settings, count = group.results[0].config["settings"], group.results[0].record.get("labels_points")
        which = f"for {percent(proved, 0)} of {count} test points, whatever change of 2-norm up to"
        way = "; proved" if said else "is proved to give the answer of the dense one"
        said += f"{way} {which} {settings['radius']:g} they suffer{_in_steps(group.results[0].record)}"
    return said


def _in_steps(record: Mapping[str, Any]) -> str:
    """The same radius as a person sees it: (one pixel by up to 7 of 255 steps)."""
    steps = record.get("labels_steps")
    if not steps:
        return ""
    shown = f"{math.floor(steps):,}" if steps >= 10 else f"{math.floor(10 * steps) / 10:g}"
    return f" (one {record['labels_step_of']} by up to {shown} of 255 steps)"


def asked(group: SeedGroup) -> str:
    """What the share of same answers is a share of: of 500 held-out images, of 4,096 places in held-out text.

    Older studies did not count labels; nothing is said of their number then.
    """
    record = group.results[0].record
    count = f"{record['answers']:,} " if record.get("answers") else ""
    images = any(len(layer["shape"]) == 4 for layer in record.get("layers", []))
    kind = {"perplexity": "places in held-out text", "spearman": "held-out sentences"}
    return f"of {count}{kind.get(group.metric, 'held-out images' if images else 'held-out inputs')}"


def remarks(panel: Panel) -> list[str]:
    """A few sentences more: the price of the pattern, the theory, the certificate, the limits."""
    found = [sentence for sentence in (beside(panel) or _fall(panel),) if sentence]
    energy = [
        abs((group.mean("energy_removed") or 0) - (group.mean("energy_predicted") or 0))
        for group in panel.groups
        if group.mean("energy_predicted") is not None
    ]
    if energy:
        found.append(
            "The share of the squared weights that went (the energy removed) is within "
            f"{100 * max(energy):.1f} percentage points of what theory says for independent normal weights."
        )
    ratios = [
        (group.mean("bound") or 0) / (group.mean("attained") or 1)
        for group in panel.groups
        if group.mean("bound") is not None and group.mean("attained")
    ]
    if ratios:
        low, high = number(min(ratios)), number(max(ratios))
        found.append(
            f"Proved bounds are {low if low == high else f'{low} to {high}'} times the most that a search found."
        )
    chosen = best(panel)
    bound = chosen.mean("bound") if chosen is not None and not chosen.vacuous else None
    if chosen is not None and bound is not None:
        count = int(chosen.results[0].config["settings"]["certify"])
        points = "1 test point" if count == 1 else f"{count} test points"
        found.append(
            f"Proved: near {points} its outputs differ from the dense ones by at most {number(bound)} in the 2-norm."
        )
    if chosen is not None and chosen.mean("held_out_bound") is not None:
        found.append(
            f"With 95 % confidence, its outputs differ from the dense ones by more than "
            f"{number(chosen.mean('held_out_bound') or 0)} in the 2-norm for at most "
            f"{percent(chosen.mean('held_out_probability') or 0)} of inputs like the held-out ones."
        )
    if any(group.vacuous for group in panel.groups):
        found.append(
            "Some certificates are vacuous: they are no better than the sum of both networks' largest output norms. "
            "Deep networks need smaller neighbourhoods, or a spectral penalty in training."
        )
    if panel.seeds > 1:
        counts = [len(group.results) for group in panel.groups]
        several = sum(count > 1 for count in counts)
        which = (
            f"Every network was made with {panel.seeds} seeds"
            if len(set(counts)) == 1
            else f"{several} of {len(counts)} networks {'were' if several > 1 else 'was'} made with several seeds"
        )
        found.append(f"{which}: such numbers are means, and a bar on a point is one standard deviation.")
    return found


_SCORES = {
    "magnitude": "the smallest weights go",
    "random": "weights go at random",
    "wanda": "weights go whose product with their inputs is smallest",
    "snip": "weights go whose absence would change the loss least",
    "grasp": "weights go whose absence would slow the training least",
    "synflow": "weights go that carry least from input to output; no data are used",
}
_WAYS = {"reconstruct": "weights go whose loss the others can make good; these are adjusted on a few samples"}
_PATTERNS = {
    "unstructured": "zeros may be anywhere",
    "kernels": "whole kernels of a convolution go",
    "channels": "whole channels or neurons go",
}


def meanings(panel: Panel) -> list[tuple[str, str]]:
    """The words of this panel that a newcomer may not know, each with its meaning in a line."""
    found = {"dense": "the network before pruning, with all its weights"}
    if panel.kernels or any(group.mean("faster_than_int8") is not None for group in panel.groups):
        found["float32"] = "calculated with numbers of 32 bits, as networks are trained"
        found["int8, in integers"] = "weights and inputs rounded to eight bits; dense int8 does this and prunes nothing"
    for group in panel.groups:
        method, distilled = parse(group.method)
        if method == "prune":
            found.setdefault(group.score, _SCORES.get(group.score, "weights go by this score"))
        else:
            found.setdefault(method, _WAYS.get(method, METHODS[method].about))
        if distilled:
            found.setdefault("distil", "trained afterwards to answer as the dense network does; no labels are used")
        if group.spread == "damage":
            found.setdefault("by damage", "layers whose zeros harm the outputs less get more of them")
        if group.tuned:
            found.setdefault("tuned", "trained on afterwards")
    for pattern in dict.fromkeys(group.pattern for group in panel.groups):
        found[pattern] = _pattern(pattern)
    if panel.metric.name == "perplexity":
        found["perplexity"] = "how many next words a language model wavers between; lower is better"
        found["token"] = "a word or a piece of one"
    if panel.metric.name == "Spearman correlation":
        found["Spearman correlation"] = "how well the network's order of pairs agrees with the data's; 1 is the best"
    found["held-out"] = "inputs that played no part in training or pruning"
    if any(
        group.mean(name) is not None for group in panel.groups for name in ("bound", "held_out_bound", "labels_proved")
    ):
        found["2-norm"] = "the length of a list of numbers: the root of the sum of their squares"
    return list(found.items())


def _pattern(name: str) -> str:
    """The zeros that a pattern allows."""
    kind, _, amount = name.partition(":")
    if kind == "balanced":
        return f"equally many of every {amount} neighbouring weights stay"
    if kind == "blocks":
        return f"blocks of {amount.replace('x', ' × ')} weights go as a whole"
    if kind.isdigit():
        return f"of every {amount} neighbouring weights at most {kind} stay"
    return _PATTERNS.get(kind, "zeros of this pattern")


def beside(panel: Panel) -> str:
    """At 75 % zeros (balanced:16), reconstruct keeps 98.2 % (98 % of answers stay), magnitude 9.4 % (10 % of ...)."""
    chosen = best(panel)
    if chosen is None:
        return ""
    alike = [
        g for g in panel.groups if (g.pattern, g.sparsity, g.tuned) == (chosen.pattern, chosen.sparsity, chosen.tuned)
    ]
    known = [(g.merit, g.way, _with_answers(panel, g)) for g in alike if g.told and g.merit is not None]
    if len(known) < 2:
        return ""
    (_, way, value), *others = sorted(known, key=lambda each: -each[0])
    verb = "keeps" if panel.metric.percent else "has"
    where = f"At {percent(chosen.sparsity, 0)} zeros ({chosen.pattern})"
    return f"{where}, {way} {verb} {value}, {', '.join(f'{other} {its}' for _, other, its in others)}."


def _with_answers(panel: Panel, group: SeedGroup) -> str:
    """0.820 (87 % of answers stay)"""
    assert group.told is not None
    shown = panel.metric.show(group.told.value)
    return shown if group.agreement is None else f"{shown} ({percent(group.agreement, 0)} of answers stay)"


def _fall(panel: Panel) -> str:
    drop = _steepest(panel)
    if drop is None:
        return ""
    before, after = (f"{panel.metric.show(g.told.value if g.told else 0)} at {percent(g.sparsity, 0)}" for g in drop)
    return f"The steepest fall: {panel.title(drop[0])} from {before} zeros to {after}."


def _steepest(panel: Panel) -> tuple[SeedGroup, SeedGroup] | None:
    worst, pair = 0.02, None
    for method in panel.methods:
        groups = [group for group in panel.groups if panel.title(group) == method]
        for before, after in pairwise(groups):
            losses = [panel.lost(group) for group in (before, after)]
            fall = 0.0 if None in losses else (losses[1] or 0.0) - (losses[0] or 0.0)
            if fall > worst:
                worst, pair = fall, (before, after)
    return pair


def describe(panel: Panel) -> dict[str, str]:
    """Text alternatives of the pictures, by their name."""
    return {
        "accuracy": _series(
            panel,
            f"{_title(panel)}{' in float32' if panel.kernels else ''} against sparsity.",
            "quality",
            panel.metric.show,
        ),
        "pareto": _front(panel),
        "certificate": " ".join(
            _series(panel, title, column, number)
            for title, column in (
                ("Certified bound against sparsity.", "bound"),
                ("Bound for nearly all held-out inputs.", "held_out_bound"),
            )
            if any(group.mean(column) is not None for group in panel.groups)
        ),
        "energy": _series(panel, "Share of weight energy removed, against sparsity.", "energy_removed", percent),
        "macs": _series(
            panel, "Times faster than dense in torch, in float32.", "speedup", lambda value: f"{value:.2f}"
        ),
        "kernel": _series(panel, "Condition number of the tangent kernel.", "kernel_condition", number),
    }


def _series(panel: Panel, title: str, column: str, show: Callable[[float], str]) -> str:
    sentences = [title]
    for method in panel.methods:
        points = [
            f"{show(value)} at {percent(group.sparsity, 0)}"
            for group in panel.groups
            if panel.title(group) == method and (value := group.mean(column)) is not None
        ]
        if points:
            sentences.append(f"{method}: {', '.join(points)}.")
    return " ".join(sentences) if len(sentences) > 1 else f"{title} Nothing was measured."


def _front(panel: Panel) -> str:
    points = [
        f"{panel.title(group)} at {percent(group.sparsity, 0)} ({group.faster:.2f} times faster, "
        f"{panel.metric.show(group.told.value)})"
        for group in panel.front
        if group.told is not None
    ]
    points += [
        f"{rival.name} ({rival.faster:.2f} times faster, {panel.metric.show(rival.quality)})"
        for rival in panel.rivals
        if panel.unbeaten(rival) and any(group.faster is not None for group in panel.groups)
    ]
    if not points:
        return f"{_title(panel)} against speed. Nothing was timed."
    return f"{_title(panel)} against speed. Not beaten in both: {'; '.join(points)}."


def _title(panel: Panel) -> str:
    return panel.metric.name[:1].upper() + panel.metric.name[1:]

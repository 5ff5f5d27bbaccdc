"""Private training as the field does it: rate and clip tuned for each method, then epsilon, k and index shares.

    python -m tools.private_study --store runs.jsonl --minutes 30    # goes on where it stopped; writes docs/evidence
    python -m tools.private_study --data mnist --parts k             # only these
    python -m tools.private_study --full ...                         # all images, 8 epochs, five seeds

Every finished run is a line of the store, so a killed study loses one run. The tables are made from the lines.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tools.evidence import FOLDER, record

from prunus.papers.noisy_topk.tuned import Setting, train_once

TUNED = ("dense", "random", "warm-up", "noisy-top-k")
RATES, CLIPS = (0.06, 0.18), (0.1, 1.0)
MOST_RATES = 5
# The other rate that is tried where a run leaves epsilon 3 and k 0.1: noise allows less at 1, fewer coordinates more.
OTHER_RATE = {("epsilon", 1.0): 1 / 3, ("epsilon", 8.0): 3.0, ("k", 0.03): 3.0, ("k", 0.3): 1 / 3}
PARTS = ("epsilon 3", "other epsilons", "k", "index share", "both")
PUBLISHED = (
    {"method": "published: tanh CNN, DP-SGD (Papernot et al. 2021)", "epsilon": 2.93, "test": 98.1},
    {"method": "published: AdaDPIGU, another network, k = 0.6", "epsilon": 8.0, "k": 0.6, "test": 99.12},
)
USUAL_IMAGES = 55_000


@dataclass(frozen=True)
class Scale:
    """How large the study is; the reduced one takes an hour of one core."""

    data: tuple[str, ...] = ("mnist", "fashion-mnist")
    images: int = 20_000
    epochs: int = 3
    seeds: int = 2

    @property
    def said(self) -> str:
        reduced = self.images < USUAL_IMAGES
        part = " (reduced: the usual setting has 60,000 images and more epochs)" if reduced else ""
        return f"{self.images:,} training images, {self.epochs} epochs{part}"


REDUCED = Scale()
FULL = Scale(images=USUAL_IMAGES, epochs=8, seeds=5)
HOW_TUNED = (
    "rate (three to five values) and clip (0.1 and 1) tuned for each method at epsilon 3, k 0.1, then one other rate "
    "at each other epsilon and k, on 5,000 images kept aside for it, one seed"
)


class Store:
    """Finished runs, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text("utf8").splitlines() if path.is_file() else []
        self.runs = {self._key(entry["setting"]): entry for entry in map(_parsed, lines) if entry}

    @staticmethod
    def _key(setting: dict[str, Any]) -> str:
        return json.dumps(setting, sort_keys=True)

    def find(self, setting: Setting) -> dict[str, Any] | None:
        """The finished run of a setting, if there is one."""
        return self.runs.get(self._key(asdict(setting)))

    def add(self, setting: Setting, result: dict[str, Any]) -> None:
        """Write a finished run."""
        entry = {"setting": asdict(setting), "result": result}
        self.runs[self._key(entry["setting"])] = entry
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf8") as file:
            file.write(json.dumps(entry) + "\n")


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:  # the last line of a study that was killed while it wrote
        return {}
    return found if isinstance(found, dict) else {}


class Study:
    """The order of the runs: what teaches most comes first."""

    def __init__(self, store: Store, scale: Scale) -> None:
        self.store, self.scale = store, scale

    def missing(self, parts: Sequence[str] = PARTS, names: Sequence[str] | None = None) -> Iterator[Setting]:
        """Settings not yet run, in order; a tuned rate is known once its runs are in the store."""
        for part in parts:
            for data in names or self.scale.data:
                while open_ := self._open(data, part):
                    yield open_[0]

    def _open(self, data: str, part: str) -> list[Setting]:
        """What is missing of a part, as far as it is known: trials first."""
        trials = [trial for method, change in _plan(part) for trial in self._needed(data, method, change)]
        waiting = [trial for trial in trials if self.store.find(trial) is None]
        return waiting or [final for final in self.finals(data, part) if self.store.find(final) is None]

    def _validation(self, setting: Setting) -> float:
        found = self.store.find(setting)
        return found["result"]["validation"] if found else -1.0

    def _all_done(self, trials: list[Setting]) -> bool:
        return all(self.store.find(trial) for trial in trials)

    def _trials(self, data: str, method: str) -> list[Setting]:
        """At epsilon 3 and k 0.1: rates beyond the best while the best lies at an end, then the other clip."""
        base = Setting(method, data=data, images=self.scale.images, epochs=self.scale.epochs, seed=100, clip=CLIPS[0])
        trials = [replace(base, rate=rate) for rate in RATES]
        while self._all_done(trials) and len(trials) < MOST_RATES:
            best = max(trials, key=self._validation).rate
            rates = [trial.rate for trial in trials]
            if min(rates) < best < max(rates):
                break
            trials.append(replace(base, rate=_times(best, 3.0 if best == max(rates) else 1 / 3)))
        if self._all_done(trials):
            trials.append(replace(max(trials, key=self._validation), clip=CLIPS[1]))
        return trials

    def _variants(self, data: str, method: str, name: str, value: float) -> list[Setting]:
        """The best trial at another epsilon or k, with its own rate and with another one."""
        best = max(self._trials(data, method), key=self._validation)
        moved = replace(best, **{name: value})
        return [moved, replace(moved, rate=_times(best.rate, OTHER_RATE[name, value]))]

    def _needed(self, data: str, method: str, change: dict[str, float]) -> list[Setting]:
        """The trials behind a reported setting, as far as they are known."""
        source = "noisy-top-k" if method == "two-level" else method
        trials = self._trials(data, source)
        if self._all_done(trials):
            for item in change.items():
                trials += self._variants(data, source, *item) if item in OTHER_RATE else []
        return trials

    def finals(self, data: str, part: str) -> list[Setting]:
        """The reported runs of a part that are tuned, seed by seed."""
        settings = []
        for method, change in _plan(part):
            if not self._all_done(self._needed(data, method, change)):
                continue
            source = "noisy-top-k" if method == "two-level" else method
            best = max(self._trials(data, source), key=self._validation)
            rate = best.rate
            for item in change.items():
                if item in OTHER_RATE:
                    plain, other = self._variants(data, source, *item)
                    better = self._validation(other) > self._validation(plain)
                    rate = _times(rate, OTHER_RATE[item] if better else 1.0)
            settings.append(replace(best, method=method, rate=rate, **change))
        return [replace(setting, seed=seed) for seed in range(self.scale.seeds) for setting in settings]

    def rows(self, data: str) -> list[dict[str, Any]]:
        """A row for each reported setting with at least one finished run."""
        groups: dict[Setting, list[dict[str, Any]]] = {}
        for part in PARTS:
            for setting in self.finals(data, part):
                found = self.store.find(setting)
                if found:
                    groups.setdefault(replace(setting, seed=0), []).append(found["result"])
        return [_row(setting, runs) for setting, runs in groups.items()]


def _plan(part: str) -> list[tuple[str, dict[str, float]]]:
    """Methods, and what they change of epsilon 3, k 0.1 and an index share of 0.01."""
    sparse = TUNED[1:]
    if part == "epsilon 3":
        return [(method, {}) for method in TUNED]
    if part == "other epsilons":
        return [(method, {"epsilon": e}) for e in (1.0, 8.0) for method in TUNED]
    if part == "k":
        return [(method, {"k": k}) for k in (0.03, 0.3) for method in sparse]
    if part == "index share":
        return [("noisy-top-k", {"index_share": 0.5}), ("noisy-top-k", {"index_share": 0.1}), ("two-level", {})]
    return [(method, {"epsilon": e, "k": k}) for e in (1.0, 8.0) for k in (0.03, 0.3) for method in sparse]


def _times(rate: float, factor: float) -> float:
    return round(rate * factor, 4)


def _row(setting: Setting, runs: list[dict[str, Any]]) -> dict[str, Any]:
    tests = [100.0 * run["test"] for run in runs]
    looks = setting.method in ("noisy-top-k", "two-level")
    return {
        "method": setting.method + (", TP-TopK" if setting.method == "warm-up" else ""),
        "epsilon": setting.epsilon,
        "k": 1.0 if setting.method == "dense" else setting.k,
        "index share": setting.index_share if looks else 0.0,
        "test": statistics.mean(tests),
        "standard error": statistics.stdev(tests) / math.sqrt(len(tests)) if len(tests) > 1 else "",
        "seeds": len(tests),
        "megabytes sent": runs[0]["megabytes"],
        "epsilon spent": max(run["epsilon spent"] for run in runs),
        "noise multiplier": runs[0]["noise multiplier"],
        "rate": setting.rate,
        "clip": setting.clip,
    }


def pooled_error(rows: Sequence[dict[str, Any]]) -> tuple[float, int]:
    """Standard error of the mean of two seeds, from all rows together, and its degrees of freedom.

    Two seeds alone say little about their own spread: single errors run from nearly 0 to several times the pooled one.
    """
    parts = [(row["seeds"], row["standard error"]) for row in rows if row["seeds"] > 1]
    freedom = sum(seeds - 1 for seeds, _ in parts)
    variance = sum((seeds - 1) * seeds * error**2 for seeds, error in parts) / max(freedom, 1)
    return math.sqrt(variance / 2), freedom


def write_evidence(study: Study, folder: Path = FOLDER) -> None:
    """The tables from what the store holds."""
    for data in study.scale.data:
        rows = sorted(study.rows(data), key=lambda row: (row["epsilon"], row["megabytes sent"], row["method"]))
        if not rows:
            continue
        error, freedom = pooled_error(rows)
        pooled = (
            f" Pooled over all rows the standard error of two seeds is {error:.2f} ({freedom} degrees of freedom); two "
            f"rows differ clearly from {2 * math.sqrt(2) * error:.1f} points on, two standard errors of a difference."
        )
        note = (
            f"{data}, tanh CNN of 26,010 parameters, {study.scale.said}; batch 256, momentum 0.9, delta 1e-5; "
            f"{HOW_TUNED}.{pooled if freedom else ''} python -m tools.private_study goes on where this stopped."
        )
        published = [row for row in PUBLISHED if data == "mnist"]
        record(f"private-tanh-{data}", [*rows, *published], note, folder)


GUIDE = {
    "dense": "dense",
    "random": "random mask",
    "noisy-top-k": "noisy top-k, {} of epsilon on the indices",
    "two-level": "two-level rule, {}",
    "warm-up, TP-TopK": "warm-up, then a fixed support (TP-TopK)",
}
"""The guide's words for the methods of the tables."""


def guide_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of the guide's table: settings by the bytes they send, test accuracy at each epsilon."""
    measured = [row for row in rows if row["method"] in GUIDE]
    columns = sorted({row["epsilon"] for row in measured})
    found: dict[tuple[Any, ...], dict[float, float]] = {}
    for row in sorted(measured, key=lambda row: (row["megabytes sent"], row["method"], row["index share"])):
        key = row["megabytes sent"], row["method"], row["k"], row["index share"]
        found.setdefault(key, {})[row["epsilon"]] = row["test"]
    lines = ["| megabytes sent | method | k | " + " | ".join(f"epsilon {column:g}" for column in columns) + " |"]
    lines.append("|---" * (3 + len(columns)) + "|")
    for (sent, method, k, share), tests in found.items():
        cells = [f"{tests[column]:.1f} %" if column in tests else "" for column in columns]
        lines.append(f"| {sent:.1f} | {GUIDE[method].format(f'{100 * share:g} %')} | {k:g} | {' | '.join(cells)} |")
    return lines


def fill_guide(page: Path = FOLDER.parent / "guide" / "private.md", folder: Path = FOLDER) -> None:
    """Put the tables into the guide, each between its marks."""
    text = page.read_text("utf8")
    for data in REDUCED.data:
        file, mark = folder / f"private-tanh-{data}.json", f"<!-- private-tanh-{data} by bytes -->\n"
        if file.is_file() and mark in text:
            before, _, rest = text.partition(mark)
            table = "\n".join(guide_table(json.loads(file.read_text("utf8"))["rows"]))
            text = f"{before}{mark}\n{table}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    page.write_text(text, "utf8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=FOLDER / "private-tanh-runs.jsonl")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after so many minutes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these parts")
    parser.add_argument("--data", nargs="+", choices=REDUCED.data, default=REDUCED.data, help="only these data sets")
    parser.add_argument("--full", action="store_true", help="the whole grid: days on one core")
    parser.add_argument("--evidence", type=Path, default=FOLDER, help="folder of the tables")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    study = Study(Store(given.store), FULL if given.full else REDUCED)
    began = time.monotonic()
    for setting in study.missing(given.parts, given.data):
        if time.monotonic() - began > 60.0 * given.minutes:
            break
        start = time.monotonic()
        result = train_once(setting)
        study.store.add(setting, result)
        print(setting, result, f"{time.monotonic() - start:.0f} s", flush=True)
    write_evidence(study, given.evidence)
    if given.evidence == FOLDER:
        fill_guide()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Private training as the field does it: rate and clip tuned for each method, then epsilon, k and index shares.

    python -m tools.private_study --store runs.jsonl --minutes 30    # goes on where it stopped; writes docs/evidence
    python -m tools.private_study --full ...                         # all images, 8 epochs, five seeds, both data sets

Every finished run is a line of the store, so a killed study loses one run. The tables are made from the lines.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tools.evidence import FOLDER, record

from prunus.papers.noisy_topk.tuned import Setting, train_once

TUNED = ("dense", "random", "warm-up", "noisy-top-k")
RATES, CLIPS = (0.06, 0.18), (0.1, 1.0)
PUBLISHED = (
    {"method": "published: tanh CNN, DP-SGD (Papernot et al. 2021)", "epsilon": 2.93, "test": 98.1},
    {"method": "published: AdaDPIGU, another network, k = 0.6", "epsilon": 8.0, "k": 0.6, "test": 99.12},
)


@dataclass(frozen=True)
class Scale:
    """How large the study is; the reduced one fits into a quarter of an hour of one core."""

    data: tuple[str, ...] = ("mnist",)
    images: int = 20_000
    epochs: int = 3
    seeds: int = 2
    clips: bool = False

    @property
    def said(self) -> str:
        part = "" if self.clips else " (reduced: the usual setting has 60,000 images and more epochs)"
        return f"{self.images:,} training images, {self.epochs} epochs{part}"

    @property
    def tuned(self) -> str:
        what = "rate and clip" if self.clips else "rate (three values; clip 0.1 for all)"
        return f"{what} tuned for each method at epsilon 3, k 0.1 on 5,000 images kept aside for it, one seed"


REDUCED = Scale()
FULL = Scale(("mnist", "fashion-mnist"), 55_000, 8, 5, clips=True)


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

    def base(self, data: str, method: str) -> Setting:
        return Setting(method, data=data, images=self.scale.images, epochs=self.scale.epochs)

    def missing(self) -> Iterator[Setting]:
        """Settings not yet run, in order; a tuned rate is known once its runs are in the store."""
        for data in self.scale.data:
            for method in TUNED:
                yield from self._tuning(data, method)
            yield from (setting for setting in self.finals(data) if self.store.find(setting) is None)

    def _validation(self, setting: Setting) -> float:
        found = self.store.find(setting)
        return found["result"]["validation"] if found else -1.0

    def _trials(self, data: str, method: str) -> list[Setting]:
        """Two rates at the first clip, one three times beyond the better; then, at full size, the other clip."""
        base = replace(self.base(data, method), seed=100, clip=CLIPS[0])
        trials = [replace(base, rate=rate) for rate in RATES]
        if all(self.store.find(trial) for trial in trials):
            best = max(trials, key=self._validation)
            beyond = best.rate * 3.0 if best.rate == RATES[-1] else best.rate / 3.0
            trials.append(replace(base, rate=round(beyond, 4)))
        if self.scale.clips and all(self.store.find(trial) for trial in trials):
            trials.append(replace(max(trials, key=self._validation), clip=CLIPS[1]))
        return trials

    def _tuning(self, data: str, method: str) -> Iterator[Setting]:
        while True:
            open_ = [trial for trial in self._trials(data, method) if self.store.find(trial) is None]
            if not open_:
                return
            yield open_[0]

    def tuned(self, data: str, method: str) -> Setting:
        """The best trial of a method, with its own seed put back."""
        best = max(self._trials(data, method), key=self._validation)
        return replace(best, seed=0)

    def finals(self, data: str) -> list[Setting]:
        """All runs that are reported, with the tuned rates and clips."""
        plan: list[tuple[str, dict[str, Any]]] = [(method, {}) for method in TUNED]
        plan += [(method, {"epsilon": epsilon}) for epsilon in (1.0, 8.0) for method in TUNED]
        plan += [("noisy-top-k", {"index_share": 0.5})]
        plan += [(method, {"k": k}) for k in (0.03, 0.3) for method in TUNED[1:]]
        plan += [("noisy-top-k", {"index_share": 0.1}), ("two-level", {})]
        if self.scale.clips:
            plan += [(m, {"k": k, "epsilon": e}) for e in (1.0, 8.0) for k in (0.03, 0.3) for m in TUNED[1:]]
        settings = []
        for seed in range(self.scale.seeds):
            for method, change in plan:
                source = self.tuned(data, "noisy-top-k" if method == "two-level" else method)
                settings.append(replace(source, method=method, seed=seed, **change))
        return settings

    def rows(self, data: str) -> list[dict[str, Any]]:
        """A row for each reported setting with at least one finished run."""
        groups: dict[Setting, list[dict[str, Any]]] = {}
        for setting in self.finals(data):
            found = self.store.find(setting)
            if found:
                groups.setdefault(replace(setting, seed=0), []).append(found["result"])
        return [_row(setting, runs) for setting, runs in groups.items()]


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


def write_evidence(study: Study, folder: Path = FOLDER) -> None:
    """The tables from what the store holds."""
    for data in study.scale.data:
        rows = sorted(study.rows(data), key=lambda row: (row["epsilon"], row["megabytes sent"], row["method"]))
        if not rows:
            continue
        note = (
            f"{data}, tanh CNN of 26,010 parameters, {study.scale.said}; batch 256, momentum 0.9, delta 1e-5; "
            f"{study.scale.tuned}. python -m tools.private_study goes on where this stopped."
        )
        published = [row for row in PUBLISHED if data == "mnist"]
        record(f"private-tanh-{data}", [*rows, *published], note, folder)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=FOLDER / "private-tanh-runs.jsonl")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after so many minutes")
    parser.add_argument("--full", action="store_true", help="the whole grid: days on one core")
    parser.add_argument("--evidence", type=Path, default=FOLDER, help="folder of the tables")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    study = Study(Store(given.store), FULL if given.full else REDUCED)
    began = time.monotonic()
    for setting in study.missing():
        if time.monotonic() - began > 60.0 * given.minutes:
            break
        start = time.monotonic()
        result = train_once(setting)
        study.store.add(setting, result)
        print(setting, result, f"{time.monotonic() - start:.0f} s", flush=True)
    write_evidence(study, given.evidence)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

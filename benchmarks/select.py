"""Exact selection against torch: global magnitude pruning, balanced masks, smaller masks, top indices.

One thread. Every round times each contender once, in turn; ratios are medians of the ratios within a round. A call of
the slowest peer takes half a minute, so nothing is run twice: the answers that are timed are also the ones compared.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from benchmarks.harness import Samples, median, ratios
from prunus import native, select

Job = Callable[[], Any]


@contextlib.contextmanager
def _path(name: str) -> Iterator[None]:
    """Selection through plain torch or through the native module, whatever the environment says."""
    kept = select.load
    select.load = (lambda module: None) if name == "torch" else native.load  # type: ignore[assignment]
    try:
        yield
    finally:
        select.load = kept  # type: ignore[assignment]


def _ours(name: str, job: Job) -> Job:
    def run() -> Any:
        with _path(name):
            return job()

    return run


def _compare(
    title: str, peer_name: str, peer: Job, job: Job, rounds: int, same: Callable[[Any, Any], bool]
) -> list[dict[str, Any]]:
    """One row for each of our paths: the ratio to the peer, its spread over the rounds, and the medians in seconds."""
    contenders = {"peer": peer} | {path: _ours(path, job) for path in _paths()}
    times: Samples = {name: [] for name in contenders}
    agree = dict.fromkeys(contenders, True)
    for _ in range(rounds):
        expected = None
        for name, contender in contenders.items():
            start = time.perf_counter()
            answer = contender()
            times[name].append(time.perf_counter() - start)
            expected = answer if name == "peer" else expected
            agree[name] &= same(expected, answer)
            del answer
    rows = []
    for path in _paths():
        inner = [theirs / mine for theirs, mine in zip(times["peer"], times[path])]
        row = {"job": title, "peer": peer_name, "path": path, "ratio": round(ratios(times, path)["peer"], 1)}
        row |= {"lowest": round(min(inner), 1), "highest": round(max(inner), 1), "same answer": agree[path]}
        row |= {"seconds": round(median(times[path]), 5), "peer seconds": round(median(times["peer"]), 5)}
        rows.append(row)
    return rows


def _paths() -> tuple[str, ...]:
    return ("torch", "native") if native.load("_select") else ("torch",)


def _matrices(count: int, side: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(side, side, generator=generator) for _ in range(count)]


def _global_magnitude(quick: bool) -> list[dict[str, Any]]:
    weights = _matrices(6, 1024 if quick else 4096)
    total = sum(weight.numel() for weight in weights)
    count = round(0.9 * total)

    def peer() -> list[Tensor]:
        layers = [nn.Linear(1, 1, bias=False) for _ in weights]
        for layer, weight in zip(layers, weights):
            layer.weight = nn.Parameter(weight, requires_grad=False)
        pruned = [(layer, "weight") for layer in layers]
        prune.global_unstructured(pruned, prune.L1Unstructured, amount=count)
        return [layer.weight_mask for layer in layers]

    def same(theirs: list[Tensor], ours: list[Tensor]) -> bool:
        """The exact count, and the same masks but for equal magnitudes, which torch drops in no particular order."""
        dropped = sum(int((mask == 0).sum()) for mask in ours)
        differ = sum(int((a.bool() != b).sum()) for a, b in zip(theirs, ours))
        return dropped == count and differ <= 100

    title = f"global magnitude 90 % of {total / 1e6:.1f} M"
    rows = _compare(title, "torch prune.global_unstructured", peer, _dropper(weights, count), 3 if quick else 2, same)
    return [row | {"extra MB": _extra_megabytes(row["path"], len(weights), weights[0].shape[0])} for row in rows]


def _dropper(scores: list[Tensor], count: int) -> Job:
    return lambda: select.drop_smallest(scores, count, absolute=True)


def _balanced(quick: bool) -> list[dict[str, Any]]:
    (weight,) = _matrices(1, 1024 if quick else 4096)
    banks = weight.shape[1] // 16

    def peer() -> Tensor:
        best = weight.abs().view(-1, 16).topk(2, dim=1).indices
        return torch.zeros(best.shape[0], 16, dtype=torch.bool).scatter_(1, best, True).view_as(weight)

    def job() -> Tensor:
        return select.drop_smallest_in_banks(weight, [14] * banks, 16, absolute=True)

    title = f"balanced mask, bank 16 keep 2, {weight.numel() / 1e6:.1f} M"
    return _compare(title, "torch topk and scatter", peer, job, 9, torch.equal)


def _small_masks(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for size in (2_300_000,) if quick else (2_300_000, 11_000_000):
        scores = torch.randn(size, generator=torch.Generator().manual_seed(1))
        count = size // 2

        def peer(scores: Tensor = scores, count: int = count) -> Tensor:
            order = scores.abs().sort(stable=True).indices
            return torch.ones(scores.numel(), dtype=torch.bool).index_fill_(0, order[:count], False)

        def job(scores: Tensor = scores, count: int = count) -> Tensor:
            return select.drop_smallest(scores, count, absolute=True)

        rows += _compare(f"mask of {size / 1e6:.1f} M scores", "torch stable sort", peer, job, 5, torch.equal)
    return rows


def _top(quick: bool) -> list[dict[str, Any]]:
    vector = torch.randn(10**7 if quick else 10**8, generator=torch.Generator().manual_seed(2))
    count = vector.numel() // 100

    def peer() -> Tensor:
        return vector.abs().topk(count, sorted=False).indices.sort().values

    def same(theirs: Tensor, ours: Tensor) -> bool:
        """The same positions but for equal magnitudes, of which torch keeps any."""
        return theirs.shape == ours.shape and torch.cat((theirs, ours)).unique().numel() <= count + 100

    def job() -> Tensor:
        return select.top_indices(vector, count)

    title = f"top {count / 1e6:.1f} M of {vector.numel() / 1e6:.0f} M"
    return _compare(title, "torch topk and sort", peer, job, 3, same)


_MEMORY = """
import sys, torch
from prunus import select
def peak():  # of this process alone: the resource module also knows what the parent used
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
torch.set_num_threads(1)
count, side = map(int, sys.argv[1:])
scores = [torch.randn(side, side) for _ in range(count)]
select.drop_smallest(torch.randn(1 << 18), 9, absolute=True)
before = peak()
masks = select.drop_smallest(scores, round(0.9 * count * side * side), absolute=True)
print((peak() - before) / 1024 - count * side * side / 2**20)
"""


def _extra_megabytes(path: str, count: int, side: int) -> float:
    """Peak memory of one call beyond scores and masks, in a process of its own."""
    environment = os.environ | {"PRUNUS_NATIVE": "0" if path == "torch" else "1"}
    command = [sys.executable, "-c", _MEMORY, str(count), str(side)]
    return round(max(0.0, float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)), 1)


def run(quick: bool) -> list[dict[str, Any]]:
    """All comparisons, on one thread; `quick` shrinks them to a few seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [row for part in (_global_magnitude, _balanced, _small_masks, _top) for row in part(quick)]
    finally:
        torch.set_num_threads(threads)

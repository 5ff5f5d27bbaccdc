"""Exact tangent kernels of masked networks against torch.func.jacrev; memory; limits of many inputs.

784-2048-2048-2048-O, 64 inputs, density 0.125, float32, one thread. At one output jacrev takes the Jacobian of all
inputs at once. At ten that would be 26 GB: jacrev is timed on all 64 inputs in groups of 6 (3 GB), each group once, and
only the products inside a group are formed. A whole kernel in that memory would take each Jacobian several times over,
so this is the least that jacrev can need. The row at width 512, where the whole Jacobian fits, shows that groups are no
slower than one piece. Ours is timed after every group; the ratio is of jacrev's sum to our median.

The relative gap at ten outputs is the rounding of the peer, whose float32 products sum 10^8 terms: ours agrees with
float64 to 3e-7.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import prunus
from benchmarks.harness import median, spread
from prunus.tangent import Effort, empirical, limit, parametrise

Case = tuple[nn.Module, prunus.Masks, Tensor]


def _case(sizes: str, density: float, inputs: int) -> Case:
    net = parametrise(prunus.models.make(f"fc:{sizes}", init="normal", seed=0))
    masks = prunus.find_masks(net, 1 - density, score="random", exclude=("layers.0*",), seed=0)
    first = int(sizes.split("-")[0])
    return net, masks, torch.randn(inputs, first, generator=torch.Generator().manual_seed(0))


def _jacrev(case: Case) -> Tensor:
    """The kernel by torch.func.jacrev over the dense parameters with their masks, all inputs at once."""
    net, masks, x = case
    raw = {name: parameter.detach() for name, parameter in net.named_parameters()}
    factors = {name: mask / mask.float().mean().sqrt() for name, mask in masks.items()}

    def outputs(values: dict[str, Tensor]) -> Tensor:
        acting = {name: value * factors[name] if name in factors else value for name, value in values.items()}
        found: Tensor = torch.func.functional_call(net, acting, (x,))
        return found

    jacobian = torch.func.jacrev(outputs)(raw)
    kernel = torch.zeros(len(x), len(x))
    for part in jacobian.values():  # (n, outputs, *shape of the parameter)
        kernel += part.flatten(1) @ part.flatten(1).T
    return kernel / part.shape[1]


_Timed = tuple[float, Tensor]


def _timed(run: Callable[[], Tensor]) -> _Timed:
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


def _ours(case: Case) -> Tensor:
    return empirical(case[0], case[2], masks=case[1], effort=Effort(progress=False))


def _by_groups(case: Case, size: int) -> tuple[float, list[float], float]:
    """Seconds of jacrev over all groups of `size` inputs, of ours after each of them, and the largest relative gap."""
    net, masks, x = case
    whole, total, mine, gap = _ours(case), 0.0, [], 0.0
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        seconds, block = _timed(lambda part=part: _jacrev((net, masks, x[part])))  # type: ignore[misc]
        total += seconds
        mine.append(_timed(lambda: _ours(case))[0])
        gap = max(gap, float((whole[part, part] - block).abs().max() / block.abs().max()))
    return total, mine, gap


def _row(job: str, peer: str, times: tuple[float, list[float], float], target: int | None) -> dict[str, Any]:
    total, mine, gap = times
    row: dict[str, Any] = {"job": job, "peer": f"torch.func.jacrev, {peer}", "ratio": round(total / median(mine), 1)}
    row |= {"target": target, "seconds": round(median(mine), 3), "spread": round(spread(mine), 2)}
    return row | {"peer seconds": round(total, 2), "relative gap": f"{gap:.1e}"}


def _one_output(sizes: str) -> tuple[float, list[float], float]:
    """Three rounds of the whole Jacobian at once, ours after each."""
    case = _case(sizes, 0.125, 64)
    rounds = [_by_groups(case, 64) for _ in range(3)]
    mine = [seconds for _, found, _ in rounds for seconds in found]
    return median([total for total, _, _ in rounds]), mine, max(gap for _, _, gap in rounds)


def _against_jacrev(quick: bool) -> list[dict[str, Any]]:
    width = 512 if quick else 2048
    rows = []
    one, ten = (f"784-{width}-{width}-{width}-{outputs}" for outputs in (1, 10))
    job = f"784-{width}x3-%d, 64 inputs, density 0.125"
    rows.append(
        _row(job % 1, "64 inputs at once", _one_output(one), 20) | {"extra MB": _extra_megabytes(one, 0.125, 64, 1)}
    )
    small = _case("784-512-512-512-10", 0.125, 64)
    for size in (64, 6):
        rows.append(_row("784-512x3-10, 64 inputs, density 0.125", f"{size} at once", _by_groups(small, size), None))
    found = _by_groups(_case(ten, 0.125, 64), 6)
    rows.append(_row(job % 10, "6 at once, 11 groups", found, 80) | {"extra MB": _extra_megabytes(ten, 0.125, 64, 1)})
    return rows


_MEMORY = """
import sys, torch, prunus
from prunus.tangent import empirical, parametrise, Effort
def status(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])
sizes, density, inputs, threads = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
net = parametrise(prunus.models.make("fc:" + sizes, init="normal", seed=0))
masks = prunus.find_masks(net, 1 - density, score="random", exclude=("layers.0*",), seed=0)
x = torch.randn(inputs, int(sizes.split("-")[0]))
small = parametrise(prunus.models.make("fc:8-8-1", init="normal", seed=0))
empirical(small, x[:4, :8], masks=prunus.find_masks(small, 0.5, score="random"))
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew from what is held now
before = status("VmRSS")
empirical(net, x, masks=masks, effort=Effort(progress=False))
print((status("VmHWM") - before) / 1024)
"""


def _extra_megabytes(sizes: str, density: float, inputs: int, threads: int) -> float:
    """Peak memory of one call beyond network, masks and inputs, in a process of its own."""
    command = [sys.executable, "-c", _MEMORY, sizes, str(density), str(inputs), str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    return round(float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout), 1)


def _many_inputs(quick: bool) -> list[dict[str, Any]]:
    inputs, threads = 300 if quick else 1000, torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        net, masks, x = _case("64-512-512-512-1", 0.5, inputs)
        start = time.perf_counter()
        empirical(net, x, masks=masks, effort=Effort(progress=False))
        seconds = time.perf_counter() - start
    finally:
        torch.set_num_threads(threads)
    extra = _extra_megabytes("64-512-512-512-1", 0.5, inputs, 2)
    row = {"job": f"64-512x3-1, {inputs} inputs, density 0.5, two threads", "target": "15 s, 500 MB"}
    return [row | {"seconds": round(seconds, 2), "extra MB": extra}]


def _limits(quick: bool) -> list[dict[str, Any]]:
    x = torch.randn(500 if quick else 2000, 64, generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    limit(x, depth=3)
    seconds = time.perf_counter() - start
    return [
        {
            "job": f"limit of {len(x)} x {len(x)} inputs of size 64, depth 3",
            "target": "3 s",
            "seconds": round(seconds, 2),
        }
    ]


def run(quick: bool) -> list[dict[str, Any]]:
    """All of it on one thread but where it says two; `quick` shrinks the networks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [row for part in (_against_jacrev, _many_inputs, _limits) for row in part(quick)]
    finally:
        torch.set_num_threads(threads)

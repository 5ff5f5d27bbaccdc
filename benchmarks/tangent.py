"""Exact tangent kernels of masked networks against torch.func.jacrev; memory; limits of many inputs.

784-2048-2048-2048-O, 64 inputs, density 0.125, float32, one thread; jacrev takes the Jacobian of all inputs at once at
one output, and as many inputs at once as fit in 3 GB at ten. Every round times each contender once, in turn.
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
from benchmarks.harness import Samples, median, ratios
from prunus.tangent import Effort, empirical, limit, parametrise

Case = tuple[nn.Module, prunus.Masks, Tensor]


def _case(sizes: str, density: float, inputs: int) -> Case:
    net = parametrise(prunus.models.make(f"fc:{sizes}", init="normal", seed=0))
    masks = prunus.find_masks(net, 1 - density, score="random", exclude=("layers.0*",), seed=0)
    first = int(sizes.split("-")[0])
    return net, masks, torch.randn(inputs, first, generator=torch.Generator().manual_seed(0))


def _jacrev(case: Case, at_once: int) -> Tensor:
    """The kernel by torch.func.jacrev over the dense parameters with their masks, `at_once` inputs at a time."""
    net, masks, x = case
    raw = {name: parameter.detach() for name, parameter in net.named_parameters()}
    factors = {name: mask / mask.float().mean().sqrt() for name, mask in masks.items()}

    def outputs(values: dict[str, Tensor], part: Tensor) -> Tensor:
        acting = {name: value * factors[name] if name in factors else value for name, value in values.items()}
        return torch.func.functional_call(net, acting, (part,))

    def jacobian(part: Tensor) -> dict[str, Tensor]:
        return torch.func.jacrev(outputs)(raw, part)

    parts = x.split(at_once)
    rows = []
    for number, first in enumerate(parts):
        left, row = jacobian(first), []
        for other, second in enumerate(parts):
            right = left if other == number else jacobian(second)
            row.append(sum(left[name].flatten(1) @ right[name].flatten(1).T for name in left))
        rows.append(torch.cat(row, dim=1))
    return torch.cat(rows) / next(iter(left.values())).shape[1]


def _against_jacrev(quick: bool) -> list[dict[str, Any]]:
    """One output: the whole Jacobian at once. Ten: the Jacobian of 6 inputs (3 GB), and our share of the same block."""
    width, rows = 512 if quick else 2048, []
    for outputs, inputs, rounds in ((1, 64, 3), (10, 64, 2)):
        case = _case(f"784-{width}-{width}-{width}-{outputs}", 0.125, inputs)
        some = 64 if outputs == 1 else 6
        slow = (case[0], case[1], case[2][:some])
        contenders: dict[str, Callable[[], Tensor]] = {
            "peer": lambda slow=slow, some=some: _jacrev(slow, some),  # type: ignore[misc]
            "ours": lambda case=case: empirical(case[0], case[2], masks=case[1], effort=Effort(progress=False)),  # type: ignore[misc]
        }
        times: Samples = {name: [] for name in contenders}
        answers = {}
        for _ in range(rounds):
            for name, contender in contenders.items():
                start = time.perf_counter()
                answers[name] = contender()
                times[name].append(time.perf_counter() - start)
        gap = float((answers["ours"][:some, :some] - answers["peer"]).abs().max() / answers["peer"].abs().max())
        # One Jacobian of `some` inputs is the least jacrev must do for each group of them: a lower bound on its time.
        groups = -(-inputs // some)
        ratio = ratios(times, "ours")["peer"] * groups
        row: dict[str, Any] = {"job": f"784-{width}x3-{outputs}, {inputs} inputs, density 0.125"}
        row |= {"peer": f"torch.func.jacrev, {some} inputs at once x {groups}", "ratio": round(ratio, 1)}
        row |= {"target": 20 if outputs == 1 else 80, "seconds": round(median(times["ours"]), 3)}
        row |= {"peer seconds": round(median(times["peer"]) * groups, 2), "relative gap": f"{gap:.1e}"}
        rows.append(row | {"extra MB": _extra_megabytes(f"784-{width}-{width}-{width}-{outputs}", 0.125, inputs, 1)})
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

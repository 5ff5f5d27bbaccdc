"""`prunus bench`: dense and sparse layers, or a whole network, timed side by side."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import Input, InputIds
from prunus.cli.options import Json, Seed, Weights

if TYPE_CHECKING:
    from prunus.sparse.bench import BenchResult

_LINEAR = re.compile(r"(\d+)x(\d+)")
_CONV = re.compile(r"conv:(\d+)-(\d+)-(\d+)@(\d+)")
_LARGEST = 1 << 28


def bench(
    what: Annotated[
        list[str], Parameter(help="Shapes `ROWSxCOLS`, convolutions `conv:IN-OUT-KERNEL@SIZE`, or models.")
    ],
    *,
    sparsity: Annotated[
        list[float] | None, Parameter(negative="", help="Fractions of zeros; 0.9 if not given.")
    ] = None,
    pattern: Annotated[str, Parameter(help="Pattern of the zeros.")] = "balanced:16",
    batch: Annotated[list[int] | None, Parameter(negative="", help="Batch sizes; 1, 8 and 64 if not given.")] = None,
    exclude: Annotated[list[str] | None, Parameter(negative="", help="Layers of a model that stay dense.")] = None,
    weights: Weights = None,
    input: Input = None,
    input_ids: InputIds = None,
    threads: Annotated[int, Parameter(help="Threads for every candidate.")] = 1,
    repeats: Annotated[int, Parameter(help="Rounds in which all candidates run in turn.")] = 11,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Write a page with the roofline and the ideal-time line.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Time dense and sparse layers or a whole network, side by side.

    Candidates: torch dense, dense with weights packed in advance (oneDNN, MKL), ONNX Runtime and OpenVINO, the same
    quantised to int8, torch int8, torch CSR, SciPy CSR, numba CSR (those that are installed), and ours in float32 and
    in integers, in interleaved runs. Prints how many times faster ours is, with the spread, the error of each output
    against float32, the realised sparsity, the ideal time for it, and the share of the machine's limit reached.

    Example: `prunus bench 512x512 conv:16-16-3@16 --sparsity 0.9 --batch 8 --repeats 3 -o bench.html`
    """
    import torch

    from prunus.errors import BadInput
    from prunus.sparse.bench import rows

    batches, sparsities = batch or [1, 8, 64], sparsity or [0.9]
    if threads < 1 or repeats < 3 or min(batches) < 1:
        raise BadInput("Threads and batch sizes must be at least 1, and repeats at least 3.")
    if not what:
        raise BadInput("Name a shape or a model to time, as in: prunus bench 1024x1024.")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    try:
        results = [
            _layer(name, level, size, pattern, repeats)
            or _model(name, level, size, pattern, tuple(exclude or ()), weights, repeats, (input, input_ids))
            for name in what
            for level in sparsities
            for size in batches
        ]
    finally:
        torch.set_num_threads(before)
    page = None if output is None else str(_page(results, output))
    _print(results, rows(results), page, json)


def _layer(name: str, sparsity: float, batch: int, pattern: str, repeats: int) -> BenchResult | None:
    """The layer of this shape; None where `name` is not a shape."""
    from torch import nn

    from prunus.errors import BadInput
    from prunus.pruning import prune
    from prunus.sparse import bench

    linear, conv = _LINEAR.fullmatch(name), _CONV.fullmatch(name)
    shape = linear or conv
    sizes = [int(size) for size in shape.groups()] if shape else []
    if sizes and (min(sizes) < 1 or math.prod(sizes[: 2 if linear else 3]) > _LARGEST):
        raise BadInput(f"{name!r} cannot be timed: sizes must be at least 1, and weights at most {_LARGEST:,}.")
    if linear:
        layer = nn.Linear(int(linear[2]), int(linear[1]), bias=False)
        prune(layer, sparsity, pattern=pattern)
        others = ("csr", "scipy", "numba", "onnx", "onnx int8", "torch int8", "openvino")
        return bench.bench_linear(layer.weight.detach(), batch, peers=others, repeats=repeats)
    if conv:
        inputs, outputs, kernel, size = map(int, conv.groups())
        image = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False).requires_grad_(False)
        prune(image, sparsity, pattern=pattern)
        return bench.bench_conv(image, batch, (size, size), repeats=repeats)
    return None


def _model(
    name: str,
    sparsity: float,
    batch: int,
    pattern: str,
    exclude: tuple[str, ...],
    weights: Path | None,
    repeats: int,
    shape: tuple[str | None, int | None],
) -> BenchResult:
    import torch

    from prunus.cli._inputs import example_for
    from prunus.models import resolve
    from prunus.pruning import prune
    from prunus.sparse import compress
    from prunus.sparse.bench import bench_model

    model = resolve(name, str(weights) if weights else None).eval()
    example = example_for(model, batch, *shape)
    prune(model, sparsity, pattern=pattern, exclude=exclude, misfits="skip")
    fast = compress(model, example=example, fuse=True)
    integer = compress(model, example=example, fuse=True, activations=torch.int8)
    peers = ("onnx", "onnx int8", "onnx int8 static", "openvino", "openvino int8", "torch int8")
    return bench_model(model, fast, example, integer=integer, peers=peers, repeats=repeats)


def _page(results: list[BenchResult], path: Path) -> Path:
    """One page: time against the ideal line, and each layer under the roofline."""
    from prunus.charts import Chart, write_charts
    from prunus.sparse.machine import limits

    names = [f"{result.what}, {result.sparsity:.0%}" for result in results]
    candidates = list(dict.fromkeys(key for result in results for key in result.seconds))
    times = {
        name: [
            (float(place), 1e6 * result.seconds[name]) for place, result in enumerate(results) if name in result.seconds
        ]
        for name in candidates
    }
    ideal = [(float(place), 1e6 * result.ideal) for place, result in enumerate(results) if result.ideal is not None]
    charts = [
        Chart("Time of one call", "", "microseconds", {**times, **({"ideal": ideal} if ideal else {})}, log_y=True,
              dots=(*candidates, "ideal"), x_names=names)
    ]  # fmt: skip
    layers = [result for result in results if result.compute_limit is not None]
    if layers:
        machine, intensity = limits(), [2.0**power for power in range(-3, 9)]
        lines = {
            f"up to {size >> 10} KB": [(value, min(machine.flops, rate * value) / 1e9) for value in intensity]
            for size, rate in machine.bandwidth
        }
        flops = [result.notes["gflops"] for result in layers]
        work = [1e9 * value * result.seconds["ours"] / result.notes["bytes"] for value, result in zip(flops, layers)]
        lines["ours"] = list(zip(work, flops))
        title = "Roofline of this machine, one thread"
        label = "operations for each byte of weights"
        charts.append(Chart(title, label, "GFLOP/s", lines, log_x=True, log_y=True, dots=("ours",)))
    return write_charts(path, charts, "Dense and sparse, timed")


def _print(results: list[BenchResult], table: list[dict[str, Any]], page: str | None, json: bool) -> None:
    from prunus.cli.output import console, print_json, print_table

    if json:
        print_json({"results": results, "rows": table, "page": page})
        return
    for result, row in zip(results, table):
        lines = [
            [
                name,
                f"{1e6 * seconds:.1f}",
                f"{result.spread[name]:.1%}",
                f"{result.ratios[name]:.2f}",
                f"{result.errors[name]:.2%}" if name in result.errors else None,
            ]
            for name, seconds in sorted(result.seconds.items(), key=lambda item: item[1])
        ]
        title = f"{result.what}, realised sparsity {result.sparsity:.4f}"
        print_table(["candidate", "microseconds", "spread", "times ours", "error"], lines, title=title)
        if result.ideal is not None:
            console().print(
                f"ideal {row['ideal microseconds']} us for this sparsity; {row['GFLOP/s']} GFLOP/s, "
                f"{row['share of limit']:.0%} of the machine's limit\n"
            )
    if page:
        console().print(f"wrote {page}")

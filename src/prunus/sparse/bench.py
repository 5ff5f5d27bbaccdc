"""Ours beside its peers, for one layer or a whole model: interleaved runs, spread, and where the layer stands.

`ideal` is the line a sparse kernel is measured against (ledger B-0): (t_dense - t_overhead) (1 - s) + t_overhead, with
the overhead measured as the time of the same call on a layer without weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus import timing
from prunus.adapters import main_output
from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._modules import BalancedLinear, SparseConv2d
from prunus.sparse._packed import Packed, pack
from prunus.sparse._peers import KINDS, Run, find_peers, output_error
from prunus.sparse.machine import limits

INTEGER = "ours, integers"
SAMPLE = 1e-2  # seconds: long enough that weights lie where repeated calls leave them, not where another candidate did


@dataclass(frozen=True)
class BenchResult:
    """One layer (or model) at one shape: seconds and spread of every candidate, and the limits."""

    what: str
    sparsity: float
    seconds: dict[str, float]
    spread: dict[str, float]
    ratios: dict[str, float]
    ideal: float | None = None
    compute_limit: float | None = None
    bandwidth_limit: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)  # of each output against float32, where it was computed

    @property
    def best_int8(self) -> float | None:
        """How many times faster our integer products are than the fastest quantised dense candidate."""
        dense = [seconds for name, seconds in self.seconds.items() if name.startswith("int8")]
        return min(dense) / self.seconds[INTEGER] if dense and INTEGER in self.seconds else None

    @property
    def best_dense(self) -> float:
        """How many times faster ours is than the fastest dense candidate."""
        return min((ratio for name, ratio in self.ratios.items() if name.startswith("dense")), default=float("nan"))

    @property
    def share_of_limit(self) -> float | None:
        if self.compute_limit is None or self.bandwidth_limit is None:
            return None
        return max(self.compute_limit, self.bandwidth_limit) / self.seconds["ours"]


def time_candidates(candidates: dict[str, Run], repeats: int = 11) -> tuple[dict[str, float], ...]:
    """Median seconds, spread (half the interquartile range over the median), and times slower than "ours"."""
    with torch.no_grad():
        samples = timing.interleave(candidates, repeats, SAMPLE, timing.clock_for(torch.get_num_threads()))
    seconds = {name: timing.median(values) for name, values in samples.items()}
    spread = {name: timing.spread(values) for name, values in samples.items()}
    return seconds, spread, timing.ratios(samples, "ours")


def bench_linear(
    weight: Tensor,
    batch: int,
    *,
    peers: Sequence[str] = ("csr", "scipy", "onnx", "onnx int8", "torch int8"),
    repeats: int = 11,
) -> BenchResult:
    """A linear layer with zeros in its weight, for one batch size, in float32 and in integers."""
    rows, cols = weight.shape
    packed, x = pack(weight), torch.randn(batch, cols, generator=torch.Generator().manual_seed(0))
    layer, dense = BalancedLinear(packed), weight.detach().float().contiguous()
    candidates: dict[str, Run] = {"ours": lambda: layer(x), "dense": lambda: functional.linear(x, dense)}
    integer = BalancedLinear(pack(weight, None, torch.int8), activations=torch.int8)
    candidates[INTEGER] = lambda: integer(x)
    candidates |= _prepacked_linear(dense, x)
    candidates |= find_peers(_with_weight(nn.Linear(cols, rows, bias=False), dense), (x,), _engines(peers))
    if "csr" in peers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the format is in beta
            csr, columns = dense.to_sparse_csr(), x.T.contiguous()
        candidates["torch CSR"] = lambda: csr @ columns
    if "scipy" in peers:
        candidates |= _scipy(dense, x)
    if "numba" in peers:
        candidates |= _numba(dense, x)
    empty = BalancedLinear(pack(torch.zeros(rows, cols)))
    candidates["overhead"] = lambda: empty(x)
    return _result(f"linear {rows}x{cols} batch {batch}", packed, batch, candidates, weight, repeats)


def bench_conv(
    conv: nn.Conv2d,
    batch: int,
    size: tuple[int, int],
    *,
    peers: Sequence[str] = ("onnx", "onnx int8 static"),
    repeats: int = 11,
) -> BenchResult:
    """A convolution with zeros in its weight, for images of one size."""
    layer, geometry = SparseConv2d.from_dense(conv), ConvGeometry.of(conv)
    x = torch.randn(batch, conv.in_channels, *size, generator=torch.Generator().manual_seed(0))
    last = x.to(memory_format=torch.channels_last)
    weight, last_weight = conv.weight.detach(), conv.weight.detach().to(memory_format=torch.channels_last)
    options = (None, geometry.stride, geometry.padding, geometry.dilation, conv.groups)
    candidates: dict[str, Run] = {
        "ours": lambda: layer(x),
        "dense": lambda: functional.conv2d(x, weight, *options),
        "dense, channels last": lambda: functional.conv2d(last, last_weight, *options),
    }
    candidates |= _prepacked_conv(weight, last, geometry, conv.groups)
    candidates |= find_peers(conv, (x,), _engines(peers))
    zero = SparseConv2d(geometry.pack(torch.zeros_like(weight), conv.groups, 16, None), geometry)
    candidates["overhead"] = lambda: zero(x)
    height, width = geometry.output(*size)
    kernel = "x".join(map(str, geometry.kernel))
    what = f"conv {geometry.inputs}->{geometry.outputs} {kernel} on {size[0]}x{size[1]} batch {batch}"
    return _result(what, layer.packed, batch * height * width, candidates, weight, repeats)


class NamedInputs(nn.Module):
    """A model that takes its inputs by name, called by position; its answer is one tensor."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        return main_output(self.model(**dict(zip(self.names, inputs))))


def bench_model(
    dense: nn.Module,
    fast: nn.Module,
    x: Tensor | Mapping[str, Tensor],
    *,
    integer: nn.Module | None = None,
    peers: Sequence[str] = ("onnx", "onnx int8", "onnx int8 static"),
    repeats: int = 11,
) -> BenchResult:
    """A whole model against its compressed copy, and against one with integer products where given."""
    import copy

    what, inputs = type(dense).__name__, tuple(x.values()) if isinstance(x, Mapping) else (x,)
    if isinstance(x, Mapping):
        dense, fast = NamedInputs(dense, tuple(x)), NamedInputs(fast, tuple(x))
        integer = None if integer is None else NamedInputs(integer, tuple(x))
    candidates: dict[str, Run] = {"ours": lambda: fast(*inputs), "dense": lambda: dense(*inputs)}
    if inputs[0].dim() == 4:
        last = copy.deepcopy(dense).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        channels_last = inputs[0].to(memory_format=torch.channels_last)
        candidates["dense, channels last"] = lambda: last(channels_last, *inputs[1:])
    if integer is not None:
        candidates[INTEGER] = lambda: integer(*inputs)
    candidates |= find_peers(dense, inputs, _engines(peers))
    errors = _errors(candidates)
    seconds, spread, ratios = time_candidates(candidates, repeats)
    zeros = sum(int((p == 0).sum()) for p in dense.parameters() if p.dim() > 1)
    total = sum(p.numel() for p in dense.parameters() if p.dim() > 1)
    return BenchResult(
        f"{what} batch {inputs[0].shape[0]}", zeros / max(1, total), seconds, spread, ratios, errors=errors
    )


def _engines(peers: Sequence[str]) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if kind in peers)


def _with_weight(module: nn.Linear, weight: Tensor) -> nn.Linear:
    with torch.no_grad():
        module.weight.copy_(weight)
    return module.eval()


def _errors(candidates: dict[str, Run]) -> dict[str, float]:
    """The error of each candidate's output against torch's in float32; sparse formats give theirs transposed."""
    with torch.no_grad():
        expected = candidates["dense"]()
        found = {name: run() for name, run in candidates.items() if name.startswith(("ours", "dense", "int8"))}
        return {name: output_error(value, expected) for name, value in found.items()}


def _result(
    what: str, packed: Packed, samples: int, candidates: dict[str, Run], weight: Tensor, repeats: int
) -> BenchResult:
    errors = _errors(candidates)
    seconds, spread, ratios = time_candidates(candidates, repeats)
    overhead = seconds.pop("overhead")
    spread.pop("overhead")
    ratios.pop("overhead")
    sparsity = 1 - packed.kept / max(1, weight.numel())
    ideal = max(0.0, seconds["dense"] - overhead) * (1 - sparsity) + overhead
    machine = limits()
    compute = 2.0 * packed.kept * samples / machine.flops
    bandwidth = packed.nbytes / machine.bytes_per_second(packed.nbytes)
    notes = {"bank": packed.bank, "fill": packed.fill, "bytes": packed.nbytes, "overhead": overhead}
    notes["gflops"] = 2e-9 * packed.kept * samples / seconds["ours"]
    return BenchResult(what, sparsity, seconds, spread, ratios, ideal, compute, bandwidth, notes, errors)


def _prepacked_linear(weight: Tensor, x: Tensor) -> dict[str, Run]:
    """oneDNN and MKL with the weight packed in advance, where this torch has them."""
    found: dict[str, Run] = {}
    batch = x.shape[0]
    try:
        one = torch.ops.mkldnn._reorder_linear_weight(weight, batch)
        torch.ops.mkldnn._linear_pointwise(x, one, None, "none", [], "")
        found["dense, oneDNN packed"] = lambda: torch.ops.mkldnn._linear_pointwise(x, one, None, "none", [], "")
    except (RuntimeError, AttributeError):
        pass  # a build of torch without it: the other dense candidates stand
    try:
        two = torch.ops.mkl._mkl_reorder_linear_weight(weight, batch)
        torch.ops.mkl._mkl_linear(x, two, weight, None, batch)
        found["dense, MKL packed"] = lambda: torch.ops.mkl._mkl_linear(x, two, weight, None, batch)
    except (RuntimeError, AttributeError):
        pass  # likewise
    return found


def _prepacked_conv(weight: Tensor, x: Tensor, g: ConvGeometry, groups: int) -> dict[str, Run]:
    stride, padding, dilation = list(g.stride), list(g.padding), list(g.dilation)
    rest: tuple[Any, ...] = (None, padding, stride, dilation, groups, "none", [], "")
    try:
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, list(x.shape))
        torch.ops.mkldnn._convolution_pointwise(x, packed, *rest)
    except (RuntimeError, AttributeError):
        return {}
    return {"dense, oneDNN packed": lambda: torch.ops.mkldnn._convolution_pointwise(x, packed, *rest)}


def _scipy(weight: Tensor, x: Tensor) -> dict[str, Run]:
    import scipy.sparse

    matrix, columns = scipy.sparse.csr_array(weight.numpy()), x.T.contiguous().numpy()
    return {"SciPy CSR": lambda: matrix @ columns}


def _numba(weight: Tensor, x: Tensor) -> dict[str, Run]:
    """A plain row-by-row CSR product, compiled by numba where it is installed."""
    try:
        import numba
    except ImportError:
        return {}
    import numpy
    import scipy.sparse

    @numba.njit(fastmath=True)
    def product(data: Any, indices: Any, starts: Any, columns: Any, out: Any) -> None:
        for row in range(len(starts) - 1):
            out[row, :] = 0.0
            for k in range(starts[row], starts[row + 1]):
                value, column = data[k], indices[k]
                for n in range(columns.shape[1]):
                    out[row, n] += value * columns[column, n]

    matrix, columns = scipy.sparse.csr_array(weight.numpy()), x.T.contiguous().numpy()
    out = numpy.empty((weight.shape[0], x.shape[0]), numpy.float32)
    return {"numba CSR": lambda: product(matrix.data, matrix.indices, matrix.indptr, columns, out)}


def rows(results: Iterable[BenchResult]) -> list[dict[str, Any]]:
    """Flat records: one for each result, ratios against every peer."""
    table = []
    for result in results:
        row: dict[str, Any] = {"what": result.what, "sparsity": round(result.sparsity, 4)}
        row["microseconds"] = round(1e6 * result.seconds["ours"], 2)
        row["spread"] = round(result.spread["ours"], 3)
        row |= {f"vs {name}": round(ratio, 2) for name, ratio in result.ratios.items() if name != "ours"}
        row["vs best dense"] = round(result.best_dense, 2)
        if result.best_int8 is not None:
            row["integers vs best int8"] = round(result.best_int8, 2)
        shown = {name: error for name, error in result.errors.items() if name == INTEGER or name.startswith("int8")}
        row |= {f"error, {name}": round(error, 4) for name, error in shown.items()}
        if result.ideal is not None and result.share_of_limit is not None:
            row["ideal microseconds"] = round(1e6 * result.ideal, 2)
            row["share of limit"] = round(result.share_of_limit, 3)
            row["GFLOP/s"] = round(result.notes["gflops"], 1)
        table.append(row)
    return table

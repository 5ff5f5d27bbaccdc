"""Ours beside its peers, for one layer or a whole model: interleaved runs, spread, and where the layer stands.

`ideal` is the line a sparse kernel is measured against (ledger B-0): (t_dense - t_overhead) (1 - s) + t_overhead, with
the overhead measured as the time of the same call on a layer without weights.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.sparse._geometry import Geometry
from prunus.sparse._machine import limits
from prunus.sparse._measure import samples_in_turn
from prunus.sparse._modules import BalancedLinear, SparseConv2d
from prunus.sparse._packed import Packed, pack

Run = Callable[[], Any]
SAMPLE = 1e-2  # seconds: long enough that weights lie where repeated calls leave them, not where another candidate did


@dataclass(frozen=True)
class Result:
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
        samples = dict(zip(candidates, samples_in_turn(list(candidates.values()), repeats, SAMPLE)))
    median = {name: statistics.median(values) for name, values in samples.items()}
    spread = {}
    for name, values in samples.items():
        low, _, high = statistics.quantiles(values, n=4)
        spread[name] = (high - low) / 2 / median[name]
    ratios = {
        name: statistics.median(other / mine for other, mine in zip(values, samples["ours"]))
        for name, values in samples.items()
    }
    return median, spread, ratios


def bench_linear(
    weight: Tensor, batch: int, *, peers: Sequence[str] = ("csr", "scipy", "onnx"), repeats: int = 11
) -> Result:
    """A linear layer with zeros in its weight, for one batch size."""
    rows, cols = weight.shape
    packed, x = pack(weight), torch.randn(batch, cols, generator=torch.Generator().manual_seed(0))
    layer, dense = BalancedLinear(packed), weight.detach().float().contiguous()
    candidates: dict[str, Run] = {"ours": lambda: layer(x), "dense": lambda: functional.linear(x, dense)}
    candidates |= _prepacked_linear(dense, x)
    if "onnx" in peers:
        candidates |= _onnx(nn.Linear(cols, rows, bias=False), dense, x)
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


def bench_conv(conv: nn.Conv2d, batch: int, size: tuple[int, int], *, onnx: bool = True, repeats: int = 11) -> Result:
    """A convolution with zeros in its weight, for images of one size."""
    layer, geometry = SparseConv2d.from_dense(conv), Geometry.of(conv)
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
    if onnx:
        candidates |= _onnx(conv, weight, x)
    zero = SparseConv2d(geometry.pack(torch.zeros_like(weight), conv.groups, 16, None), geometry)
    candidates["overhead"] = lambda: zero(x)
    height, width = geometry.output(*size)
    kernel = "x".join(map(str, geometry.kernel))
    what = f"conv {geometry.inputs}->{geometry.outputs} {kernel} on {size[0]}x{size[1]} batch {batch}"
    return _result(what, layer.packed, batch * height * width, candidates, weight, repeats)


def bench_model(dense: nn.Module, fast: nn.Module, x: Tensor, *, onnx: bool = True, repeats: int = 11) -> Result:
    """A whole model against its compressed copy."""
    import copy

    last = copy.deepcopy(dense).to(memory_format=torch.channels_last) if x.dim() == 4 else None  # type: ignore[call-overload]
    candidates: dict[str, Run] = {"ours": lambda: fast(x), "dense": lambda: dense(x)}
    if last is not None:
        channels_last = x.to(memory_format=torch.channels_last)
        candidates["dense, channels last"] = lambda: last(channels_last)
    if onnx:
        candidates |= _onnx(dense, None, x)
    seconds, spread, ratios = time_candidates(candidates, repeats)
    zeros = sum(int((p == 0).sum()) for p in dense.parameters() if p.dim() > 1)
    total = sum(p.numel() for p in dense.parameters() if p.dim() > 1)
    return Result(f"{type(dense).__name__} batch {x.shape[0]}", zeros / max(1, total), seconds, spread, ratios)


def _result(
    what: str, packed: Packed, samples: int, candidates: dict[str, Run], weight: Tensor, repeats: int
) -> Result:
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
    return Result(what, sparsity, seconds, spread, ratios, ideal, compute, bandwidth, notes)


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


def _prepacked_conv(weight: Tensor, x: Tensor, g: Geometry, groups: int) -> dict[str, Run]:
    stride, padding, dilation = list(g.stride), list(g.padding), list(g.dilation)
    rest: tuple[Any, ...] = (None, padding, stride, dilation, groups, "none", [], "")
    try:
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, list(x.shape))
        torch.ops.mkldnn._convolution_pointwise(x, packed, *rest)
    except (RuntimeError, AttributeError):
        return {}
    return {"dense, oneDNN packed": lambda: torch.ops.mkldnn._convolution_pointwise(x, packed, *rest)}


def _onnx(module: nn.Module, weight: Tensor | None, x: Tensor) -> dict[str, Run]:
    """ONNX Runtime on the dense model, where it is installed."""
    try:
        import onnxruntime

        from prunus.sparse._onnx import to_onnx
    except ImportError:
        return {}
    import copy

    dense = copy.deepcopy(module).eval()
    if weight is not None:
        with torch.no_grad():
            dense.weight.copy_(weight)  # type: ignore[union-attr,operator]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(to_onnx(dense, x), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return {"dense, ONNX Runtime": lambda: session.run(None, feed)}


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


def rows(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Flat records: one for each result, ratios against every peer."""
    table = []
    for result in results:
        row: dict[str, Any] = {"what": result.what, "sparsity": round(result.sparsity, 4)}
        row["microseconds"] = round(1e6 * result.seconds["ours"], 2)
        row["spread"] = round(result.spread["ours"], 3)
        row |= {f"vs {name}": round(ratio, 2) for name, ratio in result.ratios.items() if name != "ours"}
        row["vs best dense"] = round(result.best_dense, 2)
        if result.ideal is not None and result.share_of_limit is not None:
            row["ideal microseconds"] = round(1e6 * result.ideal, 2)
            row["share of limit"] = round(result.share_of_limit, 3)
            row["GFLOP/s"] = round(result.notes["gflops"], 1)
        table.append(row)
    return table

"""`prunus.sparse.explain`: what each layer of a compressed model is, weighs and costs."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from prunus.sparse._measure import Timing
from prunus.sparse._modules import PackedModule, SparseConv2d
from prunus.sparse._packed import kernels
from prunus.sparse._plan import StoredLayer, plan_of
from prunus.sparse.machine import limits


def explain(model: nn.Module) -> list[StoredLayer]:
    """One row for each layer: format, kernel, bytes, measured time against dense, and the share of the limit reached.

    Times are those of one thread count and the example's shapes, as measured when the model was compressed. The limit
    is the roofline: the kept multiply-adds at the machine's rate, or the packed bytes at its bandwidth, whichever takes
    longer. Where values or inputs have fewer bits than float32, `error` is the size of the error of the layer's output
    over that of the output, on the example and with the layer's own inputs.

    Args:
        model: as `prunus.compress` returned it.

    Returns:
        The rows.

    Example:
        >>> model = prunus.models.make("fc:64-64-10", seed=0)
        >>> fast = prunus.compress(model, prunus.find_masks(model, 0.9), select="always")
        >>> [row.layer for row in prunus.sparse.explain(fast)]
        ['layers.0', 'layers.1']
    """
    return list(plan_of(model).rows)


def make_row(
    name: str,
    dense: nn.Module,
    module: nn.Module | None,
    timing: Timing | None,
    error: float | None = None,
    why: str = "",
) -> StoredLayer:
    """The row of a layer that was replaced, or (module None) of one that stayed."""
    weights = [parameter for parameter in dense.parameters() if parameter.dim() > 1]
    kept = sum(int(weight.count_nonzero()) for weight in weights)
    zeros = 1 - kept / max(1, sum(weight.numel() for weight in weights))
    size = sum(parameter.nbytes for parameter in dense.parameters())
    if module is not None and not isinstance(module, PackedModule):
        parts = [part for part in module.modules() if isinstance(part, PackedModule)]
        kind = str(parts[0].values.dtype).removeprefix("torch.")
        bytes_now = sum(tensor.nbytes for tensor in module.state_dict().values())
        row = (
            name,
            f"{type(module).__name__}, bank {parts[0].bank}, {kind}",
            "float32 inside" if hasattr(module, "inner") else "several products",
            zeros,
            bytes_now,
            size,
        )
        times = () if timing is None else (timing.shape, 1e6 * timing.ours, 1e6 * timing.dense, timing.gain)
        return replace(StoredLayer(*row, *times), error=error)
    packed = module
    if packed is None:
        times = () if timing is None else (timing.shape, 1e6 * timing.ours, 1e6 * timing.dense, timing.gain)
        return replace(StoredLayer(name, "dense", "torch", zeros, size, size, *times), why=why)
    kind = str(packed.values.dtype).removeprefix("torch.")
    kind += " x int8" if packed.integer else ""
    bytes_now = packed.packed.nbytes + (0 if packed.bias is None else packed.bias.nbytes)
    row = (name, f"bank {packed.bank}, {kind}", _kernel(packed, timing), zeros, bytes_now, size)
    if timing is None:
        return StoredLayer(*row, error=error)
    rate = 1.0 if packed.integer else 2.0  # byte products run at twice the rate of multiply-adds
    share = limits().seconds(rate * packed.packed.kept * _samples(packed, timing), bytes_now) / timing.ours
    return StoredLayer(*row, timing.shape, 1e6 * timing.ours, 1e6 * timing.dense, timing.gain, share, error)


def _samples(packed: PackedModule, timing: Timing) -> int:
    """How often each weight is used for the timed input."""
    if isinstance(packed, SparseConv2d):
        height, width = packed.geometry.output(*timing.shape[2:])
        return timing.shape[0] * height * width
    count = 1
    for size in timing.shape[:-1]:
        count *= size
    return count


def _kernel(packed: PackedModule, timing: Timing | None) -> str:
    module = kernels()
    if module is None:
        return "torch on the dense matrix"
    if packed.integer:
        return f"{module.integers()} integers"
    if isinstance(packed, SparseConv2d):
        return f"{module.level()} pixels"
    samples = None if timing is None else _samples(packed, timing)
    small = samples is not None and packed.packed.layer.permutes(samples)
    return f"{module.level()} {'permute' if small else 'tile'}"

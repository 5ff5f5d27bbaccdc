"""Seconds as a cost: what each layer takes at several widths, measured on this machine.

Layers of the same make are measured once, on a grid of input and output widths; between them times are interpolated.
What the layers do not explain (norms, activations, the code around them) shrinks with the activations. That is a
forecast; `shrink` measures the smaller model as a whole and aims again until the time is what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from prunus import timing
from prunus.layers import is_conv1d
from prunus.structure._call import Example, outputs
from prunus.structure._labels import Array
from prunus.structure._walk import Product
from prunus.structure.costs import Cost, full, kept_shares
from prunus.structure.groups import Coupling

_GRID = np.array([0.25, 0.5, 1.0])
_MULTIPLES = (1, 2, 4, 8, 16)
_TOLERANCE = 1.05  # a finer multiple is taken if its units cost at most this much more
Maker = Callable[[int, int], Callable[[], Any]]


def seconds(coupling: Coupling, model: nn.Module, example: Example) -> tuple[Cost, int]:
    """(forecast of the seconds of one call, the multiple of widths that is fastest on this machine)."""
    products = [product for product in coupling.walk.products if product.multiply_adds > 0]
    tables = _tables(model, products)
    by_count = sum(table[-1, -1] for table in tables if table is not None)
    explained = sum(p.multiply_adds for p, table in zip(products, tables) if table is not None)
    rate = by_count / max(explained, 1)  # for products without a table, such as those of attention
    inner = kept_shares(
        coupling, [[atoms] if (atoms := _along(coupling, p, p.inputs)) is not None else [] for p in products]
    )
    outer = kept_shares(
        coupling, [[atoms] if (atoms := _along(coupling, p, p.outputs)) is not None else [] for p in products]
    )
    others = kept_shares(coupling, [p.blocks for p in products])
    sizes = np.array([np.prod(labels.shape) for _, labels in coupling.walk.values], dtype=float)
    activations = kept_shares(coupling, [[b.atoms for b in labels.blocks] for _, labels in coupling.walk.values])
    measured = np.array([table is not None for table in tables])
    table = np.stack([np.full((3, 3), 0.0) if table is None else table for table in tables])
    plain = np.array([rate * p.multiply_adds for p in products])

    def layers(counts: Sequence[int]) -> float:
        looked_up = _interpolate(table, _one(inner(counts), len(products)), _one(outer(counts), len(products)))
        return float(np.where(measured, looked_up, plain * others(counts).prod(0)).sum())

    whole = timing.median(_samples({"": lambda: outputs(model, example)})[""])
    rest = max(whole - layers(full(coupling)), 0.0)

    def cost(counts: Sequence[int]) -> float:
        return layers(counts) + rest * float((sizes * activations(counts).prod(0)).sum() / sizes.sum())

    smallest = min((len(group) for group in coupling.groups), default=1)
    return cost, _liked(model, products, smallest)


def share_of_time(model: nn.Module, small: nn.Module, example: Example, repeats: int = 15) -> float:
    """Seconds of the smaller model over those of the original, measured in turns."""
    flags = [(module, module.training) for each in (model, small) for module in each.modules()]
    model.eval(), small.eval()
    try:
        runs = {"model": lambda: outputs(model, example), "small": lambda: outputs(small, example)}
        return timing.ratios(_samples(runs, repeats=repeats), "model")["small"]
    finally:
        for module, flag in flags:
            module.training = flag


def _samples(runs: dict[str, Callable[[], Any]], repeats: int = 7) -> dict[str, list[float]]:
    with torch.no_grad():
        return timing.interleave(runs, repeats, 2e-3, timing.clock_for(torch.get_num_threads()))


def _one(shares: Array, count: int) -> Array:
    return shares[0] if len(shares) else np.ones(count)


def _along(coupling: Coupling, product: Product, dim: int) -> Array | None:
    """The atoms of one dimension of a product's weight."""
    labels = coupling.walk.tensors.get(product.weight or "")
    for block in labels.blocks if labels is not None else ():
        if block.dims == (dim,):
            return block.atoms
    return None


def _interpolate(table: Array, inner: Array, outer: Array) -> Array:
    """Bilinear between the widths of the grid, straight on below the smallest; (rows, 3, 3) -> (rows,)."""
    rows = np.arange(len(table))
    i, j = (inner > _GRID[1]).astype(int), (outer > _GRID[1]).astype(int)
    a = (inner - _GRID[i]) / (_GRID[i + 1] - _GRID[i])
    b = (outer - _GRID[j]) / (_GRID[j + 1] - _GRID[j])
    low = table[rows, i, j] * (1 - b) + table[rows, i, j + 1] * b
    high = table[rows, i + 1, j] * (1 - b) + table[rows, i + 1, j + 1] * b
    found: Array = np.maximum(low * (1 - a) + high * a, 0.0)
    return found


def _tables(model: nn.Module, products: Sequence[Product]) -> list[Array | None]:
    """Seconds of each product at the widths of the grid; None where the layer is not of torch's plain ones."""
    found: dict[Any, Array] = {}
    tables: list[Array | None] = []
    for product in products:
        made = _maker(model, product)
        if made is None:
            tables.append(None)
            continue
        key, maker, inputs, outs = made
        if key not in found:
            found[key] = _measured(maker, inputs, outs)
        tables.append(found[key])
    return tables


def _measured(maker: Maker, inputs: int, outs: int) -> Array:
    runs = {
        f"{i} {j}": maker(_width(inputs, a), _width(outs, b)) for i, a in enumerate(_GRID) for j, b in enumerate(_GRID)
    }
    samples = _samples(runs, repeats=5)
    return np.array([[timing.median(samples[f"{i} {j}"]) for j in range(3)] for i in range(3)])


def _width(size: int, share: float) -> int:
    """A share of a width, a multiple of eight where there are enough."""
    wanted = max(1, round(size * share))
    return wanted // 8 * 8 if wanted >= 16 else wanted


def _maker(model: nn.Module, product: Product) -> tuple[Any, Maker, int, int] | None:
    """(what makes two layers alike, a function of widths that gives a run, inputs, outputs)."""
    name = (product.weight or "").rpartition(".")[0]
    given: Any = product.site.node.args[0] if product.site.node.args else None
    if not name or not hasattr(given, "shape"):
        return None
    module, shape = model.get_submodule(name), tuple(given.shape)
    if isinstance(module, nn.Linear) or is_conv1d(module):
        outs, inputs = product_sizes(module)
        bias = module.bias is not None

        def linear(i: int, o: int) -> Callable[[], Any]:
            layer, x = nn.Linear(i, o, bias=bias).eval(), torch.randn(*shape[:-1], i)
            return lambda: layer(x)

        return ("linear", inputs, outs, bias, shape), linear, inputs, outs
    if not isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return None
    kind: Any
    kind = next(each for each in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(module, each))
    groups = module.groups
    settings: dict[str, Any] = {"stride": module.stride, "padding": module.padding, "dilation": module.dilation}

    def convolution(i: int, o: int) -> Callable[[], Any]:
        if groups > 1:  # its channels leave with their groups
            per = module.in_channels // groups, module.out_channels // groups
            count = max(1, round(groups * o / module.out_channels))
            i, o, many = per[0] * count, per[1] * count, count
        else:
            many = 1
        layer = kind(i, o, module.kernel_size, groups=many, bias=module.bias is not None, **settings).eval()
        x = torch.randn(shape[0], i, *shape[2:])
        return lambda: layer(x)

    key = (kind, module.in_channels, module.out_channels, groups, module.kernel_size, shape, str(settings))
    return key, convolution, module.in_channels, module.out_channels


def product_sizes(module: nn.Module) -> tuple[int, int]:
    """(outputs, inputs) of a linear layer, of torch's or of the kind of GPT-2."""
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    outs, inputs = weight.shape if isinstance(module, nn.Linear) else weight.shape[::-1]
    return int(outs), int(inputs)


def _liked(model: nn.Module, products: Sequence[Product], smallest: int) -> int:
    """The smallest multiple whose widths cost hardly more for each unit than those of larger multiples."""
    most = [m for m in _MULTIPLES if m <= max(1, smallest // 4)]
    for product in sorted(products, key=lambda each: -each.multiply_adds):
        made = _maker(model, product)
        if made is None or len(most) == 1:
            continue
        _, maker, inputs, outs = made
        widths = {
            m: max(1, round(0.6 * outs / m) // 2 * 2 + 1) * m for m in most
        }  # odd multiples: no finer one can be better
        runs = {str(m): maker(inputs, width) for m, width in widths.items() if width <= outs}
        samples = _samples(runs, repeats=9)
        each = {m: timing.median(samples[str(m)]) / widths[m] for m in most if str(m) in runs}
        return min(m for m, value in each.items() if value <= _TOLERANCE * min(each.values()))
    return 1

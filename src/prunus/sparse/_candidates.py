"""Which layers of a model can be replaced, by what, and why the others stay dense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from prunus import graph
from prunus.errors import BadInput, first_line
from prunus.layers import EMBEDDING, all_weights, is_conv1d
from prunus.sparse._embeddings import narrowed, pack_table
from prunus.sparse._foreign import Cast, PaddedConv2d, SparseAttention
from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._graph import folded
from prunus.sparse._modules import BalancedLinear, SparseConv2d
from prunus.sparse._packed import pack
from prunus.sparse._recurrent import SparseGRU, SparseGRUCell, SparseLSTM, SparseLSTMCell

EXPANSION = 1 << 26  # weights of a grouped convolution written without groups
RECURRENT = (nn.LSTM, nn.LSTMCell, nn.GRU, nn.GRUCell)
NARROW = (torch.bfloat16, torch.float16)


@dataclass
class Candidates:
    """`layers` that can be replaced; `left`: others that hold weights, with the reason why they cannot.

    `convolutions` are layers whose own forward pads and convolves: (left, right, top, bottom) and the sizes. `heads`
    are linear layers whose weight is a table of embeddings in int8: that table by the layer's name.
    """

    layers: dict[str, nn.Module] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    convolutions: dict[str, tuple[tuple[int, int, int, int], ConvGeometry]] = field(default_factory=dict)
    heads: dict[str, nn.Parameter] = field(default_factory=dict)


def depthwise(layer: nn.Module) -> bool:
    """Whether every output of a convolution reads one channel, its own; such layers have kernels of their own."""
    return isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels == layer.out_channels > 1


def find(model: nn.Module, rounded: bool = False) -> Candidates:
    """All layers of kinds that can be packed, whatever their weights; `rounded`: tables of embeddings are in int8."""
    found = Candidates()
    holders = [module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    # The parameters themselves: a weight that is computed when asked for is another tensor each time.
    tables = {id(module._parameters.get("weight")) for module in holders} - {id(None)}
    changing = {id(module._parameters.get("weight")) for module in holders if module.max_norm is not None}
    attention = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    inside = {id(child) for module in attention for child in module.modules() if child is not module}
    for name, module in model.named_modules():
        kind = _kind(module)
        if kind is None or id(module) in inside:
            continue
        own = module._parameters.get("weight") if isinstance(module, nn.Linear) else None
        head = own is not None and rounded and id(own) in tables - changing
        reason = _reason(module, kind, set() if head else tables, name)
        if reason:
            found.left[name] = reason
            continue
        found.layers[name] = module
        if own is not None and head:
            found.heads[name] = own
    _name_others(model, found, inside)
    return found


def _name_others(model: nn.Module, found: Candidates, inside: set[int]) -> None:
    """Layers of kinds that are pruned and have no packed form stay dense, and are named."""
    known = {id(model.get_submodule(name)) for name in (*found.layers, *found.left)} | inside
    others = {id(weight.module) for weight in all_weights(model).values() if weight.kind != EMBEDDING} - known
    for name, module in model.named_modules():
        if id(module) in others:
            found.left[name] = f"there is no packed form of {type(module).__name__}"


def _kind(module: nn.Module) -> type | None:
    """The kind of layer that `module` is, or is made from."""
    for kind in (nn.Linear, nn.Conv2d, *RECURRENT, nn.MultiheadAttention):
        if isinstance(module, kind):
            return kind
    return nn.Linear if is_conv1d(module) else None


def _reason(module: nn.Module, kind: type, tables: set[int], name: str) -> str:
    """Why this layer has to stay dense; empty where it need not."""
    kinds = {parameter.dtype for parameter in module.parameters()} - {torch.float32}
    strange = kinds - set(NARROW)
    if strange:
        raise BadInput(f"Layer {name!r} holds {strange.pop()}; sparse layers run float32: use model.float().")
    if kinds and kind not in (nn.Linear, nn.Conv2d):
        return f"holds {kinds.pop()}, which only linear layers and convolutions may"
    if any(id(parameter) in tables for parameter in module.parameters()):
        return "its weight is that of an embedding"
    if module._forward_hooks or module._forward_pre_hooks:
        return "it has forward hooks"
    large = isinstance(module, nn.Conv2d) and module.weight.numel() * module.groups > EXPANSION and module.groups > 1
    if large and not depthwise(module):
        return "too many groups"
    if isinstance(module, nn.LSTM) and module.proj_size:
        return "an LSTM with projections"
    if isinstance(module, nn.MultiheadAttention) and (module.bias_k is not None or module.add_zero_attn):
        return "attention with an added key"
    if own_forward(module, kind):
        return "" if kind in (nn.Linear, nn.Conv2d) else "its class has a forward of its own"
    if isinstance(module, nn.Conv2d):
        try:
            ConvGeometry.of(module)
        except BadInput as error:
            return first_line(error).rstrip(".")
    return ""


def own_forward(module: nn.Module, kind: type) -> bool:
    """Whether the module's class computes in a way of its own."""
    if is_conv1d(module):
        return type(module).__name__ != "Conv1D"
    plain: Any = kind
    own = type(module).forward is not plain.forward or "forward" in vars(module)
    return own or (kind is nn.Conv2d and type(module)._conv_forward is not nn.Conv2d._conv_forward)  # type: ignore[attr-defined]


def read_own_forwards(found: Candidates, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Read what layers with a forward of their own compute; those that do something else are left out."""
    for name, module in list(found.layers.items()):
        kind = _kind(module)
        if kind is None or not own_forward(module, kind):
            continue
        reason = _read(name, module, found, shapes.get(name))
        if reason:
            del found.layers[name]
            found.left[name] = reason


def _read(name: str, module: nn.Module, found: Candidates, shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "its class has a forward of its own, which only an example shows"
    dtype = next(module.parameters()).dtype
    sizes = [shape, (*shape[:-2], shape[-2] + 1, shape[-1] + 2)] if isinstance(module, nn.Conv2d) else [shape]
    seen = []
    try:
        for size in sizes:  # padding that depends on the size shows in the second reading
            seen.append(_one_product(graph.read(module, torch.zeros(size, dtype=dtype), level="exported")))
    except BadInput:
        return "its class has a forward of its own that cannot be read"
    if any(entry is None for entry in seen):
        return "its class has a forward of its own that is more than one product"
    if any(entry != seen[0] for entry in seen):
        return "its class pads by the size of the input"
    if seen[0][0] != (module.bias is not None):
        return "its class has a forward of its own that leaves out its bias"
    if not isinstance(module, nn.Conv2d):
        return ""
    _, pad, stride, padding, dilation, groups = seen[0]
    if groups != module.groups:
        return "its class convolves in other groups"
    kernel = (int(module.weight.shape[2]), int(module.weight.shape[3]))
    if pad[0] == pad[1] and pad[2] == pad[3]:  # the same on both sides: the convolution does it itself
        pad, padding = (0, 0, 0, 0), (padding[0] + pad[2], padding[1] + pad[0])
    channels = int(module.weight.shape[1]) * groups
    found.convolutions[name] = (
        pad,
        ConvGeometry(channels, int(module.weight.shape[0]), kernel, stride, padding, dilation),
    )
    return ""


def _one_product(read: graph.Graph) -> Any:
    """What the graph computes where it is one product with the module's weight, perhaps after padding with zeros.

    First comes whether the bias is added; of a convolution follow padding, stride, padding inside, dilation, groups.
    """
    calls = [node for node in read.calls if node.op != "aten.sym_size.int"]
    if calls and calls[0].op in _TURNS:
        return _written_out(calls, read)
    pad = (0, 0, 0, 0)
    if len(calls) == 2 and calls[0].op in ("aten.pad.default", "aten.constant_pad_nd.default"):
        first = calls.pop(0)
        sides = [int(side) for side in first.argument(1, "pad", [])]
        plain = "constant_pad" in first.op or first.argument(2, "mode", "constant") == "constant"
        value = first.argument(2 if "constant_pad" in first.op else 3, "value", 0) or 0
        if not plain or value != 0 or len(sides) != 4 or min(sides) < 0 or first.args[0] is not read.inputs[0]:
            return None
        pad = (sides[0], sides[1], sides[2], sides[3])
    elif len(calls) == 1 and calls[0].args[0] is not read.inputs[0]:
        return None
    if len(calls) != 1 or read.outputs[0] is not calls[0]:
        return None
    call = calls[0]
    weight, bias = call.argument(1, "weight"), call.argument(2, "bias")
    if getattr(weight, "target", "") != "weight" or (bias is not None and getattr(bias, "target", "") != "bias"):
        return None
    if call.op == "aten.linear.default":
        return (bias is not None,)
    if call.op not in ("aten.conv2d.default", "aten.conv2d.padding") or isinstance(call.argument(4, "padding"), str):
        return None
    stride, padding, dilation = (
        _pair(call.argument(place, word, default))
        for place, word, default in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))
    )
    return bias is not None, pad, stride, padding, dilation, int(call.argument(6, "groups", 1))


_TURNS = ("aten.numpy_T.default", "aten.t.default", "aten.transpose.int", "aten.permute.default")
_SWAPPED = {"aten.transpose.int": [0, 1]}  # either order turns a matrix; of the others only 1, 0


def _written_out(calls: list[graph.Node], read: graph.Graph) -> Any:
    """The same for x @ weight.T, perhaps plus the bias."""
    if len(calls) not in (2, 3) or calls[1].op != "aten.matmul.default":
        return None
    turned, product, *rest = calls
    given = turned.args[1] if "permute" in turned.op else turned.args[1:] or (1, 0)
    sides = [int(side) % 2 for side in given]
    if getattr(turned.args[0], "target", "") != "weight" or sides not in ([1, 0], _SWAPPED.get(turned.op)):
        return None
    if product.args[0] is not read.inputs[0] or product.args[1] is not turned or read.outputs[0] is not calls[-1]:
        return None
    if not rest:
        return (False,)
    parts = [part for part in rest[0].args if part is not product]
    plain = rest[0].op == "aten.add.Tensor" and len(rest[0].args) == 2 and rest[0].argument(2, "alpha", 1) == 1
    return (True,) if plain and len(parts) == 1 and getattr(parts[0], "target", "") == "bias" else None


def _pair(value: Any) -> tuple[int, int]:
    sides = list(value) if isinstance(value, (list, tuple)) else [value]
    return int(sides[0]), int(sides[-1])


def replacement(
    name: str, model: nn.Module, found: Candidates, norm: nn.Module | None, dtype: torch.dtype | None, **inputs: Any
) -> nn.Module:
    """The packed layer that computes what the layer computes (and its batch norm); refuses what cannot be packed.

    `inputs` are further arguments for linear layers and convolutions: `activations`, `span`, and for linear layers
    `permutation`.
    """
    layer = found.layers[name]
    border = next(layer.parameters()).dtype
    if dtype is None and border == torch.bfloat16:
        dtype = torch.bfloat16  # exact, and half the space
    try:
        new = _packed(name, layer, found, norm, dtype, inputs)
    except BadInput as error:
        raise BadInput(f"Layer {name!r} cannot be packed. {error}") from error
    return Cast(new, border) if border in NARROW else new


def _packed(
    name: str, layer: nn.Module, found: Candidates, norm: nn.Module | None, dtype: torch.dtype | None, inputs: Any
) -> nn.Module:
    if isinstance(layer, nn.MultiheadAttention):
        return SparseAttention.from_dense(layer, dtype)
    for dense, sparse in zip(RECURRENT, (SparseLSTM, SparseLSTMCell, SparseGRU, SparseGRUCell)):
        if isinstance(layer, dense):
            return sparse.from_dense(layer, dtype)  # type: ignore[attr-defined, no-any-return]
    if not isinstance(layer, nn.Conv2d):
        if name in found.heads:
            table = pack_table(narrowed(found.heads[name].detach(), torch.int8))
            return BalancedLinear(table, _float(layer.bias), **inputs | {"permutation": None})
        weight: Tensor = layer.weight.detach().float()  # type: ignore[operator]
        order = inputs.get("permutation")
        weight = weight.t().contiguous() if is_conv1d(layer) else weight
        packed = pack(weight if order is None else weight[:, order], None, dtype)
        return BalancedLinear(packed, _float(layer.bias), **inputs)
    pad, geometry = found.convolutions.get(name, ((0, 0, 0, 0), None))
    geometry = ConvGeometry.of(layer) if geometry is None else geometry
    both = (layer.weight.detach().float(), _float(layer.bias))
    both = folded(layer, norm) if isinstance(norm, nn.BatchNorm2d) else both
    conv = SparseConv2d(geometry.pack(both[0], layer.groups, None, dtype), geometry, both[1], **inputs)
    return PaddedConv2d(conv, pad) if any(pad) else conv


def _float(bias: Any) -> Tensor | None:
    return None if bias is None else bias.detach().float()


def usual_shape(layer: nn.Module) -> tuple[int, ...]:
    """What a layer is timed on without an example: a batch of 8, 16 x 16 pixels or 16 steps."""
    if isinstance(layer, nn.Conv2d):
        return (1, layer.in_channels, 16, 16)
    if isinstance(layer, (nn.LSTM, nn.GRU)):
        return (8, 16, layer.input_size) if layer.batch_first else (16, 8, layer.input_size)
    if isinstance(layer, (nn.LSTMCell, nn.GRUCell)):
        return (8, layer.input_size)
    if isinstance(layer, nn.MultiheadAttention):
        return (8, 16, layer.embed_dim)
    width = layer.weight.shape[0] if is_conv1d(layer) else layer.weight.shape[1]  # type: ignore[index]
    return (8, int(width))

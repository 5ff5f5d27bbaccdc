"""Removing channels that are zero for every input, together with what reads them.

A channel whose filter is all zeros carries a constant. The constant is followed through batch norms, ReLUs, pools,
means and sums; where every layer that reads it sees exactly 0 the channel goes, in all branches of a sum at once, and
the result does not change. Channels whose constant is not 0 when it is read stay (with padding they are no bias), as do
those that something unknown reads: an operation not listed here, a grouped convolution, the model's output.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from prunus.errors import BadInput
from prunus.sparse._graph import traces

_PASS = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_PASS_FUNCTIONS = (functional.dropout, functional.max_pool2d, functional.adaptive_avg_pool2d)
_RELU_FUNCTIONS = (functional.relu, torch.relu, torch.relu_)
_ADD_FUNCTIONS = (operator.add, operator.iadd, torch.add)


@dataclass(eq=False)
class _Space:
    """Channels that must stay or go together: one number for each value that flows through the same dimension."""

    size: int
    removable: Tensor
    producers: list[str] = field(default_factory=list)
    norms: list[str] = field(default_factory=list)
    readers: list[tuple[str, int]] = field(default_factory=list)  # layer, and inputs it has for each channel
    parent: _Space | None = None

    def root(self) -> _Space:
        return self if self.parent is None else self.parent.root()

    def freeze(self) -> None:
        self.root().removable.zero_()

    def join(self, other: _Space) -> None:
        mine, theirs = self.root(), other.root()
        if mine is theirs:
            return
        mine.removable &= theirs.removable
        for name in ("producers", "norms", "readers"):
            getattr(mine, name).extend(getattr(theirs, name))
        theirs.parent = mine


@dataclass(frozen=True, eq=False)
class _Value:
    """What is known of a node: its space, the constant of each channel (NaN where it varies), and how it is laid out.

    "image": (n, channels, h, w); "last": channels last; "flat": an image flattened, several numbers for each channel.
    """

    space: _Space
    constant: Tensor
    layout: str

    def now(self, constant: Tensor | None = None, layout: str | None = None) -> _Value:
        return _Value(self.space, self.constant if constant is None else constant, layout or self.layout)


def remove_channels(model: nn.Module) -> tuple[nn.Module, dict[str, list[int]]]:
    """A copy without the channels that are always zero, and the new shape of every weight that shrank.

    Models that `torch.fx` cannot trace, or that compute other things with other arguments, come back whole.

    Args:
        model: any model; it is left as it is.

    Returns:
        The copy, in evaluation mode, and the new shapes by the name of the weight.

    Example:
        >>> model = prunus.models.make("fc:8-6-2", seed=0)
        >>> with torch.no_grad():
        ...     _ = model.layers[0].weight[:2].zero_()
        ...     _ = model.layers[0].bias[:2].zero_()
        >>> small, shapes = prunus.sparse.remove_channels(model)
        >>> shapes["layers.0.weight"], shapes["layers.1.weight"]
        ([4, 8], [2, 4])
    """
    work = copy.deepcopy(model).eval()
    return work, remove_channels_(work)


def remove_channels_(work: nn.Module) -> dict[str, list[int]]:
    """`remove_channels` in place; tensors that shrink are replaced, not written to."""
    graphs = traces(work)
    if len({_steps(graph) for graph in graphs}) != 1:  # what reads a channel is not the same in every call
        return {}
    graph = graphs[0]
    modules = dict(work.named_modules())
    if any(node.op == "get_attr" for node in graph.nodes):  # weights used directly: their shapes are not ours to change
        return {}
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[str(node.target)] = calls.get(str(node.target), 0) + 1
    follower = _Follower(modules, calls)
    for node in graph.nodes:
        follower.visit(node)
    before = {name: list(value.shape) for name, value in work.state_dict().items()}
    for space in {id(found.root()): found.root() for found in follower.spaces}.values():
        keep = ~space.removable
        if bool(keep.any()) and not bool(keep.all()):
            _shrink(space, keep, modules)
    shapes = {name: list(value.shape) for name, value in work.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if shape != before[name]}


def _steps(graph: fx.Graph) -> str:
    """What a graph does, without its arguments: those that it does not use are no difference."""
    return "\n".join(str(node.format_node()) for node in graph.nodes if node.op != "placeholder")


class _Follower:
    """Walks the graph once, joining spaces and following constants."""

    def __init__(self, modules: dict[str, nn.Module], calls: dict[str, int]) -> None:
        self.modules, self.calls = modules, calls
        self.values: dict[fx.Node, _Value | None] = {}
        self.spaces: list[_Space] = []

    def visit(self, node: fx.Node) -> None:
        handler = self._module if node.op == "call_module" else self._function
        known = handler(node) if node.op in ("call_module", "call_function", "call_method") else None
        if known is None:
            for source in node.all_input_nodes:
                value = self.values.get(source)
                if value is not None:
                    value.space.freeze()
        self.values[node] = known

    def _input(self, node: fx.Node) -> _Value | None:
        first = node.args[0] if node.args else None
        return self.values.get(first) if isinstance(first, fx.Node) else None

    def _module(self, node: fx.Node) -> _Value | None:
        name, value = str(node.target), self._input(node)
        module = self.modules[name]
        once = self.calls[name] == 1
        if once and type(module) in (nn.Conv2d, nn.Linear) and getattr(module, "groups", 1) == 1:
            return self._layer(name, module, value)
        if value is None:
            return None
        image = value.layout == "image"
        if once and image and type(module) is nn.BatchNorm2d and module.running_mean is not None:
            return self._norm(name, module, value)
        if type(module) is nn.ReLU:
            return value.now(value.constant.clamp(min=0))
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1) and image:
            return value.now(layout="flat")
        return value if type(module) in (nn.Identity, nn.Dropout) or (image and type(module) in _PASS) else None

    def _layer(self, name: str, layer: nn.Module, value: _Value | None) -> _Value:
        weight: Tensor = layer.weight.detach()  # type: ignore[operator]
        image = isinstance(layer, nn.Conv2d)
        if value is not None:
            root, inputs = value.space.root(), weight.shape[1]
            fits = inputs == root.size or (value.layout == "flat" and inputs % root.size == 0)
            if fits and image == (value.layout == "image"):
                root.removable &= value.constant == 0
                root.readers.append((name, inputs // root.size))
            else:
                root.freeze()
        bias = getattr(layer, "bias", None)
        empty = (weight.flatten(1) == 0).all(1)
        constant = torch.where(empty, 0.0 if bias is None else bias.detach().double(), torch.nan)
        space = _Space(len(weight), torch.ones(len(weight), dtype=torch.bool), [name])
        self.spaces.append(space)
        return _Value(space, constant.double(), "image" if image else "last")

    def _norm(self, name: str, norm: nn.BatchNorm2d, value: _Value) -> _Value:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        value.space.root().norms.append(name)
        constant = (value.constant - norm.running_mean.double()) * (norm.running_var.double() + norm.eps).rsqrt()
        if norm.weight is not None:
            constant = constant * norm.weight.detach().double() + norm.bias.detach().double()
        return value.now(constant)

    def _function(self, node: fx.Node) -> _Value | None:
        value = self._input(node)
        if node.target in _ADD_FUNCTIONS and len(node.args) == 2 and not node.kwargs:
            other = self.values.get(node.args[1]) if isinstance(node.args[1], fx.Node) else None
            if value is None or other is None or value.layout != other.layout:
                return None
            if value.space.root().size != other.space.root().size:
                return None
            value.space.join(other.space)
            return value.now(value.constant + other.constant)
        if value is None:
            return None
        if node.target in _RELU_FUNCTIONS or (node.op == "call_method" and node.target in ("relu", "relu_")):
            return value.now(value.constant.clamp(min=0))
        if value.layout != "image":
            return None
        flattens = node.target is torch.flatten or (node.op == "call_method" and node.target == "flatten")
        if flattens and node.args[1:] == (1,) and not node.kwargs:
            return value.now(layout="flat")
        means = node.target is torch.mean or (node.op == "call_method" and node.target == "mean")
        if means and node.args[1:] in (((2, 3),), ([2, 3],), ((-2, -1),), ([-2, -1],)) and not node.kwargs:
            return value.now(layout="last")
        return value if node.target in _PASS_FUNCTIONS else None


def _shrink(space: _Space, keep: Tensor, modules: dict[str, nn.Module]) -> None:
    kept = int(keep.sum())
    for name in space.producers:
        layer = modules[name]
        _cut(layer, "weight", lambda tensor: tensor[keep])
        _cut(layer, "bias", lambda tensor: tensor[keep])
        _rename(layer, ("out_channels", "out_features"), kept)
    for name in space.norms:
        for part in ("weight", "bias", "running_mean", "running_var"):
            _cut(modules[name], part, lambda tensor: tensor[keep])
        _rename(modules[name], ("num_features",), kept)
    for name, repeat in space.readers:
        columns = keep.repeat_interleave(repeat)
        _cut(modules[name], "weight", functools.partial(_columns, columns))
        _rename(modules[name], ("in_channels", "in_features"), kept * repeat)


def _columns(keep: Tensor, weight: Tensor) -> Tensor:
    return weight[:, keep]


def _cut(module: nn.Module, name: str, pick: Callable[[Tensor], Tensor]) -> None:
    tensor = getattr(module, name, None)
    if tensor is None:
        return
    smaller: Any = pick(tensor.detach()).clone()
    setattr(module, name, nn.Parameter(smaller, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else smaller)


def _rename(module: nn.Module, names: tuple[str, ...], size: int) -> None:
    for name in names:
        if hasattr(module, name):
            setattr(module, name, size)


def apply_shapes(model: nn.Module, shapes: dict[str, list[int]]) -> None:
    """Give a (hollow) model the shapes that `remove_channels` found; the contents come from a file."""
    for name, shape in shapes.items():
        owner, _, part = name.rpartition(".")
        try:
            module = model.get_submodule(owner)
            tensor = getattr(module, part)
            if tensor.dim() != len(shape) or any(not 0 < new <= old for new, old in zip(shape, tensor.shape)):
                raise AttributeError(name)
        except AttributeError:
            raise BadInput(
                f"The file shrinks {name!r}, which this model does not have: give the model it was made from."
            ) from None
        empty: Any = torch.empty(shape, dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        setattr(module, part, nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty)
        if part == "weight" and len(shape) > 1:
            _rename(module, ("out_channels", "out_features"), shape[0])
            _rename(module, ("in_channels", "in_features"), shape[1])
        elif part == "running_mean":
            _rename(module, ("num_features",), shape[0])

"""Reading a model's graph: which batch norms fold into which convolutions, and which sums and ReLUs can be fused.

A fused copy is the graph of one way to call the model; what is called in another way is refused. Models that
`torch.fx` cannot trace, and those with hooks, keep their batch norms and activations; their layers are still replaced.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.graph_module import reduce_graph_module
from torch.nn import functional

from prunus import graph as graphs
from prunus.errors import BadInput
from prunus.sparse._copies import sharing
from prunus.sparse._embeddings import RoundedEmbedding
from prunus.sparse._modules import BalancedLinear, PackedModule, SparseConv2d, require_float32, watched
from prunus.sparse._region_graph import with_regions

_RELU_FUNCTIONS = (functional.relu, torch.relu, torch.relu_)
_ADD_FUNCTIONS = (operator.add, operator.iadd, torch.add)
_IN_PLACE = ("iadd", "isub", "imul", "itruediv", "imatmul", "setitem", "__setitem__")


ATTRIBUTE = "prunus_plan"  # of a compressed model: its plan (`_plan`)
_LEAVES = (PackedModule, RoundedEmbedding)


def traces(model: nn.Module, leaves: tuple[type, ...] = ()) -> list[fx.Graph]:
    """The model's graphs for all ways to call it; empty where it has hooks or its control flow depends on data."""
    try:  # a forward that is traced runs: a copy takes the notes that it may make on the model
        return graphs.every_trace(sharing(model), leaves=(*_LEAVES, *leaves))
    except BadInput:
        return []


def batch_norm_pairs(model: nn.Module, layers: Collection[str]) -> dict[str, str]:
    """Convolution of `layers` -> the batch norm that alone reads it, both called once however the model is called."""
    found = [_pairs(model, graph, layers) for graph in traces(model, leaves=(nn.Conv2d,))]  # classes of their own, too
    first = found[0] if found else {}
    return {conv: norm for conv, norm in first.items() if all(pairs.get(conv) == norm for pairs in found)}


def _pairs(model: nn.Module, graph: fx.Graph, layers: Collection[str]) -> dict[str, str]:
    """The same for one graph."""
    modules = dict(model.named_modules())
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    pairs = {}
    for node in graph.nodes:
        conv = node.op == "call_module" and isinstance(modules[node.target], nn.Conv2d) and node.target in layers
        if not conv or len(node.users) != 1:
            continue
        user = next(iter(node.users))
        norm = modules.get(str(user.target)) if user.op == "call_module" else None
        if type(norm) is nn.BatchNorm2d and norm.track_running_stats and calls[node.target] == calls[user.target] == 1:
            pairs[str(node.target)] = str(user.target)
    return pairs


def folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution that does both, computed in float64. Zeros stay zeros."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight.double()
    shift = -norm.running_mean.double() if conv.bias is None else conv.bias.double() - norm.running_mean.double()
    bias = shift * scale + (0 if norm.bias is None else norm.bias.double())
    weight = conv.weight.double() * scale[:, None, None, None]
    return weight.float().detach(), bias.float().detach()


@dataclass(frozen=True)
class CallRules:
    """How a fused copy may be called: the values that arguments must have, and those that must be given.

    `names` are the arguments in their order, `defaults` those that can be left out, `rest` the one that takes all other
    names, or empty.
    """

    fixed: dict[str, Any]
    needed: tuple[str, ...]
    names: tuple[str, ...]
    defaults: dict[str, Any]
    rest: str

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise for a call whose branches the graph does not hold."""
        told = dict(zip(self.names, args)) | kwargs
        for name, value in told.items():  # what a forward may branch on, where the graph has a stand-in
            if name not in self.fixed and isinstance(value, (bool, str, type(None))):
                self._refuse(f"that give {name!r} as a tensor or number")
        given = self.defaults | told
        for name, value in self.fixed.items():
            if name == self.rest:
                unknown = [other for other in kwargs if other not in self.names]
                if unknown:
                    self._refuse(f"without {unknown[0]!r}")
            elif name in given and not _same(given[name], value):
                self._refuse(f"with {name}={value!r}")
        for name in self.needed:
            if given[name] is None:
                self._refuse(f"that give {name!r} as a tensor or number")

    def _refuse(self, calls: str) -> None:
        raise BadInput(
            f"This fused copy was made for calls {calls}: compress the model with an example of this call, or without "
            "fuse=True."
        )


def _same(given: Any, value: Any) -> bool:
    plain = isinstance(value, (bool, int, float, str, tuple))
    return given is value or (plain and type(given) is type(value) and bool(given == value))


def _rules(model: nn.Module, fixed: dict[str, Any], stand_ins: Collection[str]) -> CallRules:
    """The rules for a model's graph."""
    parameters = dict(list(inspect.signature(type(model).forward).parameters.items())[1:])
    defaults = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
    rest = next((name for name, one in parameters.items() if one.kind is one.VAR_KEYWORD), "")
    needed = tuple(name for name in stand_ins if name in defaults and defaults[name] is None)
    names = tuple(name for name, one in parameters.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))
    return CallRules(fixed, needed, names, defaults, rest)


class FusedGraph(fx.GraphModule):
    """A graph that runs its regions by one call each where nothing is traced and no gradient is wanted.

    What is traced, exported or differentiated is the plain graph of registered operators.
    """

    _quick: ClassVar[Callable[..., Any] | None]
    rules: CallRules | None = None
    _carried: ClassVar[tuple[str, ...]] = ("rules", ATTRIBUTE)  # what fx leaves behind when it copies a graph

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedGraph:
        found = cast("FusedGraph", super().__deepcopy__(memo))
        for name in self._carried:
            if name in self.__dict__:
                setattr(found, name, copy.deepcopy(self.__dict__[name], memo))
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if any(isinstance(part, PackedModule) for part in self.modules()):
            require_float32(fn)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch gives it no types

    def __reduce__(self) -> tuple[Any, ...]:
        _, parts = super().__reduce__()
        return _unpickled, parts

    def recompile(self) -> Any:
        code = super().recompile()
        kind = type(self)  # fx makes a class for every graph
        kind.forward = _quick_or(kind.forward)
        kind.__call__ = nn.Module.__call__  # type: ignore[method-assign]  # fx puts a slow wrapper there
        kind._quick = None
        return code


def _quick_or(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def forward(self: FusedGraph, *args: Any, **kwargs: Any) -> Any:
        plainly = all(type(x) is Tensor for x in args)
        rules = self.rules
        if rules is not None and (rules.fixed or rules.needed or kwargs or not plainly):
            rules.check(args, kwargs)
        if torch.is_grad_enabled() or watched() or not plainly:
            return plain(self, *args, **kwargs)
        kind = type(self)
        if kind._quick is None:
            graph = with_regions(self)
            # Only the code is wanted: it runs on this module, whose layers it looks up as they stand.
            kind._quick = plain if graph is None else type(fx.GraphModule(self, graph)).forward
        return kind._quick(self, *args, **kwargs)

    return forward


def _unpickled(parts: dict[str, Any], imports: str) -> FusedGraph:
    """A fused graph as it was pickled: fx reads the graph anew from its code, and forgets what kind it was."""
    kept = {name: parts[name] for name in FusedGraph._carried if name in parts}
    plain: Any = reduce_graph_module(parts, imports)
    found = FusedGraph(plain, plain.graph, class_name=type(plain).__name__)
    for name, value in kept.items():
        setattr(found, name, value)
    return found.train(plain.training)


def fuse(
    model: nn.Module, stand_ins: Collection[str] = (), constants: Mapping[str, bool | str | None] | None = None
) -> nn.Module:
    """The same model as a graph in which ReLUs and residual sums run inside the packed layer they follow.

    Returns the model unchanged where it cannot be traced. Identity modules (folded batch norms) leave the graph.
    Models of transformers are called in too many ways to be one graph: their blocks run natively (`_blocks`).

    Args:
        model: Its layers packed; it is left as it is.
        stand_ins: Arguments that are given, though they can be left out.
        constants: Arguments that are given as something to branch on.
    """
    if isinstance(model, PackedModule) or any(map(_of_transformers, model.modules())):
        return model
    fixed = graphs.fixed_arguments(model, stand_ins, constants)
    whole, model = model, sharing(model)  # a forward that is traced runs, and may leave notes on the model
    try:
        graph = graphs.trace(model, _LEAVES, fixed)
    except BadInput:
        return whole
    modules = dict(model.named_modules())
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in list(graph.nodes):
        if node.op == "call_module" and type(modules[node.target]) is nn.Identity:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    for node in list(graph.nodes):
        if _is_relu(node, modules):
            _fuse_relu(graph, node, modules, calls)
    for node in list(graph.nodes):
        _fuse_sum(graph, node, node, modules, calls)
    for node in graph.nodes:
        node.type = None  # annotations that are texts could not be pickled
    graph.lint()
    result = FusedGraph(model, graph, class_name=type(model).__name__)
    result.rules = _rules(model, fixed, stand_ins)
    return result.train(model.training)


def _of_transformers(module: nn.Module) -> bool:
    kinds = type(module).__mro__
    return any(kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.") for kind in kinds)


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules[str(node.target)]) is nn.ReLU
    if node.op == "call_function":
        return node.target in _RELU_FUNCTIONS
    return node.op == "call_method" and node.target in ("relu", "relu_")


def _fuse_relu(graph: fx.Graph, relu: fx.Node, modules: dict[str, nn.Module], calls: Counter[Any]) -> None:
    source = relu.args[0] if relu.args else relu.kwargs.get("input")
    if not isinstance(source, fx.Node) or len(source.users) != 1:
        return
    if _single(source, modules, calls, (BalancedLinear, SparseConv2d)):
        modules[str(source.target)].relu = True  # type: ignore[assignment]
        relu.replace_all_uses_with(source)
        graph.erase_node(relu)
        return
    layer = _fuse_sum(graph, source, relu, modules, calls)
    if layer is not None:
        layer.relu = True


def _fuse_sum(
    graph: fx.Graph, source: fx.Node, last: fx.Node, modules: dict[str, nn.Module], calls: Counter[Any]
) -> SparseConv2d | None:
    """Let a convolution add what is added to it, and take the place of `last`, the sum or what alone reads it.

    Returns the convolution, or None where the node is no such sum.
    """
    terms = [term for term in source.args if isinstance(term, fx.Node)]
    adds = source.op == "call_function" and source.target in _ADD_FUNCTIONS
    if not adds or len(terms) != 2 or source.kwargs or terms[0] is terms[1]:
        return None
    for layer, other in (terms, terms[::-1]):
        if len(layer.users) == 1 and _single(layer, modules, calls, (SparseConv2d,)):
            between, node = list[fx.Node](), layer.next
            while node is not source:
                between.append(node)
                node = node.next
            if any(_writes(node, modules) for node in between):  # the convolution would see what came of its input
                return None
            with graph.inserting_before(source):
                joint = graph.call_module(str(layer.target), (layer.args[0], other))
            last.replace_all_uses_with(joint)
            for gone in dict.fromkeys((last, source, layer)):
                graph.erase_node(gone)
            return modules[str(layer.target)]  # type: ignore[return-value]
    return None


def _writes(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a node may change a tensor in place."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    inside = modules.get(str(node.target)) if node.op == "call_module" else None
    told = any(getattr(module, "inplace", False) for module in inside.modules()) if inside is not None else False
    return (
        told
        or str(name).endswith("_")
        or str(name) in _IN_PLACE
        or node.kwargs.get("inplace") is True
        or "out" in node.kwargs
    )


def _single(node: fx.Node, modules: dict[str, nn.Module], calls: Counter[Any], kinds: tuple[type, ...]) -> bool:
    """Whether the node is the only call of a packed layer that has no activation yet."""
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    fits = isinstance(module, kinds) and not module.relu and calls[node.target] == 1  # type: ignore[union-attr]
    return fits and len(node.args) == 1 and not node.kwargs

"""One walk over a model's operators: labels for every value, and what multiplies what.

`Walk` visits the operators that `torch.export` gives for one example. Each operator has a rule (`_rules.py`); pointwise
operators are known by torch's own tag, everything else that has no rule pins what it reads. The walk keeps the labels
of the parameters and of all values, and a record of every product with its number of multiply-adds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from prunus.structure._labels import Array, Atoms, Block, Labels, broadcast, pin, unify

Result = Any  # Labels, or a list of them, or None for what is no tensor
Rule = Callable[["Walk", "Site", Sequence[Any], Mapping[str, Any]], Result]


@dataclass(frozen=True, eq=False)
class Site:
    """One operator: its node, its name ("linear"), and the module whose forward holds it."""

    node: fx.Node
    name: str
    module: str

    @property
    def reason(self) -> str:
        return f"{self.name} in {self.module or 'the model itself'}"

    @property
    def shape(self) -> tuple[int, ...]:
        return _shape(self.node.meta.get("val"))


@dataclass(frozen=True, eq=False)
class Product:
    """A sum of products: a linear layer, a convolution, a part of attention.

    `blocks` are the atoms of its dimensions, so that its multiply-adds after a removal are `multiply_adds` times the
    kept share of each block. `weight` names the parameter (None for a product of two values), `inputs` and `outputs`
    its dimensions.
    """

    site: Site
    multiply_adds: int
    blocks: tuple[Array, ...]
    weight: str | None = None
    inputs: int = 1
    outputs: int = 0
    groups: int = 1


@dataclass(eq=False)
class Walk:
    """Labels of a model's parameters and values; made by `walk`."""

    exact: bool = True
    atoms: Atoms = field(default_factory=Atoms)
    tensors: dict[str, Labels] = field(default_factory=dict)  # parameters and buffers by name
    values: list[tuple[Site, Labels]] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    named_only: list[tuple[str, Array]] = field(default_factory=list)  # token embeddings: (tensor, atoms)
    paddings: list[tuple[Site, tuple[int, ...], list[Array]]] = field(default_factory=list)
    recurrent: list[tuple[str, list[Array]]] = field(default_factory=list)
    names: dict[fx.Node, str] = field(default_factory=dict)
    constant: set[fx.Node] = field(default_factory=set)

    def tensor(self, name: str, value: Tensor) -> Labels:
        """Labels of a parameter or buffer: own atoms along every dimension."""
        if name not in self.tensors:
            shape = tuple(value.shape)
            blocks = [Block((d,), self.atoms.fresh(n)) for d, n in enumerate(shape) if n > 1]
            self.tensors[name] = Labels(shape, tuple(blocks))
        return self.tensors[name]

    def pointwise(self, site: Site, inputs: Sequence[Labels], shape: tuple[int, ...]) -> Labels:
        """Labels of an elementwise result."""
        if not inputs:
            return Labels(shape, (), frozenset(range(len(shape))))
        joint = broadcast(inputs[0], shape)
        for other in inputs[1:]:
            joint = unify(self.atoms, joint, broadcast(other, shape), site.reason)
        return joint

    def pinned(self, labels: Labels, dims: Sequence[int], reason: str) -> Labels:
        return pin(self.atoms, labels, dims, reason)


def walk(program: torch.export.ExportedProgram, model: nn.Module, *, exact: bool = True) -> Walk:
    """Visit every operator of an exported model."""
    found = Walk(exact=exact)
    signature = program.graph_signature
    own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    first: dict[int, str] = {}
    for key, value in own.items():
        first.setdefault(id(value), key)
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    values: dict[fx.Node, Result] = {}
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        name: str | None = targets.get(node.name)
        if name is not None and name in own and name not in signature.non_persistent_buffers:
            name = first[id(own[name])]
            values[node] = found.tensor(name, own[name])
            found.names[node] = name
            found.constant.add(node)
        else:
            shape = _shape(node.meta.get("val"))
            values[node] = Labels(shape) if isinstance(node.meta.get("val"), Tensor) else None
            if node.name in signature.inputs_to_lifted_tensor_constants:
                found.constant.add(node)
    _visit(found, program.graph_module, values)
    return found


def _visit(found: Walk, graph: fx.GraphModule, values: dict[fx.Node, Result]) -> Result:
    from prunus.structure._rules import rule_for

    for node in graph.graph.nodes:
        if node.op == "get_attr":
            value = _attribute(graph, str(node.target))
            values[node] = Labels(tuple(value.shape)) if isinstance(value, Tensor) else value
            found.constant.add(node)
        elif node.op == "call_function":
            site = Site(node, _name(node), _module(node))
            args, kwargs = pytree.tree_map_only(fx.Node, values.__getitem__, (list(node.args), dict(node.kwargs)))
            if node.target is operator.getitem:
                values[node] = args[0][args[1]]
            elif isinstance(node.target, torch._ops.HigherOrderOperator):
                values[node] = _inline(found, site, node, args)
            else:
                values[node] = rule_for(node.target, site.name)(found, site, args, kwargs)
            inputs = node.all_input_nodes
            if (inputs and all(each in found.constant for each in inputs)) or site.name in ("arange", "full"):
                found.constant.add(node)
            for labels in values[node] if isinstance(values[node], (list, tuple)) else [values[node]]:
                if isinstance(labels, Labels):
                    found.values.append((site, labels))
        elif node.op == "output":
            results = pytree.tree_map_only(fx.Node, values.__getitem__, node.args[0])
            if graph.graph.find_nodes(op="placeholder") and node.graph.owning_module is not None and not _inner(graph):
                for labels in pytree.tree_leaves(results):
                    if isinstance(labels, Labels):
                        pin(found.atoms, labels, range(labels.ndim), "an output of the model")
            return results
    return None


def _inner(graph: fx.GraphModule) -> bool:
    return bool(graph.meta.get("prunus_inner"))


def _inline(found: Walk, site: Site, node: fx.Node, args: Sequence[Any]) -> Result:
    """A region under `no_grad` or autocast is a graph of its own: visit it in place."""
    graphs = [value for value in args if isinstance(value, fx.GraphModule)]
    if len(graphs) != 1:
        for labels in pytree.tree_leaves(args):
            if isinstance(labels, Labels):
                pin(found.atoms, labels, range(labels.ndim), site.reason)
        return pytree.tree_map(lambda value: Labels(_shape(value)), node.meta.get("val"))
    inputs = args[list(args).index(graphs[0]) + 1 :]
    graphs[0].meta["prunus_inner"] = True
    holes = [each for each in graphs[0].graph.nodes if each.op == "placeholder"]
    return _visit(found, graphs[0], dict(zip(holes, inputs)))


def _attribute(graph: nn.Module, target: str) -> Any:
    value: Any = graph
    for part in target.split("."):
        value = getattr(value, part)
    return value


def _shape(value: object) -> tuple[int, ...]:
    return tuple(int(size) for size in value.shape) if isinstance(value, Tensor) else ()


def _name(node: fx.Node) -> str:
    """ "linear" for aten.linear.default, and the same for operators that work in place."""
    schema = getattr(node.target, "_schema", None)
    name = schema.name.rpartition("::")[2] if schema is not None else str(getattr(node.target, "__name__", node.target))
    return name if name.startswith("__") else name.rstrip("_")


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return path if isinstance(path, str) else ""

"""One walk over a model's operators: labels for every value, and a record of every product.

`Walk` visits the operators that `prunus.graph.read` gives for one example. Each operator has a rule (`_rules.py`);
pointwise operators are known by torch's own tag, everything else that has no rule pins what it reads. The walk keeps
the labels of the parameters and of all values, and a record of every product with its number of multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from prunus.graph import Graph, Node, replaced
from prunus.structure._labels import Array, Atoms, Block, Labels, broadcast, pin, unify

Result = Any  # Labels, or a list of them, or None for what is no tensor
Rule = Callable[["Walk", "Site", Sequence[Any], Mapping[str, Any]], Result]


@dataclass(frozen=True, eq=False)
class Site:
    """One operator of the graph and its short name ("linear")."""

    node: Node
    name: str

    @property
    def module(self) -> str:
        """The module whose forward holds it."""
        return self.node.module

    @property
    def reason(self) -> str:
        return f"{self.name} in {self.module or 'the model itself'}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result."""
        return self.node.specs[0].shape if self.node.specs else ()

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [spec.shape for spec in self.node.specs]

    @property
    def several(self) -> bool:
        """Whether the result is a tuple or list of tensors."""
        returns = getattr(self.node.function, "_schema").returns  # noqa: B009
        return len(returns) > 1 or "List" in str(returns[0].type)


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
    names: dict[Node, str] = field(default_factory=dict)
    constant: set[Node] = field(default_factory=set)

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


def walk(graph: Graph, *, exact: bool = True) -> Walk:
    """Visit every operator of a graph that was read for one example (`read(..., dynamic_batch=False)`)."""
    found = Walk(exact=exact)
    passing = _non_persistent(graph.model)
    values: dict[Node, Result] = {}
    for node in graph.nodes:
        if node.kind == "call":
            values[node] = _called(found, node, values)
        elif node.kind in ("parameter", "buffer") and node.target not in passing and node.tensor is not None:
            values[node] = found.tensor(node.target, node.tensor)
            found.names[node] = node.target
            found.constant.add(node)
        else:
            values[node] = Labels(node.shape)
            if node.kind != "input":
                found.constant.add(node)
    for result in graph.outputs:
        if isinstance(result, Node) and isinstance(values[result], Labels):
            labels = values[result]
            pin(found.atoms, labels, range(labels.ndim), "an output of the model")
    return found


def _called(found: Walk, node: Node, values: dict[Node, Result]) -> Result:
    from prunus.structure._rules import rule_for

    site = Site(node, operator_name(node))
    args = replaced(node.args, values.__getitem__)
    kwargs = replaced(node.kwargs, values.__getitem__)
    result = args[0][args[1]] if node.op == "getitem" else rule_for(node.function, site.name)(found, site, args, kwargs)
    if (node.inputs and all(each in found.constant for each in node.inputs)) or site.name in ("arange", "full"):
        found.constant.add(node)
    for labels in result if isinstance(result, (list, tuple)) else [result]:
        if isinstance(labels, Labels) and node.op != "getitem":
            found.values.append((site, labels))
    return result


def _non_persistent(model: nn.Module) -> set[str]:
    """Buffers that are constants of the code (tables of positions), not part of the state."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }


def operator_name(node: Node) -> str:
    """linear for aten.linear.default."""
    schema = getattr(node.function, "_schema", None)
    name = schema.name.rpartition("::")[2] if schema is not None else node.op
    return name if name.startswith("__") else name.rstrip("_")

"""The read graph as plain data: nodes with their arguments, and a way to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import BadInput, first_line

STATE = ("parameter", "buffer", "constant")


@dataclass(frozen=True)
class Spec:
    """One tensor result of a node.

    Attributes:
        shape: its shape at the example.
        dtype: its dtype.
        varies: for each dimension, True where it changes with the batch size.

    Example:
        >>> graph = prunus.graph.read(torch.nn.Linear(4, 2), torch.zeros(3, 4))
        >>> graph.output.spec
        Spec(shape=(3, 2), dtype=torch.float32, varies=(True, False))
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    varies: tuple[bool, ...]


@dataclass(eq=False, repr=False)
class Node:
    """One value of the graph.

    Attributes:
        name: unique in its graph.
        kind: "input", "parameter", "buffer", "constant" (a tensor written into the code) or "call".
        op: the operator of a call, such as "aten.linear.default", "getitem" for one part of a tuple, or the name of
            a Python operator on sizes ("mul", "floordiv"); else the kind.
        args, kwargs: the arguments as the operator's schema has them; other nodes stand in them as `Node` objects,
            also inside lists and tuples.
        specs: one `Spec` for each tensor of the result; empty where the result is a number (a size).
        number: the value of a size at the example, where the result is a number.
        users: the calls that read this node, in order.
        module, module_class: path and class of the module whose forward made the call ("" is the model itself).
        target: the qualified name of a parameter, buffer or constant; `names` are all of its names (tied weights).
        tensor: the live tensor of a parameter, buffer or constant: the model's own object, not a copy.
        function: what runs the call.

    Example:
        >>> graph = prunus.graph.read(torch.nn.Linear(4, 2), torch.zeros(1, 4))
        >>> node = graph.calls[0]
        >>> node.op, node.shape, [source.kind for source in node.inputs]
        ('aten.linear.default', (1, 2), ['input', 'parameter', 'parameter'])
    """

    name: str
    kind: str
    op: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    specs: tuple[Spec, ...] = ()
    number: int | None = None
    users: list[Node] = field(default_factory=list)
    module: str = ""
    module_class: str = ""
    target: str = ""
    names: tuple[str, ...] = ()
    tensor: Tensor | None = None
    function: Callable[..., Any] | None = None

    @property
    def spec(self) -> Spec:
        """The only tensor of the result."""
        if len(self.specs) != 1:
            raise ValueError(f"{self.name} ({self.op}) has {len(self.specs)} tensors as its result, not one.")
        return self.specs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape at the example's batch size."""
        return self.spec.shape

    @property
    def dtype(self) -> torch.dtype:
        """The result's dtype."""
        return self.spec.dtype

    @property
    def is_state(self) -> bool:
        """True for parameters, buffers and constants."""
        return self.kind in STATE

    @property
    def inputs(self) -> list[Node]:
        """The nodes among the arguments, in order, each as often as it is read."""
        return list(nodes_in((self.args, self.kwargs)))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or keyword; `default` where it is left out (the schema's own default).

        Args:
            position: its place among the positional arguments.
            name: its name among the others.
            default: what it is where it was left out.

        Returns:
            The argument.
        """
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def __repr__(self) -> str:
        if self.kind != "call":
            return f"{self.name} = {self.kind} {self.target}".rstrip()
        arguments = [_text(item) for item in self.args] + [f"{key}={_text(item)}" for key, item in self.kwargs.items()]
        place = f"  # {self.module}" if self.module else ""
        return f"{self.name} = {self.op}({', '.join(arguments)}){place}"


def _text(item: Any) -> str:
    if isinstance(item, Node):
        return item.name
    if isinstance(item, (list, tuple)):
        return f"[{', '.join(map(_text, item))}]"
    return repr(item)


def nodes_in(item: Any) -> Iterator[Node]:
    """All nodes inside nested arguments."""
    if isinstance(item, Node):
        yield item
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from nodes_in(part)
    elif isinstance(item, Mapping):
        for part in item.values():
            yield from nodes_in(part)


def replaced(item: Any, change: Callable[[Node], Any]) -> Any:
    """Nested arguments with every node replaced by `change(node)`.

    Args:
        item: Arguments of a node: nodes, numbers, and lists, tuples and dictionaries of them.
        change: Called with each node.

    Returns:
        The same nesting with what `change` returned.

    Raises:
        Exception: Whatever `change` raises.

    Example:
        >>> graph = prunus.graph.read(torch.nn.Linear(4, 2), torch.zeros(1, 4))
        >>> prunus.graph.replaced([graph.inputs[0], 3], lambda node: tuple(node.shape)[1:])
        [(4,), 3]
    """
    if isinstance(item, Node):
        return change(item)
    if isinstance(item, (list, tuple)):
        return type(item)(replaced(part, change) for part in item)
    if isinstance(item, Mapping):
        return {key: replaced(part, change) for key, part in item.items()}
    return item


@dataclass(eq=False, repr=False)
class Graph:
    """What `prunus.graph.read` returns.

    Attributes:
        nodes: all nodes in an order in which they can be run; nothing in it is unused but inputs.
        inputs: the nodes of the example's tensors, in the order of its flattened form.
        outputs: the flat results: nodes, or plain values (None, numbers) where the model returns such.
        output_names: where each stands in what the model returns ("logits", "0", "" for a lone tensor).
        main: the position of the main output: "logits" or "last_hidden_state" of a Hugging Face result, else the
            first tensor.
        mutations: buffers (or inputs) that the forward changes, with the node of their new value.
        dynamic: True where the graph holds for every batch size; False where the model ties itself to the example's.
        model: the module as it was read (without wrappers).
        level: "operators" or "core".

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> graph = prunus.graph.read(model, torch.zeros(1, 4))
        >>> sorted(graph.state), graph.dynamic
        (['bias', 'weight'], True)
        >>> x = torch.ones(5, 4)
        >>> torch.equal(graph.run(x)[0], model(x))
        True
    """

    nodes: list[Node]
    inputs: list[Node]
    outputs: list[Any]
    output_names: list[str]
    main: int
    mutations: dict[str, Node]
    dynamic: bool
    model: nn.Module
    level: str
    flatten: Callable[..., list[Any]]

    @property
    def output(self) -> Node:
        """The main output."""
        found = self.outputs[self.main]
        assert isinstance(found, Node)
        return found

    @property
    def calls(self) -> list[Node]:
        """The operators, in order."""
        return [node for node in self.nodes if node.kind == "call"]

    @property
    def state(self) -> dict[str, Node]:
        """Parameters, buffers and constants by each of their names."""
        return {name: node for node in self.nodes if node.is_state for name in node.names}

    def __getitem__(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def run(self, inputs: Any, state: Mapping[str, Tensor] | None = None) -> list[Any]:
        """Run the graph as it was read, operator by operator: for checking that it is the model.

        Args:
            inputs: in the form of the example (tensor, tuple, or dict of keyword arguments).
            state: other tensors for some parameters, buffers or constants, by qualified name.

        Returns:
            The flat outputs, as `outputs` lists them.

        Raises:
            BadInput: an operator failed; the sentence names it.
        """
        return self.values(inputs, state)[0]

    def values(self, inputs: Any, state: Mapping[str, Tensor] | None = None) -> tuple[list[Any], dict[str, Any]]:
        """Like `run`; also every node's value by name.

        Args:
            inputs: what the model is called with.
            state: tensors to use in the place of parameters or buffers of these names.

        Returns:
            The outputs, and the values by the names of the nodes.

        Raises:
            BadInput: if the number of tensors is not that of the inputs the graph was read with.
        """
        given = self.flatten(inputs)
        if len(given) != len(self.inputs):
            raise BadInput(f"The graph was read with {len(self.inputs)} input tensors, not {len(given)}.")
        values: dict[str, Any] = {node.name: value for node, value in zip(self.inputs, given)}
        state = state or {}
        with torch.no_grad():
            for node in self.nodes:
                if node.is_state:
                    values[node.name] = next((state[name] for name in node.names if name in state), node.tensor)
                elif node.kind == "call":
                    values[node.name] = _run(node, values)
        return [values[item.name] if isinstance(item, Node) else item for item in self.outputs], values

    def __repr__(self) -> str:
        lines = [repr(node) for node in self.nodes]
        results = ", ".join(f"{name or 'output'}: {_text(item)}" for name, item in zip(self.output_names, self.outputs))
        return "\n".join([*lines, f"return {results}"])


def _run(node: Node, values: Mapping[str, Any]) -> Any:
    assert node.function is not None
    args = replaced(node.args, lambda source: values[source.name])
    kwargs = replaced(node.kwargs, lambda source: values[source.name])
    try:
        return node.function(*args, **kwargs)
    except Exception as error:
        place = f" in {node.module} ({node.module_class})" if node.module else ""
        raise BadInput(f"The operator {node.op}{place} does not run on these inputs: {first_line(error)}") from error

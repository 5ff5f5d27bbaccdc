"""Two networks of one architecture as one list of steps, read through `prunus.graph`.

Value 0 is the input; step number i makes value i + 1 from earlier ones. Every step comes from an ATen operator with a
rule; what does not depend on the input is computed once, in the network's own precision, as the network does it. A
batch norm that follows a layer is folded into it, in each network with its own statistics (ledger P-31); its rounding
is counted as the network computes it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.certificates.domains import Region
from prunus.certificates.reading import attention, linear, movement, nonlinear, normalising  # noqa: F401  (their rules)
from prunus.certificates.reading.compressed import decompressed, is_packed
from prunus.certificates.reading.constants import LEFT_OUT, check_sized, constant, place, where
from prunus.certificates.reading.folding import Operation, folded, ordered, pooled_first
from prunus.certificates.reading.leaves import LEAF, leaf_module, leaves_of
from prunus.certificates.reading.nested import double, flat, resolved
from prunus.certificates.reading.pieces import Affine, Join, Piece, ValueProduct
from prunus.certificates.reading.rules import (
    BatchNumber,
    Call,
    Value,
    no_rule,
    rule_for_module,
    rule_for_operator,
    stored,
)
from prunus.errors import BadInput
from prunus.graph import Graph, Node, read, unwrapped


@dataclass(frozen=True, eq=False)
class Step:
    """One operation of both networks: its name, the values it reads, its two pieces and the shape it makes."""

    name: str
    inputs: tuple[int, ...]
    original: Piece
    pruned: Piece
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two networks of one architecture as one list of steps.

    Attributes:
        steps: The steps: value 0 is the input, step number i makes value i + 1.
        input_shape: Shape of an input, without the batch.
        dtypes: The types that the original and the pruned network really run in.
        input_dtypes: The types that they take their inputs in. Where these differ, the first step rounds the input to
            the coarser type for the network that takes it so.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> pair = prunus.certificates.read_pair(model, model, (8,))
        >>> one, two = pair.outputs(torch.ones(3, 8, dtype=torch.float64))
        >>> one.shape, torch.equal(one, two)
        (torch.Size([3, 4]), True)
    """

    steps: tuple[Step, ...]
    input_shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, torch.dtype]
    input_dtypes: tuple[torch.dtype, torch.dtype] = (torch.float64, torch.float64)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output, without the batch."""
        return self.steps[-1].shape

    def run(self, inputs: Tensor, pruned: bool) -> list[Tensor]:
        """All values of one network for inputs (n, *shape) in float64.

        Args:
            inputs: the inputs.
            pruned: True for the pruned network, False for the original.

        Returns:
            The inputs, then the value of every step.
        """
        values = [inputs]
        for step in self.steps:
            piece = step.pruned if pruned else step.original
            given = [values[index] for index in step.inputs]
            values.append(piece.run(given) if isinstance(piece, (Join, ValueProduct)) else piece.run(given[0]))
        return values

    def to(self, dtype: torch.dtype) -> Pair:
        """The same with weights of another type, for searches that need not be exact.

        Args:
            dtype: the new type.

        Returns:
            A copy.
        """
        steps = [replace(s, original=_cast(s.original, dtype), pruned=_cast(s.pruned, dtype)) for s in self.steps]
        return replace(self, steps=tuple(steps))

    def on(self, region: Region) -> tuple[Pair, Region]:
        """The pair and a region as the networks meet it.

        Args:
            region: the inputs that a certificate is about.

        Returns:
            The pair, without the rounding of its inputs where they fit into both types as they are; and the region,
            whose single points are those that the network of the finer type receives.

        Raises:
            BadInput: A point lies outside of the range of that type.
        """
        if region.radius != 0.0:
            return self, region
        finer = _finer(*self.input_dtypes)
        received = region.centres.to(finer).double()
        if not bool(torch.isfinite(received).all()):
            raise BadInput(f"A point of the Samples does not fit into {finer}, the type of the networks' inputs.")
        pair = self
        fits = all(torch.equal(received.to(dtype).double(), received) for dtype in self.input_dtypes)
        if fits and self.steps[0].name == _INPUT:
            exact = _rounded_input(self.input_dtypes[0], self.input_dtypes[0], self.input_shape)
            pair = replace(self, steps=(exact, *self.steps[1:]))
        return pair, replace(region, centres=received)

    def outputs(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of both networks, flattened to (n, outputs).

        Args:
            inputs: inputs (n, *shape) in float64.

        Returns:
            The outputs of the original, and those of the pruned network.
        """
        return self.run(inputs, pruned=False)[-1].flatten(1), self.run(inputs, pruned=True)[-1].flatten(1)


def _cast(piece: Piece, dtype: torch.dtype) -> Piece:
    if not isinstance(piece, Affine):
        return piece
    weight = None if piece.weight is None else piece.weight.to(dtype)
    return replace(piece, weight=weight, bias=None if piece.bias is None else piece.bias.to(dtype))


_INPUT = "the input"


def _finer(one: torch.dtype, two: torch.dtype) -> torch.dtype:
    return min(one, two, key=lambda dtype: torch.finfo(dtype).eps)


def _coarser(one: torch.dtype, two: torch.dtype) -> torch.dtype:
    return max(one, two, key=lambda dtype: torch.finfo(dtype).eps)


def _rounded_input(one: torch.dtype, two: torch.dtype, shape: tuple[int, ...]) -> Step:
    """The input as two networks receive it: one of a coarser type than the other rounds it."""
    finer = _finer(one, two)
    pieces = (
        Affine("cast", lambda _, x: x, lambda _: 1.0, terms=0 if dtype == finer else 1, settings=shape)
        for dtype in (one, two)
    )
    return Step(_INPUT, (0,), next(pieces), next(pieces), shape)


def read_pair(original: nn.Module, pruned: nn.Module, shape: tuple[int, ...], *, graph: Graph | None = None) -> Pair:
    """Read both networks and line them up.

    Args:
        original: The original network, in evaluation mode.
        pruned: The pruned network, of the same architecture.
        shape: Shape of an input, without the batch.
        graph: Given where the second is our own copy of the first with other values in its parameters and buffers: then
            one graph, from `read_graph`, serves both.

    Returns:
        The pair.

    Raises:
        BadInput: The architectures differ, an operator has no rule, or the network does nothing.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> [step.name for step in prunus.certificates.read_pair(model, model, (8,)).steps]
        ['layers.0', 'activation', 'layers.1']
    """
    first, one_type = _read(original, shape, graph)
    second, two_type = _read(pruned, shape, graph)
    if len(first) != len(second):
        raise BadInput(
            f"The two networks have different architectures: {len(first)} operations against {len(second)}; "
            "certify compares a network with a pruned form of itself."
        )
    steps = []
    for one, two in zip(first, second):
        if not _alike(one, two):
            raise BadInput(
                f"The two networks have different architectures: they part at {one.name!r} and {two.name!r}; "
                "certify compares a network with a pruned form of itself."
            )
        steps.append(Step(one.name, one.inputs, one.piece, two.piece, one.shape))
    if not steps:
        raise BadInput("The network does nothing to its input, so there is nothing to certify.")
    given = (dtype_of(original), dtype_of(pruned))
    if given[0] != given[1]:
        one_type, two_type = _coarser(one_type, given[0]), _coarser(two_type, given[1])
        later = (replace(step, inputs=tuple(index + 1 for index in step.inputs)) for step in steps)
        steps = [_rounded_input(*given, shape), *later]
    return Pair(tuple(steps), shape, (one_type, two_type), given)


# ---------------------------------------------------------------------------------------------------------- one network


def _alike(one: Operation, two: Operation) -> bool:
    left, right = one.piece, two.piece
    if one.inputs != two.inputs or one.shape != two.shape or left.kind != right.kind:
        return False
    if isinstance(left, Join) and isinstance(right, Join):
        return left.axis == right.axis
    if isinstance(left, Affine) and isinstance(right, Affine):
        weights = [None if piece.weight is None else piece.weight.shape for piece in (left, right)]
        return left.settings == right.settings and weights[0] == weights[1]
    return not isinstance(left, Join) and not isinstance(right, Join) and left.settings == right.settings


def check_model(model: nn.Module, which: str) -> None:
    """Refuse training mode and weights that are not finite."""
    if any(module.training for module in model.modules()):
        raise BadInput(f"The {which} network is in training mode: call model.eval() before certifying it.")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise BadInput(f"{name} of the {which} network has no values yet; run the network once on an input.")
        if tensor.is_inference():
            raise BadInput(
                f"The {which} network was made in torch.inference_mode, whose tensors have no gradients: copy it "
                "outside of that mode with copy.deepcopy."
            )
        if tensor.is_meta:
            raise BadInput(f"{name} of the {which} network is on the meta device and has no values; load the weights.")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.detach()).all()):
            raise BadInput(f"{name} of the {which} network holds values that are not finite; mend the checkpoint.")


def dtype_of(model: nn.Module) -> torch.dtype:
    """The floating type a network takes its inputs in: that of its first parameter."""
    found = (tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point())
    return next(found, torch.float32)


def _check_plain(model: nn.Module) -> None:
    """Refuse modules whose code is not the Python that is read: TorchScript, and what torch.compile made of one.

    A backend of torch.compile may compute something else than the module inside; a certificate is about what runs.
    """
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise BadInput("A TorchScript module cannot be certified: give the module that it was made from.")
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise BadInput(
                "What torch.compile makes of a module cannot be certified, for its backend may compute something else: "
                "give the plain module."
            )


def read_graph(model: nn.Module, shape: tuple[int, ...]) -> Graph:
    """What a network computes for inputs of `shape`, at the level that the rules are written for."""
    _check_plain(model)
    return read(model, torch.zeros(1, *shape, dtype=dtype_of(model)), level="exported")


def _read(model: nn.Module, shape: tuple[int, ...], known: Graph | None) -> tuple[list[Operation], torch.dtype]:
    _check_plain(model)
    model = unwrapped(model)
    if any(is_packed(module) for module in model.modules()):
        model = decompressed(copy.deepcopy(model))
    with leaves_of(model, rule_for_module):
        graph = known or read_graph(model, shape)
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())} if known else {}
        reader = _Reader(graph, state)
        ops = reader.read()
    return folded(pooled_first(ordered(ops))), reader.coarsest


class _Reader:
    """Walks a graph once: constants are computed, every operator on the input asks its rule for pieces."""

    def __init__(self, graph: Graph, state: Mapping[str, Tensor]) -> None:
        self.graph = graph
        self.state = state
        self.env: dict[str, Any] = {}
        self.ops: list[Operation] = []
        self.coarsest = torch.float64
        self.types: set[torch.dtype] = set()
        self.sized: set[str] = set()  # constants whose shape has the batch size in it

    def read(self) -> list[Operation]:
        self._check()
        with torch.no_grad():
            for node in self.graph.nodes:
                self.env[node.name] = self._node(node)
        output = self.env[self.graph.output.name]
        if not isinstance(output, Value):
            raise BadInput("The network's output does not depend on its input, so there is nothing to certify.")
        if not output.real or output.varies != (True, *[False] * (len(output.real) - 1)) or output.real[0] != 1:
            raise BadInput("The network's output mixes the examples of a batch, so it cannot be certified.")
        return self.ops[: output.index]

    def _check(self) -> None:
        graph = self.graph
        if graph.mutations:
            name = next(iter(graph.mutations))
            raise BadInput(f"The network changes {name!r} while it runs, so two runs differ: it cannot be certified.")
        tensors = [i for i, item in enumerate(graph.outputs) if isinstance(item, Node)]
        named = graph.output_names[graph.main] in ("logits", "last_hidden_state")
        if len(tensors) > 1 and not named:
            raise BadInput(
                f"The network returns {len(tensors)} tensors; a certificate is about one: wrap it so that it returns "
                "that one."
            )
        if not graph.dynamic:
            raise BadInput(
                "The network is tied to one batch size (it moves entries between the examples of a batch, or branches "
                "on their number), so it cannot be certified."
            )

    def _node(self, node: Node) -> Any:
        if node.kind == "input":
            spec = node.spec
            return Value(0, stored(spec.shape, spec.varies), spec.shape, spec.varies)
        if node.is_state:
            return next((self.state[name] for name in node.names if name in self.state), node.tensor)
        args, kwargs = resolved(node.args, self.env), resolved(node.kwargs, self.env)
        if node.number is not None:
            return BatchNumber(node.number)
        given = list(flat((args, kwargs)))
        if node.op == "getitem" and isinstance(args[0], tuple):
            return LEFT_OUT if args[0][args[1]] is None else args[0][args[1]]
        if any(isinstance(item, BatchNumber) for item in (*args, *kwargs.values())):
            raise BadInput(f"{where(node)} uses the batch size as a number, so it cannot be certified.")
        if any(item is LEFT_OUT for item in given):
            raise BadInput(f"{where(node)} uses a part of a result, such as where a maximum stands, that has no bound.")
        if not any(isinstance(item, Value) for item in given):
            return self._constant(node, args, kwargs)
        return self._take(node, args, kwargs)

    def _constant(self, node: Node, args: Any, kwargs: Any) -> Any:
        sized = any(isinstance(item, BatchNumber) for item in flat((args, kwargs)))
        if sized or any(source.name in self.sized for source in node.inputs):
            check_sized(node)
            self.sized.add(node.name)
        return constant(node, args, kwargs)

    def _take(self, node: Node, args: Any, kwargs: Any) -> Any:
        module = leaf_module(args) if node.op == LEAF else None
        rule = rule_for_module(module) if module is not None else rule_for_operator(node.op)
        if rule is None:
            raise no_rule(node.op, f" ({node.name}{place(node)})")
        self.types.update(spec.dtype for spec in node.specs if spec.dtype.is_floating_point)
        if {torch.float16, torch.bfloat16} <= self.types:
            raise BadInput("The network mixes float16 and bfloat16, which no certificate covers: use one of them.")
        for spec in node.specs:
            if spec.dtype.is_floating_point and torch.finfo(spec.dtype).eps > torch.finfo(self.coarsest).eps:
                self.coarsest = spec.dtype
        if not node.specs[0].dtype.is_floating_point:
            raise BadInput(f"{where(node)} makes numbers of type {node.specs[0].dtype}, which no certificate covers.")
        specs = [(stored(spec.shape, spec.varies), spec.shape, spec.varies) for spec in node.specs]
        shape, real, varies = specs[0]
        label = _label(node)

        def emit(piece: Piece, values: Sequence[Value], made: tuple[int, ...]) -> Value:
            self.ops.append(Operation(label, tuple(value.index for value in values), piece, made))
            if made == shape:
                return Value(len(self.ops), shape, real, varies)
            return Value(len(self.ops), made, (1, *made), (True, *[False] * len(made)))

        call = Call(
            node.name,
            node.op,
            double(args),
            double(kwargs),
            shape,
            real,
            varies,
            node.function or (lambda *_: None),
            emit,
            module,
            place(node),
            tuple((spec.shape, spec.varies) for spec in node.specs),
            node.specs[0].dtype,
        )
        result = rule(call)
        if result is None:
            return Value(call.value.index, shape, real, varies)
        if isinstance(result, (Value, tuple)):
            return result
        return emit(result, call.values, shape)


def _label(node: Node) -> str:
    """The layer an operator belongs to: that of its parameter, else the module that made the call."""
    layers = (source.target.rpartition(".")[0] for source in node.inputs if source.kind == "parameter")
    return next(layers, "") or node.module or node.name


def input_shape(model: nn.Module, shape: tuple[int, ...] | None, example: Any) -> tuple[int, ...]:
    """The shape of one input: from the domain, from an example with a batch, or from the first layer's width."""
    if isinstance(example, Tensor):
        if example.ndim < 2:
            raise BadInput("The example must have the batch in front: give a tensor of shape (n, *input shape).")
        seen = tuple(example.shape[1:])
        if shape is not None and shape != seen:
            raise BadInput(f"The domain has shape {shape}, but the example shows inputs of shape {seen}.")
        return seen
    if shape is not None:
        return shape
    layers = (m for m in model.modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd)))
    layer = next(layers, None)
    if isinstance(layer, nn.Linear):
        return (layer.in_features,)
    raise BadInput(
        "The shape of the network's inputs cannot be seen from this domain: give certify an example=, a tensor of "
        "shape (n, *input shape)."
    )

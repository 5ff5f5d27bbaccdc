"""Two networks of one architecture as one list of steps, read with torch.fx (or torch.export where fx cannot).

Value 0 is the input; step number i makes value i + 1 from earlier ones. A batch norm that follows a layer is folded
into it, in each network with its own statistics (ledger P-31).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from prunus.certificates import linear_rules, other_rules  # noqa: F401  (they register their rules)
from prunus.certificates.compressed import decompressed
from prunus.certificates.pieces import Affine, Join, Piece
from prunus.certificates.rules import Call, Value, no_rule, rule_for_module, rule_for_target
from prunus.errors import BadInput

_BATCH = 2


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
    """Both networks; `dtypes` are those they really run in."""

    steps: tuple[Step, ...]
    input_shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, torch.dtype]

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.steps[-1].shape

    def run(self, inputs: Tensor, pruned: bool) -> list[Tensor]:
        """All values of one network for inputs (n, *shape) in float64."""
        values = [inputs]
        for step in self.steps:
            piece = step.pruned if pruned else step.original
            if isinstance(piece, Join):
                values.append(piece.run([values[index] for index in step.inputs]))
            else:
                values.append(piece.run(values[step.inputs[0]]))
        return values

    def to(self, dtype: torch.dtype) -> Pair:
        """The same with weights of another type, for searches that need not be exact."""
        steps = [replace(s, original=_cast(s.original, dtype), pruned=_cast(s.pruned, dtype)) for s in self.steps]
        return replace(self, steps=tuple(steps))

    def outputs(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of both networks, flattened to (n, outputs)."""
        return self.run(inputs, pruned=False)[-1].flatten(1), self.run(inputs, pruned=True)[-1].flatten(1)


def _cast(piece: Piece, dtype: torch.dtype) -> Piece:
    if not isinstance(piece, Affine):
        return piece
    weight = None if piece.weight is None else piece.weight.to(dtype)
    return replace(piece, weight=weight, bias=None if piece.bias is None else piece.bias.to(dtype))


def read_pair(original: nn.Module, pruned: nn.Module, shape: tuple[int, ...]) -> Pair:
    """Read both networks for inputs of `shape` (without the batch) and line them up."""
    first, second = _read(original, shape), _read(pruned, shape)
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
    return Pair(tuple(steps), shape, (_dtype(original), _dtype(pruned)))


def _dtype(model: nn.Module) -> torch.dtype:
    """The coarsest floating type among the parameters: what the network computes in."""
    found = {p.dtype for p in model.parameters() if p.dtype.is_floating_point} or {torch.float32}
    return max(found, key=lambda kind: torch.finfo(kind).eps)


# ---------------------------------------------------------------------------------------------------------- one network


@dataclass(frozen=True, eq=False)
class _Op:
    name: str
    inputs: tuple[int, ...]
    piece: Piece
    shape: tuple[int, ...]


def _alike(one: _Op, two: _Op) -> bool:
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
        if tensor.is_meta:
            raise BadInput(f"{name} of the {which} network is on the meta device and has no values; load the weights.")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadInput(f"{name} of the {which} network holds values that are not finite; mend the checkpoint.")


def _read(model: nn.Module, shape: tuple[int, ...]) -> list[_Op]:
    double = decompressed(copy.deepcopy(model).cpu()).double().eval()
    for parameter in double.parameters():
        parameter.requires_grad_(False)
    example = torch.zeros(_BATCH, *shape, dtype=torch.float64)
    reader = _Reader(_graph(double, example), example)
    return _folded(_ordered(reader.read()))


class _Tracer(fx.Tracer):
    """Modules with a rule are leaves, and so is everything in torch.nn but its containers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return rule_for_module(m) is not None or super().is_leaf_module(m, module_qualified_name)


def _graph(model: nn.Module, example: Tensor) -> fx.GraphModule:
    if rule_for_module(model) is not None:
        model = nn.Sequential(model)
    try:
        return fx.GraphModule(model, _Tracer().trace(model))
    except Exception as reason:  # fx runs the model's own code, which may raise anything
        try:
            exported = torch.export.export(model, (example,)).module()
        except Exception:
            raise BadInput(
                f"The graph of this network cannot be read: torch.fx says {str(reason).splitlines()[0]!r}, and "
                "torch.export fails too; write its forward without branches on values."
            ) from reason
        return exported  # type: ignore[return-value]


class _Reader(fx.Interpreter):
    """Runs the graph once on an example and asks the rule of every operation for its piece."""

    def __init__(self, module: fx.GraphModule, example: Tensor) -> None:
        super().__init__(module)
        self._example = example
        self._numbers: dict[fx.Node, int] = {}
        self._shapes: list[tuple[int, ...]] = []
        self._ops: list[_Op] = []
        self._output: int | None = None

    def read(self) -> list[_Op]:
        with torch.no_grad():
            try:
                self.run(self._example)
            except BadInput:
                raise
            except Exception as error:
                shape = tuple(self._example.shape[1:])
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise BadInput(f"The network does not take inputs of shape {shape}: {reason}") from None
        if self._output is None:
            raise BadInput("The network must return one tensor that depends on its input.")
        return self._ops[: self._output]

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "placeholder" and not self._shapes:
            self._numbers[n] = 0
            self._shapes.append(tuple(self._example.shape[1:]))
            return super().run_node(n)
        reads = [node for node in n.all_input_nodes if node in self._numbers]
        if n.op == "output":
            returned = n.args[0]
            while isinstance(returned, (tuple, list)) and len(returned) == 1:
                returned = returned[0]
            self._output = self._numbers.get(returned) if isinstance(returned, fx.Node) else None
            return super().run_node(n)
        result = super().run_node(n)
        if reads and isinstance(result, Tensor) and n.op in ("call_module", "call_function", "call_method"):
            self._take(n, result)
        return result

    def _take(self, node: fx.Node, result: Tensor) -> None:
        module = self.fetch_attr(str(node.target)) if node.op == "call_module" else None
        rule = rule_for_module(module) if module is not None else rule_for_target(node.target)
        name = str(node.target) if module is not None else node.name
        if rule is None:
            raise no_rule(name, type(module) if module is not None else node.target)
        if result.ndim < 2 or result.shape[0] != _BATCH:
            raise BadInput(f"The operation {name!r} mixes the examples of a batch, so it cannot be certified.")
        call = Call(
            name,
            tuple(fx.node.map_aggregate(node.args, self._resolve)),  # type: ignore[arg-type]
            dict(fx.node.map_aggregate(node.kwargs, self._resolve)),  # type: ignore[arg-type]
            tuple(result.shape[1:]),
            module,
            _BATCH,
        )
        piece = rule(call)
        if piece is None:
            self._numbers[node] = call.value.index
            return
        self._ops.append(_Op(name, tuple(value.index for value in call.values), piece, call.shape))
        self._shapes.append(call.shape)
        self._numbers[node] = len(self._ops)

    def _resolve(self, item: Any) -> Any:
        if not isinstance(item, fx.Node):
            return item
        if item in self._numbers:
            number = self._numbers[item]
            return Value(number, self._shapes[number])
        return self.env[item]


def _ordered(ops: list[_Op]) -> list[_Op]:
    """The operations behind the output in the order in which it asks for them: two graphs of one architecture agree."""
    number: dict[int, int] = {0: 0}
    result: list[_Op] = []
    stack = [len(ops)]
    while stack:
        value = stack[-1]
        if value in number:
            stack.pop()
            continue
        op = ops[value - 1]
        missing = [index for index in op.inputs if index not in number]
        if missing:
            stack += reversed(missing)
            continue
        result.append(replace(op, inputs=tuple(number[index] for index in op.inputs)))
        number[value] = len(result)
        stack.pop()
    return result


def _folded(ops: list[_Op]) -> list[_Op]:
    """Fold every per-channel scaling into the layer before it, where nothing else reads that layer."""
    readers = [0] * (len(ops) + 1)
    for op in ops:
        for index in op.inputs:
            readers[index] += 1
    result: list[_Op] = []
    number = {0: 0}  # old value -> new value
    for position, op in enumerate(ops, start=1):
        folded = _fold_into(op, result, number, readers)
        if folded is None:
            result.append(replace(op, inputs=tuple(number[index] for index in op.inputs)))
        else:
            result[-1] = folded
        number[position] = len(result)
    return result


def _fold_into(op: _Op, result: list[_Op], number: dict[int, int], readers: list[int]) -> _Op | None:
    scale = op.piece
    if not (isinstance(scale, Affine) and scale.kind == "diagonal" and scale.settings == (1,) and result):
        return None
    before = result[-1]
    source = op.inputs[0]
    layer = before.piece
    if number[source] != len(result) or readers[source] != 1 or not isinstance(layer, Affine) or layer.scaled is None:
        return None
    if len(before.shape) != 1 and layer.kind == "linear":
        return None  # a linear layer over sequences has its channels last
    factors = scale.weight
    assert layer.weight is not None
    assert factors is not None
    bias = scale.bias
    if layer.bias is not None:
        scaled = layer.bias * factors.reshape(-1, *[1] * (layer.bias.ndim - 1))
        bias = scaled if bias is None else bias.reshape(scaled.shape) + scaled
    return replace(before, piece=replace(layer, weight=layer.scaled(layer.weight, factors), bias=bias))


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

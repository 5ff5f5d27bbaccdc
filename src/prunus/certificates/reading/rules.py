"""The registry of rules: how each operator of a graph becomes a piece.

    @prunus.certificates.register_rule("aten.sin.default")      # or a module class, exactly this one
    def sine(call):
        return prunus.certificates.Lipschitz("sine", torch.sin, 1.0)

A rule receives a `Call` and returns a piece, a value it has emitted itself, or None where the operator passes its input
on unchanged. A module class with a rule is kept whole while the model is read: its forward is not looked into, but
hooks on it still show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from prunus._torch import OpOverload, OpOverloadPacket
from prunus.certificates.reading.pieces import Piece
from prunus.errors import BadInput


@dataclass(frozen=True)
class Value:
    """A value of the graph: its number, its shape without the batch, and the shape the operators see.

    `real` is the operators' own shape for a batch of one; `shape` is the same without axes that are 1 only because the
    batch is. `varies` marks the real axes that grow with the batch.
    """

    index: int
    shape: tuple[int, ...]
    real: tuple[int, ...]
    varies: tuple[bool, ...]

    @property
    def kept(self) -> list[int]:
        """The real axes that `shape` keeps."""
        return [axis for axis, (size, varies) in enumerate(zip(self.real, self.varies)) if not (varies and size == 1)]


class BatchNumber(int):
    """A number that depends on the batch size; rules refuse it except in shapes."""


Rule = Callable[["Call"], Any]
Emit = Callable[[Piece, Sequence[Value], tuple[int, ...]], Value]


@dataclass(frozen=True, eq=False)
class Call:
    """One operator, as a rule sees it.

    Attributes:
        name: The name of its node in the graph.
        op: The operator, such as "aten.relu.default".
        args: The arguments: values of the graph as `Value`, constants as float64 tensors, everything else as it is.
        kwargs: The same by name.
        shape: The output's shape without the batch.
        real: The output's shape as the operators see it, for a batch of one.
        varies: For each axis of `real`, whether it grows with the batch.
        function: What runs the operator.
        emit: `emit(piece, values, shape)` adds a step and gives its value, for rules that need several.
        module: The module, where one with a rule of its own was called.
        place: Where in the network the call stands.
        outputs: Shape and varying axes of every output, where there are several.
        dtype: The type of the output.

    Example:
        >>> from prunus.certificates import Lipschitz, read_pair, register_rule, unregister_rule
        >>> class Sine(torch.nn.Module):
        ...     def forward(self, x):
        ...         return x.sin()
        >>> def rule(call):
        ...     print(call.op, call.shape)
        ...     return Lipschitz("sine", torch.sin, 1.0)
        >>> rule = register_rule("aten.sin")(rule)
        >>> pair = read_pair(Sine().eval(), Sine().eval(), (4,))
        aten.sin.default (4,)
        aten.sin.default (4,)
        >>> unregister_rule("aten.sin")
    """

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...]
    real: tuple[int, ...]
    varies: tuple[bool, ...]
    function: Callable[..., Any]
    emit: Emit
    module: nn.Module | None = None
    place: str = ""
    outputs: tuple[tuple[tuple[int, ...], tuple[bool, ...]], ...] = field(default=())
    dtype: torch.dtype = torch.float32

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name.

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

    @property
    def value(self) -> Value:
        """The single input."""
        return self.values[0]

    @property
    def values(self) -> list[Value]:
        """All inputs that are values of the graph, in order; lists are looked into."""
        found: list[Value] = []
        for item in (*self.args, *self.kwargs.values()):
            for entry in item if isinstance(item, (list, tuple)) else (item,):
                if isinstance(entry, Value):
                    found.append(entry)
        return found

    def axis(self, dimension: int, value: Value | None = None) -> int:
        """Where an operator's dimension stands in the stored value, counted with the batch in front.

        Args:
            dimension: as the operator counts it; negative numbers count from the end.
            value: the value that is meant; the operator's first input unless given.

        Returns:
            The axis.

        Raises:
            BadInput: if the operator works across the examples of a batch.
        """
        value = value or self.value
        real = dimension % max(1, len(value.real))
        if value.varies[real]:
            raise self.refuse("it works across the examples of a batch")
        return value.kept.index(real) + 1

    def image(self, axes: int) -> tuple[int, ...]:
        """The last `axes` sizes of the input, which must look like (batch, channels, *image).

        Args:
            axes: how many dimensions the image has.

        Returns:
            Their sizes.

        Raises:
            BadInput: if the input is laid out in another way.
        """
        value = self.value
        if len(value.real) != axes + 2 or value.varies != (True, *[False] * (axes + 1)) or value.real[0] != 1:
            raise self.refuse("its input is not laid out as (batch, channels, image)")
        return value.shape[1:]

    def constant(self, item: Any) -> Tensor:
        """A constant broadcast to the output, in the stored shape.

        Args:
            item: a number, a list or a tensor.

        Returns:
            A tensor in float64.

        Raises:
            BadInput: if it does not fit the output or is not finite.
        """
        tensor = torch.as_tensor(item, dtype=torch.float64)
        try:
            whole = tensor.expand(self.real)
        except RuntimeError:
            raise self.refuse("a constant does not fit the value it meets") from None
        if not bool(torch.isfinite(tensor).all()):
            raise self.refuse("a constant in it is not finite")
        return whole.reshape(self.shape).clone()

    def refuse(self, reason: str) -> BadInput:
        """The error of an operator that has a rule, but not with these arguments.

        Args:
            reason: what is in the way, as the end of a sentence.

        Returns:
            The error, to be raised.
        """
        return BadInput(f"The operator {self.op} ({self.name}{self.place}) cannot be certified: {reason}.")


_RULES: dict[Any, Rule] = {}


def _target(target: Any) -> Any:
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, OpOverloadPacket):
        return f"{target._qualified_op_name.replace('::', '.')}"
    if isinstance(target, str) and target.count(".") >= 1:
        return target
    if isinstance(target, type) and issubclass(target, nn.Module):
        return target
    raise BadInput(
        f"A certificate rule is registered for an operator such as 'aten.sin.default', or for a module class, not for "
        f"{target!r}."
    )


def register_rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a rule for ATen operators or module classes.

    Args:
        targets: names such as "aten.relu.default" ("aten.relu" stands for all overloads), `torch.ops.aten.relu`, or
            module classes. A class counts exactly: subclasses are read through their own forward.

    Returns:
        A decorator for the rule, a function of one `Call`.

    Raises:
        BadInput: the target has a rule already, or is no operator and no module class.

    Example:
        >>> import torch, prunus
        >>> from prunus.certificates import Lipschitz, register_rule, unregister_rule
        >>> rule = register_rule("aten.sin.default")(lambda call: Lipschitz("sine", torch.sin, 1.0))
        >>> unregister_rule("aten.sin.default")
    """
    wanted = [_target(target) for target in targets]

    def register(rule: Rule) -> Rule:
        for target in wanted:
            if target in _RULES:
                raise BadInput(f"A rule for {describe_target(target)} exists already; remove it with unregister_rule.")
        for target in wanted:
            _RULES[target] = rule
        return rule

    return register


def unregister_rule(target: Any) -> None:
    """Forget the rule of a target.

    Args:
        target: what `register_rule` was given.

    Example:
        >>> import prunus
        >>> prunus.certificates.unregister_rule("aten.never_registered.default")
    """
    _RULES.pop(_target(target), None)


def rule_for_module(module: nn.Module) -> Rule | None:
    """The rule of exactly this class: a subclass may compute something else."""
    return _RULES.get(type(module))


def rule_for_operator(op: str) -> Rule | None:
    """The rule of an operator: of this overload, or of all overloads."""
    return _RULES.get(op) or _RULES.get(op.rpartition(".")[0])


def describe_target(target: Any) -> str:
    return f"{target.__module__}.{target.__qualname__}" if isinstance(target, type) else str(target)


def no_rule(op: str, where: str) -> BadInput:
    """What a user reads when an operator is unknown."""
    return BadInput(
        f"The operator {op}{where} has no certificate rule: register one with prunus.certificates.register_rule, which "
        "turns it into an Affine, Elementwise, Join or Lipschitz piece."
    )


def stored(real: tuple[int, ...], varies: tuple[bool, ...]) -> tuple[int, ...]:
    """The shape kept for a value: without the axes that are 1 because the batch is, (1,) for a number by example."""
    return tuple(size for size, free in zip(real, varies) if not (free and size == 1)) or (1,)


def entries(shape: tuple[int, ...]) -> int:
    return math.prod(shape)

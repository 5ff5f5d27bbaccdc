"""The registry of rules: how each operation of a graph becomes a piece.

    @prunus.certificates.register_rule(MyScale)                 # a module class, a function, or a tensor method's name
    def my_scale(call):
        return prunus.certificates.diagonal(call.module.scale)

A rule receives a `Call` and returns a piece, or None where the operation passes its input on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from prunus.certificates.pieces import Piece
from prunus.errors import BadInput


@dataclass(frozen=True)
class Value:
    """A value of the graph: its number and its shape without the batch."""

    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """One operation: values of the graph appear as `Value`, weights as float64 tensors, everything else as it is.

    `shape` is the output's shape without the batch; `module` is set where a module was called; `batch` is the batch
    size of the traced example.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...]
    module: nn.Module | None = None
    batch: int = 2

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
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

    def refuse(self, reason: str) -> BadInput:
        return BadInput(f"The operation {self.name!r} cannot be certified: {reason}.")


Rule = Callable[[Call], Piece | None]
_RULES: dict[Any, Rule] = {}


def register_rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a rule for module classes, functions, or names of tensor methods; refuses a second rule for one."""

    def register(rule: Rule) -> Rule:
        for target in targets:
            if target in _RULES:
                raise BadInput(f"A rule for {describe_target(target)} exists already; remove it with unregister_rule.")
        for target in targets:
            _RULES[target] = rule
        return rule

    return register


def unregister_rule(target: Any) -> None:
    """Forget the rule of a target."""
    _RULES.pop(target, None)


def rule_for_module(module: nn.Module) -> Rule | None:
    """The rule of the module's class or of the nearest class above it."""
    for kind in type(module).__mro__:
        if kind in _RULES:
            return _RULES[kind]
    return None


def rule_for_target(target: Any) -> Rule | None:
    """The rule of a function, of a torch operator (any overload), or of a method's name."""
    if target in _RULES:
        return _RULES[target]
    name = getattr(getattr(target, "overloadpacket", None), "__name__", None)
    return _RULES.get(f"aten.{name}") if name else None


def describe_target(target: Any) -> str:
    if isinstance(target, type):
        return f"{target.__module__}.{target.__qualname__}"
    return target if isinstance(target, str) else getattr(target, "__name__", repr(target))


def no_rule(name: str, target: Any) -> BadInput:
    """What a user reads when an operation is unknown."""
    return BadInput(
        f"The operation {name!r} ({describe_target(target)}) has no certificate rule: register one with "
        "prunus.certificates.register_rule, which turns it into an Affine, Elementwise, Join or Lipschitz piece."
    )


def constant(item: Any) -> bool:
    """Is this a weight (and no value of the graph)?"""
    return isinstance(item, Tensor)

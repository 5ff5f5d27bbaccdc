"""The module-level graph of torch.fx, for code that rewrites a model and hands back ordinary modules.

`read` gives what a model computes: certificates use it. This graph has the author's own modules as its steps,
so layers can be exchanged in place. torch.fx ignores forward hooks silently: a model that has them is refused.

Tracing runs a forward on stand-ins, one for each argument. A stand-in is no None, True or text, so a forward that asks
`mask is None` would go the wrong way: arguments that can be left out are fixed to their defaults instead, unless told
otherwise.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, fx, nn

from prunus.errors import BadInput, first_line

_CONSTANT = "_traced"  # begins the names of tensors that a forward makes itself; tracing puts them on the model


class _StandIn(fx.Proxy):
    """What flows through a traced forward. The model's own code is told that it is a tensor; torch knows better."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        if asking == "torch" or asking.startswith("torch."):
            return _StandIn
        default = self.node.args[0] if self.node.op == "placeholder" and self.node.args else None
        return type(default) if isinstance(default, (int, float)) else Tensor


class _Tracer(fx.Tracer):
    """`leaves` are classes that count as one step; `fixed` are arguments that have these values."""

    def __init__(self, leaves: tuple[type, ...] = (), fixed: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.leaves, self.fixed = leaves, dict(fixed or {})
        self._constants = 0

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self.leaves) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _StandIn(node, self)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        function, stand_ins = super().create_args_for_root(root_fn, is_module, concrete_args)
        values = [
            self.fixed.get(str(one.node.target).lstrip("*"), one) if type(one) is _StandIn else one for one in stand_ins
        ]
        return function, values

    def get_fresh_qualname(self, prefix: str) -> str:
        """Names of constants are numbered anew by each trace, so that files find them again."""
        self._constants += 1
        return f"{_CONSTANT}{prefix}{self._constants - 1}"


def trace(model: nn.Module, leaves: tuple[type, ...] = (), fixed: Mapping[str, Any] | None = None) -> fx.Graph:
    """The steps of a model as calls of its own modules and of functions.

    Args:
        model: Any module.
        leaves: Classes that count as one step; layers of `torch.nn` always do.
        fixed: Arguments of its forward that have these values; the graph is that of such calls alone. None fixes those
            that can be left out to their defaults (but numbers, which may be others).

    Returns:
        The graph that torch.fx records.

    Raises:
        BadInput: The model has forward hooks, or its control flow depends on values.

    Example:
        >>> graph = prunus.graph.trace(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()))
        >>> [node.op for node in graph.nodes]
        ['placeholder', 'call_module', 'call_module', 'output']
    """
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise BadInput(f"The layer {name or '(the model)'} has forward hooks, which cannot be traced: remove them.")
    for name in [name for name in vars(model) if name.startswith(_CONSTANT)]:  # left by a trace before
        delattr(model, name)
    try:
        return _Tracer(leaves, fixed_arguments(model) if fixed is None else fixed).trace(model)
    except Exception as error:  # tracing runs the model's own code on stand-ins, which may raise anything
        raise BadInput(f"The model {type(model).__name__} cannot be traced ({first_line(error)}).") from error


def fixed_arguments(
    model: nn.Module, stand_ins: Collection[str] = (), constants: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments that a trace fixes, and to which values.

    Args:
        model: Any module.
        stand_ins: Names of arguments that are given, as tensors, though they can be left out.
        constants: Arguments that are given as something to branch on: None, True, False, a text.

    Returns:
        Values by name; arguments that must be given, and numbers, are none of these.

    Example:
        >>> prunus.graph.fixed_arguments(torch.nn.Transformer(8, 2))["tgt_mask"] is None
        True
    """
    fixed: dict[str, Any] = {}
    for name, parameter in _parameters(model).items():
        number = isinstance(parameter.default, (int, float)) and not isinstance(parameter.default, bool)
        if name in (constants or {}):
            fixed[name] = (constants or {})[name]
        elif name in stand_ins or number or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif parameter.kind is parameter.VAR_KEYWORD:
            fixed[name] = {}
        elif parameter.default is not parameter.empty:
            fixed[name] = parameter.default
    return fixed


def given_arguments(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """What `fixed_arguments` is told of a call: names of stand-ins, and constants.

    Args:
        model: Any module.
        args: What it is called with, by position.
        kwargs: The same by name.

    Returns:
        The stand-ins and the constants; both empty where the call does not fit the forward.

    Example:
        >>> prunus.graph.given_arguments(torch.nn.Linear(4, 2), (torch.zeros(1, 4),), {})
        (['input'], {})
    """
    try:
        given = inspect.signature(_forward(model)).bind(model, *args, **kwargs).arguments
    except (TypeError, ValueError):
        return [], {}
    given.pop(next(iter(given)))  # the model itself
    constants = {name: value for name, value in given.items() if value is None or isinstance(value, (bool, str))}
    return [name for name in given if name not in constants], constants


def every_trace(model: nn.Module, leaves: tuple[type, ...] = ()) -> list[fx.Graph]:
    """The graphs of a model for the ways in which arguments that can be left out may be given; what holds in all holds.

    They are left out, or given as a stand-in (of True and False: as the other), one alone and all at once.

    Args:
        model: Any module.
        leaves: Classes that count as one step.

    Returns:
        The graphs, those of equal calls once.

    Raises:
        BadInput: One of them cannot be traced.

    Example:
        >>> len(prunus.graph.every_trace(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())))
        1
    """
    defaults = fixed_arguments(model)
    others = {name: {name: not value} if isinstance(value, bool) else {} for name, value in defaults.items()}
    ways = [defaults, {name: value for other in others.values() for name, value in other.items()}]
    for name, other in others.items():
        ways.append({key: value for key, value in defaults.items() if key != name} | other)
    different = {tuple((name, id(value)) for name, value in way.items()): way for way in ways}
    return [trace(model, leaves, way) for way in different.values()]


def _forward(model: nn.Module) -> Callable[..., Any]:
    return type(model).forward


def _parameters(model: nn.Module) -> dict[str, inspect.Parameter]:
    """The arguments of a model's forward, without the model itself."""
    try:
        return dict(list(inspect.signature(_forward(model)).parameters.items())[1:])
    except (TypeError, ValueError):
        return {}

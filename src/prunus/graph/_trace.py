"""The module-level graph of torch.fx, for code that rewrites a model and hands back ordinary modules.

`read` gives what a model computes: certificates use it. This graph has the author's own modules as its steps,
so layers can be exchanged in place. torch.fx ignores forward hooks silently: a model that has them is refused.
"""

from __future__ import annotations

from torch import fx, nn

from prunus.errors import BadInput, first_line


class _Tracer(fx.Tracer):
    def __init__(self, leaves: tuple[type, ...]) -> None:
        super().__init__()
        self.leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self.leaves) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module, leaves: tuple[type, ...] = ()) -> fx.Graph:
    """The steps of a model as calls of its own modules and of functions.

    Args:
        model: Any module.
        leaves: Classes that count as one step; layers of `torch.nn` always do.

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
    try:
        return _Tracer(leaves).trace(model)
    except Exception as error:  # tracing runs the model's own code on stand-ins, which may raise anything
        raise BadInput(f"The model {type(model).__name__} cannot be traced ({first_line(error)}).") from error

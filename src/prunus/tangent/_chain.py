"""Reading a network as a chain: linear and convolution layers with ReLU, pooling and flattening between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, fx, nn

from prunus.errors import BadInput
from prunus.graph import trace

Operation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ChainStep:
    """One step of a chain: a layer with weights (its module and name), or an operation without.

    `kind` is "layer", "relu", "flatten", "average" (over all pixels) or "pool".
    """

    kind: str
    module: nn.Module | None = None
    name: str = ""
    apply: Operation | None = None


def relu_chain(model: nn.Module) -> list[ChainStep]:
    """The steps of `model`; refuses, in one sentence, a network that is no chain of these pieces."""
    try:
        graph = trace(model)
    except BadInput as error:
        raise BadInput(
            f"The network could not be read as a chain of layers: {error} The NTK form is known for chains of linear "
            "and convolution layers with ReLU."
        ) from error
    return list(_steps(model, graph))


def _steps(model: nn.Module, graph: fx.Graph) -> Iterator[ChainStep]:
    last: fx.Node | None = None
    seen: set[int] = set()
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
            continue
        if node.op == "output":
            if node.args[0] is not last:
                raise BadInput("The network does not return the result of its last layer: it is no chain.")
            return
        if node.all_input_nodes != [last]:
            raise BadInput(
                f"The step {node.name} of the network does not take the result of the step before it alone: "
                "the NTK form is known for chains of layers only."
            )
        found = _step(model, node)
        if found is not None:
            if found.module is not None and id(found.module) in seen:
                raise BadInput(f"The layer {found.name} is used twice: the NTK form is known for chains only.")
            seen.add(id(found.module))
            yield found
        last = node


def _step(model: nn.Module, node: fx.Node) -> ChainStep | None:
    if node.op == "call_module":
        return _module_step(model.get_submodule(str(node.target)), str(node.target))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    arguments, options = node.args[1:], dict(node.kwargs)
    if name in ("relu", "relu_"):
        return ChainStep("relu", apply=F.relu)
    if name == "flatten" and (arguments or tuple(options.values())) in ((1,), (1, -1)):
        return ChainStep("flatten", apply=_flatten)
    if name == "mean" and _dimensions(arguments, options) in ((2, 3), (-2, -1)):
        return ChainStep("average", apply=_average)
    raise BadInput(
        f"The step {name} of the network has no NTK form: known are linear and convolution layers, ReLU, "
        "pooling and flatten; other networks go to empirical as they are."
    )


def _dimensions(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, ...] | None:
    found = arguments[0] if arguments else options.get("dim")
    return tuple(found) if isinstance(found, (tuple, list)) else None


def _flatten(x: Tensor) -> Tensor:
    return x.flatten(1)


def _average(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def _module_step(module: nn.Module, name: str) -> ChainStep | None:
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        return ChainStep("layer", module, name)
    if isinstance(module, nn.ReLU):
        return ChainStep("relu", apply=F.relu)
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
        return ChainStep("flatten", apply=_flatten)
    if isinstance(module, (nn.MaxPool2d, nn.AvgPool2d)):
        return ChainStep("pool", apply=module)
    if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size in (1, (1, 1)):
        return ChainStep("average", apply=module)
    if isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and not module.training):
        return None
    hint = " in training mode" if module.training and isinstance(module, nn.Dropout) else ""
    raise BadInput(
        f"The layer {name} is a {type(module).__name__}{hint}, which has no NTK form: the limit is known for linear "
        "and convolution layers with ReLU; call eval() or use empirical on the network as it is."
    )

"""Which tensors of a model can be pruned, what they are called, and how their rows read.

Prunable are the weights of linear and convolution layers (grouped, depthwise and transposed too), the matrices of
recurrent cells, and the projections of attention. Biases, norms and embeddings are not. A tensor that two modules share
is listed once, under its first name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_RECURRENT = re.compile(r"weight_(ih|hh|hr)(_l\d+(_reverse)?)?")


def plain_name(name: str) -> str:
    """`name` without what wrappers add: a leading "module." and every "_orig_mod."."""
    name = name.replace("_orig_mod.", "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Full name -> plain name; names that would collide once the wrappers' parts are gone keep their full form."""
    full = list(names)
    counts = Counter(plain_name(name) for name in full)
    return {name: plain_name(name) if counts[plain_name(name)] == 1 else name for name in full}


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by plain name, those shared by several modules under each of their names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {plain: parameters[name] for name, plain in plain_names(parameters).items()}


@dataclass(frozen=True, eq=False)
class Weight:
    """One prunable tensor: its plain name, the parameter, the module that holds it, and the shape of its rows.

    `rows(tensor)` shows a tensor of the weight's shape as (rows, taps, channels): one row for each output, read tap by
    tap with the input channels fastest. A linear layer has one tap. `unrows` is the inverse.
    """

    name: str
    parameter: Tensor
    module: nn.Module
    attribute: str

    @property
    def shape(self) -> torch.Size:
        return self.parameter.shape

    @property
    def numel(self) -> int:
        return self.parameter.numel()

    @property
    def transposed(self) -> bool:
        return isinstance(self.module, _TRANSPOSED)

    @property
    def layer(self) -> str:
        """The name of the module that holds the weight."""
        return self.name.rpartition(".")[0]

    def rows(self, tensor: Tensor) -> Tensor:
        return weight_rows(tensor, groups=getattr(self.module, "groups", 1), transposed=self.transposed)

    def unrows(self, rows: Tensor) -> Tensor:
        groups = getattr(self.module, "groups", 1)
        return rows_to_weight(rows, self.shape, groups=groups, transposed=self.transposed)


def weight_rows(tensor: Tensor, *, groups: int = 1, transposed: bool = False) -> Tensor:
    """(out, in/groups, *kernel) as (out, taps, in/groups); a transposed convolution's (in, out/groups, *kernel) too."""
    if transposed:
        inputs, outputs = tensor.shape[:2]
        split = tensor.reshape(groups, inputs // groups, outputs, -1)
        return split.permute(0, 2, 3, 1).reshape(groups * outputs, -1, inputs // groups)
    if tensor.dim() == 1:
        return tensor.reshape(1, 1, -1)
    return tensor.reshape(tensor.shape[0], tensor.shape[1], -1).transpose(1, 2)


def rows_to_weight(rows: Tensor, shape: torch.Size, *, groups: int = 1, transposed: bool = False) -> Tensor:
    """The inverse of `weight_rows`."""
    if transposed:
        outputs = shape[1]
        split = rows.reshape(groups, outputs, -1, shape[0] // groups)
        return split.permute(0, 3, 1, 2).reshape(shape)
    return rows.transpose(1, 2).reshape(shape)


def _prunable_attributes(module: nn.Module) -> Iterator[str]:
    if isinstance(module, (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)):
        yield "weight"
    elif isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        yield from (name for name, _ in module.named_parameters(recurse=False) if _RECURRENT.fullmatch(name))
    elif isinstance(module, nn.MultiheadAttention):
        yield from (name for name in _ATTENTION if getattr(module, name, None) is not None)


def prunable_weights(model: nn.Module) -> dict[str, Weight]:
    """Every prunable weight by plain name, in the order of the model; a shared tensor once, under its first name.

    Weights under `torch.nn.utils.prune` are not parameters any more and are not listed: make them permanent first.
    """
    owners: dict[int, tuple[nn.Module, str]] = {}
    for module in model.modules():
        for attribute in _prunable_attributes(module):
            parameter = module._parameters.get(attribute)
            if parameter is not None:
                owners.setdefault(id(parameter), (module, attribute))
    weights: dict[str, Weight] = {}
    seen: set[int] = set()
    for name, parameter in named_parameters(model).items():
        if id(parameter) in owners and id(parameter) not in seen:
            seen.add(id(parameter))
            weights[name] = Weight(name, parameter, *owners[id(parameter)])
    return weights

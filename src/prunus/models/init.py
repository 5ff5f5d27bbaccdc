"""Initial weights by name (ledger I-3).

| name | weights | variance |
|---|---|---|
| kaiming_uniform | U(-b, b), b = sqrt(6 / fan_in) | 2 / fan_in |
| kaiming_normal | N(0, 2 / fan_in) | 2 / fan_in |
| signed_constant | +-sqrt(2 / fan_in), each with probability 1/2 | 2 / fan_in |
| xavier | U(-b, b), b = sqrt(6 / (fan_in + fan_out)) | 2 / (fan_in + fan_out) |
| normal | N(0, 1), the weights of the NTK form (ledger K-0) | 1 |

fan_in = (inputs / groups) x (taps of the kernel). A named initialisation sets the weight matrices of linear,
convolution, recurrent and attention layers and sets their biases to zero; embeddings and normalisation layers keep
what torch gave them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from prunus.errors import BadInput, UnknownName

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED, nn.RNNBase, nn.MultiheadAttention)


def _uniform_(weight: Tensor, bound: float, generator: torch.Generator | None) -> Tensor:
    return weight.uniform_(-bound, bound, generator=generator)


def _kaiming_uniform(weight: Tensor, fan_in: int, fan_out: int, generator: torch.Generator | None) -> Tensor:
    return _uniform_(weight, math.sqrt(6.0 / fan_in), generator)


def _kaiming_normal(weight: Tensor, fan_in: int, fan_out: int, generator: torch.Generator | None) -> Tensor:
    return weight.normal_(0.0, math.sqrt(2.0 / fan_in), generator=generator)


def _signed_constant(weight: Tensor, fan_in: int, fan_out: int, generator: torch.Generator | None) -> Tensor:
    # The two values are chosen, not computed (2 b c - c rounds), so that all weights have exactly one magnitude.
    heads = torch.empty_like(weight).bernoulli_(0.5, generator=generator).bool()
    constant = math.sqrt(2.0 / fan_in)
    return weight.fill_(-constant).masked_fill_(heads, constant)


def _xavier(weight: Tensor, fan_in: int, fan_out: int, generator: torch.Generator | None) -> Tensor:
    return _uniform_(weight, math.sqrt(6.0 / (fan_in + fan_out)), generator)


def _normal(weight: Tensor, fan_in: int, fan_out: int, generator: torch.Generator | None) -> Tensor:
    return weight.normal_(0.0, 1.0, generator=generator)


_INITS: dict[str, Callable[[Tensor, int, int, torch.Generator | None], Tensor]] = {
    "kaiming_uniform": _kaiming_uniform,
    "kaiming_normal": _kaiming_normal,
    "signed_constant": _signed_constant,
    "xavier": _xavier,
    "normal": _normal,
}


def names() -> tuple[str, ...]:
    """The names `initialise` and `make(init=...)` know.

    Returns:
        The names.

    Example:
        >>> "signed_constant" in prunus.models.init_names()
        True
    """
    return tuple(_INITS)


def fans(module: nn.Module, weight: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of one weight matrix or kernel of `module`.

    A weight is (out, in / groups, *taps); that of a transposed convolution is (in, out / groups, *taps).

    Args:
        module: The layer that holds the weight.
        weight: One of its weights.

    Returns:
        (fan_in, fan_out).

    Example:
        >>> layer = torch.nn.Conv2d(3, 8, 5)
        >>> prunus.models.fans(layer, layer.weight)
        (75, 200)
    """
    taps = math.prod(weight.shape[2:])
    groups = getattr(module, "groups", 1)
    if isinstance(module, _TRANSPOSED):
        return weight.shape[0] // groups * taps, weight.shape[1] * taps
    return weight.shape[1] * taps, weight.shape[0] // groups * taps


def fill_(
    weight: Tensor, name: str, *, fan_in: int, fan_out: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw `weight` anew, in place, from the named distribution with these fans; returns it.

    Without a generator torch's global one is used. On the meta device there is nothing to draw.

    Args:
        weight: The tensor to fill.
        name: One of `init_names()`.
        fan_in: Inputs of one output.
        fan_out: Outputs of one input, for the distributions that need it.
        generator: Source of the draws.

    Returns:
        The same tensor.

    Raises:
        BadInput: The name is unknown, or a fan is missing.

    Example:
        >>> prunus.models.fill_(torch.empty(4, 4), "kaiming_normal", fan_in=4).shape
        torch.Size([4, 4])
    """
    if name not in _INITS:
        raise UnknownName("initialisation", name, _INITS)
    if weight.is_meta:
        return weight
    with torch.no_grad():
        return _INITS[name](weight, fan_in, fan_in if fan_out is None else fan_out, generator)


def initialise(
    model: nn.Module, name: str, *, seed: int | None = None, generator: torch.Generator | None = None
) -> nn.Module:
    """Draw all weight matrices of `model` from the named distribution and set the biases to zero, in place.

    The draws come from `generator`, or from a new one with `seed`, or else from torch's global generator. Tied weights
    are drawn once.

    Args:
        model: Any module.
        name: One of `init_names()`.
        seed: Seed of a new generator.
        generator: Source of the draws; give this or `seed`.

    Returns:
        The same model.

    Raises:
        BadInput: The name is unknown, or both a seed and a generator are given.

    Example:
        >>> layer = prunus.models.initialise(torch.nn.Linear(4, 4), "signed_constant", seed=0)
        >>> len(layer.weight.abs().unique())
        1
    """
    if name not in _INITS:
        raise UnknownName("initialisation", name, _INITS)
    if seed is not None and generator is not None:
        raise BadInput("Initialisation takes a seed or a generator, not both: leave one out.")
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    with torch.no_grad():
        for module, parameter in _parameters(model):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if parameter.dim() > 1:
                fan_in, fan_out = fans(module, parameter)
                fill_(parameter, name, fan_in=fan_in, fan_out=fan_out, generator=generator)
            else:
                parameter.zero_()
    return model


def _parameters(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    for module in model.modules():
        if isinstance(module, _LAYERS):
            for parameter in module.parameters(recurse=False):
                yield module, parameter

"""One forward pass and one backward pass for each output give the terms of the kernel for a block of inputs.

Known layers are linear layers (on any number of pixels), two-dimensional convolutions and batch norms that use their
running statistics. Each must hold all its parameters itself and be called exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.tangent._products import Direct, Outer, Term

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Unknown(Exception):
    """The network is not made of the layers known here: its Jacobian is needed."""


@dataclass(frozen=True)
class Network:
    """A module with its masks: `values` are the weights as they act, by full parameter name.

    masks      full parameter name -> mask, for those that are masked
    multiplier full parameter name -> the mask's forward multiplier, 1 or 1/sqrt(density)
    """

    model: nn.Module
    values: Mapping[str, Tensor]
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    multiplier: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        return cast("Tensor", torch.func.functional_call(self.model, dict(self.values), (x,)))


@dataclass(eq=False)
class _Call:
    name: str
    module: Any
    input: Tensor
    output: Tensor


def known_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Modules with parameters to differentiate by, by name; `Unknown` where one is of a kind not known here."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        own = [parameter for parameter in module._parameters.values() if parameter is not None]
        if not any(parameter.requires_grad for parameter in own):
            continue
        if not isinstance(module, (nn.Linear, nn.Conv2d, *_NORMS)) or any(id(parameter) in seen for parameter in own):
            raise Unknown(name)
        if set(module._parameters) - {"weight", "bias"}:
            raise Unknown(name)
        seen |= {id(parameter) for parameter in own}
        found[name] = module
    return found


def terms(network: Network, x: Tensor, outputs: Sequence[int]) -> list[Term]:
    """The kernel's terms for the inputs `x` and these outputs."""
    layers = known_layers(network.model)
    calls: list[_Call] = []
    with ExitStack() as stack, torch.enable_grad():
        for name, module in layers.items():
            stack.callback(module.register_forward_hook(_recorder(calls, name)).remove)
        result = network(x)
    if len(calls) != len(layers) or len({call.name for call in calls}) != len(layers):
        raise Unknown("a layer that is called twice or never")
    found: list[Term] = []
    for call, back in zip(calls, _backs(result.flatten(1), outputs, [call.output for call in calls])):
        found += _layer_terms(network, call, back)
    return found


def _backs(flat: Tensor, chosen: Sequence[int], places: list[Tensor]) -> list[Tensor]:
    """Derivatives of the chosen outputs by each of `places`, (n, outputs, *shape); all in one pass where that works.

    One product of many rows is quicker than many products of few.
    """
    if len(chosen) > 1:
        seeds = flat.new_zeros(len(chosen), *flat.shape)
        for number, output in enumerate(chosen):
            seeds[number, :, output] = 1.0
        try:
            found = torch.autograd.grad(flat, places, seeds, retain_graph=True, is_grads_batched=True)
            return [gradient.transpose(0, 1) for gradient in found]
        except RuntimeError:
            pass  # an operation that cannot be batched: one output after the other instead
    backs: list[list[Tensor]] = [[] for _ in places]
    for number, output in enumerate(chosen):
        gradients = torch.autograd.grad(flat[:, output].sum(), places, retain_graph=number + 1 < len(chosen))
        for kept, gradient in zip(backs, gradients):
            kept.append(gradient)
    return [torch.stack(back, dim=1) for back in backs]


def _recorder(calls: list[_Call], name: str) -> Any:
    def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not output.requires_grad:
            output.requires_grad_()
        calls.append(_Call(name, module, arguments[0].detach(), output))
        return output.clone()  # what follows may work in place

    return hook


def _layer_terms(network: Network, call: _Call, backs: Tensor) -> list[Term]:
    """`backs` (n, outputs, *shape of the layer's output)."""
    if isinstance(call.module, _NORMS):
        return _norm_terms(call, backs)
    found: list[Term] = []
    convolution = isinstance(call.module, nn.Conv2d)
    # (n, outputs, pixels, rows)
    shaped = backs.flatten(3).transpose(2, 3) if convolution else backs.flatten(2, -2) if backs.dim() > 3 else None
    shaped = backs[:, :, None] if shaped is None else shaped
    if call.module.weight.requires_grad:
        name = f"{call.name}.weight".removeprefix(".")
        mask = network.masks.get(name)
        weight = (network.multiplier.get(name, 1.0) * getattr(call.module, "factor", 1.0)) ** 2
        if convolution:
            found += _convolution_terms(call, shaped, mask, weight)
        else:
            found.append(Outer(call.input.reshape(len(call.input), -1, call.input.shape[-1]), shaped, mask, weight))
    bias = call.module._parameters.get("bias")
    if bias is not None and bias.requires_grad:
        found.append(Direct(shaped.sum(2)))
    return found


def _convolution_terms(call: _Call, backs: Tensor, mask: Tensor | None, weight: float) -> list[Term]:
    module: nn.Conv2d = call.module
    image, padding = call.input, module.padding
    if isinstance(padding, str) or module.padding_mode != "zeros":
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        image, padding = F.pad(image, module._reversed_padding_repeated_twice, mode=mode), (0, 0)
    patches = F.unfold(image, module.kernel_size, module.dilation, padding, module.stride)
    patches = patches.transpose(1, 2)  # (n, pixels, channels x taps)
    flat = None if mask is None else mask.flatten(1)
    if module.groups == 1:
        return [Outer(patches, backs, flat, weight)]
    fan, rows = patches.shape[2] // module.groups, module.out_channels // module.groups
    return [
        Outer(
            patches[..., group * fan : (group + 1) * fan],
            backs[..., group * rows : (group + 1) * rows],
            None if flat is None else flat[group * rows : (group + 1) * rows],
            weight,
        )
        for group in range(module.groups)
    ]


def _norm_terms(call: _Call, backs: Tensor) -> list[Term]:
    norm = call.module
    shape = (1, -1) + (1,) * (call.input.dim() - 2)
    scaled = (call.input - norm.running_mean.view(shape)) * torch.rsqrt(norm.running_var + norm.eps).view(shape)
    found: list[Term] = []
    for name, factor in (("weight", scaled), ("bias", torch.ones_like(scaled))):
        if norm._parameters[name] is not None and norm._parameters[name].requires_grad:
            derivative = (backs * factor[:, None]).flatten(3).sum(3) if backs.dim() > 3 else backs * factor[:, None]
            found.append(Direct(derivative))
    return found


def bytes_for_one(network: Network, x: Tensor, outputs: int) -> int:
    """Memory that the terms of one input take with so many outputs, with the patches of its largest convolution."""
    found = terms(network, x[:1], [0])
    total, largest = 0, 0
    for term in found:
        if isinstance(term, Outer):
            _, _, pixels, rows, fan = term.sizes
            total += pixels * (fan + 2 * outputs * rows)
            largest = max(largest, outputs * fan)
    return math.ceil((total + largest) * x.element_size())

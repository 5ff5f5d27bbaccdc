"""Networks in NTK form (ledger K-0): standard normal weights, and the factor sqrt(2 / fan-in) in the forward pass."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.contract import Masks
from prunus.errors import BadInput, UnknownName
from prunus.models import fans
from prunus.tangent._chain import ChainStep, relu_chain

_WEIGHTS = ("auto", "keep", "divide")


class ScaledLinear(nn.Linear):
    """factor * W x + b. The bias, if any, is a fixed number: no parameter, no part of the kernel."""

    factor: float

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input * self.factor, self.weight, self.bias)


class ScaledConv2d(nn.Conv2d):
    """factor * W x + b with a convolution for the product; the bias as in `ScaledLinear`."""

    factor: float

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = self._conv_forward(input * self.factor, self.weight, self.bias)
        return result


class NTKForm(nn.Module):
    """A chain of layers in NTK form, made by `parametrise`: parameters `layers.0.weight`, `layers.1.weight`, ...

    factors        what each layer multiplies its input by
    limit_scale    the kernel's limit over that of `limit` (or `limit_convolutional`): 1 with the factors of K-0
    original_names "layers.N.weight" -> the name in the network it was made from

    Example:
        >>> form = prunus.tangent.parametrise(prunus.models.make("fc:6-8-8-1", init="normal", seed=0))
        >>> form.factors, form.depth
        ((1.0, 0.5, 0.5), 2)
    """

    def __init__(self, model: nn.Module, steps: Sequence[ChainStep], factors: Sequence[float]) -> None:
        super().__init__()
        found = [step for step in steps if step.kind == "layer"]
        self.layers = nn.ModuleList(_scaled(step.module, factor) for step, factor in zip(found, factors))
        self.kinds = tuple(step.kind for step in steps)
        self.original_names = {
            f"layers.{number}.weight": f"{step.name}.weight".removeprefix(".") for number, step in enumerate(found)
        }
        # In plain containers: neither the template nor the operations are part of the state.
        self._between = tuple(step.apply for step in steps)
        self._template = (copy.deepcopy(model),)

    @property
    def factors(self) -> tuple[float, ...]:
        """What each layer multiplies its input by."""
        return tuple(layer.factor for layer in self._scaled_layers())

    @property
    def limit_scale(self) -> float:
        """The kernel's limit over that of `limit` (or `limit_convolutional`)."""
        first = self._scaled_layers()[0]
        result: float = (first.factor / _first_factor(first)) ** 2
        return result

    @property
    def depth(self) -> int:
        """Hidden layers."""
        return len(self.layers) - 1

    def _scaled_layers(self) -> list[Any]:
        return list(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        """The network's output.

        Args:
            x: inputs (n, *shape).

        Returns:
            Outputs (n, outputs).
        """
        layers = iter(self.layers)
        for apply in self._between:
            x = next(layers)(x) if apply is None else apply(x)
        return x

    def translate(self, masks: Masks) -> Masks:
        """Masks that were found for the original network, under the names of this one.

        Args:
            masks: masks of the original network.

        Returns:
            The same masks for this one.

        Raises:
            BadInput: if they name a weight that the original does not have.
        """
        names = {old: new for new, old in self.original_names.items()}
        unknown = [name for name in masks if name not in names]
        if unknown:
            raise BadInput(f"The masks name {unknown[0]!r}, which is no weight of the network this form was made from.")
        return Masks({names[name]: mask for name, mask in masks.items()}, masks.notes)

    def extra_repr(self) -> str:
        return "factors=(" + ", ".join(f"{factor:.4g}" for factor in self.factors) + ")"


def _scaled(module: nn.Module | None, factor: float) -> nn.Module:
    assert isinstance(module, (nn.Linear, nn.Conv2d))
    scaled: ScaledLinear | ScaledConv2d
    if isinstance(module, nn.Linear):
        scaled = ScaledLinear(module.in_features, module.out_features, bias=False, device="meta")
    else:
        scaled = ScaledConv2d(
            module.in_channels,
            module.out_channels,
            module.kernel_size,  # type: ignore[arg-type]
            module.stride,  # type: ignore[arg-type]
            module.padding,  # type: ignore[arg-type]
            module.dilation,  # type: ignore[arg-type]
            module.groups,
            bias=False,
            padding_mode=module.padding_mode,
            device="meta",
        )
    scaled.factor = factor
    scaled.weight = nn.Parameter(module.weight.detach().clone())
    bias = None if module.bias is None or not bool(module.bias.detach().any()) else module.bias.detach().clone()
    del scaled.bias  # a parameter; here it is a number that is not trained
    scaled.register_buffer("bias", bias)
    return scaled.train(module.training)


def _fan_in(module: Any) -> int:
    return fans(module, module.weight)[0]


def _first_factor(module: Any) -> float:
    """The input layer's factor in the limits: 1 for a linear layer, 1 / sqrt(fan-in) for a convolution (K-22)."""
    return 1.0 if isinstance(module, nn.Linear) else 1 / math.sqrt(_fan_in(module))


def parametrise(model: nn.Module, weights: str = "auto") -> NTKForm:
    """A copy of a standard network in NTK form: each layer multiplies its input by sqrt(2 / fan-in).

    weights="keep"    the weights stay as they are. For weights drawn from N(0, 1), as `init="normal"` gives them: the
                      result is the network of K-0. The input layer has the factor 1 (a convolution 1 / sqrt(fan-in)).
    weights="divide"  the weights are divided by the factors, so that the network computes what it did before. For
                      networks drawn from N(0, 2 / fan-in) or trained. The input layer has the factor sqrt(2 / fan-in)
                      as well, which multiplies the limit by its square: see `NTKForm.limit_scale`.
    weights="auto"    "keep" if the root mean square of the weights behind the input layer is nearer to 1 than to
                      their factors, else "divide".

    The limit knows no biases. Biases that are zero are left out; others stay in the forward pass as fixed numbers,
    which take no part in the kernel. `standardise` is the way back.

    Args:
        model: a chain of linear or convolution layers with ReLU between them; it is left as it is.
        weights: "auto", "keep" or "divide", see above.

    Returns:
        The network in NTK form.

    Raises:
        BadInput: The network is in NTK form already, is no such chain, or has no hidden layer.
        UnknownName: There is no such treatment of weights.

    Example:
        >>> model = prunus.models.make("fc:6-8-2", seed=0)
        >>> form = prunus.tangent.parametrise(model, weights="divide")
        >>> x = torch.randn(3, 6)
        >>> torch.allclose(form(x), model(x), atol=1e-6)
        True
    """
    if isinstance(model, NTKForm):
        raise BadInput("The network is in NTK form already.")
    if weights not in _WEIGHTS:
        raise UnknownName("treatment of weights", weights, _WEIGHTS)
    steps = relu_chain(model)
    layers: list[Any] = [step.module for step in steps if step.kind == "layer"]
    if len(layers) < 2:
        raise BadInput(f"The network has {len(layers)} layers with weights: the NTK form needs a hidden layer.")
    factors = [math.sqrt(2 / _fan_in(layer)) for layer in layers]
    keep = weights == "keep" or (weights == "auto" and _standard_normal(layers[1:], factors[1:]))
    if keep:
        factors[0] = _first_factor(layers[0])
    form = NTKForm(model, steps, factors)
    if not keep:
        with torch.no_grad():
            for layer in form._scaled_layers():
                layer.weight.div_(layer.factor)
    return form.train(model.training)


def _standard_normal(layers: Sequence[Any], factors: Sequence[float]) -> bool:
    count = sum(layer.weight.numel() for layer in layers)
    square = sum(float(layer.weight.detach().double().square().sum()) for layer in layers) / count
    expected = sum(layer.weight.numel() * factor**2 for layer, factor in zip(layers, factors)) / count
    if square == 0:
        return False
    return abs(math.log(square)) <= abs(math.log(square / expected))


def standardise(form: NTKForm) -> nn.Module:
    """The way back: a network of the original's class that computes what `form` does, factors in its weights.

    Args:
        form: a network in NTK form; it is left as it is.

    Returns:
        The network in its usual form.

    Raises:
        BadInput: The network is not in NTK form.

    Example:
        >>> form = prunus.tangent.parametrise(prunus.models.make("fc:6-8-2", seed=0))
        >>> x = torch.randn(3, 6)
        >>> torch.allclose(prunus.tangent.standardise(form)(x), form(x), atol=1e-6)
        True
    """
    if not isinstance(form, NTKForm):
        raise BadInput("standardise takes a network in NTK form, as parametrise makes it.")
    layers = form._scaled_layers()
    reference = layers[0].weight
    model = copy.deepcopy(form._template[0]).to(device=reference.device, dtype=reference.dtype)
    with torch.no_grad():
        for layer, name in zip(layers, form.original_names.values()):
            owner: Any = model.get_submodule(name.rpartition(".")[0])
            owner.weight.copy_(layer.weight * layer.factor)
            if owner.bias is not None:
                owner.bias.copy_(torch.zeros_like(owner.bias) if layer.bias is None else layer.bias)
    return model.train(form.training)

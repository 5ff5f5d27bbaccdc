"""Two identities behind the width bound, on concrete networks: the pseudo-network (K-17) and the split (K-24).

Both are for fully connected networks in NTK form with one output. Layers count from 1, as in the paper: weight layer h
maps g^(h-1) to f^(h), and the masks m are in {0, 1/sqrt(density)}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus.contract import Masks
from prunus.errors import BadInput
from prunus.tangent._form import NTKForm


@dataclass(frozen=True, eq=False)
class Passes:
    """Forward and backward pass of n inputs: all lists are by layer, float64.

    weights, masks  of layers 1 .. L+1; activations g^(0) .. g^(L); before f^(1) .. f^(L+1); backs b^(1) .. b^(L+1)
    """

    weights: list[Tensor]
    masks: list[Tensor]
    activations: list[Tensor]
    before: list[Tensor]
    backs: list[Tensor]

    @property
    def depth(self) -> int:
        return len(self.weights) - 1

    def gate(self, layer: int) -> Tensor:
        """sqrt(2 / d_h) times the ReLU's derivative, (n, d_h)."""
        before = self.before[layer - 1]
        return (before > 0).to(before.dtype) * math.sqrt(2 / before.shape[1])


def passes(form: NTKForm, x: Tensor, masks: Masks | None = None) -> Passes:
    """Run the network with rescaled masks and keep everything."""
    layers: list[Any] = form._scaled_layers() if isinstance(form, NTKForm) else []
    good = layers and all(isinstance(layer, nn.Linear) and layer.bias is None for layer in layers)
    if not good or layers[-1].out_features != 1:
        raise BadInput("This needs a fully connected network in NTK form, without biases, with one output.")
    if abs(form.limit_scale - 1) > 1e-12:
        raise BadInput('This needs the input layer\'s factor 1: use parametrise(model, weights="keep").')
    if masks is not None:
        masks.parameters_of(form)
    weights, used = [layer.weight.detach().double() for layer in layers], []
    for number, weight in enumerate(weights):
        mask = None if masks is None else masks.get(f"layers.{number}.weight")
        kept = torch.ones_like(weight) if mask is None else mask.to(weight)
        if not bool(kept.any()):
            raise BadInput(f"The masks leave no weight in layers.{number}.weight: its density is 0.")
        used.append(kept / math.sqrt(float(kept.mean())))
    activations, before = [x.detach().double().flatten(1)], []
    for weight, mask in zip(weights, used):
        before.append(activations[-1] @ (weight * mask).T)
        activations.append(math.sqrt(2 / len(weight)) * before[-1].relu())
    found = Passes(weights, used, activations[:-1], before, [torch.ones(len(x), 1, dtype=torch.float64)])
    for layer in range(len(weights) - 1, 0, -1):
        found.backs.insert(0, found.gate(layer) * (found.backs[0] @ (weights[layer] * used[layer])))
    return found


@dataclass(frozen=True, eq=False)
class PseudoNetwork:
    """K-17 for one input and hidden layer h, all columns j of layer h+1 at once.

    outputs     f^(h+1, j, L+1): outputs of the pseudo-network of column j, (d_h,)
    dependent   g_j f^(h+1, j, L+1) / density: the dependent vector through the pseudo-networks
    direct      the same from its definition, the rows' weights projected on their masked activations

    Example:
        >>> form = prunus.tangent.parametrise(prunus.models.make("fc:6-8-8-1", init="normal", seed=0))
        >>> masks = prunus.find_masks(form, 0.5, exclude=("layers.0",))
        >>> found = prunus.tangent.pseudo_network(form, torch.randn(1, 6), masks, layer=1)
        >>> torch.allclose(found.dependent, found.direct)
        True
    """

    outputs: Tensor
    dependent: Tensor
    direct: Tensor


def pseudo_network(form: NTKForm, x: Tensor, masks: Masks, layer: int) -> PseudoNetwork:
    """The mask-induced pseudo-networks behind hidden layer `layer` (Definition 5.4 / 9.22, repaired) for one input.

    The pseudo-network of column j starts with f_i sqrt(density) m_ij / ||g * m_i||^2 in layer h+1 and passes on
    linearly through the gates of the network itself. For the last layer the definition is continued (K-17, gap a).

    Args:
        form: a fully connected network in NTK form, without biases, with one output.
        x: one input, (1, d).
        masks: masks for `form`, {0, 1}; they are rescaled by 1/sqrt(density) here.
        layer: a hidden layer, counted from 1.

    Returns:
        The outputs of the pseudo-networks and the dependent vector, worked out in two ways.

    Raises:
        BadInput: There is not exactly one input, the network is of another kind, or there is no such hidden layer.

    Example:
        >>> form = prunus.tangent.parametrise(prunus.models.make("fc:6-8-8-1", init="normal", seed=0))
        >>> masks = prunus.find_masks(form, 0.5, exclude=("layers.0",))
        >>> prunus.tangent.pseudo_network(form, torch.randn(1, 6), masks, layer=2).outputs.shape
        torch.Size([8])
    """
    if len(x) != 1:
        raise BadInput(f"The pseudo-network is for one input, (1, d), got {len(x)}.")
    run = passes(form, x, masks)
    _check_layer(layer, run.depth)
    mask, g = run.masks[layer], run.activations[layer][0]
    density = float((mask > 0).double().mean())
    norms = (mask.square() @ g.square()).clamp(min=torch.finfo(torch.float64).tiny)
    # (columns j, rows i): all pseudo-networks at once.
    signal = (math.sqrt(density) * mask * (run.before[layer][0] / norms)[:, None]).T
    for above in range(layer + 1, run.depth + 1):
        signal = (signal * run.gate(above)) @ (run.weights[above] * run.masks[above]).T
    outputs = signal[:, 0]
    along = (run.before[layer][0] / norms)[:, None] * (mask * g)  # w_i' g_i g_i' / ||g_i||^2, row by row
    direct = run.backs[layer][0] @ along / math.sqrt(density)
    return PseudoNetwork(outputs, g * outputs / density, direct)


@dataclass(frozen=True, eq=False)
class BackwardSplit:
    """K-24: b^(h) of both inputs (2, d_h), and its parts across and along the span of the masked activations.

    Example:
        >>> form = prunus.tangent.parametrise(prunus.models.make("fc:6-8-8-1", init="normal", seed=0))
        >>> split = prunus.tangent.split_backward(form, torch.randn(2, 6), None, layer=1)
        >>> split.gap < 1e-12, sorted(split.products())
        (True, ['across', 'along', 'whole'])
    """

    whole: Tensor
    across: Tensor
    along: Tensor

    @property
    def gap(self) -> float:
        """Largest entry of whole - across - along: rounding only."""
        return float((self.whole - self.across - self.along).abs().max())

    def products(self) -> dict[str, float]:
        """<b(x), b(y)> of the whole and of its parts: which one carries the kernel."""
        parts = {"whole": self.whole, "across": self.across, "along": self.along}
        return {name: float(part[0] @ part[1]) for name, part in parts.items()}


def split_backward(form: NTKForm, x: Tensor, masks: Masks | None, layer: int) -> BackwardSplit:
    """Split b^(layer) of two inputs (2, d): each row's weights above projected on the span of the two masked
    activations, and what is left (Propositions 5.2 and 5.3).

    Args:
        form: a fully connected network in NTK form, without biases, with one output.
        x: two inputs, (2, d).
        masks: masks for `form`; None for the dense network.
        layer: a hidden layer, counted from 1.

    Returns:
        The whole vectors and their two parts, which add up to them.

    Raises:
        BadInput: There are not exactly two inputs, the network is of another kind, or there is no such hidden layer.

    Example:
        >>> form = prunus.tangent.parametrise(prunus.models.make("fc:6-8-8-1", init="normal", seed=0))
        >>> prunus.tangent.split_backward(form, torch.randn(2, 6), None, layer=2).along.shape
        torch.Size([2, 8])
    """
    if len(x) != 2:
        raise BadInput(f"The split is for two inputs, (2, d), got {len(x)}.")
    run = passes(form, x, masks)
    _check_layer(layer, run.depth)
    weight, mask = run.weights[layer], run.masks[layer]
    spans = mask[:, None] * run.activations[layer]  # (rows, 2, d_h)
    gram = spans @ spans.mT
    coefficients = torch.linalg.pinv(gram, rtol=1e-12, hermitian=True) @ (spans @ weight[:, :, None])
    fixed = (coefficients * spans).sum(1)
    above, gate = run.backs[layer], run.gate(layer)
    return BackwardSplit(
        run.backs[layer - 1], gate * (above @ ((weight - fixed) * mask)), gate * (above @ (fixed * mask))
    )


def _check_layer(layer: int, depth: int) -> None:
    if isinstance(layer, bool) or not isinstance(layer, int) or not 1 <= layer <= depth:
        raise BadInput(f"layer must be a hidden layer, 1 to {depth}, got {layer!r}.")

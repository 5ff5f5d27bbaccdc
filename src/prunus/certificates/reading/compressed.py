"""Compressed networks, read with the weights they run with (`prunus.compress`, also bf16 and int8 values)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from prunus.errors import BadInput
from prunus.sparse import BalancedLinear, SparseConv2d


class _Dense(nn.Module):
    """A packed layer with its weight unpacked; what the layer fuses (a sum, a ReLU) becomes operations of their own."""

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool, conv: SparseConv2d | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.relu, self.geometry = relu, None if conv is None else conv.geometry

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        if self.geometry is None:
            x = functional.linear(x, self.weight, self.bias)
        else:
            sizes = self.geometry
            x = functional.conv2d(x, self.weight, self.bias, sizes.stride, sizes.padding, sizes.dilation)
        if other is not None:
            x = x + other
        return functional.relu(x) if self.relu else x


def is_packed(module: nn.Module) -> bool:
    """True for layers that `prunus.compress` packed."""
    return isinstance(module, (SparseConv2d, BalancedLinear))


def decompressed(model: nn.Module) -> nn.Module:
    """Replace every packed layer of a model by its dense form, in place; returns the model."""
    for name, module in list(model.named_modules()):
        dense = _dense(module)
        if dense is None:
            continue
        if not name:
            return dense.eval()
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, dense.train(module.training))
    return model


def _dense(module: nn.Module) -> _Dense | None:
    if isinstance(module, (SparseConv2d, BalancedLinear)) and module.integer:
        raise BadInput(
            "This model rounds the inputs of its layers (activations=torch.int8), which no certificate covers: certify "
            "the model compressed with dtype=torch.int8 alone."
        )
    if isinstance(module, SparseConv2d):
        weight = module.geometry.weight(module.packed.dense(), module.bank)
        return _Dense(weight, module.bias, module.relu, module)
    if isinstance(module, BalancedLinear):
        weight = module.packed.dense()
        if module.permutation is not None:
            columns = weight.clone()
            weight[:, module.permutation] = columns
        return _Dense(weight, module.bias, module.relu)
    return None

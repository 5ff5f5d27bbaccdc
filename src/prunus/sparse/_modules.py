"""Layers that run on packed weights. They stand where `nn.Linear` stood and hold nothing but tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.sparse import _ops
from prunus.sparse._geometry import Geometry
from prunus.sparse._packed import Packed, pack

_FIELDS = ("values", "index", "schedule", "starts", "scale")


class PackedModule(nn.Module):
    """A module whose weight is a `Packed`, kept as buffers so that `state_dict`, `deepcopy` and `to` see it."""

    values: Tensor
    index: Tensor
    bias: nn.Parameter | None

    def __init__(self, packed: Packed, bias: Tensor | None) -> None:
        super().__init__()
        self.rows, self.cols, self.bank = packed.rows, packed.cols, packed.bank
        tensors = packed.tensors()
        for field in _FIELDS:
            self.register_buffer(field, tensors.get(field))
        parameter = None if bias is None else nn.Parameter(bias.detach().to(torch.float32).clone())
        self.register_parameter("bias", parameter)
        self._view: Packed | None = None

    @property
    def packed(self) -> Packed:
        """The weight as a `Packed` over the module's buffers."""
        view, buffers = self._view, self._buffers
        if view is None or view.values is not buffers["values"] or view.index is not buffers["index"]:
            view = Packed(self.rows, self.cols, self.bank, *(getattr(self, field) for field in _FIELDS))
            self._view = view
        return view

    def tensors(self) -> list[Tensor]:
        return [tensor for field in _FIELDS if (tensor := getattr(self, field)) is not None]

    def plain(self, x: Any) -> bool:
        """Whether the kernel may be called at once: a real tensor, nothing traced, no gradient wanted."""
        if type(x) is not Tensor or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return False
        if not torch.is_grad_enabled():
            return True
        bias = self._parameters["bias"]
        return not (x.requires_grad or (bias is not None and bias.requires_grad))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None}  # the view holds addresses of this object's tensors

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for field in ("schedule", "starts", "index", "values", "scale"):
            mine, other = getattr(self, field), state_dict.get(prefix + field)
            if mine is not None and other is not None and mine.shape != other.shape:
                raise BadInput(
                    f"The state for {prefix.rstrip('.')!r} packs another mask ({field} has shape {tuple(other.shape)}, "
                    f"not {tuple(mine.shape)}): compress the model the state came from, or use prunus.sparse.load."
                )
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._view = None


class BalancedLinear(PackedModule):
    """A linear layer on packed weights: (..., in_features) -> (..., out_features), float32.

    The weights are frozen; gradients flow to the inputs and the bias. With a `permutation` the columns were packed in
    that order and the inputs are read in it.
    """

    permutation: Tensor | None

    def __init__(
        self, packed: Packed, bias: Tensor | None = None, relu: bool = False, permutation: Tensor | None = None
    ) -> None:
        super().__init__(packed, bias)
        self.relu = relu
        if permutation is not None and not torch.equal(permutation.sort().values, torch.arange(packed.cols)):
            raise BadInput(f"A permutation of {packed.cols} columns must name each of them once.")
        self.register_buffer("permutation", permutation)

    @classmethod
    def from_dense(
        cls,
        linear: nn.Linear,
        bank: int | None = None,
        dtype: torch.dtype | None = None,
        permutation: Tensor | None = None,
    ) -> BalancedLinear:
        """Pack what is not zero in `linear.weight`, its columns in the order of `permutation` where given."""
        weight = linear.weight.detach()
        weight = weight if permutation is None else weight[:, permutation]
        return cls(pack(weight, bank, dtype), linear.bias, permutation=permutation)

    @property
    def in_features(self) -> int:
        return self.cols

    @property
    def out_features(self) -> int:
        return self.rows

    def forward(self, x: Tensor) -> Tensor:
        order = self._buffers["permutation"]
        if order is not None:
            x = x.index_select(-1, order)
        if self.plain(x):
            return _ops.run_linear(self.packed, x, self._parameters["bias"], self.relu)
        return torch.ops.prunus.sparse_linear(x, self.bias, self.tensors(), self.rows, self.cols, self.bank, self.relu)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.cols}, out_features={self.rows}, bank={self.bank}, "
            f"values={str(self.values.dtype).removeprefix('torch.')}, slots={self.values.shape[0]}"
        )


class SparseConv2d(PackedModule):
    """A 2-D convolution on packed weights, float32: (n, in, h, w) -> (n, out, h', w').

    `forward(x, other)` adds `other` to the result before the activation: the sum of a residual block. The weights are
    frozen; gradients flow to the inputs, to `other` and to the bias.
    """

    def __init__(self, packed: Packed, geometry: Geometry, bias: Tensor | None = None, relu: bool = False) -> None:
        super().__init__(packed, bias)
        self.geometry, self.relu = geometry, relu
        if packed.rows != geometry.outputs or packed.cols != geometry.columns(packed.bank):
            raise BadInput(f"A packed matrix of {packed.rows} x {packed.cols} does not fit the convolution {geometry}.")

    @classmethod
    def from_dense(cls, conv: nn.Conv2d, bank: int | None = None, dtype: torch.dtype | None = None) -> SparseConv2d:
        """Pack what is not zero in `conv.weight`; groups become zeros between them."""
        geometry = Geometry.of(conv)
        return cls(geometry.pack(conv.weight, conv.groups, bank, dtype), geometry, conv.bias)

    @property
    def in_channels(self) -> int:
        return self.geometry.inputs

    @property
    def out_channels(self) -> int:
        return self.geometry.outputs

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        if self.plain(x) and (other is None or self.plain(other)):
            return _ops.run_conv2d(self.packed, self.geometry, x, self._parameters["bias"], other, self.relu)
        numbers = self.geometry.numbers()
        return torch.ops.prunus.sparse_conv2d(
            x, self.bias, other, self.tensors(), self.rows, self.cols, self.bank, self.relu, numbers
        )

    def extra_repr(self) -> str:
        return f"{self.geometry}, bank={self.bank}, values={str(self.values.dtype).removeprefix('torch.')}"

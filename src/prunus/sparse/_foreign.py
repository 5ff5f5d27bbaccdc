"""Packed layers in other forms: lower precision around them, padding before them, attention made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.errors import BadInput
from prunus.sparse._modules import BalancedLinear, SparseConv2d
from prunus.sparse._packed import pack
from prunus.sparse._weight import PackedWeight


class Cast(nn.Module):
    """A packed layer inside a model of lower precision: inputs are widened to float32, results narrowed to `dtype`."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner, dtype

    @property
    def weight(self) -> Tensor:
        """The inner layer's weight, in the model's dtype."""
        inner: Any = self.inner.weight
        return cast("Tensor", type(inner)(inner.shape, self.dtype, inner.device, inner.make))

    @property
    def bias(self) -> Tensor | None:
        inner: Any = self.inner.bias
        return None if inner is None else inner.to(self.dtype)

    def forward(self, input: Tensor) -> Tensor:
        return self.inner(input.float()).to(self.dtype)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} outside, float32 inside"


class PaddedConv2d(nn.Module):
    """A packed convolution after padding with zeros: `pad` is (left, right, top, bottom)."""

    def __init__(self, conv: SparseConv2d, pad: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv, self.pad = conv, pad

    @property
    def weight(self) -> Tensor:
        return self.conv.weight

    @property
    def bias(self) -> Tensor | None:
        return self.conv.bias

    def forward(self, input: Tensor) -> Tensor:
        return self.conv(functional.pad(input, self.pad))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"pad={self.pad}"


class SparseAttention(nn.Module):
    """As `nn.MultiheadAttention` in evaluation mode, its four projections on packed weights."""

    in_proj_bias = None  # tells torch's encoder layers that their fused path, which reads weights, does not apply
    _qkv_same_embed_dim = False

    def __init__(self, projections: Sequence[BalancedLinear], heads: int, batch_first: bool) -> None:
        super().__init__()
        query, key, value, out = projections
        self.query, self.key, self.value, self.out_proj = query, key, value, out
        self.num_heads, self.batch_first, self.embed_dim = heads, batch_first, query.rows
        if min(query.rows, heads) < 1 or query.rows % heads or not query.rows == key.rows == value.rows == out.cols:
            raise BadInput("its projections do not fit together")

    @property
    def in_proj_weight(self) -> Tensor | None:
        """The three matrices over each other, as `nn.MultiheadAttention` has them; made when computed with."""
        parts = (self.query, self.key, self.value)
        if len({part.cols for part in parts}) > 1:
            return None
        shape = (3 * self.embed_dim, self.query.cols)
        return PackedWeight(
            shape, torch.float32, self.query.values.device, lambda: torch.cat([part.weight + 0 for part in parts])
        )

    @classmethod
    def from_dense(cls, attention: nn.MultiheadAttention, dtype: torch.dtype | None = None) -> SparseAttention:
        """Pack what is not zero in the four matrices."""
        if attention.bias_k is not None or attention.add_zero_attn:
            raise BadInput("Attention with an added key, or an added zero, cannot be packed; leave this layer dense.")
        if attention.in_proj_weight is not None:
            weights = attention.in_proj_weight.detach().chunk(3)
        else:
            weights = tuple(getattr(attention, f"{part}_proj_weight").detach() for part in "qkv")
        bias = attention.in_proj_bias
        biases: Any = (None, None, None) if bias is None else bias.detach().chunk(3)
        parts = [BalancedLinear(pack(weight, None, dtype), own) for weight, own in zip(weights, biases)]
        out = BalancedLinear(pack(attention.out_proj.weight.detach(), None, dtype), attention.out_proj.bias)
        return cls([*parts, out], attention.num_heads, attention.batch_first)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        single = query.dim() == 2
        if single:
            query, key, value = (part.unsqueeze(0) for part in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        mask = self._mask(query, key, key_padding_mask, attn_mask, is_causal)
        q, k, v = (self._heads(part) for part in (self.query(query), self.key(key), self.value(value)))
        weights = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            weights = (scores if mask is None else scores + mask).softmax(-1)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, mask)
        out = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if single:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _heads(self, x: Tensor) -> Tensor:
        return cast("Tensor", x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2))

    def _mask(
        self, query: Tensor, key: Tensor, padding: Tensor | None, mask: Tensor | None, causal: bool
    ) -> Tensor | None:
        """What is added to the scores, (n or 1, heads or 1, queries, keys)."""
        if causal and mask is None:
            shape = (query.shape[1], key.shape[1])
            mask = torch.ones(shape, dtype=torch.bool, device=query.device).triu(1)
        total = None
        parts: tuple[tuple[Tensor | None, Callable[[Tensor], Tensor]], ...] = (
            (mask, lambda m: m if m.dim() == 2 else m.unflatten(0, (query.shape[0], -1))),
            (padding, lambda m: m[:, None, None, :]),
        )
        for part, view in parts:
            if part is None:
                continue
            added = (
                part
                if part.is_floating_point()
                else torch.zeros_like(part, dtype=query.dtype).masked_fill_(part, -torch.inf)
            )
            total = view(added.to(query.dtype)) if total is None else total + view(added.to(query.dtype))
        return total

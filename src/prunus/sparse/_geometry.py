"""The sizes of a 2-D convolution, and how its weight becomes the matrix that is packed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.errors import BadInput
from prunus.sparse._packed import Packed, pack

Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvGeometry:
    """Channels, kernel, stride, padding and dilation of a convolution; pairs are (y, x).

    `more` are zeros below and on the right beyond the padding; only runs of layers have some (`after_pad`).
    """

    inputs: int
    outputs: int
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    more: Pair = (0, 0)

    @classmethod
    def of(cls, conv: nn.Conv2d) -> ConvGeometry:
        """Of a torch layer; refuses padding the kernels do not know."""
        if conv.padding_mode != "zeros":
            raise BadInput(f"Sparse convolutions pad with zeros; {conv.padding_mode!r} padding is not supported.")
        kernel, stride, dilation = _pair(conv.kernel_size), _pair(conv.stride), _pair(conv.dilation)
        if isinstance(conv.padding, str):
            reach = [step * (size - 1) for step, size in zip(dilation, kernel)]
            if conv.padding == "same" and any(size % 2 for size in reach):
                raise BadInput("Sparse convolutions pad both sides alike; 'same' with an even kernel is not supported.")
            padding = (0, 0) if conv.padding == "valid" else (reach[0] // 2, reach[1] // 2)
        else:
            padding = _pair(conv.padding)
        return cls(conv.in_channels, conv.out_channels, kernel, stride, padding, dilation)

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @cached_property
    def native(self) -> Tensor:
        """Kernel, stride, padding, dilation and `more` as the kernels read them."""
        return torch.tensor([*self.kernel, *self.stride, *self.padding, *self.dilation, *self.more], device="cpu")

    def after_pad(self, left: int, right: int, top: int, bottom: int) -> ConvGeometry:
        """The convolution of an image that gets so many zeros on its sides first; `right` and `bottom` are no less."""
        above, before = self.padding
        return replace(self, padding=(above + top, before + left), more=(bottom - top, right - left))

    @cached_property
    def in_place(self) -> int:
        """How many zeros around an image let it be read without a copy; -1 where none do."""
        alike = self.padding[0] == self.padding[1] > 0 and self.more == (0, 0)
        return self.padding[0] if self.stride == (1, 1) and alike else -1

    @cached_property
    def _known(self) -> dict[Pair, Pair]:
        return {}

    def output(self, height: int, width: int) -> Pair:
        """Height and width of the result."""
        known = self._known.get((height, width)) if type(height) is int else None
        if known is not None:
            return known
        sizes = []
        for size, kernel, stride, padding, dilation, more in zip(
            (height, width), self.kernel, self.stride, self.padding, self.dilation, self.more
        ):
            sizes.append((size + 2 * padding + more - dilation * (kernel - 1) - 1) // stride + 1)
        if type(height) is int and type(width) is int and len(self._known) < 256:
            self._known[height, width] = (sizes[0], sizes[1])
        return sizes[0], sizes[1]

    def numbers(self) -> list[int]:
        return [self.inputs, self.outputs, *self.kernel, *self.stride, *self.padding, *self.dilation]

    @classmethod
    def from_numbers(cls, numbers: list[int]) -> ConvGeometry:
        inputs, outputs, *rest = numbers
        pairs = [(rest[i], rest[i + 1]) for i in range(0, 8, 2)]
        return cls(inputs, outputs, *pairs)

    def problem(self) -> str:
        """What is impossible about the sizes; empty where all is well."""
        positive = (self.inputs, self.outputs, *self.kernel, *self.stride, *self.dilation)
        if any(not 0 < number < 2**31 for number in positive) or any(not 0 <= pad < 2**31 for pad in self.padding):
            return "its convolution has impossible sizes"
        return ""

    def columns(self, bank: int) -> int:
        """Columns of the packed matrix: whole banks of channels for each tap, or taps in a row if channels are few."""
        whole = -(-self.inputs // bank) * bank
        return self.taps * (self.inputs if self.inputs < bank else whole)

    def matrix(self, weight: Tensor, bank: int) -> Tensor:
        """Weight (outputs, inputs, kh, kw) as (outputs, columns): block of channels, then tap, then channel.

        With fewer channels than a bank the banks run across taps, so the columns are (tap, channel).
        """
        flat = weight.reshape(self.outputs, self.inputs, self.taps)
        if self.inputs < bank:
            return flat.transpose(1, 2).reshape(self.outputs, -1)
        padded = functional.pad(flat, (0, 0, 0, -self.inputs % bank))
        blocks = padded.reshape(self.outputs, -1, bank, self.taps)
        return blocks.transpose(2, 3).reshape(self.outputs, -1)

    def weight(self, matrix: Tensor, bank: int) -> Tensor:
        """The inverse of `matrix`."""
        shape = (self.outputs, self.inputs, *self.kernel)
        if self.inputs < bank:
            return matrix.reshape(self.outputs, self.taps, self.inputs).transpose(1, 2).reshape(shape)
        blocks = matrix.reshape(self.outputs, -1, self.taps, bank).transpose(2, 3)
        return blocks.reshape(self.outputs, -1, self.taps)[:, : self.inputs].reshape(shape)

    def pack(self, weight: Tensor, groups: int, bank: int | None, dtype: torch.dtype | None) -> Packed:
        """Pack a convolution's weight; without a bank, 16 columns, or 64 where that needs far fewer slots."""
        if groups == self.inputs == self.outputs >= 16 and bank in (None, 16):
            return self._pack_own(weight.detach(), dtype)
        full = ungrouped(weight.detach(), groups)
        packed = pack(self.matrix(full, bank or 16), bank or 16, dtype)
        if bank is None and packed.fill < 0.7 and self.inputs >= 64:
            larger = pack(self.matrix(full, 64), 64, dtype)
            packed = larger if larger.slots < 0.8 * packed.slots else packed
        return packed

    def _pack_own(self, weight: Tensor, dtype: torch.dtype | None) -> Packed:
        """Pack a depthwise weight without writing out the zeros between its channels.

        Sixteen rows read one block of channels: packed as if all of them read the first, their banks move to their own.
        """
        row = torch.arange(self.outputs)
        near = weight.new_zeros(self.outputs, self.taps, 16)
        near[row, :, row % 16] = weight.reshape(self.outputs, self.taps)
        packed = pack(near.flatten(1), 16, dtype)
        begins, slots = packed.starts[: packed.groups].tolist(), packed.starts[packed.groups : 2 * packed.groups + 1]
        counts = slots.diff().tolist()
        parts = [
            packed.schedule[begin : begin + count] + group * self.taps
            for group, (begin, count) in enumerate(zip(begins, counts))
        ]
        starts = torch.cat([slots[:-1], packed.starts[packed.groups :]])
        return replace(packed, cols=self.columns(16), schedule=torch.cat(parts), starts=starts)


def ungrouped(weight: Tensor, groups: int) -> Tensor:
    """A grouped weight (out, in/groups, ...) as (out, in, ...), zero outside each group's own channels."""
    if groups == 1:
        return weight
    outputs, inside = weight.shape[:2]
    full = weight.new_zeros(outputs, inside * groups, *weight.shape[2:])
    for group in range(groups):
        rows = slice(group * outputs // groups, (group + 1) * outputs // groups)
        full[rows, group * inside : (group + 1) * inside] = weight[rows]
    return full


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])

"""The forms of rounded tables of embeddings: their grid, the table in int8, and a head packed from the same integers.

What is rounded lies on a grid that is found again from the values alone, bit for bit: bfloat16, or for int8 the whole
multiples of one scale for each row. A scale has so few digits that its multiples are exact numbers of the table's type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.errors import BadInput
from prunus.sparse._modules import watched
from prunus.sparse._packed import Packed, pack
from prunus.sparse._weight import PackedWeight

FEWER = (torch.bfloat16, torch.int8)
SCALE = "|scale"  # ends the name under which a table's scales are stored
MOST = 127
DIGITS = {torch.float32: 16, torch.bfloat16: 1, torch.float16: 1}  # of a scale, so that 127 times it is exact
LEAST = {torch.float32: 2.0**-100, torch.bfloat16: 2.0**-100, torch.float16: 2.0**-24}  # scale


def check_embeddings(dtype: Any) -> None:
    if dtype is not None and dtype not in FEWER:
        raise BadInput(f"Embeddings can be stored as torch.bfloat16 or torch.int8, not as {dtype}.")


def narrowed(table: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """A table as it is stored: "" are the values, SCALE their scales."""
    if dtype == torch.bfloat16:
        return {"": table.to(dtype)}
    wide, digits = table.float(), DIGITS[table.dtype]
    scale = wide.abs().amax(1, keepdim=True) / MOST
    fraction, power = torch.frexp(scale)
    steps = fraction * 2**digits
    steps = steps.ceil() if digits == 1 else steps.round()  # a power of two goes up, so that no value is over 127
    scale = torch.where(scale == 0, 1.0, torch.ldexp(steps, power - digits).clamp_min(LEAST[table.dtype]))
    return {"": (wide / scale).round().to(torch.int8), SCALE: scale}


def widened(parts: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """The table that is stored so."""
    values = parts[""].float()
    return (values * parts[SCALE] if SCALE in parts else values).to(dtype)


def check_parts(parts: dict[str, Tensor]) -> None:
    """Raise ValueError where these tensors are no table."""
    values, scale = parts[""], parts.get(SCALE)
    if values.dim() != 2 or values.dtype != (torch.bfloat16 if scale is None else torch.int8):
        raise ValueError("a table of embeddings has the wrong type")
    if scale is not None:
        fits = scale.dtype == torch.float32 and scale.shape == (values.shape[0], 1)
        if not fits or not bool((scale.isfinite() & (scale > 0)).all()):
            raise ValueError("the scales of embeddings are wrong")


def pack_table(parts: dict[str, Tensor]) -> Packed:
    """A table in int8 as the weight of a linear layer: the same integers and scales."""
    check_parts(parts)
    found = pack(parts[""].float())
    shape = (found.rows, found.cols, found.bank)
    rest = (found.index, found.schedule, found.starts, parts[SCALE].flatten().clone())
    return Packed(*shape, found.values.to(torch.int8), *rest)


_NAMES = {"": "values", SCALE: "scale"}


class RoundedEmbedding(nn.Module):
    """A table of embeddings in int8, with a scale for each row; what is looked up is of type `dtype`."""

    values: Tensor
    scale: Tensor

    def __init__(self, parts: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        check_parts(parts)
        self.register_buffer("values", parts[""])
        self.register_buffer("scale", parts[SCALE])
        self.num_embeddings, self.embedding_dim = parts[""].shape
        self.dtype = dtype

    def take_over(self, old: nn.Module) -> None:
        """What else the module in whose place this one comes knows of itself: `padding_idx`, marks of a library."""
        for name, value in vars(old).items():
            if not name.startswith("_") and name not in vars(self):
                setattr(self, name, value)

    @property
    def weight(self) -> Tensor:
        """The table, for code that asks for its dtype, shape or device; its values are made when computed with."""
        if watched():
            return self._table()
        return PackedWeight(tuple(self.values.shape), self.dtype, self.values.device, self._table)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if fn(torch.empty(1, dtype=torch.float32)).dtype != torch.float32:
            raise BadInput("A table in int8 cannot be converted to another type: convert the model, then compress it.")
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch gives it no types

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        found = {part: state_dict.get(prefix + name) for part, name in (("", "values"), (SCALE, "scale"))}
        parts = {part: tensor for part, tensor in found.items() if tensor is not None and not tensor.is_meta}
        wrong = any(tensor.shape != getattr(self, _NAMES[part]).shape for part, tensor in parts.items())
        try:
            if len(parts) == len(_NAMES):
                check_parts(parts)
        except (ValueError, TypeError, RuntimeError):
            wrong = True
        if wrong:
            raise BadInput(f"The state for {prefix.rstrip('.')!r} is no table in int8 of this size.")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _table(self) -> Tensor:
        return widened({"": self.values, SCALE: self.scale}, self.dtype)

    def forward(self, input: Tensor) -> Tensor:
        """The rows with these numbers.

        Args:
            input: numbers of rows (...).

        Returns:
            (..., embedding_dim).
        """
        parts = {"": functional.embedding(input, self.values), SCALE: functional.embedding(input, self.scale)}
        return widened(parts, self.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, int8"

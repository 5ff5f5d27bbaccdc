"""Tables of embeddings in fewer bits: rounded in the copy that `compress` makes, stored in that form by `save`.

What is rounded lies on a grid that is found again from the values alone, bit for bit: bfloat16, or for int8 the whole
multiples of one scale for each row. A scale has so few digits that its multiples are exact numbers of the table's type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.sparse._plan import StoredLayer

FEWER = (torch.bfloat16, torch.int8)
SCALE = "|scale"  # ends the name under which a table's scales are stored
MOST = 127
DIGITS = {torch.float32: 16, torch.bfloat16: 1, torch.float16: 1}  # of a scale, so that 127 times it is exact
LEAST = {torch.float32: 2.0**-100, torch.bfloat16: 2.0**-100, torch.float16: 2.0**-24}  # scale


def check_embeddings(dtype: Any) -> None:
    if dtype is not None and dtype not in FEWER:
        raise BadInput(f"Embeddings can be stored as torch.bfloat16 or torch.int8, not as {dtype}.")


def tables(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every table of embeddings by the name of its module; one that several modules share only once."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is not None and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            found.setdefault(id(weight), (name, weight))
    return dict(found.values())


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


def round_tables_(model: nn.Module, dtype: torch.dtype) -> list[StoredLayer]:
    """Round every table of a model whose tensors may be shared with another: rounded ones are new tensors.

    Returns:
        A row for each table, with the size of the change over the size of the table.
    """
    rows, fresh = [], dict[int, nn.Parameter]()
    for name, table in tables(model).items():
        values, size = table.detach(), table.nbytes
        zeros = 1 - int(values.count_nonzero()) / max(1, values.numel())
        if table.dtype not in DIGITS or table.dtype == dtype or not values.numel():
            kind = str(table.dtype).removeprefix("torch.")
            rows.append(StoredLayer(name, "dense", "torch", zeros, size, size, why=f"an embedding that holds {kind}"))
            continue
        parts = narrowed(values, dtype)
        again = widened(parts, table.dtype)
        if not bool((values.isfinite() & again.isfinite()).all()):
            raise BadInput(f"The embedding {name!r} holds NaN, infinity or numbers too large to be rounded: mend it.")
        error = float(torch.dist(again.float(), values.float()) / values.float().norm().clamp_min(1e-30))
        words = f"embedding, {str(dtype).removeprefix('torch.')} in files"
        stored = sum(part.nbytes for part in parts.values())
        rows.append(StoredLayer(name, words, "torch", zeros, stored, size, error=error))
        fresh[id(table)] = nn.Parameter(again, table.requires_grad)
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None and id(held) in fresh:
                module._parameters[name] = fresh[id(held)]
    return rows

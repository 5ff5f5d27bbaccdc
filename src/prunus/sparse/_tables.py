"""Tables of embeddings in a model: rounded in the copy that `compress` makes, and what becomes of heads tied to them.

A head whose table is in int8 can be packed from it. Then the table stays in int8 in memory too, and files hold it once:
the head's packed tensors are made from it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.sparse._embeddings import DIGITS, SCALE, RoundedEmbedding, narrowed, pack_table, widened
from prunus.sparse._plan import SparsePlan, StoredLayer, describe

TABLE = "table"  # in the description of a head: the module whose table it is packed from


def tables(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every table of embeddings by the name of its module; one that several modules share only once."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is not None and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            found.setdefault(id(weight), (name, weight))
    return dict(found.values())


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


def keep_in_int8(
    model: nn.Module, heads: Mapping[str, nn.Parameter], plan: SparsePlan, modules: dict[str, nn.Module]
) -> None:
    """Note which table each packed head is made from, and put tables into `modules` in int8 where that is enough.

    `heads` are the tables of the heads among `modules`, by name. Where a module does more than look up, or another one
    holds the table too, all keep their own.
    """
    for head, table in heads.items():
        users = {name: m for name, m in model.named_modules() if any(p is table for p in m._parameters.values())}
        holders = {name: m for name, m in users.items() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
        plan.layers[head][TABLE] = next(iter(holders))
        if not all(_looks_up(users[name]) if name in holders else name in heads for name in users):
            continue
        parts = narrowed(table.detach(), torch.int8)
        for name in holders:
            modules[name] = RoundedEmbedding(parts, table.dtype)
            plan.layers[name] = describe(modules[name])
        plan.rows[:] = [replace(row, format="embedding, int8") if row.layer in holders else row for row in plan.rows]


def _looks_up(module: nn.Module) -> bool:
    """Whether a module does nothing but look up the rows of its table."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return type(module) is nn.Embedding and module.max_norm is None and not hooks and "forward" not in vars(module)


def head_tensors(name: str, spec: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The packed weight of a head by the names of a file, made from its table among the tensors of that file.

    Raises:
        KeyError, ValueError: The table is missing or is none.
    """
    table = spec[TABLE]
    if f"{table}.weight" in tensors:
        parts = narrowed(tensors[f"{table}.weight"], torch.int8)
    else:
        parts = {"": tensors[f"{table}.values"], SCALE: tensors[f"{table}.scale"]}
    inside = "inner." if spec["kind"] == "cast" else ""
    return {f"{name}.{inside}{part}": value for part, value in pack_table(parts).tensors().items()}

"""The last step of `compress`: which of the packed forms that were tried make the finished model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from prunus.sparse._copies import ExpectedAnswer, sharing
from prunus.sparse._explain import make_row
from prunus.sparse._measure import NOISE, Timing, in_turn
from prunus.sparse._plan import SparsePlan, StoredLayer, describe, install, run_fused
from prunus.sparse._tables import keep_in_int8


@dataclass(frozen=True)
class Tried:
    """A layer, what could replace it, what is said of it then or otherwise, and whether that gains: surely, perhaps.

    `plain` is the same with float32 values, where those are faster than the integers that were asked for. `table` is
    the weight of a layer that is packed from a table of embeddings.
    """

    name: str
    layer: nn.Module
    packed: nn.Module | None
    row: StoredLayer
    dense_row: StoredLayer
    sure: bool
    likely: bool
    norm: str = ""
    table: nn.Parameter | None = None
    plain: Tried | None = None


def in_float32(one: Tried, packed: nn.Module, integers: Timing, plain: Timing) -> Tried | None:
    """The layer packed in float32, where that is faster than integer products."""
    if plain.ours >= (1 - NOISE) * integers.ours:
        return None
    times = f"{1e6 * integers.ours:.1f} instead of {1e6 * plain.ours:.1f} microseconds"
    row = replace(make_row(one.name, one.layer, packed, plain), why=f"float32: integer products take {times}")
    return replace(one, packed=packed, row=row, sure=one.sure or plain.gains, likely=one.likely or plain.may_gain)


def finish_faster(
    work: nn.Module, tried: Sequence[Tried], norms: Mapping[str, str], plan: SparsePlan, answer: ExpectedAnswer | None
) -> nn.Module:
    """The finished model, with float32 in the place of integers where that is faster.

    Fused layers hand bytes to each other, which a layer alone does not show: there the whole model is timed both ways.
    """
    plain = [one.plain or one for one in tried]
    if not any(one.plain for one in tried) or not plan.fused or answer is None:
        return _finish_best(work, plain, norms, plan, answer)
    other = sharing(work), [replace(one, packed=sharing(one.packed) if one.packed else None) for one in tried]
    integers = _finish_best(*other, norms, copy.deepcopy(plan), answer)
    mixed = _finish_best(work, plain, norms, plan, answer)
    with torch.no_grad():
        seconds = in_turn([lambda: answer.example.run(integers), lambda: answer.example.run(mixed)])
    return mixed if seconds[1] < seconds[0] else integers


def _finish_best(
    work: nn.Module, tried: Sequence[Tried], norms: Mapping[str, str], plan: SparsePlan, answer: ExpectedAnswer | None
) -> nn.Module:
    """The finished model; layers whose gain is a few microseconds are in it if the whole model runs faster so."""
    if answer is None or all(one.sure == one.likely for one in tried):
        return _finish(work, tried, norms, plan, [one.sure for one in tried], answer)
    other = sharing(work), [replace(one, packed=sharing(one.packed) if one.packed else None) for one in tried]
    without = _finish(*other, norms, copy.deepcopy(plan), [one.sure for one in tried], answer)
    inside = _finish(work, tried, norms, plan, [one.likely for one in tried], answer)
    with torch.no_grad():
        seconds = in_turn([lambda: answer.example.run(without), lambda: answer.example.run(inside)])
    return inside if seconds[1] < seconds[0] else without


def _finish(
    work: nn.Module,
    tried: Sequence[Tried],
    norms: Mapping[str, str],
    plan: SparsePlan,
    chosen: Sequence[bool],
    answer: ExpectedAnswer | None,
) -> nn.Module:
    """The model with the chosen layers; fused where that was asked for and answers the example as the model does."""
    modules: dict[str, nn.Module] = {}
    for one, taken in zip(tried, chosen):
        packed = one.packed if taken else None
        plan.rows.append(one.dense_row if packed is None else one.row)
        if packed is None:
            continue
        modules[one.name] = packed
        plan.layers[one.name] = describe(packed)
        plan.folded += [norms[one.name]] if one.name in norms else []
    heads = {one.name: one.table for one in tried if one.name in modules and one.table is not None}
    keep_in_int8(work, heads, plan, modules)
    whole = install(work, plan, modules).eval()
    if not plan.fused:
        return whole
    fused = run_fused(sharing(whole), plan)  # fusing changes layers, and these must be left where it fails
    if answer is None or answer.holds(fused):
        return fused
    plan.fused = False
    return whole

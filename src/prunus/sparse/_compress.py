"""`prunus.compress`: a copy of a pruned model in which each layer that gains runs on packed weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.contract import Masks
from prunus.errors import BadInput, first_line
from prunus.sparse._channels import remove_channels
from prunus.sparse._errors import output_errors
from prunus.sparse._explain import make_row
from prunus.sparse._geometry import Geometry
from prunus.sparse._graph import batch_norm_pairs, folded
from prunus.sparse._measure import Timing, compare, in_turn
from prunus.sparse._modules import BalancedLinear, PackedModule, SparseConv2d, check_activations, check_order
from prunus.sparse._packed import KINDS
from prunus.sparse._plan import Plan, describe, install
from prunus.sparse._recurrent import SparseLSTM, SparseLSTMCell

LEAST_SPARSITY = 0.3  # below this share of zeros a layer is not tried unless it is named ...
SMALL = 4096  # ... or so small that the saved overhead may pay
_EXPANSION = 1 << 26  # weights of a grouped convolution written without groups


def compress(
    model: nn.Module,
    masks: Masks | None = None,
    example: Any = None,
    select: str | Mapping[str, bool] = "measured",
    dtype: torch.dtype | None = None,
    activations: torch.dtype | None = None,
    *,
    fuse: bool = False,
    permutations: Mapping[str, Tensor] | None = None,
) -> nn.Module:
    """A copy for inference in which linear layers, 2-D convolutions and LSTMs with enough zeros run on packed weights.

    `masks` are applied to the copy first; without them the zeros of the weights count. `example` is an input (or a
    tuple of inputs) of the shape that matters: it decides on which shapes layers are timed. `select` is "measured"
    (replace what gains), "always" (replace whatever can be), or {layer: bool} to decide for some layers by hand.
    `dtype` stores the kept values as torch.float32 (the default), torch.bfloat16 or torch.int8. With
    `activations=torch.int8` the inputs of linear layers are rounded to seven bits, token by token, and multiplied with
    int8 weights as integers: up to three times as fast as float32; `explain` states the error of each layer's output
    on the example.

    Channels that are always zero are removed with what reads them. Batch norms that follow a replaced convolution are
    folded into it; with `fuse` ReLUs and residual sums run inside the layer before them, and the copy is a `torch.fx`
    graph where the model can be traced, whose inner results live in memory that is used again. `permutations` are
    orders of columns by layer, as `find_permuted_masks` gives them. The copy is in evaluation mode.
    """
    dtype = torch.int8 if dtype is None and activations is not None else dtype
    _check_arguments(model, masks, select, dtype, activations)
    try:
        work = copy.deepcopy(model).eval()
    except RuntimeError as error:
        hint = "prune.remove makes the pruning of torch.nn.utils.prune permanent"
        raise BadInput(f"The model cannot be copied ({first_line(error)}): {hint}.") from error
    if masks is not None:
        masks.apply_(work)
    shapes_left: dict[str, list[int]] = {}
    if not permutations:  # an order of columns speaks of the columns that were there
        work, shapes_left = remove_channels(work)
    layers = _candidates(work)
    wanted = _wanted(select, layers)
    shapes, foreign = _shapes(work, layers, example)
    norms = batch_norm_pairs(work)
    orders = _orders(permutations, layers)
    held, tried = _bytes(work), list[_Tried]()
    for name, layer in layers.items():
        decision = wanted.get(name, "always" if select == "always" else "measured")
        weights = [parameter for parameter in layer.parameters() if parameter.dim() > 1]
        total = sum(weight.numel() for weight in weights)
        sparsity = 1 - sum(int(weight.count_nonzero()) for weight in weights) / max(1, total)
        hopeless = sparsity < LEAST_SPARSITY and (total > SMALL or name not in norms)
        if decision == "never" or name in foreign or (decision == "measured" and hopeless):
            tried.append(_Tried(name, layer, None, None, False, False))
            continue
        packed = _replacement(name, layer, norms, work, dtype, activations, orders.get(name))
        norm = work.get_submodule(norms[name]) if name in norms else None
        timing = _time(layer, norm, packed, shapes.get(name), sparsity, held - _bytes(layer))
        sure = decision == "always" or timing.gains
        tried.append(_Tried(name, layer, packed, timing, sure, sure or timing.may_gain))
    if example is not None and dtype not in (None, torch.float32):
        folded_norms = {name: work.get_submodule(norm) for name, norm in norms.items()}
        errors = output_errors(work, {one.name: one.packed for one in tried if one.packed}, folded_norms, example)
        tried = [replace(one, error=errors.get(one.name)) for one in tried]
    if example is None or all(one.sure == one.likely for one in tried):
        return _finish(work, tried, norms, Plan(fused=fuse, shapes=shapes_left), [one.sure for one in tried])
    # Layers whose gain is a few microseconds: with them or without, as the whole model runs faster.
    other = copy.deepcopy(work), [replace(one, packed=copy.deepcopy(one.packed)) for one in tried]
    without = _finish(*other, norms, Plan(fused=fuse, shapes=shapes_left), [one.sure for one in tried])
    inside = _finish(work, tried, norms, Plan(fused=fuse, shapes=shapes_left), [one.likely for one in tried])
    arguments = example if isinstance(example, tuple) else (example,)
    with torch.no_grad():
        seconds = in_turn([lambda: without(*arguments), lambda: inside(*arguments)])
    return inside if seconds[1] < seconds[0] else without


@dataclass(frozen=True)
class _Tried:
    """A layer, what could replace it, and whether that gains for sure, or perhaps."""

    name: str
    layer: nn.Module
    packed: nn.Module | None
    timing: Timing | None
    sure: bool
    likely: bool
    error: float | None = None


def _finish(
    work: nn.Module, tried: Sequence[_Tried], norms: Mapping[str, str], plan: Plan, chosen: Sequence[bool]
) -> nn.Module:
    modules: dict[str, nn.Module] = {}
    for one, taken in zip(tried, chosen):
        packed = one.packed if taken else None
        plan.rows.append(make_row(one.name, one.layer, packed, one.timing, one.error))
        if packed is None:
            continue
        modules[one.name] = packed
        plan.layers[one.name] = describe(packed)
        plan.folded += [norms[one.name]] if one.name in norms else []
    return install(work, plan, modules).eval()


def _check_arguments(model: nn.Module, masks: Any, select: Any, dtype: Any, activations: Any) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(f"compress takes a torch module, not {type(model).__name__}.")
    if masks is not None and not isinstance(masks, Masks):
        raise BadInput(f"compress takes prunus.Masks, not {type(masks).__name__}: make them with prunus.Masks(...).")
    if not (select in ("measured", "always") if isinstance(select, str) else isinstance(select, Mapping)):
        raise BadInput(
            f'select must be "measured", "always" or a mapping from layers to True or False, not {select!r}.'
        )
    if dtype is not None and dtype not in KINDS:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in KINDS)
        raise BadInput(f"Values cannot be stored as {dtype}; choose one of {names}.")
    check_activations(activations)
    if activations is not None and dtype != torch.int8:
        raise BadInput(f"Integer products need int8 weights, not {dtype}: give dtype=torch.int8 with activations.")
    devices = {parameter.device.type for parameter in model.parameters()} - {"cpu"}
    if devices:
        raise BadInput(
            f"compress packs models for the CPU, but this one lies on {', '.join(sorted(devices))}: move it."
        )


def _candidates(model: nn.Module) -> dict[str, nn.Module]:
    """Layers that can be replaced: not those whose weight another module reads by itself."""
    inside = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    closed = {id(child) for module in model.modules() if isinstance(module, inside) for child in module.modules()}
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if type(module) not in (nn.Linear, nn.Conv2d, nn.LSTM, nn.LSTMCell) or id(module) in closed:
            continue
        kinds = {parameter.dtype for parameter in module.parameters()} - {torch.float32}
        if kinds:
            raise BadInput(f"Layer {name!r} holds {kinds.pop()}; sparse layers run float32: use model.float().")
        unsupported = isinstance(module, nn.Conv2d) and not _supported(module)
        if unsupported or (isinstance(module, nn.LSTM) and module.proj_size):
            continue
        found[name] = module
    return found


def _supported(conv: nn.Conv2d) -> bool:
    try:
        Geometry.of(conv)
    except BadInput:
        return False
    return conv.weight.numel() * conv.groups <= _EXPANSION or conv.groups == 1


def _wanted(select: str | Mapping[str, bool], layers: Mapping[str, nn.Module]) -> dict[str, str]:
    if isinstance(select, str):
        return {}
    unknown = [name for name in select if name not in layers]
    if unknown:
        known = ", ".join(layers) or "none"
        raise BadInput(
            f"select names {unknown[0]!r}, which is not a layer that can be replaced here. Such are: {known}."
        )
    return {name: "always" if chosen else "never" for name, chosen in select.items()}


def _orders(permutations: Mapping[str, Tensor] | None, layers: Mapping[str, nn.Module]) -> Mapping[str, Tensor]:
    for name in permutations or {}:
        if type(layers.get(name)) is not nn.Linear:
            raise BadInput(f"A permutation is given for {name!r}, which is not a linear layer of this model.")
        check_order((permutations or {})[name], layers[name].in_features)  # type: ignore[arg-type]
    return permutations or {}


def _shapes(
    model: nn.Module, layers: Mapping[str, nn.Module], example: Any
) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """The shape each layer sees when the example runs, and the layers fed something else (a packed sequence)."""
    if example is None:
        return {}, set()
    shapes: dict[str, tuple[int, ...]] = {}
    foreign: set[str] = set()

    def note(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            first = inputs[0] if inputs else named.get("input")
            if isinstance(first, Tensor):
                shapes.setdefault(name, tuple(first.shape))
            else:
                foreign.add(name)

        return hook

    handles = [layer.register_forward_pre_hook(note(name), with_kwargs=True) for name, layer in layers.items()]
    arguments = example if isinstance(example, tuple) else (example,)
    try:
        with torch.no_grad():
            model(**example) if isinstance(example, Mapping) else model(*arguments)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise BadInput(
            f"The model cannot run on the example ({first_line(error)}): give an input of the right shape."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return shapes, foreign


def _replacement(
    name: str,
    layer: nn.Module,
    norms: Mapping[str, str],
    model: nn.Module,
    dtype: torch.dtype | None,
    activations: torch.dtype | None,
    order: Tensor | None,
) -> nn.Module:
    try:
        if isinstance(layer, nn.Linear):
            return BalancedLinear.from_dense(layer, None, dtype, order, activations)
        if isinstance(layer, nn.LSTM):
            return SparseLSTM.from_dense(layer, dtype)
        if isinstance(layer, nn.LSTMCell):
            return SparseLSTMCell.from_dense(layer, dtype)
        assert isinstance(layer, nn.Conv2d)
        if name not in norms:
            return SparseConv2d.from_dense(layer, dtype=dtype)
        norm = model.get_submodule(norms[name])
        assert isinstance(norm, nn.BatchNorm2d)
        weight, bias = folded(layer, norm)
        geometry = Geometry.of(layer)
        return SparseConv2d(geometry.pack(weight, layer.groups, None, dtype), geometry, bias)
    except BadInput as error:
        raise BadInput(f"Layer {name!r} cannot be packed. {error}") from error


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def _time(
    layer: nn.Module,
    norm: nn.Module | None,
    packed: nn.Module,
    shape: tuple[int, ...] | None,
    sparsity: float,
    around: int,
) -> Timing:
    """Measured for the shape the layer sees; without an example, for a batch of 8, 16 x 16 pixels or 16 steps.

    A batch norm that would be folded counts on the dense side.
    """
    kind: tuple[Any, ...] = (type(layer).__name__, *(tuple(parameter.shape) for parameter in layer.parameters()))
    if isinstance(layer, nn.Linear):
        shape = shape or (8, layer.in_features)
    elif isinstance(layer, nn.Conv2d):
        shape = shape or (1, layer.in_channels, 16, 16)
        kind = (*kind, Geometry.of(layer), layer.groups)
    elif isinstance(layer, nn.LSTM):
        shape = shape or ((8, 16, layer.input_size) if layer.batch_first else (16, 8, layer.input_size))
        kind = (*kind, layer.batch_first, layer.bidirectional)
    else:
        assert isinstance(layer, nn.LSTMCell)
        shape = shape or (8, layer.input_size)
    parts = [part for part in packed.modules() if isinstance(part, PackedModule)]
    formats = tuple((part.bank, tuple(part.values.shape), part.values.dtype) for part in parts)
    extras = (getattr(packed, "permutation", None) is not None, getattr(packed, "activations", None))
    key = (kind, norm is None, formats, extras, round(sparsity, 2))
    return compare(layer if norm is None else nn.Sequential(layer, norm), packed, shape, key, around)

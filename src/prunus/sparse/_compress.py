"""`prunus.compress`: a copy of a pruned model in which each layer that gains runs on packed weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.contract import Masks
from prunus.errors import BadInput, first_line
from prunus.graph import given_arguments
from prunus.layers import require_module
from prunus.sparse._calibrate import find_spans
from prunus.sparse._candidates import (
    RECURRENT,
    Candidates,
    depthwise,
    find,
    read_own_forwards,
    replacement,
    usual_shape,
)
from prunus.sparse._channels import remove_channels_
from prunus.sparse._copies import (
    ExpectedAnswer,
    Spent,
    UnlikeModel,
    as_example,
    changed_flags,
    input_shapes,
    mask_copy,
    own,
    require_repeatable,
    run_apart,
    share_packed,
    sharing,
)
from prunus.sparse._embeddings import check_embeddings
from prunus.sparse._errors import output_errors
from prunus.sparse._explain import make_row
from prunus.sparse._finish import Tried, finish_faster, in_float32
from prunus.sparse._foreign import Cast, PaddedConv2d
from prunus.sparse._graph import ATTRIBUTE, batch_norm_pairs
from prunus.sparse._integer import check_activations
from prunus.sparse._measure import Timing, beside, compare
from prunus.sparse._modules import PackedModule, check_order
from prunus.sparse._packed import KINDS
from prunus.sparse._plan import SparsePlan, carried, plan_of
from prunus.sparse._pretrained import offer_save_pretrained
from prunus.sparse._tables import round_tables_

LEAST_SPARSITY = 0.3  # below this share of zeros a layer is not tried unless it is named ...
SMALL = 4096  # ... or so small that the saved overhead may pay, or a convolution that integer products make faster
UNPRUNED = 0.01  # below this share of zeros "always" leaves a layer alone, too


@torch.inference_mode(False)  # what is made in that mode can never be part of a gradient
def compress(
    model: nn.Module,
    masks: Masks | None = None,
    example: Any = None,
    select: str | Mapping[str, bool] = "measured",
    dtype: torch.dtype | None = None,
    activations: torch.dtype | None = None,
    *,
    embeddings: torch.dtype | None = None,
    fuse: bool = False,
    permutations: Mapping[str, Tensor] | None = None,
    calibration: Any = None,
    release: bool = False,
) -> nn.Module:
    """A copy for inference in which layers with enough zeros run on packed weights.

    Linear layers (transformers' `Conv1D` too), 2-D convolutions, LSTMs, GRUs and attention are packed, and subclasses
    whose own forward is one such product; `explain` says why the others stay dense. Models in bfloat16 or float16 are
    computed in float32 inside packed layers. Channels that are always zero are removed with what reads them. Batch
    norms that follow a replaced convolution are folded into it. The copy is in evaluation mode.

    Args:
        model: the pruned model; it is left as it is.
        masks: applied to the copy first; without them the zeros of the weights count.
        example: an input, a tuple of inputs or a dict of named ones, of the shape that matters: it decides on which
            shapes layers are timed, and both models are run on it and compared before the copy is returned.
        select: "measured" (replace what gains), "always" (replace whatever can be and is pruned, and depthwise
            convolutions), or {layer: bool} to
            decide for some layers by hand.
        dtype: stores the kept values as torch.float32 (the default), torch.bfloat16 or torch.int8.
        activations: with torch.int8 the inputs of linear layers and convolutions are rounded to seven bits over the
            range of each token (of a convolution: each image), and multiplied with int8 weights as integers: for
            linear layers up to three times as fast as float32; `explain` states the error of each layer's output on
            the example. With select="measured" a layer whose integer products are slower than float32 ones gets those.
        embeddings: rounds tables of embeddings to torch.bfloat16 or torch.int8 (with a scale for each row), heads tied
            to them too. `save` stores them so, in a half or a quarter of the space; in memory they stay as wide as they
            were, and `load` gives the same values. A head tied to a table in int8 is packed from it where that is
            faster (with `activations` its products are integers too); then that table is in int8 in memory as well,
            where no module does more with it than look rows up.
            `explain` states the error of each table.
        fuse: ReLUs and residual sums run inside the layer before them, and the copy is a `torch.fx` graph where the
            model can be traced and this graph answers the example as the model does; its inner results live in memory
            that is used again. The graph is that of calls like the example (without one: of calls that leave out what
            can be left out), and refuses calls that would take other branches. Blocks of transformers (BERT and its
            relatives, Llama, Mistral, Qwen2) whose layers are all packed run by one call.
        permutations: orders of columns by layer, as `find_permuted_masks` gives them.
        calibration: with `activations`, data like those the model will meet (a batch of inputs, a data set, a list of
            batches: what `prunus.adapters.batches` reads; up to 512 samples, labels ignored). The ranges of all inputs
            are then fixed beforehand, where the squared error is least; what lies outside is clipped. Fixed ranges let
            runs of convolutions hand bytes to each other. Without it ranges are measured at every call.
        release: free each dense layer as soon as it is packed, so that hardly more than the model itself is held at
            any time. The model that was given cannot be used afterwards, also if this fails: its packed layers are
            empty, and what is left is shared with the copy.

    Returns:
        The copy.

    Raises:
        BadInput: An argument does not fit the model, or the model cannot be copied.

    Example:
        >>> model = prunus.models.make("fc:64-64-10", seed=0)
        >>> masks = prunus.prune(model, 0.9)
        >>> x = torch.randn(8, 64)
        >>> fast = prunus.compress(model, example=x)
        >>> torch.allclose(fast(x), model(x), atol=1e-5)
        True
    """
    dtype = torch.int8 if dtype is None and activations is not None else dtype
    _check_arguments(model, masks, select, dtype, activations)
    check_embeddings(embeddings)
    if calibration is not None and activations is None:
        raise BadInput("Calibration data serve integer products: give activations=torch.int8 with them.")
    example = None if example is None else as_example(example)
    work = _working_copy(model, masks, release)
    exact = embeddings is None and dtype in (None, torch.float32)
    answer = None if example is None else ExpectedAnswer(example, run_apart(work, example), exact)
    stand_ins, constants = ([], {}) if example is None else given_arguments(work, example.args, example.kwargs)
    # An order of columns belongs to the columns that were there.
    shapes_left = {} if permutations else remove_channels_(work)
    rounded_tables = [] if embeddings is None else round_tables_(work, embeddings)
    found = find(work, rounded=embeddings == torch.int8)
    shapes, foreign = input_shapes(work, found.layers, example)
    read_own_forwards(found, shapes)
    spans = {} if calibration is None else find_spans(work, found.layers, calibration)
    # Dense layers are needed again where the error of fewer bits is measured.
    rounded = example is not None and dtype not in (None, torch.float32)
    spent = Spent(work, model) if release else None
    passes = fuse and activations is not None and example is not None
    options = _Options(select, dtype, activations, permutations, spans, None if rounded else spent, passes)
    tried = _try_layers(work, found, shapes, foreign, options)
    norms = {one.name: one.norm for one in tried if one.norm}
    if rounded:
        tried = _with_errors(work, tried, norms, example)
    stored = "" if embeddings is None else str(embeddings).removeprefix("torch.")
    before = carried(work)
    plan = SparsePlan(
        layers=before.layers,
        folded=before.folded,
        fused=fuse,
        shapes=before.shapes | shapes_left,
        rows=rounded_tables,
        embeddings=stored or before.embeddings,
        stand_ins=stand_ins,
        constants=constants,
        flags=before.flags | changed_flags(model, work),
    )
    fast = finish_faster(work, tried, norms, plan, answer)
    for name, why in found.left.items():
        plan_of(fast).rows.append(make_row(name, work.get_submodule(name), None, None, why=why))
    named = {row.layer for row in plan_of(fast).rows}
    plan_of(fast).rows[:0] = [row for row in before.rows if row.layer not in named]
    if spent is not None:
        spent.free_all(one.layer for one in tried if one.packed is not None and one.sure)
    else:
        own(fast, model)
    offer_save_pretrained(fast)
    if answer is not None:
        try:
            answer.require(fast)
        except UnlikeModel:
            if not release:
                require_repeatable(_working_copy(model, masks, False), answer.example, answer.expected)
            raise
        answer.warn_if_empty()
    return fast


def _working_copy(model: nn.Module, masks: Masks | None, release: bool) -> nn.Module:
    """Modules of its own over the model's tensors, masked, in evaluation mode."""
    if masks is not None and release:
        masks.apply_(model)  # in place: a masked copy would be as large again
    try:
        work = sharing(model).eval()
    except RuntimeError as error:
        hint = "prune.remove makes the pruning of torch.nn.utils permanent, and remove_weight_norm its weight_norm"
        raise BadInput(f"The model cannot be copied ({first_line(error)}): {hint}.") from error
    if masks is not None and not release:
        mask_copy(work, masks)
    return work


def _with_errors(work: nn.Module, tried: list[Tried], norms: Mapping[str, str], example: Any) -> list[Tried]:
    """The same with the error that fewer bits make in each layer's output."""
    folded_norms = {name: work.get_submodule(norm) for name, norm in norms.items()}
    errors = output_errors(work, {one.name: one.packed for one in tried if one.packed}, folded_norms, example)
    return [replace(one, row=replace(one.row, error=errors.get(one.name))) for one in tried]


@dataclass(frozen=True)
class _Options:
    """What `compress` was asked for, for each layer; `spent` frees what is packed.

    `bytes_pass`: convolutions hand bytes to each other, which saves more than a layer alone shows.
    """

    select: str | Mapping[str, bool]
    dtype: torch.dtype | None
    activations: torch.dtype | None
    permutations: Mapping[str, Tensor] | None
    spans: Mapping[str, Tensor]
    spent: Spent | None
    bytes_pass: bool


def _try_layers(
    work: nn.Module,
    found: Candidates,
    shapes: Mapping[str, tuple[int, ...]],
    foreign: set[str],
    options: _Options,
) -> list[Tried]:
    """Pack every layer that has enough zeros, and time it against the dense one."""
    layers = found.layers
    wanted = _wanted(options.select, layers)
    pairs = batch_norm_pairs(work, layers)
    orders = _orders(options.permutations, layers)
    held, tried = _bytes(work), list[Tried]()
    same: dict[Any, nn.Module] = {}
    for name, layer in layers.items():
        decision = wanted.get(name, "all" if options.select == "always" else "measured")
        weights = [parameter for parameter in layer.parameters() if parameter.dim() > 1]
        total = sum(weight.numel() for weight in weights)
        sparsity = 1 - sum(int(weight.count_nonzero()) for weight in weights) / max(1, total)
        alone = depthwise(layer)  # every weight has an input of its own: nothing is shared that zeros could save
        hopeless = sparsity < LEAST_SPARSITY and (total > SMALL or name not in pairs) and not alone
        hopeless = hopeless and not (name in found.heads and (options.activations or decision == "measured"))
        why = ""
        if decision == "never":
            why = "not selected"
        elif name in foreign:
            why = "it is called with something else than a tensor"
        elif decision == "all" and hopeless and sparsity < UNPRUNED:
            why = "not pruned"
        elif decision == "measured" and hopeless and not (options.activations and isinstance(layer, nn.Conv2d)):
            why = "too few zeros"
        if why:
            row = make_row(name, layer, None, None, why=why)
            tried.append(Tried(name, layer, None, row, row, False, False))
            continue
        norm = work.get_submodule(pairs[name]) if name in pairs else None
        inputs: dict[str, Any] = {}
        if not isinstance(layer, (nn.MultiheadAttention, *RECURRENT)):
            inputs = {"activations": options.activations, "span": options.spans.get(name)}
        if inputs and not isinstance(layer, nn.Conv2d):
            inputs["permutation"] = orders.get(name)
        packed = replacement(name, work, found, norm, options.dtype, **inputs)
        share_packed(packed, layer, norm, same)
        timing = _time(layer, norm, packed, shapes.get(name), sparsity, held - _bytes(layer), found)
        plain, other = None, timing
        if decision == "measured" and inputs.get("activations") is not None:
            plain = replacement(name, work, found, norm, None, **inputs | {"activations": None, "span": None})
            other = _time(layer, norm, plain, shapes.get(name), sparsity, held - _bytes(layer), found)
            timing, other = beside(timing, other)
        sure = decision in ("always", "all") or timing.gains
        likely = sure or timing.may_gain or (options.bytes_pass and isinstance(layer, nn.Conv2d) and timing.gain > 0.5)
        rows = (
            make_row(name, layer, packed, timing),
            make_row(name, layer, None, timing, why="" if likely else "its packed form is slower"),
        )
        one = Tried(name, layer, packed, *rows, sure, likely, pairs.get(name, ""), found.heads.get(name))
        if plain is not None:
            one = replace(one, plain=in_float32(one, plain, timing, other))
        tried.append(one)
        if sure and options.spent is not None:
            options.spent.free(layer)
    return tried


def _check_arguments(model: nn.Module, masks: Any, select: Any, dtype: Any, activations: Any) -> None:
    require_module(model)
    if isinstance(plan := getattr(model, ATTRIBUTE, None), SparsePlan) and plan.fused:
        raise BadInput("This model was compressed with fuse=True: compress the pruned model instead, all at once.")
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
        if not isinstance(layers.get(name), nn.Linear):
            raise BadInput(f"A permutation is given for {name!r}, which is not a linear layer of this model.")
        check_order((permutations or {})[name], layers[name].in_features)  # type: ignore[arg-type]
    return permutations or {}


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


class _Attending(nn.Module):
    """Attention with keys and values of ones beside an input, for timing."""

    def __init__(self, attention: nn.Module, widths: tuple[int, int]) -> None:
        super().__init__()
        self.attention, self.widths = attention, widths

    def forward(self, x: Tensor) -> Tensor:
        key, value = (x.new_ones(*x.shape[:-1], width) for width in self.widths)
        return self.attention(x, key, value, need_weights=False)[0]  # type: ignore[no-any-return]


def _time(
    layer: nn.Module,
    norm: nn.Module | None,
    packed: nn.Module,
    shape: tuple[int, ...] | None,
    sparsity: float,
    around: int,
    found: Candidates,
) -> Timing:
    """Measured for the shape the layer sees. A batch norm that would be folded counts on the dense side."""
    kind: tuple[Any, ...] = (type(layer).__name__, *(tuple(parameter.shape) for parameter in layer.parameters()))
    shape = shape or usual_shape(layer)
    if isinstance(layer, nn.Conv2d):
        inner: Any = packed.inner if isinstance(packed, Cast) else packed
        conv = inner.conv if isinstance(inner, PaddedConv2d) else inner
        kind = (*kind, conv.geometry, getattr(inner, "pad", None), layer.groups)
    elif isinstance(layer, (nn.LSTM, nn.GRU)):
        kind = (*kind, layer.batch_first, layer.bidirectional)
    dense, ours = layer if norm is None else nn.Sequential(layer, norm), packed
    if isinstance(layer, nn.MultiheadAttention):
        kind = (*kind, layer.num_heads)
        widths = (int(layer.kdim), int(layer.vdim))
        dense, ours = _Attending(layer, widths), _Attending(packed, widths)
    parts = [part for part in packed.modules() if isinstance(part, PackedModule)]
    formats = tuple((part.bank, tuple(part.values.shape), part.values.dtype) for part in parts)
    extras: tuple[Any, ...] = (getattr(packed, "permutation", None) is not None, type(packed))
    extras = (*extras, *((part.activations, part.span is None) for part in parts))
    key = (kind, next(layer.parameters()).dtype, norm is None, formats, extras, round(sparsity, 2))
    return compare(dense, ours, shape, key, around)

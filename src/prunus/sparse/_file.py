"""`prunus.sparse.save` and `load`: one safetensors file, really smaller, without dense weights.

The tensors are the compressed model's state (for a packed layer: values, index, schedule, starts, scale, bias; the
layout stands in `_packed`), without the weights of heads that are packed from a table of embeddings. The record (see
`prunus.storage`) holds "plan" (version, which layers are packed and how, which batch norms were folded, what was
measured), "shared" (names of tensors that are another one) and "stored" (tables of embeddings in fewer bits, and their
type in memory). Loading reads the file into memory, checks its digest and every
index, and refuses what does not fit; dense weights are never built.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus import storage
from prunus.errors import BadFile, BadInput
from prunus.layers import is_conv1d
from prunus.sparse._channels import apply_shapes
from prunus.sparse._embeddings import DIGITS, SCALE, RoundedEmbedding, check_parts, narrowed, widened
from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._modules import PackedModule
from prunus.sparse._plan import CALIBRATED, ROUNDED, TIED, VERSION, SparsePlan, build, install, plan_of, run_fused
from prunus.sparse._tables import TABLE, head_tensors, tables

KIND = "sparse model"


def save(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write a compressed model to one file; the old file or the new one is there at every moment.

    Args:
        model: as `prunus.compress` returned it.
        path: where it goes.

    Returns:
        The path.

    Raises:
        BadInput: if the model is not compressed.

    Example:
        >>> model = prunus.models.make("fc:64-64-10", seed=0)
        >>> fast = prunus.compress(model, prunus.find_masks(model, 0.9), select="always")
        >>> prunus.sparse.save(fast, "small.safetensors").name
        'small.safetensors'
    """
    return storage.write_tensors(path, *_contents(model))


def file_bytes(model: nn.Module) -> int:
    """Bytes of all tensors that `save` would write.

    Args:
        model: as `prunus.compress` returned it.

    Returns:
        Their number.

    Raises:
        BadInput: if the model is not compressed.

    Example:
        >>> model = prunus.models.make("fc:64-64-10", seed=0)
        >>> fast = prunus.compress(model, prunus.find_masks(model, 0.9), select="always")
        >>> prunus.sparse.file_bytes(fast) < 4 * 64 * 74
        True
    """
    return sum(tensor.nbytes for tensor in _contents(model)[0].values())


def _contents(model: nn.Module) -> tuple[dict[str, Tensor], str, dict[str, Any]]:
    """Tensors, kind and record of a model's file."""
    plan = plan_of(model).to_dict()
    if plan["fused"]:  # layers that evaluation does not run are no part of a fused graph
        plan["layers"] = {name: spec for name, spec in plan["layers"].items() if _submodule(model, name) is not None}
    for name in [name for name, spec in plan["layers"].items() if spec["kind"] == ROUNDED]:
        if not isinstance(_submodule(model, name), RoundedEmbedding):  # a table that was put in its place
            del plan["layers"][name]
    _require_known(model, plan["layers"])
    state = model.state_dict(keep_vars=True)
    made = _made_again(plan["layers"], state)
    tensors: dict[str, Tensor] = {}
    seen: dict[int, str] = {id(state[name]): name for name in made}
    shared: dict[str, str] = {}
    # Buffers that a state leaves out (position ids, frequencies) too: a model on the meta device cannot make them.
    unsaved = {name: buffer for name, buffer in model.named_buffers() if name not in state}
    for name, tensor in {**state, **unsaved}.items():
        if name in made:
            continue
        if id(tensor) in seen:
            shared[name] = seen[id(tensor)]
            continue
        seen[id(tensor)] = name
        tensors[name] = tensor
    stored: dict[str, str] = {}
    for table in tables(model).values() if plan["embeddings"] else ():
        parts, name = _exactly(table.detach(), getattr(torch, plan["embeddings"])), seen[id(table)]
        if parts:
            stored[name] = str(table.dtype).removeprefix("torch.")
            tensors |= {name + part: value for part, value in parts.items()}
    return tensors, KIND, {"plan": plan, "shared": shared, "stored": stored}


def _require_known(model: nn.Module, layers: dict[str, Any]) -> None:
    """Raise for packed layers that the plan does not name: no file could be loaded that holds them."""
    known = {id(part) for name in layers if (found := _submodule(model, name)) for part in found.modules()}
    for name, module in model.named_modules():
        if isinstance(module, (PackedModule, RoundedEmbedding)) and id(module) not in known:
            raise BadInput(
                f"Layer {name!r} was packed on its own or with fuse=True before: compress the whole pruned model."
            )


def _made_again(layers: dict[str, dict[str, Any]], state: dict[str, Tensor]) -> set[str]:
    """Names of the tensors of heads that loading makes again from tables; heads that were changed since keep theirs."""
    found = set[str]()
    for name, spec in layers.items():
        if TABLE not in spec:
            continue
        try:
            parts = head_tensors(name, spec, state)
            same = all(torch.equal(state[part], value) for part, value in parts.items())
        except (KeyError, ValueError, RuntimeError, IndexError):
            same = False
        if same:
            found |= set(parts)
        else:
            del spec[TABLE]
    return found


def _exactly(table: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """The table in fewer bits; empty where it would not come back the same (it was changed since it was rounded)."""
    if table.dtype not in DIGITS or table.dtype == dtype:
        return {}
    parts = narrowed(table, dtype)
    return parts if torch.equal(widened(parts, table.dtype), table) else {}


@torch.inference_mode(False)  # what is made in that mode can never be part of a gradient
def load(path: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """The compressed model a file holds, in the shape of `model` (its weights do not matter: it may be on meta).

    Args:
        path: a file that `save` wrote.
        model: the model that was compressed, before that; it is left as it is.

    Returns:
        The compressed model, in evaluation mode.

    Raises:
        BadFile: The file is missing, damaged, or no compressed model.
        BadInput: The file was made from another model.

    Example:
        >>> model = prunus.models.make("fc:64-64-10", seed=0)
        >>> fast = prunus.compress(model, prunus.find_masks(model, 0.9), select="always")
        >>> again = prunus.sparse.load(prunus.sparse.save(fast, "small.safetensors"), model)
        >>> x = torch.randn(2, 64)
        >>> torch.equal(again(x), fast(x))
        True
    """
    plan, tensors, shared = _read(Path(path))
    tensors |= {name: tensors[first] for name, first in shared.items() if first in tensors}
    for name, spec in plan.layers.items():
        try:
            tensors |= head_tensors(name, spec, tensors) if TABLE in spec else {}
        except (LookupError, ValueError, TypeError, AttributeError, RuntimeError, BadInput) as error:
            raise BadFile(f"The file {path} is damaged: the table of {name!r} cannot be read ({error}).") from None
    lost = [first for first in shared.values() if first not in tensors]
    if lost:
        raise BadFile(f"The file {path} is damaged: its shared tensor {lost[0]!r} is missing.")
    tensors |= {name: tensors[first] for name, first in shared.items()}
    work = _hollow(model).eval()  # before it is traced: what training alone does is no part of a fused graph
    apply_shapes(work, plan.shapes)
    modules: dict[str, nn.Module] = {}
    for name, spec in plan.layers.items():
        prefix = f"{name}." if name else ""
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        try:
            problem = _misplaced(work, name, spec)
            if problem:
                raise BadInput(f"The file {path} packs layer {name!r} as {problem}: give the model it was made from.")
            modules[name] = _built(spec, own)
        except _Unfit as error:
            raise BadFile(f"The file {path} is damaged: layer {name!r} does not fit together ({error}).") from None
    for name in plan.folded:
        if not isinstance(_submodule(work, name), nn.BatchNorm2d):
            raise BadInput(
                f"The file {path} folds {name!r}, which is not a batch norm of this model: give its own model."
            )
    whole = install(work, plan, modules).eval()
    return _fill(run_fused(whole, plan) if plan.fused else whole, tensors, path)


def _read(path: Path) -> tuple[SparsePlan, dict[str, Tensor], dict[str, str]]:
    tensors, record = storage.read_tensors(path, KIND)
    try:
        plan, shared = record["plan"], dict(record["shared"])
        if plan["version"] not in (VERSION, CALIBRATED, TIED):
            known = f"versions {VERSION} to {TIED}"
            raise BadFile(f"The file {path} has version {plan['version']}; this Prunus reads {known}.")
        for name, kind in record.get("stored", {}).items():
            parts = {part: tensors.pop(name + part) for part in ("", SCALE) if name + part in tensors}
            check_parts(parts)
            tensors[name] = widened(parts, {str(known).removeprefix("torch."): known for known in DIGITS}[kind])
        return SparsePlan.from_dict(plan), tensors, shared
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, BadFile):
            raise
        raise BadFile(f"The file {path} is damaged: its plan cannot be read ({error}).") from None


def _hollow(model: nn.Module) -> nn.Module:
    """A copy whose parameters and saved buffers hold no memory."""
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        if id(tensor) in saved and id(tensor) not in memo:
            empty = torch.empty_like(tensor, device="meta")
            memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    for module in model.modules():  # computed from parameters (weight_norm), and again when the layer runs
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach()
    return copy.deepcopy(model, memo)


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


class _Unfit(Exception):
    """The parts of a layer contradict each other."""


def _built(spec: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    try:
        return build(spec, tensors)
    except (BadInput, KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _Unfit(str(error).rstrip(".")) from None


def _misplaced(model: nn.Module, name: str, spec: dict[str, Any]) -> str:
    """Why the layer does not fit there; empty where the model has a layer of this kind and these sizes."""
    module = _submodule(model, name)
    found = _kind_of(module)
    try:
        wanted = _name_kind(spec)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _Unfit(f"its description lacks {error}") from None
    own = isinstance(module, nn.Conv2d) and type(module) is not nn.Conv2d
    return "" if found == (_own_words(spec) if own else wanted) else f"{wanted}, but the model has {found}"


def _own_words(spec: dict[str, Any]) -> str:
    """Of a convolution whose class has a forward of its own: its weight alone is compared."""
    inner = spec.get("inner", spec)
    numbers = inner.get("conv", inner).get("geometry", [0] * 4)
    return _weight_words([numbers[1], numbers[0], numbers[2], numbers[3]])


def _kind_of(module: nn.Module | None) -> str:
    if type(module) is nn.Embedding:  # those of other classes may do more than look up
        return f"embedding {module.num_embeddings} x {module.embedding_dim}"
    if isinstance(module, nn.Linear):
        return f"linear {module.out_features} x {module.in_features}"
    if module is not None and is_conv1d(module):
        inputs, outputs = module.weight.shape  # type: ignore[misc]
        return f"linear {outputs} x {inputs}"
    if type(module) is nn.Conv2d:
        return _conv_words(_geometry_of(module))
    if isinstance(module, nn.Conv2d):  # what its own forward does with stride and padding only the file knows
        return _weight_words(list(module.weight.shape), module.groups)
    if isinstance(module, nn.MultiheadAttention):
        return f"attention of {module.num_heads} heads, {module.embed_dim} wide"
    for kind, word in ((nn.LSTM, "lstm"), (nn.GRU, "gru"), (nn.LSTMCell, "lstm cell"), (nn.GRUCell, "gru cell")):
        if isinstance(module, kind):
            cells = module.num_layers * (2 if module.bidirectional else 1) if isinstance(module, nn.RNNBase) else 1
            return f"{word} {module.input_size} to {module.hidden_size}, {cells} cells"
    return "nothing of the kind"


def _weight_words(shape: list[int], groups: int = 1) -> str:
    return f"conv2d with weights {shape[0]} x {shape[1] * groups} x {tuple(shape[2:])}"


def _geometry_of(conv: nn.Conv2d) -> list[int]:
    try:
        return ConvGeometry.of(conv).numbers()
    except BadInput:  # a padding that is never packed
        return [conv.in_channels, conv.out_channels, *conv.kernel_size, *[-1] * 6]


def _conv_words(numbers: list[int]) -> str:
    inputs, outputs, *pairs = numbers
    kernel, stride, padding, dilation = (tuple(pairs[i : i + 2]) for i in range(0, 8, 2))
    return f"conv2d {outputs} x {inputs} x {kernel}, stride {stride}, padding {padding}, dilation {dilation}"


def _name_kind(spec: dict[str, Any]) -> str:
    if spec["kind"] == "cast":
        return _name_kind(spec["inner"])
    if spec["kind"] == "padded conv2d":
        return _name_kind(spec["conv"])
    if spec["kind"] == "attention":
        return f"attention of {spec['heads']} heads, {spec['query']['rows']} wide"
    if spec["kind"] == "conv2d":
        return _conv_words(list(spec["geometry"]))
    if spec["kind"] in ("lstm", "lstm cell", "gru", "gru cell"):
        cells = spec.get("cells", [spec])
        first = cells[0]
        return f"{spec['kind']} {first['inputs']['cols']} to {first['state']['cols']}, {len(cells)} cells"
    word = "embedding" if spec["kind"] == ROUNDED else "linear"
    return f"{word} {spec['rows']} x {spec['cols']}"


def _fill(model: nn.Module, state: dict[str, Tensor], path: str | os.PathLike[str]) -> nn.Module:
    saved = set(model.state_dict())
    for name, buffer in list(model.named_buffers()):  # those that a state leaves out
        if name not in saved and name in state:
            found = state[name]
            if found.shape != buffer.shape or found.dtype != buffer.dtype:
                raise BadInput(f"The file {path} does not fit this model: {name!r} has another shape or type.")
            owner, _, attribute = name.rpartition(".")
            model.get_submodule(owner)._buffers[attribute] = found
    known = {name for name, _ in model.named_buffers()} - saved
    try:
        model.load_state_dict({name: value for name, value in state.items() if name not in known}, assign=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        raise BadInput(f"The file {path} does not fit this model: {' '.join(lines) or error}") from None
    left = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]
    if left:
        raise BadInput(
            f"{left[0]!r} is not kept in files and the model is on the meta device: build the model on the CPU instead."
        )
    return model

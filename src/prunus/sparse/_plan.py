"""Which layers of a model are replaced, as plain data: what `compress` decides, a file keeps and `load` repeats."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.sparse._blocks import run_blocks_natively
from prunus.sparse._embeddings import DIGITS, SCALE, RoundedEmbedding
from prunus.sparse._foreign import Cast, PaddedConv2d, SparseAttention
from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._graph import ATTRIBUTE, fuse
from prunus.sparse._modules import BalancedLinear, PackedModule, SparseConv2d, require_float32
from prunus.sparse._packed import Packed
from prunus.sparse._recurrent import SparseGRU, SparseGRUCell, SparseLSTM, SparseLSTMCell
from prunus.sparse._transformers import run_models_natively

VERSION = 1
CALIBRATED = 2  # files with integer convolutions or calibrated inputs, which version 1 would read as something else
TIED = 3  # files with a head that is packed from a table of embeddings
INPUTS = {None: (None, False), "int8": (torch.int8, False), "int8, calibrated": (torch.int8, True)}
ROUNDED = "rounded embedding"


@dataclass(frozen=True)
class StoredLayer:
    """One layer of a compressed model: how it is stored and how fast it runs.

    `microseconds` is the packed layer's time for an input of `shape`, also where the layer stayed dense because that
    was not less than `dense_microseconds`. `error` is the size of the packed layer's error over that of its output
    on the example (root mean squares), where values or inputs are stored in fewer bits; of an embedding, which
    is smaller in files and, behind a packed head, in memory, that of the table itself.

    Example:
        >>> model = prunus.models.make("fc:64-64-10", seed=0)
        >>> fast = prunus.compress(model, prunus.find_masks(model, 0.9), select="always")
        >>> row = prunus.sparse.explain(fast)[0]
        >>> row.layer, row.bytes < row.dense_bytes
        ('layers.0', True)
    """

    layer: str
    format: str
    kernel: str
    sparsity: float
    bytes: int
    dense_bytes: int
    shape: tuple[int, ...] | None = None
    microseconds: float | None = None
    dense_microseconds: float | None = None
    times_faster: float | None = None
    share_of_limit: float | None = None
    error: float | None = None
    why: str = ""


@dataclass
class SparsePlan:
    """`layers`: name -> what stands there now; `folded`: batch norms that became part of their convolution.

    `shapes` are those of the tensors that lost channels; `embeddings` is the type that tables are stored in, or empty.
    `stand_ins` and `constants` say for which calls a fused graph was made (`graph.given_arguments`). `flags` are what
    the model noted on itself when it ran on the example: that it has rescaled its weights, say.
    """

    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    folded: list[str] = field(default_factory=list)
    fused: bool = False
    shapes: dict[str, list[int]] = field(default_factory=dict)
    rows: list[StoredLayer] = field(default_factory=list)
    embeddings: str = ""
    stand_ins: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, dict[str, bool]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"version": _version(self.layers), **asdict(self)}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> SparsePlan:
        rows = [
            StoredLayer(**{**row, "shape": tuple(row["shape"]) if row["shape"] else None}) for row in record["rows"]
        ]
        layers, folded, shapes = dict(record["layers"]), list(record["folded"]), dict(record["shapes"])
        embeddings = record.get("embeddings", "")
        if embeddings not in ("", "bfloat16", "int8"):
            raise ValueError(f"embeddings are to be stored as {embeddings!r}")
        stand_ins, constants = list(record.get("stand_ins", ())), dict(record.get("constants", {}))
        flags = {name: dict(found) for name, found in record.get("flags", {}).items()}
        return cls(layers, folded, bool(record["fused"]), shapes, rows, embeddings, stand_ins, constants, flags)


def _version(spec: Any) -> int:
    """The first version that knows everything in the description of layers."""
    if not isinstance(spec, (dict, list)):
        return VERSION
    parts = spec.values() if isinstance(spec, dict) else spec
    most = max(map(_version, parts), default=VERSION)
    if isinstance(spec, list):
        return most
    inputs, kind = spec.get("activations"), spec.get("kind")
    if kind == ROUNDED or (isinstance(kind, str) and "table" in spec):
        return TIED
    later = inputs == "int8, calibrated" or (inputs is not None and kind == "conv2d")
    return max(CALIBRATED, most) if later else most


def plan_of(model: nn.Module) -> SparsePlan:
    """The plan of a model that `compress` or `load` returned."""
    plan = getattr(model, ATTRIBUTE, None)
    if not isinstance(plan, SparsePlan):
        raise BadInput("This model was not made by prunus.compress or prunus.sparse.load: compress it first.")
    return plan


def carried(model: nn.Module) -> SparsePlan:
    """What earlier calls replaced in a model and in parts of it, by the names that these have in it."""
    found = SparsePlan()
    for place, module in model.named_modules():
        plan = getattr(module, ATTRIBUTE, None)
        if not isinstance(plan, SparsePlan) or plan.fused:  # a fused part is a graph with names of its own
            continue
        inside = f"{place}." if place else ""
        for name, spec in plan.layers.items():
            own = {"table": inside + spec["table"]} if "table" in spec else {}
            found.layers[inside + name] = spec | own
        found.folded += [inside + name for name in plan.folded]
        found.shapes |= {inside + name: shape for name, shape in plan.shapes.items()}
        found.rows += [replace(row, layer=inside + row.layer) for row in plan.rows]
        found.embeddings = plan.embeddings or found.embeddings
        found.flags |= {inside + name if name else place: flags for name, flags in plan.flags.items()}
    return found


def describe(module: nn.Module) -> dict[str, Any]:
    """What must be known, besides tensors, to build the module again."""
    if isinstance(module, SparseLSTMCell):
        return {"kind": "lstm cell", "inputs": describe(module.inputs), "state": describe(module.state)}
    if isinstance(module, SparseGRUCell):
        return {"kind": "gru cell", "inputs": describe(module.inputs), "state": describe(module.state)}
    if isinstance(module, SparseGRU):
        cells = [describe(cell) for cell in module.cells]
        return {"kind": "gru", "cells": cells, "batch_first": module.batch_first, "both": module.bidirectional}
    if isinstance(module, Cast):
        return {"kind": "cast", "dtype": str(module.dtype).removeprefix("torch."), "inner": describe(module.inner)}
    if isinstance(module, PaddedConv2d):
        return {"kind": "padded conv2d", "pad": list(module.pad), "conv": describe(module.conv)}
    if isinstance(module, SparseAttention):
        parts = {part: describe(getattr(module, part)) for part in _PROJECTIONS}
        return {"kind": "attention", **parts, "heads": module.num_heads, "batch_first": module.batch_first}
    if isinstance(module, SparseLSTM):
        cells = [describe(cell) for cell in module.cells]
        return {"kind": "lstm", "cells": cells, "batch_first": module.batch_first, "both": module.bidirectional}
    if isinstance(module, RoundedEmbedding):
        kind = str(module.dtype).removeprefix("torch.")
        return {"kind": ROUNDED, "rows": module.num_embeddings, "cols": module.embedding_dim, "dtype": kind}
    assert isinstance(module, PackedModule)
    spec: dict[str, Any] = {"rows": module.rows, "cols": module.cols, "bank": module.bank, "kind": "linear"}
    spec["bias"] = module.bias is not None
    if isinstance(module, BalancedLinear):
        spec["permuted"] = module.permutation is not None
    spec["activations"] = None if not module.integer else "int8" if module.span is None else "int8, calibrated"
    if isinstance(module, SparseConv2d):
        spec |= {"kind": "conv2d", "geometry": module.geometry.numbers()}
    return spec


def build(spec: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """The module a spec describes, over these tensors; raises BadInput where they do not fit together."""
    if spec["kind"] in _CELLS:
        parts = [build(spec[part], _under(tensors, part)) for part in ("inputs", "state")]
        if not all(isinstance(part, BalancedLinear) for part in parts) or parts[0].rows != parts[1].rows:
            raise BadInput("its two matrices do not fit together")
        return _CELLS[spec["kind"]](*parts)
    if spec["kind"] in _SEQUENCES:
        cells = [build(cell, _under(tensors, f"cells.{number}")) for number, cell in enumerate(spec["cells"])]
        kind, cell = _SEQUENCES[spec["kind"]]
        if not cells or not all(isinstance(part, cell) for part in cells):
            raise BadInput("its cells are missing")
        return kind(cells, bool(spec["batch_first"]), bool(spec["both"]))  # type: ignore[no-any-return]
    if spec["kind"] == "cast":
        if spec["dtype"] not in ("bfloat16", "float16"):
            raise BadInput(f"it is to answer in {spec['dtype']!r}, which is unknown")
        return Cast(build(spec["inner"], _under(tensors, "inner")), getattr(torch, spec["dtype"]))
    if spec["kind"] == "padded conv2d":
        conv, pad = build(spec["conv"], _under(tensors, "conv")), [int(side) for side in spec["pad"]]
        if not isinstance(conv, SparseConv2d) or len(pad) != 4 or not 0 <= min(pad) <= max(pad) < 1 << 16:
            raise BadInput("its padding is wrong")
        return PaddedConv2d(conv, (pad[0], pad[1], pad[2], pad[3]))
    if spec["kind"] == "attention":
        four = [build(spec[part], _under(tensors, part)) for part in _PROJECTIONS]
        if not all(isinstance(part, BalancedLinear) for part in four):
            raise BadInput("its projections are missing")
        return SparseAttention(four, int(spec["heads"]), bool(spec["batch_first"]))  # type: ignore[arg-type]
    if spec["kind"] == ROUNDED:
        types = {str(known).removeprefix("torch."): known for known in DIGITS}
        found = RoundedEmbedding({"": tensors["values"], SCALE: tensors["scale"]}, types[spec["dtype"]])
        if (found.num_embeddings, found.embedding_dim) != (spec["rows"], spec["cols"]):
            raise BadInput("its table has another size")
        return found
    return _build_packed(spec, tensors)


_PROJECTIONS = ("query", "key", "value", "out_proj")
_CELLS: dict[str, type[nn.Module]] = {"lstm cell": SparseLSTMCell, "gru cell": SparseGRUCell}
_SEQUENCES: dict[str, Any] = {"lstm": (SparseLSTM, SparseLSTMCell), "gru": (SparseGRU, SparseGRUCell)}


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def _build_packed(spec: dict[str, Any], tensors: dict[str, Tensor]) -> PackedModule:
    fields = [tensors.get(name) for name in ("values", "index", "schedule", "starts", "scale")]
    permuted = bool(spec.get("permuted", False))
    if any(tensor is None for tensor in fields[:4]) or (spec["bias"] and "bias" not in tensors):
        raise BadInput("a tensor of the layer is missing")
    packed = Packed(int(spec["rows"]), int(spec["cols"]), int(spec["bank"]), *fields)  # type: ignore[arg-type]
    problem = packed.problem()
    bias = tensors["bias"] if spec["bias"] else None
    if not problem and bias is not None and (bias.shape != (packed.rows,) or bias.dtype != torch.float32):
        problem = "its bias has the wrong shape or type"
    if not problem and spec["kind"] == "conv2d":
        geometry = ConvGeometry.from_numbers([int(number) for number in spec["geometry"]])
        problem = geometry.problem()
    if problem:
        raise BadInput(problem)
    kind = spec.get("activations")
    if kind not in INPUTS:
        raise BadInput(f"its inputs are to be {kind!r}, which is unknown")
    activations, calibrated = INPUTS[kind]
    if calibrated and "span" not in tensors:
        raise BadInput("the span of its inputs is missing")
    inputs = {"activations": activations, "span": tensors["span"] if calibrated else None}
    if spec["kind"] == "conv2d":
        return SparseConv2d(packed, geometry, bias, **inputs)  # type: ignore[arg-type]
    order = tensors["permutation"] if permuted else None
    return BalancedLinear(packed, bias, permutation=order, **inputs)  # type: ignore[arg-type]


def install(model: nn.Module, plan: SparsePlan, modules: dict[str, nn.Module]) -> nn.Module:
    """Put the new modules in their places; returns the model, which is another one where all of it was replaced."""
    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    replacements: dict[str, nn.Module] = dict(modules)
    replacements.update({name: nn.Identity() for name in plan.folded})
    for name, module in replacements.items():
        if not name:
            model = module
            continue
        if isinstance(module, RoundedEmbedding):
            module.take_over(model.get_submodule(name))
        for place in names[id(model.get_submodule(name))]:  # a module used twice is replaced in both places
            model.set_submodule(place, module)
    _close_fused_paths(model)
    for name, module in model.named_modules():
        flags = plan.flags.get(name, {})
        module.__dict__.update(
            {key: value is True for key, value in flags.items() if type(vars(module).get(key)) is bool}
        )
    setattr(model, ATTRIBUTE, plan)
    if not isinstance(model, PackedModule) and any(isinstance(part, PackedModule) for part in model.modules()):
        model._apply = functools.partial(_apply_to_all, model)  # type: ignore[method-assign]
    return model


def _apply_to_all(model: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
    """What `half` and `to` call: refused as a whole, where packed layers refuse it, not when others are done."""
    require_float32(fn)
    done: nn.Module = type(model)._apply(model, fn, recurse)
    return done


def run_fused(model: nn.Module, plan: SparsePlan) -> nn.Module:
    """The model as a fused graph, or with blocks that run natively; its packed layers are changed."""
    model = fuse(model, plan.stand_ins, plan.constants)
    run_blocks_natively(model)
    run_models_natively(model)
    setattr(model, ATTRIBUTE, plan)
    return model


def _close_fused_paths(model: nn.Module) -> None:
    """Torch's encoder layers can run as one fused operator that reads weights: not where these are packed."""
    kinds = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
    for module in [module for module in model.modules() if isinstance(module, kinds)]:
        if any(isinstance(part, PackedModule) for part in module.modules()):
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False
            else:
                module.activation_relu_or_gelu = 0

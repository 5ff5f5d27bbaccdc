"""Export to ONNX: dense weights with the zeros in place, and a note of the masks in the file's metadata."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import json
import os
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from prunus._torch import quiet_export
from prunus.adapters import forward_names
from prunus.contract import Masks
from prunus.errors import BadInput, MissingExtra, PrunusWarning, RunFailed, first_line
from prunus.sparse._copies import ModelInputs, as_example, layer_by_layer
from prunus.sparse._modules import PackedModule
from prunus.storage import write

LARGEST = 2**31 - 1  # bytes of one protobuf message


@layer_by_layer()
def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Any,
    masks: Masks | None = None,
    *,
    check: bool = True,
    dynamic: bool = True,
) -> Path:
    """Write the dense model, zeros in place, to an ONNX file, with sparsity and pattern of each mask in its metadata.

    `masks` are applied to a copy first; without them the zeros of the weights are noted. With `check` the file is run
    by ONNX Runtime, where that is installed, on the example and on another batch size and length, and refused if it
    disagrees with the model. Models in bfloat16 or float16 are written in float32. Caches of language models are left
    out: the file computes logits.

    Args:
        model: the pruned model, not compressed; it is left as it is.
        path: the file to write.
        example: an input, a tuple of inputs, or a dict of named ones.
        masks: applied to a copy first; None takes the zeros of the weights.
        check: run the file with ONNX Runtime and compare.
        dynamic: the file takes any batch size, and any length of sequences; where torch cannot export that, a warning
            says so and the example's sizes are kept. False keeps them anyway.

    Returns:
        The path.

    Raises:
        BadInput: The model is compressed, too large for one file, or cannot run on the example.
        RunFailed: The file disagrees with the model; it was not written.

    Example:
        >>> model = prunus.models.make("fc:64-32-10", seed=0)
        >>> masks = prunus.find_masks(model, 0.9)
        >>> prunus.sparse.export_onnx(model, "model.onnx", torch.randn(1, 64), masks).name
        'model.onnx'
    """
    if any(isinstance(module, PackedModule) for module in model.modules()):
        raise BadInput("This model is compressed: export the pruned model it was made from, which has dense weights.")
    size = sum(4 * parameter.numel() for parameter in model.parameters())
    if size > LARGEST:
        raise BadInput(f"The weights take {size / 2**30:.1f} GB, and one ONNX file holds 2: save the model instead.")
    # Models that transformers read from a quantised file refuse their own `float`, though their weights are float32.
    dense = nn.Module.float(copy.deepcopy(model).eval())
    masks = Masks.from_model(dense) if masks is None else masks
    masks.apply_(dense)
    inputs = _detached(as_example(example))
    body = _exported(dense, inputs, check) if dynamic else None
    if body is None:
        body = to_onnx(dense, inputs)
        if check:
            _compare(dense, body, inputs)
    return write(path, _with_note(body, masks))


def _exported(model: nn.Module, example: ModelInputs, check: bool) -> bytes | None:
    """With batch and length left open; None, and a warning, where that cannot be done."""
    try:
        body = to_onnx(model, example, dynamic=True)
        if check:
            _compare(model, body, example)
            _compare(model, body, _other_sizes(example, body))
    except RunFailed as error:
        reason = textwrap.shorten(first_line(error), 200)
        _warn(f"The ONNX file takes inputs of the example's sizes only, as others failed: {reason}")
        return None
    fixed = _fixed(body)
    if fixed:
        _warn(f"The ONNX file takes inputs of the example's {' and '.join(fixed)} only, as the model does.")
    return body


def _warn(sentence: str) -> None:
    warnings.warn(sentence, PrunusWarning, stacklevel=5)


def _fixed(body: bytes) -> list[str]:
    """Sides of the inputs that one would expect to be open: the batch, and the length of token ids."""
    import onnx

    found = set()
    for entry in onnx.load_model_from_string(body).graph.input:
        sides = [bool(side.dim_param) for side in entry.type.tensor_type.shape.dim]
        whole = entry.type.tensor_type.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
        found |= {"batch size"} if sides[:1] == [False] else set()
        found |= {"length"} if sides[1:2] == [False] and whole else set()
    return sorted(found)


def to_onnx(model: nn.Module, example: Any, *, dynamic: bool = False) -> bytes:
    """The model as the bytes of an ONNX file; for inputs of the example's shape, or `dynamic` ones."""
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError:
        raise MissingExtra("onnx and onnxscript", "export", "Export to ONNX") from None
    plain, inputs = _Tensors(model), _detached(as_example(example))
    try:
        with torch.no_grad():
            outputs = list(_named_tensors(_answer(model.eval(), inputs)))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        raise BadInput(f"The model cannot run on the example ({first_line(error)}): give a fitting input.") from error
    if not outputs:
        raise BadInput("The model answers the example without a tensor, so there is nothing to export.")
    names = [*_positional(model, len(inputs.args)), *inputs.kwargs]
    tensors = [isinstance(part, Tensor) for part in (*inputs.args, *inputs.kwargs.values())]
    options: dict[str, Any] = {"output_names": _unique([name for name, _ in outputs], names)}
    if all(tensors):
        options["input_names"] = names
    if dynamic:
        inputs = _more_than_one(inputs)
        options["dynamic_shapes"] = _sides(model, inputs)
    try:
        with quiet_export(), torch.no_grad():
            program = torch.onnx.export(
                plain.eval(), inputs.args, kwargs=inputs.kwargs, dynamo=True, verbose=False, **options
            )
            assert program is not None
            proto = program.model_proto
    except Exception as error:  # torch raises many kinds, with pages of advice
        raise RunFailed(f"torch cannot export this model to ONNX ({_cause(error)}).") from error
    if dynamic:
        _name_sides(proto)
    buffer = io.BytesIO()
    onnx.save(proto, buffer)
    return buffer.getvalue()


class _Tensors(nn.Module):
    """The model with its output as a list of tensors, without caches."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

        @functools.wraps(model.forward)  # torch.export reads the names of the inputs from the signature
        def forward(*args: Any, **kwargs: Any) -> list[Tensor]:
            return [tensor for _, tensor in _named_tensors(_answer(model, ModelInputs(args, kwargs)))]

        self.forward = forward


def _answer(model: nn.Module, example: ModelInputs) -> Any:
    named = dict(example.kwargs)
    if "use_cache" not in named and "use_cache" in forward_names(model)[0]:
        named["use_cache"] = False
    return model(*example.args, **named)


def _named_tensors(output: Any, name: str = "output") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of an output with a name; caches and other objects are left out."""
    if isinstance(output, Tensor):
        yield name, output
    elif isinstance(output, Mapping):
        for key, part in output.items():
            yield from _named_tensors(part, str(key))
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _named_tensors(part, name)


def _unique(names: list[str], taken: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        used, number, one = {*found, *taken}, 2, name
        while one in used:
            one, number = f"{name}_{number}", number + 1
        found.append(one)
    return found


def _positional(model: nn.Module, count: int) -> list[str]:
    names = forward_names(model)[0][:count]
    return names + [f"input_{number}" for number in range(len(names), count)]


def _detached(example: ModelInputs) -> ModelInputs:
    """Inputs outside of any gradient, in float32 where they are narrower."""

    def plain(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        return part.detach().float() if part.dtype in (torch.float16, torch.bfloat16) else part.detach()

    return _each(example, plain)


def _each(example: ModelInputs, change: Any) -> ModelInputs:
    named = {name: change(part) for name, part in example.kwargs.items()}
    return ModelInputs(tuple(change(part) for part in example.args), named)


def _more_than_one(example: ModelInputs) -> ModelInputs:
    """A batch of one is exported as a constant, so it is made two."""
    first = next((part for part in (*example.args, *example.kwargs.values()) if isinstance(part, Tensor)), None)
    if first is None or first.dim() == 0 or first.shape[0] != 1:
        return example

    def twice(part: Any) -> Any:
        one = isinstance(part, Tensor) and part.dim() > 0 and part.shape[0] == 1
        return torch.cat([part, part]) if one else part

    return _each(example, twice)


def _sides(model: nn.Module, example: ModelInputs) -> dict[str, Any]:
    """The first side of every input is open, and the second of token ids, signals and sequences, if the model runs."""
    from torch.export import Dim

    places = [place for place in (0, 1) if _runs(model, _each(example, lambda part, at=place: _resized(part, at)))]

    def open_sides(part: Any) -> Any:
        if not isinstance(part, Tensor) or part.dim() == 0:
            return None
        return {place: Dim.AUTO for place in places if place == 0 or part.dim() in (2, 3)}

    marked = _each(example, open_sides)
    return dict(inspect.signature(model.forward).bind(*marked.args, **marked.kwargs).arguments)


def _resized(part: Any, place: int) -> Any:
    """One sample more, or one step less."""
    if not isinstance(part, Tensor) or part.dim() == 0:
        return part
    if place == 0:
        return torch.cat([part, part[:1]])
    return part[:, :-1] if part.dim() in (2, 3) and part.shape[1] > 2 else part


def _runs(model: nn.Module, example: ModelInputs) -> bool:
    try:
        with torch.no_grad():
            _answer(model, example)
    except Exception:  # whatever its code raises
        return False
    return True


def _name_sides(proto: Any) -> None:
    """Open sides are called batch and length instead of s72 and s53."""
    words: dict[str, str] = {}
    for entry in proto.graph.input:
        for place, side in enumerate(entry.type.tensor_type.shape.dim):
            if side.dim_param and place < 2:
                length = "decoder_length" if entry.name.startswith("decoder_") else "length"
                words.setdefault(side.dim_param, length if place else "batch")
    for entry in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for side in entry.type.tensor_type.shape.dim:
            if side.dim_param:
                side.dim_param = re.sub(r"\w+", lambda found: words.get(found[0], found[0]), side.dim_param)


def _cause(error: BaseException) -> str:
    """The innermost reason; torch's own first line only says which step failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error).rstrip(".")


def _with_note(body: bytes, masks: Masks) -> bytes:
    import onnx

    proto = onnx.load_model_from_string(body)
    layers = {row.name: {"shape": list(row.shape), "kept": row.kept, "sparsity": row.sparsity} for row in masks.layers}
    notes = {key: value for key, value in masks.notes.items() if isinstance(value, (str, int, float, bool))}
    entry = proto.metadata_props.add()
    entry.key, entry.value = "prunus.masks", json.dumps({"layers": layers, "notes": notes})
    return cast("bytes", proto.SerializeToString())


def _other_sizes(example: ModelInputs, body: bytes) -> ModelInputs:
    """The example with one sample more and one step less, in the sides that the file leaves open."""
    import onnx

    entries = onnx.load_model_from_string(body).graph.input
    opened = iter([[bool(side.dim_param) for side in entry.type.tensor_type.shape.dim] for entry in entries])

    def changed(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        sides = next(opened, [])
        part = _resized(part, 0) if sides[:1] == [True] else part
        return _resized(part, 1) if sides[1:2] == [True] else part

    return _each(example, changed)


def _compare(model: nn.Module, body: bytes, example: ModelInputs) -> None:
    try:
        import onnxruntime
    except ImportError:
        return
    with torch.no_grad():
        try:
            expected = [tensor for _, tensor in _named_tensors(_answer(model, example))]
        except Exception as error:  # whatever its code raises
            raise RunFailed("The model itself takes no other sizes.") from error
    given = [part for part in (*example.args, *example.kwargs.values()) if isinstance(part, Tensor)]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(body, options, providers=["CPUExecutionProvider"])
        feed = {entry.name: value.numpy() for entry, value in zip(session.get_inputs(), given)}
        results = session.run(None, feed)
    except Exception as error:  # the runtime's own classes
        raise RunFailed(f"ONNX Runtime cannot run the exported file ({first_line(error).rstrip('.')}).") from error
    for found, wanted in zip(results, expected):
        ours = torch.from_numpy(found)
        if ours.shape != wanted.shape:
            raise RunFailed(f"The exported file answers in shape {tuple(ours.shape)}, not {tuple(wanted.shape)}.")
        worst = float((ours.double() - wanted.double()).abs().max()) if wanted.numel() else 0.0
        if not worst <= 1e-3 * max(1.0, float(wanted.abs().max()) if wanted.numel() else 0.0):
            raise RunFailed(f"The exported file disagrees with the model by {worst:.3g}; it was not written.")

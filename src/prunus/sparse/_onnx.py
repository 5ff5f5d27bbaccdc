"""Export to ONNX: dense weights with the zeros in place, and a note of the masks in the file's metadata."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from prunus._torch import pytree
from prunus.contract import Masks
from prunus.errors import BadInput, MissingExtra, RunFailed, first_line
from prunus.sparse._modules import PackedModule
from prunus.storage import write


def to_onnx(model: nn.Module, example: Tensor | tuple[Any, ...]) -> bytes:
    """The model as the bytes of an ONNX file; for inputs of the example's shape."""
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError:
        raise MissingExtra("onnx and onnxscript", "export", "Export to ONNX") from None
    arguments = _arguments(example)
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch._dynamo", "torch.fx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # of every optional package it does not find, and pages where it fails
    try:
        with torch.no_grad():
            model.eval()(*arguments)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise BadInput(f"The model cannot run on the example ({first_line(error)}): give a fitting input.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(model, arguments, dynamo=True, verbose=False)
    except Exception as error:  # torch raises many kinds, with pages of advice
        raise RunFailed(f"torch cannot export this model to ONNX: {first_line(error)}") from error
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
    assert program is not None
    buffer = io.BytesIO()
    onnx.save(program.model_proto, buffer)
    return buffer.getvalue()


def _arguments(example: Any) -> tuple[Any, ...]:
    parts = example if isinstance(example, tuple) else (example,)
    return tuple(part.detach() if isinstance(part, Tensor) else part for part in parts)


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor | tuple[Any, ...],
    masks: Masks | None = None,
    *,
    check: bool = True,
) -> Path:
    """Write the dense model, zeros in place, to an ONNX file, with sparsity and pattern of each mask in its metadata.

    `masks` are applied to a copy first; without them the zeros of the weights are noted. With `check` the file is run
    by ONNX Runtime, where that is installed, and refused if it disagrees with the model.

    Args:
        model: the pruned model, not compressed; it is left as it is.
        path: the file to write.
        example: an input, or a tuple of inputs.
        masks: applied to a copy first; None takes the zeros of the weights.
        check: run the file with ONNX Runtime and compare.

    Returns:
        The path.

    Raises:
        BadInput: The model is compressed.
        RunFailed: The file disagrees with the model; it was not written.

    Example:
        >>> model = prunus.models.make("fc:64-32-10", seed=0)
        >>> masks = prunus.find_masks(model, 0.9)
        >>> prunus.sparse.export_onnx(model, "model.onnx", torch.randn(1, 64), masks).name
        'model.onnx'
    """
    import copy

    if any(isinstance(module, PackedModule) for module in model.modules()):
        raise BadInput("This model is compressed: export the pruned model it was made from, which has dense weights.")
    dense = copy.deepcopy(model).eval()
    masks = Masks.from_model(dense) if masks is None else masks
    masks.apply_(dense)
    body = _with_note(to_onnx(dense, example), masks)
    if check:
        _compare(dense, body, example)
    return write(path, body)


def _with_note(body: bytes, masks: Masks) -> bytes:
    import onnx

    proto = onnx.load_model_from_string(body)
    layers = {row.name: {"shape": list(row.shape), "kept": row.kept, "sparsity": row.sparsity} for row in masks.layers}
    notes = {key: value for key, value in masks.notes.items() if isinstance(value, (str, int, float, bool))}
    entry = proto.metadata_props.add()
    entry.key, entry.value = "prunus.masks", json.dumps({"layers": layers, "notes": notes})
    return cast("bytes", proto.SerializeToString())


def _compare(model: nn.Module, body: bytes, example: Tensor | tuple[Any, ...]) -> None:
    try:
        import onnxruntime
    except ImportError:
        return
    arguments = [part for part in pytree.tree_leaves(_arguments(example)) if isinstance(part, Tensor)]
    session = onnxruntime.InferenceSession(body, providers=["CPUExecutionProvider"])
    feed = {entry.name: value.numpy() for entry, value in zip(session.get_inputs(), arguments)}
    with torch.no_grad():
        expected = [part for part in pytree.tree_leaves(model(*_arguments(example))) if isinstance(part, Tensor)]
    for found, wanted in zip(session.run(None, feed), expected):
        worst = float((torch.from_numpy(found) - wanted).abs().max()) if wanted.numel() else 0.0
        if not worst <= 1e-3 * max(1.0, float(wanted.abs().max()) if wanted.numel() else 0.0):
            raise RunFailed(f"The exported file disagrees with the model by {worst:.3g}; it was not written.")

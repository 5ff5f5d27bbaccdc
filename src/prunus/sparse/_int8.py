"""The dense model in int8 as a module: what a user would run instead of a pruned one, to be judged on the same data."""

from __future__ import annotations

import copy
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus._torch import quiet_export
from prunus.adapters import main_output

SAMPLES, PLACES = 4, 256  # looked at for layers that int8 does not suit: samples, and places in all of them
STEPS = 127  # of an input: torch keeps to seven bits on x86
ROUGH = 0.1
"""A layer stays in float32 if rounding its inputs moves its typical output, about the mean, by more than this part."""


def int8_engine(model: nn.Module, example: Tensor | Mapping[str, Tensor]) -> nn.Module | None:
    """The model with int8 weights and inputs, run by ONNX Runtime, as a module with the same inputs.

    Networks with convolutions are quantised with scales calibrated on the example, others with the range of each input
    as it comes. Batches may have any size, texts any length.

    Args:
        model: A dense model; it is run in evaluation mode, and left as it is.
        example: Inputs to export the model with and to calibrate on; by name for models of text.

    Returns:
        A module that gives the main output as one tensor, with the engine's name as `engine` and the bytes of its file
        as `file_bytes`; for language models and where ONNX Runtime is not installed
        or cannot take the model, torch's own int8 linear layers, but for those whose inputs on the example are too
        uneven; None where neither can.

    Example:
        >>> dense = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
        >>> engine = prunus.sparse.int8_engine(dense, torch.randn(16, 64))
        >>> engine(torch.zeros(3, 64)).shape
        torch.Size([3, 8])
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        return _engine(model.eval(), example)
    finally:
        for module, training in modes:
            module.training = training


def _engine(model: nn.Module, example: Tensor | Mapping[str, Tensor]) -> nn.Module | None:
    named = {} if isinstance(example, Tensor) else dict(example)
    if not hasattr(model, "generate") or "labels" not in _parameters(model):
        try:
            return _Engine(*_quantised(model, example), tuple(named) or None).eval()
        except Exception as error:  # each engine raises errors of its own kind
            logging.getLogger("prunus").info("ONNX Runtime does not take this model in int8: %s", error)
    try:
        return _named(torch_int8(model, () if named else (example,), named)).eval()
    except Exception as error:
        logging.getLogger("prunus").info("torch does not take this model in int8: %s", error)
        return None


def torch_int8(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, rough: float = ROUGH
) -> nn.Module:
    """A copy with torch's int8 linear layers: a scale for each row of a weight, one for all inputs of a call.

    Layers whose inputs are too uneven for one scale stay in float32, as one would leave them out by hand: a language
    model has values a thousand times larger than the rest in front of some layers, and answers nonsense otherwise.
    """
    held = nn.Sequential(copy.deepcopy(model))  # torch replaces what lies inside of a module
    layers = {name: layer for name, layer in held.named_modules() if isinstance(layer, nn.Linear)}
    left_out: dict[str, bool] = {}

    def look(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].detach().float().reshape(-1, inputs[0].shape[-1])
            step = ((x.amax().clamp_min(0) - x.amin().clamp_max(0)) / STEPS).clamp_min(1e-30)
            x = x[:: -(-len(x) // PLACES)]
            both = torch.stack([x, (x / step).round() * step - x])
            outputs = nn.functional.linear(both, layers[name].weight.float())
            size = (outputs[0] - (outputs[0].mean(0) if len(x) > 1 else 0.0)).norm(dim=-1)
            error = float((outputs[1].norm(dim=-1) / size.clamp_min(1e-30)).median())
            left_out[name] = left_out.get(name, False) or error > rough

        return hook

    handles = [layer.register_forward_pre_hook(look(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            args, kwargs = _few(args, kwargs or {})
            held[0](*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

        chosen = {name: per_channel_dynamic_qconfig for name, uneven in left_out.items() if not uneven}
        made: nn.Module = quantize_dynamic(held, chosen, dtype=torch.qint8, inplace=True)[0]
    return made


def _few(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The first samples of a batch: the outputs of a language model for many are large."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.dim()]
    batch = len({len(value) for value in tensors}) == 1 and any(value.dim() > 1 for value in tensors)
    count = SAMPLES if batch else None

    def first(value: Any) -> Any:
        return value[:count] if isinstance(value, Tensor) and value.dim() else value

    return tuple(map(first, args)), {name: first(value) for name, value in kwargs.items()}


def _parameters(model: nn.Module) -> Any:
    import inspect

    return inspect.signature(model.forward).parameters


class _Plain(nn.Module):
    """Inputs by position, one tensor out, as exporters want it."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return main_output(self.model(**dict(zip(self.names, inputs))) if self.names else self.model(*inputs))


class _Engine(nn.Module):
    """An ONNX Runtime session as a module."""

    engine = "ONNX Runtime"

    def __init__(self, session: Any, file_bytes: int, names: tuple[str, ...] | None) -> None:
        super().__init__()
        self.session, self.file_bytes, self.names = session, file_bytes, names

    def forward(self, *args: Tensor, **kwargs: Any) -> Tensor:
        inputs = args if self.names is None else tuple(kwargs[name] for name in self.names)
        feed = {one.name: x.contiguous().numpy() for one, x in zip(self.session.get_inputs(), inputs)}
        return torch.from_numpy(self.session.run(None, feed)[0])


def _named(model: Any) -> nn.Module:
    """Torch's int8 model, which says what it is; not wrapped, so that it is called as the model itself."""
    body = io.BytesIO()
    torch.save(model.state_dict(), body)
    model.engine, model.file_bytes = "torch", body.tell()
    found: nn.Module = model
    return found


def _quantised(model: nn.Module, example: Tensor | Mapping[str, Tensor]) -> tuple[Any, int]:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    from prunus.sparse._peers import open_session, saturates

    named = () if isinstance(example, Tensor) else tuple(example)
    inputs = (example,) if isinstance(example, Tensor) else tuple(example.values())
    kinds: dict[str, Any] = {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": saturates()}
    with tempfile.TemporaryDirectory() as folder, quiet_export():
        plain, made = Path(folder) / "plain.onnx", Path(folder) / "int8.onnx"
        _export(_Plain(model, named).eval(), inputs, plain)
        if any(isinstance(module, nn.Conv2d) for module in model.modules()):
            kinds["activation_type"] = QuantType.QUInt8
            reader = _Reader(open_session(plain), inputs)
            quantize_static(plain, made, reader, quant_format=QuantFormat.QDQ, **kinds)
        else:
            quantize_dynamic(plain, made, **kinds)
        return open_session(made), made.stat().st_size


def _export(model: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    """With a free batch size, and a free length for token ids."""
    import onnx

    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    free = [{0: batch} if x.is_floating_point() or x.dim() < 2 else {0: batch, 1: length} for x in inputs]
    shapes = {"inputs": tuple(free)}
    with torch.no_grad():
        program = torch.onnx.export(model, inputs, dynamo=True, verbose=False, dynamic_shapes=shapes)
    assert program is not None
    graph = program.model_proto
    del graph.graph.value_info[:]  # the quantiser transposes some weights and then finds these shapes wrong
    onnx.save(graph, path)


class _Reader:
    """The example once, as the quantiser asks for it."""

    def __init__(self, session: Any, inputs: tuple[Tensor, ...]) -> None:
        self.feeds = [{one.name: x.contiguous().numpy() for one, x in zip(session.get_inputs(), inputs)}]

    def get_next(self) -> Any:
        return self.feeds.pop() if self.feeds else None

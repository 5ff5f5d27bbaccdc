"""What a user could run instead: dense engines in float32 and int8, on the same model and inputs.

Each peer is a function of no arguments that computes the model's output. One that is not installed, or that cannot take
the model, is left out. Weights are the model's own, so an int8 peer's error is the error of its quantisation.
"""

from __future__ import annotations

import functools
import logging
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus._torch import quiet_export

Run = Callable[[], Any]
KINDS = ("onnx", "onnx int8", "onnx int8 static", "openvino", "openvino int8", "torch int8", "compile")


def find_peers(model: nn.Module, inputs: tuple[Tensor, ...], kinds: tuple[str, ...] = KINDS) -> dict[str, Run]:
    """The named engines that can run the model on these inputs, with torch's number of threads.

    Args:
        model: A dense model in evaluation mode that returns one tensor.
        inputs: Its arguments.
        kinds: Which engines: "onnx" (ONNX Runtime), "onnx int8" (dynamic), "onnx int8 static" (calibrated on the
            inputs), "openvino", "openvino int8" (the statically quantised graph), "torch int8" (dynamic), "compile"
            (torch.compile with frozen weights).

    Returns:
        Name -> function; names begin with "dense" for float32 and with "int8" for quantised engines. Engines that are
        not installed, or that cannot take the model, are left out.

    Example:
        >>> model = torch.nn.Linear(64, 8).eval()
        >>> engines = prunus.sparse.find_peers(model, (torch.randn(2, 64),), ("torch int8",))
        >>> {name: run().shape for name, run in engines.items()}
        {'int8, torch': torch.Size([2, 8])}
    """
    found: dict[str, Run] = {}
    with tempfile.TemporaryDirectory() as folder, quiet_export():
        files = _Files(model, inputs, Path(folder))
        makers: dict[str, tuple[str, Callable[[], Run]]] = {
            "onnx": ("dense, ONNX Runtime", lambda: _onnx_session(files.plain(), inputs)),
            "onnx int8": ("int8, ONNX Runtime", lambda: _onnx_session(files.dynamic(), inputs)),
            "onnx int8 static": ("int8 static, ONNX Runtime", lambda: _onnx_session(files.static(), inputs)),
            "openvino": ("dense, OpenVINO", lambda: _openvino(files.plain(), inputs)),
            "openvino int8": ("int8 static, OpenVINO", lambda: _openvino(files.static(), inputs)),
            "torch int8": ("int8, torch", lambda: _torch_int8(model, inputs)),
            "compile": ("dense, torch.compile", lambda: _compiled(model, inputs)),
        }
        for kind in kinds:
            name, maker = makers[kind]
            try:
                run = maker()
                with torch.no_grad():
                    run()
            except Exception as error:  # each engine raises errors of its own kind; the others are still measured
                logging.getLogger("prunus").info("The peer %r is left out: %s", name, error)
                continue
            found[name] = run
    return found


class _Files:
    """The model as ONNX files, each written when it is first asked for."""

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...], folder: Path) -> None:
        self.model, self.inputs, self.folder = model, inputs, folder

    def plain(self) -> Path:
        from prunus.sparse._onnx import to_onnx

        path = self.folder / "plain.onnx"
        if not path.exists():
            path.write_bytes(to_onnx(self.model, self.inputs))
        return path

    def _prepared(self) -> Path:
        from onnxruntime.quantization.shape_inference import quant_pre_process

        path = self.folder / "prepared.onnx"
        if not path.exists():
            try:
                quant_pre_process(str(self.plain()), str(path), skip_symbolic_shape=True)
            except Exception:  # shapes it cannot infer: the plain file must do
                return self.plain()
        return path

    def _unshaped(self) -> Path:
        """Without the shapes of inner results: the quantiser transposes some weights and then finds them wrong."""
        import onnx

        path = self.folder / "unshaped.onnx"
        if not path.exists():
            graph = onnx.load(self._prepared())
            del graph.graph.value_info[:]
            onnx.save(graph, path)
        return path

    def dynamic(self) -> Path:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        path = self.folder / "dynamic.onnx"
        if not path.exists():
            kinds = {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": saturates()}
            quantize_dynamic(self._unshaped(), path, **kinds)
        return path

    def static(self) -> Path:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        path = self.folder / "static.onnx"
        if path.exists():
            return path
        feeds = [_feed(self.plain(), self.inputs)]

        class Reader(CalibrationDataReader):
            def get_next(self) -> Any:
                return feeds.pop() if feeds else None

        kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
        quantize_static(
            self._prepared(), path, Reader(), quant_format=QuantFormat.QDQ, reduce_range=saturates(), **kinds
        )
        return path


def saturates() -> bool:
    """Whether this processor's int8 products overflow 16 bits unless weights are kept to seven: x86 without VNNI."""
    from prunus.sparse._packed import kernels

    return kernels() is None or not kernels().integers().endswith("vnni")


def open_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _feed(path: Path, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    return {one.name: x.numpy() for one, x in zip(open_session(path).get_inputs(), inputs)}


def _onnx_session(path: Path, inputs: tuple[Tensor, ...]) -> Run:
    """Inputs and outputs bound once, so that nothing is copied but by the engine itself."""
    session = open_session(path)
    binding = session.io_binding()
    for one, x in zip(session.get_inputs(), inputs):
        binding.bind_cpu_input(one.name, x.contiguous().numpy())
    binding.bind_output(session.get_outputs()[0].name)

    def run() -> Tensor:
        session.run_with_iobinding(binding)
        return torch.from_numpy(binding.get_outputs()[0].numpy())

    return run


@functools.cache
def _openvino_core() -> Any:
    """One for the whole process.

    With AVX-512 each one brings a stack for signal handlers and puts back the one before it when it goes. Where the
    first of two goes first, the second puts back memory that is gone, and the next signal ends the process.
    """
    import openvino

    return openvino.Core()


def _openvino(path: Path, inputs: tuple[Tensor, ...]) -> Run:
    core = _openvino_core()
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    request, feed = compiled.create_infer_request(), [x.contiguous().numpy() for x in inputs]
    return lambda: torch.from_numpy(request.infer(feed, share_inputs=True, share_outputs=True)[0])


def _torch_int8(model: nn.Module, inputs: tuple[Tensor, ...]) -> Run:
    from prunus.sparse._int8 import torch_int8

    quantised = torch_int8(model, inputs, rough=math.inf)  # all layers: the fastest; its error is stated
    return lambda: quantised(*inputs)


def _compiled(model: nn.Module, inputs: tuple[Tensor, ...]) -> Run:
    import copy

    from torch._inductor import config

    with config.patch(freezing=True):
        compiled = torch.compile(copy.deepcopy(model))
        with torch.no_grad():
            compiled(*inputs)  # frozen as it compiles
    return lambda: compiled(*inputs)


def output_error(found: Any, expected: Tensor) -> float:
    """Size of the difference over the size of what is expected (root mean squares).

    Args:
        found: What an engine gave.
        expected: What it should have given.

    Returns:
        The relative error; NaN where the shapes differ.

    Example:
        >>> prunus.sparse.output_error(torch.tensor([1.1, 2.0]), torch.tensor([1.0, 2.0])) < 0.05
        True
    """
    value = found if isinstance(found, Tensor) else torch.as_tensor(found)
    if tuple(value.shape) != tuple(expected.shape):
        return float("nan")
    return float((value.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))

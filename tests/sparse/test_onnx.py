"""Export: ONNX Runtime computes what the pruned model computes, and the file says what was pruned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import prunus
from prunus.errors import BadInput, PrunusWarning
from prunus.sparse import export_onnx

onnx = pytest.importorskip("onnx", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")


def test_the_file_agrees_and_notes_the_masks(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra export")
    model = prunus.models.make("fc:64-48-10").eval()
    masks = prunus.find_masks(model, 0.9, pattern="balanced:16")
    x = torch.randn(3, 64)
    path = export_onnx(model, tmp_path / "net.onnx", x, masks)
    assert bool((model.layers[0].weight != 0).all())  # the model itself is left alone
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    with torch.no_grad():
        torch.testing.assert_close(found, masks.apply_(model)(x), rtol=1e-4, atol=1e-5)
    note = {entry.key: entry.value for entry in onnx.load(path).metadata_props}["prunus.masks"]
    rows = json.loads(note)["layers"]
    assert {name: row["kept"] for name, row in rows.items()} == {row.name: row.kept for row in masks.layers}


def test_several_outputs_and_clear_refusals(tmp_path: Path) -> None:
    lstm, x = torch.nn.LSTM(8, 5).eval(), torch.randn(3, 2, 8, requires_grad=True)
    assert export_onnx(lstm, tmp_path / "lstm.onnx", x).exists()
    model = prunus.models.make("fc:64-48-10").eval()
    with pytest.raises(BadInput, match="cannot run on the example"):
        export_onnx(model, tmp_path / "net.onnx", torch.randn(3, 63))
    prunus.prune(model, 0.5, pattern="balanced:16")
    packed = prunus.compress(model, example=torch.randn(3, 64), select="always")
    with pytest.raises(BadInput, match="is compressed"):
        export_onnx(packed, tmp_path / "net.onnx", torch.randn(3, 64))
    assert not (tmp_path / "net.onnx").exists()


def test_batch_and_length_are_open_and_fixed_on_demand(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra export")
    model = torch.nn.LSTM(8, 5, batch_first=True).eval()
    open_sides = export_onnx(model, tmp_path / "open.onnx", torch.randn(1, 6, 8))
    fixed = export_onnx(model, tmp_path / "fixed.onnx", torch.randn(1, 6, 8), dynamic=False)
    session = runtime.InferenceSession(str(open_sides), providers=["CPUExecutionProvider"])
    x = torch.randn(4, 9, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"input": x.numpy()})[0]), model(x)[0])
    shapes = [
        [side.dim_param or side.dim_value for side in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
        for path in (open_sides, fixed)
    ]
    assert shapes == [["batch", "length", 8], [1, 6, 8]]


class Sized(torch.nn.Module):
    """Takes inputs of one batch size only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(24.0).reshape(3, 8)


def test_a_model_of_one_size_says_so(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Sized()).eval()
    with pytest.warns(PrunusWarning, match="batch size only"):
        path = export_onnx(model, tmp_path / "sized.onnx", torch.randn(3, 8))
    sides = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    assert [side.dim_param or side.dim_value for side in sides] == [3, 8]


def test_narrow_models_are_written_in_float32_and_nothing_is_printed(tmp_path: Path, capfd) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4)).eval().bfloat16()
    path = export_onnx(model, tmp_path / "narrow.onnx", {"input": torch.randn(2, 8, dtype=torch.bfloat16)})
    assert onnx.load(path).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert model[0].weight.dtype == torch.bfloat16
    assert capfd.readouterr() == ("", "")


def test_a_model_that_refuses_other_types_is_written(tmp_path: Path) -> None:
    """As transformers' models from GGUF files do, whose weights are float32 already."""

    class Read(torch.nn.Linear):
        def float(self) -> torch.nn.Module:
            raise ValueError("not supported for quantized model")

    assert export_onnx(Read(8, 4).eval(), tmp_path / "read.onnx", torch.randn(2, 8)).is_file()

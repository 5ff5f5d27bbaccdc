"""The dense model in int8 as a module: it answers like the model, is called like it, and says what it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prunus
from prunus.adapters import example_input
from prunus.sparse import int8_engine
from support.foreign import small


def test_a_network_in_onnx_runtime() -> None:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()
    x = torch.randn(16, 3, 8, 8)
    engine = int8_engine(dense, x)
    assert engine is not None
    assert not engine.training
    assert engine.engine == "ONNX Runtime"
    assert 8 * 36 * 5 < engine.file_bytes < 40_000
    with torch.no_grad():
        assert prunus.sparse.output_error(engine(x[:3]), dense(x[:3])) < 0.1


def test_a_language_model_is_called_as_itself() -> None:
    """With labels and by name, so that its perplexity is that of the next token and not of the same one."""
    model = small("llama")
    batch = example_input(model)
    engine = int8_engine(model, batch)
    assert engine is not None
    assert not engine.training
    assert engine.engine == "torch"
    assert engine.file_bytes > 0
    ids = torch.randint(100, (4, 12), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in ids]
    before, after = (prunus.training.metrics.measure("perplexity", one, data) for one in (model, engine))
    assert after == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize("onnx", [True, False])
def test_the_model_stays_in_its_mode(onnx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.Dropout(), nn.Linear(32, 8))
    model[0].eval()
    if not onnx:
        monkeypatch.setattr("prunus.sparse._int8._quantised", lambda *_: 1 / 0)
    int8_engine(model, torch.randn(16, 64))
    assert [module.training for module in model.modules()] == [True, False, True, True]

"""Dense engines beside ours: they compute the model's output, and their error is stated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prunus
from prunus.sparse._peers import KINDS, find_peers, output_error
from prunus.sparse.bench import INTEGER, bench_linear, bench_model, rows
from support.fresh import run_fresh


def network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval(), torch.randn(8, 64)


def test_every_engine_that_is_installed_computes_the_model() -> None:
    pytest.importorskip("onnxruntime")
    model, x = network()
    with torch.no_grad():
        expected = model(x)
        peers = find_peers(model, (x,), tuple(kind for kind in KINDS if kind != "compile"))
        assert {"dense, ONNX Runtime", "int8, ONNX Runtime", "int8 static, ONNX Runtime"} <= set(peers)
        for name, run in peers.items():
            error = output_error(run(), expected)
            assert error < (1e-5 if name.startswith("dense") else 0.1), name
            assert name.startswith("dense") or error > 1e-4, name  # else it did not quantise at all


def test_signals_are_taken_after_engines_went_in_any_order(tmp_path: Path) -> None:
    """OpenVINO moves the stack of signal handlers where there is AVX-512; two engines ended the process."""
    pytest.importorskip("openvino")
    code = """
import faulthandler, gc, os, signal, torch
from prunus.sparse._peers import find_peers
faulthandler.enable()
def make(): return find_peers(torch.nn.Linear(8, 8), (torch.randn(2, 8),), ("openvino",))
first, second = make(), make()
assert first and second
del first; gc.collect()
del second; gc.collect()
taken = []
signal.signal(signal.SIGUSR1, lambda *_: taken.append(1))
os.kill(os.getpid(), signal.SIGUSR1)
assert taken == [1]
"""
    done = run_fresh(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_torch_in_int8_quantises_a_single_layer_and_leaves_out_layers_with_outlying_inputs() -> None:
    from prunus.sparse._int8 import torch_int8

    layer, x = nn.Linear(64, 32), torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    assert not isinstance(torch_int8(layer, (x,)), nn.Linear)
    assert isinstance(layer, nn.Linear)

    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 32)).eval()
    with torch.no_grad():
        model[0].bias[3] = 1000.0  # in front of the second layer
        expected = model(x)
        made = torch_int8(model, (), {"input": x})
        assert not isinstance(made[0], nn.Linear)
        assert isinstance(made[1], nn.Linear)
        rest = expected - model[1].weight[:, 3] * 1000.0  # what else the outputs are made of
        assert (made(x) - expected).norm() < 0.05 * rest.norm()


def test_an_engine_that_cannot_take_the_model_is_left_out() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if bool(x.sum() > 0) else -x  # cannot be exported

    assert find_peers(Odd().eval(), (torch.ones(3),), ("onnx", "onnx int8", "openvino")) == {}


def test_the_bench_states_integers_and_errors() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(128, 64, bias=False)
    prunus.prune(layer, 0.75, pattern="balanced:16")
    result = bench_linear(layer.weight.detach(), 4, peers=("torch int8",), repeats=3)
    assert 0 < result.errors[INTEGER] < 0.03
    assert result.errors["ours"] < 1e-5
    row = rows([result])[0]
    assert row[f"error, {INTEGER}"] == round(result.errors[INTEGER], 4)
    if "int8, torch" in result.seconds:
        expected = result.seconds["int8, torch"] / result.seconds[INTEGER]
        assert row["integers vs best int8"] == round(expected, 2)


def test_a_model_is_timed_in_integers_too() -> None:
    model, x = network()
    prunus.prune(model, 0.75, pattern="balanced:16")
    fast = prunus.compress(model, example=x, select="always")
    integer = prunus.compress(model, example=x, select="always", activations=torch.int8)
    result = bench_model(model, fast, x, integer=integer, peers=(), repeats=3)
    assert result.errors["ours"] < 1e-5 < result.errors[INTEGER] < 0.05
    assert INTEGER in result.seconds


@pytest.mark.parametrize("kind", ["bert-classifier", "vit"])
def test_a_model_with_named_inputs_is_timed_too(kind: str) -> None:
    from prunus.adapters import example_input
    from support.foreign import small

    model = small(kind)
    example = example_input(model, batch=2)
    prunus.prune(model, 0.75, misfits="skip")
    fast = prunus.compress(model, example=example, select="always")
    result = bench_model(model, fast, example, peers=("torch int8",), repeats=3)
    assert result.what == f"{type(model).__name__} batch 2"
    assert result.errors["ours"] < 1e-5
    assert {"ours", "dense", "int8, torch"} <= set(result.seconds)

"""Sparse LSTMs compute what torch's compute, in every layout, and travel through compress and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prunus
from prunus.errors import BadInput
from prunus.sparse import SparseLSTM, SparseLSTMCell, _recurrent, compress, load, save
from prunus.sparse._packed import kernels
from support.kernels import each_level

level = each_level()


def pruned(module: nn.Module) -> nn.Module:
    prunus.prune(module, 0.75, pattern="balanced:16")
    return module.eval()


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("layers", "both", "bias"), [(1, False, True), (2, True, True), (1, True, False)])
def test_agrees_with_torch(batch_first: bool, layers: int, both: bool, bias: bool) -> None:
    torch.manual_seed(0)
    dense = pruned(nn.LSTM(32, 48, layers, batch_first=batch_first, bidirectional=both, bias=bias))
    fast = SparseLSTM.from_dense(dense)
    x = torch.randn(3, 5, 32)
    state = tuple(torch.randn(layers * (2 if both else 1), 3 if batch_first else 5, 48) for _ in range(2))
    with torch.no_grad():
        for given in (None, state):
            (out, (h, c)), (expected, (eh, ec)) = fast(x, given), dense(x, given)
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(h, eh, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(c, ec, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fast(x[0])[0], dense(x[0])[0], rtol=1e-4, atol=1e-5)


def test_cell_agrees_with_torch() -> None:
    dense = pruned(nn.LSTMCell(32, 16))
    fast, x = SparseLSTMCell.from_dense(dense), torch.randn(3, 32)
    with torch.no_grad():
        state = dense(x)
        torch.testing.assert_close(fast(x), state, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fast(x, state), dense(x, state), rtol=1e-4, atol=1e-5)


def test_a_classifier_travels_through_compress_and_a_file(tmp_path: Path) -> None:
    model = prunus.models.make("bilstm:vocabulary=50").eval()
    prunus.prune(model, 0.75, pattern="balanced:16", exclude=("fc",))
    fast = compress(model, select={"lstm": True})
    assert isinstance(fast.lstm, SparseLSTM)
    tokens = torch.randint(1, 50, (4, 7))
    save(fast, tmp_path / "net.safetensors")
    with torch.device("meta"):
        empty = prunus.models.make("bilstm:vocabulary=50")
    again = load(tmp_path / "net.safetensors", empty)
    with torch.no_grad():
        torch.testing.assert_close(fast(tokens), model(tokens), rtol=1e-4, atol=1e-4)
        assert torch.equal(again(tokens), fast(tokens))
    with pytest.raises(BadInput, match="but the model has"):
        load(tmp_path / "net.safetensors", prunus.models.make("lstm:vocabulary=50"))


def test_refuses_projections_and_packed_sequences() -> None:
    with pytest.raises(BadInput, match="projections"):
        SparseLSTM.from_dense(nn.LSTM(8, 8, proj_size=4))
    fast = SparseLSTM.from_dense(nn.LSTM(8, 8))
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 8)])
    with pytest.raises(BadInput, match="packed sequence"):
        fast(packed)


def test_stands_where_torchs_layer_stood() -> None:
    cell, lstm = nn.LSTMCell(8, 5).requires_grad_(False), nn.LSTM(8, 5).requires_grad_(False)
    fast = SparseLSTMCell.from_dense(cell)
    x, state = torch.randn(8), (torch.randn(5), torch.randn(5))
    for found, wanted in zip((*fast(input=x), *fast(x, state)), (*cell(x), *cell(x, state))):
        torch.testing.assert_close(found, wanted)
    layer = SparseLSTM.from_dense(lstm)
    layer.flatten_parameters()
    assert (layer.input_size, layer.hidden_size) == (8, 5)
    torch.testing.assert_close(layer(input=torch.ones(3, 2, 8))[0], lstm(torch.ones(3, 2, 8))[0])


def test_a_layer_fed_packed_sequences_stays_dense() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 5, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            lengths = torch.tensor([3, 2])
            return self.lstm(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[1][0]

    model, x = Reader().eval(), torch.randn(2, 3, 8)
    fast = compress(model, example=x, select="always")
    assert type(fast.lstm) is nn.LSTM
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_native_steps_agree_with_torch(kind: str, level: str) -> None:
    torch.manual_seed(0)
    wide = pruned(getattr(nn, kind)(37, 51, 2, bidirectional=True))
    fast = getattr(_recurrent, f"Sparse{kind}").from_dense(wide)
    for steps, batch in ((1, 1), (4, 1), (9, 3), (40, 17)):
        x = torch.randn(steps, batch, 37)
        with torch.no_grad():
            (out, end), (expected, last) = fast(x), wide(x)
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(end, last, rtol=1e-4, atol=1e-5)
            again = fast(x, end)[0]  # states that were handed in stay as they are
            assert torch.equal(fast(x, end)[0], again)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_native_steps_give_the_same_bytes_for_every_number_of_threads(kind: str) -> None:
    torch.manual_seed(0)
    fast = getattr(_recurrent, f"Sparse{kind}").from_dense(pruned(getattr(nn, kind)(256, 256)))
    x, before = torch.randn(6, 70, 256), torch.get_num_threads()
    try:
        with torch.no_grad():
            torch.set_num_threads(1)
            one = fast(x)[0]
            torch.set_num_threads(2)
            assert torch.equal(fast(x)[0], one)
    finally:
        torch.set_num_threads(before)


def test_one_native_call_runs_all_steps_and_torch_where_something_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, x = SparseLSTM.from_dense(pruned(nn.LSTM(32, 32))), torch.randn(5, 2, 32)
    stepped = []
    plain = SparseLSTMCell.advance
    monkeypatch.setattr(SparseLSTMCell, "advance", lambda *rest: (stepped.append(1), plain(*rest))[1])
    with torch.no_grad():
        expected = fast(x)[0]
        assert not stepped or kernels() is None
        heard: list[int] = []
        hook = fast.cells[0].state.register_forward_hook(lambda *_: heard.append(1))
        torch.testing.assert_close(fast(x)[0], expected, rtol=1e-4, atol=1e-5)
        assert len(heard) == 5
        hook.remove()
    tracked = x.clone().requires_grad_()
    fast(tracked)[0].sum().backward()
    assert tracked.grad is not None
    assert bool(tracked.grad.abs().sum() > 0)


def test_special_inputs_reach_the_state() -> None:
    dense = pruned(nn.LSTM(16, 16))
    fast, x = SparseLSTM.from_dense(dense), torch.randn(3, 2, 16)
    x[1, 0, 3] = float("nan")
    with torch.no_grad():
        out = fast(x)[0]
    assert bool(out[1:, 0].isnan().any())
    assert bool(out[:, 1].isfinite().all())
    with torch.no_grad():
        huge = fast(torch.full((3, 1, 16), 1e30))[0]
        torch.testing.assert_close(huge, dense(torch.full((3, 1, 16), 1e30))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_states_of_another_shape_are_refused_as_torch_does(kind: str) -> None:
    dense, x = getattr(nn, kind)(16, 32, num_layers=2), torch.randn(5, 3, 16)
    prunus.prune(dense, 0.5)
    cell = getattr(nn, kind + "Cell")(16, 32)
    prunus.prune(cell, 0.5)
    pair = (lambda h: (h, h)) if kind == "LSTM" else (lambda h: h)
    fast = getattr(_recurrent, "Sparse" + kind).from_dense(dense)
    step = getattr(_recurrent, f"Sparse{kind}Cell").from_dense(cell)
    fast(x, pair(torch.zeros(2, 3, 32)))
    for shape in ((3, 3, 32), (2, 1, 32), (2, 3, 31), (1, 3, 32), (2, 32)):
        for layer, kinds in ((dense, (RuntimeError, IndexError)), (fast, BadInput)):
            with pytest.raises(kinds), torch.no_grad():
                layer(x, pair(torch.zeros(shape)))
    step(x[0], pair(torch.zeros(3, 32)))
    for shape in ((1, 32), (3, 31), (4, 32)):
        for layer, kinds in ((cell, (RuntimeError,)), (step, BadInput)):
            with pytest.raises(kinds), torch.no_grad():
                layer(x[0], pair(torch.zeros(shape)))
    single = fast(x[:, 0], pair(torch.zeros(2, 32)))[0]
    assert single.shape == (5, 32)

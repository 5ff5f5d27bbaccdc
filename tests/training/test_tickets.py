from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from prunus.errors import BadFile, BadInput, RunFailed
from prunus.training import FitConfig, Ticket, TicketOptions, evaluate, find_ticket
from prunus.training.popup import number_pruned
from support.training import Stop, StopAt, conv_net, digits, fc, same_bytes

QUICK = FitConfig(lr=0.3, seed=2)


def test_a_ticket_classifies_digits_with_weights_never_trained() -> None:
    train, test = digits()
    model = fc("64-64-64-10", init="signed_constant")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ticket = find_ticket(model, train, "edge-popup", 0.5, length="30ep", test=test, config=QUICK)
    assert same_bytes(before, model.state_dict())
    assert ticket.history[-1].test_accuracy > 0.8
    assert ticket.history[-1].sparsity == pytest.approx(0.5, abs=1e-3)
    for name, mask in ticket.masks.items():
        weight = ticket.model.get_parameter(name).detach()
        assert torch.equal(weight[mask], before[name][mask])
        assert not weight[~mask].any()
        assert int((~mask).sum()) == number_pruned(mask.numel(), 0.5)
        assert ticket.model.get_parameter(name).requires_grad
    assert evaluate(ticket.model, test)[1] == ticket.history[-1].test_accuracy
    assert not any(ticket.model.get_parameter(f"layers.{i}.bias").any() for i in range(3))


def test_rate_zero_and_a_period_beyond_the_run_are_edge_popup_to_the_last_bit() -> None:
    train, _ = digits(400)
    model = conv_net(dropout=0.0)
    plain = find_ticket(model, train, "edge-popup", length="3ep", config=QUICK)
    for options in ({"rate": 0.0, "period": 2}, {"rate": 1.0, "period": 10**6}):
        other = find_ticket(model, train, "iterand", length="3ep", config=QUICK, **options)
        assert same_bytes(plain.model.state_dict(), other.model.state_dict())
        assert plain.masks == other.masks
    changed = find_ticket(model, train, "iterand", length="3ep", config=QUICK, rate=1.0, period=2)
    assert not same_bytes(plain.model.state_dict(), changed.model.state_dict())


def test_the_same_seed_gives_the_same_ticket() -> None:
    train, _ = digits(200)
    tickets = [
        find_ticket(fc(init="signed_constant"), train, period=3, rate=0.5, length="3ep", seed=s) for s in (1, 1, 2)
    ]
    assert tickets[0].masks == tickets[1].masks
    assert same_bytes(tickets[0].model.state_dict(), tickets[1].model.state_dict())
    assert tickets[0].masks != tickets[2].masks


def test_batch_norm_does_not_learn_but_keeps_statistics() -> None:
    train, _ = digits(400)
    model = conv_net(dropout=0.0)
    ticket = find_ticket(model, train, length="2ep", period=5, rate=0.5, config=QUICK)
    assert torch.equal(ticket.model.norm.weight.detach(), torch.ones(4))
    assert not ticket.model.norm.bias.any()
    assert ticket.model.norm.running_mean.any()


def test_lstm_weights_are_masked_too() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 16, batch_first=True)
            self.fc = nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.lstm(x.reshape(-1, 8, 8))[0][:, -1])

    train, _ = digits(1000)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        reader = Reader()
    ticket = find_ticket(reader, train, length="4ep", period=4, rate=0.2, config=QUICK)
    assert set(ticket.masks) == {"lstm.weight_ih_l0", "lstm.weight_hh_l0", "fc.weight"}
    for name, mask in ticket.masks.items():
        assert not ticket.model.get_parameter(name).detach()[~mask].any()
        assert int(mask.sum()) == mask.numel() // 2
    assert ticket.history[-1].loss < ticket.history[0].loss


def test_excluded_layers_stay_dense_and_random() -> None:
    train, _ = digits(200)
    model = fc("64-32-32-10", init="kaiming_uniform")
    ticket = find_ticket(model, train, length="1ep", exclude=("layers.2",), sparsity={"layers.0": 0.3, "layers.1": 0.8})
    assert {row.name: round(row.sparsity, 2) for row in ticket.masks.layers} == {
        "layers.0.weight": 0.3,
        "layers.1.weight": 0.8,
    }
    assert torch.equal(ticket.model.layers[2].weight, model.layers[2].weight)


@pytest.mark.parametrize("method", ["edge-popup", "iterand"])
def test_a_search_resumes_to_the_same_bytes(tmp_path: Path, method: str) -> None:
    train, _ = digits(200)
    model = conv_net()  # torch's own weights: redrawn from the pool of initial values
    options = {"period": 3, "rate": 0.5, "length": "4ep"}
    whole = find_ticket(model, train, method, config=QUICK, **options)
    kept = QUICK.replace(folder=tmp_path, resume=True, every="2it")
    for stop in (5, 11):
        with pytest.raises(Stop):
            find_ticket(model, train, method, config=kept.replace(callbacks=(StopAt(stop),)), **options)
    again = find_ticket(model, train, method, config=kept, **options)
    assert same_bytes(whole.model.state_dict(), again.model.state_dict())
    assert whole.masks == again.masks
    assert whole.record["events"] == again.record["events"]
    with pytest.raises(BadInput, match=r"sparsity=0\.5.*sparsity=0.6"):
        find_ticket(model, train, method, 0.6, config=kept, **options)


def test_a_ticket_file_holds_a_seed_and_bits(tmp_path: Path) -> None:
    train, test = digits(400)
    drawn = TicketOptions(weights="signed_constant")
    ticket = find_ticket(fc("64-300-100-10"), train, "edge-popup", length="2ep", config=QUICK, options=drawn)
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    ticket.save(small)
    ticket.save(large, with_weights=True)
    assert small.stat().st_size < large.stat().st_size / 10
    for path in (small, large):
        other = Ticket.load(path, fc("64-300-100-10", seed=77))
        assert same_bytes(ticket.model.state_dict(), other.model.state_dict())
        assert other.masks == ticket.masks
        assert other.history == ticket.history
        assert evaluate(other.model, test) == evaluate(ticket.model, test)
    with pytest.raises(BadInput):
        Ticket.load(small, fc("64-300-101-10"))


def test_weights_that_a_seed_cannot_bring_back_are_stored_and_a_wrong_seed_is_noticed(tmp_path: Path) -> None:
    train, _ = digits(100)
    path = tmp_path / "ticket.safetensors"
    drawn = TicketOptions(weights="kaiming_uniform")
    for ticket in (
        find_ticket(fc(), train, "iterand", period=1, length="1ep", options=drawn),
        find_ticket(fc(), train, "edge-popup", length="1ep"),
    ):
        with pytest.raises(BadInput, match="with its weights"):
            ticket.save(path, with_weights=False)
        ticket.save(path)
        assert same_bytes(Ticket.load(path, fc(seed=5)).model.state_dict(), ticket.model.state_dict())
    seeded = find_ticket(fc(), train, "edge-popup", length="1ep", options=drawn)
    seeded.weights_seed += 1  # as if this torch drew other numbers
    seeded.save(path)
    with pytest.raises(BadFile, match="gives other weights"):
        Ticket.load(path, fc())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadFile, match="damaged"):
        Ticket.load(path, fc())


def test_bad_input() -> None:
    train = TensorDataset(torch.zeros(4, 64), torch.zeros(4, dtype=torch.long))
    for wrong in (
        {"method": "magic"},
        {"period": 0},
        {"rate": 1.5},
        {"sparsity": 1.0},
        {"sparsity": 0.9999},
        {"length": "soon"},
        {"options": TicketOptions(allocation="erk"), "sparsity": {"layers.0": 0.5}},
    ):
        with pytest.raises(BadInput):
            find_ticket(fc(), train, **{"length": "1ep", **wrong})


def test_a_resumed_search_must_name_the_same_layers(tmp_path: Path) -> None:
    train, _ = digits(100)
    find_ticket(fc(), train, "edge-popup", length="1ep", config=FitConfig(folder=tmp_path))
    again = FitConfig(folder=tmp_path, resume=True)
    with pytest.raises(BadInput, match="layers="):
        find_ticket(fc(), train, "edge-popup", length="1ep", config=again, exclude=("layers.1",))


def test_scores_that_are_no_numbers_stop_the_run() -> None:
    with pytest.raises(RunFailed, match=r"scores of layers\.\d\.weight became .* at step \d+ .* Norms: "):
        find_ticket(fc(), digits(200)[0], length="2ep", config=FitConfig(lr=1e38))

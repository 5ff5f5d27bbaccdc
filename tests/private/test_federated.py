"""Flower's client mod and strategy: sparse private updates, charged before they leave, averaged over who replied."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from prunus.errors import BadInput
from prunus.private import BudgetSpent, NoisyTopK, ValueNoise
from prunus.private.ledger import Ledger
from prunus.private.rounds import RoundPlan
from support import PROVING

pytest.importorskip("flwr", reason="needs the extra 'federated'")
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, Metadata, MetricRecord, RecordDict

from prunus.private.federated import client_mod, server_strategy

WORKER = Path(__file__).parent / "workers" / "flower_worker.py"
D = 120


def _context(partition: int) -> Context:
    return Context(1, 7 + partition, {"partition-id": partition}, RecordDict(), {})


def _message(content: RecordDict, kind: str, node: int) -> Message:
    return Message(content=content, metadata=Metadata(1, f"m{node}", 1, node, "", "", time.time(), 3600.0, kind))


def _ask(weights: torch.Tensor, node: int = 7) -> Message:
    content = RecordDict({"arrays": ArrayRecord({"w": weights}), "config": ConfigRecord({"server-round": 1})})
    return _message(content, MessageType.TRAIN, node)


def _app(update: torch.Tensor, examples: int = 100):
    def run(message: Message, context: Context) -> Message:
        old = next(iter(message.content.array_records.values())).to_torch_state_dict()["w"]
        metrics = MetricRecord({"num-examples": examples})
        content = RecordDict({"arrays": ArrayRecord({"w": old + update}), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return run


def _replies(plan: RoundPlan, ledger: Path, updates: list[torch.Tensor], **budget: float) -> list[Message]:
    mod = client_mod(plan, ledger, **budget)
    return [
        mod(_ask(torch.zeros(D), 7 + number), _context(number), _app(update)) for number, update in enumerate(updates)
    ]


def _arrays(reply: Message) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(a.numpy()) for name, a in next(iter(reply.content.array_records.values())).items()}


def test_a_reply_is_sparse_clipped_and_charged(tmp_path: Path) -> None:
    plan = RoundPlan(1.0, "local", NoisyTopK(12, 1.0), ValueNoise(1.0, 1e-3))
    (reply,) = _replies(plan, tmp_path / "l", [torch.randn(D) * 50])
    arrays = _arrays(reply)
    assert arrays["indices"].shape == arrays["values"].shape == (12,)
    assert float(arrays["values"].norm()) < 1.05
    ledger = Ledger(tmp_path / "l")
    assert (ledger.clients, ledger.charges("0")) == (["0"], 1)


def test_a_spent_client_sends_nothing(tmp_path: Path) -> None:
    plan = RoundPlan(1.0, "local", None, ValueNoise.laplace(1.0, 0.6))
    _replies(plan, tmp_path / "l", [torch.ones(D)], epsilon=1.0)
    with pytest.raises(BudgetSpent):
        _replies(plan, tmp_path / "l", [torch.ones(D)], epsilon=1.0)
    with pytest.raises(BadInput, match="NaN"):
        _replies(plan, tmp_path / "m", [torch.full((D,), float("nan"))])
    assert not (tmp_path / "m").exists() or Ledger(tmp_path / "m").clients == []


@pytest.mark.parametrize("trust", ["local", "central"])
def test_the_strategy_averages_who_replied(trust: str, tmp_path: Path) -> None:
    values = ValueNoise(1.0, 1e-4) if trust == "local" else None
    plan = RoundPlan(1.0, trust, None, values, noise_multiplier=1e-4 if trust == "central" else 0.0)
    replies = _replies(plan, tmp_path / "l", [torch.full((D,), 0.03), torch.full((D,), 0.01)])
    strategy = server_strategy(plan, tmp_path / "l", fraction_evaluate=0.0)
    strategy.current = ArrayRecord({"w": torch.ones(D)})
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert torch.allclose(arrays.to_torch_state_dict()["w"], torch.full((D,), 1.02), atol=2e-3)
    assert metrics["replies"] == 2
    assert sum(Ledger(tmp_path / "l").charges(name) for name in Ledger(tmp_path / "l").clients) == 2
    assert strategy.aggregate_train(2, []) == (None, None)


def test_other_messages_pass_untouched(tmp_path: Path) -> None:
    mod = client_mod(RoundPlan(1.0), tmp_path / "l")
    message = _message(RecordDict(), MessageType.EVALUATE, 7)
    assert mod(message, _context(0), lambda message, context: "as it is") == "as it is"


@pytest.mark.prove
@pytest.mark.skipif(not PROVING, reason="a simulation takes a minute: run by make prove")
def test_simulations_run_and_survive_kills(tmp_path: Path) -> None:
    chance = random.Random(2)
    command = [sys.executable, str(WORKER), "local", str(tmp_path)]
    for _ in range(3):
        process = subprocess.Popen([*command, "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            if (tmp_path / "sent").exists():
                break
            time.sleep(0.2)
        time.sleep(chance.uniform(0.0, 10.0))
        process.kill()
        process.wait()
        time.sleep(5.0)  # the simulation's own processes follow
        sent = Counter((tmp_path / "sent").read_text().split())
        ledger = Ledger(tmp_path / "ledger")
        assert sent
        assert all(ledger.charges(client) >= count for client, count in sent.items())
    done = subprocess.run([*command, "3"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["distance"] < record["start"]

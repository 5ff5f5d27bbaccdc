"""Federated rounds: weights inside the sensitivity, noise for those who replied, a ledger that is never behind."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from scipy import stats
from tools.evidence import record

from prunus.errors import BadFile, BadInput
from prunus.private import BudgetSpent, NoisyTopK, Release, ValueNoise
from prunus.private.ledger import Ledger
from prunus.private.rounds import RoundEngine, RoundPlan, aggregate, client_message
from support import PROVING, scale

WORKER = Path(__file__).parent / "workers" / "round_worker.py"


@dataclass
class Fixed:
    value: torch.Tensor | None
    examples: int = 100

    def update(self, weights: torch.Tensor, round_: int) -> torch.Tensor | None:
        return self.value


# ------------------------------------------------------------------------------------------------------------ ledger


def test_ledger_is_read_back_and_shared(tmp_path: Path) -> None:
    one = Ledger(tmp_path / "l", epsilon=50.0)
    release = Release(index_epsilon=0.5, rho=0.01)
    one.charge("a", 0, release)
    two = Ledger(tmp_path / "l", epsilon=50.0)
    two.charge_all(["a", "b"], 1, release)
    one.refresh()
    assert (one.charges("a"), one.charges("b"), one.rounds) == (2, 1, 2)
    assert one.spent("a") == two.spent("a") > one.spent("b") > 0.0
    free = Ledger(tmp_path / "l")
    free.charge("a", 2, Release(rho=math.inf))
    assert Ledger(tmp_path / "l").spent("a") == math.inf


def test_ledger_refuses_before_writing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", epsilon=1.0, delta=1e-5)
    release = Release(value_epsilon=0.3)
    for round_ in range(3):
        ledger.charge("a", round_, release)
    size = (tmp_path / "l").stat().st_size
    with pytest.raises(BudgetSpent, match="nothing was sent"):
        ledger.charge("a", 3, release)
    with pytest.raises(BudgetSpent):
        ledger.charge_all(["fresh", "a"], 3, release)
    assert (tmp_path / "l").stat().st_size == size
    assert "fresh" not in Ledger(tmp_path / "l").clients
    assert not Ledger(tmp_path / "l", epsilon=1.0).can_afford("a", release)


def test_what_others_charge_counts_at_once(tmp_path: Path) -> None:
    """Two processes charge one client in turn; together they must not pass the budget."""
    one, two = Ledger(tmp_path / "l", epsilon=10.0), Ledger(tmp_path / "l", epsilon=10.0)
    release = Release(value_epsilon=0.1)
    charged = 0
    with pytest.raises(BudgetSpent):
        for round_ in range(1000):
            (one if round_ % 2 else two).charge("a", round_, release)
            charged += 1
    assert charged in (99, 100)
    assert Ledger(tmp_path / "l").spent("a") <= 10.0
    with pytest.raises(BadInput, match="only once"):
        one.charge_all(["b", "b"], 0, release)


def test_a_torn_last_line_is_cut_and_other_damage_refused(tmp_path: Path) -> None:
    path = tmp_path / "l"
    ledger = Ledger(path)
    for round_ in range(3):
        ledger.charge("a", round_, Release(rho=0.1))
    whole = path.read_bytes()
    ledger.charge("a", 3, Release(rho=0.1))
    line = path.read_bytes()[len(whole) :]
    for cut in range(1, len(line)):  # a kill while the fourth charge was written
        path.write_bytes(whole + line[:cut])
        assert Ledger(path).charges("a") == 3
        assert path.read_bytes() == whole
    path.write_bytes(whole + line)  # a kill before the second line was brought up to date: counted, though not sent
    assert Ledger(path).charges("a") == 4
    for place in range(10, len(whole) - 1, 17):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(bytes(damaged))
        with pytest.raises(BadFile):
            Ledger(path)
    path.write_bytes(whole)
    with pytest.raises(BadInput, match="delta"):
        Ledger(path, delta=1e-3)


def test_a_ledger_that_lost_lines_is_refused(tmp_path: Path) -> None:
    """Cut at any place, emptied, zeroed, or with lines dropped or exchanged: never accepted with less spent."""
    path = tmp_path / "l"
    ledger = Ledger(path)
    for round_ in range(4):
        ledger.charge("a", round_, Release(rho=0.1 * (round_ + 1)))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    damaged = [whole[:cut] for cut in range(0, len(whole), 7)]
    damaged += [b"".join(lines[:count]) for count in range(len(lines))]
    damaged += [b"".join(lines[:number] + lines[number + 1 :]) for number in range(len(lines))]
    damaged += [b"".join([*lines[:3], lines[4], lines[3], lines[5]]), bytes(len(whole)), whole[:200] + bytes(300)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(BadFile):
            Ledger(path)
        assert path.read_bytes() == content
    path.write_bytes(whole)
    assert Ledger(path).charges("a") == 4
    path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(BadFile, match="shorter while it was in use"):
        ledger.refresh()


# ------------------------------------------------------------------------------------------------------------ rounds


def _engine(tmp_path: Path, clients, plan: RoundPlan, d: int = 60, **budget) -> RoundEngine:
    return RoundEngine(torch.zeros(d), clients, plan, Ledger(tmp_path / "ledger", **budget))


@pytest.mark.parametrize("trust", ["local", "central"])
def test_one_client_moves_the_sum_by_at_most_the_clip(trust: str) -> None:
    plan = RoundPlan(1.0, trust, cap=50)
    torch.manual_seed(0)
    for size in (0.0, 1e-30, 1.0, 1e20, 1e37):
        for examples in (1, 50, 10**9):
            message = client_message("a", 0, torch.randn(100) * size, examples, plan)
            factor = message.weight if trust == "local" else 1.0
            assert float(message.values.double().norm()) * factor <= 1.0 + 1e-6
            assert 0.0 < message.weight <= 1.0


def test_central_integers_stay_inside_the_sensitivity() -> None:
    plan = RoundPlan(0.7, "central", noise_multiplier=1.3)
    message = client_message("a", 0, torch.randn(500) * 100, 100, plan)
    limit = plan.clip / plan.central_noise.grid
    assert sum(int(v) ** 2 for v in message.values) <= limit**2
    assert sum(int(v) ** 2 for v in message.values) > 0.98 * limit**2


def test_average_is_weighted_by_examples(tmp_path: Path) -> None:
    clients = {"a": Fixed(torch.full((60,), 0.01), 25), "b": Fixed(torch.full((60,), -0.01), 75)}
    engine = _engine(tmp_path, clients, RoundPlan(1.0, cap=100))
    engine.run_round()
    assert torch.allclose(engine.weights, torch.full((60,), -0.005), atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.9])
def test_noise_fits_those_who_replied(dropout: float, tmp_path: Path) -> None:
    """Zero updates: the average is noise of deviation noise * clip / (sum of weights); chi-square at 1e-6."""
    count = 20
    replying = round(count * (1 - dropout))
    clients = {f"c{i}": Fixed(torch.zeros(2000) if i < replying else None, 50) for i in range(count)}
    engine = _engine(tmp_path, clients, RoundPlan(0.5, "central", noise_multiplier=1.2), d=2000)
    record = engine.run_round()
    assert (len(record.replied), len(record.dropped)) == (replying, count - replying)
    expected = 1.2 * 0.5 / (0.5 * replying)
    assert record.noise == pytest.approx(expected)
    statistic = float((engine.weights.double() / expected).square().sum())
    assert stats.chi2.cdf(statistic, 2000) == pytest.approx(0.5, abs=0.5 - 1e-6)
    assert engine.ledger.clients == sorted(record.replied)


def test_bad_updates_are_left_out_and_not_charged(tmp_path: Path) -> None:
    clients = {
        "zero": Fixed(torch.zeros(60)),
        "nan": Fixed(torch.full((60,), math.nan)),
        "inf": Fixed(torch.full((60,), math.inf)),
        "huge": Fixed(torch.full((60,), 1e38)),
        "empty": Fixed(torch.ones(60), examples=0),
        "gone": Fixed(None),
    }
    plan = RoundPlan(1.0, "local", NoisyTopK(6, 1.0), ValueNoise(1.0, 0.1))
    engine = _engine(tmp_path, clients, plan)
    record = engine.run_round()
    assert record.replied == ["zero", "huge"]
    assert set(record.refused) == {"nan", "inf", "empty"}
    assert record.dropped == ["gone"]
    assert engine.ledger.clients == ["huge", "zero"]
    assert bool(torch.isfinite(engine.weights).all())
    assert record.bytes == 2 * 6 * 8


def test_a_round_without_replies_changes_nothing(tmp_path: Path) -> None:
    engine = _engine(tmp_path, {"a": Fixed(None)}, RoundPlan(1.0, "central", noise_multiplier=1.0))
    record = engine.run_round()
    assert record.replied == []
    assert torch.equal(engine.weights, torch.zeros(60))
    with pytest.raises(BadInput, match="Nobody replied"):
        aggregate([], 60, RoundPlan(1.0))


def test_spent_clients_are_left_out(tmp_path: Path) -> None:
    plan = RoundPlan(1.0, "local", None, ValueNoise.laplace(1.0, 0.4))
    engine = _engine(tmp_path, {"a": Fixed(torch.zeros(60)), "b": Fixed(torch.zeros(60))}, plan, epsilon=1.0)
    sizes = [len(engine.run_round(["a"] if i < 1 else None).replied) for i in range(4)]
    assert sizes == [1, 2, 1, 0]
    assert engine.ledger.spent("a") <= 1.0


def test_rounds_go_on_after_a_restart(tmp_path: Path) -> None:
    plan = RoundPlan(1.0, "local", NoisyTopK(6, 1.0), ValueNoise(1.0, 0.1))
    _engine(tmp_path, {"a": Fixed(torch.zeros(60))}, plan).run_round()
    assert _engine(tmp_path, {"a": Fixed(torch.zeros(60))}, plan).round == 1


@pytest.mark.prove
@pytest.mark.parametrize("trust", ["local", "central"])
def test_kill_at_random_moments(trust: str, tmp_path: Path) -> None:
    """kill -9 again and again on the same ledger: never behind the wire, and no release without its noise."""
    chance = random.Random(4)
    command = [sys.executable, str(WORKER), trust, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(scale(8, full=50)):
            process.stdin.write(f"{chance.uniform(0.0, 0.3)}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "killed\n"
            sent, charged = _check_wire(tmp_path, trust)
        process.stdin.close()
    assert sent > 0
    if PROVING:
        row = {"trust": trust, "kills": 50, "sent by one client": sent, "charged to it": charged}
        record(f"private-kills-{trust}", [row], "kill -9 at random moments of the round engine, one ledger throughout.")


def _check_wire(folder: Path, trust: str) -> tuple[int, int]:
    """(messages that concern client c0, its charges); no client is charged for less than it sent."""
    ledger = Ledger(folder / "ledger")
    if not (folder / "wire").exists():
        return 0, 0
    lines = (folder / "wire").read_bytes().split(b"\n")
    records = [json.loads(line) for line in lines[:-1]]
    if trust == "local":
        for client in {entry["client"] for entry in records}:
            sent = sum(entry["client"] == client for entry in records)
            assert ledger.charges(client) >= sent
    else:
        assert all(ledger.charges(f"c{i}") >= len(records) for i in range(5))
    for entry in records:
        values = torch.tensor(entry["values"], dtype=torch.float64)
        deviation = entry.get("noise", 2.0)
        statistic = float((values / deviation).square().sum())
        # 1e-9 each: thousands of releases are looked at
        assert 1e-9 < stats.chi2.cdf(statistic, len(values)) < 1 - 1e-9
    return sum(entry["client"] in ("c0", None) for entry in records), ledger.charges("c0")


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoundPlan(0.0),
        lambda: RoundPlan(1.0, "nobody"),
        lambda: RoundPlan(1.0, "local", noise_multiplier=1.0),
        lambda: RoundPlan(1.0, "local", values=ValueNoise(2.0, 1.0)),
        lambda: RoundPlan(1.0, cap=0),
        lambda: Ledger("/nonexistent/folder/ledger"),
    ],
)
def test_bad_input(make) -> None:
    with pytest.raises(BadInput):
        make()

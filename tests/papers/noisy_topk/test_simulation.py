"""Small federated runs: sparse methods send less, and central noise has an epsilon."""

from __future__ import annotations

import pytest
import torch
from tools.evidence import record

from prunus.errors import BadInput
from prunus.papers.noisy_topk.simulation import SimulationOptions, simulate
from support import PROVING


def _rows(**changes) -> dict[str, dict]:
    options = SimulationOptions(**({"rounds": 8, "clients": 5, "k": 0.1} | changes))
    return {row["method"]: row for row in simulate(options)}


def test_methods_side_by_side() -> None:
    torch.set_num_threads(1)
    rows = _rows()
    dense, noisy = rows["dense"], rows["noisy top-k"]
    assert dense["accuracy"] > 0.6
    assert noisy["accuracy"] > 0.3
    assert dense["bytes per message"] == 4 * 7510
    assert noisy["bytes per message"] == 8 * 751
    assert (noisy["index epsilon per swap"], noisy["values private"]) == (5.28, False)
    assert dense["epsilon of all rounds"] is None
    assert 0.0 < rows["dense, central noise"]["epsilon of all rounds"] < 100.0
    assert rows["noisy top-k, central noise"]["values private"]


@pytest.mark.prove
@pytest.mark.skipif(not PROVING, reason="real processes and twenty rounds: run by make prove")
def test_real_processes_with_dropouts() -> None:
    rows = _rows(rounds=20, clients=10, k=0.05, processes=2, dropout=0.3)
    assert rows["noisy top-k"]["accuracy"] > 0.6
    assert rows["noisy top-k"]["replies"] < 200
    record("private-simulation", list(rows.values()), "Digits, 10 clients in 2 processes, 20 rounds, 30 % drop out.")


def test_the_same_seed_gives_the_same_rows() -> None:
    assert _rows(rounds=2, clients=3) == _rows(rounds=2, clients=3)


@pytest.mark.parametrize("change", [{"clients": 0}, {"dropout": 1.0}, {"data": "imdb"}, {"clients": 5000}])
def test_bad_input(change) -> None:
    with pytest.raises(BadInput):
        _rows(**change)

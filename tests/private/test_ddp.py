"""The communication hook on real processes: right averages, fewer bytes, privacy on record, a budget that holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prunus.errors import BadInput
from prunus.private import NoisyTopK
from prunus.private.ddp import ddp_hook
from support import PROVING

pytest.importorskip("dp_accounting", reason="needs the extra 'private'")
WORKER = Path(__file__).parent / "workers" / "ddp_worker.py"


@pytest.mark.prove
@pytest.mark.parametrize("world", [2, 4] if PROVING else [2])
def test_hook_under_torchrun(world: int, tmp_path: Path) -> None:
    target = tmp_path / "record.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(WORKER), str(target)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads(target.read_text())
    assert record["world"] == world
    assert record["exact"], "without swaps the hook must average exact top-k gradients"
    assert record["noisy"]["equal"], "all processes must end with the same weights"
    assert record["noisy"]["last"] < 0.6 * record["noisy"]["first"]
    assert record["steps"] == 60
    # 100 or so of 1004 coordinates at 8 bytes each, in one bucket
    assert record["bytes"] == 60 * 8 * 100
    assert record["dense_bytes"] == 60 * 4 * 1004
    assert record["seconds"]["sparse"] < record["seconds"]["dense"]
    assert record["spent"] == pytest.approx(60 * 2 * 2.0 * 100)
    assert not record["values_private"]
    assert record["refused"]
    assert record["spent_with_values"] <= 60.0


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: ddp_hook("top"), "no mechanism"),
        (lambda: ddp_hook(NoisyTopK(0.1, 1.0), scope="layer"), "scope"),
        (lambda: ddp_hook(NoisyTopK(0.1, 1.0), insecure_seed=-3), "insecure_seed"),
    ],
)
def test_bad_input(make, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()

"""Rounds that are killed at given moments: `round_worker.py TRUST FOLDER`. What leaves an owner goes to FOLDER/wire."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch

from prunus.private import NoisyTopK, ValueNoise
from prunus.private.ledger import Ledger
from prunus.private.rounds import Message, RoundEngine, RoundPlan, aggregate, client_message

D, CLIENTS, NOISE = 400, 5, 2.0


class Zero:
    """A client whose update is zero: what is released is the noise alone."""

    examples = 100

    def update(self, weights: torch.Tensor, round_: int) -> torch.Tensor:
        return torch.zeros(D)


def plan(trust: str) -> RoundPlan:
    if trust == "central":
        return RoundPlan(1.0, "central", NoisyTopK(40, 1.0), noise_multiplier=NOISE)
    return RoundPlan(1.0, "local", NoisyTopK(40, 1.0), ValueNoise(1.0, NOISE))


def rounds(trust: str, folder: str, started: int) -> None:
    """Rounds for ever; says on the pipe when it begins."""
    wire = os.open(f"{folder}/wire", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def send(item: object) -> None:
        if isinstance(item, Message):
            record = {"client": item.client, "round": item.round, "values": item.values.tolist()}
        else:
            round_, average, noise = item
            record = {"client": None, "round": round_, "values": average.tolist(), "noise": noise}
        os.write(wire, json.dumps(record).encode() + b"\n")

    os.write(started, b"x")
    ledger = Ledger(f"{folder}/ledger")
    engine = RoundEngine(torch.zeros(D), {f"c{i}": Zero() for i in range(CLIENTS)}, plan(trust), ledger, send)
    while True:
        engine.run_round()


def main() -> None:
    """For each line on standard input: fork, let it run for so many seconds, kill it, answer."""
    trust, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warm = plan(trust)
    aggregate([client_message("warm", 0, torch.zeros(D), 1, warm)], D, warm)  # tables are built once, before forking
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                rounds(trust, folder, writing)
            finally:
                os._exit(1)
        os.read(reading, 1)
        time.sleep(float(line))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
        print("killed" if os.WIFSIGNALED(status) else "ended", flush=True)


if __name__ == "__main__":
    main()

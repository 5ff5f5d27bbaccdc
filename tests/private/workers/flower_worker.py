"""A Flower simulation: `flower_worker.py LOCAL_OR_CENTRAL FOLDER ROUNDS`. Clients pull a vector towards a target."""

from __future__ import annotations

import json
import sys

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from prunus.private import NoisyTopK, ValueNoise
from prunus.private.federated import client_mod, server_strategy
from prunus.private.rounds import RoundPlan

D, CLIENTS = 200, 3
trust, folder, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
LEDGER = f"{folder}/ledger"


def plan() -> RoundPlan:
    if trust == "central":
        return RoundPlan(1.0, "central", NoisyTopK(50, 3.0), noise_multiplier=0.05)
    return RoundPlan(1.0, "local", NoisyTopK(50, 3.0), ValueNoise(1.0, 0.05))


def recorded(message: Message, context: object, call_next: object) -> Message:
    """Outermost: what it sees coming back is what leaves the client."""
    reply = call_next(message, context)
    if not reply.has_error():
        with open(f"{folder}/sent", "a") as file:
            file.write(f"{context.node_config['partition-id']}\n")
    return reply


client = ClientApp(mods=[recorded, client_mod(plan(), LEDGER)])


@client.train()
def train(message: Message, context: object) -> Message:
    weights = next(iter(message.content.array_records.values())).to_torch_state_dict()["w"]
    moved = {"w": weights + 0.5 * (torch.ones(D) - weights)}
    content = RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 100})})
    return Message(content=content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid: object, context: object) -> None:
    strategy = server_strategy(plan(), LEDGER, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord({"w": torch.zeros(D)}), num_rounds=rounds, train_config=ConfigRecord({})
    )
    final = result.arrays.to_torch_state_dict()["w"]
    record = {"distance": float((final - 1.0).norm()), "start": float(torch.ones(D).norm())}
    record["replies"] = [int(metrics["replies"]) for metrics in result.train_metrics_clientapp.values()]
    with open(f"{folder}/result.json", "w") as file:
        json.dump(record, file)


if __name__ == "__main__":
    run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1}})

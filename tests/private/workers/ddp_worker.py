"""One process of the tests of the communication hook; run by torchrun, writes what it saw to the file it is given."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prunus.private import BudgetSpent, Meter, NoisyTopK, ValueNoise
from prunus.private.ddp import ddp_hook, step_seconds
from prunus.select import top_indices


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4))


def batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(64, 20, generator=generator)
    return inputs, inputs[:, :4].argmax(dim=1)


def loss_of(model: nn.Module, rank: int) -> torch.Tensor:
    inputs, labels = batch(rank)
    return nn.functional.cross_entropy(model(inputs), labels)


def exact_average(k: int, rank: int, world: int) -> list[torch.Tensor]:
    """Average of each rank's exact top-k gradient, without the hook; buckets hold gradients in reverse order."""
    total = None
    for other in range(world):
        model = network()
        loss_of(model, other).backward()
        gradients = [p.grad for p in model.parameters()][::-1]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        sparse = torch.zeros_like(flat)
        kept = top_indices(flat, k)
        sparse[kept] = flat[kept]
        total = sparse if total is None else total + sparse
    parts = (total / world).split([p.numel() for p in list(network().parameters())[::-1]])
    return [part.view_as(p) for part, p in zip(parts, list(network().parameters())[::-1])][::-1]


def train(hook, rank: int, steps: int) -> dict[str, float]:
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    first = last = 0.0
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, rank)
        loss.backward()
        optimizer.step()
        first, last = (float(loss), float(loss)) if step == 0 else (first, float(loss))
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    others = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(others, weights)
    return {"first": first, "last": last, "equal": all(torch.equal(weights, other) for other in others)}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    # theta so large that nothing is swapped: the hook must give the average of exact top-k gradients.
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, ddp_hook(NoisyTopK(50, 60.0), error_feedback=False, scope="global"))
    loss_of(model, rank).backward()
    wanted = exact_average(50, rank, world)
    exact = all(torch.allclose(p.grad, w, atol=1e-6) for p, w in zip(model.parameters(), wanted))

    noisy = ddp_hook(NoisyTopK(0.1, 2.0))
    noisy_run = train(noisy, rank, 60)
    without = train(ddp_hook(NoisyTopK(0.1, 2.0), error_feedback=False), rank, 60)
    quiet = ddp_hook(NoisyTopK(0.1, 0.01), values=ValueNoise(1.0, 2.0), meter=Meter(60.0, 1e-5), insecure_seed=1)
    refused = False
    try:
        train(quiet, rank, 200)
    except (BudgetSpent, RuntimeError) as error:
        refused = "privacy budget" in str(error)
    if rank == 0:
        record = {
            "world": world,
            "exact": exact,
            "noisy": noisy_run,
            "without": without,
            "steps": noisy.record.steps,
            "bytes": noisy.record.bytes_sent,
            "dense_bytes": noisy.record.dense_bytes,
            "seconds": step_seconds(noisy.record, world),
            "spent": noisy.record.indices_spent(1e-5),
            "values_private": noisy.record.values_private,
            "refused": refused,
            "spent_with_values": quiet.record.spent(1e-5),
        }
        with open(sys.argv[1], "w") as file:
            json.dump(record, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

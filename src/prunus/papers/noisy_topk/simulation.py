"""Federated training in small: n clients on one machine, dense, plain top-k and noisy top-k side by side."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.private.index_mechanism import Rounded
from prunus.private.ledger import Ledger
from prunus.private.mechanism import NoisyTopK
from prunus.private.rounds import RoundEngine, RoundPlan
from prunus.settings.private import SimulationOptions

# So concentrated that a swap never happens: plain top-k through the same code.
_PLAIN = 300.0


class LocalClient:
    """A client with its own examples: a few steps of SGD from the weights it is sent."""

    def __init__(self, number: int, inputs: Tensor, labels: Tensor, options: SimulationOptions) -> None:
        self.number, self.inputs, self.labels, self.options = number, inputs, labels, options
        self.examples = len(labels)

    def update(self, weights: Tensor, round_: int) -> Tensor | None:
        """The change of the weights, or None where the client drops out."""
        options = self.options
        generator = torch.Generator().manual_seed(hash((options.seed, self.number, round_)) % 2**31)
        if float(torch.rand((), generator=generator)) < options.dropout:
            return None
        model = network(options)
        load_flat(model, weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
        for _ in range(options.steps):
            chosen = torch.randint(0, self.examples, (min(options.batch, self.examples),), generator=generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(self.inputs[chosen]), self.labels[chosen]).backward()
            optimizer.step()
        return flat_parameters(model) - weights


def methods(options: SimulationOptions) -> dict[str, RoundPlan]:
    """What is compared; the local ones send values without noise, and say so."""
    plain, noisy = NoisyTopK(options.k, _PLAIN), NoisyTopK(options.k, options.theta)
    local = RoundPlan(options.clip, insecure_seed=options.seed)
    central = replace(local, trust="central", noise_multiplier=options.noise_multiplier)
    return {
        "dense": local,
        "top-k": replace(local, mech=plain),
        "noisy top-k": replace(local, mech=noisy),
        "dense, central noise": central,
        "noisy top-k, central noise": replace(central, mech=noisy),
    }


def simulate(options: SimulationOptions, advance: Callable[..., None] | None = None) -> list[dict[str, Any]]:
    """One row for each method: accuracy, bytes, privacy.

    Draws are seeded, so they give no privacy: for measurements only.
    """
    from prunus.data import load

    train = load(options.data, split="train", folder=options.folder)
    test = load(options.data, split="test", folder=options.folder)
    clients = _clients(train, options)
    start = flat_parameters(network(options))
    rows = []
    with _pool(options.processes) as pool, without_advice():
        for name, plan in methods(options).items():
            with tempfile.TemporaryDirectory() as folder:
                engine = RoundEngine(start, clients, plan, Ledger(Path(folder) / "ledger", delta=options.delta))
                for _ in range(options.rounds):
                    engine.run_round(updates=_updates(pool, engine))
                    if advance:
                        advance()
                rows.append(_row(name, engine, plan, test, options))
    return rows


def _row(name: str, engine: RoundEngine, plan: RoundPlan, test: Any, options: SimulationOptions) -> dict[str, Any]:
    model = network(options)
    load_flat(model, engine.weights)
    d = engine.weights.numel()
    messages = sum(len(record.replied) for record in engine.records)
    spent = max((engine.ledger.spent(client) for client in engine.ledger.clients), default=0.0)
    index = plan.mech.privacy(d) if isinstance(plan.mech, NoisyTopK) and plan.mech.theta < _PLAIN else None
    return {
        "method": name,
        "accuracy": accuracy(model, test),
        "bytes per message": sum(record.bytes for record in engine.records) / max(messages, 1),
        "replies": messages,
        "index epsilon per swap": None if index is None or plan.trust == "central" else index.per_swap,
        "index epsilon, worst case": None if index is None or plan.trust == "central" else index.local,
        "epsilon of all rounds": spent if math.isfinite(spent) else None,
        "values private": plan.trust == "central" and plan.noise_multiplier > 0.0,
        "unit": "a client, trusted server" if plan.trust == "central" else "a client's update, against the server",
    }


def _clients(train: Any, options: SimulationOptions) -> dict[str, LocalClient]:
    inputs, labels = train.tensors
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(options.seed))
    parts = np.array_split(order.numpy(), options.clients)
    if min(len(part) for part in parts) == 0:
        raise BadInput(f"{len(labels)} examples are too few for {options.clients} clients.")
    return {str(i): LocalClient(i, inputs[part], labels[part], options) for i, part in enumerate(parts)}


@contextmanager
def _pool(processes: int) -> Iterator[Executor | None]:
    if processes < 1:
        yield None
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield pool


def _updates(pool: Executor | None, engine: RoundEngine) -> dict[str, Tensor | None] | None:
    if pool is None:
        return None
    weights = engine.weights.numpy()
    jobs = {name: pool.submit(_remote, client, weights, engine.round) for name, client in engine.clients.items()}
    found = {name: job.result() for name, job in jobs.items()}
    return {name: None if update is None else torch.from_numpy(update) for name, update in found.items()}


def _remote(client: Any, weights: np.ndarray, round_: int) -> np.ndarray | None:
    torch.set_num_threads(1)
    update = client.update(torch.from_numpy(weights.copy()), round_)
    return None if update is None else update.numpy()


# ------------------------------------------------------------------------------------------------------------- weights


def network(options: SimulationOptions) -> nn.Module:
    """The model with its first weights, the same for everybody."""
    from prunus.models import make

    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        return make(options.model_name)


def flat_parameters(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def load_flat(model: nn.Module, weights: Tensor) -> None:
    """The inverse of `flat_parameters`."""
    held = list(model.parameters())
    with torch.no_grad():
        for parameter, part in zip(held, weights.split([p.numel() for p in held])):
            parameter.copy_(part.view_as(parameter))


@contextmanager
def without_advice() -> Iterator[None]:
    """Without warnings that repeat with every step of an experiment: rounded counts, hooks, orders of Renyi curves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Rounded)
        warnings.filterwarnings("ignore", message="Full backward hook|Optimal order")
        yield


@torch.no_grad()
def accuracy(model: nn.Module, data: Any) -> float:
    """Share of labels predicted right."""
    inputs, labels = data.tensors
    model.eval()
    hits = sum(int((model(x).argmax(dim=1) == y).sum()) for x, y in zip(inputs.split(1024), labels.split(1024)))
    return hits / len(labels)

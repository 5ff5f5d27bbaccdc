"""Federated rounds without a framework: sparse updates, noise on the sum of the replies, a durable ledger.

Two trust models:

    local     each client perturbs its own index set and values; the server sees only that. Unit: a client's update.
    central   a trusted server (or secure aggregation) sums clipped updates and adds noise to the sum before anything
              leaves it. Unit: a client, in or out of the round.

Weights by examples stay inside the sensitivity: a client counts min(examples, cap) / cap <= 1 of its clipped update, so
one client moves the sum by at most the clip. Central noise goes on the sum, so fewer replies never mean less of it: the
noise of the average is noise / (sum of the weights that replied).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from prunus.errors import BadInput, UnknownName
from prunus.private.accounting import BudgetSpent, Release
from prunus.private.index_mechanism import IndexMechanism
from prunus.private.ledger import Ledger
from prunus.private.value_noise import ValueNoise

TRUST = ("local", "central")
# Grid points in one deviation of the central noise: every client rounds towards zero, so the grid must be fine.
_CENTRAL_STEPS = 1 << 13


class Client(Protocol):
    """Who takes part: `update` returns the change it proposes, flat, or None where it drops out."""

    examples: int

    def update(self, weights: Tensor, round_: int) -> Tensor | None: ...


@dataclass(frozen=True)
class RoundPlan:
    """How a round is done.

    clip: largest 2-norm of an update (sum of magnitudes for Laplace). mech: index mechanism; None sends everything.
    values: local noise on what is sent. noise_multiplier: central noise over the clip. cap: examples that count fully.
    """

    clip: float
    trust: str = "local"
    mech: IndexMechanism | None = None
    values: ValueNoise | None = None
    noise_multiplier: float = 0.0
    cap: int = 100
    server_rate: float = 1.0
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        if self.trust not in TRUST:
            raise UnknownName("trust model", self.trust, TRUST)
        if not 0.0 < self.clip < math.inf or not 0.0 <= self.noise_multiplier < math.inf or self.cap < 1:
            raise BadInput("A round needs a clip above 0, a noise multiplier of at least 0 and a cap of at least 1.")
        if self.trust == "local" and self.noise_multiplier:
            raise BadInput("Local noise is given by `values`; noise_multiplier belongs to the central model.")
        if self.values is not None and (self.trust == "central" or self.values.clip != self.clip):
            raise BadInput("Local value noise must have the clip of the plan, and the local model.")

    @property
    def central_noise(self) -> ValueNoise | None:
        """The noise of the sum. Clients put their updates on its grid, so that sums are exact and so is the noise."""
        if self.trust != "central" or self.noise_multiplier == 0.0:
            return None
        return ValueNoise(self.clip, self.noise_multiplier * self.clip, steps=_CENTRAL_STEPS)

    def release(self, d: int) -> Release:
        """What one round reveals about one client."""
        if self.trust == "central":
            # The server sees the indices but releases only the noisy sum; without noise that is everything. One client,
            # in or out, moves the sum by the clip; the noise is discrete, so its own concentrated privacy counts.
            return Release(rho=0.5 / self.noise_multiplier**2 if self.noise_multiplier else math.inf)
        index = self.mech.worst_epsilon(d) if self.mech is not None else 0.0
        if self.values is None:
            return Release(index_epsilon=index, rho=math.inf)
        if self.values.kind == "gaussian":
            return Release(index_epsilon=index, rho=self.values.rho)
        return Release(index_epsilon=index, value_epsilon=self.values.pure_epsilon)


@dataclass(frozen=True)
class Message:
    """What a client sends: indices (None: all), values, and its weight in (0, 1]."""

    client: str
    round: int
    indices: Tensor | None
    values: Tensor
    weight: float

    @property
    def bytes(self) -> int:
        """Payload: four bytes for an index, the values as they are."""
        return self.values.numel() * self.values.element_size() + (0 if self.indices is None else 4 * len(self.indices))


@dataclass
class RoundRecord:
    """What happened in one round."""

    round: int
    asked: int
    replied: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    bytes: int = 0
    noise: float = 0.0


def client_message(
    name: str, round_: int, update: Tensor, examples: int, plan: RoundPlan, seed: int | None = None
) -> Message:
    """Clip, weigh, select and perturb one update; refuses NaN and infinities."""
    flat = update.detach().reshape(-1)
    if not bool(torch.isfinite(flat).all()):
        raise BadInput(f"The update of client {name!r} contains NaN or infinite entries; it is left out.")
    weight = min(max(int(examples), 0), plan.cap) / plan.cap
    if weight == 0.0:
        raise BadInput(f"Client {name!r} has no examples; it is left out.")
    # In float64 and scaled by the largest entry: squares of huge values must not overflow.
    wide = flat.double()
    largest = float(wide.abs().max())
    norm = largest * float((wide / largest).norm()) if largest > 0.0 else 0.0
    clipped = wide * min(1.0, plan.clip / norm) if norm > 0.0 else wide
    kept = None if plan.mech is None else plan.mech.select(clipped, insecure_seed=seed)
    values = (clipped if kept is None else clipped[kept]) * (weight if plan.trust == "central" else 1.0)
    if plan.central_noise is not None:
        values = torch.from_numpy(plan.central_noise.clipped(values)).int()
    elif plan.values is not None:
        values = plan.values.release(values, None if seed is None else seed + 1).float()
    else:
        values = values.float()
    return Message(name, round_, kept, values, weight)


def usable(message: Message, d: int, plan: RoundPlan) -> bool:
    """Whether a message that came from outside can be averaged: finite, in range, inside the clip where that shows."""
    values, indices = message.values, message.indices
    if not 0.0 < message.weight <= 1.0 or not bool(torch.isfinite(values).all()):
        return False
    if indices is None:
        fits = values.numel() == d
    else:
        inside = indices.numel() == 0 or (int(indices.min()) >= 0 and int(indices.max()) < d)
        fits = values.shape == indices.shape and inside and indices.unique().numel() == indices.numel()
    central = plan.central_noise
    if fits and central is not None:
        fits = not values.is_floating_point() and float(values.double().norm()) <= central.clip / central.grid
    return fits


def aggregate(messages: Iterable[Message], d: int, plan: RoundPlan, seed: int | None = None) -> tuple[Tensor, float]:
    """(average update, noise standard deviation of each of its coordinates) of those who replied; needs one at least.

    Local: the server weighs what it received; the weights are metadata. Central: the sum gets its noise here.
    """
    central = plan.central_noise
    total = torch.zeros(d, dtype=torch.float64 if central is None else torch.int64)
    weights = 0.0
    for message in messages:
        values = message.values.to(total.dtype)
        if plan.trust == "local":
            values = values * message.weight
        if message.indices is None:
            total += values
        else:
            total.index_add_(0, message.indices, values)
        weights += message.weight
    if weights == 0.0:
        raise BadInput("Nobody replied, so there is nothing to average; skip the round.")
    if central is None:
        return (total / weights).float(), 0.0
    noisy = torch.from_numpy(central.add(total.numpy(), seed)).double() * central.grid
    return (noisy / weights).float(), central.scale / weights


class RoundEngine:
    """Runs rounds over clients; every release is in the ledger before it is on the wire.

    wire: called with each message (local) or each released average (central) at the moment it leaves its owner.
    """

    def __init__(
        self,
        weights: Tensor,
        clients: Mapping[str, Client],
        plan: RoundPlan,
        ledger: Ledger,
        wire: Callable[[Any], None] | None = None,
    ) -> None:
        if not clients:
            raise BadInput("A round needs at least one client.")
        self.weights = weights.detach().reshape(-1).float().clone()
        self.clients, self.plan, self.ledger = dict(clients), plan, ledger
        self._wire = wire or (lambda message: None)
        self.round = ledger.rounds
        self.records: list[RoundRecord] = []

    def run_round(
        self, asked: Iterable[str] | None = None, updates: Mapping[str, Tensor | None] | None = None
    ) -> RoundRecord:
        """One round over the named clients (all by default); a round without replies changes nothing.

        `updates` holds what clients computed elsewhere (in other processes); the others are asked here.
        """
        names = list(self.clients if asked is None else asked)
        record = RoundRecord(self.round, len(names))
        release = self.plan.release(self.weights.numel())
        messages = [message for name in names if (message := self._message(name, release, record, updates)) is not None]
        if messages and self.plan.trust == "central":
            # Charged before the sum is released; who cannot afford it was left out above.
            self.ledger.charge_all([message.client for message in messages], self.round, release)
        if messages:
            average, record.noise = aggregate(messages, self.weights.numel(), self.plan, self._seed("server"))
            if self.plan.trust == "central":
                self._wire((self.round, average, record.noise))
            self.weights += self.plan.server_rate * average
        record.bytes = sum(message.bytes for message in messages)
        self.records.append(record)
        self.round += 1
        return record

    def _message(
        self, name: str, release: Release, record: RoundRecord, updates: Mapping[str, Tensor | None] | None
    ) -> Message | None:
        client = self.clients[name]
        if not self.ledger.can_afford(name, release):
            record.refused[name] = "its privacy budget is spent"
            return None
        known = updates is not None and name in updates
        update = updates[name] if updates and known else client.update(self.weights.clone(), self.round)
        if update is None:
            record.dropped.append(name)
            return None
        try:
            message = client_message(name, self.round, update, client.examples, self.plan, self._seed(name))
            if self.plan.trust == "local":
                self.ledger.charge(name, self.round, release)
                self._wire(message)
        except (BadInput, BudgetSpent) as error:
            record.refused[name] = str(error)
            return None
        record.replied.append(name)
        return message

    def _seed(self, name: str) -> int | None:
        if self.plan.insecure_seed is None:
            return None
        return zlib.crc32(f"{self.plan.insecure_seed} {self.round} {name}".encode())

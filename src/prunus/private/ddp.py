"""A communication hook for DistributedDataParallel: each process sends only a randomly perturbed top set.

    model = DistributedDataParallel(model)
    hook = ddp_hook(NoisyTopK(0.01, 2.64))
    model.register_comm_hook(None, hook)
    ...
    hook.record.bytes_sent, hook.record.dense_bytes, hook.record.spent(delta=1e-5)

Works with gloo and NCCL: one all-gather of (values, indices) replaces the all-reduce. k is per bucket; for one k over
the whole model give DistributedDataParallel a `bucket_cap_mb` that holds it, and the hook `scope="global"`, which
refuses to run on several buckets.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from prunus.errors import BadInput, UnknownName
from prunus.private.accounting import Accountant, Meter, Release
from prunus.private.index_mechanism import IndexMechanism
from prunus.private.privacy import UNIT
from prunus.private.randomness import source
from prunus.private.value_noise import ValueNoise

SCOPES = ("bucket", "global")


@dataclass
class Traffic:
    """What this process sent, and what that told the others.

    bytes_sent, dense_bytes: payload of this process so far, and that of a dense gradient of the same type.
    indices: releases of index sets, worst case between any two gradients. values_private: whether value noise is on.
    """

    steps: int = 0
    bytes_sent: int = 0
    dense_bytes: int = 0
    values_private: bool = False
    unit: str = UNIT
    releases: Accountant = field(default_factory=Accountant)

    def spent(self, delta: float) -> float:
        """Epsilon so far, indices and values; infinite where values went out without noise."""
        return self.releases.epsilon(delta)

    def indices_spent(self, delta: float) -> float:
        """Epsilon of the index sets alone."""
        only = Accountant()
        for release, count in self.releases.releases.items():
            only.add(Release(index_epsilon=release.index_epsilon), count)
        return only.epsilon(delta)


def ddp_hook(
    mech: IndexMechanism,
    *,
    error_feedback: bool = True,
    scope: str = "bucket",
    values: ValueNoise | None = None,
    meter: Meter | None = None,
    insecure_seed: int | None = None,
) -> Callable[..., Any]:
    """A hook for `register_comm_hook(None, hook)`; `hook.record` holds the traffic and the privacy spent.

    Args:
        mech: what chooses the coordinates that are sent.
        error_feedback: add what was not sent to the next step's gradient. The residual depends on all steps so far, so
            the guarantee of a step is about the corrected gradient, and only the composition over all steps counts.
        scope: "bucket" keeps k of every bucket, "global" insists on one bucket.
        values: noise on the values; without it they are not private.
        meter: a budget; a step that would pass it is refused before anything is sent.
        insecure_seed: repeatable choices and noise, for tests; gives no privacy.

    Returns:
        The hook, a function of (state, bucket).

    Raises:
        BadInput: `mech` is no mechanism, or the seed cannot be used.
        UnknownName: There is no such scope.

    Example:
        >>> hook = prunus.private.ddp_hook(prunus.private.NoisyTopK(k=0.01, theta=2.0))
        >>> hook.record.steps
        0
    """
    if not isinstance(mech, IndexMechanism):
        raise BadInput(f"{mech!r} is no mechanism: give a NoisyTopK or TwoLevelTopK.")
    if scope not in SCOPES:
        raise UnknownName("scope", scope, SCOPES)
    source(insecure_seed)  # refuses a bad seed now rather than in the middle of a backward pass
    sender = _Sender(mech, error_feedback, scope, values, meter, insecure_seed)

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        return sender.send(bucket)

    hook.record = sender.record  # type: ignore[attr-defined]
    return hook


class _Sender:
    def __init__(
        self,
        mech: IndexMechanism,
        error_feedback: bool,
        scope: str,
        values: ValueNoise | None,
        meter: Meter | None,
        insecure_seed: int | None,
    ) -> None:
        self.mech, self.feedback, self.scope = mech, error_feedback, scope
        self.values, self.meter = values, meter
        self.record = Traffic(values_private=values is not None)
        self._seeds = None if insecure_seed is None else itertools.count(insecure_seed * 1_000_003)
        # By parameter, as buckets are rebuilt after the first step.
        self._residuals: dict[Tensor, Tensor] = {}

    def _seed(self) -> int | None:
        return None if self._seeds is None else next(self._seeds) * 64 + dist.get_rank()

    def send(self, bucket: Any) -> Any:
        """Spend, select, gather, and average: the future of the bucket's new content."""
        if self.scope == "global" and not (bucket.is_last() and bucket.index() == 0):
            raise BadInput(
                "A global k needs all gradients in one bucket: give DistributedDataParallel a larger bucket."
            )
        buffer = bucket.buffer()
        corrected = self._corrected(bucket, buffer) if self.feedback else buffer.detach()
        mech = dataclasses.replace(self.mech, k=self.mech.count_in_group(buffer.numel()))
        self._spend(mech, buffer.numel())
        kept = mech.select(corrected, insecure_seed=self._seed())
        exact = corrected[kept]
        if self.feedback:
            residual = corrected.clone()
            residual[kept] = 0.0
            self._remember(bucket, residual)
        sent = exact if self.values is None else self.values.release(exact, self._seed())
        return self._gather(buffer, kept, sent, bucket.is_last())

    def _spend(self, mech: IndexMechanism, d: int) -> None:
        index = mech.worst_epsilon(d)
        if self.values is None:
            release = Release(index_epsilon=index, rho=math.inf)
        elif self.values.kind == "gaussian":
            release = Release(index_epsilon=index, rho=self.values.rho)
        else:
            release = Release(index_epsilon=index, value_epsilon=self.values.pure_epsilon)
        if self.meter is not None:
            self.meter.spend(release)
        self.record.releases.add(release)

    def _gather(self, buffer: Tensor, kept: Tensor, sent: Tensor, last: bool) -> Any:
        narrow = torch.int32 if buffer.numel() < 1 << 31 else torch.int64
        message = torch.cat((sent.contiguous().view(torch.uint8), kept.to(narrow).view(torch.uint8)))
        world = dist.get_world_size()
        received = [torch.empty_like(message) for _ in range(world)]
        split = sent.numel() * sent.element_size()
        self.record.bytes_sent += message.numel()
        self.record.dense_bytes += buffer.numel() * buffer.element_size()
        self.record.steps += int(last)

        def average(_: Any) -> Tensor:
            buffer.zero_()
            for other in received:
                values = other[:split].clone().view(buffer.dtype)
                buffer.index_add_(0, other[split:].clone().view(narrow), values)
            return buffer.div_(world)

        return dist.all_gather(received, message, async_op=True).get_future().then(average)

    def _corrected(self, bucket: Any, buffer: Tensor) -> Tensor:
        parts = [
            self._residuals[p].reshape(-1) if p in self._residuals else torch.zeros(p.numel(), device=buffer.device)
            for p in bucket.parameters()
        ]
        return buffer.detach() + torch.cat(parts).to(buffer.dtype)

    def _remember(self, bucket: Any, residual: Tensor) -> None:
        held = list(bucket.parameters())
        for parameter, part in zip(held, residual.split([p.numel() for p in held])):
            self._residuals[parameter] = part


def step_seconds(traffic: Traffic, world: int, bits_per_second: float = 1e9) -> dict[str, float]:
    """Time on the wire for one step: our all-gather against the dense ring all-reduce it replaces."""
    steps = max(traffic.steps, 1)
    ours = traffic.bytes_sent / steps * (world - 1)
    dense = traffic.dense_bytes / steps * 2 * (world - 1) / world
    return {"sparse": 8.0 * ours / bits_per_second, "dense": 8.0 * dense / bits_per_second}

"""Flower (extra `federated`) on the round engine's parts: a client mod and a server strategy.

    plan = RoundPlan(clip=1.0, mech=NoisyTopK(0.01, 2.64), values=ValueNoise(1.0, 0.5))
    client_app = ClientApp(mods=[client_mod(plan, "ledger.txt")])
    strategy = server_strategy(plan, "ledger.txt", min_available_nodes=10)

The mod turns a client's trained weights into a clipped, sparse, noisy update, and writes the release to the ledger
before it returns it: a client whose budget is spent answers with an error, and nothing leaves it. The strategy
averages what really arrived and adds central noise where the plan asks for it. Everything else (sampling of clients,
evaluation) is Flower's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunus.errors import BadInput, MissingExtra
from prunus.private.ledger import Ledger
from prunus.private.rounds import Message, RoundPlan, aggregate, client_message, usable

_EXAMPLES = "num-examples"


def client_mod(
    plan: RoundPlan, ledger: str | os.PathLike[str], epsilon: float = float("inf"), delta: float = 1e-5
) -> Callable[..., Any]:
    """A Flower mod: `mod(message, context, call_next)`. The wrapped app replies with its full weights and num-examples.

    Args:
        ledger: file of the charges in the local model; clients on one machine may share it.
        epsilon, delta: budget of each client.
    """
    flower = _flower()

    def mod(message: Any, context: Any, call_next: Any) -> Any:
        if message.metadata.message_type != flower.MessageType.TRAIN:
            return call_next(message, context)
        before = _flat(_only_arrays(message.content))
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        name = str(context.node_config.get("partition-id", message.metadata.dst_node_id))
        round_ = int(next(iter(message.content.config_records.values())).get("server-round", 0))
        update = _flat(_only_arrays(reply.content)) - before
        sparse = client_message(name, round_, update, _examples(reply.content), plan)
        if plan.trust == "local":
            Ledger(ledger, epsilon, delta).charge(name, round_, plan.release(before.numel()))
        key = next(iter(reply.content.array_records))
        parts = {"values": flower.Array(sparse.values.numpy())}
        if sparse.indices is not None:
            parts["indices"] = flower.Array(sparse.indices.to(torch.int32).numpy())
        reply.content[key] = flower.ArrayRecord(parts)
        return reply

    return mod


def server_strategy(
    plan: RoundPlan,
    ledger: str | os.PathLike[str],
    epsilon: float = float("inf"),
    delta: float = 1e-5,
    **fedavg: Any,
) -> Any:
    """Flower's FedAvg with the plan's aggregation; `fedavg` are its own options.

    In the central model the clients that replied are charged before the noisy average is handed out.
    """
    flower = _flower()

    class PrivateFedAvg(flower.FedAvg):  # type: ignore[misc, name-defined]
        """FedAvg over sparse private updates."""

        current: Any = None

        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            self.current = arrays
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
            valid, _ = self._check_and_log_replies(replies, is_train=True)
            d = _flat(self.current).numel()
            received = [_received(reply, server_round, plan) for reply in valid]
            messages = [message for message in received if usable(message, d, plan)]
            if not messages:
                return None, None
            if plan.trust == "central":
                names = [message.client for message in messages]
                Ledger(ledger, epsilon, delta).charge_all(names, server_round, plan.release(d))
            average, noise = aggregate(messages, d, plan)
            arrays = _moved(self.current, plan.server_rate * average, flower)
            sent = sum(message.bytes for message in messages)
            metrics = {"replies": len(messages), "bytes": sent, "noise": float(noise)}
            return arrays, flower.MetricRecord(metrics)

    return PrivateFedAvg(**fedavg)


def _received(reply: Any, round_: int, plan: RoundPlan) -> Message:
    arrays = _only_arrays(reply.content)
    indices = torch.from_numpy(np.array(arrays["indices"].numpy())).long() if "indices" in arrays else None
    values = torch.from_numpy(np.array(arrays["values"].numpy()))
    weight = min(_examples(reply.content), plan.cap) / plan.cap
    return Message(str(reply.metadata.src_node_id), round_, indices, values, weight)


def _only_arrays(content: Any) -> Any:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise BadInput(f"A private round needs messages with one array record, got {len(records)}.")
    return records[0]


def _examples(content: Any) -> int:
    for record in content.metric_records.values():
        if _EXAMPLES in record:
            return int(record[_EXAMPLES])
    raise BadInput(f"A client's reply must name how many examples it used, as the metric {_EXAMPLES!r}.")


def _flat(arrays: Any) -> Tensor:
    """The floating-point arrays as one vector, in the record's order."""
    parts = [array.numpy() for array in arrays.values()]
    floats = [torch.from_numpy(np.array(part)).double().reshape(-1) for part in parts if part.dtype.kind == "f"]
    if not floats:
        raise BadInput("The model has no floating-point arrays to train.")
    return torch.cat(floats)


def _moved(arrays: Any, step: Tensor, flower: Any) -> Any:
    """The arrays with a step added to the floating-point ones."""
    moved, start = {}, 0
    for name, array in arrays.items():
        part = np.array(array.numpy())
        if part.dtype.kind == "f":
            change = step[start : start + part.size].numpy().reshape(part.shape)
            part = (part + change).astype(part.dtype)
            start += part.size
        moved[name] = flower.Array(part)
    return flower.ArrayRecord(moved)


class _Flower:
    """The names of Flower that are used here."""

    def __init__(self) -> None:
        from flwr.app import Array, ArrayRecord, MessageType, MetricRecord
        from flwr.serverapp.strategy import FedAvg

        self.Array, self.ArrayRecord, self.MetricRecord = Array, ArrayRecord, MetricRecord
        self.MessageType, self.FedAvg = MessageType, FedAvg


def _flower() -> Any:
    try:
        return _Flower()
    except ImportError:
        raise MissingExtra("flwr", "federated", "Federated training with Flower") from None

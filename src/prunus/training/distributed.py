"""Data-parallel training over processes (torch.distributed): each reads its share of a batch, gradients are summed.

Nothing wraps the model: when a process group is running, `fit` averages gradients itself, so that masks, scores and
penalties work as in one process. All ranks hold the same weights and the same masks, and that is checked every epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from prunus.errors import RunFailed
from prunus.storage import digest


def start_from_environment() -> bool:
    """Join the process group that `torchrun` announces; False where there is none. The caller ends it with `stop`."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or not dist.is_available() or dist.is_initialized():
        return False
    dist.init_process_group("gloo")
    return True


def stop() -> None:
    """Leave the process group."""
    dist.destroy_process_group()


def place() -> tuple[int, int]:
    """(rank, number of processes); (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all ranks, in one message; a rank without a gradient counts as zero."""
    held = list(parameters)
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in held])
    dist.all_reduce(flat)
    for parameter, part in zip(held, flat.split([p.numel() for p in held])):
        parameter.grad = part.view_as(parameter).clone()


def broadcast_buffers(model: nn.Module) -> None:
    """Batch-norm statistics of rank 0 to all ranks."""
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


def sum_numbers(*numbers: float) -> list[float]:
    """Each number added over the ranks."""
    total = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()


def require_equal(tensors: Mapping[str, Tensor], what: str) -> None:
    """Stop where the ranks disagree about `tensors`, naming the first rank that differs from rank 0."""
    own = torch.frombuffer(bytearray.fromhex(digest(tensors)), dtype=torch.uint8)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    for rank, other in enumerate(found):
        if not torch.equal(other, found[0]):
            raise RunFailed(
                f"{what} of rank {rank} differ from those of rank 0: start all processes with the same seed and model."
            )

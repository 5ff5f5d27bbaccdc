from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from prunus.errors import RunFailed
from prunus.training import (
    FitConfig,
    GradualOptions,
    Regrowth,
    find_ticket,
    fit,
    prune_gradually,
    random_ticket,
)
from support.training import Stop, StopAt, conv_net, digits, fc, same_bytes


def _process(rank: int, world: int, folder: str, job: Callable[[int, Path], dict[str, torch.Tensor]]) -> None:
    torch.set_num_threads(1)
    place = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        save_file({name: value.contiguous() for name, value in job(rank, place).items()}, place / f"{rank}.safetensors")
    except Exception:
        (place / f"{rank}.error").write_text(traceback.format_exc())
        raise
    finally:
        dist.destroy_process_group()


def together(folder: Path, job: Callable[[int, Path], dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Run `job` in two real processes; returns what each gave."""
    context = multiprocessing.get_context("fork")
    folder.mkdir(exist_ok=True)
    (folder / "meet").unlink(missing_ok=True)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # imports much on first use: once, before the fork
    processes = [context.Process(target=_process, args=(rank, 2, str(folder), job)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    for rank, process in enumerate(processes):
        error = folder / f"{rank}.error"
        assert process.exitcode == 0, error.read_text() if error.exists() else f"rank {rank}: {process.exitcode}"
    return [load_file(folder / f"{rank}.safetensors") for rank in range(2)]


def plain(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    model = fc("64-32-10")
    masks = random_ticket(model, 0.5)
    history = fit(model, digits(200)[0], "3ep", FitConfig(batch_size=33), masks=masks)
    return {**model.state_dict(), "loss": torch.tensor([record.loss for record in history])}


def test_two_processes_walk_as_one(tmp_path: Path) -> None:
    """Equal bytes on both ranks; and the walk of one process up to rounding, with an odd batch size."""
    first, second = together(tmp_path, plain)
    assert same_bytes(first, second)
    alone = plain(0, tmp_path)
    for name, value in alone.items():
        assert torch.allclose(value, first[name], atol=1e-4), name


def everything(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    """Batch norm, dropout, tickets with redrawn weights, growing masks with regrowth."""
    train, _ = digits(200)
    found: dict[str, torch.Tensor] = {}
    ticket = find_ticket(conv_net(), train, period=3, rate=0.5, length="2ep", seed=1)
    grown = conv_net()
    options = GradualOptions(regrow=Regrowth("rigl", 0.3, "3it"))
    masks = prune_gradually(grown, train, 0.6, "balanced:4", "linear", "3ep", options=options)
    found |= {f"ticket.{name}": value for name, value in ticket.model.state_dict().items()}
    found |= {f"ticket.mask.{name}": value for name, value in ticket.masks.items()}
    found |= {f"grown.{name}": value for name, value in grown.state_dict().items()}
    return found | {f"grown.mask.{name}": value for name, value in masks.items()}


def test_masks_and_weights_are_the_same_on_both_ranks(tmp_path: Path) -> None:
    first, second = together(tmp_path, everything)
    assert same_bytes(first, second)
    assert any(name.startswith("grown.mask") for name in first)


def stopped_and_resumed(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    train, _ = digits(200)
    whole, broken = conv_net(), conv_net()
    config = FitConfig(batch_size=40, seed=3)
    fit(whole, train, "3ep", config)
    kept = config.replace(folder=folder / "run", resume=True, every="2it")
    with pytest.raises(Stop):
        fit(broken, train, "3ep", kept.replace(callbacks=(StopAt(7),)))
    dist.barrier()
    again = conv_net(seed=8)
    fit(again, train, "3ep", kept)
    assert same_bytes(whole.state_dict(), again.state_dict())
    return dict(again.state_dict())


def test_a_stopped_pair_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    first, second = together(tmp_path, stopped_and_resumed)
    assert same_bytes(first, second)


def different(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    with pytest.raises(RunFailed, match="rank 1 differ from those of rank 0"):
        fit(fc(seed=rank), digits(64)[0], "1ep")
    model = fc()
    with pytest.raises(RunFailed, match="The masks of rank 1"):
        fit(model, digits(64)[0], "1ep", masks=_zero_masks(model, rank))
    return {"done": torch.ones(1)}


def _zero_masks(model: torch.nn.Module, rank: int) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # the weights agree whatever the masks say
    return random_ticket(model, 0.5, seed=rank)


def test_ranks_that_disagree_are_stopped(tmp_path: Path) -> None:
    assert all(bool(found["done"]) for found in together(tmp_path, different))

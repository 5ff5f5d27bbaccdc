"""Memory that fused graphs use again: places never clash, and threads do not disturb each other."""

from __future__ import annotations

import copy
import threading

import torch

import prunus
from prunus.sparse import SparseConv2d, compress
from prunus.sparse._arena import Arena, assign_places


def test_values_that_live_together_never_share_a_place() -> None:
    generator = torch.Generator().manual_seed(41)
    for _ in range(200):
        starts = torch.randperm(40, generator=generator)[:15].sort().values.tolist()
        lives = [(start, start + int(torch.randint(0, 12, (1,), generator=generator))) for start in starts]
        places = assign_places(lives)
        most = max(sum(a <= moment <= b for a, b in lives) for moment in range(60))
        assert max(places) + 1 == most  # and no more places than are needed at once
        for i, (a, b) in enumerate(lives):
            for j, (c, d) in enumerate(lives[:i]):
                assert places[i] != places[j] or b < c or d < a


def test_an_arena_keeps_and_grows_its_places() -> None:
    arena = Arena()
    first = arena.take(0, 10)
    assert arena.take(0, 5) is first
    assert arena.take(1, 10) is not first
    assert arena.take(0, 20).numel() == 20
    assert copy.deepcopy(arena).take(0, 20) is not arena.take(0, 20)


def fused_net() -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    model = prunus.models.make("resnet20").eval()
    prunus.prune(model, 0.9, pattern="balanced:16", exclude=("linear",))
    return model, compress(model, select="always", fuse=True)


def test_a_fused_network_passes_results_in_place() -> None:
    model, fast = fused_net()
    inside = [module for module in fast.modules() if isinstance(module, SparseConv2d) and module.arena is not None]
    assert len(inside) > 10
    assert len({id(module.arena) for module in inside}) == 1
    assert len({module.place for module in inside}) <= 3
    with torch.no_grad():
        for shape in ((2, 3, 32, 32), (1, 3, 40, 24), (3, 3, 17, 21), (2, 3, 32, 32)):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
            first = fast(x)
            fast(torch.randn(shape))
            torch.testing.assert_close(first, model(x), rtol=1e-4, atol=1e-4)  # results are the caller's own


def test_several_threads_run_one_fused_network() -> None:
    _, fast = fused_net()
    inputs = [torch.randn(1 + number % 2, 3, 32, 32) for number in range(4)]
    with torch.no_grad():
        expected = [fast(x) for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(10):
                if not torch.equal(fast(inputs[number]), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

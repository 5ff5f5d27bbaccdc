"""DP-SGD on kept coordinates: masks before clipping, noise only where kept, and an epsilon that is never too small."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prunus.contract import Masks
from prunus.errors import BadInput
from prunus.private import NoisyTopK, TwoLevelTopK
from prunus.private.accounting import Accountant, BudgetSpent, Release
from prunus.private.dpsgd import Falling, PrivateOptions, WarmUp, make_private

pytest.importorskip("dp_accounting", reason="needs the extra 'private'")
opacus = pytest.importorskip("opacus", reason="needs the extra 'dp'")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook"),
    pytest.mark.filterwarnings("ignore:Secure RNG"),
    pytest.mark.filterwarnings("ignore:k d = "),
]


def _parts(count: int = 40, batch: int = 8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    data = TensorDataset(torch.randn(count, 6), torch.randint(0, 3, (count,)))
    loader = DataLoader(data, batch_size=batch)
    return model, torch.optim.SGD(model.parameters(), lr=0.5), loader


def _private(mech, noise: float = 1.0, clip: float = 0.1, keep=None, **options):
    model, optimizer, loader = _parts()
    options = {"insecure_seed": 3, "poisson": False} | options
    return make_private(
        model, optimizer, loader, mech, noise_multiplier=noise, clip=clip, keep=keep, options=PrivateOptions(**options)
    )


def _step(private, inputs, labels) -> None:
    private.optimizer.zero_grad()
    nn.functional.cross_entropy(private.model(inputs), labels).backward()
    private.optimizer.step()


def _by_hand(model, inputs, labels, masks, clip: float) -> list[torch.Tensor]:
    """Masked, clipped, summed gradients: a slow loop over the examples."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in zip(inputs, labels):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        parts = [p.grad * mask for p, mask in zip(model.parameters(), masks)]
        norm = math.sqrt(sum(float(part.square().sum()) for part in parts))
        factor = min(1.0, clip / (norm + 1e-6))
        total = [a + factor * b for a, b in zip(total, parts)]
    return total


@pytest.mark.parametrize("mech", [NoisyTopK(0.3, 1.0), TwoLevelTopK(0.3, 2.0), "random", "dense"], ids=str)
def test_a_step_is_the_slow_loop(mech) -> None:
    private = _private(mech, noise=0.0, keep=0.3 if mech == "random" else None)
    slow = copy.deepcopy(_parts()[0])
    inputs, labels = next(iter(private.loader))
    before = [p.detach().clone() for p in private.model.parameters()]
    _step(private, inputs, labels)
    masks = private.optimizer.last_masks or [torch.ones_like(p) for p in before]
    kept = sum(int(mask.sum()) for mask in masks)
    assert kept == (round(0.3 * 123) if mech != "dense" else 123)
    expected = _by_hand(slow, inputs, labels, masks, clip=0.1)
    for old, new, gradient in zip(before, private.model.parameters(), expected):
        assert torch.allclose(new, old - 0.5 * gradient / 8, atol=1e-6)


def test_noise_falls_only_on_kept_coordinates_and_has_its_size() -> None:
    private = _private("random", noise=50.0, clip=0.1, keep=0.5)
    inputs, labels = next(iter(private.loader))
    seen = []
    for _ in range(40):
        before = [p.detach().clone() for p in private.model.parameters()]
        _step(private, inputs, labels)
        for old, p, mask in zip(before, private.model.parameters(), private.optimizer.last_masks):
            moved = (p.detach() - old)[mask] * 8 / 0.5
            assert torch.equal(p.detach()[~mask], old[~mask])
            seen.append(moved)
    noise = torch.cat(seen)
    # 2460 draws with standard deviation 5; the clipped sum adds at most 0.8 in all. 5 standard errors of the spread.
    assert float(noise.std()) == pytest.approx(5.0, rel=5 / math.sqrt(2 * noise.numel()) + 0.02)


@pytest.mark.parametrize("mech", [NoisyTopK(1.0, 1.0), "dense"], ids=str)
def test_keeping_everything_is_opacus(mech) -> None:
    """The same noise gives the same step as Opacus's own optimizer, bit for bit."""
    private = _private(mech, noise=1.3)
    model, optimizer, loader = _parts()
    engine = opacus.PrivacyEngine(accountant="rdp")
    theirs, dp, _ = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.3,
        max_grad_norm=0.1,
        poisson_sampling=False,
        noise_generator=torch.Generator().manual_seed(3),
    )
    for inputs, labels in loader:
        _step(private, inputs, labels)
        dp.zero_grad()
        nn.functional.cross_entropy(theirs(inputs), labels).backward()
        dp.step()
    for ours, other in zip(private.model.parameters(), theirs.parameters()):
        assert torch.equal(ours, other)


def test_accounting_joins_indices_and_values_and_is_not_below_opacus() -> None:
    model, optimizer, loader = _parts(count=200, batch=10)
    mech = NoisyTopK.from_local_epsilon(k=0.3, epsilon=0.05, d=123)
    options = PrivateOptions(delta=1e-3, insecure_seed=1)
    private = make_private(model, optimizer, loader, mech, noise_multiplier=1.5, clip=1.0, options=options)
    for inputs, labels in private.loader:
        _step(private, inputs, labels)
    steps = private.optimizer.steps_done
    release = private.optimizer.next_release()
    assert (release.noise_multiplier, release.sampling) == (1.5, 1 / 20)
    assert release.index_epsilon == pytest.approx(0.05)
    spent = private.optimizer.epsilon
    prv = opacus.accountants.PRVAccountant()
    prv.history = [(1.5, 1 / 20, steps)]
    dense = prv.get_epsilon(delta=1e-3, eps_error=0.005)
    values = Accountant({Release(0.0, 1.5, 1 / 20): steps}).epsilon(1e-3)
    assert dense - 0.006 < values < dense + 0.05
    assert values < spent  # `dense` itself is an upper bound, up to its error of 0.005 above the values alone


def test_a_run_stops_before_its_budget() -> None:
    private = _private("random", noise=2.0, keep=0.5, epsilon=6.0, delta=1e-3)
    inputs, labels = next(iter(private.loader))
    with pytest.raises(BudgetSpent, match="nothing was released"):
        for _ in range(1000):
            before = [p.detach().clone() for p in private.model.parameters()]
            _step(private, inputs, labels)
    assert 0 < private.optimizer.steps_done < 1000
    assert private.optimizer.epsilon <= 6.0
    assert all(torch.equal(a, b) for a, b in zip(before, private.model.parameters()))


def test_enormous_index_costs_are_counted_in_full_unless_metric_privacy_is_chosen() -> None:
    assert _private(NoisyTopK(0.3, 2.0)).optimizer.next_release().index_epsilon == pytest.approx(4.0 * 37)
    assert _private(NoisyTopK(0.3, 2.0), swaps=2).optimizer.next_release().index_epsilon == pytest.approx(8.0)
    grouped = _private(NoisyTopK(0.25, 2.0), group=64).optimizer.next_release().index_epsilon
    assert grouped == pytest.approx(4.0 * (16 + 15))
    assert _private("random", keep=0.1).optimizer.next_release().index_epsilon == 0.0


def test_schedule_falls_linearly() -> None:
    private = _private("random", noise=0.1, keep=Falling(0.2, steps=4, start=1.0))
    inputs, labels = next(iter(private.loader))
    shares = []
    for _ in range(6):
        _step(private, inputs, labels)
        shares.append(sum(int(mask.sum()) for mask in private.optimizer.last_masks))
    assert shares == [round(f * 123) for f in (1.0, 0.8, 0.6, 0.4, 0.2, 0.2)]


def test_a_schedule_is_counted_upwards() -> None:
    """Along a schedule index costs are rounded up by at most 2 %, so that few kinds of steps are composed."""
    mech = NoisyTopK(0.5, 0.001)
    private = _private(mech, noise=4.0, keep=Falling(0.3, steps=20, start=0.9), epsilon=60.0, delta=1e-3)
    inputs, labels = next(iter(private.loader))
    for step in range(10):
        fraction = 0.9 - 0.6 * step / 20
        m = round(fraction * 123)
        exact = 2 * 0.001 * min(m, 123 - m)
        assert exact <= private.optimizer.next_release().index_epsilon <= 1.0201 * exact
        _step(private, inputs, labels)


def test_warm_up_masks_come_from_noisy_gradients_and_stay() -> None:
    private = _private(WarmUp(steps=3, k=0.2), noise=0.5)
    inputs, labels = next(iter(private.loader))
    held = []
    for _ in range(6):
        _step(private, inputs, labels)
        held.append(private.optimizer.last_masks)
    assert held[:3] == [None] * 3
    assert sum(int(mask.sum()) for mask in held[3]) == round(0.2 * 123)
    assert all(torch.equal(a, b) for a, b in zip(held[3], held[5]))


def test_warm_up_by_squares_is_the_order_of_tp_topk() -> None:
    """The noise floor that TP-TopK takes off is one number for all coordinates, so it changes no order."""
    private = _private(WarmUp(steps=4, k=0.2, by="squares"), noise=0.5)
    inputs, labels = next(iter(private.loader))
    squares = torch.zeros(123)
    for _ in range(4):
        _step(private, inputs, labels)
        squares += torch.cat([p.grad.reshape(-1) for p in private.model.parameters()]).square()
    _step(private, inputs, labels)
    score = squares / 4 - (0.5 * 0.1 / 8) ** 2
    expected = torch.zeros(123, dtype=torch.bool)
    expected[score.topk(round(0.2 * 123)).indices] = True
    assert torch.equal(torch.cat([mask.reshape(-1) for mask in private.optimizer.last_masks]), expected)
    with pytest.raises(BadInput, match="ranking of a warm-up"):
        WarmUp(3, 0.2, by="cubes")


@pytest.mark.parametrize("mech", ["dense", "random", WarmUp(steps=1, k=0.3)], ids=str)
def test_split_batches_are_one_step(mech) -> None:
    """With a BatchMemoryManager the same noise gives the same weights, and the budget is charged once a batch."""
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    ends = []
    for size in (8, 3):
        private = _private(mech, noise=1.3, keep=0.4 if mech == "random" else None)
        with BatchMemoryManager(
            data_loader=private.loader, max_physical_batch_size=size, optimizer=private.optimizer
        ) as loader:
            for inputs, labels in loader:
                assert len(inputs) <= size
                _step(private, inputs, labels)
        assert private.optimizer.steps_done == 5
        assert sum(private.optimizer.meter.accountant.releases.values()) == 5
        ends.append([p.detach().clone() for p in private.model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*ends))


def test_a_choice_that_looks_at_the_batch_refuses_its_parts() -> None:
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    private = _private(NoisyTopK(0.3, 1.0))
    manager = BatchMemoryManager(data_loader=private.loader, max_physical_batch_size=3, optimizer=private.optimizer)
    with manager as loader, pytest.raises(BadInput, match="cannot be split"):
        for inputs, labels in loader:
            _step(private, inputs, labels)
    assert private.optimizer.steps_done == 0


def test_fixed_masks_hold() -> None:
    model = _parts()[0]
    masks = Masks({"0.weight": torch.rand(12, 6) < 0.5})
    private = _private(masks, noise=1.0)
    inputs, labels = next(iter(private.loader))
    _step(private, inputs, labels)
    old = model.state_dict()["0.weight"]
    new = next(iter(private.model.parameters())).detach()
    assert torch.equal(new[~masks["0.weight"]], old[~masks["0.weight"]])
    assert not torch.equal(new, old)


def test_an_empty_poisson_batch_is_a_step_of_pure_noise() -> None:
    private = _private(NoisyTopK(0.3, 0.5), noise=1.0)
    before = [p.detach().clone() for p in private.model.parameters()]
    _step(private, torch.randn(0, 6), torch.empty(0, dtype=torch.long))
    moved = sum(int((a != b).sum()) for a, b in zip(before, private.model.parameters()))
    assert moved == round(0.3 * 123)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"mech": "best"}, "kind of mask"),
        ({"mech": 3}, "chooses no coordinates"),
        ({"mech": NoisyTopK(5, 1.0)}, "fraction"),
        ({"noise": -1.0}, "noise_multiplier"),
        ({"clip": 0.0}, "clip"),
        ({"keep": 0.0}, "keep"),
        ({"epsilon": 0.0}, "budget"),
        ({"mech": Masks({"9.weight": torch.ones(2, 2, dtype=torch.bool)})}, "no parameter"),
    ],
)
def test_bad_input(change, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        _private(**({"mech": "dense"} | change))

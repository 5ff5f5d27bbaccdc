"""`reconstruct` on small networks of every kind: zeros where they belong, outputs nearer, refusals harmless."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.adapters import as_batch
from prunus.errors import BadInput, PrunusWarning
from prunus.layers import prunable_weights
from prunus.recovery import ReconstructOptions, _plan, _reconstruct
from prunus.recovery._moments import trace
from prunus.recovery._units import divide


class Residual(nn.Module):
    """Convolution, batch norm, residual blocks with a downsampling one, pooling, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, groups=2, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.short = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[1](self.second(self.act(self.norms[0](self.first(x)))))
        return self.act(inner + self.short(x))


class Skipping(nn.Module):
    """A U-shaped network: the last unit needs the output of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 16)])
        self.last = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.down[0](x))
        deep = torch.relu(self.down[2](torch.relu(self.down[1](first))))
        return self.last(torch.cat([first, deep], 1))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "residual": (Residual, (3, 8, 8)),
    "skipping": (Skipping, (16,)),
    "attending": (Attending, (6, 16)),
    "sequential": (lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()), (16,)),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(16, 16, 3, groups=16), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 1)),
        (16, 6, 6),
    ),
}


def network(kind: str) -> tuple[nn.Module, Tensor]:
    """A network with settled batch norms, and inputs for it."""
    make, shape = NETWORKS[kind]
    torch.manual_seed(0)
    model = make()
    mix = torch.randn(shape[0], shape[0]) / shape[0] ** 0.5
    inputs = torch.einsum("nc...,cd->nd...", torch.randn(192, *shape), mix)
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(inputs)
    return model.eval(), inputs


def distance(model: nn.Module, other: nn.Module, inputs: Tensor) -> float:
    with torch.no_grad():
        return float((model(inputs) - other(inputs)).square().mean())


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("pattern", ["balanced:8", "unstructured"])
def test_outputs_stay_nearer_than_by_magnitudes(kind: str, pattern: str) -> None:
    dense, inputs = network(kind)
    plain, kept = copy.deepcopy(dense), copy.deepcopy(dense)
    reference = prunus.prune(plain, 0.6, pattern=pattern, misfits="skip")
    masks = prunus.reconstruct(kept, 0.6, inputs, pattern=pattern, misfits="skip", samples=192)
    assert [row.kept for row in masks.layers] == [row.kept for row in reference.layers]
    for name, parameter in masks.parameters_of(kept).items():
        assert (parameter[~masks[name]] == 0).all()
        assert not torch.signbit(parameter[~masks[name]]).any()
        told = masks.notes["layers"][name]
        assert told["after"] <= told["masked"] * (1 + 1e-6)
    assert distance(kept, dense, inputs) < 0.85 * distance(plain, dense, inputs)
    assert not kept.training


def test_rows_without_weights_become_no_large_constants() -> None:
    """Their variance is 0: a norm that took it over would divide the samples' distance to its own mean by nothing."""
    dense, inputs = network("residual")
    kept = copy.deepcopy(dense)
    masks = prunus.reconstruct(kept, 0.5, 0.8 * inputs + 0.3, pattern="channels", misfits="skip", samples=192)
    empty = {name: ~mask.flatten(1).any(1) for name, mask in masks.items()}
    assert any(rows.any() for rows in empty.values())
    for norm in (module for module in kept.modules() if isinstance(module, nn.BatchNorm2d)):
        assert norm.running_var is not None
        assert norm.running_var.min() > 1e-3
    with torch.no_grad():
        size = float(dense(inputs).square().mean())
    assert distance(kept, dense, inputs) < size


@pytest.mark.parametrize("kind", ["residual", "attending"])
def test_given_masks_are_kept_and_only_the_rest_is_adjusted(kind: str) -> None:
    dense, inputs = network(kind)
    masks = prunus.find_masks(dense, 0.5, pattern="2:4", misfits="skip")
    plain, kept = masks.apply_(copy.deepcopy(dense)), copy.deepcopy(dense)
    found = prunus.reconstruct(kept, None, inputs, masks=masks)
    assert found == masks
    assert distance(kept, dense, inputs) < 0.5 * distance(plain, dense, inputs)


def test_the_same_seed_gives_the_same_bytes() -> None:
    dense, inputs = network("residual")
    first, second = copy.deepcopy(dense), copy.deepcopy(dense)
    a = prunus.reconstruct(first, 0.5, inputs, pattern="2:4", exclude=("stem",), samples=64, seed=3)
    b = prunus.reconstruct(second, 0.5, inputs, pattern="2:4", exclude=("stem",), samples=64, seed=3)
    assert a == b
    for one, two in zip(first.state_dict().values(), second.state_dict().values()):
        assert torch.equal(one, two)


def test_nothing_moves_at_sparsity_zero() -> None:
    dense, inputs = network("residual")
    kept = copy.deepcopy(dense)
    prunus.reconstruct(kept, 0.0, inputs, pattern="unstructured")
    assert distance(kept, dense, inputs) < 1e-8


@pytest.mark.parametrize("kind", ["skipping", "residual", "attending"])
def test_activations_beyond_the_memory_go_to_files_and_change_nothing(kind: str) -> None:
    dense, inputs = network(kind)
    here, there = copy.deepcopy(dense), copy.deepcopy(dense)
    prunus.reconstruct(here, 0.5, inputs)
    prunus.reconstruct(there, 0.5, inputs, options=ReconstructOptions(memory=1000))
    assert all(torch.equal(a, b) for a, b in zip(here.parameters(), there.parameters()))


def test_steps_on_whole_blocks_bring_the_outputs_nearer() -> None:
    dense, inputs = network("residual")
    plain, moved = copy.deepcopy(dense), copy.deepcopy(dense)
    options = ReconstructOptions(batch_size=32)
    prunus.reconstruct(plain, 0.8, inputs, pattern="unstructured", exclude=("head",), options=options)
    steps = ReconstructOptions(batch_size=32, descent=14)
    masks = prunus.reconstruct(moved, 0.8, inputs, pattern="unstructured", exclude=("head",), options=steps)
    assert all((parameter[~masks[name]] == 0).all() for name, parameter in masks.parameters_of(moved).items())
    assert distance(moved, dense, inputs) < 0.9 * distance(plain, dense, inputs)


def test_units_are_blocks_that_run_once() -> None:
    dense, inputs = network("residual")
    assert divide(dense, prunable_weights(dense), as_batch(inputs)) == ["stem", "blocks.0", "blocks.1", "head"]
    lists = Skipping()  # one weight in a list: the list itself never runs
    chosen = {"down.0.weight": prunable_weights(lists)["down.0.weight"]}
    assert divide(lists, chosen, as_batch(torch.randn(4, 16))) == ["down.0"]
    shared = nn.Linear(8, 8)
    twice = nn.Sequential(nn.Sequential(shared, nn.ReLU(), shared), nn.Linear(8, 4))
    assert divide(twice, prunable_weights(twice), as_batch(torch.randn(4, 8))) == ["0", "1"]
    before = copy.deepcopy(twice)
    prunus.reconstruct(twice, 0.5, torch.randn(64, 8), pattern="unstructured")
    assert distance(before, twice, torch.randn(64, 8)) > 0


def test_few_samples_work_and_are_told() -> None:
    dense, inputs = network("sequential")
    with pytest.warns(UserWarning, match="8 inputs for the 16 columns of 0.weight"):
        masks = prunus.reconstruct(dense, 0.5, inputs, samples=8)
    assert "more samples" in masks.notes["remarks"][0]


def test_inputs_that_hardly_vary_in_few_samples_have_no_correlations() -> None:
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(32, 16)), torch.randn(8, 32)
    data[:, 3], data[:, 4], data[:, 5] = 0.1, 1e-31 * torch.randn(8), 0.3
    dense = copy.deepcopy(model)
    prunus.reconstruct(model, 0.5, data, samples=8, options=ReconstructOptions(refine=0, progress=False))
    off = (model(data) - dense(data)).norm() / dense(data).norm()
    assert off < 0.5


def test_zeros_go_where_they_do_least_damage() -> None:
    """The second layer's inputs have rank 4 by construction: it can lose far more than the others."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
    inputs = torch.randn(256, 16)
    even, shared = copy.deepcopy(dense), copy.deepcopy(dense)
    plain = prunus.reconstruct(even, 0.5, inputs, pattern="unstructured", samples=256)
    masks = prunus.reconstruct(shared, 0.5, inputs, pattern="unstructured", allocation="damage", samples=256)
    assert abs(masks.sparsity - plain.sparsity) < 0.02
    levels = {row.name: row.sparsity for row in masks.layers}
    assert levels["2.weight"] > 0.6 > 0.5 > levels["0.weight"]
    assert distance(shared, dense, inputs) < 0.7 * distance(even, dense, inputs)
    mixed = prunus.reconstruct(copy.deepcopy(dense), 0.5, inputs, pattern="2:4", allocation="damage", samples=256)
    kept = {row.name: row.sparsity for row in mixed.layers}
    assert set(kept.values()) <= {0.0, 0.25, 0.5, 0.75}
    assert len(set(kept.values())) > 1
    assert abs(mixed.sparsity - 0.5) < 0.1


def test_curves_rise_and_their_shares_meet_the_sparsity() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
    before = copy.deepcopy(dense.state_dict())
    found = prunus.recovery.measure_damage(dense, torch.randn(256, 16), "unstructured", exclude=("4",))
    assert list(found.curves) == ["0.weight", "1.weight", "2.weight"]
    for curve in found.curves.values():
        assert curve[0] == 0.0
        assert all(a <= b + 1e-9 for a, b in itertools.pairwise(curve))
    for sparsity in (0.3, 0.6, 0.9):
        levels, shapes = found.levels(sparsity)
        total = sum(found.sizes.values())
        zeros = sum(found.sizes[name] * level for name, level in levels.items())
        assert sparsity * total - 1e-6 <= zeros <= (sparsity + 0.02) * total
        assert levels["2.weight"] == max(levels.values())
        assert set(shapes) == set(levels)
    assert all(torch.equal(before[name], value) for name, value in dense.state_dict().items())
    with pytest.raises(BadInput, match="growing"):
        prunus.recovery.measure_damage(dense, torch.randn(8, 16), grid=(0.5, 0.2))


def test_with_few_samples_directions_never_seen_are_left_alone() -> None:
    """Features of rank 24 in 64 columns, 40 samples: on fresh samples the fit must be no worse than no fit at all."""
    torch.manual_seed(0)
    mixing, dense = torch.randn(24, 64), nn.Linear(64, 32)
    draw = lambda count: torch.randn(count, 24) @ mixing + 0.3 * torch.randn(count, 64)  # noqa: E731
    fresh = draw(2000)
    fitted, plain = copy.deepcopy(dense), copy.deepcopy(dense)
    with pytest.warns(UserWarning, match="40 inputs for the 64 columns"):
        prunus.reconstruct(fitted, 0.5, draw(40), samples=40)
    prunus.prune(plain, 0.5, pattern="balanced:16")
    assert distance(fitted, dense, fresh) < 0.6 * distance(plain, dense, fresh)


@pytest.mark.parametrize("kind", ["residual", "attending"])
def test_a_run_broken_off_goes_on_and_ends_in_the_same_bytes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense, inputs = network(kind)
    call: dict[str, Any] = {"pattern": "balanced:4", "allocation": "damage", "misfits": "skip"}
    whole, wanted = copy.deepcopy(dense), prunus.reconstruct
    masks = wanted(whole, 0.5, inputs, **call)
    broken, done = copy.deepcopy(dense), []
    real = _reconstruct.rebuild

    def counted(*args: Any, **kwargs: Any) -> Any:
        if len(done) == stop:
            raise KeyboardInterrupt
        done.append(args[0].name)
        return real(*args, **kwargs)

    monkeypatch.setattr(_reconstruct, "rebuild", counted)
    stop, options = 5, ReconstructOptions(folder=tmp_path / "state")
    with pytest.raises(KeyboardInterrupt):
        wanted(broken, 0.5, inputs, options=options, **call)
    assert same(broken.state_dict(), dense.state_dict())
    monkeypatch.setattr(_plan, "damage", lambda *args: pytest.fail("measured twice"))
    stop, first = 10**6, len(done)
    again = wanted(broken, 0.5, inputs, options=options, **call)
    assert 0 < len(done) - first <= len(masks)
    assert same(broken.state_dict(), whole.state_dict())
    assert all(torch.equal(again[name], masks[name]) for name in masks)
    assert again.notes == masks.notes
    with pytest.raises(BadInput, match="another folder"):
        wanted(copy.deepcopy(dense), 0.6, inputs, options=options, **call)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Separable(nn.Module):
    """Pointwise, norm, depthwise, norm, pointwise, norm: twice, with the second depthwise part outside of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.block() for _ in range(2)])
        self.between = nn.Sequential(nn.Conv2d(16, 16, 3, groups=16), nn.BatchNorm2d(16))
        self.head = nn.Linear(16, 8)

    @staticmethod
    def block() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.blocks[1](self.blocks[0](x))).mean((2, 3)))


def test_norms_behind_layers_that_are_not_pruned_follow_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense, inputs = Separable(), torch.randn(64, 16, 8, 8)
    with torch.no_grad():
        for _ in range(60):
            dense(inputs)
    dense.eval()
    kept, again = copy.deepcopy(dense), copy.deepcopy(dense)
    exclude = ("blocks.*.3", "between.0")
    options = ReconstructOptions(folder=tmp_path)
    prunus.reconstruct(kept, 0.75, inputs, pattern="unstructured", exclude=exclude, options=options)
    for name in ("blocks.0.4", "blocks.1.4", "between.1"):  # its inputs now have the mean and variance it expects
        seen: list[Tensor] = []
        handle = kept.get_submodule(name).register_forward_pre_hook(
            lambda module, args, seen=seen: seen.append(args[0])
        )
        with torch.no_grad():
            kept(inputs)
        handle.remove()
        norm = kept.get_submodule(name)
        assert not torch.equal(norm.running_mean, dense.get_submodule(name).running_mean)
        torch.testing.assert_close(seen[0].mean((0, 2, 3)), norm.running_mean, rtol=0.05, atol=0.05)
        torch.testing.assert_close(seen[0].var((0, 2, 3)), norm.running_var, rtol=0.1, atol=0.02)
    prunus.reconstruct(again, 0.75, inputs, pattern="unstructured", exclude=exclude, options=options)
    assert same(again.state_dict(), kept.state_dict())


def test_labels_are_not_looked_at() -> None:
    dense, inputs = network("sequential")
    bare, labelled = copy.deepcopy(dense), copy.deepcopy(dense)
    prunus.reconstruct(bare, 0.5, inputs, samples=100)
    prunus.reconstruct(
        labelled, 0.5, torch.utils.data.TensorDataset(inputs, torch.full((192,), torch.nan)), samples=100
    )
    assert same(bare.state_dict(), labelled.state_dict())


class Logarithm(nn.Module):
    """NaN where the inputs are negative in the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x) * torch.log(x.mean(1, keepdim=True))))


def test_activations_that_become_nan_on_a_later_batch_name_the_layer() -> None:
    model = Logarithm()
    before = copy.deepcopy(model.state_dict())
    data = [torch.rand(8, 16) + 0.5, torch.rand(8, 16) + 0.5, torch.rand(8, 16) - 5]
    with pytest.raises(BadInput, match=r"second\.weight.* NaN or Inf"):
        prunus.reconstruct(model, 0.5, data)
    assert same(model.state_dict(), before)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_what_the_data_never_reach_is_named_at_once_and_stays_dense() -> None:
    class Spare(Lazy):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    torch.manual_seed(0)
    model, data = Spare(), torch.randn(64, 16)
    dense, lost = copy.deepcopy(model), ["unused.weight", "heads.0.weight", "heads.1.weight"]
    with pytest.warns(PrunusWarning, match="unused.weight, heads.0.weight, heads.1.weight"):
        masks = prunus.reconstruct(model, 0.5, data, "unstructured", samples=64)
    assert list(masks) == ["used.weight"] == list(masks.notes["layers"])
    assert masks.notes["unreached"] == lost
    assert float((model.used.weight == 0).float().mean()) == masks.sparsity == masks.notes["reached"] == 0.5
    assert torch.equal(model.unused.weight, dense.unused.weight)
    with pytest.raises(prunus.BadInput, match=r"never reach 'heads.0.weight', 'heads.1.weight'"):
        prunus.reconstruct(model, {"used": 0.5, "heads": 0.5}, data, "unstructured", samples=64)
    given, model = prunus.find_masks(dense, 0.5), copy.deepcopy(dense)
    with pytest.warns(PrunusWarning, match="nothing fitted"):
        masks = prunus.reconstruct(model, None, data, masks=given, samples=64)
    assert masks == given
    assert masks.notes["unfitted"] == lost
    assert list(masks.notes["layers"]) == ["used.weight"]
    assert all(bool((model.get_parameter(name)[~mask] == 0).all()) for name, mask in masks.items())
    with pytest.raises(prunus.BadInput, match=r"never reach 'unused.weight', 'heads.0.weight', 'heads.1.weight'"):
        prunus.recovery.measure_damage(dense, data, "unstructured", samples=64)


def refusals() -> dict[str, tuple[nn.Module, dict[str, Any], str]]:
    x = torch.randn(32, 16)
    broken = x.clone()
    broken[3, 3] = torch.nan
    other = prunus.find_masks(nn.Linear(8, 8), 0.5)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    return {
        "no data": (model, {"data": None}, "give some samples"),
        "empty data": (model, {"data": []}, "empty"),
        "NaN": (model, {"data": broken}, "NaN"),
        "other masks": (model, {"data": x, "masks": other}, "does not have as a parameter"),
        "plain dictionary": (model, {"data": x, "masks": {"0.weight": 1}}, "masks must be prunus.Masks"),
        "samples": (model, {"data": x, "samples": 0}, "samples is 0"),
        "wrong shape": (model, {"data": torch.randn(32, 8)}, "16"),
        "unreached": (Lazy(), {"data": x, "sparsity": {"unused": 0.5}}, "never reach 'unused.weight'"),
        "typo": (model, {"data": x, "pattern": "balnced:16"}, "did you mean"),
        "no sparsity": (model, {"data": x, "sparsity": None}, "Give a sparsity"),
        "seed": (model, {"data": x, "seed": 1.5}, "seed is 1.5"),
        "options": (model, {"data": x, "options": {"refine": 3}}, "options must be ReconstructOptions"),
        "allocation": (model, {"data": x, "allocation": "damages"}, "did you mean 'damage'"),
    }


@pytest.mark.parametrize("case", refusals())
def test_bad_input_is_one_sentence_and_leaves_the_model_alone(case: str) -> None:
    model, arguments, words = refusals()[case]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    arguments = {"sparsity": 0.5, **arguments}
    with pytest.raises(prunus.BadInput, match=words):
        prunus.reconstruct(model, **arguments)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert not model._forward_pre_hooks


class Accumulating(nn.Module):
    """A block whose last layer's input may be changed in place after that layer has read it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.in_place = True

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        made = self.second(hidden)
        return hidden.mul_(0.0).add_(made) if self.in_place else made.clone()


def test_inputs_that_change_in_place_later_are_seen_as_the_layer_saw_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Accumulating(), Accumulating()).eval()
    plain, data = copy.deepcopy(model), torch.randn(256, 16)
    for block in plain:
        block.in_place = False
    one, two = (prunus.reconstruct(each, 0.5, data, pattern="unstructured") for each in (model, plain))
    assert all(torch.equal(one[name], two[name]) for name in two)
    torch.testing.assert_close(model(data), plain(data))


class Cubic(nn.Module):
    """A residual block whose activation adds a function of a layer's output to that output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return x + self.second(torch.tanh(hidden + 0.05 * hidden.pow(3)))


def test_only_sums_with_something_else_are_residual_connections() -> None:
    torch.manual_seed(0)
    model, data = nn.Sequential(Cubic(), Cubic()).eval(), torch.randn(64, 16)
    stages = trace(model, prunable_weights(model), as_batch(data))
    assert {stage.names[0]: stage.summed for stage in stages} == {
        "0.first.weight": False,
        "0.second.weight": True,
        "1.first.weight": False,
        "1.second.weight": True,
    }
    prunus.reconstruct(model, 0.5, data, pattern="unstructured")
    assert bool(torch.isfinite(model(data)).all())


class Spreading(nn.Module):
    """A residual block with a sparse matrix inside, as networks on graphs have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("neighbours", torch.eye(16).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        return x + self.second(torch.sparse.mm(self.neighbours, hidden.T).T.contiguous())


def test_sparse_matrices_inside_a_model_do_no_harm() -> None:
    torch.manual_seed(0)
    model, data = nn.Sequential(Spreading(), Spreading()).eval(), torch.randn(64, 16)
    before = model(data)
    masks = prunus.reconstruct(model, 0.5, data, pattern="unstructured")
    assert masks.sparsity == 0.5
    assert float((model(data) - before).norm() / before.norm()) < 0.2


class Odd(nn.Module):
    """A matrix that is no layer, and one with fewer columns than a bank."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.short, self.last = nn.Parameter(torch.randn(20, 30)), nn.Linear(20, 32), nn.Linear(32, 30)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(torch.relu(self.short(x)))) + x @ self.table


def test_what_stays_dense_is_named_in_the_notes() -> None:
    torch.manual_seed(0)
    with pytest.warns(PrunusWarning, match="Left dense.*table"):
        masks = prunus.reconstruct(Odd(), 0.5, torch.randn(64, 20), pattern="balanced:32", misfits="skip", samples=64)
    assert masks.notes["skipped"] == ["short.weight"]
    assert masks.notes["unrecognised"] == ["table"]
    assert list(masks) == ["last.weight"]

"""compress: the copy computes the same, gains or stays, and behaves as any module."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune as torch_prune

import prunus
from prunus.errors import BadInput
from prunus.sparse import BalancedLinear, SparseConv2d, _compress, _finish, compress, explain
from prunus.sparse._graph import batch_norm_pairs
from prunus.sparse._measure import Timing


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def pruned(model: nn.Module, sparsity: float = 0.9, **options: object) -> nn.Module:
    prunus.prune(model, sparsity, pattern="balanced:16", **options)
    return model.eval()


def settled_resnet(seed: int = 0) -> nn.Module:
    """A small ResNet whose batch norms have seen data, so that folding them matters."""
    torch.manual_seed(seed)
    model = prunus.models.make("resnet20")
    with torch.no_grad():
        model.train()(torch.randn(16, 3, 32, 32))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.5, 0.5)
    return pruned(model, exclude=("conv1", "linear"))


def test_a_fully_connected_net_computes_the_same() -> None:
    model = pruned(prunus.models.make("fc:256-512-512-10"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fast = compress(model, example=torch.randn(8, 256), select="always")
    assert all(isinstance(layer, BalancedLinear) for layer in fast.layers)
    for batch in (0, 1, 7, 64):
        x = torch.randn(batch, 256)
        with torch.no_grad():
            close(fast(x), model(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_masks_are_applied_to_the_copy_only() -> None:
    model = prunus.models.make("fc:64-128-10").eval()
    masks = prunus.find_masks(model, 0.9, pattern="balanced:16")
    fast = compress(model, masks, select="always")
    x = torch.randn(5, 64)
    with torch.no_grad():
        assert not torch.allclose(fast(x), model(x))
        close(fast(x), masks.apply_(copy.deepcopy(model))(x))
    with pytest.raises(BadInput, match="masks name"):
        compress(prunus.models.make("lenet5"), masks)


@pytest.mark.parametrize("fuse", [False, True])
def test_a_resnet_computes_the_same(fuse: bool) -> None:
    model = settled_resnet()
    fast = compress(model, select="always", fuse=fuse)
    packed = [module for module in fast.modules() if isinstance(module, SparseConv2d)]
    assert len(packed) == 19
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
    for batch in (1, 3):
        x = torch.randn(batch, 3, 32, 32)
        with torch.no_grad():
            close(fast(x), model(x))
    if fuse:
        assert all(module.relu for module in packed)
        targets = [str(node.target) for node in fast.graph.nodes]
        assert not any("relu" in target or "add" in target for target in targets)


def test_what_does_not_gain_stays() -> None:
    model = pruned(prunus.models.make("fc:512-512-512-10"), 0.9, exclude=("layers.1", "layers.2"))
    fast = compress(model, example=torch.randn(1, 512))
    assert isinstance(fast.layers[0], BalancedLinear)  # 90 % zeros, batch 1: gains many times over
    assert type(fast.layers[1]) is nn.Linear  # no zeros: not even tried
    rows = {row.layer: row for row in explain(fast)}
    assert rows["layers.0"].bytes < rows["layers.0"].dense_bytes / 5
    assert rows["layers.0"].times_faster > 1
    assert 0 < rows["layers.0"].share_of_limit < 1.5
    assert rows["layers.0"].shape == (1, 512)
    assert rows["layers.1"].format == "dense"


@pytest.mark.parametrize("options", [{}, {"dtype": torch.int8}, {"fuse": True}])
def test_a_released_model_gives_its_weights_away(options: dict) -> None:
    """Those that two layers share go with the second; what stays dense is the copy's."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.one, self.two = nn.Embedding(10, 32), nn.Linear(32, 32), nn.Linear(32, 32)
            self.two.weight = self.one.weight
            self.head = nn.Linear(32, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.two(self.one(self.embedding(ids)).relu()))

    model, ids = Tied(), torch.arange(10)[None]
    masks = prunus.find_masks(model, 0.75)
    whole = compress(model, masks, ids, "always", **options)
    fast = compress(model, masks, ids, "always", release=True, **options)
    assert torch.equal(fast(ids), whole(ids))
    assert [name for name, parameter in model.named_parameters() if parameter.is_meta] == [
        "one.weight", "one.bias", "two.bias",
    ]  # fmt: skip
    assert fast.get_submodule("head").weight is model.embedding.weight


def test_a_gain_must_be_larger_than_the_cost_of_a_call() -> None:
    for dense, ours, sure, likely in (
        (1e-3, 0.9e-3, True, True),
        (1e-3, 0.99e-3, False, False),
        (10e-6, 9e-6, False, True),
        (10e-6, 5e-6, True, True),
        (10e-6, 20e-6, False, False),
    ):
        timing = Timing(dense, ours, (1, 8))
        assert (timing.gains, timing.may_gain) == (sure, likely)


@pytest.mark.parametrize("fuse", (False, True))
def test_layers_that_may_gain_are_judged_inside_the_model(fuse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy that is slower as a whole is dropped, whichever it is, and what is left computes the same."""
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    prunus.prune(model, 0.5, pattern="balanced:16")
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(41))
    gains = iter((1e-6, 8e-6, 9.9e-6) * 2)  # sure, perhaps, perhaps
    monkeypatch.setattr(_compress, "compare", lambda *_, **__: Timing(10e-6, next(gains), (2, 32)))
    for seconds, packed in (([1.0, 2.0], 1), ([2.0, 1.0], 3)):
        monkeypatch.setattr(
            _finish, "in_turn", lambda runs, seconds=seconds: [run() is None for run in runs] and seconds
        )
        fast = compress(model, example=x, fuse=fuse)
        assert sum(row.format != "dense" for row in explain(fast)) == packed
        assert sum(isinstance(module, BalancedLinear) for module in fast.modules()) == packed
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_the_decision_can_be_overridden() -> None:
    model = pruned(prunus.models.make("fc:128-128-128-10"))
    fast = compress(model, select={"layers.0": False, "layers.2": True})
    assert type(fast.layers[0]) is nn.Linear
    assert isinstance(fast.layers[2], BalancedLinear)
    with pytest.raises(BadInput, match=r"layers\.9"):
        compress(model, select={"layers.9": True})
    with pytest.raises(BadInput, match="select must be"):
        compress(model, select="sometimes")


class Tied(nn.Module):
    """One module used in two places, a root-level call, and a batch norm that two layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.second = self.first
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(functional.relu(self.first(x)))
        image = self.conv(x.reshape(-1, 1, 4, 8))
        return self.norm(image) + image


def test_shared_modules_and_batch_norms_with_two_readers() -> None:
    model = Tied().eval()
    assert batch_norm_pairs(model, ["conv"]) == {}  # the convolution's output is read twice
    fast = compress(model, select="always")
    assert fast.first is fast.second
    x = torch.randn(3, 32)
    with torch.no_grad():
        close(fast(x), model(x))
        close(compress(model, select="always", fuse=True)(x), model(x))


def test_a_single_layer_and_an_attention_layer() -> None:
    layer = nn.Linear(64, 64)
    prunus.prune(layer, 0.9, pattern="balanced:16")
    fast = compress(layer, select="always")
    attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    same = compress(attention, select="always")  # reads its linear weights itself: left alone
    x, y = torch.randn(4, 64), torch.randn(2, 5, 32)
    with torch.no_grad():
        close(fast(x), layer(x))
        close(same(y), attention(y))


def test_copies_compiles_exports_and_narrows() -> None:
    model = settled_resnet()
    fast = compress(model, select="always", fuse=True)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = fast(x)
        assert torch.equal(copy.deepcopy(fast)(x), expected)
        assert torch.equal(torch.compile(fast, backend="aot_eager", fullgraph=True)(x), expected)
        assert torch.equal(torch.export.export(fast, (x,)).module()(x), expected)
        half = compress(model, select="always", dtype=torch.bfloat16)(x)
        assert (half - expected).norm() < 0.05 * expected.norm()
    twin = compress(settled_resnet(1), select="always", fuse=True)
    twin.load_state_dict(fast.state_dict())
    with torch.no_grad():
        assert torch.equal(twin(x), expected)


def test_gradients_reach_the_inputs() -> None:
    model = settled_resnet()
    fast = compress(model, select="always", fuse=True)
    x = torch.randn(2, 3, 32, 32, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    fast(x).square().sum().backward()
    model(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)


def test_refuses_bad_input() -> None:
    model = prunus.models.make("fc:16-16-4")
    with pytest.raises(BadInput, match="cannot be stored"):
        compress(model, dtype=torch.float16)
    with pytest.raises(BadInput, match="float32"):
        compress(copy.deepcopy(model).double())
    with pytest.raises(BadInput, match="cannot run on the example"):
        compress(model, example=torch.randn(2, 3))
    with pytest.raises(BadInput, match="torch module"):
        compress("resnet20")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="not made by"):
        explain(model)
    with torch.no_grad():
        model.layers[0].weight[0, 0] = float("nan")
    with pytest.raises(BadInput, match=r"layers\.0.*NaN"):
        compress(model, select={"layers.0": True})
    with torch.device("meta"), pytest.raises(BadInput, match="CPU"):
        compress(nn.Linear(2, 2))


def test_wrong_arguments_are_named() -> None:
    model = pruned(nn.Sequential(nn.Linear(32, 16)))
    with pytest.raises(BadInput, match=r"takes prunus\.Masks, not dict"):
        compress(model, {"0.weight": torch.ones(16, 32)})
    for order in (torch.arange(5), torch.arange(32) + 5, torch.zeros(32, dtype=torch.long)):
        with pytest.raises(BadInput, match="must name each of them once"):
            compress(model, permutations={"0": order}, select="always")
    by_torch = nn.Sequential(nn.Linear(32, 16))
    torch_prune.random_unstructured(by_torch[0], "weight", 0.5)
    by_torch(torch.randn(1, 32))
    with pytest.raises(BadInput, match=r"prune\.remove"):
        compress(by_torch)


def test_default_type_does_not_matter() -> None:
    model, x = (
        pruned(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)), exclude=("2",)),
        torch.randn(8, 256),
    )
    torch.set_default_dtype(torch.float64)
    try:
        fast = compress(model, example=x)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        close(fast(x), model(x))


def test_runs_beside_dense_layers_under_autocast() -> None:
    """Dense layers hand bfloat16 over there; packed ones compute in float32 all the same."""
    generator = torch.Generator().manual_seed(40)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).eval()
    image = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten()
    ).eval()
    cases = [(net, ("2",), torch.randn(4, 32, generator=generator))]
    cases += [(image, ("2", "4"), torch.randn(2, 3, 12, 12, generator=generator))]
    for model, packed, x in cases:
        prunus.prune(model, 0.5, pattern="balanced:16")
        for fuse in (False, True):
            fast = prunus.compress(model, example=x, select=dict.fromkeys(packed, True), fuse=fuse)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                found = fast(x)
            with torch.no_grad():
                expected = model(x)
            torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
        with torch.autocast("cpu", torch.bfloat16):
            x.requires_grad_()
            fast(x).float().sum().backward()
        assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("fuse", [False, True])
def test_what_is_made_in_inference_mode_gives_gradients(fuse: bool, tmp_path: Path) -> None:
    model = pruned(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)), 0.5)
    x = torch.randn(4, 64)
    with torch.inference_mode():
        fast = compress(model, example=x, select={"0": True, "2": False}, fuse=fuse)
        again = prunus.sparse.load(prunus.sparse.save(fast, tmp_path / "fast"), model)
        layer = BalancedLinear.from_dense(model[0])
    for one in (fast, again, layer):
        inputs = x.clone().requires_grad_()
        one(inputs).sum().backward()
        assert inputs.grad is not None


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_model_that_cannot_be_narrowed_stays_as_it_is(fuse: bool, kind: torch.dtype) -> None:
    model = pruned(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 16)), 0.5)
    x = torch.randn(4, 64)
    fast = compress(model, select={"0": False, "2": True}, fuse=fuse)
    for one in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        with pytest.raises(BadInput, match="cannot be converted"):
            one.to(kind)
        assert torch.equal(one.float().to("cpu")(x), fast(x))

"""Regions of fused graphs: one call gives what the layers give one by one, whatever happens to the model around it."""

from __future__ import annotations

import copy
import math
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import prunus
from prunus.errors import BadInput
from prunus.sparse import SparseConv2d, compress
from prunus.sparse._geometry import ConvGeometry, ungrouped
from prunus.sparse._packed import kernels, pack
from prunus.sparse._region import FusedRegion, assign_places
from prunus.sparse._region_graph import with_regions
from support import scale

pytestmark = pytest.mark.skipif(kernels() is None, reason="needs the compiled kernels")


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def regions(fast: nn.Module) -> list[FusedRegion]:
    assert isinstance(fast, torch.fx.GraphModule)
    graph = with_regions(fast)
    return [] if graph is None else [node.target for node in graph.nodes if isinstance(node.target, FusedRegion)]


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


def fused_net() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = prunus.models.make("resnet20").eval()
    prunus.prune(model, 0.9, pattern="balanced:16", exclude=("linear",))
    return model, compress(model, select="always", fuse=True)


def test_a_resnet_is_one_region_and_computes_the_same() -> None:
    model, fast = fused_net()
    (region,) = regions(fast)
    assert [step.kind for step in region.steps].count("conv") == 19
    assert len(region.steps) == 23  # and two shortcuts, each a slice and a pad
    with torch.no_grad():
        for shape in ((2, 3, 32, 32), (1, 3, 40, 24), (3, 3, 17, 21), (0, 3, 32, 32), (2, 3, 32, 32)):
            x = torch.randn(shape)
            close(fast(x), model(x))
            first = fast(x)
            fast(torch.randn(shape))
            close(first, model(x))  # results are the caller's own


@pytest.mark.parametrize("activations", [None, torch.int8])
def test_weights_that_are_loaded_in_place_are_seen(activations: torch.dtype | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)).eval()
    prunus.prune(model, 0.5, pattern="balanced:16")
    x = torch.randn(1, 16, 8, 8)
    fast, other = (compress(model, select="always", fuse=True, activations=activations) for _ in range(2))
    with torch.no_grad():
        fast(x)
        before = fast(x)
        state = {name: -tensor if name.endswith("values") else tensor for name, tensor in fast.state_dict().items()}
        other.load_state_dict(state)  # into one that never ran
        fast.load_state_dict(state)
        assert torch.equal(fast(x), other(x))
        assert not torch.equal(fast(x), before)
        bias = fast.get_submodule("0").bias
        bias.data = bias.data + 1.0
        assert not torch.equal(fast(x), other(x))  # a bias that moved


def one_by_one(fast: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """The model's result with every layer called by itself."""
    convs = [module for module in fast.modules() if isinstance(module, SparseConv2d)]
    handles = [conv.register_forward_hook(lambda *_: None) for conv in convs]
    result = fast(x)
    for handle in handles:
        handle.remove()
    return result


class Random(nn.Module):
    """Convolutions, pools, shortcuts and sums in an order drawn from the seed; two images out."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def draw(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (1,), generator=generator))

        self.channels = draw(1, 40)
        self.order = [draw(0, 5) for _ in range(draw(2, 7))]
        self.layers = nn.ModuleList()
        channels = self.channels
        for kind in self.order:
            outputs = channels if kind in (1, 2) else draw(1, 40)
            kernel = 3 if kind in (1, 2) else draw(1, 3)
            padding = 1 if kind in (1, 2) else draw(0, 2)
            stride = 1 if kind in (1, 2) else draw(1, 2)
            conv = nn.Conv2d(channels, outputs, kernel, stride, padding, bias=bool(draw(0, 1)))
            prunus.prune(conv, 0.7, pattern="balanced:16" if channels % 16 == 0 else "unstructured", seed=seed)
            self.layers.append(conv)
            channels = outputs + 3 if kind == 4 else outputs
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        middle = x
        for kind, layer in zip(self.order, self.layers):
            if kind == 1:
                x = torch.relu(layer(x) + x)
            elif kind == 2:
                middle = torch.relu(layer(x))
                x = middle
            elif kind == 3:
                x = self.pool(layer(x))
            elif kind == 4:
                x = functional.pad(layer(x)[:, :, ::2, ::3], (0, 0, 0, 0, 1, 2))
            else:
                x = layer(x)
        return x.mean((2, 3)), middle


@pytest.mark.prove
def test_random_graphs_compute_the_same_for_any_number_of_threads() -> None:
    compared = 0
    for seed in range(scale(40, full=400)):
        model = Random(seed).eval()
        fast = compress(model, select="always", fuse=True)
        x = torch.randn(1 + seed % 5, model.channels, 30 + seed % 7, 28 + seed % 9)
        with torch.no_grad():
            try:
                wanted = model(x)
            except RuntimeError:  # too small an image for this order of layers
                with pytest.raises((BadInput, RuntimeError)):
                    fast(x)
                continue
            found = fast(x)
            assert all(map(torch.equal, fast(x), one_by_one(fast, x)))
            torch.set_num_threads(2)
            again = fast(x)
            torch.set_num_threads(1)
        for one, two, right in zip(found, again, wanted):
            close(one, right)
            assert torch.equal(one, two)
            compared += 1
    assert compared > scale(40, full=400)


def test_replaced_layers_moved_biases_and_loaded_weights_are_seen() -> None:
    _, fast = fused_net()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before = fast(x)
        conv = fast.get_submodule("layer2.1.conv1")
        assert isinstance(conv, SparseConv2d)
        assert conv.bias is not None
        conv.bias.data = conv.bias.data + 1.0
        changed = fast(x)
        assert not torch.allclose(before, changed)
        conv.bias.data = conv.bias.data - 1.0
        close(fast(x), before)
        other = copy.deepcopy(conv)
        other.values.mul_(2)
        fast.set_submodule("layer2.1.conv1", other)
        close(fast(x), copy.deepcopy(fast)(x))
        assert not torch.allclose(fast(x), before)
        fast.set_submodule("layer2.1.conv1", conv)
        state = {name: value.clone() for name, value in fast.state_dict().items()}
        for name, value in state.items():
            if name.endswith("bias"):
                value.add_(0.5)
        twin = copy.deepcopy(fast)
        twin.load_state_dict(state)
        assert not torch.allclose(twin(x), before)
        close(fast(x), before)


def test_hooks_on_layers_still_run() -> None:
    _, fast = fused_net()
    x, seen = torch.randn(1, 3, 32, 32), list[tuple[int, ...]]()
    with torch.no_grad():
        before = fast(x)
        handle = fast.get_submodule("layer3.0.conv1").register_forward_hook(lambda _, __, out: seen.append(out.shape))
        close(fast(x), before)
        handle.remove()
        fast(x)
    assert seen == [(1, 64, 8, 8)]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_what_is_traced_or_differentiated_is_the_plain_graph() -> None:
    _, fast = fused_net()
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        wanted = fast(x)
        close(torch.jit.trace(fast, x, check_trace=False)(x + 0), wanted)
        close(torch.fx.symbolic_trace(fast)(x), wanted)
    x.requires_grad_(True)
    fast(x).sum().backward()
    assert x.grad is not None
    assert bool((x.grad != 0).any())


def test_wrong_images_are_refused_in_one_sentence() -> None:
    _, fast = fused_net()
    with torch.no_grad():
        for wrong in (torch.randn(1, 4, 32, 32), torch.randn(32, 32), torch.randn(1, 3, 32, 32).double()):
            with pytest.raises(BadInput, match=r"^[^\n]*\.$"):
                fast(wrong)


def test_maxima_keep_nan() -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 1), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1)).eval()
    prunus.prune(model, 0.5, pattern="balanced:16")
    fast = compress(model, select="always", fuse=True)
    assert [step.kind for step in regions(fast)[0].steps] == ["conv", "max_pool", "conv"]
    x = torch.randn(1, 16, 8, 8)
    x[0, 3, 4, 5] = float("nan")
    with torch.no_grad():
        assert torch.equal(fast(x).isnan(), model(x).isnan())


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


def test_what_is_added_may_be_spread_over_the_image() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
            self.gate, self.shift = nn.Conv2d(16, 16, 1), nn.Parameter(torch.randn(1, 16, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.first(x) + self.gate(x.mean((2, 3), keepdim=True)))
            return torch.relu(self.second(x) + self.shift)

    model = Gated().eval()
    fast, x = compress(model, select="always", fuse=True), torch.randn(2, 16, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_moved_weights_are_seen() -> None:
    _, fast = fused_net()
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        wanted = fast(x)
        fast.share_memory()
        assert torch.equal(fast(x), wanted)


def _change(name: str, conv: SparseConv2d, fast: nn.Module) -> None:
    if name == "bias moved":
        assert conv.bias is not None
        conv.bias.data = conv.bias.data.clone()
    elif name == "weights moved":
        conv.values.data = conv.values.data.clone()
    elif name == "buffer replaced":
        conv.index = conv.index.clone()
    elif name == "activation":
        conv.relu = not conv.relu
    elif name == "hook":
        conv.register_forward_hook(lambda _, __, out: out * 2)
    elif name == "span":
        assert isinstance(conv.span, Tensor)
        conv.span.mul_(0.5)
    else:
        fast.set_submodule("layer2.1.conv1", copy.deepcopy(conv))


CHANGES = ("bias moved", "weights moved", "buffer replaced", "activation", "hook", "layer replaced", "span")


@pytest.mark.parametrize("name", CHANGES)
def test_the_quick_way_sees_every_change(name: str) -> None:
    """Once a region has run, a call first asks whether anything has changed: whatever has, the layers decide again."""
    torch.manual_seed(0)
    model = prunus.models.make("resnet20").eval()
    prunus.prune(model, 0.9, pattern="balanced:16", exclude=("linear",))
    x = torch.randn(1, 3, 32, 32)
    kinds = {"activations": torch.int8, "calibration": x} if name == "span" else {}
    fast = compress(model, example=x, select="always", fuse=True, **kinds)
    (region,) = regions(fast)
    with torch.no_grad():
        before = region(x)
        watch = region._last.watch  # type: ignore[union-attr]
        assert watch.same()
        assert torch.equal(region(x), before)
        conv = fast.get_submodule("layer2.1.conv1")
        assert isinstance(conv, SparseConv2d)
        _change(name, conv, fast)
        assert not watch.same()
        after = region(x)
        assert torch.equal(after, region.one_by_one(region.convs(), (x,)))
        assert torch.equal(after, before) == (name not in ("activation", "hook", "span"))


class Inverted(nn.Module):
    """Blocks as mobile networks have them: wider by 1x1, each channel by itself, narrower by 1x1, with sums."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def draw(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (1,), generator=generator))

        self.channels = narrow = 16 * draw(1, 2)
        self.act, self.blocks = nn.ReLU6(), nn.ModuleList()
        self.pads, self.sums = list[tuple[int, int, int, int]](), list[bool]()
        for _ in range(draw(1, 4)):
            outputs = narrow if draw(0, 1) else 16 * draw(1, 3)
            wide, kernel, stride = 16 * draw(1, 5), 2 * draw(1, 2) + 1, draw(1, 2) if outputs != narrow else 1
            side = kernel // 2 - (stride == 2)  # zeros on the left, and one more on the right if every second is taken
            uneven = bool(draw(0, 1)) or stride == 2
            self.sums.append(outputs == narrow and stride == 1)
            self.pads.append((side, kernel // 2, side, kernel // 2) if uneven else (0, 0, 0, 0))
            depthwise = nn.Conv2d(wide, wide, kernel, stride, 0 if uneven else kernel // 2, groups=wide, bias=False)
            layers = [nn.Conv2d(narrow, wide, 1, bias=False), depthwise, nn.Conv2d(wide, outputs, 1, bias=False)]
            norms = [nn.BatchNorm2d(layer.out_channels) for layer in layers]
            for norm in norms:
                nn.init.uniform_(norm.weight, 0.5, 1.5, generator=generator)
                nn.init.normal_(norm.bias, 0.0, 0.5, generator=generator)
            self.blocks.append(nn.ModuleList([*layers, *norms]))
            narrow = outputs
        prunus.prune(self, 0.5, pattern="balanced:16", exclude=("blocks.*.1",))

    def forward(self, x: Tensor) -> Tensor:
        for (expand, depthwise, project, *norms), pad, adds in zip(self.blocks, self.pads, self.sums):
            y = self.act(norms[0](expand(x)))
            y = self.act(norms[1](depthwise(functional.pad(y, pad) if any(pad) else y)))
            y = norms[2](project(y))
            x = y + x if adds else y
        return x


@pytest.mark.parametrize("activations", [None, torch.int8])
def test_mobile_networks_are_one_region_and_compute_the_same(activations: torch.dtype | None) -> None:
    for seed in range(scale(12, full=200)):
        torch.manual_seed(seed)
        model = Inverted(seed).eval()
        x = torch.randn(1 + seed % 3, model.channels, 8 + seed % 17, 9 + seed % 13)
        fast = compress(model, select="always", fuse=True, activations=activations)
        (region,) = regions(fast)
        assert [step.kind for step in region.steps] == ["conv"] * 3 * len(model.blocks)
        assert [step.cap for step in region.steps[:3]] == [6.0, 6.0, math.inf]
        with torch.no_grad():
            found = fast(x)
            assert torch.equal(found, one_by_one(fast, x))
            torch.set_num_threads(2)
            assert torch.equal(fast(x), found)
            torch.set_num_threads(1)
            wanted = model(x)
        if activations is None:
            close(found, wanted)
        else:
            assert (found - wanted).norm() < 0.15 * wanted.norm()


@pytest.mark.parametrize("fixed", [False, True])
def test_layers_that_read_one_channel_each_multiply_integers(fixed: bool) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        model = Inverted(seed).eval()
        x, samples = (torch.randn(count, model.channels, 17, 19) for count in (3, 8))
        given = samples if fixed else None
        fast = compress(model, select="always", fuse=True, activations=torch.int8, calibration=given)
        convs = [module for module in fast.modules() if isinstance(module, SparseConv2d)]
        assert len(convs) == 3 * len(model.blocks)
        assert all(conv.integer for conv in convs)
        with torch.no_grad():
            assert torch.equal(fast(x), one_by_one(fast, x))
            assert (fast(x) - model(x)).norm() < 0.15 * model(x).norm()


def test_clamps_and_pads_that_others_read_too_stay_outside() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, groups=16)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            padded = functional.pad(functional.relu6(y), (0, 2, 0, 2))
            return self.second(padded) + y + padded[:, :, :-2, :-2]

    torch.manual_seed(0)
    model = Shared().eval()
    prunus.prune(model, 0.5, pattern="balanced:16", exclude=("second",))
    fast, x = compress(model, select="always", fuse=True), 5 * torch.randn(2, 16, 9, 11)
    with torch.no_grad():
        x[0, :, 4, 4] = float("nan")
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4, equal_nan=True)


class Two(nn.Module):
    """Two pruned convolutions, and something done with them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.a, self.b, self.way = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), way
        self.act, self.limit = nn.SiLU(inplace=True), nn.Hardtanh(0.0, math.inf)
        prunus.prune(self, 0.7)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.way == "changed in place":
            y = self.b(h)
            return y + self.act(h)
        if self.way == "multiplied in place":
            y = self.b(h)
            return y + h.mul_(2)
        if self.way == "padded and added":
            padded = functional.pad(h, (0, 1, 0, 1))
            return self.b(padded) + padded
        if self.way == "padded by name":
            return self.b(input=functional.pad(h, (0, 1, 0, 1)))
        if self.way == "no upper limit":
            return self.b(self.limit(h))
        if self.way == "plus a number":
            return self.b(h) + x.size(0)
        return self.b(h) + (h.double() if self.way == "plus doubles" else h > 0)


WAYS = (
    "changed in place",
    "multiplied in place",
    "padded and added",
    "padded by name",
    "no upper limit",
    "plus a number",
    "plus doubles",
    "plus truths",
)


@pytest.mark.parametrize("way", WAYS)
def test_what_stands_around_convolutions_keeps_its_meaning(way: str) -> None:
    torch.manual_seed(0)
    model = Two(way).eval()
    fast, x = compress(model, select="always", fuse=True), torch.randn(2, 16, 9, 9)
    wanted = model(x)
    torch.testing.assert_close(fast(x), wanted, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), wanted.detach(), rtol=1e-4, atol=1e-5)


def test_clamps_and_pools_that_change_later_are_followed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU6(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3)).eval()
    prunus.prune(model, 0.5, pattern="balanced:16")
    fast, x, seen = compress(model, select="always", fuse=True), 9 * torch.randn(1, 16, 12, 12), list[int]()
    assert [step.kind for step in regions(fast)[0].steps] == ["conv", "max_pool", "conv"]

    def agree() -> None:
        with torch.no_grad():
            for _ in range(2):  # the second call takes the quick way
                close(fast(x), model(x))

    agree()
    for one in (model, fast):
        one.get_submodule("1").max_val = 1.0  # type: ignore[assignment]
    agree()
    for one in (model, fast):
        one.get_submodule("2").kernel_size = 3  # type: ignore[assignment]
    agree()
    for one in (model, fast):
        one.set_submodule("1", nn.Tanh())
    agree()
    fast.get_submodule("1").register_forward_hook(lambda *_: seen.append(1))
    fast.get_submodule("2").register_forward_hook(lambda *_: seen.append(2))
    agree()
    assert seen == [1, 2, 1, 2]


def test_depthwise_layers_are_packed_without_the_zeros_between_channels() -> None:
    torch.manual_seed(0)
    for channels, kernel in ((16, 3), (40, 5), (17, 3), (5, 3), (64, 1)):
        conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        prunus.prune(conv, 0.3)
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            geometry = ConvGeometry.of(conv)
            packed = geometry.pack(conv.weight, channels, None, dtype)
            whole = pack(geometry.matrix(ungrouped(conv.weight.detach(), channels), packed.bank), packed.bank, dtype)
            assert packed.problem() == ""
            assert torch.equal(packed.dense(), whole.dense())
            x = torch.randn(2, channels, 9, 11)
            close(SparseConv2d(packed, geometry, conv.bias)(x), SparseConv2d(whole, geometry, conv.bias)(x))

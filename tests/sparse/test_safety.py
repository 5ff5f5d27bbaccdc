"""Whatever tensors a packed layer is given: an error in one sentence, never a read past their end."""

from __future__ import annotations

import copy
import gc
import random
import subprocess
import sys
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.errors import BadInput
from prunus.sparse import compress
from prunus.sparse._copies import sharing
from prunus.sparse._modules import PackedModule
from prunus.sparse._packed import kernels, pack
from support import scale


def packed_layer(dtype: torch.dtype | None = None) -> PackedModule:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32)).eval()
    prunus.prune(model, 0.75, pattern="balanced:16")
    layer = compress(model, select="always", dtype=dtype)[0]
    assert isinstance(layer, PackedModule)
    return layer


CHANGES: dict[str, Callable[[PackedModule], None]] = {
    "values cut": lambda layer: setattr(layer, "values", layer.values[:4]),
    "index cut": lambda layer: setattr(layer, "index", layer.index[:1]),
    "schedule cut": lambda layer: setattr(layer, "schedule", layer.schedule[:1]),
    "starts cut": lambda layer: setattr(layer, "starts", layer.starts[:3]),
    "starts far": lambda layer: setattr(layer, "starts", layer.starts + 10**9),
    "banks far": lambda layer: setattr(layer, "schedule", layer.schedule + 10**6),
    "banks below": lambda layer: setattr(layer, "schedule", layer.schedule - 10**6),
    "more rows": lambda layer: (setattr(layer, "rows", 10**9), setattr(layer, "_view", None), None)[2],
    "fewer columns": lambda layer: (setattr(layer, "cols", 3), setattr(layer, "_view", None), None)[2],
    "other type": lambda layer: setattr(layer, "index", layer.index.to(torch.int64)),
    "turned": lambda layer: setattr(layer, "values", layer.values.T.contiguous().T),
    "nan": lambda layer: setattr(layer, "values", layer.values * float("nan")),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("ran", [False, True])
def test_replaced_buffers_are_checked_before_they_are_read(change: str, ran: bool) -> None:
    layer, x = packed_layer(), torch.randn(3, 3 if change == "fewer columns" else 64)
    with torch.no_grad():
        if ran and change != "fewer columns":
            layer(x)
        CHANGES[change](layer)
        with pytest.raises(BadInput, match="does not fit together"):
            layer(x)
    with pytest.raises(BadInput, match="does not fit together"):  # the registered operator, as with gradients
        layer(x.requires_grad_())


def test_a_schedule_that_is_replaced_is_seen() -> None:
    layer, x = packed_layer(), torch.randn(3, 64)
    with torch.no_grad():
        before = layer(x)
        layer.schedule = layer.schedule.clone()
        assert torch.equal(layer(x), before)


def operands() -> tuple[Tensor, list[Tensor]]:
    weight = torch.randn(32, 64) * (torch.rand(32, 64) < 0.25)
    return torch.randn(2, 64), list(pack(weight, 16).tensors().values())


def test_the_operators_check_what_they_are_given() -> None:
    """Random wrong sizes and contents, in whatever combination: `BadInput`, or a result of the right shape."""
    x, good = operands()
    expected = torch.ops.prunus.sparse_linear(x, None, good, 32, 64, 16, False, False)
    source = random.Random(5)
    refused = 0
    count = scale(300, full=5_000)
    for _ in range(count):
        tensors = [tensor.clone() for tensor in good]
        rows, cols, bank = 32, 64, 16
        for _ in range(source.randrange(1, 3)):
            which, kind = source.randrange(4), source.randrange(6)
            if kind == 0:
                tensors[which] = tensors[which][: source.randrange(1 + len(tensors[which]))]
            elif kind == 1 and tensors[which].numel():
                place = source.randrange(tensors[which].numel())
                tensors[which].view(-1)[place] = source.choice([0, 1, 7, 15, 255 if which == 1 else 2**30])
            elif kind == 2:
                rows = source.choice([0, 1, 16, 31, 33, 10**12, -1])
            elif kind == 3:
                cols = source.choice([0, 1, 48, 63, 65, 10**12, -1])
            elif kind == 4:
                bank = source.choice([16, 32, 64, 256, 0, 7])
            else:
                tensors.pop(which) if len(tensors) > 3 else tensors.append(torch.ones(3))
                break
        try:
            out = torch.ops.prunus.sparse_linear(x, None, tensors, rows, cols, bank, False, False)
        except BadInput:
            refused += 1
        else:
            assert out.shape == (2, rows)
    assert refused > count / 3
    assert torch.equal(torch.ops.prunus.sparse_linear(x, None, good, 32, 64, 16, False, False), expected)


def test_the_operator_sees_changes_in_place() -> None:
    x, tensors = operands()
    torch.ops.prunus.sparse_linear(x, None, tensors, 32, 64, 16, False, False)
    tensors[2].fill_(10**6)
    with pytest.raises(BadInput, match="does not fit together"):
        torch.ops.prunus.sparse_linear(x, None, tensors, 32, 64, 16, False, False)


@pytest.mark.parametrize(
    "sizes",
    [[1, 2], [64, 16, 3, 3, 1, 1, 1, 1, 1, 1], [4, 32, 4, 4, 0, 0, 0, 0, 1, 1], [4, 32, 4, 4, 1, 1, -9, 0, 1, 1]],
)
def test_the_convolution_checks_its_sizes(sizes: list[int]) -> None:
    _, tensors = operands()
    with pytest.raises(BadInput, match="convolution"):
        torch.ops.prunus.sparse_conv2d(torch.randn(1, 4, 8, 8), None, None, tensors, 32, 64, 16, False, sizes)


OUT_OF_MEMORY = """
import resource, torch, prunus
from torch import nn
from prunus.sparse import compress
from prunus.sparse._copies import sharing
torch.manual_seed(0)
torch.set_num_threads(4)
model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1)).eval()
prunus.prune(model, 0.75, pattern="balanced:16")
fast, x = compress(model, select="always"), torch.randn(1, 64, 16, 16)
big, out = torch.randn(8, 64, 96, 96), None
failed = 0
with torch.no_grad():
    before = fast(x)
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    for step in range(40):
        limit = size + (step << 19)
        resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
        try:
            fast(big)
        except (MemoryError, RuntimeError) as error:
            failed += 1
            assert "memory" in str(error), error
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        assert torch.equal(fast(x), before)
print("failed", failed)
"""


@pytest.mark.skipif(kernels() is None, reason="no compiled kernels here")
def test_running_out_of_memory_is_an_error_and_the_pool_works_on() -> None:
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[1]) >= 1


def test_a_layer_called_again_sees_what_was_changed() -> None:
    """From its second call on one native question replaces all others: every change must still be seen."""
    torch.manual_seed(0)
    dense = nn.Linear(64, 48)
    prunus.prune(dense, 0.75, pattern="balanced:16")
    layer, x = prunus.sparse.BalancedLinear.from_dense(dense), torch.randn(3, 64)
    with torch.no_grad():
        plain = [layer(x) for _ in range(3)][-1]
        assert layer._quick is not None
        other = sharing(layer)
        other.relu = True
        assert torch.equal(other(x), plain.relu())  # a copy is not the layer it was made from
        assert torch.equal(layer(x), plain)
        layer.relu = True
        assert torch.equal(layer(x), plain.relu())
        layer.relu = False
        layer.bias.data = layer.bias.data + 1.0
        torch.testing.assert_close(layer(x), plain + 1.0)
        layer.values = layer.values * 2.0
        torch.testing.assert_close(layer(x), 2.0 * (plain - dense.bias) + dense.bias + 1.0, rtol=1e-5, atol=1e-5)
        assert torch.equal(layer(x.double().float().t().contiguous().t()), layer(x))
        with pytest.raises(BadInput):
            layer(x[:, :60])
        assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    x.requires_grad_()
    layer(x).sum().backward()
    assert x.grad is not None


def test_a_layer_called_again_can_be_freed() -> None:
    dense = nn.Linear(64, 48)
    prunus.prune(dense, 0.75)
    layer = prunus.sparse.BalancedLinear.from_dense(dense)
    with torch.no_grad():
        for _ in range(3):
            layer(torch.randn(1, 64))
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None

"""Integer products against an oracle of whole numbers: the same bits on every instruction set and for all threads."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import prunus
from prunus.errors import BadFile, BadInput
from prunus.sparse import BalancedLinear, pack
from prunus.sparse._integer import integer_linear
from prunus.sparse._ops import INTEGER, run_linear
from prunus.sparse._packed import BANKS, Packed
from prunus.sparse._plan import plan_of
from support import scale
from support.kernels import draw, each_level, matrix

level = each_level()


def oracle(packed: Packed, x: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> np.ndarray:
    """One row and one token at a time, Python's whole numbers, numpy's float32 for the few roundings."""
    one, top = np.float32(1), np.float32(127)
    weight = np.rint(packed.dense().double().numpy() / packed.scale.double().numpy()[:, None]).astype(np.int64)
    out = np.zeros((x.shape[0], packed.rows), np.float32)
    for n, token in enumerate(x.numpy()):
        if not np.isfinite(token).all():
            out[n] = np.nan
            continue
        low, high = np.float32(min(0, token.min(initial=0))), np.float32(max(0, token.max(initial=0)))
        step = high / top - low / top
        q, zero = np.zeros(packed.cols, np.int64), 0
        if step < np.float32(1e-37):
            step = np.float32(0)
        else:
            inverse = one / step
            zero = int(np.rint(-low * inverse))
            q = np.clip(np.rint(token * inverse).astype(np.int64) + zero, 0, 127)
        for r in range(packed.rows):
            exact = sum(int(w) * (int(value) - zero) for w, value in zip(weight[r], q) if w)
            with np.errstate(over="ignore"):
                value = np.float32(exact) * (step * packed.scale.numpy()[r])
            value = value if bias is None else value + bias.numpy()[r]
            out[n, r] = 0 if relu and value < 0 else value
    return out


@pytest.mark.prove
def test_the_bits_are_those_of_the_oracle(level: str) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(scale(60, full=10_000)):
        rows, cols, tokens = draw(generator, 50), draw(generator, 150), draw(generator, 9)
        packed = pack(matrix(generator, rows, cols), BANKS[draw(generator, 4)], torch.int8)
        x = torch.randn(tokens, cols, generator=generator) * 10.0 ** (draw(generator, 12) - 6) + draw(generator, 2)
        if draw(generator, 1):
            x = x.relu()
        bias = torch.randn(rows, generator=generator) if draw(generator, 1) else None
        relu = bool(draw(generator, 1))
        expected = oracle(packed, x, bias, relu)
        found = run_linear(packed, x, bias, relu, INTEGER)
        assert np.array_equal(found.numpy(), expected), (rows, cols, tokens)
        assert np.array_equal(integer_linear(packed, x, bias, relu).numpy(), expected)


def test_tokens_without_numbers_and_without_size(level: str) -> None:
    generator = torch.Generator().manual_seed(4)
    packed = pack(matrix(generator, 20, 40), 16, torch.int8)
    x = torch.randn(6, 40, generator=generator)
    x[0, 3], x[1, 39], x[2, 0] = float("nan"), float("inf"), -float("inf")
    x[3], x[4] = 0.0, 1e-42
    found = run_linear(packed, x, None, True, INTEGER)
    assert bool(found[:3].isnan().all())
    assert bool((found[3:5] == 0).all())
    assert bool(found[5].isfinite().all())
    large = run_linear(packed, torch.full((1, 40), 3e38), None, False, INTEGER)  # the range itself must not overflow
    assert not bool(large.isnan().any())
    spread = torch.tensor([3e38, -3e38]).repeat(20)[None]
    assert np.array_equal(run_linear(packed, spread, None, False, INTEGER).numpy(), oracle(packed, spread, None, False))


def test_the_largest_sums_do_not_overflow(level: str) -> None:
    weight = torch.ones(16, 4096)
    for sign in (1, -1):
        packed = pack(sign * weight, 16, torch.int8)
        found = run_linear(packed, torch.ones(3, 4096), None, False, INTEGER)
        torch.testing.assert_close(found, torch.full((3, 16), sign * 4096.0), rtol=1e-5, atol=0)


def test_the_same_bits_for_any_number_of_threads(level: str) -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(640, 700, generator=generator) * (torch.rand(640, 700, generator=generator) < 0.2)
    packed, before = pack(weight, 16, torch.int8), torch.get_num_threads()
    try:
        for tokens in (1, 7, 90):
            x, results = torch.randn(tokens, 700, generator=generator), []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(run_linear(packed, x, choice=INTEGER))
            assert all(torch.equal(results[0], other) for other in results[1:])
    finally:
        torch.set_num_threads(before)


def test_a_token_does_not_depend_on_its_neighbours(level: str) -> None:
    generator = torch.Generator().manual_seed(6)
    packed = pack(matrix(generator, 33, 64), 16, torch.int8)
    x = torch.randn(11, 64, generator=generator)
    whole = run_linear(packed, x, choice=INTEGER)
    for n in range(11):
        assert torch.equal(run_linear(packed, x[n], choice=INTEGER), whole[n])


def pruned(sparsity: float = 0.75) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)).eval()
    prunus.prune(model, sparsity, pattern="balanced:16")
    return model, torch.randn(8, 256)


def test_compress_states_the_error_of_each_layer() -> None:
    model, x = pruned()
    fast = prunus.compress(model, example=x, select="always", activations=torch.int8)
    rows = prunus.sparse.explain(fast)
    assert [row.format for row in rows] == ["bank 16, int8 x int8"] * 2
    with torch.no_grad():
        for row, module, given in ((rows[0], fast[0], x), (rows[1], fast[2], model[1](model[0](x)))):
            dense = model.get_submodule(row.layer)(given)
            assert row.error == pytest.approx(float((module(given) - dense).norm() / dense.norm()), rel=1e-5)
            assert 0 < row.error < 0.02
        assert float((fast(x) - model(x)).norm() / model(x).norm()) < 0.03


def test_files_keep_integer_products(tmp_path: Path) -> None:
    model, x = pruned()
    fast = prunus.compress(model, example=x, select="always", dtype=torch.int8, activations=torch.int8)
    again = prunus.sparse.load(prunus.sparse.save(fast, tmp_path / "small.safetensors"), model)
    with torch.no_grad():
        assert torch.equal(again(x), fast(x))
        assert torch.equal(copy.deepcopy(again)(x), fast(x))
    assert prunus.sparse.explain(again) == prunus.sparse.explain(fast)


def test_a_file_with_unknown_inputs_is_refused(tmp_path: Path) -> None:
    model, x = pruned()
    fast = prunus.compress(model, example=x, select="always", activations=torch.int8)
    plan_of(fast).layers["0"]["activations"] = "int4"  # as a later version might write it
    path = prunus.sparse.save(fast, tmp_path / "later.safetensors")
    with pytest.raises(BadFile, match="int4"):
        prunus.sparse.load(path, model)


def test_it_is_one_operator_for_export_and_gradients_pass_through() -> None:
    model, x = pruned()
    fast = prunus.compress(model, example=x, select="always", activations=torch.int8)
    with torch.no_grad():
        exported = torch.export.export(fast, (x,)).module()
        assert torch.equal(exported(x), fast(x))
    inputs = x.clone().requires_grad_()
    fast[0](inputs).sum().backward()
    weight = fast[0].packed.dense()
    torch.testing.assert_close(inputs.grad, weight.sum(0).expand(8, -1), rtol=1e-4, atol=1e-5)


def test_bad_requests_are_refused() -> None:
    model, x = pruned()
    with pytest.raises(BadInput, match="int8 weights"):
        prunus.compress(model, example=x, dtype=torch.bfloat16, activations=torch.int8)
    with pytest.raises(BadInput, match=r"torch\.int4|torch\.float16"):
        prunus.compress(model, example=x, dtype=torch.int8, activations=torch.float16)
    with pytest.raises(BadInput, match="int8 weights"):
        BalancedLinear(pack(torch.eye(16)), activations=torch.int8)
    fast = prunus.compress(model, example=x, select="always", activations=torch.int8)
    with pytest.raises(BadInput, match="no certificate covers"):
        prunus.certify(model, fast, prunus.Ball(1.0), example=x[:1])


def test_permuted_columns_and_a_fused_relu() -> None:
    torch.manual_seed(1)
    linear = nn.Linear(64, 32)
    order = torch.randperm(64)
    packed = BalancedLinear.from_dense(linear, dtype=torch.int8, permutation=order, activations=torch.int8)
    packed.relu = True
    x = torch.randn(5, 64)
    with torch.no_grad():
        dense = linear(x).relu()
        assert float((packed(x) - dense).norm() / dense.norm()) < 0.02


@pytest.mark.parametrize("batch", [1, 9, 40])
def test_stored_bytes_give_the_same_floats_from_the_first_call_on(batch: int, level: str) -> None:
    """What is kept from a call for later ones, and the number of threads, change no bit of a layer stored in int8."""
    torch.manual_seed(0)
    weight = nn.Linear(200, 70, bias=False)
    prunus.prune(weight, 0.8, pattern="balanced:16")
    x, before = torch.randn(batch, 200), torch.get_num_threads()
    layer = BalancedLinear(pack(weight.weight.detach(), None, torch.int8))
    with torch.no_grad():
        first = layer(x)
        torch.testing.assert_close(first, x @ layer.packed.dense().T, rtol=1e-5, atol=1e-5)
        try:
            for threads in (1, 2, 1):
                torch.set_num_threads(threads)
                assert torch.equal(layer(x), first)
        finally:
            torch.set_num_threads(before)

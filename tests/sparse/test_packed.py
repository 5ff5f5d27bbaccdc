"""Packing and the linear kernels against a float64 oracle, for random shapes and masks and on every instruction set."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from prunus.errors import BadInput
from prunus.pruning import prune
from prunus.sparse import BalancedLinear, SparseConv2d, compress, pack
from prunus.sparse._ops import AUTOMATIC, PERMUTE, TILE, run_linear
from prunus.sparse._packed import BANKS, Packed, _content_problem, _pack_plain, kernels
from support import scale
from support.kernels import each_level

level = each_level()


def sparse_matrix(generator: torch.Generator, rows: int, cols: int, density: float, kind: str) -> torch.Tensor:
    """A matrix with zeros: balanced in banks of 16, free, or with whole rows and banks empty."""
    weight = torch.randn(rows, cols, generator=generator)
    noise = torch.rand(rows, cols, generator=generator)
    if kind == "balanced" and cols:
        keep = max(1, round(16 * density))
        parts = [part.argsort(1).argsort(1) < keep for part in noise.split(16, dim=1)]
        return weight * torch.cat(parts, 1)
    kept = noise < density
    if kind == "ragged":
        kept[torch.rand(rows, generator=generator) < 0.3] = False
        kept[:, torch.rand(cols, generator=generator) < 0.5] = False
    return weight * kept


def tolerance(weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """1e-5 (|W| |x| + |b|), the promise for float32."""
    size = x.double().abs() @ weight.double().abs().T
    return 1e-5 * (size if bias is None else size + bias.double().abs()) + 1e-30


def draw(generator: torch.Generator, most: int) -> int:
    return int(torch.randint(0, most + 1, (1,), generator=generator))


@pytest.mark.prove
def test_agrees_with_float64_on_random_shapes(level: str) -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(scale(150, full=3400)):
        rows, cols, batch = draw(generator, 90), draw(generator, 300), draw(generator, 70)
        kind = ("balanced", "free", "ragged")[draw(generator, 2)]
        density = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)[draw(generator, 5)]
        bank = BANKS[draw(generator, len(BANKS) - 1)] if draw(generator, 1) else None
        weight = sparse_matrix(generator, rows, cols, density, kind)
        x = torch.randn(batch, cols, generator=generator)
        bias = torch.randn(rows, generator=generator) if draw(generator, 1) else None
        packed = pack(weight, bank)
        assert packed.problem() == ""
        assert torch.equal(packed.dense(), weight)
        expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        for choice in (0, PERMUTE, TILE):
            found = run_linear(packed, x, bias, choice=choice)
            assert found.shape == (batch, rows)
            assert bool(((found - expected).abs() <= tolerance(weight, x, bias)).all()), (rows, cols, batch, kind)


def test_without_columns_the_bias_is_left(level: str) -> None:
    bias = torch.randn(29)
    for batch in (1, 9, 70):
        for choice in (0, TILE):
            found = run_linear(pack(torch.zeros(29, 0)), torch.zeros(batch, 0), bias, choice=choice)
            assert torch.equal(found, bias.expand(batch, 29))


@pytest.mark.parametrize(("dtype", "relative"), [(torch.bfloat16, 2.0**-8), (torch.int8, None)])
def test_narrow_values_stay_within_their_bounds(level: str, dtype: torch.dtype, relative: float | None) -> None:
    generator = torch.Generator().manual_seed(6)
    for batch in (1, 2, 5, 9, 40):
        weight = sparse_matrix(generator, 37, 100, 0.2, "balanced")
        x = torch.randn(batch, 100, generator=generator)
        packed = pack(weight, 16, dtype)
        slack = tolerance(weight, x, None)
        if relative is not None:
            slack = slack + relative * x.double().abs() @ weight.double().abs().T
        else:  # half a step of the row's scale for every kept weight
            step = weight.double().abs().amax(1, keepdim=True) / 127
            slack = slack + 0.5001 * x.double().abs() @ ((weight != 0) * step).T
        for choice in (PERMUTE, TILE):
            found = run_linear(packed, x, choice=choice)
            assert bool(((found - x.double() @ weight.double().T).abs() <= slack).all())
        # and the kernel computes exactly the stored numbers
        stored = x.double() @ packed.dense().double().T
        assert bool(((run_linear(packed, x) - stored).abs() <= tolerance(packed.dense(), x, None)).all())


def test_relu_and_bias_end_the_sum(level: str) -> None:
    generator = torch.Generator().manual_seed(7)
    weight, bias = sparse_matrix(generator, 50, 64, 0.1, "balanced"), torch.randn(50, generator=generator)
    for batch in (1, 8, 33):
        x = torch.randn(batch, 64, generator=generator)
        for dtype in (None, torch.int8):
            packed = pack(weight, 16, dtype)
            plain = run_linear(packed, x, bias)
            assert torch.equal(run_linear(packed, x, bias, relu=True), plain.relu())


def test_the_same_bytes_for_one_and_two_threads(level: str) -> None:
    generator = torch.Generator().manual_seed(8)
    before = torch.get_num_threads()
    try:
        for rows, cols, batch in ((640, 1024, 1), (640, 1024, 8), (200, 700, 100), (1000, 300, 260)):
            packed = pack(sparse_matrix(generator, rows, cols, 0.1, "free"), 16)
            x = torch.randn(batch, cols, generator=generator)
            results = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(run_linear(packed, x))
            assert torch.equal(results[0], results[1])
            assert torch.equal(results[0], results[2])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("kept", [None, 1, 2])
def test_what_a_layer_keeps_gives_the_same_bytes_as_its_first_call(
    level: str, kept: int | None, dtype: torch.dtype | None
) -> None:
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(70, 100, generator=generator)
    if kept is None:
        weight = sparse_matrix(generator, 70, 100, 0.2, "balanced")
    else:  # 1:4 and 2:4
        ranks = torch.rand(70, 25, 4, generator=generator).argsort(-1)
        weight = weight * (ranks < kept).reshape(70, 100)
    packed = pack(weight, 16, dtype)
    for batch in (1, 2, 9, 33):
        x = torch.randn(batch, 100, generator=generator)
        stored = x.double() @ packed.dense().double().T
        for choice in (PERMUTE, TILE):
            fresh = run_linear(pack(weight, 16, dtype), x, choice=choice)
            assert bool(((fresh - stored).abs() <= tolerance(packed.dense(), x, None)).all())
            for _ in range(2):
                assert torch.equal(run_linear(packed, x, choice=choice), fresh)


def test_several_python_threads_at_once() -> None:
    generator = torch.Generator().manual_seed(9)
    packed = pack(sparse_matrix(generator, 512, 512, 0.1, "balanced"))
    x = torch.randn(64, 512, generator=generator)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    expected, wrong = run_linear(packed, x), []

    def work() -> None:
        for _ in range(50):
            if not torch.equal(run_linear(packed, x), expected):
                wrong.append(1)

    try:
        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        torch.set_num_threads(torch_threads)
    assert not wrong


def test_inputs_of_any_layout() -> None:
    generator = torch.Generator().manual_seed(10)
    weight = sparse_matrix(generator, 20, 48, 0.2, "free")
    layer = BalancedLinear(pack(weight))
    wide = torch.randn(7, 96, generator=generator)
    with torch.no_grad():
        for x in (
            wide[:, 24:72],
            wide[:, ::2],
            wide.T[:48].T,
            wide[:, :48].expand(3, 7, 48),
            wide[0, :48],
            wide[:0, :48],
        ):
            expected = (x.double() @ weight.double().T).float()
            torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
        one = torch.randn(1, 48, generator=generator).expand(5, 48)
        torch.testing.assert_close(layer(one), one @ weight.T, rtol=1e-4, atol=1e-4)


def test_plain_tensors_are_read_in_one_call_and_others_left_alone() -> None:
    generator = torch.Generator().manual_seed(20)
    weight = sparse_matrix(generator, 20, 48, 0.2, "free")
    packed = pack(weight)
    layer = packed.layer
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this version of torch has no exchange table: layers are called the longer way")
    x = torch.randn(2, 3, 48, generator=generator)
    bias = torch.nn.Parameter(torch.randn(20, generator=generator))
    for one in (x[0], x, x[0, 0], x[0, :0]):
        for added in (None, bias, bias.detach()):
            out = layer.linear_on(one, added, False, 1, AUTOMATIC)
            assert type(out) is torch.Tensor
            assert not out.requires_grad
            assert out.is_contiguous()
            torch.testing.assert_close(
                out, torch.nn.functional.linear(one, weight, added).detach(), rtol=1e-5, atol=1e-5
            )
    left = [x[0].double(), x[0, :, :47], torch.randn(48, 3).T, torch.nn.Parameter(x[0]), x[0, 0, 0], "x", None]
    left += [x[0].to("meta"), x[0].to_sparse()]
    for one in left:
        assert layer.linear_on(one, None, False, 1, AUTOMATIC) is None
    for added in (bias[:19], bias.detach().double(), torch.zeros(20, 2)[:, 0], torch.zeros(1, 20), "b"):
        assert layer.linear_on(x[0], added, False, 1, AUTOMATIC) is None


@pytest.mark.skipif(kernels() is None, reason="needs the compiled kernels")
def test_plain_images_are_read_natively_and_others_left_alone() -> None:
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this version of torch has no exchange table: layers are called the longer way")
    generator = torch.Generator().manual_seed(31)
    conv = torch.nn.Conv2d(16, 20, 3)
    sparse = SparseConv2d.from_dense(conv)
    layer, rest = sparse.packed.layer, (False, 1, 16, sparse.geometry.native.data_ptr())
    x, other = torch.randn(2, 16, 6, 7, generator=generator), torch.randn(2, 20, 4, 5, generator=generator)
    with torch.no_grad():
        expected = conv(x)
    for added in (None, other):
        out = layer.conv_on(x, conv.bias, added, *rest)
        assert type(out) is torch.Tensor
        assert not out.requires_grad
        torch.testing.assert_close(out, expected if added is None else expected + other, rtol=1e-5, atol=1e-5)
    left = [x[0], x.double(), x[:, :15], x.contiguous(memory_format=torch.channels_last), x[:, :, :2], "x"]
    for one in left:
        assert layer.conv_on(one, conv.bias, None, *rest) is None
    for added in (other[:1], other.double(), other[:, :, :, :4], other.transpose(2, 3), 1.0):
        assert layer.conv_on(x, conv.bias, added, *rest) is None


def test_torchs_default_type_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(21)
    weight = sparse_matrix(generator, 20, 48, 0.2, "free")
    dense = torch.nn.Linear(48, 20)
    conv = torch.nn.Conv2d(16, 20, 3)
    with torch.no_grad():
        dense.weight.copy_(weight)
        conv.weight.mul_(torch.rand(conv.weight.shape, generator=generator) < 0.2)
        x, image = torch.randn(3, 48, generator=generator), torch.randn(2, 16, 6, 6, generator=generator)
        expected = [dense(x), dense(x[:, :48].T.contiguous().T), conv(image)]
        torch.set_default_dtype(torch.float64)
        try:
            layer, sparse = BalancedLinear.from_dense(dense), SparseConv2d.from_dense(conv)
            narrow = BalancedLinear.from_dense(dense, dtype=torch.int8)
            found = [layer(x), layer(x.T.contiguous().T), sparse(image)]
            assert narrow(x).dtype == torch.float32
            assert narrow.scale.dtype == torch.float32
        finally:
            torch.set_default_dtype(torch.float32)
    for one, two in zip(found, expected):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_the_plain_packer_makes_the_same_layout() -> None:
    if kernels() is None:
        pytest.skip("the kernels were not built")
    generator = torch.Generator().manual_seed(11)
    for rows, cols, bank in ((33, 50, 16), (16, 64, 32), (5, 300, 256), (0, 10, 16), (10, 0, 16), (48, 47, 16)):
        weight = sparse_matrix(generator, rows, cols, 0.2, "free")
        native, plain = pack(weight, bank), _pack_plain(weight, bank)
        for name, tensor in native.tensors().items():
            assert torch.equal(tensor, plain.tensors()[name]), name
        assert _content_problem(plain) == ""


def test_balanced_masks_fill_every_slot() -> None:
    generator = torch.Generator().manual_seed(12)
    packed = pack(sparse_matrix(generator, 64, 256, 0.125, "balanced"))
    assert packed.fill == 1.0
    assert packed.bank == 16
    assert packed.nbytes < 4.6 * packed.kept + 300  # 4.5 bytes a weight and what the groups need


def test_sixteen_rows_waste_nothing() -> None:
    generator = torch.Generator().manual_seed(13)
    assert pack(sparse_matrix(generator, 16, 512, 0.125, "balanced")).fill == 1.0


@pytest.mark.parametrize(
    "weight",
    [torch.full((4, 4), float("nan")), torch.full((4, 4), float("inf")), torch.ones(3), torch.ones(2, 2).int()],
)
def test_refuses_what_cannot_be_packed(weight: torch.Tensor) -> None:
    with pytest.raises(BadInput):
        pack(weight)


def test_refuses_wrong_arguments() -> None:
    with pytest.raises(BadInput, match="Banks of 17"):
        pack(torch.ones(4, 4), bank=17)
    with pytest.raises(BadInput, match="cannot be stored"):
        pack(torch.ones(4, 4), dtype=torch.float16)
    layer = BalancedLinear(pack(torch.ones(4, 4)))
    for x in (torch.ones(2, 5), torch.ones(2, 4).double(), torch.tensor(1.0)):
        with pytest.raises(BadInput), torch.no_grad():
            layer(x)


def test_inconsistent_tensors_are_found() -> None:
    good = pack(sparse_matrix(torch.Generator().manual_seed(14), 40, 90, 0.3, "free"), 16)
    for name, tensor in good.tensors().items():
        for _ in range(40):
            changed = {key: value.clone() for key, value in good.tensors().items()}
            if name == "values":
                changed["values"] = changed["values"][:-1].contiguous()
            elif name == "index":  # the last bank has 10 columns: index 15 points outside
                changed["index"].fill_(255)
            else:
                position = draw(torch.Generator().manual_seed(1), tensor.numel() - 1)
                changed[name][position] += 1000
            bad = Packed(good.rows, good.cols, good.bank, *changed.values())
            assert bad.problem() != "" or torch.equal(bad.dense(), good.dense())


@pytest.mark.skipif(kernels() is None, reason="the compiled kernels do the checking")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("bank", BANKS)
def test_values_that_kernels_would_lay_elsewhere_are_refused(bank: int, dtype: torch.dtype) -> None:
    """A file may hold weights in lanes past the last row, or one column of a row twice: kernels count on neither."""
    generator = torch.Generator().manual_seed(31)
    good = pack(sparse_matrix(generator, 17, 2 * bank, 0.9, "free"), bank, dtype)
    assert good.problem() == ""

    def wrong(**others: torch.Tensor) -> str:
        made = Packed(good.rows, good.cols, good.bank, *(good.tensors() | others).values())
        assert made.problem() == _content_problem(made)
        return made.problem()

    past = good.values.clone()
    past.view(-1, 16)[-1, 1:] = 5  # the second group has one row
    assert "past the last row" in wrong(values=past)
    past.view(-1, 16)[-1, 1:] = 0
    assert wrong(values=past) == ""
    assert "twice" in wrong(index=torch.zeros_like(good.index))


def test_module_copies_saves_and_differentiates() -> None:
    generator = torch.Generator().manual_seed(15)
    dense = torch.nn.Linear(48, 33)
    with torch.no_grad():
        dense.weight.copy_(sparse_matrix(generator, 33, 48, 0.2, "balanced"))
    layer = BalancedLinear.from_dense(dense)
    x = torch.randn(5, 48, generator=generator, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    weights = torch.randn(5, 33, generator=generator)
    (layer(x) * weights).sum().backward()
    (dense(other) * weights).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    torch.testing.assert_close(layer.bias.grad, dense.bias.grad)
    twin = copy.deepcopy(layer)
    del layer.values
    with torch.no_grad():
        torch.testing.assert_close(twin(x), dense(x))
    fresh = BalancedLinear.from_dense(dense)
    fresh.load_state_dict(twin.state_dict())
    another = BalancedLinear(pack(torch.ones(33, 48)))
    with pytest.raises(BadInput, match="packs another mask"):
        another.load_state_dict(twin.state_dict())


def test_operator_passes_torchs_own_checks() -> None:
    packed = pack(sparse_matrix(torch.Generator().manual_seed(16), 20, 32, 0.2, "free"))
    arguments = (torch.randn(3, 32, requires_grad=True), torch.randn(20, requires_grad=True))
    for relu in (False, True):
        torch.library.opcheck(
            torch.ops.prunus.sparse_linear.default,
            (*arguments, list(packed.tensors().values()), 20, 32, 16, relu, False),
        )


def test_exports_as_one_node() -> None:
    layer = BalancedLinear(pack(sparse_matrix(torch.Generator().manual_seed(17), 20, 32, 0.2, "free")), torch.ones(20))
    x = torch.randn(3, 32)
    program = torch.export.export(layer, (x,))
    assert any("sparse_linear" in str(node.target) for node in program.graph.nodes)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), layer(x), rtol=0, atol=0)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=0)


def test_moved_converted_and_replaced_tensors() -> None:
    dense = torch.nn.Linear(48, 33).requires_grad_(False)
    layer, x = BalancedLinear.from_dense(dense), torch.randn(5, 48)
    wanted = layer(x)
    layer.share_memory()
    assert torch.equal(layer(x), wanted)
    layer.values.data = layer.values.clone()
    assert torch.equal(layer(x), wanted)
    for convert in (layer.half, layer.double, layer.bfloat16):
        with pytest.raises(BadInput, match="run float32 and cannot be converted"):
            convert()
        assert torch.equal(layer(x), wanted)
    assert torch.equal(layer(torch._neg_view(-x)), wanted)
    assert torch.equal(layer(input=x), wanted)
    layer.bias = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    with pytest.raises(BadInput, match="a bias of 33 numbers"):
        layer(x)
    with pytest.raises(BadInput, match="bias of a layer with 33 outputs"):
        BalancedLinear(pack(dense.weight), torch.zeros(3))


def test_a_state_whose_content_does_not_fit_is_refused() -> None:
    def one_column(columns: int) -> BalancedLinear:
        weight = torch.zeros(16, columns)
        weight[:, -1] = 1.0
        return BalancedLinear(pack(weight, 16))

    small, large = one_column(16), one_column(1 << 12)
    wanted = small(torch.ones(1, 16))
    with pytest.raises(BadInput, match="does not fit this layer"):
        small.load_state_dict(large.state_dict())
    assert torch.equal(small(torch.ones(1, 16)), wanted)
    with pytest.raises(BadInput, match="packs another mask"):
        small.load_state_dict({name: value.double() for name, value in small.state_dict().items()}, assign=True)


def test_transforms_of_torch_go_through_the_dense_weight() -> None:
    weight, x = torch.randn(8, 16), torch.randn(16)
    layer = BalancedLinear(pack(weight))
    for transform in (torch.func.jacfwd, torch.func.jacrev):
        torch.testing.assert_close(transform(layer)(x), weight)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(layer)(x.expand(3, 16)), x.expand(3, 16) @ weight.T)
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, torch.ones(16))))
        torch.testing.assert_close(out.tangent, weight.sum(1))
    conv = torch.nn.Conv2d(3, 4, 3).requires_grad_(False)
    image = torch.randn(1, 3, 5, 5)
    sparse = SparseConv2d.from_dense(conv)
    torch.testing.assert_close(torch.func.jacfwd(sparse)(image), torch.func.jacfwd(conv)(image))


def test_weights_too_large_for_bfloat16_and_layers_without_columns() -> None:
    with pytest.raises(BadInput, match="too large for bfloat16"):
        pack(torch.full((3, 3), 3.4e38), None, torch.bfloat16)
    empty = BalancedLinear(pack(torch.zeros(4, 0)), torch.ones(4))
    with torch.no_grad():
        for shape in ((0,), (2, 0), (2, 3, 0)):
            assert torch.equal(empty(torch.zeros(shape)), torch.ones(*shape[:-1], 4))
    for wrong in (torch.eye(4).to_sparse(), torch.zeros(4, 4, device="meta"), [[1.0]]):
        with pytest.raises(BadInput, match="Only dense tensors"):
            pack(wrong)


def layer_of(kind: str) -> tuple[torch.nn.Module, torch.Tensor]:
    if kind == "linear":
        return BalancedLinear.from_dense(torch.nn.Linear(48, 20)), torch.randn(3, 48)
    x, conv = torch.randn(1, 16, 7, 7), torch.nn.Conv2d(16, 16, 3)
    if kind == "conv2d":
        return SparseConv2d.from_dense(conv), x
    model = torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3)).eval()
    prune(model, 0.5, pattern="balanced:16")  # what is not pruned is not packed
    return compress(model, example=x, select="always", fuse=True), x


@pytest.mark.parametrize("kind", ("linear", "conv2d", "region"))
def test_whoever_watches_operators_sees_them(kind: str) -> None:
    """Modes of the dispatcher and transforms, for single layers and for runs of them that are one native call."""
    layer, x = layer_of(kind)
    with torch.no_grad():
        expected = layer(x)
        graph = make_fx(lambda t: layer(t) + 1)(x)
        assert f"prunus.sparse_{'conv2d' if kind == 'region' else kind}" in graph.code
        torch.testing.assert_close(graph(2 * x), layer(2 * x) + 1)
        with FakeTensorMode(allow_non_fake_inputs=True):  # where a real tensor becomes a fake one
            assert isinstance(layer(x), FakeTensor)
        torch.testing.assert_close(torch.vmap(layer)(x[None])[0], expected, rtol=1e-4, atol=1e-5)
        _, tangent = torch.func.jvp(layer, (x,), (x,))
        bias = layer(torch.zeros_like(x))
    if kind != "region":  # linear in x
        torch.testing.assert_close(tangent, expected - bias, rtol=1e-4, atol=1e-5)
    assert bool(tangent.any())


def test_scales_that_move_are_seen() -> None:
    layer, x = BalancedLinear.from_dense(torch.nn.Linear(48, 20, bias=False), dtype=torch.int8), torch.randn(3, 48)
    with torch.no_grad():
        before = layer(x)
        layer.scale.data = layer.scale.data * 2
        torch.testing.assert_close(layer(x), 2 * before)


def test_a_bias_that_cannot_be_read_is_refused() -> None:
    layer = BalancedLinear.from_dense(torch.nn.Linear(48, 20))
    layer.bias = torch.nn.Parameter(layer.bias.detach().to("meta"), requires_grad=False)
    with torch.no_grad(), pytest.raises(BadInput, match="float32 on the CPU"):
        layer(torch.randn(3, 48))

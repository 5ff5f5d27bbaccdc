"""Compressing models of other libraries, and layers of every kind: what comes back computes the same."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import prunus
from prunus.adapters import example_input, output_tensors
from prunus.errors import BadInput, RunFailed
from prunus.sparse import explain, load, save
from support import only_when_proving
from support.foreign import KINDS, small


def packed(model: nn.Module) -> dict[str, str]:
    return {row.layer: row.format for row in explain(model) if row.format != "dense"}


def left(model: nn.Module) -> dict[str, str]:
    return {row.layer: row.why for row in explain(model) if row.format == "dense"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_is_packed_saved_and_loaded_on_meta(kind: str, tmp_path) -> None:
    model = small(kind)
    example = example_input(model, batch=2)
    prunus.prune(model, 0.75, pattern="balanced:16", misfits="skip")
    fast = prunus.compress(model, example=example, select="always")
    save(fast, tmp_path / "fast.safetensors")
    with torch.device("meta"):
        empty = type(model)(model.config)
    again = load(tmp_path / "fast.safetensors", empty)
    assert len(packed(fast)) >= 8
    assert set(left(fast).values()) <= {"its weight is that of an embedding", "not pruned"}
    with torch.no_grad():
        wanted, found, loaded = (output_tensors(one(**example)) for one in (model, fast, again))
    for one, two, three in zip(wanted, found, loaded):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)
        assert torch.equal(two, three)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "llama-tied", "t5"])
def test_generation_gives_the_same_tokens(kind: str) -> None:
    start = {"decoder_start_token_id": 0} if kind == "t5" else {}
    model = small(kind, eos_token_id=None, pad_token_id=0, **start)
    prunus.prune(model, 0.75, pattern="balanced:16")
    ids = torch.randint(1, 100, (2, 5), generator=torch.Generator().manual_seed(0))
    fast = prunus.compress(model, example=example_input(model), select="always")
    options = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(ids, **options), fast.generate(ids, **options))


def test_a_tied_head_is_stored_once(tmp_path) -> None:
    tied, untied = small("llama-tied"), small("llama")
    for model, name in ((tied, "tied"), (untied, "untied")):
        prunus.prune(model, 0.75, pattern="balanced:16", exclude=("lm_head",))
        fast = prunus.compress(model, example=example_input(model), select="always")
        save(fast, tmp_path / name)
    table = tied.lm_head.weight.nbytes
    assert (tmp_path / "untied").stat().st_size - (tmp_path / "tied").stat().st_size == pytest.approx(table, rel=0.1)


def test_layers_that_share_a_weight_are_packed_once(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    model[2].weight = model[0].weight
    prunus.prune(model, 0.75, pattern="balanced:16")
    x = torch.randn(4, 64)
    fast = prunus.compress(model, example=x, select="always")
    assert fast[0].values is fast[2].values
    save(fast, tmp_path / "shared")
    again = load(tmp_path / "shared", model)
    assert torch.equal(again(x), fast(x))


class SamePadding(nn.Conv2d):
    """Pads more on the right and below, as TensorFlow does; the amount is fixed."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(functional.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride)


class SizedPadding(nn.Conv2d):
    """Pads by the size of the input."""

    def forward(self, x: Tensor) -> Tensor:
        need = (x.shape[-1] % 2, x.shape[-2] % 2)
        return functional.conv2d(functional.pad(x, (0, 1 + need[0], 0, 1 + need[1])), self.weight, self.bias)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * functional.linear(x, self.weight, self.bias)


class Renamed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class WrittenOut(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return self.bias + x @ self.weight.transpose(0, 1)


class Unbiased(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T  # its bias is not used


class Turned(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.permute(0, 1) + self.bias


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + torch.randn(x.shape)


def test_a_model_that_does_not_repeat_itself_is_told_so() -> None:
    model = Noisy().eval()
    prunus.prune(model, 0.75, pattern="balanced:16")
    with pytest.raises(BadInput, match="in another way each time"):
        prunus.compress(model, example=torch.randn(2, 64), select="always")
    assert set(packed(prunus.compress(model, select="always"))) == {"inner"}


def test_kinds_without_a_packed_form_are_named() -> None:
    model = nn.Sequential(nn.Conv1d(16, 16, 3), nn.ConvTranspose1d(16, 16, 2), nn.RNN(16, 16), nn.Embedding(9, 16))
    prunus.prune(model[:3], 0.75, pattern="balanced:16")
    why = left(prunus.compress(model, select="always"))
    assert {name: reason.rpartition(" ")[2] for name, reason in why.items()} == {
        "0": "Conv1d", "1": "ConvTranspose1d", "2": "RNN",
    }  # fmt: skip


def test_products_that_are_written_out_are_packed() -> None:
    torch.manual_seed(0)
    plain = Unbiased(64, 64, bias=False)
    model = nn.Sequential(WrittenOut(64, 64), plain, Unbiased(64, 64), Turned(64, 64)).eval()
    prunus.prune(model, 0.75, pattern="balanced:16")
    x = torch.randn(2, 64)
    fast = prunus.compress(model, example=x, select="always")
    assert set(packed(fast)) == {"0", "1"}
    assert "leaves out its bias" in left(fast)["2"]
    assert "more than one product" in left(fast)["3"]
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_own_forwards_are_packed_where_they_are_one_product(tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        SamePadding(16, 32, 3, stride=2), SizedPadding(32, 32, 3), nn.Flatten(), Doubled(32 * 9, 64), Renamed(64, 32)
    ).eval()
    x = torch.randn(2, 16, 8, 8)
    prunus.prune(model, 0.75, pattern="balanced:16")
    fast = prunus.compress(model, example=x, select="always")
    assert set(packed(fast)) == {"0", "4"}
    assert "size of the input" in left(fast)["1"]
    assert "more than one product" in left(fast)["3"]
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast[0].weight + 0, model[0].weight)
    save(fast, tmp_path / "own")
    assert torch.equal(load(tmp_path / "own", model)(x), fast(x))


@pytest.mark.parametrize("fuse", [False, True])
def test_batch_norms_fold_into_convolutions_of_other_classes(tmp_path: Path, fuse: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(SamePadding(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(), SizedPadding(32, 16, 3))
    model.append(nn.BatchNorm2d(16)).train()(torch.randn(8, 16, 10, 10))  # statistics of its own
    model.eval()
    prunus.prune(model, 0.75)
    x = torch.randn(2, 16, 10, 10)
    fast = prunus.compress(model, example=x, select="always", fuse=fuse)
    norms = [name for name, module in fast.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms == ["4"]  # the last one follows a convolution that stays dense
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        save(fast, tmp_path / "folded")
        assert torch.equal(load(tmp_path / "folded", model)(x), fast(x))


@pytest.mark.prove
@only_when_proving
def test_efficientnet_is_packed(tmp_path) -> None:
    library = pytest.importorskip("efficientnet_lite_pytorch")
    torch.manual_seed(0)
    model = library.EfficientNet.from_name("efficientnet-lite0").eval()
    masks = prunus.prune(model, 0.75, pattern="balanced:16", misfits="skip")
    assert all("depthwise" in name for name in masks.notes["skipped"])
    x = torch.randn(1, 3, 64, 64)
    fast = prunus.compress(model, example=x, select=dict.fromkeys(["_conv_stem", "_conv_head", "_fc"], True))
    assert {"_conv_stem", "_conv_head", "_fc"} <= set(packed(fast))
    assert not any("forward of its own" in why for why in left(fast).values())


def test_hooks_keep_their_layer_dense() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval()
    prunus.prune(model, 0.75, pattern="balanced:16")
    model[0].register_forward_hook(lambda module, inputs, output: output * 3)
    x = torch.randn(2, 64)
    fast = prunus.compress(model, example=x, select="always")
    assert left(fast) == {"0": "it has forward hooks"}
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize(
    "options", [{}, {"batch_first": True, "bidirectional": True, "num_layers": 2}, {"bias": False}]
)
def test_recurrent_layers(kind: type[nn.RNNBase], options: dict[str, object], tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(32, 48, **options)).eval()
    prunus.prune(model, 0.75, pattern="balanced:16")
    x = torch.randn(6, 3, 32)
    fast = prunus.compress(model, example=x, select="always")
    assert len(packed(fast)) == 1
    for one, two in zip(output_tensors(fast(x)), output_tensors(model(x))):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fast(x[:, 0])[0], model(x[:, 0])[0], rtol=1e-4, atol=1e-5)
    save(fast, tmp_path / "recurrent")
    assert torch.equal(load(tmp_path / "recurrent", model)(x)[0], fast(x)[0])


def test_a_gru_cell_and_its_state() -> None:
    torch.manual_seed(0)
    cell = nn.Sequential(nn.GRUCell(32, 32)).eval()
    prunus.prune(cell, 0.75, pattern="balanced:16")
    fast = prunus.compress(cell, example=torch.randn(3, 32), select="always")
    x, h = torch.randn(3, 32), torch.randn(3, 32)
    torch.testing.assert_close(fast[0](x, h), cell[0](x, h), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fast[0](x[0], h[0]), cell[0](x[0], h[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_encoders_with_masks(batch_first: bool, tmp_path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2).eval()
    prunus.prune(model, 0.75, pattern="balanced:16")
    x = torch.randn(3, 3, 64)
    fast = prunus.compress(model, example=x, select="always")
    assert len(packed(fast)) == 6
    padding = torch.tensor([[False, False, True], [False] * 3, [False, True, True]])
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    for options in ({}, {"mask": causal}, {"src_key_padding_mask": padding}, {"mask": causal, "is_causal": True}):
        with torch.no_grad():
            one, two = fast(x, **options), model(x, **options)
        real = ~(padding if batch_first else padding.t()) if "src_key_padding_mask" in options else ...
        torch.testing.assert_close(one[real], two[real], rtol=1e-4, atol=1e-5)
    save(fast, tmp_path / "encoder")
    assert torch.equal(load(tmp_path / "encoder", model)(x), fast(x))


def test_attention_answers_with_weights_and_takes_other_keys() -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(64, 4, kdim=32, vdim=48, batch_first=True).eval()
    prunus.prune(model, 0.75, pattern="balanced:16")
    inputs = (torch.randn(2, 5, 64), torch.randn(2, 7, 32), torch.randn(2, 7, 48))
    fast = prunus.compress(model, example=inputs, select="always")
    mask = torch.randn(5, 7)
    for options in ({}, {"average_attn_weights": False}, {"attn_mask": mask}, {"need_weights": False}):
        for one, two in zip(fast(*inputs, **options), model(*inputs, **options)):
            if two is not None:
                torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_models_are_computed_in_float32_inside(dtype: torch.dtype, tmp_path) -> None:
    model = small("llama").to(dtype)
    prunus.prune(model, 0.75, pattern="balanced:16")
    example = example_input(model)
    fast = prunus.compress(model, example=example, select="always")
    with torch.no_grad():
        one, two = fast(**example).logits, model(**example).logits
    assert one.dtype == dtype
    assert float((one.float() - two.float()).norm() / two.float().norm()) < 0.03
    assert all("float32 inside" in row.kernel for row in explain(fast) if row.format != "dense")
    save(fast, tmp_path / "narrow")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "narrow", model)(**example).logits, one)


def test_packed_layers_answer_for_their_weight() -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(32, 64)).eval()
    prunus.prune(model, 0.75, pattern="balanced:16")
    fast = prunus.compress(model, example=torch.randn(1, 16, 3, 3), select="always")
    for number in (0, 2):
        weight = fast[number].weight
        assert (weight.dtype, weight.shape, weight.device.type) == (torch.float32, model[number].weight.shape, "cpu")
        assert torch.equal(weight.abs(), model[number].weight.abs())
    assert "weight" not in fast[0].state_dict()
    copy.deepcopy(fast)


def test_always_leaves_unpruned_layers_alone_and_nothing_is_shared_with_the_model() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval()
    prunus.prune(model[0], 0.75, pattern="balanced:16")
    x = torch.randn(2, 64)
    fast = prunus.compress(model, example=x, select="always")
    assert left(fast) == {"1": "not pruned"}
    before = fast(x)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[1].weight.fill_(1.0)
    assert torch.equal(fast(x), before)
    masks = prunus.find_masks(model, 0.75, pattern="balanced:16")
    prunus.compress(model, masks, x)
    assert not (model[0].weight == 0).any()


class Peeking(nn.Module):
    """Computes with the weight of a layer instead of calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x) if isinstance(self.first, nn.Linear) else torch.zeros_like(x)


def test_a_copy_that_computes_something_else_is_not_returned() -> None:
    model = Peeking().eval()
    prunus.prune(model, 0.75, pattern="balanced:16")
    with pytest.raises(RunFailed, match="off by"):
        prunus.compress(model, example=torch.randn(2, 64), select="always")
    with pytest.raises(BadInput, match="cannot run on the example"):
        prunus.compress(model, example=torch.randn(2, 63))

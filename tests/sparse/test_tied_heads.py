"""Heads tied to a table of embeddings in int8: packed from it, the same numbers, and stored once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import prunus
from prunus import storage
from prunus.adapters import example_input, output_tensors
from prunus.errors import BadFile, BadInput
from prunus.sparse import compress, explain, file_bytes, load, load_pretrained, pack, save
from prunus.sparse._embeddings import RoundedEmbedding, narrowed, pack_table, widened
from prunus.sparse._integer import integer_linear
from prunus.sparse._modules import BalancedLinear
from support.foreign import small

BOTH = {"activations": torch.int8, "embeddings": torch.int8}


class Tied(nn.Module):
    """Words in, scores of words out; `scale` as in embeddings that multiply what they look up."""

    def __init__(self, kind: type[nn.Embedding] = nn.Embedding, words: int = 300, bias: bool = False) -> None:
        super().__init__()
        self.table = kind(words, 48)
        self.inner = nn.Linear(48, 48)
        self.head = nn.Linear(48, words, bias=bias)
        self.head.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.inner(self.table(words)).relu())


class Scaled(nn.Embedding):
    """As in Gemma and BART: a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return 3.0 * super().forward(input)


def network(kind: type[nn.Embedding] = nn.Embedding, **options: Any) -> Tied:
    torch.manual_seed(0)
    model = Tied(kind, **options).eval()
    prunus.prune(model, 0.75, pattern="balanced:16", exclude=("table", "head"))
    return model


WORDS = torch.arange(30).reshape(2, 15)


def answer(model: nn.Module, words: Tensor = WORDS) -> Tensor:
    with torch.no_grad():
        return model(words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_packed_table_holds_the_very_numbers(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    table = (torch.randn(100, 40, generator=generator) * torch.rand(100, 1, generator=generator)).to(dtype)
    table[5] = 0
    parts = narrowed(table, torch.int8)
    assert torch.equal(pack_table(parts).dense().to(dtype), widened(parts, dtype))
    looked = RoundedEmbedding(parts, dtype)
    words = torch.tensor([[5, 99, 0]])
    assert torch.equal(looked(words), functional.embedding(words, widened(parts, dtype)))
    assert looked.weight.shape == table.shape
    assert looked.weight.dtype == dtype
    assert torch.equal(looked.weight + 0, widened(parts, dtype))


def test_the_head_multiplies_the_integers_of_the_table() -> None:
    """Against the slow product in plain torch, on the inputs that the head really gets."""
    model = network(bias=True)
    fast = compress(model, example=WORDS, select="always", **BOTH)
    assert isinstance(fast.table, RoundedEmbedding)
    assert isinstance(fast.head, BalancedLinear)
    seen = []
    handle = fast.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    found = answer(fast)
    handle.remove()
    slow = integer_linear(
        pack_table(narrowed(model.table.weight.detach(), torch.int8)), seen[0], model.head.bias, False
    )
    torch.testing.assert_close(found, slow, rtol=1e-5, atol=1e-5)
    off = (found - answer(model)).norm() / answer(model).norm()
    assert 0 < float(off) < 0.05
    rows = {row.layer: row for row in explain(fast)}
    assert rows["table"].format == "embedding, int8"
    assert rows["head"].format == "bank 16, int8 x int8"
    assert 0 < rows["head"].error < 0.05
    # plain torch gives the same where the kernel is not called
    traced = torch.export.export(fast, (WORDS,)).module()
    torch.testing.assert_close(answer(traced), found, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(answer(copy.deepcopy(fast)), found, rtol=0, atol=0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [nn.Embedding, Scaled])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("release", [False, True])
def test_a_file_holds_the_table_once(
    kind: type[nn.Embedding], bias: bool, half: bool, release: bool, tmp_path: Path
) -> None:
    model, plain = (network(kind, bias=bias) for _ in range(2))
    model, plain = (one.bfloat16() if half else one for one in (model, plain))
    fast = compress(model, example=WORDS, select="always", release=release, **BOTH)
    assert isinstance(fast.table, RoundedEmbedding) == (kind is nn.Embedding)  # others do more than look up
    path = save(fast, tmp_path / "net.safetensors")
    tensors, _ = storage.read_tensors(path, "sparse model")
    assert not any(name.startswith("head.") and "bias" not in name for name in tensors)
    assert file_bytes(fast) == sum(tensor.nbytes for tensor in tensors.values())
    table = plain.table.weight.numel()
    assert file_bytes(fast) < table + 4 * 48 * 48 + 8 * 300
    with torch.device("meta"):
        empty = Tied(kind, bias=bias)
    for shape in (plain, empty.bfloat16() if half else empty):
        again = load(path, shape)
        assert torch.equal(answer(again), answer(fast))
        assert explain(again) == explain(fast)
        assert torch.equal(answer(load(save(again, tmp_path / "second.safetensors"), shape)), answer(fast))


def test_a_head_that_was_changed_since_is_stored_whole(tmp_path: Path) -> None:
    fast = compress(network(), example=WORDS, select="always", **BOTH)
    fast.head.scale = 2 * fast.head.scale
    again = load(save(fast, tmp_path / "net.safetensors"), network())
    assert torch.equal(again.head.scale, fast.head.scale)
    assert torch.equal(answer(again), answer(fast))


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    model = network()
    path = save(compress(model, example=WORDS, select="always", **BOTH), tmp_path / "net.safetensors")

    def rewritten(change: Any) -> Path:
        tensors, record = storage.read_tensors(path, "sparse model")
        change(tensors, record["plan"]["layers"])
        return storage.write_tensors(tmp_path / "bad.safetensors", tensors, "sparse model", record)

    changes = [
        lambda tensors, layers: tensors.pop("table.values"),
        lambda tensors, layers: tensors.update({"table.scale": torch.ones(1, 1)}),
        lambda tensors, layers: tensors["table.scale"].fill_(-1.0),
        lambda tensors, layers: tensors.update({"table.values": torch.zeros(300, 48)}),
        lambda tensors, layers: layers["head"].update(table="nowhere"),
        lambda tensors, layers: layers["head"].update(table=7),
        lambda tensors, layers: layers["table"].update(dtype="int64"),
        lambda tensors, layers: layers["table"].update(rows=299),
        lambda tensors, layers: tensors.update({"table.values": torch.zeros(299, 48, dtype=torch.int8)}),
    ]
    for change in changes:
        with pytest.raises((BadFile, BadInput)):
            load(rewritten(change), model)
    with pytest.raises(BadInput, match="linear 300 x 48, but the model has linear 301 x 48"):
        load(path, network(words=301))


def test_what_is_not_asked_for_stays(tmp_path: Path) -> None:
    """Without both options the head is what it was; a layer that is named is left alone; untied heads too."""
    model = network()
    for options in ({"activations": torch.int8}, {"embeddings": torch.int8}, {"embeddings": torch.bfloat16}):
        fast = compress(model, select="always", **options)
        assert type(fast.table) is nn.Embedding
        assert fast.head.weight is fast.table.weight
    fast = compress(model, example=WORDS, select={"head": False, "inner": True}, **BOTH)
    assert fast.head.weight is fast.table.weight
    assert {row.layer: row.why for row in explain(fast)}["head"] == "not selected"
    untied = small("llama")
    prunus.prune(untied, 0.75, pattern="balanced:16", exclude=("lm_head",))
    fast = compress(untied, example=example_input(untied), **BOTH)
    assert type(fast.lm_head) is nn.Linear
    assert compress(model, example=WORDS, **BOTH)  # measured, whichever way


def test_int8_heads_without_rounded_inputs_where_they_are_faster() -> None:
    """A single row of inputs against a large table is a matter of bytes: the int8 table is read, the inputs stay."""
    torch.manual_seed(0)
    model = Tied(words=60_000).eval()
    prunus.prune(model, 0.75, pattern="balanced:16", exclude=("table", "head"))
    word = WORDS[:1, :1]
    fast = compress(model, example=word, embeddings=torch.int8)
    if not isinstance(fast.head, BalancedLinear):
        pytest.skip("dense is faster on this machine")
    assert fast.head.activations is None
    rounded = widened(narrowed(model.table.weight.detach(), torch.int8), torch.float32)
    wanted = functional.linear(answer(nn.Sequential(fast.table, fast.inner, nn.ReLU()), word), rounded)
    torch.testing.assert_close(answer(fast, word), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama-tied", "gpt2", "t5"])
def test_models_of_transformers(kind: str, tmp_path: Path) -> None:
    model = small(kind, vocab_size=2000)
    prunus.prune(model, 0.5, pattern="balanced:16")
    example = example_input(model)
    fast = compress(model, example=example, select="always", fuse=True, **BOTH)
    assert isinstance(fast.lm_head, BalancedLinear)
    assert explain(fast)

    def scores(one: nn.Module) -> Tensor:
        with torch.no_grad():
            return output_tensors(one(**example))[0]

    assert float((scores(fast) - scores(model)).norm() / scores(model).norm()) < 0.1
    fast.save_pretrained(tmp_path / "fast")
    again = load_pretrained(tmp_path / "fast")
    assert torch.equal(scores(again), scores(fast))
    if kind == "llama-tied":
        start = torch.tensor([[1, 2, 3]])
        options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
        assert torch.equal(again.generate(start, **options), fast.generate(start, **options))


def test_calibrated_heads(tmp_path: Path) -> None:
    model = network()
    fast = compress(model, example=WORDS, select="always", calibration=WORDS, **BOTH)
    assert fast.head.span is not None
    again = load(save(fast, tmp_path / "net.safetensors"), model)
    assert torch.equal(answer(again), answer(fast))


def test_tables_of_nothing_but_zeros_and_other_sizes() -> None:
    parts = narrowed(torch.zeros(3, 5), torch.int8)
    packed = pack_table(parts)
    assert packed.dense().count_nonzero() == 0
    assert torch.equal(packed.dense(), pack(torch.zeros(3, 5)).dense())


# ------------------------------------------------------------------------------------- tables that do more than look up


def off(model: nn.Module, fast: nn.Module, words: Tensor = WORDS) -> float:
    wanted = answer(model, words)
    return float((answer(fast, words) - wanted).norm() / wanted.norm())


def test_hooks_and_forwards_of_a_table_stay() -> None:
    hooked, before, own = network(), network(), network()
    hooked.table.register_forward_hook(lambda _, inputs, out: 1.3 * out)
    before.table.register_forward_pre_hook(lambda _, inputs: (inputs[0].clamp(max=3),))
    own.table.forward = lambda words: 1.3 * functional.embedding(words, own.table.weight)  # type: ignore[method-assign]
    for model in (hooked, before, own):
        fast = compress(model, select="always", **BOTH)
        assert type(fast.table) is nn.Embedding
        assert off(model, fast) < 0.05


def test_a_table_that_renormalises_itself_keeps_its_head() -> None:
    """Its rows change as they are looked up, and the head's with them."""
    model = network()
    model.table.max_norm = 1.0
    fast = compress(model, select="always", **BOTH)
    assert fast.head.weight is fast.table.weight
    every = torch.arange(300)[None]
    answer(model, every)
    answer(fast, every)
    assert off(model, fast, every) < 0.05


def test_parametrized_tables_and_heads_are_no_tied_ones() -> None:
    from torch.nn.utils.parametrizations import weight_norm

    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = weight_norm(nn.Embedding(300, 48)), weight_norm(nn.Linear(48, 300))

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.table(words))

    for _ in range(5):  # it depended on where tensors lay in memory
        assert isinstance(compress(Apart().eval(), select={"head": True}, **BOTH).head, BalancedLinear)


def test_loading_into_a_table_with_a_forward_of_its_own_is_refused(tmp_path: Path) -> None:
    path = save(compress(network(), select="always", **BOTH), tmp_path / "net.safetensors")
    other = Tied()
    other.table = Scaled(300, 48)
    other.head.weight = other.table.weight
    with pytest.raises(BadInput, match="packs layer 'table'"):
        load(path, other)


def test_what_a_table_knows_of_itself_stays(tmp_path: Path) -> None:
    class Padded(Tied):
        def forward(self, words: Tensor) -> Tensor:
            return super().forward(words) * (words != self.table.padding_idx)[..., None]

    model = network()
    model.__class__ = Padded
    model.table.padding_idx = 0
    fast = compress(model, example=WORDS, select="always", **BOTH)
    assert isinstance(fast.table, RoundedEmbedding)
    assert off(model, fast) < 0.05
    assert not answer(fast)[0, 0].any()
    again = load(save(fast, tmp_path / "net.safetensors"), model)
    assert torch.equal(answer(again), answer(fast))


def test_a_table_that_another_module_holds_stays_float32_once() -> None:
    class Both(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.table.weight

        def forward(self, words: Tensor) -> Tensor:
            hidden = self.inner(self.table(words))
            return self.head(hidden) + functional.linear(hidden, self.again)

    model = Both().eval()
    prunus.prune(model, 0.75, pattern="balanced:16", exclude=("table", "head", "again"))
    sizes = [file_bytes(compress(model, select={"inner": True, "head": head}, **BOTH)) for head in (False, True)]
    assert sizes[0] == sizes[1]


def test_a_head_in_two_places_is_stored_once(tmp_path: Path) -> None:
    class Places(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList([self.head])

    model = Places().eval()
    prunus.prune(model, 0.75, pattern="balanced:16", exclude=("table", "head", "heads*"))
    plain, fast = (compress(one, select="always", **BOTH) for one in (network(), model))
    assert file_bytes(fast) == file_bytes(plain)
    again = load(save(fast, tmp_path / "net.safetensors"), model)
    assert again.heads[0] is again.head
    assert torch.equal(answer(again), answer(fast))


def test_fused_and_exported_tables() -> None:
    class Reads(Tied):
        def forward(self, words: Tensor) -> Tensor:
            hidden = self.inner(self.table(words))
            return self.head(hidden) + functional.linear(hidden, self.table.weight)

    assert isinstance(compress(network(), select="always", fuse=True, **BOTH).table, RoundedEmbedding)
    model = network()
    model.__class__ = Reads
    fast = compress(model, example=WORDS, select="always", **BOTH)
    traced = torch.export.export(fast, (WORDS,)).module()
    torch.testing.assert_close(answer(traced), answer(fast), rtol=1e-5, atol=1e-5)


def test_tables_in_int8_are_not_converted_filled_or_written_to(tmp_path: Path) -> None:
    model = network()
    fast = compress(model, select="always", **BOTH)
    before = answer(fast)
    for convert in (fast.bfloat16, fast.table.half):
        with pytest.raises(BadInput):
            convert()
    assert fast.table.scale.dtype == torch.float32
    state = fast.state_dict()
    damages = ({"table.values": 0.5 * state["table.values"]}, {"table.scale": torch.full((300, 1), torch.nan)})
    for damage in (*damages, {"table.values": state["table.values"][:299]}):
        with pytest.raises(BadInput, match="no table in int8 of this size"):
            fast.load_state_dict({**state, **damage})
    with pytest.raises(BadInput, match="cannot be changed in place"):
        fast.table.weight.zero_()
    assert torch.equal(answer(fast), before)
    assert torch.equal(answer(load(save(fast, tmp_path / "net.safetensors"), model)), before)


def test_a_table_put_in_its_place_is_stored(tmp_path: Path) -> None:
    model = network()
    fast = compress(model, select="always", **BOTH)
    fast.table = nn.Embedding.from_pretrained(fast.table.weight + 0)
    again = load(save(fast, tmp_path / "net.safetensors"), model)
    assert torch.equal(answer(again), answer(fast))


def test_a_plan_that_names_no_table_is_refused(tmp_path: Path) -> None:
    model = network()
    tensors, record = storage.read_tensors(
        save(compress(model, select="always", **BOTH), tmp_path / "net.safetensors"), "sparse model"
    )
    tensors["norm.weight"] = torch.ones(48)
    record["plan"]["layers"]["head"]["table"] = "norm"
    with pytest.raises(BadFile, match="the table of 'head'"):
        load(storage.write_tensors(tmp_path / "bad.safetensors", tensors, "sparse model", record), model)


def test_encoders_with_a_table_in_int8_still_run_natively() -> None:
    from prunus.sparse._transformers import NativeEncoder

    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, intermediate_size=128)).eval()
    prunus.prune(model, 0.5, pattern="balanced:16")
    example = example_input(model)
    fast = compress(model, example=example, select="always", fuse=True, **BOTH)
    assert isinstance(fast.bert.embeddings.word_embeddings, RoundedEmbedding)
    forward = fast.bert.__dict__["forward"]
    assert isinstance(forward, NativeEncoder)
    with torch.no_grad():
        native = output_tensors(fast(**example))[0]
        assert forward._ready()
        del fast.bert.__dict__["forward"]
        torch.testing.assert_close(native, output_tensors(fast(**example))[0], rtol=1e-4, atol=1e-4)

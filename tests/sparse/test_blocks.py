"""Transformer blocks in one native run against the same blocks run by torch."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.sparse._blocks import NativeForward, read_block, run_blocks_natively
from support.kernels import each_level

transformers = pytest.importorskip("transformers")
level = each_level()


def bert(seed: int = 0, **changes: Any) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 80,
        "vocab_size": 99,
    }
    model = transformers.BertModel(transformers.BertConfig(**{**sizes, **changes})).eval()
    prunus.prune(model, 0.5, pattern="balanced:16", exclude=("*embeddings*",))
    return model


def llama(seed: int = 0, **changes: Any) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    rest = {"intermediate_size": 80, "vocab_size": 99, "head_dim": 10, "pad_token_id": 0, "eos_token_id": None}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **rest, **changes})).eval()
    prunus.prune(model, 0.5, pattern="balanced:16", exclude=("*embed*", "lm_head"))
    return model


def both(model: nn.Module, activations: torch.dtype | None = None) -> tuple[nn.Module, nn.Module]:
    """The packed model with torch around its layers, and with native blocks."""
    plain = prunus.compress(model, select="always", activations=activations)
    native = prunus.compress(model, select="always", activations=activations, fuse=True)
    assert sum(isinstance(module.__dict__.get("forward"), NativeForward) for module in native.modules()) == 2
    return plain, native


def ran(model: nn.Module) -> list[bool]:
    return [
        m.forward._native is not None for m in model.modules() if isinstance(m.__dict__.get("forward"), NativeForward)
    ]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu", "silu"])
def test_encoders_agree_with_torch(level: str, act: str) -> None:
    plain, native = both(bert(hidden_act=act))
    for batch, length in ((1, 1), (1, 3), (2, 17), (3, 70)):
        tokens = torch.randint(0, 99, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, length // 2 + 1 :] = 0
        with torch.no_grad():
            close(native(tokens).last_hidden_state, plain(tokens).last_hidden_state)
            found = native(tokens, attention_mask=mask).last_hidden_state
            close(found, plain(tokens, attention_mask=mask).last_hidden_state)
    assert all(ran(native))


def test_decoders_agree_with_torch(level: str) -> None:
    plain, native = both(llama())
    for batch, length in ((1, 1), (2, 5), (2, 40)):
        tokens = torch.randint(1, 99, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, : length // 3] = 0  # padded on the left
        with torch.no_grad():
            close(native(tokens).logits, plain(tokens).logits)
            found = native(tokens, attention_mask=mask).logits
            close(found, plain(tokens, attention_mask=mask).logits)  # where nothing is seen, too
    assert all(ran(native))


def test_generate_gives_the_same_tokens() -> None:
    plain, native = both(llama())
    tokens = torch.randint(1, 99, (2, 7))
    for options in ({}, {"num_beams": 2}, {"attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])}):
        found = native.generate(tokens, max_new_tokens=12, do_sample=False, **options)
        assert torch.equal(found, plain.generate(tokens, max_new_tokens=12, do_sample=False, **options))
    assert all(ran(native))


def test_integer_blocks_compute_what_their_layers_compute(level: str) -> None:
    plain, native = both(bert(), torch.int8)
    x = torch.randn(2, 9, 48)
    with torch.no_grad():
        for one, other in zip(plain.encoder.layer, native.encoder.layer):
            expected, found = one(x, None), other(x, None)
            assert float((found - expected).norm() / expected.norm()) < 0.01  # a rounding may fall the other way
    assert all(ran(native))


def test_the_same_bytes_for_any_number_of_threads() -> None:
    _, native = both(bert(hidden_size=96, intermediate_size=400), torch.int8)
    tokens, before, results = torch.randint(0, 99, (5, 80)), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with torch.no_grad():
                results.append(native(tokens).last_hidden_state)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_what_must_be_seen_is_left_to_torch() -> None:
    _, native = both(bert())
    tokens = torch.randint(0, 99, (2, 6))
    seen: list[str] = []
    with torch.no_grad():
        before = native(tokens).last_hidden_state
        handle = native.encoder.layer[0].intermediate.register_forward_hook(lambda *_: seen.append("hook"))
        close(native(tokens).last_hidden_state, before)
        handle.remove()
        assert seen == ["hook"]
        states = native(tokens, output_hidden_states=True).hidden_states
        assert len(states) == 3
        replaced = native.encoder.layer[1].output
        replaced.dense = nn.Linear(80, 48)  # no longer packed: torch runs it
        assert read_block(native.encoder.layer[1]) is None
        assert not torch.allclose(native(tokens).last_hidden_state, before)
        native.encoder.layer[0].attention.self.query.bias.add_(1.0)
        changed = native.encoder.layer[0](torch.ones(1, 4, 48), None)
        close(changed, type(native.encoder.layer[0]).forward(native.encoder.layer[0], torch.ones(1, 4, 48), None))
    loss = native(tokens).last_hidden_state.sum()
    loss.backward()
    assert native.encoder.layer[0].attention.self.query.bias.grad is not None


def test_copies_files_and_export(tmp_path: Path) -> None:
    model = bert()
    plain, native = both(model)
    tokens = torch.randint(0, 99, (2, 6))
    with torch.no_grad():
        expected = native(tokens).last_hidden_state
        twin = copy.deepcopy(native)
        assert torch.equal(twin(tokens).last_hidden_state, expected)
        assert twin.encoder.layer[0].forward.block is twin.encoder.layer[0]
        again = prunus.sparse.load(prunus.sparse.save(native, tmp_path / "small.safetensors"), model)
        assert torch.equal(again(tokens).last_hidden_state, expected)
        assert list(again.state_dict()) == list(plain.state_dict())
        exported = torch.export.export(native, (tokens,)).module()
        close(exported(tokens).last_hidden_state, expected)


def counted(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every call of the model's own forward."""
    calls: list[int] = []
    own = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *args, **rest: (calls.append(1), own(*args, **rest))[1])
    return calls


def test_a_whole_encoder_runs_without_torch_in_between(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    plain, native = both(bert())
    with torch.no_grad():
        for batch, length in ((1, 1), (2, 9), (3, 33)):
            tokens, kinds = torch.randint(0, 99, (batch, length)), torch.randint(0, 2, (batch, length))
            mask = torch.ones(batch, length, dtype=torch.long)
            mask[0, length // 2 + 1 :] = 0
            expected = plain(tokens, attention_mask=mask, token_type_ids=kinds)
            calls = counted(native, monkeypatch)
            found = native(tokens, attention_mask=mask, token_type_ids=kinds)
            assert not calls
            close(found.last_hidden_state[mask == 1], expected.last_hidden_state[mask == 1])
            close(found.pooler_output, expected.pooler_output)
            monkeypatch.undo()
        calls = counted(native, monkeypatch)
        with pytest.raises(IndexError):  # as torch says it
            native(torch.tensor([[98, 99]]))
        native(tokens, position_ids=torch.zeros_like(tokens))
        native(tokens, return_dict=False)
        assert len(calls) == 3
        native.embeddings.word_embeddings.weight.data = torch.zeros(99, 48)  # another address
        found = native(tokens).last_hidden_state
        assert len(calls) == 3
        close(found, type(native).forward(native, tokens).last_hidden_state)


def test_a_whole_decoder_keeps_its_cache(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    plain, native = both(llama())
    tokens = torch.randint(1, 99, (2, 90))  # more than the first room holds
    inner = native.model
    with torch.no_grad():
        expected = plain(tokens).logits
        calls = counted(inner, monkeypatch)
        out = native(tokens[:, :5])
        close(out.logits, expected[:, :5])
        cache = out.past_key_values
        for i in range(5, 90):
            out = native(tokens[:, i : i + 1], past_key_values=cache)
            close(out.logits[:, 0], expected[:, i])
        assert not calls
        assert cache.get_seq_length() == 90
        older = [layer.keys for layer in cache.layers]
        kept = [keys.clone() for keys in older]
        cache.crop(-10)  # what is written next must not change what `older` still shows
        close(native(tokens[:, 80:81], past_key_values=cache).logits[:, 0], expected[:, 80])
        assert all(torch.equal(a, b) for a, b in zip(older, kept))
        twin = copy.deepcopy(cache)
        for one in (cache, twin):
            close(native(tokens[:, 81:82], past_key_values=one).logits[:, 0], expected[:, 81])
        assert native(tokens, use_cache=False).past_key_values is None


def test_what_changes_around_a_whole_decoder_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    _, native = both(llama())
    tokens = torch.randint(1, 99, (1, 6))
    with torch.no_grad():
        native(tokens)
        calls = counted(native.model, monkeypatch)
        native.model.norm.weight.data = native.model.norm.weight.data * 2.0  # another address
        layer = native.model.layers[1].mlp.down_proj
        layer.load_state_dict({name: -t if name == "values" else t for name, t in layer.state_dict().items()})
        found = native(tokens).logits
        assert not calls
        close(found, native.lm_head(type(native.model).forward(native.model, tokens).last_hidden_state))
        calls.clear()
        handle = native.model.norm.register_forward_hook(lambda *_: None)
        native(tokens)
        assert len(calls) == 1
        handle.remove()
        close(native(tokens).logits, found)
        assert len(calls) == 1
        out = native(tokens)
        for layer in out.past_key_values.layers:  # other tensors with the same numbers
            layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
        again = native(tokens[:, :1], past_key_values=out.past_key_values).logits
        close(again[:, 0], native(torch.cat([tokens, tokens[:, :1]], 1)).logits[:, -1])


def test_other_models_are_left_alone() -> None:
    class BertLayer(nn.Module):
        """Not the one of transformers."""

    assert read_block(BertLayer()) is None
    assert run_blocks_natively(nn.Sequential(nn.Linear(4, 4), nn.ReLU())) == 0
    decoder = bert(is_decoder=True)
    prunus.compress(decoder, select="always", fuse=True)  # causal: known only as an encoder
    assert read_block(decoder.encoder.layer[0]) is None


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rows_of_padding_alone_agree(attention: str) -> None:
    model = bert(attn_implementation=attention)
    plain, native = both(model)
    words, mask = torch.randint(0, 99, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[0] = 0
    mask[1, 5:] = 0
    with torch.no_grad():
        expected, found = plain(words, attention_mask=mask), native(words, attention_mask=mask)
    assert all(ran(native))
    close(found.last_hidden_state, expected.last_hidden_state)
    close(found.last_hidden_state, model(words, attention_mask=mask).last_hidden_state)


@pytest.mark.parametrize("fuse", [False, True])
def test_a_pickled_model_writes_itself_as_before(fuse: bool, tmp_path: Path) -> None:
    """The library's own method would write a folder that its loader fills with random weights."""
    model = bert()
    words, body = torch.randint(0, 99, (2, 7)), io.BytesIO()
    fast = prunus.compress(model, select="always", fuse=fuse)
    torch.save(fast, body)
    body.seek(0)
    for number, one in enumerate((torch.load(body, weights_only=False), copy.deepcopy(fast))):
        assert one.save_pretrained.args[0] is one
        one.save_pretrained(tmp_path / str(number))
        again = prunus.sparse.load_pretrained(tmp_path / str(number))
        with torch.no_grad():
            close(again(words).last_hidden_state, model(words).last_hidden_state)


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    fast = prunus.compress(bert(), select="always")
    for place in (tmp_path / "afile", tmp_path / "afile" / "x"):
        with pytest.raises(prunus.BadInput, match="a file is in the way: name a folder"):
            fast.save_pretrained(place)

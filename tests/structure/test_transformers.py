"""Models of transformers with small random configurations: shrunk to half, equal to the masked original."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.evidence import record

import prunus
from prunus.structure import find_removal, load, run_once, save

transformers = pytest.importorskip("transformers")


def _tokens() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 100, (2, 8)), "attention_mask": torch.ones(2, 8, dtype=torch.long)}


def _image(side: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.randn(2, 3, side, side)}


_TEXT: dict[str, Any] = {"vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BERT: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "hidden_size": 32}
_VIT: dict[str, Any] = {**_BERT, "image_size": 32, "patch_size": 8}
_WHISPER: dict[str, Any] = {"num_mel_bins": 8, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4}
_FFN: dict[str, Any] = {"encoder_ffn_dim": 128, "max_source_positions": 16, "decoder_start_token_id": 1}
_STAGES: dict[str, Any] = {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1]}
_T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 128, "num_layers": 2, "num_heads": 4}
_SWIN: dict[str, Any] = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
MODELS: dict[str, tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "bert": ("BertForSequenceClassification", "BertConfig", {**_TEXT, **_BERT}, _tokens),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {**_TEXT, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
        _tokens,
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", _VIT, _image(32)),
    "deit": ("DeiTForImageClassification", "DeiTConfig", _VIT, _image(32)),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**_TEXT, **_BERT}, _tokens),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_TEXT, **_BERT, "num_key_value_heads": 2}, _tokens),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**_TEXT, "n_embd": 32, "n_layer": 2, "n_head": 4}, _tokens),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**_TEXT, **_T5},
        lambda: {"input_ids": torch.randint(3, 100, (2, 8)), "decoder_input_ids": torch.randint(3, 100, (2, 8))},
    ),
    "whisper encoder": (
        "models.whisper.modeling_whisper.WhisperEncoder",
        "WhisperConfig",
        {**_TEXT, **_WHISPER, **_FFN},
        lambda: {"input_features": torch.randn(2, 8, 32)},
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [2, 2]},
        _image(64),
    ),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", {**_STAGES, "image_size": 64}, _image(64)),
    "mobilenetv2": (
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        {"image_size": 64, "depth_multiplier": 0.35},
        _image(64),
    ),
    "swin": ("SwinForImageClassification", "SwinConfig", {**_SWIN, "window_size": 4}, _image(32)),
    "segformer": (
        "SegformerForImageClassification",
        "SegformerConfig",
        {**_STAGES, "num_attention_heads": [1, 2, 2, 4]},
        _image(64),
    ),
}
QUICK = ("bert", "mistral", "gpt2", "swin")


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """A model with random weights, and an example input."""
    kind, config, sizes, example = MODELS[name]
    torch.manual_seed(0)
    place: Any = transformers
    for part in kind.split("."):
        place = getattr(place, part)
    return place(getattr(transformers, config)(**sizes)).eval(), example()


def check(name: str, folder: Path) -> dict[str, Any]:
    """Shrink to half, compare with the masked original, train a step, save and load."""
    model, example = build(name)
    removal = find_removal(model, 0.5, example=example)
    small = removal.apply()
    assert type(small) is type(model)
    assert list(small.state_dict()) == list(model.state_dict())
    masked = removal.masks.apply_(copy.deepcopy(model))
    expected, found = run_once(masked, example), run_once(small, example)
    gap = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected) if b.is_floating_point())
    assert gap < 1e-4, name
    outputs = small(**example)
    prunus.adapters.main_output(outputs).sum().backward()
    assert any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in small.parameters())
    save(small, folder / "small.safetensors")
    again = load(folder / "small.safetensors", build(name)[0]).eval()
    assert all(torch.equal(a, b) for a, b in zip(run_once(again, example), found))
    if removal.configured:
        small.save_pretrained(folder / "hf")
        plain = type(small).from_pretrained(folder / "hf").eval()
        assert all(torch.equal(a, b) for a, b in zip(run_once(plain, example), found))
    return {"model": name, "multiply-adds left": removal.share, "gap": gap, "from_pretrained": removal.configured}


@pytest.mark.parametrize("name", QUICK)
def test_half_of_a_transformer(name: str, tmp_path: Path) -> None:
    row = check(name, tmp_path)
    assert 0.4 < row["multiply-adds left"] <= 0.5


def test_the_configuration_follows(tmp_path: Path) -> None:
    model, example = build("mistral")
    small = prunus.shrink(model, 0.5, example=example)
    assert small.config.intermediate_size == small.model.layers[0].mlp.up_proj.out_features < 128
    assert small.config.num_attention_heads == small.config.num_key_value_heads * 2 == 2
    assert small.config.head_dim == 8
    assert model.config.intermediate_size == 128


@pytest.mark.prove
def test_all_transformers(tmp_path: Path) -> None:
    rows = []
    for name in MODELS:
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        rows.append(check(name, folder))
    record(
        "shrink-transformers", rows, "Random small configurations, half of the multiply-adds, shrunk against masked."
    )

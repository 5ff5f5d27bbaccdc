"""Decoding with a trained language model (SmolLM2-135M, where it is installed): tokens a second at batch 1, one thread.

Every call writes eight more tokens behind a prompt of 16, with the cache of keys and values, greedily. Dense: torch in
float32 and in int8 (dynamic). Ours: banks of 16, native blocks, in float32 and in integers. The head, a fifth of all
weights, is not pruned and stays with torch in float32. "perplexity" is that of WikiText-2's test part, on as many
spans of 512 tokens as "spans" says, through the same model; "weights" says how they were pruned: by magnitude alone,
or reconstructed where `benchmarks/_reconstructed.py` was run before. "load" is the machine's load average.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import prunus
from benchmarks import _reconstructed
from prunus import timing

SPARSITIES = (0.5, 0.75, 0.9)
PROMPT, STEP, LONGEST = 16, 8, 144
SPANS = 4


class Decoder:
    """Writes token after token; begins again with the prompt when the text has become long."""

    def __init__(self, model: Any, prompt: torch.Tensor) -> None:
        self.model, self.prompt = model, prompt
        self.cache: Any = None
        self.token, self.length = prompt, 0

    def __call__(self) -> None:
        for _ in range(STEP):
            if self.cache is None or self.length >= LONGEST:
                self.cache, self.token, self.length = None, self.prompt, 0
            out = self.model(input_ids=self.token, past_key_values=self.cache, use_cache=True)
            self.cache, self.length = out.past_key_values, self.length + self.token.shape[1]
            self.token = out.logits[:, -1:].argmax(-1)


def run(quick: bool) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    network = _network()
    if network is None:
        return []
    dense, prompt = network.model, network.samples[0]["input_ids"][:1, :PROMPT]
    models: dict[str, Any] = {"torch fp32": dense}
    kinds: dict[str, str] = {}
    for sparsity in SPARSITIES[-1:] if quick else SPARSITIES:
        rebuilt = _reconstructed.load("smollm2", dense, sparsity)
        pruned = copy.deepcopy(dense) if rebuilt is None else rebuilt
        if rebuilt is None:
            prunus.prune(pruned, sparsity, pattern="balanced:16", exclude=network.exclude)
        for name, activations in (("fp32", None), ("integers", torch.int8)):
            title = f"ours {sparsity:.0%}, {name}"
            models[title] = prunus.compress(pruned, select="always", activations=activations, fuse=True)
            kinds[title] = "magnitude" if rebuilt is None else "reconstructed"
        del pruned, rebuilt
    models["torch int8"] = _torch_int8(dense)
    runs: dict[str, Callable[[], Any]] = {name: Decoder(model, prompt) for name, model in models.items()}
    with torch.no_grad():
        samples = timing.interleave(runs, 5 if quick else 11, 0.0, timing.clock_for(1))
        load = round(os.getloadavg()[0], 1)
        judged = {name: network.judge(model) for name, model in models.items() if not quick}
    slower = timing.ratios(samples, "torch fp32")
    return [
        {
            "what": name,
            "tokens a second": round(STEP / timing.median(values), 1),
            "spread": round(timing.spread(values), 3),
            "times torch": round(1 / slower[name], 2),
            "times torch int8": round(1 / timing.ratios(samples, "torch int8")[name], 2),
            "perplexity": round(judged[name]["perplexity"], 2) if name in judged else "",
            "spans": SPANS if name in judged else "",
            "weights": kinds.get(name, ""),
            "load": load,
        }
        for name, values in samples.items()
    ]


def _network() -> Any:
    """SmolLM2 with its samples and judge; None where the package or the texts are missing."""
    from tools.quality import smollm2

    os.environ["PRUNUS_SPANS"] = str(SPANS)
    try:
        return smollm2()
    except (ImportError, AssertionError, OSError):
        return None


def _torch_int8(model: nn.Module) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)

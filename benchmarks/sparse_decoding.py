"""Decoding with a trained language model (SmolLM2-135M, where it is installed): tokens a second at batch 1, one thread.

Every call writes sixteen more tokens behind a prompt of 16, with the cache of keys and values, greedily; tokens for
each second of processor time, all candidates interleaved. Dense: torch in float32 and in int8 (dynamic), and llama.cpp
(package xllamacpp, where it is installed) with the model's own Q4_1 file and the same weights as Q8_0. Ours: banks of
16, masks by magnitude, native blocks. The head, a fifth of all weights, is not pruned: float32 by torch beside float32
blocks, int8 through the integer kernel beside integer ones (llama.cpp rounds it too). "perplexity" is that of
`quality-smollm2`, on the first 128 spans of 512 tokens of WikiText-2's test part, where masks of that sparsity were
reconstructed; other sparsities tell speed only, which does not depend on which weights stay. "load" is the machine's
load average.
"""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import prunus
from benchmarks.harness import interleave, load, median, ratios, spread

SPARSITIES = (0.5, 0.75, 0.9)
PROMPT, STEP, LONGEST = 16, 16, 144
QUALITY = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "quality-smollm2.json"
TEXT = "The history of the castle begins with the first kings of the"


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
    models: dict[str, Any] = {"torch, float32": dense, "torch, int8": _torch_int8(dense)}
    sparsity_of = {"torch, float32": 0.0}
    for sparsity in SPARSITIES[-1:] if quick else SPARSITIES:
        pruned = copy.deepcopy(dense)
        prunus.prune(pruned, sparsity, pattern="balanced:16", exclude=network.exclude)
        for name, activations in (("float32", None), ("integers", torch.int8)):
            title = f"ours {sparsity:.0%}, {name}"
            options = {"activations": activations, "embeddings": activations}
            models[title] = prunus.compress(pruned, select="always", fuse=True, **options)
            sparsity_of[title] = sparsity
        del pruned
    runs: dict[str, Callable[[], Any]] = {name: Decoder(model, prompt) for name, model in models.items()}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        runs |= _llama(Path(folder))
        for call in runs.values():
            call()  # layouts are made, files read
        samples = interleave(runs, 3 if quick else 5, 0.0, time.process_time)
    slower, judged, rows = ratios(samples, "torch, float32"), _judged(), []
    for name, values in samples.items():
        row = {"what": name, "tokens a second": round(STEP / median(values), 1), "spread": round(spread(values), 3)}
        row["times torch"] = round(1 / slower[name], 2)
        for other in ("torch, int8", "llama.cpp, Q8_0", "llama.cpp, Q4_1"):
            if other in samples:
                row[f"times {other}"] = round(1 / ratios(samples, other)[name], 2)
        row["perplexity"] = judged.get(sparsity_of.get(name, -1.0), "")
        rows.append(row | {"load": load()})
    return rows


def _judged() -> dict[float, float]:
    """Perplexity by sparsity, as far as it was measured."""
    rows = json.loads(QUALITY.read_text("utf8"))["rows"] if QUALITY.is_file() else []
    kept = [row for row in rows if (row["method"], row["pattern"]) in (("dense", ""), ("reconstruct", "balanced:16"))]
    return {float(row["sparsity"]): round(row["perplexity"], 1) for row in kept}


def _network() -> Any:
    """SmolLM2 with its samples and judge; None where the package or the texts are missing."""
    from tools.quality import smollm2

    try:
        return smollm2()
    except (ImportError, AssertionError, OSError):
        return None


def _torch_int8(model: nn.Module) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)


def _llama(folder: Path) -> dict[str, Callable[[], Any]]:
    """llama.cpp on the package's own file, and on one with the same weights in eight bits."""
    try:
        import xllamacpp
        from tools.foreign_models import smollm2_folder
    except ImportError:
        return {}
    own, wide = next(smollm2_folder().glob("*.gguf")), folder / "q8.gguf"
    _write_q8(own, wide)
    found: dict[str, Callable[[], Any]] = {}
    for name, path in (("Q4_1", own), ("Q8_0", wide)):
        settings = xllamacpp.CommonParams()
        settings.model.path, settings.n_ctx, settings.n_parallel = str(path), 256, 1
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
        server = xllamacpp.Server(settings)
        asked = {"prompt": TEXT, "max_tokens": STEP, "temperature": 0, "cache_prompt": True, "ignore_eos": True}
        found[f"llama.cpp, {name}"] = lambda server=server, asked=asked: server.handle_completions(asked)
    return found


def _write_q8(source: Path, target: Path) -> None:
    """The same model with every matrix in Q8_0."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        inner = field.types[-1] if len(field.types) > 1 else None
        value = field.contents()
        value = int(GGMLQuantizationType.Q8_0) - 1 if field.name == "general.file_type" else value
        writer.add_key_value(field.name, value, field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        numbers = quants.dequantize(tensor.data, tensor.tensor_type)
        matrix = numbers.ndim > 1
        kind = GGMLQuantizationType.Q8_0 if matrix else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

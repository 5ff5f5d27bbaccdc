"""Peak memory of `prunus.compress`: python -m tools.compress_memory [MEGABYTES] writes docs/evidence/any-model-memory.

A Llama of random weights is made, pruned and compressed in a fresh process. The peak of the process's memory while
compress runs, less what it held before the model was made, is set against the size of the model: 1 is the model
itself, which the caller still holds, and the rest is the packed copy and what is needed on the way. With release=True,
as `prunus compress` asks for, every dense layer is freed as soon as it is packed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SPARSITIES = (0.75, 0.9)


def resident() -> int:
    """Bytes that the process holds in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peak:
    """The largest `resident` while the block runs, looked at every millisecond."""

    def __enter__(self) -> Peak:
        self.bytes, self._stop = resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.bytes = max(self.bytes, resident())
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _give_back() -> None:
    """Return memory that is free but still held, which the next step would use unseen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def llama(megabytes: float) -> Any:
    """A Llama of about this size in float32, head and embedding tied; weights in place, as after loading."""
    import torch
    import transformers

    layer = 4 * (4 * 1024**2 + 3 * 1024 * 2816) / 1e6
    vocabulary = 32000 if megabytes > 600 else 4000
    layers = max(1, round((megabytes - 4 * 1024 * vocabulary / 1e6) / layer))
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=16, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def measure(megabytes: float, sparsity: float) -> list[dict[str, Any]]:
    """Two rows, without release and with it, in this process, which must be a fresh one."""
    import torch

    import prunus
    from prunus.adapters import example_input

    torch.set_num_threads(1)
    warm = llama(1)  # what libraries allocate at their first use
    prunus.prune(warm, sparsity, pattern="balanced:16")
    prunus.compress(warm, example=example_input(warm), select="always")
    del warm
    _give_back()
    empty = resident()
    model = llama(megabytes)
    prunus.prune(model, sparsity, pattern="balanced:16")
    _give_back()
    size = sum(parameter.nbytes for parameter in model.parameters())
    rows = []
    for release in (False, True):
        before = resident()
        with Peak() as peak:
            fast = prunus.compress(model, example=example_input(model), select="always", release=release)
        packed = sum(tensor.nbytes for tensor in {id(t): t for t in fast.state_dict(keep_vars=True).values()}.values())
        rows.append({
            "model MB": size / 1e6,
            "sparsity": sparsity,
            "release": release,
            "copy MB": packed / 1e6,
            "copy / model": packed / size,
            "peak / model": (peak.bytes - empty) / size,
            "added by compress / model": (peak.bytes - before) / size,
        })  # fmt: skip
        del fast
        _give_back()
    return rows


def in_a_fresh_process(megabytes: float, sparsity: float) -> list[dict[str, Any]]:
    """`measure` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.compress_memory", str(megabytes), str(sparsity)],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 1000.0
    if len(sys.argv) > 2:
        print(json.dumps(measure(megabytes, float(sys.argv[2]))))
        return 0
    sys.path.insert(0, str(ROOT))
    from tools.evidence import record

    rows = [row for level in SPARSITIES for row in in_a_fresh_process(megabytes, level)]
    record("any-model-memory", rows, " ".join((__doc__ or "").split("\n\n")[1].split()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

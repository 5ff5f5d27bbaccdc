"""The trained networks of the data folder reach the accuracies that were published with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tools.evidence import record

from prunus.data import load
from prunus.models import resolve
from support import PROVING, scale

pytestmark = pytest.mark.data


def right(spec: str, weights: Path, data: str, folder: Path, count: int = 10_000) -> int:
    """How many of the first `count` test examples the network names correctly."""
    test = load(data, split="test", folder=folder)
    layout = torch.channels_last  # a third faster
    model = resolve(spec, str(weights)).eval().to(memory_format=layout)
    with torch.inference_mode():
        batches = (test.batch(slice(start, min(start + 100, count))) for start in range(0, count, 100))
        return sum(int((model(x.contiguous(memory_format=layout)).argmax(1) == y).sum()) for x, y in batches)


def test_lenet(data_folder: Path) -> None:
    weights = data_folder / "lenet-mnist" / "lenet5_mnist.pt"
    assert right("lenet5", weights, "mnist", data_folder) == pytest.approx(9904, abs=1)


def test_resnet20(data_folder: Path) -> None:
    weights = next((data_folder / "resnet-cifar10").glob("resnet20-*.th"))
    assert right("resnet20", weights, "cifar10", data_folder) == pytest.approx(9173, abs=1)  # a tie may round otherwise


@pytest.mark.prove
@pytest.mark.parametrize("depth, expected", [(32, 9263), (44, 9310), (56, 9339)])
def test_deeper_resnets(depth: int, expected: int, data_folder: Path) -> None:
    count = scale(250, full=10_000)
    weights = next((data_folder / "resnet-cifar10").glob(f"resnet{depth}-*.th"))
    found = right(f"resnet{depth}", weights, "cifar10", data_folder, count)
    if count == 10_000:
        assert found == pytest.approx(expected, abs=1)
    else:  # the first 250 images are what they are: only a broken network falls below nine in ten of its accuracy
        assert found > 0.9 * count * expected / 10_000


@pytest.mark.prove
@pytest.mark.skipif(not PROVING, reason="writes the evidence: run by `make prove`")
def test_accuracies_are_recorded(data_folder: Path) -> None:
    networks = [("lenet5", "lenet-mnist/lenet5_mnist.pt", "mnist", 9904)]
    for depth, published in ((20, 9173), (32, 9263), (44, 9310), (56, 9339)):
        file = next((data_folder / "resnet-cifar10").glob(f"resnet{depth}-*.th"))
        networks.append((f"resnet{depth}", str(file.relative_to(data_folder)), "cifar10", published))
    rows = [
        {
            "network": spec,
            "data": data,
            "right": right(spec, data_folder / file, data, data_folder),
            "published": published,
        }
        for spec, file, data, published in networks
    ]
    record("trained-networks", rows, note="Test examples of 10,000 that the trained networks name correctly.")
    assert all(abs(int(row["right"]) - int(row["published"])) <= 1 for row in rows)

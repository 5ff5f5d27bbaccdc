from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import prunus
from prunus.errors import BadInput
from prunus.training.presets import HERE, PRESETS, preset
from support import PROVING

# Reading all reviews, or one step of a large network, takes a quarter of a minute.
SLOW = ("resnet18-edge-popup", "resnet34-iterand", "imdb-lstm-iterand", "imdb-bilstm-iterand") if PROVING else ()


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_names_a_network_that_can_be_built(name: str) -> None:
    with torch.device("meta"):
        model = prunus.models.make(preset(name).model, init=preset(name).init)
    assert sum(parameter.numel() for parameter in model.parameters()) > 1000
    assert preset(name).data in (*prunus.data.names(), "imagenet")


def test_the_published_numbers() -> None:
    """I-5 and K-23."""
    conv6 = preset("conv6-iterand")
    assert (conv6.config.batch_size, conv6.config.momentum, conv6.length) == (128, 0.9, "100ep")
    assert conv6.ticket == {"sparsity": 0.5, "period": 300, "rate": 0.1}
    assert preset("conv6-sgd").config.lr == 0.01
    assert preset("resnet18-edge-popup").config.weight_decay == 5e-4
    assert preset("imagenet-resnet50-iterand").ticket["period"] == 1000
    assert preset("imdb-bilstm-iterand").ticket == {"sparsity": 0.5, "period": 45, "rate": 1.0}
    assert preset("table7-vgg11-95-iterand").ticket == {"sparsity": 0.95, "period": 300, "rate": 0.1}
    assert preset("imagenet-wide-resnet50-2-iterand").ticket["sparsity"] == 0.7
    assert preset("imagenet-resnet50-wide-edge-popup").model == "imagenet-resnet50:width=2"
    assert preset("imagenet-resnet18-sgd").method == "sgd"
    assert preset("resnet20-128").model == "resnet20:width=8"
    assert preset("mnist-2x2048").config.momentum == 0.0
    assert preset("digits-iterand").reach == HERE
    with pytest.raises(BadInput):
        preset("conv7")


@pytest.mark.data
@pytest.mark.prove
@pytest.mark.parametrize("name", ["conv6-iterand", "mnist-2x2048", *SLOW])
def test_full_scale_presets_start(name: str) -> None:
    """One step each, in a batch of eight: what needs days is at least known to begin."""
    from torch.utils.data import Subset

    chosen = preset(name)
    data = Subset(prunus.data.load(chosen.data), range(8))
    model = prunus.models.make(chosen.model, init=chosen.init, seed=0)
    config = chosen.config.replace(workers=0)
    if chosen.method == "sgd":
        history = prunus.training.fit(model, data, "1it", config)
    else:
        options = {**chosen.ticket, "method": chosen.method, "length": "1it", "config": config}
        history = prunus.training.find_ticket(model, data, **options).history
    assert history[-1].step == 1


@pytest.mark.prove
@pytest.mark.parametrize("name", ["imagenet-resnet34-iterand", *(["imagenet-resnet50-edge-popup"] if PROVING else [])])
def test_imagenet_presets_start_on_a_data_set_of_ones_own(name: str, tmp_path: Path) -> None:
    """Two steps, from the command line: ImageNet does not come with Prunus. `make prove` takes the right size."""
    images, size = (8, 224) if PROVING else (2, 64)
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        f"dataset = TensorDataset(torch.randn({images}, 3, {size}, {size}), torch.randint(1000, ({images},)))\n"
    )
    options = ["--preset", name, "--data", "mine:dataset", "--length", "2it", "-o", str(tmp_path / "out"), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "prunus", "ticket", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert record["history"][-1]["step"] == 2
    assert (tmp_path / "out" / "ticket.safetensors").exists()

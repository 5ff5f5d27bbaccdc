"""How tight certificates are: the digits network and the trained ResNet-20; full counts go to docs/evidence."""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import pytest
import torch
from tools.evidence import record
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import prunus
from prunus.certificates import AttackSettings, CertifyOptions
from prunus.training import FitConfig, accuracy, fit
from support import PROVING, only_when_proving, scale

HIDDEN = ("layers.0*", "layers.3*")
LIMITS = {0.1: 30.0, 0.5: 12.0, 0.9: 6.0}


def unit_digits(split: str) -> TensorDataset:
    inputs, labels = prunus.data.load("digits", split=split).tensors
    return TensorDataset(inputs / inputs.norm(dim=1, keepdim=True), labels)


def trained(seed: int, penalty: float, length: str) -> nn.Module:
    model = prunus.models.make("fc:64-256-256-256-10", seed=seed)
    fit(model, unit_digits("train"), length, FitConfig(seed=seed, spectral_penalty=penalty, progress=False))
    return model.eval()


def distances(model: nn.Module, masks: prunus.Masks, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return (masks.apply_(copy.deepcopy(model))(inputs) - model(inputs)).norm(dim=1)


def digits_row(model: nn.Module, seed: int, penalty: float, sparsity: float, radius: float | None) -> dict[str, Any]:
    test = unit_digits("test")
    inputs = test.tensors[0]
    masks = prunus.find_masks(model, sparsity, exclude=HIDDEN)
    domain = prunus.Ball(1.0) if radius is None else prunus.Samples(inputs[:10], radius)
    # Over the whole ball the relaxation has nothing to say; near points it wins.
    methods = ("recursion", "products", "intervals") if radius is None else ("recursion", "products", "relaxation")
    options = CertifyOptions(methods=methods, starts=inputs if radius is None else None)
    cert = prunus.certify(model, masks, domain, seed=seed, options=options)
    measured = distances(model, masks, inputs)
    assert float(measured.max()) <= cert.bound or radius is not None
    assert cert.attained <= cert.bound
    return {
        "penalty": penalty,
        "seed": seed,
        "sparsity": sparsity,
        "domain": "Ball(1)" if radius is None else f"10 points, radius {radius}",
        "bound": cert.bound,
        "method": cert.method,
        "attained": cert.attained,
        "tightness": cert.tightness,
        "test max": float(measured.max()),
        "test median": float(measured.median()),
        "accuracy": accuracy(masks.apply_(copy.deepcopy(model)), test),
        "dense accuracy": accuracy(model, test),
        **cert.methods,
    }


@pytest.mark.prove
def test_the_digits_network_is_certified_as_tightly_as_promised():
    seeds, length = range(scale(1, full=3)), f"{scale(20, full=60)}ep"
    limits = LIMITS if PROVING else {0.5: LIMITS[0.5]}
    rows = []
    for seed in seeds:
        for penalty in (0.0, 2e-3) if PROVING else (0.0,):
            model = trained(seed, penalty, length)
            rows += [digits_row(model, seed, penalty, sparsity, None) for sparsity in limits]
            rows.append(digits_row(model, seed, penalty, 0.5, 0.01))

    def of(penalty: float, sparsity: float, ball: bool, key: str) -> list[float]:
        wanted = [r for r in rows if (r["penalty"], r["sparsity"]) == (penalty, sparsity)]
        return [float(r[key]) for r in wanted if (r["domain"] == "Ball(1)") == ball]

    for sparsity, limit in limits.items():
        assert statistics.median(of(0.0, sparsity, True, "tightness")) <= limit
        if PROVING:
            plain, penalised = of(0.0, sparsity, True, "bound"), of(2e-3, sparsity, True, "bound")
            assert statistics.median(a / b for a, b in zip(plain, penalised)) >= 2.5
            before, after = (statistics.median(of(p, sparsity, True, "dense accuracy")) for p in (0.0, 2e-3))
            assert after >= before - 0.005
    assert statistics.median(of(0.0, 0.5, False, "tightness")) <= 1.2
    if PROVING:
        note = (
            "64-256-256-256-10 with biases, digits scaled to unit norm, 60 epochs of prunus.training.fit, hidden "
            "layers pruned by magnitude; penalty is the spectral penalty. Certificates of each method beside the best."
        )
        record("certificates-digits", rows, note)


def resnet20(folder: Any) -> tuple[nn.Module, TensorDataset]:
    model = prunus.models.make("resnet20")
    prunus.models.load_weights(model, folder / "resnet-cifar10" / "resnet20-12fca82f.th")
    test = prunus.data.load("cifar10", split="test", folder=folder)
    inputs, labels = zip(*(test[number] for number in range(scale(64, full=1000))))
    return model.eval(), TensorDataset(torch.stack(inputs), torch.tensor(labels))


def resnet20_row(model: nn.Module, test: TensorDataset, images: Tensor, sparsity: float, radius: float | None):
    """One neighbourhood of the images, or the unit ball: what each method says, how long it takes, what is attained."""
    masks = prunus.find_masks(model, sparsity, allocation="global")
    domain = prunus.Ball(1.0) if radius is None else prunus.Samples(images, radius)
    quick = CertifyOptions(methods=("recursion", "intervals"))
    begin = time.monotonic()
    rough = prunus.certify(model, masks, domain, attack=False, example=images[:1], options=quick)
    quick_seconds = time.monotonic() - begin
    # The relaxation is for neighbourhoods: over the whole ball it has nothing to say.
    methods = ("recursion", "intervals") if radius is None else ("recursion", "intervals", "relaxation")
    options = CertifyOptions(methods=methods, seconds=scale(1, full=840))
    attack = AttackSettings(starts=scale(2, full=20), steps=scale(3, full=40))
    begin = time.monotonic()
    # In float64: the worst case of float32 rounding, shown beside it, would hide the rest.
    exact = copy.deepcopy(model).double()
    cert = prunus.certify(exact, masks, domain, attack=attack, example=images[:1], options=options)
    seconds = time.monotonic() - begin
    assert cert.attained <= cert.bound <= rough.bound * (1 + 1e-9)
    if PROVING:
        assert quick_seconds < 120
        assert seconds < 900
    measured = distances(model, masks, test.tensors[0])
    return {
        "sparsity": sparsity,
        "domain": "Ball(1)" if radius is None else f"radius {radius}",
        "bound": cert.bound,
        "method": cert.method,
        "vacuous": cert.vacuous,
        "attained": cert.attained,
        "bound / attained": cert.tightness,
        **{name: cert.methods.get(name) for name in ("recursion", "intervals", "relaxation")},
        "float32 rounding": rough.rounding,
        "own sizes": cert.sizes,
        "quick seconds": quick_seconds,
        "seconds": seconds,
        "test max": float(measured.max()),
        "test median": float(measured.median()),
        "accuracy": accuracy(masks.apply_(copy.deepcopy(model)), test),
        "dense accuracy": accuracy(model, test),
    }


@pytest.mark.prove
@pytest.mark.data
@only_when_proving
def test_resnet20_is_certified_in_time(data_folder):
    """Bounds, what is attained, and whether they say anything; the relaxation has 15 minutes in full mode."""
    model, test = resnet20(data_folder)
    images = test.tensors[0][: scale(1, full=10)]
    rows = []
    cases = [(sparsity, radius) for radius in (None, 0.001, 0.01) for sparsity in (0.9, 0.5)]
    for sparsity, radius in cases if PROVING else [(0.5, 0.001)]:
        rows.append(resnet20_row(model, test, images, sparsity, radius))
        if PROVING:
            note = "ResNet-20 trained on CIFAR-10, global magnitude; ten test images, 1000 for the accuracy."
            record("certificates-resnet20", rows, note)

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tools.evidence import record
from torch import Tensor, nn

import prunus
from certificates.networks import PATTERNS, convolutional, fully_connected, residual
from prunus.certificates import AttackSettings, Bounds, CertifyOptions, ascend, read_pair
from prunus.certificates.domains import Region
from prunus.errors import BadInput
from support import PROVING, scale


def masks_for(model: nn.Module, seed: int) -> prunus.Masks:
    """Another pattern, score and sparsity for every seed; the head stays."""
    pattern = PATTERNS[seed % len(PATTERNS)]
    score = ("magnitude", "random")[seed % 2]
    heads = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)][-1]
    level = 0.5 if pattern in ("2:4", "balanced:16") else (0.25, 0.5, 0.75)[seed % 3]
    return prunus.find_masks(model, level, score=score, pattern=pattern, exclude=[heads], seed=seed)


def domain_for(shape: tuple[int, ...], seed: int) -> prunus.Ball | prunus.Box | prunus.Samples:
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(shape, generator=generator)
    kinds = (
        lambda: prunus.Ball(1.0),
        lambda: prunus.Ball(0.1, centre),
        lambda: prunus.Box(centre - 0.02, centre + 0.02),
        lambda: prunus.Samples(torch.randn(3, *shape, generator=generator), 0.01),
        lambda: prunus.Ball(3.0, centre),
    )
    return kinds[seed % len(kinds)]()


def inputs_in(region: Region, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random inputs of the region, half of them on its border, with the number of their centre."""
    owners = torch.arange(count) % region.points
    centres = region.centres[owners]
    noise = torch.randn(centres.shape, dtype=torch.float64, generator=generator)
    if region.half is not None:
        return centres + region.half * noise.clamp(-1, 1), owners
    length = torch.linalg.vector_norm(noise.flatten(1), dim=1)
    reach = region.radius * torch.rand(count, dtype=torch.float64, generator=generator) ** (torch.arange(count) % 2)
    return centres + noise * (reach / length).reshape(-1, *[1] * (noise.ndim - 1)), owners


@pytest.fixture(scope="module")
def tally() -> Iterator[dict[str, list[dict[str, float]]]]:
    """What the soundness runs measured, by kind of network; full counts are kept as evidence."""
    found: dict[str, list[dict[str, float]]] = {}
    yield found
    if PROVING and found:
        record("certificates-soundness", [_summary(kind, runs) for kind, runs in found.items()], NOTE)


NOTE = (
    "Random inputs of each domain (half of them on its border) plus gradient ascent (8 starts, 60 steps) against the "
    "bound of every method; all patterns, with biases and batch norm. The share is the largest distance seen over the "
    "best bound: 1 would be tight, above 1 a violation."
)


def _summary(kind: str, runs: list[dict[str, float]]) -> dict[str, Any]:
    shares = sorted(run["share"] for run in runs)
    return {
        "networks": kind,
        "count": len(runs),
        "inputs": int(sum(run["inputs"] for run in runs)),
        "violations": int(sum(run["violations"] for run in runs)),
        "smallest share": shares[0],
        "median share": shares[len(shares) // 2],
        "largest share": shares[-1],
    }


def assert_sound(
    model: nn.Module, pruned: nn.Module, shape: tuple[int, ...], seed: int, inputs: int
) -> dict[str, float]:
    """No input and no ascent exceeds the bound of any method, in float64 or in the network's own float32."""
    pair = read_pair(model, pruned, shape)
    region = domain_for(shape, seed).region(shape)
    with torch.no_grad():
        bounds, _, rounding, *_ = Bounds(pair)._chunk(region, time.monotonic() + scale(1, full=20))
        generator = torch.Generator().manual_seed(seed)
        largest = torch.zeros(region.points, dtype=torch.float64)
        for start in range(0, inputs, 500):
            points, owners = inputs_in(region, min(500, inputs - start), generator)
            one, two = pair.outputs(points)
            exact = torch.linalg.vector_norm(two - one, dim=1)
            largest = largest.scatter_reduce(0, owners, exact, "amax")
            real = (pruned(points.float()).double() - model(points.float()).double()).flatten(1)
            # The inputs themselves were rounded to float32, so they may leave the region by that much.
            assert bool((torch.linalg.vector_norm(real, dim=1) <= exact + rounding[owners] + 1e-4 * (1 + exact)).all())
    climbed = ascend(pair, region, AttackSettings(starts=8, steps=scale(15, full=60)), seed)
    largest = torch.maximum(largest, climbed.each)
    assert float(largest.max()) > 0
    for name, bound in bounds.items():
        assert bool((largest <= bound).all()), (name, seed, largest, bound)
    best = torch.stack(list(bounds.values())).amin(dim=0)
    return {"inputs": inputs, "share": float((largest / best).max()), "violations": int((largest > best).sum())}


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(scale(7, full=30)))
def test_no_input_exceeds_the_certificate_of_a_fully_connected_network(seed, tally):
    model, shape = fully_connected(seed, width=scale(64, full=256))
    pruned = masks_for(model, seed).apply_(copy.deepcopy(model))
    run = assert_sound(model, pruned, shape, seed, scale(1000, full=20_000))
    tally.setdefault("fully connected", []).append(run)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(scale(6, full=30)))
def test_no_input_exceeds_the_certificate_of_a_convolutional_network(seed, tally):
    model, shape = convolutional(seed, channels=scale(8, full=32), side=scale(8, full=16))
    pruned = masks_for(model, seed).apply_(copy.deepcopy(model))
    run = assert_sound(model, pruned, shape, seed, scale(300, full=10_000))
    tally.setdefault("convolutional", []).append(run)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(scale(3, full=10)))
def test_no_input_exceeds_the_certificate_of_a_residual_network(seed, tally):
    model, shape = residual(seed, channels=scale(8, full=32), side=scale(8, full=16))
    pruned = masks_for(model, seed).apply_(copy.deepcopy(model))
    run = assert_sound(model, pruned, shape, seed, scale(300, full=10_000))
    tally.setdefault("residual", []).append(run)


def test_recalibrated_statistics_and_tuned_biases_count():
    model, shape = convolutional(3, channels=8, side=8)
    pruned = copy.deepcopy(model)
    with torch.no_grad():
        for module in pruned.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean += 0.1
                module.running_var *= 1.3
            if isinstance(module, nn.Linear):
                module.bias += 0.05
    assert_sound(model, pruned, shape, 0, 300)
    options = CertifyOptions(methods=("recursion",))
    assert prunus.certify(model, pruned, prunus.Ball(0.5), example=torch.zeros(1, *shape), options=options).attained > 0


def test_a_network_equals_itself():
    model, _ = fully_connected(0, width=16)
    cert = prunus.certify(model.double(), copy.deepcopy(model).double(), prunus.Ball(1.0))
    assert cert.attained == 0.0
    assert cert.bound < 1e-9


def test_the_certificate_shows_both_sides_and_every_method():
    model, _ = fully_connected(2, width=32)
    masks = prunus.find_masks(model, 0.5, exclude=("0", "5"))
    cert = prunus.certify(model, masks, prunus.Ball(radius=1.0))
    assert 0 < cert.attained <= cert.bound
    assert cert.tightness == cert.bound / cert.attained
    assert set(cert.methods) == {"recursion", "products", "intervals", "relaxation"}
    assert cert.methods[cert.method] >= cert.bound
    assert cert.loss_bound == pytest.approx(2**0.5 * cert.bound)
    assert not cert.vacuous
    assert sum(layer.share for layer in cert.layers) == pytest.approx(1)
    assert {layer.name for layer in cert.layers if layer.removed_norm > 0} == {"2"}


def test_exact_evaluation_on_samples():
    model, shape = fully_connected(4, width=32)
    masks = prunus.find_masks(model, 0.5, exclude=("0",))
    points = torch.randn(20, *shape)
    cert = prunus.certify(model.double(), masks, prunus.Samples(points))
    pruned = masks.apply_(copy.deepcopy(model))
    with torch.no_grad():
        truth = (pruned(points.double()) - model(points.double())).norm(dim=1).max()
    assert cert.method == "exact"
    assert cert.bound == pytest.approx(float(truth), rel=1e-8)
    assert cert.loss_bound is None  # the network ends in probabilities


def test_a_hopeless_bound_is_called_vacuous():
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(64, 2)).eval()
    with torch.no_grad():
        for module in model:
            if isinstance(module, nn.Linear):
                module.weight *= 5
    masks = prunus.find_masks(model, 0.95)
    cert = prunus.certify(model, masks, prunus.Ball(1.0), attack=False, options=CertifyOptions(methods=("recursion",)))
    assert cert.vacuous
    assert "vacuous" in cert.statement
    assert cert.attained is None


BAD = [
    ("training", "training mode"),
    ("nan", "not finite"),
    ("architecture", "different architectures"),
    ("shape", "shape"),
    ("domain", "domain must be"),
    ("masks", "second"),
]


@pytest.mark.parametrize(("case", "message"), BAD)
def test_bad_input_is_one_sentence(case, message):
    model, _ = fully_connected(2, width=16)
    pruned, domain = copy.deepcopy(model), prunus.Ball(1.0)
    if case == "training":
        model.train()
    if case == "nan":
        with torch.no_grad():
            pruned[0].weight[0, 0] = float("nan")
    if case == "architecture":
        pruned = nn.Sequential(*list(pruned)[:-1]).eval()
    if case == "shape":
        domain = prunus.Ball(1.0, torch.zeros(5))
    if case == "domain":
        domain = 1.0
    if case == "masks":
        pruned = "pruned"
    with pytest.raises(BadInput, match=message) as caught:
        prunus.certify(model, pruned, domain)
    assert "\n" not in str(caught.value)


def test_options_are_checked():
    with pytest.raises(BadInput, match="no certificate method"):
        CertifyOptions(methods=("magic",))
    with pytest.raises(BadInput, match="at least one"):
        CertifyOptions(methods=())
    with pytest.raises(BadInput, match="0 or more"):
        CertifyOptions(seconds=-1)


def test_the_same_seed_gives_the_same_certificate():
    model, _ = fully_connected(6, width=24)
    masks = prunus.find_masks(model, 0.5)
    first, second = (prunus.certify(model, masks, prunus.Ball(1.0), seed=5) for _ in range(2))
    assert (first.bound, first.attained) == (second.bound, second.attained)

"""The published settings by name (ledger I-5, K-23), and the small ones measured here (I-14).

A preset says which network, data, length, method and configuration a paper used. `reach` says whether it was run on two
cores ("runs here") or only started ("not run here": it takes days on a CPU).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prunus.errors import UnknownName
from prunus.settings.training import FitConfig, Schedule

HERE, NOT_HERE = "runs here", "not run here"
PAPER = "cosine-epoch"  # ledger I-2: the rate changes after each epoch


@dataclass(frozen=True)
class Preset:
    """One published setting. `ticket` holds the arguments of `find_ticket` beside those named; empty for training."""

    name: str
    model: str
    data: str
    length: str
    config: FitConfig
    source: str
    method: str = "sgd"
    init: str | None = None
    ticket: dict[str, Any] = field(default_factory=dict)
    reach: str = NOT_HERE


def _three(name: str, sgd: FitConfig, popup: FitConfig, ticket: dict[str, Any], **rest: Any) -> list[Preset]:
    """SGD, edge-popup and IteRand in one setting; the last two differ by the events only."""
    searches = [
        Preset(f"{name}-{method}", config=popup, method=method, init="signed_constant", ticket=ticket, **rest)
        for method in ("edge-popup", "iterand")
    ]
    return [Preset(f"{name}-sgd", config=sgd, init="kaiming_uniform", **rest), *searches]


def _cifar(lr: float, weight_decay: float) -> FitConfig:
    return FitConfig(lr=lr, weight_decay=weight_decay, batch_size=128, augment="resized-crop-flip", schedule=PAPER)


_IMAGENET = FitConfig(
    lr=0.1,
    weight_decay=1e-4,
    batch_size=128,
    augment="resized-crop-flip",
    workers=2,
    schedule=Schedule("cosine", warmup="5ep", cooldown="5ep", cooldown_lr=1e-5, by="epoch"),
)
_TANGENT = FitConfig(
    lr=0.1,
    weight_decay=1e-4,
    batch_size=128,
    augment="crop-flip",
    schedule=Schedule("step", milestones=("80ep", "120ep")),
)
_CIFAR_EVENTS: dict[str, Any] = {"period": 300, "rate": 0.1}


def _all() -> list[Preset]:
    paper = "Chijiwa et al. 2021, appendix (ledger I-5)"
    found = _three(
        "conv6", _cifar(0.01, 1e-4), _cifar(0.2, 1e-4), {"sparsity": 0.5, **_CIFAR_EVENTS},
        model="conv6", data="cifar10", length="100ep", source=f"{paper}; lr 0.2 as in the text, not 0.3 as in the code",
    )  # fmt: skip
    for net in ("resnet18", "resnet34"):
        same = _cifar(0.1, 5e-4)
        ticket = {"sparsity": 0.6, **_CIFAR_EVENTS}
        found += _three(net, same, same, ticket, model=net, data="cifar10", length="100ep", source=paper)
    for net in ("resnet34", "resnet50", "resnet101"):
        ticket = {"sparsity": 0.7, "period": 1000, "rate": 0.1}
        options = {"model": f"imagenet-{net}", "data": "imagenet", "length": "105ep", "source": paper}
        found += _three(f"imagenet-{net}", _IMAGENET, _IMAGENET, ticket, **options)
    for net, model in (("wide-resnet50-2", "wide-resnet50-2"), ("resnet50-wide", "imagenet-resnet50:width=2")):
        ticket = {"sparsity": 0.7, "period": 1000, "rate": 0.1}
        options = {"model": model, "data": "imagenet", "length": "105ep", "source": f"{paper}; table 9"}
        found += _three(f"imagenet-{net}", _IMAGENET, _IMAGENET, ticket, **options)
    dense = ("imagenet-resnet18-sgd", "imagenet-resnet18", "imagenet", "105ep")
    found.append(Preset(*dense, _IMAGENET, f"{paper}; table 4", init="kaiming_uniform"))
    for net in ("vgg11", "resnet20"):
        # The text names the code base (OpenLTH) and the sparsities, not the rates: those of ResNet-18 are taken.
        same = _cifar(0.1, 5e-4)
        for level in (50, 70, 90, 95, 99):
            ticket = {"sparsity": level / 100, **_CIFAR_EVENTS}
            options = {
                "model": net,
                "data": "cifar10",
                "length": "100ep",
                "source": f"{paper}; table 7, rates not said",
            }
            found += _three(f"table7-{net}-{level}", same, same, ticket, **options)[1:]
    for net in ("lstm", "bilstm"):
        sgd, popup = (FitConfig(lr=lr, batch_size=128, momentum=0.9, schedule=PAPER) for lr in (1.0, 2.5))
        ticket = {"sparsity": 0.5, "period": 45, "rate": 1.0}
        found += _three(f"imdb-{net}", sgd, popup, ticket, model=net, data="imdb", length="15ep", source=paper)
    tangent = "Yang and Wang, section 6.2 (ledger K-23)"
    plain = FitConfig(lr=0.1, momentum=0.0, weight_decay=0.0, batch_size=128, schedule="constant")
    found.append(Preset("mnist-2x2048", "fc-2x2048", "mnist", "40ep", plain, tangent))
    for net, base, widths in (("vgg11", 64, (64, 128)), ("resnet20", 16, (32, 64, 128))):
        for width in widths:
            model = f"{net}:width={width / base:g}"
            found.append(Preset(f"{net}-{width}", model, "cifar10", "160ep", _TANGENT, tangent))
    small = "ledger I-14 a"
    popup = FitConfig(lr=0.3, batch_size=64, schedule=PAPER)
    found += _three(
        "digits", FitConfig(lr=0.03, batch_size=64, schedule=PAPER), popup, {"sparsity": 0.5, "period": 7, "rate": 0.1},
        model="fc:64-32-32-10", data="digits", length="100ep", source=small, reach=HERE,
    )  # fmt: skip
    small = "ledger I-14 b, with all training images"
    found += _three(
        "fashion", FitConfig(lr=0.01, batch_size=128, schedule=PAPER),
        FitConfig(lr=0.2, batch_size=128, schedule=PAPER), {"sparsity": 0.5, "period": 26, "rate": 0.3},
        model="fc:784-64-64-10", data="fashion-mnist", length="20ep", source=small, reach=HERE,
    )  # fmt: skip
    return found


PRESETS: dict[str, Preset] = {preset.name: preset for preset in _all()}


def preset(name: str) -> Preset:
    """A preset by name."""
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return PRESETS[name]

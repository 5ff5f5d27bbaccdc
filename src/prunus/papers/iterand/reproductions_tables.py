"""Tables 4, 7, 8 and 9 of the ticket paper: parameter counts; on digits, pruning in rounds and the width needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prunus.papers.reproducing import reproduction

_SOURCE = "Chijiwa et al. 2021"
_NOTE = "on digits with small networks instead of CIFAR-10"
# Mean and deviation in per cent, ResNet20 on CIFAR-10, by sparsity.
_TABLE_7 = {
    "iterand": {0.5: (84.17, 0.78), 0.7: (82.31, 0.52), 0.9: (70.96, 0.55), 0.95: (55.60, 0.70), 0.99: (24.45, 0.67)},
    "edge-popup": {
        0.5: (76.57, 0.91),
        0.7: (75.83, 2.75),
        0.9: (49.25, 6.33),
        0.95: (42.96, 3.91),
        0.99: (20.11, 3.43),
    },
    "imp": {0.5: (90.70, 0.37), 0.7: (89.79, 0.14), 0.9: (86.87, 0.26), 0.95: (84.28, 0.08), 0.99: (71.78, 1.66)},
}
# ResNet18 on CIFAR-10, weights drawn by Kaiming's uniform law, by width factor.
_TABLE_8 = {
    "iterand": {0.5: (89.96, 0.06), 1.0: (92.47, 0.16)},
    "edge-popup": {0.5: (88.45, 0.53), 0.65: (89.99, 0.08), 1.0: (91.79, 0.19), 1.3: (92.54, 0.19)},
}


@reproduction(
    "ticket-table-7",
    "Tickets against iterative magnitude pruning by sparsity (reduced: digits, 64-64-64-10)",
    f"{_SOURCE}, table 7, {_NOTE}; ledger I-13",
    minutes=4.0,
)
def ticket_table_7(
    seed: int = 0, seeds: int = 3, levels: Sequence[float] = (0.5, 0.7, 0.9, 0.95, 0.99), length: str = "60ep"
) -> list[dict[str, Any]]:
    """Three prune-and-train rounds with equal fractions f = 1 - (1 - p)^(1/3), beside IteRand and edge-popup."""
    from prunus.models import make
    from prunus.papers.runs import digits, score_of
    from prunus.training import FitConfig, accuracy, imp

    train, test = digits()
    rows = []
    for level in levels:
        found: dict[str, list[float]] = {name: [] for name in _TABLE_7}
        for number in range(seed + 1, seed + 1 + seeds):
            for method in ("iterand", "edge-popup"):
                model = make("fc:64-64-64-10", init="signed_constant", seed=number, bias=False)
                ticket = {"sparsity": level, "period": 7, "rate": 0.1}
                config = FitConfig(schedule="cosine-epoch", lr=0.3, seed=number, progress=False)
                found[method].append(score_of(model, (train, test), method, length, config, ticket))
            dense = make("fc:64-64-64-10", init="kaiming_normal", seed=number, bias=False)
            config = FitConfig(schedule="cosine-epoch", lr=0.03, seed=number, progress=False)
            part = 1 - (1 - level) ** (1 / 3)
            last = imp(dense, train, rounds=3, fraction=part, length=_share(length, 4), config=config)[-1]
            found["imp"].append(100 * accuracy(last.model, test))
        for method, values in found.items():
            rows.append({"sparsity": level, "method": method, **_beside(values, _TABLE_7[method][level], "ResNet20")})
    return rows


@reproduction(
    "ticket-table-8",
    "How much wider must edge-popup be than IteRand (reduced: digits, 64-32w-32w-10)",
    f"{_SOURCE}, table 8, {_NOTE}; ledger I-13",
    minutes=3.0,
)
def ticket_table_8(seed: int = 0, seeds: int = 5, length: str = "100ep") -> list[dict[str, Any]]:
    """Both methods at the widths of the table; in the paper edge-popup needs 1.3 times the width of IteRand."""
    from prunus.models import make
    from prunus.papers.runs import digits, score_of
    from prunus.training import FitConfig

    pair, rows = digits(), []
    ticket = {"sparsity": 0.5, "period": 7, "rate": 0.1}
    for method, widths in _TABLE_8.items():
        for width, published in widths.items():
            values = []
            for number in range(seed + 1, seed + 1 + seeds):
                model = make("fc:64-32-32-10", width=width, init="kaiming_uniform", seed=number, bias=False)
                config = FitConfig(schedule="cosine-epoch", lr=0.3, seed=number, progress=False)
                values.append(score_of(model, pair, method, length, config, ticket))
            rows.append({"method": method, "width": width, **_beside(values, published, "ResNet18")})
    return rows


def _beside(values: Sequence[float], published: tuple[float, float], network: str) -> dict[str, Any]:
    from prunus.papers.runs import summary

    mean, deviation = published
    ours = {f"{name}, %" if name == "ours" else name: value for name, value in summary(values).items()}
    return {**ours, "seeds": len(values), f"published, % ({network}, CIFAR-10)": mean, "published s.d.": deviation}


def _share(length: str, parts: int) -> str:
    """A part of a length, so that all rounds together train as long as one search of a ticket."""
    from prunus.contract import Duration

    whole = Duration.parse(length)
    return f"{max(1, round(float(whole.amount) / parts))}{whole.unit}"


# Network, width factor, sparsity, whether the last linear layer counts, millions of parameters in the paper.
_COUNTS = (
    ("4", "imagenet-resnet18", 1.0, 0.0, False, 11.16),
    ("4", "imagenet-resnet34", 1.0, 0.0, False, 21.26),
    ("4", "imagenet-resnet34", 1.0, 0.7, False, 6.38),
    ("4", "imagenet-resnet50", 1.0, 0.7, False, 7.04),
    ("4", "imagenet-resnet101", 1.0, 0.7, False, 12.72),
    ("9", "wide-resnet50-2", 1.0, 0.0, True, 68.8),
    ("9", "imagenet-resnet50", 2.0, 0.0, True, 97.8),
)


@reproduction(
    "ticket-parameters",
    "Parameter counts of tables 4 and 9",
    f"{_SOURCE}, tables 4 and 9 (ledger I-17)",
    minutes=0.1,
)
def ticket_parameters() -> Iterator[dict[str, Any]]:
    """Weights of convolutions that stay (table 4), and with the linear layer (table 9); built without memory."""
    import torch
    from torch import nn

    from prunus.models import make

    for table, name, width, sparsity, linear, published in _COUNTS:
        with torch.device("meta"):
            model = make(name, width=width)
        kinds = (nn.Conv2d, nn.Linear) if linear else (nn.Conv2d,)
        total = sum(module.weight.numel() for module in model.modules() if isinstance(module, kinds))
        ours = (1 - sparsity) * total / 1e6
        yield {
            "table": table,
            "network": name if width == 1 else f"{name}, width {width:g}",
            "sparsity": sparsity,
            "counted": "convolutions and linear" if linear else "convolutions",
            "published, M": published,
            "ours, M": ours,
            "difference, %": 100 * (ours / published - 1),
        }

"""A flag whose name is that of a Python argument has the same default, so that both ways give the same result."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

import prunus
from prunus.certificates import CertifyOptions, PlanSettings
from prunus.recovery import ReconstructOptions
from prunus.structure import Options
from prunus.training import DistilOptions

OWNERS: dict[str, list[Any]] = {
    "prune": [prunus.find_masks],
    "reconstruct": [prunus.reconstruct, ReconstructOptions],
    "shrink": [prunus.shrink, Options],
    "distil": [prunus.training.distil, DistilOptions],
    "certify": [prunus.certify, prunus.certify_statistically, CertifyOptions],
    "equivalent": [prunus.equivalent],
    "plan": [prunus.plan, PlanSettings],
    "compress": [prunus.compress],
}
SPELT = {  # flags that spell the default of Python otherwise
    ("certify", "norm"): "2",
    ("certify", "seconds"): None,  # 60, or what --verify needs
    ("compress", "dtype"): "float32",
}


def defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.items()
    return {name: each.default for name, each in parameters if each.default is not inspect.Parameter.empty}


@pytest.mark.parametrize("command", OWNERS)
def test_flags_have_the_defaults_of_python(command: str) -> None:
    flags = defaults(getattr(importlib.import_module(f"prunus.cli.{command}"), command))
    shared = 0
    for owner in OWNERS[command]:
        for name, expected in defaults(owner).items():
            if name in flags:
                shared += 1
                wanted = SPELT.get((command, name), expected)
                assert flags[name] == wanted or (flags[name] is None and wanted == ()), name
    assert shared >= 2

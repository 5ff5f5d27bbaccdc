"""A fixture that runs a test once for each instruction set of the sparse kernels; random matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

LEVELS = ("portable", "avx2", "avx512")


def each_level() -> Any:
    """Assign to a module-level name `level`, then take `level` as an argument."""

    @pytest.fixture(params=LEVELS, name="level")
    def level(request: pytest.FixtureRequest) -> Iterator[str]:
        from prunus.native import load

        module = load("_kernels")
        if module is None:
            pytest.skip("the kernels were not built")
        best = module.use("")
        if module.use(request.param) != request.param:
            module.use(best)
            pytest.skip(f"this processor has no {request.param}")
        yield request.param
        module.use(best)

    return level


def draw(generator: torch.Generator, most: int) -> int:
    """A whole number from 0 to `most`."""
    return int(torch.randint(0, most + 1, (1,), generator=generator))


def matrix(generator: torch.Generator, rows: int, cols: int) -> torch.Tensor:
    """Balanced with 1 to 16 of 16 kept, by bank or everywhere alike, or free."""
    weight, noise = torch.randn(rows, cols, generator=generator), torch.rand(rows, cols, generator=generator)
    kind = draw(generator, 2)
    if kind == 0:
        return weight * (noise < torch.rand(1, generator=generator))
    parts, keep = [], draw(generator, 16)
    for part in noise.split(16, dim=1):
        parts.append(part.argsort(1).argsort(1) < (keep if kind == 1 else draw(generator, 8)))
    return weight * torch.cat(parts, 1) if parts else weight

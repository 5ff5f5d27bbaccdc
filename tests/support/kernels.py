"""A fixture that runs a test once for each instruction set of the sparse kernels this processor has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

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

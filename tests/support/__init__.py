"""Helpers the tests share: reduced counts in `make test`, full counts in `make prove`."""

from __future__ import annotations

import os

import pytest

PROVING = os.environ.get("PRUNUS_PROVE") == "1"


def scale(count: int, *, full: int) -> int:
    """The reduced count normally, the full one under `make prove`."""
    return full if PROVING else count


only_when_proving = pytest.mark.skipif(not PROVING, reason="takes minutes: run by make prove")

"""Kept counts from fractions."""

from __future__ import annotations

import pytest

from prunus.errors import BadInput
from prunus.papers.noisy_topk._counts import count_of


def test_counts_forgive_rounding_only() -> None:
    assert count_of("k", 0.1, 1000) == 100
    assert count_of("k", 0.7, 10) == 7
    assert count_of("k", 1 / 3, 3 * 10**8) == 10**8
    with pytest.raises(BadInput, match=r"k times 10 must be a whole number, got 2.5: .* 0.2 and 0.3"):
        count_of("k", 0.25, 10)
    with pytest.raises(BadInput):
        count_of("k", 0.1000001, 1000)

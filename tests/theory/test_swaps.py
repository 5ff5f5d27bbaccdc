from __future__ import annotations

import pytest

from support.theory import cases, verify


@pytest.mark.parametrize("claim, case", cases("swaps"))
def test_case(claim, case):
    verify(claim, case)

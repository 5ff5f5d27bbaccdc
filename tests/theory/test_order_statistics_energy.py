from __future__ import annotations

import pytest

from support.theory import cases, verify


@pytest.mark.parametrize("claim, case", cases("order_statistics", letters="B"))
def test_case(claim, case):
    verify(claim, case)

from __future__ import annotations

import pytest

from support.theory import checks_of, unchecked


def test_every_claim_has_an_independent_check():
    assert not unchecked("tangent")


@pytest.mark.parametrize("check", checks_of("tangent"))
def test_independent_check(check):
    assert check.run()

"""The audit accepts the mechanisms as they are and rejects each planted fault."""

from __future__ import annotations

import math

import pytest

from prunus.errors import BadInput
from prunus.private import NoisyTopK, TwoLevelTopK
from prunus.private.audit import FAULTS, audit
from support import scale

DRAWS = scale(12_000, full=100_000)


@pytest.mark.prove
@pytest.mark.parametrize("mech", [NoisyTopK(3, 0.5), NoisyTopK(0.25, 1.0), NoisyTopK(5, 0.2), TwoLevelTopK(3, 1.5)])
def test_honest_mechanisms_pass(mech) -> None:
    """False alarm 1e-6 for each mechanism; secure draws."""
    report = audit(mech, 8, DRAWS)
    assert report.passed, report
    assert {finding.pair for finding in report.findings} >= {"one swap", "same magnitudes"}


def test_the_bound_comes_close_to_the_claim() -> None:
    """An audit that finds nothing where there is something is worth nothing: at least 70 % of a claim is shown."""
    report = audit(NoisyTopK(3, 0.5), 8, DRAWS, insecure_seed=3)
    single = next(finding for finding in report.findings if finding.pair == "one swap")
    assert 0.7 * single.claimed < single.lower_bound <= single.claimed


@pytest.mark.prove
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    mech = NoisyTopK(3, 0.5)
    report = audit(mech, 8, DRAWS, sampler=FAULTS[name](mech))
    assert not report.passed
    worst = max(report.findings, key=lambda finding: finding.lower_bound - finding.claimed)
    assert worst.lower_bound > worst.claimed + 0.2


def test_report_is_plain_data() -> None:
    record = audit(NoisyTopK(2, 0.3), 6, 400, insecure_seed=1).to_dict()
    assert record["passed"] is True
    assert all(math.isfinite(finding["lower_bound"]) for finding in record["findings"])


@pytest.mark.parametrize("arguments", [{"draws": 3}, {"confidence": 1.0}, {"d": 3}])
def test_bad_input(arguments) -> None:
    with pytest.raises(BadInput):
        audit(NoisyTopK(3, 0.5), **({"d": 8} | arguments))

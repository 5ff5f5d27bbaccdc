"""Closeness theorems: reference cases, errata, reductions, orderings, and bad input."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunus.errors import BadInput
from prunus.papers.checking import Check
from prunus.theory import Case, Claim
from prunus.theory import closeness as c
from support.theory import cases, checks_of, unchecked, verify

quick = settings(max_examples=30, deadline=None, derandomize=True)
THEOREM1 = {"spread": 1.0, "norm_bound": 1.18, "latala": 0.63, "concentration": 0.00484}
MOMENTS = {"second": 1 / 3, "fourth": 0.2, "latala": 0.55}
THEOREM3: dict[str, Any] = {
    "layers": 3, "image": 64, "kernel": 3, "d": 256, "exponent": 0.5, "image_exponent": 0.2, "width_exponent": 0.05,
    "second": 1.0, "fourth": 3.0, "latala": 0.6, "outputs": 10, "norm_bound": 10.0,
}  # fmt: skip


@pytest.mark.parametrize("claim, case", cases("closeness"))
def test_case(claim: Claim, case: Case) -> None:
    verify(claim, case)


@pytest.mark.parametrize("check", checks_of("closeness"))
def test_check(check: Check) -> None:
    assert check.run()


def test_every_claim_is_checked() -> None:
    covered = {identifier for parameter in checks_of("closeness") for identifier in parameter.values[0].claims}
    assert unchecked("closeness") == set()
    assert {"P-5", "P-6a", "P-6b", "P-6c", "P-16b", "P-22a", "P-22b", "P-22c", "P-22d", "P-33"} <= covered


def test_printed_forms_differ_where_the_ledger_says_so() -> None:
    assert c.pruned_from_density_printed(1000, 0.1) == 100 != c.pruned_from_density(1000, 0.1)
    assert c.no_repeat_probability_printed(4, 2)["probability"] == pytest.approx(0.25)
    assert c.no_repeat_probability_printed(4, 0)["probability"] == pytest.approx(4.0)
    assert c.no_repeat_probability_printed(4, 3)["log_probability"] == pytest.approx(-2 * math.log(4))
    assert c.no_repeat_probability(4, 2)["probability"] == pytest.approx(0.75)
    shares = c.global_threshold([100, 100], [1.0, 3.0], 0.5)["shares"]
    assert c.global_threshold_printed([100, 100], [1.0, 3.0], 0.5)["shares"] == [0.5, 0.5] != shares
    assert c.theorem2_exponent_cap_printed(1024, 1024)["cap"] > 0.5 > c.theorem2_exponent_cap(1024, 1024)["cap"]
    for printed, corrected in (
        (c.difference_mean_latala_printed(64, 64, 0.25, 1.0, 0.63), c.difference_mean_latala(64, 64, 0.25, 1.0, 0.63)),
        (c.convolution_norm_order_printed(16, 3), c.convolution_norm_order(16, 3)),
    ):
        assert printed > 2 * corrected
    assert c.last_layer_norm_printed(8, 16, 10) == pytest.approx(8**-0.5)
    assert c.last_layer_norm_printed(8, 16, 10, image_exponent=0.1) < c.last_layer_norm(8, 16, 10)
    assert c.theorem3_probability_printed(**THEOREM3)["inner"] != c.theorem3_probability(**THEOREM3)["inner"]
    own = c.theorem3_probability_printed(**THEOREM3, last_constant=1.0)["inner"]
    default = c.theorem3_probability_printed(**THEOREM3)["inner"]
    constant = c.theorem3_constants(1.0, 3.0, 0.6)["constant3"]
    assert own - default == pytest.approx((constant - 1.0) * 64**-0.8)
    assert c.theorem3_probability(**THEOREM3, last_constant=1.0) == c.theorem3_probability(**THEOREM3)
    printed = c.theorem3_error_printed(3, 64, 256, 64, 3, 0.2, 0.05, 1.1)["error"]
    assert printed == c.theorem3_error_printed(3, 64, 256, 64, 3, 0.2, 0.05, 9.9, 1.0)["error"]
    assert printed != c.theorem3_error(3, 64, 256, 64, 3, 0.2, 0.05, 1.1)["error"]


def test_defaults_are_those_of_the_ledger() -> None:
    norms, parts = [1.1, 1.2, 1.3], [0.0, 0.1, 0.0]
    assert c.recursion_error(norms, parts) == c.recursion_error(norms, parts, 1.0, 1.0)
    assert c.equal_norm_error(1.2, 0.1, 4) == c.equal_norm_error(1.2, 0.1, 4, 1.0)
    assert c.doubling_error(1.2, 0.1, 4) == c.doubling_error(1.2, 0.1, 4, 1.0)
    assert c.union_failure([0.1], [0.1]) == c.union_failure([0.1], [0.1], 0.0)
    assert c.layer_recursion(norms, norms, parts) == c.layer_recursion(
        norms, norms, parts, [0.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 2, 1.0, 1.0
    )
    biased = c.layer_recursion(norms, [1.0, 1.1, 1.2], parts, [0.1, 0.2, 0.3])
    assert biased == c.layer_recursion(norms, [1.0, 1.1, 1.2], parts, [0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert c.exceedance_upper(50, 2) == c.exceedance_upper(50, 2, 0.05, 1)
    assert c.success_interval(50, 2) == c.success_interval(50, 2, 0.05)
    assert c.theorem1_constants(4, **THEOREM1) == c.theorem1_constants(4, **THEOREM1, lipschitz=1.0)
    assert c.theorem1_width(4, 0.5, 0.1, 0.1, **THEOREM1) == c.theorem1_width(4, 0.5, 0.1, 0.1, **THEOREM1, lipschitz=1)
    assert c.theorem1_pruned(999, 4, 0.1, 0.1, **THEOREM1) == c.theorem1_pruned(
        999, 4, 0.1, 0.1, **THEOREM1, lipschitz=1
    )
    assert c.theorem1_prime_difference(4, 9, 0.1, 0.1) == c.theorem1_prime_difference(4, 9, 0.1, 0.1, True)
    assert c.theorem1_prime_error(16, 3, 9, 0.1) == c.theorem1_prime_error(16, 3, 9, 0.1, 1.0, 1.0)
    assert c.theorem1_prime_pruned(16, 3, 9, 0.1) == c.theorem1_prime_pruned(16, 3, 9, 0.1, 1.0, 1.0)
    assert c.theorem2_prime_pruned(64, 3, 1.0, 0.1) == c.theorem2_prime_pruned(64, 3, 1.0, 0.1, 1.0, 1.0)
    assert c.theorem2_prime_difference(8, 9, 3, 0.1) == c.theorem2_prime_difference(8, 9, 3, 0.1, 1.0)
    assert c.difference_mean_explicit(8, 9, 3) == c.difference_mean_explicit(8, 9, 3, 1.0)
    assert c.difference_norm_heuristic(8, 9, 3) == c.difference_norm_heuristic(8, 9, 3, 1.0)
    assert c.moment_constants() == {"second": 1.0, "fourth": 3.0}
    assert c.global_threshold([9], [1.0], 0.5) == c.global_threshold([9], [1.0], 0.5, "normal")
    assert c.global_threshold_printed([9], [1.0], 0.5) == c.global_threshold_printed([9], [1.0], 0.5, "normal")
    assert c.kernel_norm_law(3) == c.kernel_norm_law(3, 1.0)
    assert c.kernel_norm_quantile(3, 0.2) == c.kernel_norm_quantile(3, 0.2, 1.0)
    assert c.last_layer_norm(8, 4, 5) == c.last_layer_norm(8, 4, 5, 1.0)
    assert c.last_layer_norm_printed(4, 4, 5) == 0.5
    exact = c.theorem2_probability(3, 1024, 0.3, **MOMENTS)
    given_failures = c.theorem2_probability(
        3, 1024, 0.3, **MOMENTS, norm_failures=[0.0] * 3, load_failure=1024 ** (-1 / 3)
    )
    assert exact == pytest.approx(given_failures, rel=1e-14)


@quick
@given(weights=st.integers(2, 10**9), exponent=st.floats(0, 1))
def test_counts_are_whole_and_consistent(weights: int, exponent: float) -> None:
    result = c.pruned_weights(weights, exponent)
    assert isinstance(result["pruned"], int)
    assert 1 <= result["pruned"] <= weights
    assert result["sparsity"] + result["density"] == pytest.approx(1)
    assert result["sparsity"] <= weights**-exponent * (1 + 1e-11)
    assert c.exponent_for_sparsity(weights, result["sparsity"]) >= exponent - 1e-11
    kept = c.pruned_from_density(weights, result["density"])
    assert kept == result["pruned"]


@quick
@given(weights=st.integers(1, 10**9), share=st.floats(0, 1.2))
def test_draws_with_replacement(weights: int, share: float) -> None:
    count = int(share * weights)
    distinct = c.distinct_mean(weights, count)
    assert 0 <= distinct <= min(weights, count) + 1e-6
    result = c.no_repeat_probability(weights, count)
    assert 0 <= result["probability"] <= result["approximation"] * (1 + 1e-9)
    if count <= weights:
        bound = c.without_replacement_failure(weights, count, 0.1)
        assert 0.1 * (1 - 1e-12) <= bound <= 1
        assert c.without_replacement_failure(weights, count, 0.0) == 0.0


@pytest.mark.parametrize(
    "weights, count", [(10**9, 3), (10**9, 10_000), (10**9, 10_001), (10**9, 40_000), (10**9, 10**8)]
)
def test_no_repeat_keeps_its_digits(weights: int, count: int) -> None:
    # log p = -sum over j of (sum of the j-th powers of 0..N-1)/(j D^j); from j = 3 on by Euler and Maclaurin.
    x = count / weights
    terms = [count * (count - 1) / 2 / weights]
    terms.append((count - 1) * count * (2 * count - 1) / 6 / (2 * weights**2))
    terms += [weights * x ** (j + 1) / (j * (j + 1)) - x**j / (2 * j) for j in range(3, 40)]
    assert c.no_repeat_probability(weights, count)["log_probability"] == pytest.approx(-math.fsum(terms), rel=1e-9)


@quick
@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=5),
    sparsity=st.floats(0.001, 0.999),
    law=st.sampled_from(["normal", "uniform"]),
    seed=st.integers(0, 100),
)
def test_global_shares_add_up(sizes: list[int], sparsity: float, law: str, seed: int) -> None:
    scales = np.random.default_rng(seed).uniform(0.01, 1, len(sizes))
    result = c.global_threshold(sizes, scales, sparsity, law)
    shares = np.array(result["shares"])
    assert float(shares @ sizes) == pytest.approx(sparsity * sum(sizes), rel=1e-9)
    assert (np.argsort(-shares, kind="stable")[0] == np.argmin(scales)) or shares.max() == 1.0
    scaled = c.global_threshold(sizes, 3 * scales, sparsity, law)
    assert scaled["threshold"] == pytest.approx(3 * result["threshold"], rel=1e-9)  # type: ignore[operator]


def test_global_threshold_far_in_the_tail() -> None:
    result = c.global_threshold([1000, 10], [1.0, 1.0], 1 - 1e-12)
    assert result["threshold"] == pytest.approx(7.1305, rel=1e-4)
    assert c.global_threshold([3, 5], [1.0, 2.0], 1.0, "uniform") == {"threshold": 2.0, "shares": [1.0, 1.0]}


@quick
@given(
    norms=st.lists(st.floats(0.1, 3), min_size=2, max_size=6),
    share=st.floats(0, 1),
    slope=st.floats(0.1, 2),
    radius=st.floats(0, 50),
)
def test_recursion_is_homogeneous_and_monotone(norms: list[float], share: float, slope: float, radius: float) -> None:
    parts = [share * n for n in norms]
    error = c.recursion_error(norms, parts, slope, radius)
    layers = len(norms)
    # All layers pruned by the same share: the product grows by (1+share)^l, minus the original.
    whole = radius * slope ** (layers - 1) * math.prod(norms)
    assert error == pytest.approx(whole * math.expm1(layers * math.log1p(share)), rel=1e-9, abs=1e-12)
    assert c.recursion_error(norms, parts, [slope] * (layers - 1), 2 * radius) == pytest.approx(2 * error)
    smaller = [max(0.0, n - t) for n, t in zip(norms, parts)]
    sharp = c.layer_recursion(norms, smaller, parts, lipschitz=slope, radius=radius)
    assert sharp <= error * (1 + 1e-12) + 1e-300
    assert c.recursion_error(norms, [0.0] * layers, slope, radius) == 0.0


@pytest.mark.parametrize("layers", [3, 4, 9])
def test_tiny_differences_keep_their_digits(layers: int) -> None:
    for t in (1e-16, 1e-12, 1e-6):
        linear = (layers - 2) * t * 1.5 ** (layers - 1)
        assert c.equal_norm_error(1.5, t, layers) == pytest.approx(linear, rel=layers * t + 1e-14)
    assert c.equal_norm_error(1.5, 0.0, layers) == 0.0
    assert c.equal_norm_error(1.5, 0.3, layers, 0.0) == 0.0
    assert c.doubling_error(1.0, 1.0, layers) == 2 ** (layers - 2) - 1


def test_layer_recursion_takes_the_smaller_way() -> None:
    # Pruned norms much larger: the way through the original is better, and the other way round.
    assert c.layer_recursion([1, 1, 1], [1, 9, 9], [0, 1, 0]) == pytest.approx(1.0)
    assert c.layer_recursion([1, 9, 9], [1, 1, 1], [0, 1, 0]) == pytest.approx(1.0)
    with_offset = c.layer_recursion([1, 1, 1], [1, 1, 1], [0, 1, 0], offsets=[0.5, 0.0])
    assert with_offset == pytest.approx(1.5)
    assert c.layer_recursion([1.0], [1.0], [0.5], bias_differences=[0.25], radius=2.0) == pytest.approx(1.25)


@quick
@given(layers=st.integers(3, 12), width=st.integers(2, 10**8), exponent=st.floats(0.01, 0.99))
def test_theorem_1_improves_with_width(layers: int, width: int, exponent: float) -> None:
    rest = {"spread": 1.0, "latala": 0.63, "concentration": 0.00484}
    assert c.theorem1_probability(layers, 10**12, exponent, **rest) <= 1
    small, large = (c.theorem1_union_probability(layers, d, exponent, **rest) for d in (width, 2 * width))
    assert small < large <= 1
    needs = c.theorem1_width(layers, exponent, 0.1, 0.05, **THEOREM1)
    assert needs["width"] >= max(needs["error_width"], needs["failure_width"], needs["norm_width"])
    assert c.theorem1_width(layers, exponent, 0.1, 0.01, **THEOREM1)["width"] >= needs["width"]


def test_theorem_1_where_the_first_constant_rules() -> None:
    tiny = {"spread": 1e-9, "norm_bound": 1e-3, "latala": 1.0, "concentration": 100.0}
    needs = c.theorem1_width(3, 0.5, 1.0, 0.5, **tiny)
    assert needs["width"] == pytest.approx(1e6)
    assert c.theorem1_pruned(10**6, 3, 1.0, 0.5, **tiny) == {"exponent": pytest.approx(0.5), "pruned": 10**6}
    free = {"spread": 1e-9, "norm_bound": 1.0, "latala": 1.0, "concentration": 100.0}
    assert c.theorem1_pruned(10, 3, 10.0, 0.5, **free) == {"exponent": 0.0, "pruned": 100}
    slow = {"spread": 1e-9, "norm_bound": 1.0, "latala": 1.0, "concentration": 1e-4}
    assert c.theorem1_pruned(10, 3, 10.0, 0.5, **slow)["pruned"] == 0


@quick
@given(d=st.integers(2, 3000), layers=st.integers(3, 6), error=st.floats(0.001, 10), delta=st.floats(1e-6, 0.9))
def test_theorem_1_prime_finds_the_largest_count(d: int, layers: int, error: float, delta: float) -> None:
    best = c.theorem1_prime_pruned(d, layers, error, delta)
    pruned = int(best["pruned"])
    assert best["sparsity"] == pruned / d**2
    if pruned:
        assert c.theorem1_prime_error(d, layers, pruned, delta)["error"] <= error
    if pruned < d * d - 1:
        assert c.theorem1_prime_error(d, layers, pruned + 1, delta)["error"] > error
    assert c.theorem1_prime_pruned(d, layers, error, delta, 1.5)["pruned"] <= pruned


def test_theorem_1_prime_without_limits() -> None:
    assert c.theorem1_prime_pruned(4, 3, 1e9, 0.1) == {"pruned": 15, "sparsity": 15 / 16}
    symmetric = c.theorem1_prime_difference(16, 25, 0.1, 0.1, unimodal=False)
    unimodal = c.theorem1_prime_difference(16, 25, 0.1, 0.1)
    assert symmetric - unimodal == pytest.approx(0.1 * 9 * math.sqrt(2 * math.pi) / 4)


@quick
@given(d=st.integers(2, 10**5), layers=st.integers(3, 5), error=st.floats(0.01, 10), delta=st.floats(1e-4, 0.9))
def test_theorem_2_prime_finds_the_largest_count(d: int, layers: int, error: float, delta: float) -> None:
    best = c.theorem2_prime_pruned(d, layers, error, delta)
    part = delta / (4 * (layers - 2))
    norm = c.uniform_norm_quantile(d, d, delta / (2 * layers))

    def total(load: int) -> float:
        return c.equal_norm_error(norm, c.theorem2_prime_difference(d, d, load, part), layers)

    assert total(best["load"] + 1) > error
    if best["load"] == 0:
        assert best["count"] == 0
    else:
        assert total(best["load"]) <= error


def test_theorem_2_pieces() -> None:
    series = c.series_norm_quantile(16, 9, 0.5 / 4 / math.sqrt(3), 100, 0.1)
    assert c.theorem2_prime_difference(16, 9, 100, 0.1, 0.5) == pytest.approx(series)
    assert c.theorem2_prime_difference(16, 9, 1, 0.1, 0.5) == pytest.approx(0.125)
    slack = c.theorem2_slack(0.5, [0.1, 0.05, 0.02])
    assert slack == {"slack": pytest.approx(0.23), "admissible": True}
    assert c.theorem2_slack(0.5, [0.1])["slack"] == pytest.approx(0.4)
    caps = [c.theorem2_exponent_cap(d, d)["cap"] for d in (10**3, 10**6, 10**9, 10**12)]
    assert caps == sorted(caps)
    assert caps[-1] < 0.5
    assert c.theorem2_exponent_cap(300, 100)["cap"] == c.theorem2_exponent_cap(100, 300)["cap"]
    for name, value in c.theorem2_width(0.3, 4, 1e-3, 0.1, 1.5, **MOMENTS).items():
        assert math.isfinite(value), name
    with pytest.raises(BadInput, match="norm_bound"):
        c.theorem2_width(0.4, 3, 1e9, 0.9, 1e-9, second=1e-8, fourth=1e-15, latala=1.0)
    by_load = c.theorem2_width(0.4, 3, 1e9, 0.01, 1.0, second=1e-20, fourth=1e-40, latala=1.0)
    assert by_load["log10_width"] == pytest.approx(math.log10(300**3))


@quick
@given(layers=st.integers(3, 8), image=st.integers(3, 4000), d=st.integers(16, 10**6), part=st.floats(0.05, 0.95))
def test_theorem_3_union_is_never_worse(layers: int, image: int, d: int, part: float) -> None:
    cap = c.theorem3_exponent_cap(d)
    result = c.theorem3_probability(
        layers, image, 3, d, cap, part, part * cap / 4, second=1.0, fourth=3.0, latala=0.6, outputs=10, norm_bound=10.0
    )
    assert result["union_inner"] >= result["inner"] - 1e-12
    assert result["probability"] <= 1
    assert result["probability"] == pytest.approx((1 - d ** (-1 / 3)) ** (2 * (layers - 2)) * result["inner"])


def test_theorem_3_reduces_from_unequal_layers() -> None:
    x, y = 64**-0.2, 256**-0.05
    error = c.theorem3_error(4, 64, 256, 32, 3, 0.2, 0.05, 1.1, 0.7)["error"]
    unequal = c.unequal_convolution_error([x] * 3, [0.0, y, y], 1.1, 32, 3, [0.7] * 3)
    assert error == pytest.approx(unequal, rel=1e-12)
    assert c.theorem3_error(4, 64, 256, 32, 3, 0.2, 0.05, 1.1, 0.0)["error"] == 0.0
    both = c.unequal_norm_failure([8, 16], [3, 1], [1.0, 2.0], 1.0, 3.0, 0.6)
    each = [c.unequal_norm_failure([p], [q], [a], 1.0, 3.0, 0.6) for p, q, a in ((8, 3, 1.0), (16, 1, 2.0))]
    assert both == pytest.approx(sum(each))


def test_kernels_and_shortfalls() -> None:
    assert c.kernel_norm_quantile(2, 0.5, 3.0) == pytest.approx(c.kernel_norm_law(2, 3.0)["mean"])
    assert c.variance_shortfall(6, 3) == 4.0
    assert c.convolution_norm_order(3, 3) == 2.0
    assert c.convolution_norm_order_printed(3, 3) == 6.0


@quick
@given(n=st.integers(1, 10**6), share=st.floats(0, 1), delta=st.floats(1e-6, 0.99))
def test_confidence_bounds_are_ordered(n: int, share: float, delta: float) -> None:
    k = int(share * n)
    interval = c.success_interval(n, k, delta)
    assert 0 <= interval["low"] <= k / n <= interval["high"] <= 1
    mirrored = c.success_interval(n, n - k, delta)
    assert interval["low"] == pytest.approx(1 - mirrored["high"], abs=1e-9)
    upper = c.exceedance_upper(n, k, delta / 2)
    assert upper == pytest.approx(interval["high"])
    assert c.exceedance_upper(n, k, delta / 2, 3) >= upper
    rank = c.conformal_rank(n, delta)
    assert 1 <= rank["rank"] <= n + 1
    assert rank["finite"] == (rank["rank"] <= n)


def test_conformal_rank_is_not_spoiled_by_rounding() -> None:
    for n, percent in itertools.product((9, 19, 99, 999), range(1, 100)):
        exact = -((n + 1) * (percent - 100) // 100)
        assert c.conformal_rank(n, percent / 100)["rank"] == exact


@quick
@given(scores=st.lists(st.floats(-30, 30), min_size=1, max_size=8))
def test_softmax_norm_is_an_eigenvalue(scores: list[float]) -> None:
    p = np.exp(np.array(scores) - max(scores))
    p /= p.sum()
    norm = c.softmax_jacobian_norm(p)["norm"]
    exact = float(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1])
    assert norm == pytest.approx(exact, rel=1e-9, abs=1e-15)
    assert norm <= 0.5 + 1e-12
    # Adding classes that never occur, or repeating the order, changes nothing.
    assert c.softmax_jacobian_norm([*p[::-1], 0.0])["norm"] == pytest.approx(norm, rel=1e-12, abs=1e-300)


def test_loss_and_joins_are_linear() -> None:
    assert c.cross_entropy_change(3.0) == pytest.approx(3 * math.sqrt(2))
    assert c.label_margin(3.0) == pytest.approx(3 * math.sqrt(2))
    assert c.squared_error_change(0.5, 3.0) == 3.0
    assert c.residual_error(2.0, 0.5, 0.25) == 1.25
    assert c.concatenation_error([3.0]) == 3.0
    assert c.concatenation_error([1e200, 1e200]) == pytest.approx(math.sqrt(2) * 1e200)


def test_what_passes_every_float_is_infinite() -> None:
    assert c.theorem1_width(3, 0.001, 0.1, 0.05, **THEOREM1)["width"] == math.inf
    assert c.equal_norm_error(2.0, 1.0, 5000) == math.inf
    assert c.doubling_error(2.0, 1.0, 5000) == math.inf
    assert c.equal_norm_error(2.0, 0.0, 5000) == c.doubling_error(2.0, 0.0, 5000) == 0.0
    assert c.equal_norm_error(2.0, 1.0, 5000, 0.0) == c.doubling_error(2.0, 1.0, 5000, 0.0) == 0.0
    assert c.theorem1_constants(5000, **THEOREM1)["constant2"] == math.inf

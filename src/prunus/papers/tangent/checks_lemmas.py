"""Independent checks of the lemmas of section 9: exact binomial and chi tails, enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy import stats

from prunus.papers import tangent
from prunus.papers.checking import check


@check("K-25a", method="enumeration")
def masked_signs() -> str:
    """Random signs behind random masks: the exact tail, summed over the number kept."""
    for density, count, deviation, shift in itertools.product((0.1, 0.5, 0.9), (40, 400), (0.1, 0.3, 0.49), (0.1, 0.3)):
        bound = tangent.masked_mean_tail(density, count, deviation, shift)
        level = (deviation * shift + shift) * density * count
        sizes = np.arange(count + 1)
        # |S| >= level for S a sum of k signs, S = 2 B - k with B binomial
        beyond = 2.0 * stats.binom.sf(np.ceil((sizes + level) / 2.0) - 1, sizes, 0.5)
        exact = float(stats.binom.pmf(sizes, count, density) @ np.minimum(beyond, 1.0))
        assert exact <= bound * (1 + 1e-9), f"{exact} above {bound} at density {density}, count {count}"
    exact = float(
        stats.binom.sf(math.floor(1.4 * 50), 1000, 0.05) + stats.binom.cdf(math.ceil(0.6 * 50) - 1, 1000, 0.05)
    )
    printed = tangent.masked_mean_tail_printed(0.05, 1000, 0.4, 100.0)
    assert printed < exact, "the printed constant 1 would promise less than the binomial's exact tail"
    return "36 exact tails of masked signs below the bound; the printed one is below an exact binomial tail"


@check("K-25b", method="second formula")
def suprema_over_spheres_and_segments() -> str:
    """Over a sphere the supremum is a chi variable, over a segment a half-normal one: exact tails."""
    for dimension, radius, deviation in itertools.product((1, 2, 10, 100), (0.5, 3.0), (0.1, 1.0, 3.0)):
        mean = float(stats.chi.mean(dimension))
        exact = float(stats.chi.sf(mean + deviation / radius, dimension))
        assert exact <= tangent.supremum_tail(radius, deviation), f"sphere of dimension {dimension}"
    return "24 exact tails of chi variables below the bound"


@check("K-25c", method="enumeration")
def implications() -> str:
    """All weights of the four cells on a grid: the identity, and that it lies above the conditional chance."""
    count = 0
    for cells in itertools.product(range(6), repeat=4):
        total, first = sum(cells), cells[0] + cells[1]
        if not first:
            continue
        given, right = cells[0] / first, (total - cells[1]) / total
        found = tangent.implication_probability(first / total, given)
        assert abs(found["probability"] - right) < 1e-12
        assert abs(found["gain"] - (right - given)) < 1e-12
        assert found["gain"] >= 0.0
        count += 1
    return f"{count} joint laws of two events"


@check("K-25d", method="second formula")
def activation_gradients() -> str:
    """At the promised width the exact binomial tails, over all rows, layers and pairs, stay below delta."""
    delta, depth, rows = 0.05, 3, 256
    for density, error, share in itertools.product((0.05, 0.3, 1.0), (0.1, 0.5, 1.0), (0.5, 0.2, 0.01)):
        width = tangent.gradient_width(density, error, delta, depth, rows)
        mean, reach = density * share * width, 0.5 * error * density * width
        law = stats.binom(width, density * share)
        tail = float(law.sf(math.floor(mean + reach)) + law.cdf(math.ceil(mean - reach) - 1))
        assert 3 * depth * rows * tail <= delta, f"density {density}, error {error}, share {share}: {tail}"
    return "27 exact binomial tails, three pairs, all rows and layers"


@check("K-25e", method="second formula")
def projected_vectors() -> str:
    """One common direction gives a normal variable, orthogonal ones a chi variable: exact tails."""
    for density, delta, count in itertools.product((0.01, 0.1, 0.5, 1.0), (0.01, 0.5), (1, 4, 1000)):
        bound = tangent.projected_norm_bound(density, delta)
        scale = math.sqrt(2.0 / density)
        common = 2.0 * float(stats.norm.sf(bound / scale))
        apart = float(stats.chi.sf(bound / scale * math.sqrt(count), count))
        assert max(common, apart) <= delta / 8, f"density {density}, delta {delta}, {count} directions"
    mean = math.sqrt(2.0 / 0.01) * float(stats.chi.mean(1000)) / math.sqrt(1000)
    printed = math.sqrt(2.0)  # the mean term as printed
    assert printed < 0.2 * mean
    return "24 exact tails below the bound; at density 0.01 the printed mean term is a tenth of the mean"

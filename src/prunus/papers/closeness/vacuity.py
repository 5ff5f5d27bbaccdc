"""What the closeness theorems allow in practice, vacuous statements marked as such (P-16, P-25).

For square layers of a given width, two weight laws and the usual calibrated constants (Tables 2 and 3 of Qian &
Klabjan), every row says how many weights a theorem lets one prune for the asked error and failure probability, with
which probability, and from which width on the theorem is not vacuous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prunus.formulas.domain import probability, real, whole
from prunus.papers.closeness._counts import theorem3_exponent_cap
from prunus.papers.closeness._theorem1 import (
    theorem1_prime_pruned,
    theorem1_probability,
    theorem1_pruned,
    theorem1_width,
)
from prunus.papers.closeness._theorem2 import (
    moment_constants,
    theorem2_best_claim,
    theorem2_width,
    theorem2_width_floor,
)
from prunus.papers.closeness._theorem3 import theorem3_error, theorem3_probability

_ROUNDING = 1e-12  # tolerance

NEGLIGIBLE = 1e-3  # a statement about fewer weights than this fraction is of no use

LATALA1, LATALA2, LATALA3 = 0.63, 0.55, 0.6  # Lemma 4's constant as calibrated in Table 3; no proof below 1

IMAGE, KERNEL, OUTPUTS, CHANNELS, LAST_NORM = 32, 3, 10, 3, 10.0  # Theorem 3: images of 32 x 32 x 3, 3 x 3 kernels

CONCENTRATION = 0.00484  # Lemma 3's rate from the 99.99 % quantile at width 512 (Table 2)


@dataclass(frozen=True)
class WeightLaw:
    """A law of the weights: uniform on [-spread/sqrt(n), spread/sqrt(n)], and the 99.99 % bound on a layer's norm."""

    name: str
    spread: float
    norm_bound: float


LAWS = (WeightLaw("uniform, K=1", 1.0, 1.18), WeightLaw("Xavier", math.sqrt(3.0), 2.04))


@dataclass(frozen=True)
class VacuityRow:
    """One theorem at one width and depth.

    `pruned` of `weights` per inner layer (kernels, in Theorem 3) may go, a fraction `sparsity`. `probability` is what
    the theorem guarantees (negative guarantees are reported as they are), `error` the error it guarantees there, and
    `log10_required_width` the least width (channels, in Theorem 3) at which it can meet the asked error and failure
    probability. `exponent` is None where the theorem has none.
    """

    theorem: str
    law: str
    width: int
    layers: int
    exponent: float | None
    pruned: int
    weights: int
    sparsity: float
    error: float
    probability: float
    log10_required_width: float
    verdict: str
    reason: str


def vacuity(
    widths: Sequence[int] = (256, 1024, 4096),
    layers: Sequence[int] = (3, 4, 5),
    error: float = 0.1,
    failure: float = 0.05,
) -> list[VacuityRow]:
    """What Theorems 1, 2, 3 and 1' allow at these widths and depths, for both weight laws.

    A row's verdict is "vacuous" (nothing may be pruned, or the guarantee is empty), "negligible" (fewer than one weight
    in a thousand) or "holds".
    """
    error = real("error", error, 1e-9)
    failure = probability("failure", failure, open_low=True, open_high=True)
    sizes = [(whole("widths", width, 3), whole("layers", depth)) for depth in layers for width in widths]
    theorems = (_theorem1, _theorem1_prime, _theorem2, _theorem3)
    return [row(law, d, depth, error, failure) for row in theorems for law in LAWS for d, depth in sizes]


def _theorem1(law: WeightLaw, d: int, layers: int, error: float, failure: float) -> VacuityRow:
    """Magnitude pruning, as printed (P-16f), with calibrated constants: the proof needs a constant C of at least 1."""
    base = {"spread": law.spread, "latala": LATALA1, "concentration": CONCENTRATION}
    allowed = theorem1_pruned(d, layers, error, failure, norm_bound=law.norm_bound, **base)
    # As the exponent tends to one the requirement is at its weakest, and all but one weight stay.
    least = theorem1_width(layers, 1.0 - _ROUNDING, error, failure, norm_bound=law.norm_bound, **base)["width"]
    pruned, exponent = int(allowed["pruned"]), allowed["exponent"]
    if pruned == 0:
        reason = f"no exponent below 1 fits at this width; the theorem applies from width {least:.0f} on"
        return _row("1", law, d, layers, (exponent, 0, d * d), (error, 0.0, math.log10(least)), "vacuous", reason)
    success = theorem1_probability(layers, d, exponent, **base)
    verdict, reason = _judge(pruned, d * d)
    reason += f", if Lemma 4 held with C = {LATALA1} (calibrated; no proof below 1)"
    return _row("1", law, d, layers, (exponent, pruned, d * d), (error, success, math.log10(least)), verdict, reason)


def _theorem1_prime(law: WeightLaw, d: int, layers: int, error: float, failure: float) -> VacuityRow:
    """Magnitude pruning with explicit constants (P-16d): the one to use."""
    pruned = int(theorem1_prime_pruned(d, layers, error, failure, law.spread)["pruned"])
    verdict, reason = _judge(pruned, d * d)
    least = _least_width(law, layers, error, failure)
    numbers = (error, 1.0 - failure if pruned else 0.0, math.log10(least))
    return _row("1'", law, d, layers, (None, pruned, d * d), numbers, verdict, reason)


def _theorem2(law: WeightLaw, d: int, layers: int, error: float, failure: float) -> VacuityRow:
    """Random pruning at the largest admissible exponent (P-25b to P-25d): what it claims, and what would be needed."""
    moments = moment_constants(law.spread, "uniform")
    base = {"norm_bound": law.norm_bound, "latala": LATALA2, **moments}
    best = theorem2_best_claim(d, layers, **base)
    floor = theorem2_width_floor(layers, error, failure, **base)
    claimed = (best["error"], best["probability"], floor)
    counts = (best["exponent"], 0, d * d)
    if best["exponent"] <= 0.0:
        return _row("2", law, d, layers, counts, claimed, "vacuous", "no exponent is admissible at this width")
    needed = theorem2_width(best["exponent"], layers, error, failure, **base)["log10_width"]
    if math.log10(d) < needed:
        reason = (
            f"its best claim here is error {best['error']:.3g} with probability {best['probability']:.3g} at "
            f"{best['sparsity']:.2%} pruned; the asked one needs width 10^{needed:.1f}, never below 10^{floor:.1f}"
        )
        return _row("2", law, d, layers, counts, claimed, "vacuous", reason)
    pruned = math.floor(best["sparsity"] * d * d)
    verdict, reason = _judge(pruned, d * d)
    return _row("2", law, d, layers, (best["exponent"], pruned, d * d), claimed, verdict, reason)


def _theorem3(law: WeightLaw, d: int, layers: int, error: float, failure: float) -> VacuityRow:
    """Random pruning of 3 x 3 kernels on 32 x 32 images, d channels, the last layer corrected (P-21c, P-21d).

    The probability improves as both free exponents go to zero, where the error bound becomes that of the network
    itself; they are taken small (0.05, and a sixteenth of the cap), as in the ledger's table.
    """
    moments = moment_constants(law.spread, "uniform")
    cap = theorem3_exponent_cap(d)
    # The mask events alone, (1-d^(-1/3))^(2(l-2)) >= 1-failure, ask for this many channels.
    floor = -3.0 * math.log10(-math.expm1(math.log1p(-failure) / (2 * (layers - 2))))
    if cap <= 0.0:
        numbers = (math.inf, 0.0, floor)
        return _row("3", law, d, layers, (cap, 0, d * d), numbers, "vacuous", "no exponent is admissible at this width")
    free = {"image_exponent": 0.05, "width_exponent": cap / 16.0}
    success = theorem3_probability(
        layers, IMAGE, KERNEL, d, cap, **free, **moments, latala=LATALA3, outputs=OUTPUTS, norm_bound=LAST_NORM
    )["probability"]
    bound = theorem3_error(layers, IMAGE, d, IMAGE, CHANNELS, **free, norm_bound=LAST_NORM)
    numbers = (bound["error"], success, floor)
    if success <= 0.0:
        reason = f"the probability bound is {success:.3g}, below zero"
    elif success < 1.0 - failure:
        reason = f"the probability bound {success:.3g} misses the asked {1.0 - failure:.3g}"
    elif bound["error"] > error:
        times = bound["relative"]
        reason = f"the error bound {bound['error']:.3g} is {times:.2g} times the bound on the network itself"
    else:
        pruned = math.floor(d ** (2.0 - cap))
        verdict, reason = _judge(pruned, d * d)
        return _row("3", law, d, layers, (cap, pruned, d * d), numbers, verdict, reason)
    return _row("3", law, d, layers, (cap, 0, d * d), numbers, "vacuous", reason)


def _least_width(law: WeightLaw, layers: int, error: float, failure: float) -> int:
    """Smallest width at which Theorem 1' lets at least one weight go."""

    def applies(d: int) -> bool:
        return theorem1_prime_pruned(d, layers, error, failure, law.spread)["pruned"] >= 1

    low, high = 1, 2  # tolerance
    while not applies(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if applies(middle) else (middle, high)
    return high


def _judge(pruned: int, weights: int) -> tuple[str, str]:
    if pruned == 0:
        return "vacuous", "not a single weight may be pruned"
    if pruned < NEGLIGIBLE * weights:
        return "negligible", f"{pruned} of {weights} weights may be pruned"
    return "holds", f"{pruned / weights:.2%} of the weights may be pruned"


def _row(
    theorem: str,
    law: WeightLaw,
    d: int,
    layers: int,
    counts: tuple[float | None, int, int],
    numbers: tuple[float, float, float],
    verdict: str,
    reason: str,
) -> VacuityRow:
    exponent, pruned, weights = counts
    error, success, required = numbers
    sparsity = pruned / weights
    return VacuityRow(
        theorem, law.name, d, layers, exponent, pruned, weights, sparsity, error, success, required, verdict, reason
    )

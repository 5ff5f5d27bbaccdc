"""Approximating a target network by pruning a wider random one, with re-sampling: Lemmas A.2 to A.6, Theorem A.1.

Source: Chijiwa et al., "Pruning Randomly Initialized Neural Networks with Iterative Randomization", appendix. It
treats the R^2 pairs of one neuron as independent; they share their draws, so the printed widths and re-sampling
counts are too small. The functions here use the exact law; `_printed` gives what the paper says (ledger I-7 to I-12).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim, printed
from prunus.papers.iterand._windows import coordinate_law, log_miss, overlap, pair_exponent

_LEAST_ERROR = 1e-12  # below, the number of values has more digits than a float
_KEPT = 1 - math.exp(-1)  # 1 - (1 - q)^R >= (1 - 1/e) min(1, q R)


@claim("I-7a")
def uniform_draws(error: float, delta: float) -> int:
    """I-7a (Lemma A.2): uniform draws from [-1, 1] that contain one within `error` of any target in [-1, 1]."""
    error, delta = _error(error), _delta(delta)
    return math.ceil(2 / error * math.log(1 / delta))


@claim("I-7b")
def uniform_miss(n: int, error: float, target: float = 1.0) -> float:
    """I-7b: exact chance that none of n draws lies within `error` of the target."""
    reach = overlap(domain.real("target", target, -1.0, 1.0), _error(error))
    n = domain.whole("n", n, 0)
    return math.exp(log_miss(reach, n)) if n else 1.0


@claim("I-8a")
def fixed_width(error: float, delta: float) -> int:
    """I-8a (Lemma A.3): width that approximates one weight without re-sampling."""
    error, delta = _error(error), _delta(delta)
    return 2 * math.ceil(16 / error**2 * math.log(2 / delta))


@claim("I-8b")
def fixed_failure(error: float, half: int, weight: float = 1.0) -> dict[str, float]:
    """I-8b: exact failure of that construction with `half` neurons per sign."""
    return resampled_failure(error, half, 1, weight)


@claim("I-8c")
def product_error(error: float) -> dict[str, float]:
    """I-8c: |w - uv| when u is within error/2 of 1 and v within error/2 of w: error, attained up to error^2 / 4."""
    error = _error(error)
    return {"bound": error, "worst": error - error**2 / 4}


@printed("I-8c")
def product_error_printed(error: float) -> float:
    """I-8c as printed: half the error."""
    return _error(error) / 2


@claim("I-9a")
def resampled_width(error: float, delta: float, resamples: int) -> int:
    """I-9a (Lemma A.4, repaired): 2 ceil(ln(2/delta) / -ln(1 - s^2)), s = 1 - (1 - error/4)^resamples."""
    return int(vector_width(1, error, delta, resamples)["width"])


@printed("I-9a")
def resampled_width_printed(error: float, delta: float, resamples: int) -> int:
    """I-9a as printed, its misprinted logarithm repaired: too small for resamples above 1."""
    return vector_width_printed(1, error, delta, resamples)


@claim("I-9b")
def resampled_failure(error: float, half: int, resamples: int, weight: float = 1.0) -> dict[str, float]:
    """I-9b: exact failure of one sign, (1 - s_u s_v)^half, and of both."""
    error, half, resamples = _error(error), domain.whole("half", half, 0), _resamples(resamples)
    weight = domain.real("weight", weight, -1.0, 1.0)
    return _both_signs(-half * pair_exponent(error / 4, overlap(weight, error / 2), resamples))


@printed("I-9b")
def resampled_failure_printed(error: float, half: int, resamples: int, weight: float = 1.0) -> dict[str, float]:
    """I-9b as printed: half resamples^2 independent pairs, a lower bound of the failure; the weight does not enter."""
    error, half, resamples = _error(error), domain.whole("half", half, 0), _resamples(resamples)
    domain.real("weight", weight, -1.0, 1.0)
    return _both_signs(half * resamples**2 * math.log1p(-(error**2) / 16))


@claim("I-9c")
def simple_width(error: float, delta: float, resamples: int) -> dict[str, Any]:
    """I-9c: closed form of the width with re-sampling, and the number of re-samplings at which the gain ends."""
    error, delta, resamples = _error(error), _delta(delta), _resamples(resamples)
    gain = max(1.0, 16 / (error * resamples) ** 2)
    return {"width": 2 * math.ceil(gain * math.log(2 / delta) / _KEPT**2), "saturation": 4 / error}


@claim("I-9d")
def sufficient_resamples(error: float, delta: float) -> dict[str, Any]:
    """I-9d (Lemma A.4 at width 2, repaired): (4/error) ln(4/delta) values per weight make two neurons enough."""
    error, delta = _error(error), _delta(delta)
    return _at_width_two(error, math.ceil(4 / error * math.log(4 / delta)))


@printed("I-9d")
def sufficient_resamples_printed(error: float, delta: float) -> dict[str, Any]:
    """I-9d as printed, with the failure it really leaves."""
    error, delta = _error(error), _delta(delta)
    return _at_width_two(error, math.ceil(4 / error * math.sqrt(math.log(2 / delta))))


@claim("I-9e")
def minimal_resamples(error: float, delta: float, half: int = 1) -> dict[str, Any]:
    """I-9e: smallest number of values per weight at which the exact failure is at most delta."""
    error, delta, half = _error(error), _delta(delta), domain.whole("half", half, 1)
    domain.real("error", error, _LEAST_ERROR)
    one_sign = delta / (1 + math.sqrt(1 - delta))
    neuron = math.exp(math.log(one_sign) / half)
    neuron_hit = -math.expm1(math.log(one_sign) / half)
    guess = math.log(neuron / (1 + math.sqrt(neuron_hit))) / math.log1p(-error / 4)
    resamples = max(1, math.floor(guess) - 1)  # tolerance
    while (failure := resampled_failure(error, half, resamples)["failure"]) > delta:
        resamples += 1
    return {"resamples": resamples, "failure": failure}


@claim("I-9f")
def hit_probability(window: float, resamples: int) -> dict[str, float]:
    """I-9f: s = 1 - (1 - window)^resamples and its lower bound (1 - 1/e) min(1, window resamples)."""
    window, resamples = domain.probability("window", window), _resamples(resamples)
    return {"hit": -math.expm1(log_miss(window, resamples)), "lower": _KEPT * min(1.0, window * resamples)}


@claim("I-10a")
def coordinate_success(window: float, resamples: int, half: int, outputs: int) -> float:
    """I-10a (Lemma A.5, exact): success of one input coordinate and sign with `half` neurons, for all outputs."""
    miss = log_miss(*_window(window, resamples))
    half, outputs = domain.whole("half", half, 0), domain.whole("outputs", outputs, 1)
    return coordinate_law(miss, {miss: outputs}, half)[0]


@printed("I-10a")
def coordinate_success_printed(window: float, resamples: int, half: int, outputs: int) -> float:
    """I-10a as printed: a lower bound that is none, 1 - outputs (1 - window^2)^(half resamples^2)."""
    window, resamples = _window(window, resamples)
    half, outputs = domain.whole("half", half, 0), domain.whole("outputs", outputs, 1)
    return 1 - outputs * math.exp(half * resamples**2 * math.log1p(-(window**2)))


@claim("I-10b")
def vector_width(outputs: int, error: float, delta: float, resamples: int) -> dict[str, Any]:
    """I-10b (Lemma A.5, repaired): width for one input coordinate and several outputs."""
    return matrix_width(1, outputs, error, delta, resamples)


@printed("I-10b")
def vector_width_printed(outputs: int, error: float, delta: float, resamples: int) -> int:
    """I-10b as printed."""
    return matrix_width_printed(1, outputs, error, delta, resamples)


@claim("I-11")
def matrix_width(inputs: int, outputs: int, error: float, delta: float, resamples: int) -> dict[str, Any]:
    """I-11 (Lemma A.6, repaired): width for a matrix, window error / (4 inputs sqrt(outputs))."""
    inputs, outputs = _shape(inputs, outputs)
    return _width(inputs, outputs, _error(error) / (4 * inputs * math.sqrt(outputs)), 1, delta, resamples)


@printed("I-11")
def matrix_width_printed(inputs: int, outputs: int, error: float, delta: float, resamples: int) -> int:
    """I-11 as printed."""
    inputs, outputs = _shape(inputs, outputs)
    return _width_printed(inputs, outputs, 16 / _error(error) ** 2, 1, delta, resamples)


@claim("I-12a")
def layer_width(layers: int, inputs: int, outputs: int, error: float, delta: float, resamples: int) -> dict[str, Any]:
    """I-12a (Theorem A.1, repaired): width that holds one layer of a target network, window `layer_window`."""
    inputs, outputs = _shape(inputs, outputs)
    window = layer_window(layers, inputs, outputs, error)
    return _width(inputs, outputs, window, domain.whole("layers", layers, 1), delta, resamples)


@printed("I-12a")
def layer_width_printed(layers: int, inputs: int, outputs: int, error: float, delta: float, resamples: int) -> int:
    """I-12a as printed."""
    inputs, outputs = _shape(inputs, outputs)
    layers = domain.whole("layers", layers, 1)
    return _width_printed(inputs, outputs, 64 * layers**2 / _error(error) ** 2, layers, delta, resamples)


@claim("I-12b")
def enough_resamples(layers: int, inputs: int, outputs: int, error: float, delta: float) -> int:
    """I-12b (Theorem A.1, repaired): values per weight at which width 2 inputs is enough for this layer."""
    window, delta = layer_window(layers, inputs, outputs, error), _delta(delta)
    return math.ceil(math.log(2 * layers * inputs * (1 + outputs) / delta) / window)


@printed("I-12b")
def enough_resamples_printed(layers: int, inputs: int, outputs: int, error: float, delta: float) -> int:
    """I-12b as printed: leaves a success of 0.06 where 0.95 is claimed."""
    window, delta = layer_window(layers, inputs, outputs, error), _delta(delta)
    return math.ceil(math.sqrt(math.log(2 * layers * inputs * outputs / delta)) / window)


@claim("I-12c")
def layer_success(layers: int, inputs: int, outputs: int, error: float, resamples: int, width: int) -> dict[str, float]:
    """I-12c: exact chance that a layer of this width holds its target layer, all target weights at -1 or 1."""
    inputs, outputs = _shape(inputs, outputs)
    window = layer_window(layers, inputs, outputs, error)
    width = domain.whole("width", width, 0)
    if width % (2 * inputs):
        near = 2 * inputs * max(1, round(width / (2 * inputs)))
        raise BadInput(f"width must be a multiple of 2 inputs = {2 * inputs}, got {width}: the nearest is {near}.")
    success, failure = _law(window, resamples, width // (2 * inputs), outputs)
    small = failure < 0.5  # tolerance
    whole = math.exp(2 * inputs * math.log1p(-failure)) if small else success ** (2 * inputs)
    return {"coordinate": success, "success": whole}


@claim("I-12d")
def smallest_layer_width(layers: int, inputs: int, outputs: int, error: float, delta: float, resamples: int) -> int:
    """I-12d: smallest multiple of 2 inputs whose exact failure is at most delta / layers."""
    inputs, outputs = _shape(inputs, outputs)
    # By the union bound the closed form of I-12a is enough, so the smallest width lies at or below it.
    high = layer_width(layers, inputs, outputs, error, delta, resamples)["width"] // (2 * inputs)
    window, low = layer_window(layers, inputs, outputs, error), 0
    while high - low > 1:
        middle = (low + high) // 2
        _, failure = _law(window, resamples, middle, outputs)
        fits = failure < 1 and -math.expm1(2 * inputs * math.log1p(-failure)) <= delta / layers
        low, high = (low, middle) if fits else (middle, high)
    return int(2 * inputs * high)


@claim("I-12e")
def sup_norm_error(inputs: int, error: float) -> dict[str, float]:
    """I-12e (Theorem A.1, repaired): what holds on the cube, and the error to plan with (two or more layers)."""
    root, error = math.sqrt(domain.whole("inputs", inputs, 1)), _error(error)
    return {"guaranteed": root * error, "plan_with": error / root}


@printed("I-12e")
def sup_norm_error_printed(inputs: int, error: float) -> float:
    """I-12e as printed: the error itself."""
    domain.whole("inputs", inputs, 1)
    return _error(error)


@claim("I-12f")
def network_plan(widths: Sequence[int], error: float, delta: float, resamples: int) -> dict[str, Any]:
    """I-12f: widths for all layers of a target network d_0 .. d_l, and the re-samplings that make 2 d_(i-1) enough."""
    pairs = _pairs(widths)
    plan = [layer_width(len(pairs), *pair, error, delta, resamples)["width"] for pair in pairs]
    return {"ticket_widths": plan, "enough": max(enough_resamples(len(pairs), *pair, error, delta) for pair in pairs)}


@printed("I-12f")
def network_plan_printed(widths: Sequence[int], error: float, delta: float, resamples: int) -> list[int]:
    """I-12f as printed."""
    pairs = _pairs(widths)
    return [layer_width_printed(len(pairs), *pair, error, delta, resamples) for pair in pairs]


def layer_window(layers: int, inputs: int, outputs: int, error: float) -> float:
    """Chance q of one draw in Theorem A.1 at a target weight of size 1: error / (8 layers inputs sqrt(outputs))."""
    inputs, outputs = _shape(inputs, outputs)
    return _error(error) / (8 * domain.whole("layers", layers, 1) * inputs * math.sqrt(outputs))


def _law(window: float, resamples: int, half: int, outputs: int) -> tuple[float, float]:
    miss = log_miss(window, _resamples(resamples))
    return coordinate_law(miss, {miss: outputs}, half)


def _width(inputs: int, outputs: int, window: float, layers: int, delta: float, resamples: int) -> dict[str, Any]:
    exponent = pair_exponent(window, window, _resamples(resamples))
    half = max(1, math.ceil(math.log(2 * layers * inputs * outputs / _delta(delta)) / exponent))
    return {"window": window, "width": 2 * inputs * half}


def _width_printed(inputs: int, outputs: int, factor: float, layers: int, delta: float, resamples: int) -> int:
    share = factor * inputs**2 * outputs / _resamples(resamples) ** 2
    return 2 * inputs * math.ceil(share * math.log(2 * layers * inputs * outputs / _delta(delta)))


def _both_signs(log_half: float) -> dict[str, float]:
    half_failure = math.exp(log_half)
    return {"half_failure": half_failure, "failure": half_failure * (2 - half_failure)}


def _at_width_two(error: float, resamples: int) -> dict[str, Any]:
    return {"resamples": resamples, "failure": resampled_failure(error, 1, resamples)["failure"]}


def _error(error: float) -> float:
    return domain.real("error", error, 0.0, 1.0, open_low=True)


def _delta(delta: float) -> float:
    return domain.probability("delta", delta, open_low=True, open_high=True)


def _resamples(resamples: int) -> int:
    return domain.whole("resamples", resamples, 1)


def _window(window: float, resamples: int) -> tuple[float, int]:
    return domain.probability("window", window, open_low=True, open_high=True), _resamples(resamples)


def _shape(inputs: int, outputs: int) -> tuple[int, int]:
    return domain.whole("inputs", inputs, 1), domain.whole("outputs", outputs, 1)


def _pairs(widths: Sequence[int]) -> list[tuple[int, int]]:
    try:
        sizes = [domain.whole("each of widths", width, 1) for width in widths]
    except TypeError:
        raise BadInput(f"widths must be a list of whole numbers, got {domain.shown(widths)}.") from None
    if len(sizes) < 2:
        raise BadInput(f"widths must list at least an input and an output width, got {sizes}.")
    return list(itertools.pairwise(sizes))

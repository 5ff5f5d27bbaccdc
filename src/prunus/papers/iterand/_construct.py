"""The constructive proof as a program (I-16): build the pruned random network and measure its error.

Every target layer F (outputs x inputs) is imitated by two random layers with uniform weights, F x ~ V relu(U x). Each
input coordinate owns two blocks of `half` neurons, one per sign. A neuron of the block for coordinate j and sign z
keeps one inner weight, near z, and for each output at most one neuron of the block keeps its outer weight, near
z F[k, j]. All other weights are pruned. Weights outside their window are re-drawn, up to `resamples` values in all.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.papers.iterand._widths import layer_width, layer_window, matrix_width
from prunus.papers.iterand._windows import coordinate_law, log_miss, overlap

Array = NDArray[np.float64]

# Limits on memory and time, and how many random points stand for the vertices where those are too many to list.
_MOST_DRAWS = 200_000_000  # tolerance

_MOST_VERTICES = 20_000  # tolerance

_TRIED = 2000  # tolerance

_ROUNDS = 64  # tolerance


@dataclass(frozen=True, eq=False)
class TicketLayer:
    """Two random layers that stand for one target layer: `inner` (width, inputs) and `outer` (outputs, width)."""

    inner: Array
    outer: Array
    inner_mask: NDArray[np.bool_]
    outer_mask: NDArray[np.bool_]
    complete: bool

    def __call__(self, x: Array) -> Array:
        """Rows of x, shape (count, inputs), through the pruned pair: (count, outputs)."""
        hidden = np.maximum(x @ (self.inner * self.inner_mask).T, 0.0)
        return hidden @ (self.outer * self.outer_mask).T


@dataclass(frozen=True, eq=False)
class Construction:
    """A pruned random network: `complete` says that every target weight found its pair, `error` is the measured sup."""

    layers: tuple[TicketLayer, ...]
    error: float
    complete: bool

    @property
    def widths(self) -> list[int]:
        """Width of the random layer behind each target layer."""
        return [len(layer.inner) for layer in self.layers]

    @property
    def kept(self) -> int:
        """Weights that are not pruned."""
        return sum(int(layer.inner_mask.sum() + layer.outer_mask.sum()) for layer in self.layers)

    def __call__(self, x: ArrayLike) -> Array:
        """The pruned network at rows of x, ReLU between target layers, none after the last."""
        return _network(self.layers, np.atleast_2d(np.asarray(x, dtype=np.float64)))


def construct(
    weights: ArrayLike | Sequence[ArrayLike],
    error: float,
    resamples: int,
    seed: int = 0,
    *,
    half: int | None = None,
    delta: float = 0.05,
) -> Construction:
    """I-16: carry out the proof of Lemmas A.3 to A.6 (one matrix) or Theorem A.1 (a list of matrices).

    Target weights lie in [-1, 1]. `half` neurons serve each coordinate and sign; by default as many as the corrected
    width asks for at failure probability `delta`. The measured error is the largest Euclidean distance to the target
    network over the cube [-1, 1]^inputs: for one layer it is attained at a point of {-1, 0, 1}^inputs, so with few
    inputs it is exact; otherwise, and for deeper networks, it is the largest over such points and random ones.
    """
    targets, windows = _targets(weights, error)
    resamples, seed = domain.whole("resamples", resamples, 1), domain.whole("seed", seed, 0)
    halves = _halves(targets, weights, error, resamples, delta) if half is None else [half] * len(targets)
    random = np.random.default_rng(seed)
    layers = tuple(
        _build(target, 2 * window, resamples, domain.whole("half", count, 1), random)
        for target, window, count in zip(targets, windows, halves, strict=True)
    )
    gap = _sup_error(targets, layers, random)
    return Construction(layers, gap, all(layer.complete for layer in layers))


@claim("I-16a")
def construction_success(weights: ArrayLike | Sequence[ArrayLike], error: float, resamples: int, half: int) -> float:
    """I-16a: exact chance that `construct` finds a pair for every target weight, whatever the weights.

    At weights of size 1 this is I-9b, I-10a and I-12c; inside (-1, 1) outer windows are up to twice as likely.
    """
    targets, windows = _targets(weights, error)
    resamples, half = domain.whole("resamples", resamples, 1), domain.whole("half", half, 1)
    success = 1.0
    for target, window in zip(targets, windows, strict=True):
        for sign, column in itertools.product((1.0, -1.0), target.T):
            misses = Counter(log_miss(overlap(sign * float(value), 2 * window), resamples) for value in column)
            success *= coordinate_law(log_miss(window, resamples), misses, half)[0]
    return success


@claim("I-16b")
def constructed_error(
    weights: ArrayLike | Sequence[ArrayLike], error: float, resamples: int, half: int, seed: int = 0
) -> dict[str, Any]:
    """I-16b: one run of `construct` in numbers: complete or not, measured error, weights kept."""
    result = construct(weights, error, resamples, seed, half=half)
    return {"complete": result.complete, "error": result.error, "kept": result.kept}


def _targets(weights: Any, error: float) -> tuple[list[Array], list[float]]:
    """Target matrices and the chance q of one draw in each: Lemma A.6 for one matrix, Theorem A.1 for a list."""
    single = _is_matrix(weights)
    matrices = [domain.array("weights", w, 2) for w in ([weights] if single else weights)]
    if not matrices:
        raise BadInput("weights must be a matrix or a list of at least one matrix, got an empty list.")
    for before, after in itertools.pairwise(matrices):
        if after.shape[1] != before.shape[0]:
            raise BadInput(f"weights must chain: {before.shape[0]} outputs cannot feed {after.shape[1]} inputs.")
    if max(float(np.abs(w).max()) for w in matrices) > 1:
        raise BadInput("weights must lie in [-1, 1]: scale the target network first.")
    factor = 2.0 if single else 1.0  # the matrix lemma needs no reserve for the layers above
    return matrices, [factor * layer_window(len(matrices), w.shape[1], w.shape[0], error) for w in matrices]


def _is_matrix(weights: Any) -> bool:
    if isinstance(weights, np.ndarray):
        return weights.ndim == 2
    try:
        return all(np.ndim(entry) == 0 for row in weights for entry in row)
    except (TypeError, ValueError):
        raise BadInput("weights must be a matrix (list of rows) or a list of matrices.") from None


def _halves(targets: list[Array], weights: Any, error: float, resamples: int, delta: float) -> list[int]:
    halves = []
    for target in targets:
        outputs, inputs = target.shape
        if _is_matrix(weights):
            width = matrix_width(inputs, outputs, error, delta, resamples)["width"]
        else:
            width = layer_width(len(targets), inputs, outputs, error, delta, resamples)["width"]
        halves.append(width // (2 * inputs))
    return halves


def _build(target: Array, reach: float, resamples: int, half: int, random: np.random.Generator) -> TicketLayer:
    """One target layer; `reach` is the tolerance of both factors, twice the chance of one draw."""
    outputs, inputs = target.shape
    width = 2 * inputs * half
    if width * (inputs + outputs * resamples) > _MOST_DRAWS:
        raise BadInput(
            f"The construction needs {width} neurons with {resamples} values per weight, over {_MOST_DRAWS} draws: "
            "allow a larger error, or fewer inputs and outputs."
        )
    inner, outer = random.uniform(-1, 1, (width, inputs)), np.empty((outputs, width))
    inner_mask, outer_mask = np.zeros((width, inputs), dtype=bool), np.zeros((outputs, width), dtype=bool)
    complete = True
    for number, (j, sign) in enumerate(itertools.product(range(inputs), (1.0, -1.0))):
        block = slice(number * half, (number + 1) * half)
        inner[block, j], good = _resample(np.full(half, sign), reach, resamples, random)
        wanted = np.broadcast_to(sign * target[:, j, None], (outputs, half))
        outer[:, block], near = _resample(wanted, reach, resamples, random)
        usable = near & good
        found = usable.any(axis=1)
        chosen = usable.argmax(axis=1) + block.start
        outer_mask[found, chosen[found]] = True
        inner_mask[chosen[found], j] = True
        complete = complete and bool(found.all())
    return TicketLayer(inner, outer, inner_mask, outer_mask, complete)


def _resample(
    wanted: Array, reach: float, resamples: int, random: np.random.Generator
) -> tuple[Array, NDArray[np.bool_]]:
    """Draw every weight, re-draw those outside their window, at most `resamples` values each."""
    values = random.uniform(-1, 1, wanted.shape)
    near = np.asarray(np.abs(values - wanted) <= reach)
    left = resamples - 1
    while left and not near.all():
        # Several rounds at once, for the weights that still miss; the first hit counts, else the last draw stays.
        rounds = min(left, _ROUNDS)
        far = ~near
        fresh = random.uniform(-1, 1, (rounds, int(far.sum())))
        hit = np.abs(fresh - wanted[far]) <= reach
        first = np.where(hit.any(axis=0), hit.argmax(axis=0), rounds - 1)
        values[far], near[far] = fresh[first, np.arange(first.size)], hit.any(axis=0)
        left -= rounds
    return values, near


def _sup_error(targets: list[Array], layers: tuple[TicketLayer, ...], random: np.random.Generator) -> float:
    inputs = targets[0].shape[1]
    if 3**inputs <= _MOST_VERTICES:
        points = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=inputs)))
    else:
        points = random.integers(-1, 2, (_TRIED, inputs)).astype(np.float64)
    if len(targets) > 1:
        points = np.concatenate([points, random.uniform(-1, 1, (_TRIED, inputs))])
    exact = points
    for number, target in enumerate(targets):
        exact = (np.maximum(exact, 0.0) if number else exact) @ target.T
    return float(np.linalg.norm(exact - _network(layers, points), axis=1).max())


def _network(layers: tuple[TicketLayer, ...], x: Array) -> Array:
    for number, layer in enumerate(layers):
        x = layer(np.maximum(x, 0.0) if number else x)
    return x

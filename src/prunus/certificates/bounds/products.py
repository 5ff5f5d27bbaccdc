"""Norms of products instead of products of norms, for fully connected networks.

Between the networks an activation acts as a diagonal matrix whose entries lie in known slopes, [0, 1] for a ReLU:
`s(z) - s(z*) = diag(d) (z - z*)`. So the error of the output is a sum over the pruned layers k of
`T_l D T_(l-1) ... D (Delta_k y_(k-1) + shift_k)`, and y_(k-1) at x differs from its value at the centre by another
such product applied to x - c. Each diagonal is its middle m plus h times a matrix of norm at most 1: expanding all of
them bounds a product by a sum over its segmentations, where every segment keeps its true norm and h stands at the cuts
(Combettes and Pesquet, 2020). At a cut any positive diagonal may be moved from one side to the other, which balances
the columns on the left against the rows on the right. On trained networks this is two to three times below the plain
product of norms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.bounds.balancing import tune_balances
from prunus.certificates.bounds.intervals import Range, Ranges, joint
from prunus.certificates.bounds.recursion import OUTWARDS, Size, lengths
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair
from prunus.certificates.reading.pieces import Affine, Elementwise, Lipschitz
from prunus.operators import matrix_norm

_MOST_LAYERS = 10
_MOST_WORK = 4e11
"""Most multiplications spent on products and decompositions; larger networks go without this method."""


@dataclass(frozen=True, eq=False)
class _Layer:
    """One linear layer: weights by kind ("o" original, "p" pruned, "d" difference), shift of the bias, its input."""

    weights: dict[str, Tensor]
    shift: Tensor
    source: int
    slopes: dict[str, tuple[Tensor, Tensor]]  # of the activation after it, middle and half: "o", "p", and "t" for both

    @property
    def changed(self) -> bool:
        return bool(self.weights["d"].any()) or bool(self.shift.any())


def bound_products(
    pair: Pair, region: Region, sizes: list[Size], ranges: list[Ranges], tune: bool = True
) -> Tensor | None:
    """Error bounds (points,), or None where the network is no chain of linear layers and activations."""
    found = _chain(pair, ranges)
    if found is None:
        return None
    layers, factor = found
    if len(layers) > _MOST_LAYERS or _work(layers) > _MOST_WORK:
        return None
    changed = [number for number, layer in enumerate(layers) if layer.changed]
    if not changed:
        return torch.zeros(region.points, dtype=torch.float64)
    segments = _Segments(layers)
    totals: list[tuple[float, int, dict[int, str], Tensor]] = []
    for choice in _choices(changed):
        total = sum(_inflow(segments, layers, number, choice, region, sizes) for number in changed)
        assert isinstance(total, Tensor)
        totals.append((float(total.max()), len(totals), choice, total))
    best = torch.stack([total for *_, total in totals]).amin(0)
    if tune:
        _, _, choice, total = min(totals)
        gain = sum(segments.tuned_gain(_full_chain(number, choice, len(layers))) for number in changed)
        best = torch.minimum(best, total - gain * region.radius)
    widest = max(max(layer.weights["o"].shape) for layer in layers)
    # Computed products of matrices differ from exact ones; the plain products of norms in the sum bound by how much.
    rounding = 2.0 ** (len(layers) - 53) * 8 * len(layers) * widest**2
    return best * factor * (OUTWARDS + rounding)


def _choices(changed: Sequence[int]) -> list[dict[int, str]]:
    """Which network each pruned layer reads: all ways for few layers, else one network throughout."""
    if len(changed) <= 3:
        ways = list(itertools.product("op", repeat=len(changed)))
    else:
        ways = [("o",) * len(changed), ("p",) * len(changed)]
    return [dict(zip(changed, way)) for way in ways]


def _work(layers: Sequence[_Layer]) -> float:
    """Rough count: every pruned layer's chain has a product for each pair of ends."""
    cubes = [float(layer.weights["o"].numel()) * min(layer.weights["o"].shape) for layer in layers]
    changed = sum(layer.changed for layer in layers)
    return 8.0 * changed * len(layers) * sum(cubes)


def _inflow(
    segments: _Segments,
    layers: Sequence[_Layer],
    number: int,
    choice: dict[int, str],
    region: Region,
    sizes: list[Size],
) -> Tensor:
    """What the change of layer `number` adds to the output: at the centre, and by moving away from it."""
    side = choice[number]
    chain = _full_chain(number, choice, len(layers))
    layer = layers[number]
    before = sizes[layer.source]
    centre = (before.centre_original if side == "o" else before.centre_pruned).flatten(1)
    fresh = centre @ layer.weights["d"].T + layer.shift
    still = segments.apply(fresh, number, chain[number + 1 :])
    if not bool(layer.weights["d"].any()):
        return still
    return still + segments.norm(chain) * region.radius


def _full_chain(number: int, choice: dict[int, str], count: int) -> tuple[tuple[int, str], ...]:
    """The product behind one pruned layer: the network it reads, its difference, and the other network after it."""
    before = [(k, choice[number]) for k in range(number)]
    after = [(k, "o" if choice.get(k) == "p" else "p") for k in range(number + 1, count)]
    return (*before, (number, "d"), *after)


class _Segments:
    """Bounds on products of layers with unknown diagonals between them; norms of segments are remembered."""

    def __init__(self, layers: Sequence[_Layer]) -> None:
        self._layers = layers
        self._norms: dict[tuple[object, ...], float] = {}
        self._products: dict[tuple[object, ...], Tensor] = {}

    def _slope(self, chain: Sequence[tuple[int, str]], place: int) -> tuple[Tensor, Tensor]:
        """Middle and half of the diagonal after chain[place]: before the difference one network's, after it both's."""
        number, kind = chain[place]
        prefix = kind in "op" and any(other == "d" for _, other in chain[place + 1 :])
        return self._layers[number].slopes[kind if prefix else "t"]

    def _balance(self, chain: Sequence[tuple[int, str]], place: int) -> Tensor:
        """The diagonal moved across the cut after chain[place]."""
        (left_number, left_kind), (number, kind) = chain[place + 1], chain[place]
        columns = torch.linalg.vector_norm(self._layers[left_number].weights[left_kind], dim=0)
        rows = torch.linalg.vector_norm(self._layers[number].weights[kind], dim=1)
        columns = columns * self._slope(chain, place)[1]
        rows, columns = (v + 1e-3 * v.max() + 1e-200 for v in (rows, columns))
        return torch.sqrt(rows / columns)

    def norm(self, chain: tuple[tuple[int, str], ...]) -> float:
        """A bound on the norm of the whole chain, first factor first."""
        upto = [1.0]
        last = len(chain) - 1
        for end in range(len(chain)):
            total = 0.0
            for start in range(end + 1):
                if upto[start] == 0.0 or (start > 0 and not self._cuts(chain, start - 1)):
                    continue
                total += self._segment(chain, start, end, last) * upto[start]
            upto.append(total)
        return upto[-1]

    def _cuts(self, chain: Sequence[tuple[int, str]], place: int) -> bool:
        return bool(self._slope(chain, place)[1].any())

    def _segment(self, chain: tuple[tuple[int, str], ...], start: int, end: int, last: int) -> float:
        """The norm of the factors start..end with middles between them and cuts around them."""
        left = chain[start - 1] if start else None
        right = chain[end + 1] if end < last else None
        key = (chain[start : end + 1], left, right, any(kind == "d" for _, kind in chain[end + 1 :]))
        if key not in self._norms:
            matrix = self._product(chain, start, end)
            if start:
                half = self._slope(chain, start - 1)[1]
                matrix = matrix * (half * self._balance(chain, start - 1))[None, :]
            if end < last:
                matrix = matrix / self._balance(chain, end)[:, None]
            self._norms[key] = matrix_norm(matrix)
        return self._norms[key]

    def _product(self, chain: tuple[tuple[int, str], ...], start: int, end: int) -> Tensor:
        number, kind = chain[end]
        weight = self._layers[number].weights[kind]
        if start == end:
            return weight
        key = (chain[start : end + 1], any(other == "d" for _, other in chain[end + 1 :]))
        if key not in self._products:
            middle = self._slope(chain, end - 1)[0]
            self._products[key] = (weight * middle[None, :]) @ self._product(chain, start, end - 1)
        return self._products[key]

    def tuned_gain(self, chain: tuple[tuple[int, str], ...]) -> float:
        """By how much better diagonals at the cuts lower the bound of a chain, certified like the rest."""
        if not bool(self._layers[chain[0][0]].weights["o"].any()) or len(chain) < 2:
            return 0.0
        cuts = range(len(chain) - 1)
        tuned = tune_balances(
            {(i, j): self._product(chain, i, j) for j in range(len(chain)) for i in range(j + 1)},
            [self._slope(chain, place)[1] for place in cuts],
            [self._balance(chain, place) for place in cuts],
        )
        return max(0.0, self.norm(chain) - tuned)

    def apply(self, fresh: Tensor, number: int, tail: Sequence[tuple[int, str]]) -> Tensor:
        """A bound (points,) on the tail applied to vectors (points, width) that enter after layer `number`."""
        chain = ((number, "d"), *tail)
        last = len(chain) - 1
        vectors = fresh
        upto: list[Tensor] = []
        for end in range(len(chain)):
            if end:
                middle = self._slope(chain, end - 1)[0]
                layer, kind = chain[end]
                vectors = (vectors * middle) @ self._layers[layer].weights[kind].T
            scaled = vectors / self._balance(chain, end) if end < last else vectors
            total = lengths(scaled)
            for start in range(1, end + 1):
                if self._cuts(chain, start - 1):
                    total = total + self._segment(chain, start, end, last) * upto[start - 1]
            upto.append(total)
        return upto[-1]


# ---------------------------------------------------------------------------------------------------------- the chain


def _chain(pair: Pair, ranges: list[Ranges]) -> tuple[list[_Layer], float] | None:
    """Linear layers in a row with at most one activation between them; a Lipschitz factor for what ends the network."""
    layers: list[_Layer] = []
    factor = 1.0
    waiting: tuple[Elementwise, Ranges] | None = None  # the activation after the last layer so far
    for number, step in enumerate(pair.steps):
        if step.inputs != (number,):
            return None
        one, two = step.original, step.pruned
        if isinstance(one, Affine) and isinstance(two, Affine):
            if one.kind in ("reshape", "cast"):
                continue
            if one.kind != "linear" or factor != 1.0 or len(step.shape) != 1:
                return None
            if waiting is not None:
                _activate(layers[-1], *waiting)
                waiting = None
            layers.append(_layer(one, two, number))
        elif isinstance(one, Elementwise) and layers and factor == 1.0 and waiting is None:
            waiting = (one, ranges[number])
        elif isinstance(one, Lipschitz) and layers and one.kind == "softmax":
            factor *= one.constant
        else:
            return None
    if waiting is not None:
        factor *= waiting[0].lipschitz
    return (layers, factor) if layers else None


def _layer(one: Affine, two: Affine, number: int) -> _Layer:
    assert one.weight is not None
    assert two.weight is not None
    zero = torch.zeros(one.weight.shape[0], dtype=torch.float64)
    shift = (zero if two.bias is None else two.bias) - (zero if one.bias is None else one.bias)
    ones = torch.ones_like(zero)
    slopes = dict.fromkeys("opt", (ones, zero))
    weights = {"o": one.weight, "p": two.weight, "d": two.weight - one.weight}
    return _Layer(weights, shift, number, slopes)


def _activate(layer: _Layer, piece: Elementwise, source: Ranges) -> None:
    for kind, part in (("o", source.original), ("p", source.pruned), ("t", joint(source))):
        layer.slopes[kind] = _middle_and_half(piece, part)


def _middle_and_half(piece: Elementwise, part: Range) -> tuple[Tensor, Tensor]:
    """Slopes over all points at once, as middle +- half."""
    low, high = piece.slopes(part.low.flatten(1).amin(0), part.high.flatten(1).amax(0))
    return (low + high) / 2, (high - low) / 2 * (1 + 1e-15)

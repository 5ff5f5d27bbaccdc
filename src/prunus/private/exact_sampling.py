"""Exact sampling from a discrete law given by integer weights (N-12, item 2).

A law is a run of weights outwards from a centre. The bulk is held as cumulative integers; what lies beyond has a weight
bounded by a geometric series. A draw that lands there (less than once in 2^130) extends the weights with more bits, and
is refused and repeated where it falls in the slack of the bound. So the support is never cut, and the law is exact.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from prunus.private.randomness import Integers, Source

BITS = 256  # of the largest weight
REACH = 140  # the bulk goes down to 2^-REACH of the largest weight
_MORE = 256  # bits added by each extension

Ratio = Callable[[int], tuple[int, int]]


def _plain(position: int) -> int:
    return 1


@dataclass
class Side:
    """Weights from a position outwards: each is the one before times `ratio(position)`, a fraction that falls.

    `upward` rounds up, else down. `multiplier` raises whole stretches of the law (the two-level rule); `top` bounds it.
    """

    position: int
    weight: int
    direction: int
    ratio: Ratio
    upward: bool = False
    multiplier: Callable[[int], int] = _plain
    top: int = 1

    def advance(self) -> int | None:
        """The next weight, or None at the end of the support."""
        above, below = self.ratio(self.position)
        if above == 0:
            return None
        product = self.weight * above
        self.weight = -(-product // below) if self.upward else product // below
        self.position += self.direction
        return self.weight * self.multiplier(self.position)

    def rest(self) -> int | None:
        """A bound on the sum of all later weights; None while they may still grow."""
        above, below = self.ratio(self.position)
        if above == 0:
            return 0
        return None if above >= below else self.top * (2 * (self.weight * above // (below - above)) + 2)

    def run(self, smallest: int) -> tuple[list[int], list[int]]:
        """(positions, weights) outwards until a weight is below `smallest` and the rest has a bound."""
        positions: list[int] = []
        weights: list[int] = []
        while True:
            value = self.advance()
            if value is None:
                return positions, weights
            positions.append(self.position)
            weights.append(value)
            if value < smallest and self.rest() is not None and self.settled():
                return positions, weights

    def settled(self) -> bool:
        """Whether the multiplier stays as it is from here on; true unless it has yet to rise."""
        return self.multiplier(self.position) == self.top or self.direction > 0


class Table:
    """Draws from the law of two sides that start at `center` with a common weight."""

    def __init__(self, center: int, down: Side, up: Side, smallest: int) -> None:
        first = down.weight * down.multiplier(center)
        below, lower = down.run(smallest)
        above, upper = up.run(smallest)
        self.positions: Integers = np.array([*below[::-1], center, *above], dtype=np.int64)
        self.weights = [*lower[::-1], first, *upper]
        self._sides = (down, up)
        self._ends = list(itertools.accumulate(self.weights))
        rest = (down.rest() or 0) + (up.rest() or 0)
        self.total = self._ends[-1] + rest
        ends = self._ends if rest else self._ends[:-1]
        self._marks = np.array([(end << 64) // self.total for end in ends], dtype=np.uint64)

    def draw(self, count: int, source: Source) -> Integers:
        """`count` independent draws.

        The first 64 bits of a uniform number decide unless a boundary lies in their cell; then the rest is drawn.
        """
        words = source.words(count, np.uint64)
        places = np.searchsorted(self._marks, words, side="right")
        drawn = self.positions[np.minimum(places, len(self.positions) - 1)]
        if len(self._marks):
            unsure = np.flatnonzero((places > 0) & (self._marks[np.maximum(places - 1, 0)] == words))
            for number in unsure:
                drawn[number] = self._resolve(int(words[number]), source)
        return drawn

    def _resolve(self, word: int, source: Source) -> int:
        point = word * self.total + source.below(self.total)
        place = bisect_right(self._ends, point >> 64)
        if place < len(self._ends):
            return int(self.positions[place])
        found = self.beyond(point - (self._ends[-1] << 64), 64, source)
        return found if found is not None else int(self.draw(1, source)[0])

    def beyond(self, point: int, shift: int, source: Source) -> int | None:
        """The position of a point in the tails, in units of 2^-shift; None where it falls in the slack of the bound."""
        sides = [replace(side) for side in self._sides]
        while True:
            point = (point << _MORE) | source.bits(_MORE)
            for side in sides:
                side.weight <<= shift + _MORE
            shift = 0
            for side in sides:
                positions, weights = side.run(max(side.weight * side.top >> _MORE, 1))
                for position, weight in zip(positions, weights):
                    if point < weight:
                        return position
                    point -= weight
            if point >= sum(side.rest() or 0 for side in sides):
                return None

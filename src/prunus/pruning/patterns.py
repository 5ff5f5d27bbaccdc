"""Patterns: which sets of zeros are allowed inside one weight.

Rows of a convolution are read tap by tap with the input channels fastest, so a bank is a run of neighbouring channels
of one tap: what the sparse kernels need. Each pattern asked for r zeros in a group makes exactly r; of equal scores the
earlier position goes first.
"""

from __future__ import annotations

import abc
import functools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.contract import Pattern, whole
from prunus.errors import BadInput, UnknownName
from prunus.select import drop_smallest, drop_smallest_in_banks
from prunus.weights import Weight

__all__ = ["NM", "Balanced", "Blocks", "Channels", "Kernels", "Unstructured", "parse"]


def _magnitude(scores: Tensor, absolute: bool) -> Tensor:
    return scores.abs() if absolute else scores


class _Units(abc.ABC):
    """A pattern in which weights live and die in units: subclasses say how a weight falls into units and back."""

    @abc.abstractmethod
    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        """Scores of the units, and how many weights each stands for."""

    @abc.abstractmethod
    def spread(self, kept: Tensor, weight: Weight) -> Tensor:
        """The mask of the weight, given which units are kept."""

    def check(self, weight: Weight, sparsity: float) -> None:  # noqa: B027 - nothing to refuse, and no need to override
        """Any sparsity can be met, to within half a unit."""

    def mask(self, scores: Tensor, weight: Weight, sparsity: float, *, absolute: bool = False) -> Tensor:
        units, _ = self.units(scores, weight, absolute=absolute)
        return self.spread(drop_smallest(units, whole(sparsity, units.numel())), weight)


@dataclass(frozen=True)
class Unstructured:
    """Any weight on its own."""

    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        return _magnitude(scores, absolute).reshape(-1), 1

    def check(self, weight: Weight, sparsity: float) -> None:
        """Any sparsity can be met exactly."""

    def mask(self, scores: Tensor, weight: Weight, sparsity: float, *, absolute: bool = False) -> Tensor:
        return drop_smallest(scores, whole(sparsity, scores.numel()), absolute=absolute)

    def __str__(self) -> str:
        return "unstructured"


@functools.lru_cache(maxsize=256)
def van_der_corput(count: int) -> tuple[float, ...]:
    """The first `count` terms of the base-2 sequence 0, 1/2, 1/4, 3/4, ...: equally spread however far one goes."""
    return tuple(int(f"{number:b}"[::-1], 2) / 2 ** max(1, number.bit_length()) for number in range(count))


def _banks(weight: Weight, bank: int) -> list[tuple[int, int]]:
    """(start, length) of every bank along a row: inside each tap, or across taps where a tap has fewer channels."""
    _, taps, channels = weight.rows(weight.parameter.detach().to("meta")).shape
    segment, repeats = (channels, taps) if channels >= bank else (taps * channels, 1)
    inside = [(start, min(bank, segment - start)) for start in range(0, segment, bank)]
    return [(tap * segment + start, length) for tap in range(repeats) for start, length in inside]


class _Banks(abc.ABC):
    """Patterns that take equally many weights from a given bank of every row."""

    bank: int

    @abc.abstractmethod
    def drops(self, lengths: list[int], sparsity: float) -> list[int]:
        """How many weights each bank of a row loses, given the banks' lengths."""

    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        return _magnitude(scores, absolute).reshape(-1), 1

    def check(self, weight: Weight, sparsity: float) -> None:
        _, taps, channels = weight.rows(weight.parameter.detach().to("meta")).shape
        if taps * channels < self.bank:
            raise BadInput(
                f"{self} needs rows of at least {self.bank} weights, but a row of {weight.name!r} has "
                f"{taps * channels}: use smaller banks or exclude this layer."
            )

    def mask(self, scores: Tensor, weight: Weight, sparsity: float, *, absolute: bool = False) -> Tensor:
        banks = _banks(weight, self.bank)
        drops = self.drops([length for _, length in banks], sparsity)
        view = weight.rows(scores)
        rows = view.reshape(view.shape[0], -1)
        kept = _masks_by_segment(rows, banks, drops, self.bank, absolute)
        return weight.unrows(kept.reshape(view.shape)).contiguous()


def _masks_by_segment(
    rows: Tensor, banks: list[tuple[int, int]], drops: list[int], bank: int, absolute: bool
) -> Tensor:
    """Banks that follow each other without a short one between them go to the selection in one call."""
    parts, first = [], 0
    for number, (start, length) in enumerate(banks):
        if length < bank or number == len(banks) - 1:
            begin, end = banks[first][0], start + length
            parts.append(drop_smallest_in_banks(rows[:, begin:end], drops[first : number + 1], bank, absolute=absolute))
            first = number + 1
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class Balanced(_Banks):
    """Every bank of `bank` weights loses equally many in every row.

    At sparsity s bank number b loses floor(s B) + [u_b < frac(s B)], with u the van der Corput sequence: the same for
    all rows, within 1 + log2(banks)/3 weights a row of the target, and masks of growing sparsity nest. `equal=True`
    rounds s B once.
    """

    bank: int = 16
    equal: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.bank, int) or self.bank < 1:
            raise BadInput(f"A bank holds a whole number of weights, at least 1, not {self.bank!r}.")

    def drops(self, lengths: list[int], sparsity: float) -> list[int]:
        if self.equal:
            return [whole(sparsity, length) for length in lengths]
        spread = van_der_corput(len(lengths))
        return [max(0, math.ceil(round(sparsity * length, 9) - u)) for length, u in zip(lengths, spread)]

    def __str__(self) -> str:
        return f"balanced:{self.bank}"


@dataclass(frozen=True)
class NM(_Banks):
    """Keep n of every m neighbours. It has one sparsity, 1 - n/m."""

    n: int = 2
    m: int = 4

    def __post_init__(self) -> None:
        if not (isinstance(self.n, int) and isinstance(self.m, int) and 1 <= self.n <= self.m):
            raise BadInput(f"N:M keeps N of every M with 1 <= N <= M, not {self.n}:{self.m}.")

    @property
    def bank(self) -> int:  # type: ignore[override]
        return self.m

    def check(self, weight: Weight, sparsity: float) -> None:
        if abs(sparsity - (1 - self.n / self.m)) > 1e-9:
            own = 1 - self.n / self.m
            raise BadInput(
                f"{self} keeps {self.n} of every {self.m}, so its sparsity is {own:g}, not {sparsity:g} as asked for "
                f"{weight.name!r}: ask for {own:g}, or take balanced:{self.m}."
            )
        super().check(weight, sparsity)

    def drops(self, lengths: list[int], sparsity: float) -> list[int]:
        return [length - math.ceil(length * self.n / self.m) for length in lengths]

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"


@dataclass(frozen=True)
class Kernels(_Units):
    """Whole 2-D slices of a convolution, by their L1 norm; in a linear layer every weight is a slice of its own."""

    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        size = math.prod(weight.shape[2:])
        return _magnitude(scores, absolute).reshape(-1, size).sum(1), size

    def spread(self, kept: Tensor, weight: Weight) -> Tensor:
        return kept.reshape(*weight.shape[:2], *(1 for _ in weight.shape[2:])).expand(weight.shape).contiguous()

    def __str__(self) -> str:
        return "kernels"


@dataclass(frozen=True)
class Channels(_Units):
    """Whole output rows."""

    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        rows = weight.rows(_magnitude(scores, absolute))
        return rows.sum((1, 2)), rows[0].numel()

    def spread(self, kept: Tensor, weight: Weight) -> Tensor:
        shape = weight.rows(weight.parameter.detach().to("meta")).shape
        return weight.unrows(kept.reshape(-1, 1, 1).expand(shape)).contiguous()

    def __str__(self) -> str:
        return "channels"


@dataclass(frozen=True)
class Blocks(_Units):
    """Rectangles of `rows` x `cols` weights of the row matrix; those at the right and lower edge may be smaller."""

    rows: int = 4
    cols: int = 4

    def __post_init__(self) -> None:
        if not (isinstance(self.rows, int) and isinstance(self.cols, int) and min(self.rows, self.cols) >= 1):
            raise BadInput(f"A block has whole sides of at least 1, not {self.rows}x{self.cols}.")

    def _grid(self, weight: Weight) -> tuple[int, int, int, int]:
        rows, taps, channels = weight.rows(weight.parameter.detach().to("meta")).shape
        columns = taps * channels
        return rows, columns, -(-rows // self.rows), -(-columns // self.cols)

    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        rows, columns, down, across = self._grid(weight)
        matrix = weight.rows(_magnitude(scores, absolute)).reshape(rows, columns).double()
        padded = torch.nn.functional.pad(matrix, (0, across * self.cols - columns, 0, down * self.rows - rows))
        tiles = padded.reshape(down, self.rows, across, self.cols)
        return tiles.sum((1, 3)).reshape(-1), self.rows * self.cols

    def spread(self, kept: Tensor, weight: Weight) -> Tensor:
        rows, columns, down, across = self._grid(weight)
        tiles = kept.reshape(down, 1, across, 1).expand(down, self.rows, across, self.cols)
        matrix = tiles.reshape(down * self.rows, across * self.cols)[:rows, :columns]
        shape = weight.rows(weight.parameter.detach().to("meta")).shape
        return weight.unrows(matrix.reshape(shape)).contiguous()

    def __str__(self) -> str:
        return f"blocks:{self.rows}x{self.cols}"


_FORMS: dict[str, tuple[re.Pattern[str], Callable[..., Pattern]]] = {
    "unstructured": (re.compile("unstructured"), Unstructured),
    "balanced:B": (re.compile(r"balanced:(\d+)"), Balanced),
    "N:M": (re.compile(r"(\d+):(\d+)"), NM),
    "kernels": (re.compile("kernels"), Kernels),
    "channels": (re.compile("channels"), Channels),
    "blocks:RxC": (re.compile(r"blocks:(\d+)x(\d+)"), Blocks),
}


def names() -> Iterable[str]:
    """The written forms of the patterns."""
    return tuple(_FORMS)


def parse(pattern: str | Pattern) -> Pattern:
    """A pattern from its written form; a pattern object is passed through."""
    if isinstance(pattern, str):
        for form, make in _FORMS.values():
            match = form.fullmatch(pattern.strip())
            if match:
                return make(*(int(part) for part in match.groups()))
        raise UnknownName("pattern", pattern, _FORMS)
    if not isinstance(pattern, Pattern):
        raise BadInput(f"A pattern is a name or an object with mask, units and check, not {type(pattern).__name__}.")
    return pattern

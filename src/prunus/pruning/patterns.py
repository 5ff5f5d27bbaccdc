"""Patterns: which sets of zeros are allowed inside one weight.

Rows of a convolution are read tap by tap with the input channels fastest, so a bank is a run of neighbouring channels
of one tap: what the sparse kernels need. Each pattern asked for r zeros in a group makes exactly r; of equal scores the
earlier position goes first. The methods of a pattern are those of `prunus.contract.Pattern`.
"""

from __future__ import annotations

import abc
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prunus.contract import Pattern, whole
from prunus.errors import BadInput, UnknownName
from prunus.formulas.banks import balanced_drops
from prunus.layers import Weight
from prunus.pruning._banks import banks_of, masks_by_segment
from prunus.select import drop_smallest, drop_smallest_in_banks

__all__ = [
    "NM",
    "Balanced",
    "Blocks",
    "Channels",
    "Kernels",
    "Unstructured",
    "bank_size",
    "fixed_sparsity",
    "names",
    "parse",
    "register",
]


def _magnitude(scores: Tensor, absolute: bool) -> Tensor:
    return scores.abs() if absolute else scores


class _Units(Pattern):
    """A pattern that keeps or drops whole units: subclasses say how a weight is divided into units, and back."""

    @abc.abstractmethod
    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]: ...

    @abc.abstractmethod
    def spread(self, kept: Tensor, weight: Weight) -> Tensor:
        """The mask of the weight, given which units are kept.

        Args:
            kept: A flat boolean tensor, True for the units that are kept.
            weight: The weight, with its layout.

        Returns:
            A boolean tensor of the weight's shape, True where kept.
        """

    def check(self, weight: Weight, sparsity: float) -> None:
        pass  # any sparsity can be met, to within half a unit

    def mask(self, scores: Tensor, weight: Weight, sparsity: float, *, absolute: bool = False) -> Tensor:
        units, _ = self.units(scores, weight, absolute=absolute)
        return self.spread(drop_smallest(units, whole(sparsity, units.numel())), weight)


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Any weight on its own.

    Example:
        >>> str(prunus.patterns.Unstructured())
        'unstructured'
    """

    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        return _magnitude(scores, absolute).reshape(-1), 1

    def check(self, weight: Weight, sparsity: float) -> None:
        pass  # any sparsity can be met exactly

    def mask(self, scores: Tensor, weight: Weight, sparsity: float, *, absolute: bool = False) -> Tensor:
        return drop_smallest(scores, whole(sparsity, scores.numel()), absolute=absolute)

    def __str__(self) -> str:
        return "unstructured"


def mask_by_row(scores: Tensor, weight: Weight, sparsity: float, *, absolute: bool = False) -> Tensor:
    """Unstructured zeros chosen inside each output row, equally many in every row.

    Where the count is not whole, the first rows lose one more, so that the total is exact and masks of growing sparsity
    nest.
    """
    view = weight.rows(scores)
    rows = view.reshape(view.shape[0], -1)
    count, length = rows.shape
    if not rows.numel():
        return torch.ones_like(scores, dtype=torch.bool)
    each, more = divmod(whole(sparsity, rows.numel()), count)
    parts = [
        drop_smallest_in_banks(part, [drops], length, absolute=absolute)
        for part, drops in ((rows[:more], each + 1), (rows[more:], each))
        if part.shape[0]
    ]
    return weight.unrows(torch.cat(parts).reshape(view.shape)).contiguous()


class Banks(Pattern):
    """Patterns that take equally many weights from a given bank of every row."""

    bank: int

    @abc.abstractmethod
    def drops(self, lengths: list[int], sparsity: float) -> list[int]:
        """How many weights each bank of a row loses.

        Args:
            lengths: The lengths of the banks, in their order.
            sparsity: Wanted fraction of zeros.

        Returns:
            A number for each bank.
        """

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
        banks = banks_of(weight, self.bank)
        drops = self.drops([length for _, length in banks], sparsity)
        view = weight.rows(scores)
        rows = view.reshape(view.shape[0], -1)
        kept = masks_by_segment(rows, banks, drops, self.bank, absolute)
        return weight.unrows(kept.reshape(view.shape)).contiguous()


@dataclass(frozen=True)
class Balanced(Banks):
    """Every bank of `bank` weights loses equally many in every row.

    At sparsity s bank number b loses floor(s B) + [u_b < frac(s B)], with u the van der Corput sequence: the same for
    all rows, within 1 + log2(banks)/3 weights a row of the target, and masks of growing sparsity nest. `equal=True`
    rounds s B once.

    Attributes:
        bank: Weights in a bank.
        equal: Every bank loses the same rounded number.

    Example:
        >>> str(prunus.patterns.Balanced(bank=8))
        'balanced:8'
    """

    bank: int = 16
    equal: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.bank, int) or self.bank < 1:
            raise BadInput(f"A bank holds a whole number of weights, at least 1, not {self.bank!r}.")

    def drops(self, lengths: list[int], sparsity: float) -> list[int]:
        if self.equal:
            return [whole(sparsity, length) for length in lengths]
        return balanced_drops(lengths, sparsity)

    def __str__(self) -> str:
        return f"balanced:{self.bank}"


@dataclass(frozen=True)
class NM(Banks):
    """Keep n of every m neighbours. It has one sparsity, 1 - n/m.

    Example:
        >>> str(prunus.patterns.NM(n=2, m=4))
        '2:4'
    """

    n: int = 2
    m: int = 4

    def __post_init__(self) -> None:
        if not (isinstance(self.n, int) and isinstance(self.m, int) and 1 <= self.n <= self.m):
            raise BadInput(f"N:M keeps N of every M with 1 <= N <= M, not {self.n}:{self.m}.")

    @property
    def bank(self) -> int:  # type: ignore[override]
        """The m neighbours among which n are kept."""
        return self.m

    @property
    def fixed_sparsity(self) -> float:
        """The only sparsity this pattern has."""
        return 1 - self.n / self.m

    def check(self, weight: Weight, sparsity: float) -> None:
        own = self.fixed_sparsity
        if abs(sparsity - own) > 1e-9:
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
    """Whole 2-D slices of a convolution, by their L1 norm; in a linear layer every weight is a slice of its own.

    Example:
        >>> str(prunus.patterns.Kernels())
        'kernels'
    """

    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        size = math.prod(weight.shape[2:])
        return _magnitude(scores, absolute).reshape(-1, size).sum(1), size

    def spread(self, kept: Tensor, weight: Weight) -> Tensor:
        return kept.reshape(*weight.shape[:2], *(1 for _ in weight.shape[2:])).expand(weight.shape).contiguous()

    def __str__(self) -> str:
        return "kernels"


@dataclass(frozen=True)
class Channels(_Units):
    """Whole output rows.

    Example:
        >>> str(prunus.patterns.Channels())
        'channels'
    """

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
    """Rectangles of `rows` x `cols` weights of the row matrix; those at the right and lower edge may be smaller.

    Example:
        >>> str(prunus.patterns.Blocks(rows=4, cols=4))
        'blocks:4x4'
    """

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


def fixed_sparsity(pattern: str | Pattern) -> float | None:
    """The one sparsity a pattern has, as 2:4 has 0.5; None where any can be asked for.

    A pattern of one's own says so with an attribute `fixed_sparsity`.

    Args:
        pattern: A pattern, or its written form.

    Returns:
        The sparsity, or None.

    Example:
        >>> fixed_sparsity("2:4"), fixed_sparsity("balanced:16")
        (0.5, None)
    """
    value = getattr(parse(pattern), "fixed_sparsity", None)
    return None if value is None else float(value)


def bank_size(pattern: str | Pattern) -> int | None:
    """How many neighbours a pattern of banks chooses among (16 for balanced:16, 4 for 2:4); None for the others.

    Args:
        pattern: A pattern, or its written form.

    Returns:
        The number of neighbours, or None.

    Example:
        >>> bank_size("balanced:16"), bank_size("2:4"), bank_size("channels")
        (16, 4, None)
    """
    parsed = parse(pattern)
    return parsed.bank if isinstance(parsed, Banks) else None


def bank_drops(pattern: Pattern, weight: Weight, sparsity: float) -> list[tuple[int, int, int]]:
    """(start, length, weights lost) of every bank along a row; empty for patterns without banks."""
    if not isinstance(pattern, Banks):
        return []
    places = banks_of(weight, pattern.bank)
    drops = pattern.drops([length for _, length in places], sparsity)
    return [(start, length, lost) for (start, length), lost in zip(places, drops)]


_FORMS: dict[str, tuple[re.Pattern[str], Callable[..., Pattern]]] = {}


def register(form: str, *, written: str | None = None, replace: bool = False) -> Callable[[Any], Any]:
    """Decorator: make a pattern available by its written form.

    Args:
        form: as it is listed, such as "stripes:W". Each run of capital letters stands for a whole number, which is
            passed on; everything else is meant literally.
        written: a regular expression, where `form` does not say enough; its groups are whole numbers.
        replace: allow a form that exists already to be given another meaning.

    Returns:
        The decorator; it takes a class or function that makes the pattern, and returns it.

    Raises:
        BadInput: if the form exists already.

    Example:
        >>> import prunus
        >>> @prunus.patterns.register("rows")
        ... class Rows(prunus.patterns.Channels):
        ...     def __str__(self):
        ...         return "rows"
        >>> str(prunus.patterns.parse("rows"))
        'rows'
    """

    def add(make: Any) -> Any:
        if form in _FORMS and not replace:
            raise BadInput(f"A pattern {form!r} exists already; choose another form or pass replace=True.")
        text = written if written is not None else re.sub("[A-Z]+", r"(\\d+)", re.escape(form))
        _FORMS[form] = (re.compile(text), make)
        return make

    return add


register("unstructured")(Unstructured)
register("balanced:B")(Balanced)
register("N:M")(NM)
register("kernels")(Kernels)
register("channels")(Channels)
register("blocks:RxC")(Blocks)


def names() -> Iterable[str]:
    """The written forms of the patterns.

    Returns:
        The forms, in the order of their registration.

    Example:
        >>> names()[:3]
        ('unstructured', 'balanced:B', 'N:M')
    """
    return tuple(_FORMS)


def parse(pattern: str | Pattern) -> Pattern:
    """A pattern from its written form; a pattern object is passed through.

    Args:
        pattern: Such as "balanced:16", or an object with `mask`, `units` and `check`.

    Returns:
        The pattern.

    Raises:
        UnknownName: No pattern is written so.
        BadInput: The object is no pattern.

    Example:
        >>> parse("2:4") == NM(2, 4)
        True
    """
    if isinstance(pattern, str):
        for form, make in _FORMS.values():
            match = form.fullmatch(pattern.strip())
            if match:
                return make(*(int(part) for part in match.groups()))
        raise UnknownName("pattern", pattern, _FORMS)
    if not isinstance(pattern, Pattern):
        raise BadInput(f"A pattern is a name or an object with mask, units and check, not {type(pattern).__name__}.")
    return pattern

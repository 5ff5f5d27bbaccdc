"""What a network is made of, seen by a certificate: five kinds of pieces.

A rule (`prunus.certificates.register_rule`) turns one operation of the graph into one of them. Values carry a batch
dimension in front and are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Apply = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Affine:
    """`y = apply(weight, x) + bias`: linear in x, and in the weight where there is one.

    Attributes:
        kind: A name, equal in both networks.
        apply: Function of (weight, x), without the bias.
        norm: Function of the weight: an upper bound on the 2-norm of the linear part. Operators without a weight
            (flatten, average pooling) get None, and their entries must not be negative.
        weight: The weight, or None.
        bias: The bias, or None.
        terms: The number of products summed into one output.
        settings: Tells apart operators that the same weights would make different.
        scaled: How the weight changes when every output channel (axis 1) is multiplied by a number:
            (weight, factors) -> weight.
        bias_size: Bounds the terms that make up the bias where they are larger than the bias itself (a batch norm's
            mean).
        roundings: How often a half-precision type may round on the way to one output, which sums in float32 otherwise.
        sizes: What the rounding of an output is in proportion to, from the inputs' magnitudes, where that is more than
            `magnitude`.
        inside: The layer as it runs, where a factor for each channel was folded into it: its own sums may be larger
            than the folded ones, and are what leaves the type's range.
        lost: How many of its type's smallest normal numbers underflow may cost each output; `terms + 2` without it.

    Example:
        >>> double = prunus.certificates.Affine("double", lambda weight, x: 2 * x, lambda weight: 2.0)
        >>> double.run(torch.ones(1, 3))
        tensor([[2., 2., 2.]])
    """

    kind: str
    apply: Apply
    norm: Callable[[Any], float]
    weight: Tensor | None = None
    bias: Tensor | None = None
    terms: int = 1
    settings: tuple[Any, ...] = ()
    scaled: Callable[[Tensor, Tensor], Tensor] | None = None
    bias_size: Tensor | None = None
    roundings: int = 1
    sizes: Callable[[Tensor], Tensor] | None = None
    inside: Affine | None = None
    lost: Tensor | None = None

    def run(self, x: Tensor) -> Tensor:
        """The output for inputs (n, *shape).

        Args:
            x: a batch of inputs.

        Returns:
            A batch of outputs.
        """
        y = self.apply(self.weight, x)
        return y if self.bias is None else y + self.bias

    def magnitude(self, x: Tensor) -> Tensor:
        """The operator with the magnitudes of its entries, without bias.

        Args:
            x: a batch of inputs that are not negative.

        Returns:
            A batch of outputs.
        """
        return self.apply(None if self.weight is None else self.weight.abs(), x)

    def rounded(self, x: Tensor) -> Tensor:
        """What the rounding of each output is in proportion to, for magnitudes of the inputs.

        Args:
            x: a batch of inputs.

        Returns:
            A batch of outputs.
        """
        spread = self.magnitude(x) if self.sizes is None else self.sizes(x)
        if self.bias is None:
            return spread
        return spread + (self.bias.abs() if self.bias_size is None else self.bias_size)

    @property
    def underflow(self) -> Tensor:
        """How many of its type's smallest normal numbers underflow may cost: one number, or one for each channel."""
        return torch.tensor(self.terms + 2.0, dtype=torch.float64) if self.lost is None else self.lost

    def without_bias(self, weight: Tensor | None) -> Callable[[Tensor], Tensor]:
        """The linear part with another weight, as a function.

        Args:
            weight: takes the place of the operator's own.

        Returns:
            A function of a batch of inputs.
        """
        return lambda x: self.apply(weight, x)


@dataclass(frozen=True, eq=False)
class Join:
    """A sum of values, or their concatenation.

    Attributes:
        kind: "sum" or "concatenation".
        axis: The axis of a concatenation, counted with the batch.
        bias: Not used; leave it None.

    Example:
        >>> prunus.certificates.Join("sum").run([torch.ones(1, 2), torch.ones(1, 2)])
        tensor([[2., 2.]])
    """

    kind: str  # "sum" or "concatenation"
    axis: int = 1
    bias: Tensor | None = None

    def run(self, values: list[Tensor]) -> Tensor:
        """The sum or concatenation of the values.

        Args:
            values: two or more values, each a batch.

        Returns:
            A batch.
        """
        if self.kind == "concatenation":
            return torch.cat(values, dim=self.axis)
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total


@dataclass(frozen=True, eq=False)
class ValueProduct:
    """The product of two values that both depend on the input, entry by entry.

    Attributes:
        kind: Always "product".
        settings: Not used.

    Example:
        >>> prunus.certificates.ValueProduct().run([torch.ones(1, 2), 3 * torch.ones(1, 2)])
        tensor([[3., 3.]])
    """

    kind: str = "product"
    settings: tuple[Any, ...] = ()

    def run(self, values: list[Tensor]) -> Tensor:
        """The product of the two values.

        Args:
            values: two values, each a batch.

        Returns:
            A batch.
        """
        return values[0] * values[1]


@dataclass(frozen=True, eq=False)
class Elementwise:
    """A scalar function applied to every entry.

    On an interval, the function takes its extremes at the ends or at `critical_points`, the derivative at the ends
    or at `inflection_points`.

    Attributes:
        kind: A name, equal in both networks.
        function: The function.
        derivative: Its derivative; one-sided at a kink.
        lipschitz: Its Lipschitz constant.
        critical_points: The points where the derivative changes sign.
        inflection_points: The points where the derivative stops rising or falling.
        kinks: Jumps of the derivative: (point, left value, right value).
        settings: Tells apart functions of one kind.
        jump: How far the function that runs may be from `function` beyond rounding.
        relative: True where the rounding of a result is in proportion to the result alone.
        beyond: For a clamp that no network computes, because exact values keep within it by themselves: how far
            computed ones may go beyond it, from the magnitudes of the step's second input and the type.

    Example:
        >>> from prunus.certificates import Elementwise
        >>> relu = Elementwise("relu", torch.relu, lambda x: (x > 0).to(x.dtype), 1.0, kinks=((0.0, 0.0, 1.0),))
        >>> low, high = relu.values(torch.tensor([-1.0]), torch.tensor([2.0]))
        >>> float(low), float(high)
        (0.0, 2.0)
    """

    kind: str
    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    lipschitz: float
    critical_points: tuple[float, ...] = ()
    inflection_points: tuple[float, ...] = ()
    kinks: tuple[tuple[float, float, float], ...] = ()
    settings: tuple[Any, ...] = ()
    jump: float = 0.0
    relative: bool = False
    beyond: Callable[[Tensor, torch.dtype], Tensor] | None = None

    def run(self, x: Tensor) -> Tensor:
        """The output for inputs (n, *shape).

        Args:
            x: a batch of inputs.

        Returns:
            A batch of outputs of the same shape.
        """
        return self.function(x)

    def values(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on the function over [low, high], entry by entry.

        Args:
            low: the smallest input of every entry.
            high: the largest.

        Returns:
            The smallest and the largest output, rounded outwards.
        """
        at_low, at_high = self.function(low), self.function(high)
        bottom, top = torch.minimum(at_low, at_high), torch.maximum(at_low, at_high)
        for point in self.critical_points:
            inside = (low < point) & (high > point)
            value = self.function(torch.tensor(point, dtype=low.dtype))
            bottom = torch.where(inside, torch.minimum(bottom, value), bottom)
            top = torch.where(inside, torch.maximum(top, value), top)
        return _outwards(bottom, top, exact=bool(self.kinks) and not self.inflection_points)

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on every difference quotient over [low, high], entry by entry.

        Args:
            low: the smallest input of every entry.
            high: the largest.

        Returns:
            The smallest and the largest slope, rounded outwards.
        """
        at_low, at_high = self.derivative(low), self.derivative(high)
        bottom, top = torch.minimum(at_low, at_high), torch.maximum(at_low, at_high)
        for point in self.inflection_points:
            inside = (low <= point) & (high >= point)
            value = self.derivative(torch.tensor(point, dtype=low.dtype))
            bottom = torch.where(inside, torch.minimum(bottom, value), bottom)
            top = torch.where(inside, torch.maximum(top, value), top)
        for point, left, right in self.kinks:
            inside = (low < point) & (high > point)
            bottom = torch.where(inside, bottom.clamp_max(min(left, right)), bottom)
            top = torch.where(inside, top.clamp_min(max(left, right)), top)
            # An end at the kink takes the slope of its own side only.
            top = torch.where((low == point) & (high > point), top.clamp_min(right), top)
            bottom = torch.where((low == point) & (high > point), bottom.clamp_max(right), bottom)
            top = torch.where((high == point) & (low < point), top.clamp_min(left), top)
            bottom = torch.where((high == point) & (low < point), bottom.clamp_max(left), bottom)
        return _outwards(bottom, top, exact=bool(self.kinks) and not self.inflection_points)

    @property
    def piecewise_linear(self) -> bool:
        """One kink, at zero, and no curvature: ReLU and LeakyReLU."""
        return len(self.kinks) == 1 and not self.inflection_points and self.kinks[0][0] == 0.0


def _outwards(bottom: Tensor, top: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    if exact:
        return bottom, top
    return bottom - 1e-12 * (1 + bottom.abs()), top + 1e-12 * (1 + top.abs())


@dataclass(frozen=True, eq=False)
class Lipschitz:
    """Any map with a Lipschitz constant in the 2-norm: max pooling, softmax, or one's own.

    Attributes:
        kind: A name, equal in both networks.
        function: The map.
        constant: Its Lipschitz constant.
        bounds: `bounds(low, high)` gives bounds on the output over a box of inputs, where better ones are known than
            centre +- constant * radius.
        change: `change(low, high)` bounds `f(x + d) - f(x)` for low <= d <= high in the same way.
        settings: Tells apart maps of one kind.
        windows: Where every output is the largest of some inputs: their numbers (outputs, size), -1 for none.
        slope: `slope(middle, rows)` applies the transposed Jacobian at `middle` to rows, (points, rows, *shape).
        bend: `bend(low, high, u, v)` bounds the second derivative over a box of inputs in directions of at most u and
            v, entry by entry; `slope` and `bend` together give linear bounds.

    Example:
        >>> prunus.certificates.Lipschitz("sine", torch.sin, 1.0).run(torch.zeros(1, 2))
        tensor([[0., 0.]])
    """

    kind: str
    function: Callable[[Tensor], Tensor]
    constant: float
    bounds: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    settings: tuple[Any, ...] = field(default=())
    windows: Tensor | None = None
    slope: Callable[[Tensor, Tensor], Tensor] | None = None
    bend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None

    def run(self, x: Tensor) -> Tensor:
        """The output for inputs (n, *shape).

        Args:
            x: a batch of inputs.

        Returns:
            A batch of outputs.
        """
        return self.function(x)


Piece = Affine | Join | ValueProduct | Elementwise | Lipschitz

"""Where a certificate holds: a ball, a box, or points with their neighbourhoods.

Inside, every domain becomes a `Region`: centres and either one 2-norm radius or half-widths per coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from prunus.errors import BadInput


@dataclass(frozen=True, eq=False)
class Region:
    """Centres (points, *shape) in float64; a 2-norm radius, or half-widths of a box around each centre.

    Half-widths are (*shape), the same for all centres, or (points, *shape).
    """

    centres: Tensor
    radius: float
    half: Tensor | None = None

    @property
    def points(self) -> int:
        return int(self.centres.shape[0])

    def part(self, start: int, stop: int) -> Region:
        """The region of the centres start..stop-1."""
        each = self.half is not None and self.half.ndim == self.centres.ndim
        return Region(self.centres[start:stop], self.radius, self.half[start:stop] if each else self.half)  # type: ignore

    def spread(self, rows: Tensor) -> Tensor:
        """Largest `rows . (x - c)` over the region; rows (points, rows, *shape) gives (points, rows)."""
        flat = rows.flatten(2)
        if self.half is None:
            return cast("Tensor", self.radius * torch.linalg.vector_norm(flat, dim=2))
        if self.half.ndim == self.centres.ndim:
            return torch.einsum("prn,pn->pr", flat.abs(), self.half.flatten(1))
        return flat.abs() @ self.half.flatten()

    def project(self, inputs: Tensor, centres: Tensor) -> Tensor:
        """The nearest inputs (n, *shape) inside the region around their own centres (n, *shape)."""
        move = inputs - centres
        if self.half is not None:
            return centres + torch.maximum(torch.minimum(move, self.half), -self.half)
        length = torch.linalg.vector_norm(move.flatten(1), dim=1).reshape(-1, *[1] * (move.ndim - 1))
        return cast("Tensor", centres + move * (self.radius / length.clamp_min(1e-300)).clamp_max(1.0))


@dataclass(frozen=True, eq=False)
class Ball:
    """All inputs within 2-norm `radius` of `center`.

    Attributes:
        radius: A positive number.
        center: A tensor of one input's shape; None is the origin.

    Raises:
        BadInput: The radius is not positive, or the center not finite.

    Example:
        >>> prunus.Ball(0.5, center=torch.ones(8)).shape
        (8,)
    """

    radius: float
    center: Tensor | Sequence[float] | None = None

    def __post_init__(self) -> None:
        _positive(self.radius, "radius of a Ball", "; for single points use Samples")
        if self.center is not None:
            object.__setattr__(self, "center", _finite(self.center, "center of a Ball"))

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one input, where the domain shows it; else None."""
        return None if self.center is None else tuple(_tensor(self.center).shape)

    def region(self, shape: tuple[int, ...]) -> Region:
        """The domain for inputs of this shape, as centres with a radius or half-widths.

        Args:
            shape: the shape of one input.

        Returns:
            The region, in float64.
        """
        centre = torch.zeros(shape, dtype=torch.float64) if self.center is None else _tensor(self.center)
        return Region(_shaped(centre, shape, "Ball's center")[None], float(self.radius))

    def describe(self) -> dict[str, Any]:
        """The domain as plain numbers and lists; `restore` is the inverse."""
        return {"kind": "ball", "radius": float(self.radius), "center": _listed(self.center)}


@dataclass(frozen=True, eq=False)
class Box:
    """All inputs with `low <= x <= high` in every coordinate.

    Attributes:
        low: A tensor of one input's shape, or a number for all coordinates.
        high: The same for the upper ends.

    Raises:
        BadInput: The sides are not finite, have different shapes, or low exceeds high somewhere.

    Example:
        >>> prunus.Box(torch.zeros(8), 1.0).shape
        (8,)
    """

    low: Tensor | Sequence[float] | float
    high: Tensor | Sequence[float] | float

    def __post_init__(self) -> None:
        low, high = _finite(self.low, "low of a Box"), _finite(self.high, "high of a Box")
        if low.ndim and high.ndim and low.shape != high.shape:
            raise BadInput(
                f"The Box's low has shape {tuple(low.shape)} and its high {tuple(high.shape)}: give equal ones."
            )
        if bool((low > high).any()) or bool((low == high).all()):
            raise BadInput("A Box needs low <= high in every coordinate and low < high in one; for points use Samples.")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one input, where the domain shows it; else None."""
        low, high = _tensor(self.low), _tensor(self.high)
        return tuple(low.shape) or tuple(high.shape) or None

    def region(self, shape: tuple[int, ...]) -> Region:
        """The domain for inputs of this shape, as centres with a radius or half-widths.

        Args:
            shape: the shape of one input.

        Returns:
            The region, in float64.
        """
        low, high = (_shaped(_tensor(side), shape, "Box") for side in (self.low, self.high))
        centre = (low + high) / 2
        # Widened by the rounding of the midpoint, so that the box around it holds the whole box.
        half = torch.maximum(high - centre, centre - low) * (1 + 1e-15) + 1e-300
        return Region(centre[None], float(torch.linalg.vector_norm(half)) * (1 + 1e-12), half)

    def describe(self) -> dict[str, Any]:
        """The domain as plain numbers and lists; `restore` is the inverse."""
        return {"kind": "box", "low": _listed(self.low), "high": _listed(self.high)}


@dataclass(frozen=True, eq=False)
class Samples:
    """Points, each with its neighbourhood.

    Attributes:
        points: A tensor (n, *shape).
        radius: 2-norm radius of each neighbourhood; 0 means the points themselves.

    Raises:
        BadInput: No points, points that are not finite, or a negative radius.

    Example:
        >>> prunus.Samples(torch.zeros(5, 8), radius=0.1).shape
        (8,)
    """

    points: Tensor | Sequence[Any]
    radius: float = 0.0

    def __post_init__(self) -> None:
        points = _finite(self.points, "points of Samples")
        if points.ndim < 2 or points.shape[0] == 0:
            raise BadInput("Samples needs at least one point: give a tensor of shape (points, *input shape).")
        if isinstance(self.radius, bool) or not (math.isfinite(self.radius) and self.radius >= 0):
            raise BadInput(f"The radius of Samples is {self.radius}: it must be 0 or a positive number.")
        object.__setattr__(self, "points", points)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one input, where the domain shows it; else None."""
        return tuple(_tensor(self.points).shape[1:])

    def region(self, shape: tuple[int, ...]) -> Region:
        """The domain for inputs of this shape, as centres with a radius or half-widths.

        Args:
            shape: the shape of one input.

        Returns:
            The region, in float64.

        Raises:
            BadInput: if the samples have another shape.
        """
        points = _tensor(self.points)
        if tuple(points.shape[1:]) != shape:
            raise BadInput(f"The samples have shape {tuple(points.shape[1:])}, but the network takes {shape}.")
        return Region(points, float(self.radius))

    def describe(self) -> dict[str, Any]:
        """The domain as plain numbers and lists; `restore` is the inverse."""
        return {"kind": "samples", "radius": float(self.radius), "points": _listed(self.points)}


Domain = Ball | Box | Samples


def restore(record: dict[str, Any]) -> Domain:
    """The domain that `describe` wrote down."""
    kind = record.get("kind")
    if kind == "ball":
        return Ball(record["radius"], record["center"])
    if kind == "box":
        return Box(record["low"], record["high"])
    if kind == "samples":
        return Samples(record["points"], record["radius"])
    raise BadInput(f"The certificate names a domain of kind {kind!r}, which is not known.")


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)


def _listed(value: Any) -> Any:
    return None if value is None else _tensor(value).tolist()


def _finite(value: Any, what: str) -> Tensor:
    try:
        tensor = torch.as_tensor(value).detach().to("cpu", torch.float64).clone()
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"The {what} must be numbers or a tensor.") from None
    if not bool(torch.isfinite(tensor).all()):
        raise BadInput(f"The {what} must be finite.")
    return tensor


def _positive(value: Any, what: str, hint: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and value > 0):
        raise BadInput(f"The {what} is {value!r}: it must be a positive number{hint}.")


def _shaped(tensor: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    if tensor.ndim == 0:
        return tensor.expand(shape).clone()
    if tuple(tensor.shape) != shape:
        raise BadInput(f"The {what} has shape {tuple(tensor.shape)}, but the network takes inputs of shape {shape}.")
    return tensor

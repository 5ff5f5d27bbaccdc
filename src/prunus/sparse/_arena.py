"""Memory for what passes between the packed convolutions of one fused graph, kept from call to call.

Fresh memory for every result costs as much as the kernels: the system maps and clears its pages anew. Inside a fused
graph it is known who reads a result and when, so a result that only packed convolutions read goes to a numbered place
that is used again once its last reader is done. Each Python thread has its own places.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor


class Arena:
    """Numbered pieces of memory, one set for each thread; copies of a model start with empty ones."""

    def __init__(self) -> None:
        self._local = threading.local()

    def take(self, place: int, size: int) -> Tensor:
        """`size` floats at this place; what the last call left there is lost."""
        kept: dict[int, Tensor] = self._local.__dict__.setdefault("kept", {})
        found = kept.get(place)
        if found is None or found.numel() < size:
            found = kept[place] = torch.empty(size)
            self.views(place).clear()
        return found

    def views(self, place: int) -> dict[Any, Any]:
        """What was made of the memory at this place, by shape, as long as that memory stands."""
        made: dict[int, dict[Any, Any]] = self._local.__dict__.setdefault("made", {})
        return made.setdefault(place, {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Arena:
        fresh = memo[id(self)] = Arena()
        return fresh

    def __reduce__(self) -> tuple[Any, ...]:
        return Arena, ()


def assign_places(lives: list[tuple[int, int]]) -> list[int]:
    """For values that live from a first to a last moment (both included), places that no two share while they live."""
    places: list[int] = []
    for number, (start, _) in enumerate(lives):
        taken = {places[other] for other in range(number) if lives[other][1] >= start}
        places.append(next(place for place in range(number + 1) if place not in taken))
    return places

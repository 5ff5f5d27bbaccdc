"""Arguments of operators, which may be lists and dictionaries of values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from prunus.certificates.reading.rules import BatchNumber
from prunus.graph import Node


def resolved(item: Any, env: dict[str, Any]) -> Any:
    """Nodes replaced by what is known of them."""
    if isinstance(item, Node):
        return env[item.name]
    if isinstance(item, dict):
        return {key: resolved(part, env) for key, part in item.items()}
    if isinstance(item, (list, tuple)):
        return type(item)(resolved(part, env) for part in item)
    return item


def flat(item: Any) -> Iterator[Any]:
    """All entries, one by one."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, (list, tuple)):
        for part in item:
            yield from flat(part)
    else:
        yield item


def double(item: Any) -> Any:
    """Tensors in float64."""
    if isinstance(item, Tensor):
        return item.detach().double() if item.is_floating_point() else item.detach()
    if isinstance(item, dict):
        return {key: double(part) for key, part in item.items()}
    if isinstance(item, (list, tuple)):
        return type(item)(double(part) for part in item)
    return item


def numbers(item: Any) -> Any:
    """Batch sizes as plain numbers."""
    if isinstance(item, BatchNumber):
        return int(item)
    if isinstance(item, dict):
        return {key: numbers(part) for key, part in item.items()}
    if isinstance(item, (list, tuple)):
        return type(item)(numbers(part) for part in item)
    return item

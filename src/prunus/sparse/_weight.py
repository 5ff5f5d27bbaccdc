"""The `weight` of a packed layer, for code that asks for its dtype, shape or device.

It holds no values. Whatever computes with it gets the dense matrix, built for that one use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from prunus._torch import empty_wrapper, pytree
from prunus.errors import BadInput


class PackedWeight(Tensor):
    """A tensor without storage that knows its shape, dtype and device, and makes its values when they are needed."""

    make: Callable[[], Tensor]

    @staticmethod
    def __new__(cls, shape: Any, dtype: torch.dtype, device: torch.device, make: Callable[[], Tensor]) -> PackedWeight:
        empty: Any = empty_wrapper(cls, shape, dtype, device)
        empty.make = make
        return empty  # type: ignore[no-any-return]

    def __init__(self, *_: Any) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func._schema.is_mutable and args and isinstance(args[0], PackedWeight):
            raise BadInput("Packed weights cannot be changed in place: change the model and compress it again.")

        def dense(value: Any) -> Any:
            return value.make().to(value.dtype) if isinstance(value, PackedWeight) else value

        return func(*pytree.tree_map(dense, args), **pytree.tree_map(dense, kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PackedWeight(shape={tuple(self.shape)}, dtype={self.dtype})"

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.make().to(self.dtype)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.make().to(self.dtype).__reduce_ex__(protocol)

"""The kernel of any module through its Jacobian, a few inputs at a time (torch.func)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from prunus.tangent._terms import Network


class Jacobian:
    """Rows of the Jacobian of `network` by the parameters that require a gradient, masked entries at zero."""

    def __init__(self, network: Network, outputs: Sequence[int]) -> None:
        self.network, self.outputs = network, list(outputs)
        parameters = dict(network.model.named_parameters())
        self.names = [name for name, parameter in parameters.items() if parameter.requires_grad]
        self.raw = {name: parameters[name].detach() for name in self.names}
        self.fixed = {name: value for name, value in network.values.items() if name not in self.raw}
        self.size = sum(value.numel() for value in self.raw.values())
        self.batched = True

    def _acting(self, raw: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights as they act: times mask and multiplier."""
        acting = dict(self.fixed)
        for name, value in raw.items():
            mask = self.network.masks.get(name)
            acting[name] = value if mask is None else value * mask * self.network.multiplier.get(name, 1.0)
        return acting

    def _one(self, raw: dict[str, Tensor], x: Tensor) -> Tensor:
        result = torch.func.functional_call(self.network.model, self._acting(raw), (x[None],))
        return cast("Tensor", result.flatten()[self.outputs])

    def __call__(self, x: Tensor) -> Tensor:
        """(n, outputs, parameters)."""
        if self.batched:
            try:
                found = torch.func.vmap(torch.func.jacrev(self._one), in_dims=(None, 0))(self.raw, x)
                return torch.cat([found[name].flatten(2) for name in self.names], dim=2)
            except (RuntimeError, NotImplementedError):
                self.batched = False  # a module that torch.func cannot batch: one input after the other instead
        return torch.stack([self._plainly(row) for row in x])

    def _plainly(self, x: Tensor) -> Tensor:
        raw = {name: value.clone().requires_grad_() for name, value in self.raw.items()}
        with torch.enable_grad():
            values = self._one(raw, x)
        rows = []
        for number, value in enumerate(values):
            gradients = torch.autograd.grad(
                value, list(raw.values()), retain_graph=number + 1 < len(values), materialize_grads=True
            )
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
        return torch.stack(rows)


def jacobian_kernel(
    jacobian: Jacobian, x1: Tensor, x2: Tensor | None, full: bool, budget: int, advance: Callable[[int, int], None]
) -> Tensor:
    """(n1, n2) summed over outputs, or (n1, outputs, n2, outputs); blocks of inputs as the budget allows.

    Where not even all outputs of one input fit and only their sum is asked for, outputs go one after the other.
    """
    outputs = len(jacobian.outputs)
    # Two blocks of rows, each held about three times while it is made.
    rows = budget // (6 * max(1, jacobian.size) * x1.element_size())
    if rows < outputs > 1 and not full:
        total = None
        for number, output in enumerate(jacobian.outputs):
            single = Jacobian(jacobian.network, [output])
            part = jacobian_kernel(single, x1, x2, False, budget, _stage(advance, number, outputs))
            total = part if total is None else total.add_(part)
        assert total is not None
        return total
    size = max(1, rows // outputs)

    def block(left: Tensor, right: Tensor) -> Tensor:
        if full:
            return torch.einsum("aop,bqp->aobq", left, right)
        return left.flatten(1) @ right.flatten(1).T

    return by_blocks(jacobian, block, x1, x2, size, advance)


def _stage(advance: Callable[[int, int], None], number: int, stages: int) -> Callable[[int, int], None]:
    """The progress of stage `number` of several equal ones, as progress of the whole."""
    return lambda done, total: advance(number * total + done, stages * total)


def by_blocks(
    prepare: Callable[[Tensor], Any],
    block: Callable[[Any, Any], Tensor],
    x1: Tensor,
    x2: Tensor | None,
    size: int,
    advance: Callable[[int, int], None],
) -> Tensor:
    """The kernel put together from blocks of `size` inputs; without x2 only the upper blocks are worked out.

    `prepare` makes of a block of inputs what `block` takes two of, giving (n1, n2) or (n1, outputs, n2, outputs).
    """
    parts1, parts2 = x1.split(size), (x1 if x2 is None else x2).split(size)
    rows: list[list[Tensor]] = []
    total = len(parts1) * (len(parts1) + 1) // 2 if x2 is None else len(parts1) * len(parts2)
    done = 0
    for i, first in enumerate(parts1):
        left, row = prepare(first), []
        for j, second in enumerate(parts2):
            if x2 is None and j < i:
                above = rows[j][i]
                row.append(above.permute(2, 3, 0, 1) if above.dim() == 4 else above.T)
                continue
            row.append(block(left, left if x2 is None and i == j else prepare(second)))
            done += 1
            advance(done, total)
        rows.append(row)
    axis = 2 if rows[0][0].dim() == 4 else 1
    return torch.cat([torch.cat(row, dim=axis) for row in rows])

"""Better diagonals for norms of products: a few steps of gradient descent, then certified norms.

A product with cuts is bounded by a sum over segmentations. Segment (i, j) has the norm of
`diag(1/t_j) P_ij diag(h_(i-1) t_(i-1))`; with its singular vectors u, v and value s the derivative by log t is
`-s u^2` on the left and `s v^2` on the right. Singular vectors come from power iteration, which is enough to choose t:
the bound itself is computed with `matrix_norm` at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from prunus.operators import matrix_norm

_STEPS = 40
_RATE = 0.02
_INNER = 4


def tune_balances(
    products: Mapping[tuple[int, int], Tensor], halves: Sequence[Tensor], start: Sequence[Tensor]
) -> float:
    """The bound after tuning.

    products[i, j]: factors i..j with the middles between them; halves, start: h and t at the cut after each factor.
    """
    count = len(halves) + 1
    cut = [bool(half.any()) for half in halves]
    logs = [torch.log(t) for t in start]
    speed = [torch.zeros_like(t) for t in start]
    spread = [torch.zeros_like(t) for t in start]
    vectors = {key: torch.ones(matrix.shape[1], dtype=torch.float64) for key, matrix in products.items()}
    for step in range(1, _STEPS + 1):
        sizes, moves = {}, {}
        for key in products:
            if key[0] == 0 or cut[key[0] - 1]:
                sizes[key], moves[key] = _pair(_scaled(products, halves, logs, key), vectors, key)
        total, weights = _total(sizes, count)
        gradients = [torch.zeros_like(log) for log in logs]
        for (i, j), weight in weights.items():
            left, right = moves[i, j]
            if j < count - 1:
                gradients[j] -= weight * sizes[i, j] * left
            if i > 0:
                gradients[i - 1] += weight * sizes[i, j] * right
        for place, gradient in enumerate(gradients):
            # Adam's steps: the entries of a cut have very different shares in the leading vectors.
            speed[place] = 0.9 * speed[place] + 0.1 * gradient
            spread[place] = 0.999 * spread[place] + 0.001 * gradient.square()
            steady = (spread[place] / (1 - 0.999**step)).sqrt() + 1e-12 * max(total, 1e-300)
            rate = _RATE * (1 - step / (_STEPS + 1))
            logs[place] = logs[place] - rate * speed[place] / (1 - 0.9**step) / steady
    exact = {
        key: matrix_norm(_scaled(products, halves, logs, key)) for key in products if key[0] == 0 or cut[key[0] - 1]
    }
    return _total(exact, count)[0]


def _scaled(
    products: Mapping[tuple[int, int], Tensor], halves: Sequence[Tensor], logs: Sequence[Tensor], key: tuple[int, int]
) -> Tensor:
    i, j = key
    matrix = products[key]
    if i > 0:
        matrix = matrix * (halves[i - 1] * torch.exp(logs[i - 1]))[None, :]
    if j < len(halves):
        matrix = matrix * torch.exp(-logs[j])[:, None]
    return matrix


def _pair(
    matrix: Tensor, vectors: dict[tuple[int, int], Tensor], key: tuple[int, int]
) -> tuple[float, tuple[Tensor, Tensor]]:
    """A singular value and the squares of its vectors, by a few warm steps of power iteration."""
    right = vectors[key]
    for _ in range(_INNER):
        left = matrix @ right
        left = left / torch.linalg.vector_norm(left).clamp_min(1e-300)
        right = matrix.T @ left
        size = float(torch.linalg.vector_norm(right))
        right = right / max(size, 1e-300)
    vectors[key] = right
    return size, (left.square(), right.square())


def _total(sizes: Mapping[tuple[int, int], float], count: int) -> tuple[float, dict[tuple[int, int], float]]:
    """The sum over segmentations, and its derivative by the size of every segment."""
    before = [1.0] + [0.0] * count  # before[j]: all ways to cover the factors 0..j-1
    for j in range(count):
        before[j + 1] = sum(sizes[i, j] * before[i] for i in range(j + 1) if (i, j) in sizes)
    after = [0.0] * count + [1.0]
    for i in range(count - 1, -1, -1):
        after[i] = sum(sizes[i, j] * after[j + 1] for j in range(i, count) if (i, j) in sizes)
    return before[count], {(i, j): before[i] * after[j + 1] for i, j in sizes}

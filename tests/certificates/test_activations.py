from __future__ import annotations

import pytest
import torch

from prunus.certificates.bounds.intervals import Range, Ranges
from prunus.certificates.bounds.lines import difference_lines, lines
from prunus.certificates.reading import activations
from prunus.operators import matrix_norm

PIECES = [
    activations.relu(),
    activations.leaky_relu(0.1),
    activations.leaky_relu(1.5),
    activations.leaky_relu(-0.3),
    activations.relu6(),
    activations.elu(),
    activations.elu(1.7),
    activations.silu(),
    activations.gelu(),
    activations.gelu("tanh"),
    activations.tanh(),
    activations.sigmoid(),
    activations.softplus(),
]
CASES = pytest.mark.parametrize("piece", PIECES, ids=lambda piece: f"{piece.kind}{piece.settings}")


def random_ranges(seed: int, count: int = 300) -> Range:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randn(2, count, dtype=torch.float64, generator=generator) * 3
    ends[:, :20] = ends[:, :20].round()  # some ends on kinks
    return Range(ends.amin(0)[None], ends.amax(0)[None])


def inside(part: Range, points: int = 200) -> torch.Tensor:
    steps = torch.linspace(0, 1, points, dtype=torch.float64)[:, None]
    return part.low + (part.high - part.low) * steps


@CASES
def test_values_slopes_and_lines_hold_everywhere(piece):
    part = random_ranges(1)
    grid = inside(part)
    values = piece.run(grid)
    low, high = piece.values(part.low, part.high)
    assert bool((values >= low - 1e-12).all())
    assert bool((values <= high + 1e-12).all())
    bottom, top = piece.slopes(part.low, part.high)
    moves = grid[1:] - grid[:-1]
    quotients = (values[1:] - values[:-1]) / moves.clamp_min(1e-300)
    wide = moves > 1e-6
    assert bool(((quotients >= bottom - 1e-6) | ~wide).all())
    assert bool(((quotients <= top + 1e-6) | ~wide).all())
    bounds = lines(piece, part)
    assert bool((bounds.low_slope * grid + bounds.low <= values + 1e-10).all())
    assert bool((bounds.high_slope * grid + bounds.high >= values - 1e-10).all())


@CASES
def test_the_lipschitz_constant_is_the_largest_slope(piece):
    grid = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    slope = ((piece.run(grid[1:]) - piece.run(grid[:-1])) / (grid[1] - grid[0])).abs().max()
    assert float(slope) <= piece.lipschitz * (1 + 1e-6)
    assert piece.lipschitz <= float(slope) * (1 + 1e-3)


@CASES
def test_lines_of_the_difference_hold(piece):
    generator = torch.Generator().manual_seed(7)
    original = random_ranges(2)
    change = Range(*(torch.randn(2, 1, 300, dtype=torch.float64, generator=generator).sort(0).values))
    pruned = Range(original.low + change.low, original.high + change.high)
    bounds = difference_lines(piece, Ranges(original, pruned, change))
    for _ in range(50):
        share = torch.rand(2, 1, 300, dtype=torch.float64, generator=generator)
        z = original.low + (original.high - original.low) * share[0]
        d = change.low + (change.high - change.low) * share[1]
        moved = piece.run(z + d) - piece.run(z)
        assert bool((bounds.low_slope * d + bounds.low <= moved + 1e-10).all())
        assert bool((bounds.high_slope * d + bounds.high >= moved - 1e-10).all())


def test_relu_is_exact_where_it_is_stable():
    part = Range(torch.tensor([[1.0, -3.0]]).double(), torch.tensor([[2.0, -1.0]]).double())
    bounds = lines(activations.relu(), part)
    assert bounds.gap.tolist() == [[0.0, 0.0]]
    assert bounds.low_slope.tolist() == bounds.high_slope.tolist() == [[1.0, 0.0]]


def test_softmax_jacobians_stay_below_one_half():
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        p = torch.softmax(torch.randn(6, dtype=torch.float64, generator=generator) * 3, 0)
        assert matrix_norm(torch.diag(p) - torch.outer(p, p)) <= 0.5

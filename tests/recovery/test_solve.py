"""One layer: every way to choose zeros keeps the pattern's counts, and the values are the optimum on them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from prunus.layers import prunable_weights
from prunus.pruning import patterns
from prunus.recovery._layer import aim, find, problem_for
from prunus.recovery._solve import Factors, Problem, alternate, damped, errors, optimum, sweep

PATTERNS = ("unstructured", "balanced:16", "2:4", "kernels", "blocks:4x4", "channels")


def moments(columns: int, places: int = 400, groups: int = 1, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    mix = torch.randn(groups, columns, columns, generator=source, dtype=torch.float64)
    inputs = (torch.randn(groups, places, columns, generator=source, dtype=torch.float64) @ mix).relu()
    return damped(inputs.transpose(1, 2) @ inputs / places, 0.01)


def layer(kind: str = "linear") -> nn.Module:
    torch.manual_seed(1)
    made = {
        "linear": lambda: nn.Linear(64, 24),
        "convolution": lambda: nn.Conv2d(16, 12, 3),
        "grouped": lambda: nn.Conv2d(32, 12, 3, groups=2),
        "transposed": lambda: nn.ConvTranspose2d(16, 12, 3),
    }
    return made[kind]()


def problem(kind: str, pattern: str, sparsity: float = 0.5) -> Problem:
    (weight,) = prunable_weights(layer(kind)).values()
    rows = weight.rows(weight.parameter.detach().double())
    groups = getattr(weight.module, "groups", 1)
    matrix = rows.reshape(groups, -1, rows[0].numel())
    return problem_for(
        weight, matrix, Factors(moments(matrix.shape[-1], groups=groups)), patterns.parse(pattern), sparsity
    )


def exact(task: Problem, mask: Tensor) -> Tensor:
    """The least-squares optimum, row by row with a direct solver."""
    found = torch.zeros_like(task.weight)
    for group, rows in enumerate(task.weight):
        for number, row in enumerate(rows):
            kept = mask[group, number].nonzero().squeeze(1)
            square = task.moments[group][kept][:, kept]
            found[group, number, kept] = torch.linalg.solve(square, task.moments[group][kept] @ row)
    return found


@pytest.mark.parametrize("kind", ["linear", "grouped"])
def test_the_optimum_is_the_one_a_direct_solver_finds(kind: str) -> None:
    task = problem(kind, "unstructured")
    mask = torch.rand(task.weight.shape, generator=torch.Generator().manual_seed(3)) < 0.4
    mask[0, 0] = False  # a row that loses everything
    found, best = optimum(task, mask, rounds=500), exact(task, mask)
    assert (found[~mask] == 0).all()
    torch.testing.assert_close(found, best, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", ["linear", "convolution", "grouped", "transposed"])
def test_found_masks_keep_the_counts_of_the_pattern_and_beat_magnitudes(kind: str, pattern: str) -> None:
    task = problem(kind, pattern)
    plain = task.choose(task.weight.square())
    mask, values = find(task, refine=30)
    assert mask.sum() == plain.sum()
    if task.banks:
        for start, length, lost in task.banks:
            assert ((~mask[..., start : start + length]).sum(-1) == lost).all()
    assert (values[~mask] == 0).all()
    assert errors(task, values).sum() <= errors(task, optimum(task, plain)).sum() * (1 + 1e-9)


def test_refinement_never_makes_the_error_larger() -> None:
    for pattern, sparsity in (("balanced:16", 0.7), ("2:4", 0.5), ("unstructured", 0.8)):
        task = problem("convolution", pattern, sparsity)
        first, refined = find(task, refine=0)[1], find(task, refine=60)[1]
        assert errors(task, refined).sum() <= errors(task, first).sum() * (1 + 1e-9)


def test_the_sweep_agrees_with_optimal_brain_surgeon_done_one_weight_at_a_time() -> None:
    """Banks of one row each: the textbook update with an inverse shrunk after every column (slow and obvious)."""
    task = problem("linear", "balanced:16", 0.5)
    weight, square = task.weight[0].clone(), task.moments[0]
    mask = torch.ones_like(weight, dtype=torch.bool)
    for start, length, lost in task.banks:
        pivots = torch.stack([torch.linalg.inv(square[j:, j:])[0, 0] for j in range(start, start + length)])
        scores = weight[:, start : start + length].square() / pivots
        mask[:, start : start + length].scatter_(1, scores.sort(dim=1, stable=True).indices[:, :lost], False)
        for column in range(start, start + length):
            inverse = torch.linalg.inv(square[column:, column:])
            gone = weight[:, column] * ~mask[:, column]
            weight[:, column:] -= (gone / inverse[0, 0]).unsqueeze(1) * inverse[0]
    found, values = sweep(task)
    assert torch.equal(found[0], mask)
    torch.testing.assert_close(values[0], weight * mask, rtol=1e-6, atol=1e-9)


def test_where_any_weight_may_go_the_sweep_chooses_block_by_block_on_the_values_of_its_turn() -> None:
    """Again one column at a time with inverses shrunk one by one; blocks of 24 of 64 columns, the last one short."""
    task = problem("linear", "unstructured", 0.7)
    weight, square = task.weight[0].clone(), task.moments[0]
    rows, columns = weight.shape
    mask, gone = torch.ones_like(weight, dtype=torch.bool), 0
    for begin in range(0, columns, 24):
        end = min(begin + 24, columns)
        pivots = torch.stack([torch.linalg.inv(square[j:, j:])[0, 0] for j in range(begin, end)])
        lost = round(0.7 * rows * end) - gone
        order = (weight[:, begin:end].square() / pivots).flatten().sort(stable=True).indices[:lost]
        mask[:, begin:end] = (
            torch.ones(rows * (end - begin), dtype=torch.bool).index_fill(0, order, False).view(rows, -1)
        )
        gone += lost
        for column in range(begin, end):
            inverse = torch.linalg.inv(square[column:, column:])
            weight[:, column:] -= (weight[:, column] * ~mask[:, column] / inverse[0, 0]).unsqueeze(1) * inverse[0]
    found, values = sweep(task, block=24)
    assert torch.equal(found[0], mask)
    assert int((~found).sum()) == task.drops
    torch.testing.assert_close(values[0], weight * mask, rtol=1e-6, atol=1e-9)


def test_alternation_finds_masks_as_good_as_the_best_of_all_masks_on_a_tiny_layer() -> None:
    """Six columns, two kept in each half: all 9 choices of every row are tried."""
    source = torch.Generator().manual_seed(5)
    weight = torch.randn(1, 40, 6, generator=source, dtype=torch.float64)
    square = moments(6, seed=6)

    def choose(scores: Tensor) -> Tensor:
        halves = scores.reshape(1, -1, 2, 3)
        lowest = halves.argmin(-1, keepdim=True)
        return torch.ones_like(halves, dtype=torch.bool).scatter_(-1, lowest, False).reshape(scores.shape)

    task = Problem(weight, Factors(square), choose, [(0, 3, 1), (3, 3, 1)], by_row=True)
    best = torch.full((1, 40), torch.inf, dtype=torch.float64)
    for first in range(3):
        for second in range(3, 6):
            mask = torch.ones_like(weight, dtype=torch.bool)
            mask[..., [first, second]] = False
            best = torch.minimum(best, errors(task, exact(task, mask)))
    reached = errors(task, find(task, refine=100)[1])
    assert (reached >= best * (1 - 1e-9)).all()
    assert reached.sum() <= 1.1 * best.sum()
    assert alternate(task, 100)[0].sum() == 160


def test_aiming_at_the_dense_outputs_is_the_regression_it_says() -> None:
    source = torch.Generator().manual_seed(7)
    x = torch.randn(500, 8, generator=source, dtype=torch.float64)
    z = x + 0.3 * torch.randn(500, 8, generator=source, dtype=torch.float64)
    weight = torch.randn(1, 3, 8, generator=source, dtype=torch.float64)
    own, cross = (z.T @ z / 500)[None], (x.T @ z / 500)[None]
    start = aim(weight, Factors(own), weight @ (cross - own))
    best = torch.linalg.lstsq(z, x @ weight[0].T).solution.T
    torch.testing.assert_close(start[0], best)
    torch.testing.assert_close(aim(weight, Factors(own), torch.zeros_like(weight)), weight)


def test_dead_columns_do_no_harm() -> None:
    square = torch.zeros(1, 8, 8, dtype=torch.float64)
    square[0, 0, 0] = 2.0
    task = Problem(
        torch.ones(1, 4, 8, dtype=torch.float64), Factors(damped(square, 0.01)), lambda s: s >= 0, [(0, 8, 4)], True
    )
    mask, values = find(task, refine=6)
    assert torch.isfinite(values).all()
    assert mask[..., 0].all()  # the one column that carries something stays
    nothing = Problem(task.weight, Factors(damped(torch.zeros_like(square), 0.01)), lambda s: s >= 0, [(0, 8, 4)], True)
    assert torch.isfinite(find(nothing, refine=6)[1]).all()


def test_moments_that_rounding_made_indefinite_are_damped_until_they_can_be_factored() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = 1e3 * torch.randn(64, generator=generator)
    samples = mean + 1e-3 * torch.randn(512, 64, generator=generator)  # hardly varies about its mean
    own = (samples.T @ samples / 512 - torch.outer(samples.mean(0), samples.mean(0))).unsqueeze(0)
    assert bool(torch.linalg.cholesky_ex(own).info > 0), "the plain difference of moments cannot be factored"
    made = damped(own, 1e-3)
    assert bool(torch.linalg.cholesky_ex(made).info == 0)
    fine = torch.eye(8).unsqueeze(0)
    assert torch.equal(damped(fine, 0.5), 1.5 * fine)


def test_conjugate_gradients_end_when_little_is_left_to_gain() -> None:
    task = problem("linear", "balanced:8")
    mask = task.choose(task.weight.square())
    whole, short = optimum(task, mask), optimum(task, mask, gain=1e-3)
    best, reached = float(errors(task, whole).sum()), float(errors(task, short).sum())
    assert not torch.equal(whole, short)
    assert best <= reached <= best * 1.05

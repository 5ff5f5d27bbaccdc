"""Checks that authors of scores and patterns can run on their code: does it keep the rules that all others keep?

`check_score(score)` and `check_pattern(pattern)` run every check on several kinds of layers and return the names of
those that passed; if any fails, one error lists them all.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from prunus.contract import Pattern, Score, ScoreContext, whole
from prunus.errors import BadInput, PrunusError, first_line
from prunus.layers import Weight, prunable_weights
from prunus.pruning import patterns, scores

Check = tuple[str, Callable[[], None]]


def check_score(score: str | Score) -> list[str]:
    """Run the battery on a score; returns the names of the checks, or raises with all that failed.

    Args:
        score: A score's name, or a function.

    Returns:
        The names of the checks that passed.

    Raises:
        BadInput: With all that failed.

    Example:
        >>> len(prunus.check_score("magnitude")) > 3
        True
    """
    rule = scores.parse(score)
    return _run(f"The score {rule.name!r}", _score_checks(rule))


def check_pattern(pattern: str | Pattern) -> list[str]:
    """Run the battery on a pattern; returns the names of the checks, or raises with all that failed.

    Args:
        pattern: A pattern's name or object.

    Returns:
        The names of the checks that passed.

    Raises:
        BadInput: With all that failed.

    Example:
        >>> len(prunus.check_pattern("balanced:16")) > 3
        True
    """
    parsed = patterns.parse(pattern)
    return _run(f"The pattern {parsed}", _pattern_checks(parsed))


def _run(subject: str, checks: Iterator[Check]) -> list[str]:
    passed, failed = [], []
    for name, check in checks:
        try:
            check()
        except (PrunusError, AssertionError) as error:
            failed.append(f"{name} ({str(error).rstrip('.')})" if str(error) else name)
        except Exception as error:  # whatever the code under test raises
            failed.append(f"{name} ({type(error).__name__}: {first_line(error).rstrip('.')})")
        else:
            passed.append(name)
    if failed:
        raise BadInput(f"{subject} fails {len(failed)} of {len(failed) + len(passed)} checks: {'; '.join(failed)}.")
    return passed


# -------------------------------------------------------------------------------------------------------------- scores


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.second(torch.relu(self.first(x))))


def _networks() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    def images(*layers: nn.Module, features: int) -> nn.Module:
        return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(features, 3))

    return {
        "linear": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), (8,)),
        "no bias": (lambda: nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 3)), (8,)),
        "convolution": (lambda: images(nn.Conv2d(4, 8, 3, padding=1), features=128), (4, 4, 4)),
        "grouped": (lambda: images(nn.Conv2d(4, 8, 3, padding=1, groups=2), features=128), (4, 4, 4)),
        "depthwise": (lambda: images(nn.Conv2d(4, 4, 3, padding=1, groups=4), features=64), (4, 4, 4)),
        "transposed": (lambda: images(nn.ConvTranspose2d(4, 6, 2, stride=2), features=384), (4, 4, 4)),
        "batch norm": (lambda: images(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), features=128), (4, 4, 4)),
        "tied": (_Tied, (8,)),
    }


def _context(network: str, seed: int = 0) -> ScoreContext:
    make, shape = _networks()[network]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        model = make()
        inputs = torch.randn(12, *shape)
    return ScoreContext(model, prunable_weights(model), (inputs, torch.arange(12) % 3), None, seed)


def _score_checks(rule: scores.ScoreRule) -> Iterator[Check]:
    for network in _networks():
        yield f"{network}: a finite tensor of the weight's shape for every weight", lambda n=network: _complete(rule, n)  # type: ignore[misc]
        yield f"{network}: the model is not touched", lambda n=network: _untouched(rule, n)  # type: ignore[misc]
        yield f"{network}: the same seed gives the same scores", lambda n=network: _repeatable(rule, n)  # type: ignore[misc]
        yield f"{network}: the global random state is left alone", lambda n=network: _own_randomness(rule, n)  # type: ignore[misc]
    yield "works inside torch.no_grad", lambda: _under_no_grad(rule)
    yield "a subset of the weights can be asked for", lambda: _subset(rule)


def _complete(rule: scores.ScoreRule, network: str) -> None:
    context = _context(network)
    found = rule(context)
    assert set(context.weights) <= set(found), "a weight has no score"
    for name, weight in context.weights.items():
        assert found[name].shape == weight.shape, f"the score of {name} has another shape than its weight"
        assert bool(torch.isfinite(found[name]).all()), f"the score of {name} is not finite"


def _untouched(rule: scores.ScoreRule, network: str) -> None:
    context = _context(network)
    state, mode = copy.deepcopy(context.model.state_dict()), [m.training for m in context.model.modules()]
    rule(context)
    for name, value in context.model.state_dict().items():
        assert torch.equal(value, state[name]), f"{name} has changed"
    assert all(parameter.grad is None for parameter in context.model.parameters()), "gradients are left behind"
    assert mode == [m.training for m in context.model.modules()], "train or eval mode has changed"
    assert not any(m._forward_hooks for m in context.model.modules()), "hooks are left behind"


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def _repeatable(rule: scores.ScoreRule, network: str) -> None:
    first, second = (dict(rule(_context(network, seed=5))) for _ in range(2))
    assert _same(first, second), "two runs with one seed differ"


def _own_randomness(rule: scores.ScoreRule, network: str) -> None:
    context = _context(network)
    before = torch.random.get_rng_state()
    rule(context)
    assert torch.equal(before, torch.random.get_rng_state()), "draws must come from context.generator()"


def _under_no_grad(rule: scores.ScoreRule) -> None:
    with torch.no_grad():
        blind = dict(rule(_context("linear")))
    assert _same(blind, dict(rule(_context("linear")))), "scores differ under torch.no_grad"


def _subset(rule: scores.ScoreRule) -> None:
    context = _context("linear")
    one = dict(list(context.weights.items())[1:])
    found = rule(ScoreContext(context.model, one, context.data, context.loss, context.seed))
    assert set(one) <= set(found), "the asked-for weight has no score"


# ------------------------------------------------------------------------------------------------------------ patterns


def _layers() -> dict[str, nn.Module]:
    return {
        "linear": nn.Linear(48, 20),
        "wide": nn.Linear(67, 5),
        "convolution": nn.Conv2d(32, 8, 3),
        "narrow stem": nn.Conv2d(8, 16, 3),
        "grouped": nn.Conv2d(64, 8, 3, groups=2),
        "transposed": nn.ConvTranspose2d(32, 6, 2),
        "1-d": nn.Conv1d(32, 6, 5),
        "one tap": nn.Conv2d(64, 4, 1),
    }


def _weight(layer: str) -> Weight:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return prunable_weights(nn.Sequential(_layers()[layer]))["0.weight"]


def _levels(pattern: Pattern) -> list[float]:
    fixed = patterns.fixed_sparsity(pattern)
    return [fixed] if fixed is not None else [0.0, 0.3, 0.5, 0.75, 0.9, 0.95]


def _scores_of(weight: Weight, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    normal = torch.randn(weight.shape, generator=generator)
    return {"normal": normal, "equal": torch.ones_like(normal), "signs": normal.sign(), "few": (normal * 2).round()}[
        kind
    ]


def _pattern_checks(pattern: Pattern) -> Iterator[Check]:
    for layer in _layers():
        yield f"{layer}: a boolean mask of the weight's shape", lambda n=layer: _mask_type(pattern, n)  # type: ignore[misc]
        yield f"{layer}: ties do not change the count", lambda n=layer: _tied_counts(pattern, n)  # type: ignore[misc]
        yield f"{layer}: masks of growing sparsity nest", lambda n=layer: _nested(pattern, n)  # type: ignore[misc]
        yield f"{layer}: close to the sparsity asked for", lambda n=layer: _near(pattern, n)  # type: ignore[misc]
        yield f"{layer}: magnitudes rank like absolute values", lambda n=layer: _magnitudes(pattern, n)  # type: ignore[misc]
    yield "units cover the weight", lambda: _units_cover(pattern)
    yield "scores are not changed", lambda: _scores_unchanged(pattern)
    yield "has a written form", lambda: _written(pattern)


def _mask_type(pattern: Pattern, layer: str) -> None:
    weight = _weight(layer)
    for level in _levels(pattern):
        mask = pattern.mask(_scores_of(weight, "normal"), weight, level)
        assert mask.dtype == torch.bool, "not boolean"
        assert mask.shape == weight.shape, "another shape"
        assert mask.is_contiguous(), "not contiguous"


def _tied_counts(pattern: Pattern, layer: str) -> None:
    weight = _weight(layer)
    for level in _levels(pattern):
        counts = {
            kind: int(pattern.mask(_scores_of(weight, kind), weight, level, absolute=True).count_nonzero())
            for kind in ("normal", "equal", "signs", "few")
        }
        slack = _partial_units(pattern, weight)
        assert max(counts.values()) - min(counts.values()) <= slack, f"counts {counts} at sparsity {level}"


def _partial_units(pattern: Pattern, weight: Weight) -> int:
    """Units at an edge may be smaller, so that equal numbers of units hold unequal numbers of weights."""
    units, size = pattern.units(_scores_of(weight, "normal"), weight)
    return units.numel() * size - weight.numel


def _nested(pattern: Pattern, layer: str) -> None:
    weight = _weight(layer)
    for kind in ("normal", "few"):
        values = _scores_of(weight, kind)
        masks = [pattern.mask(values, weight, level) for level in _levels(pattern)]
        assert all(bool((fine <= coarse).all()) for coarse, fine in itertools.pairwise(masks)), (
            "a dropped weight came back"
        )


def _near(pattern: Pattern, layer: str) -> None:
    weight = _weight(layer)
    _, size = pattern.units(_scores_of(weight, "normal"), weight)
    rows = weight.rows(weight.parameter).shape[0]
    for level in _levels(pattern):
        zeros = int((~pattern.mask(_scores_of(weight, "normal"), weight, level)).count_nonzero())
        slack = max(size * 1.0 + _partial_units(pattern, weight), rows * (2 + weight.numel / rows / 16))
        assert abs(zeros - whole(level, weight.numel)) <= slack, f"{zeros} zeros at sparsity {level}"


def _magnitudes(pattern: Pattern, layer: str) -> None:
    weight = _weight(layer)
    values = _scores_of(weight, "normal")
    for level in _levels(pattern):
        one = pattern.mask(values, weight, level, absolute=True)
        assert torch.equal(one, pattern.mask(values.abs(), weight, level)), f"differ at sparsity {level}"


def _units_cover(pattern: Pattern) -> None:
    for layer in _layers():
        weight = _weight(layer)
        units, size = pattern.units(_scores_of(weight, "normal"), weight)
        assert units.dim() == 1, f"{layer}: units are not a flat tensor"
        assert units.numel() * size >= weight.numel, f"{layer}: units x size is less than the weight"


def _scores_unchanged(pattern: Pattern) -> None:
    weight = _weight("linear")
    values = _scores_of(weight, "normal")
    before = values.clone()
    pattern.mask(values, weight, _levels(pattern)[-1], absolute=True)
    assert torch.equal(values, before)


def _written(pattern: Pattern) -> None:
    assert "object at" not in (str(pattern) or "object at"), "give it a __str__ that says what it is"

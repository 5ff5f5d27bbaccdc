"""Scores: how much each weight matters. Weights with higher scores are kept first.

A score is a function of a `ScoreContext` that returns a tensor for every weight. `register` makes one known by name:

    @prunus.scores.register("mine")
    def mine(context):
        return {name: weight.parameter.abs() for name, weight in context.weights.items()}
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import Dataset

from prunus._by_path import import_object, is_import_path
from prunus.adapters import Batch, batch_loss, batches, call, check_finite, main_output
from prunus.contract import Score, ScoreContext
from prunus.errors import BadInput
from prunus.layers import all_weights
from prunus.pruning._registry import Registry

__all__ = ["ScoreRule", "names", "needs_data", "parse", "register"]


@dataclasses.dataclass(frozen=True)
class ScoreRule:
    """A score and how to use it.

    `absolute`: rank by magnitude (the function may then return the weights themselves). `rounds`: prune in that many
    steps of geometrically falling density, scoring anew each time. `draws`: (wanted zeros, weights, generator) -> how
    many go, for schemes whose count is itself random. `needs_data`: it reads data. `within_rows`: weights are
    compared within an output row, not within a layer.

    Example:
        >>> rule = prunus.scores.parse("snip")
        >>> rule.name, rule.absolute, rule.needs_data
        ('snip', True, True)
    """

    name: str
    function: Score
    absolute: bool = False
    rounds: int = 1
    draws: Callable[[int, int, torch.Generator], int] | None = None
    needs_data: bool = False
    within_rows: bool = False

    def __call__(self, context: ScoreContext) -> Mapping[str, Tensor]:
        if self.needs_data and context.data is None:
            raise BadInput(
                f"The score {self.name!r} needs data: pass data=, a data set, a list of batches or a tensor (--data on "
                "the command line)."
            )
        with _undisturbed(context.model, context.seed):
            return self.function(context)


@contextlib.contextmanager
def _undisturbed(model: nn.Module, seed: int) -> Iterator[None]:
    """Running statistics and the global random state are afterwards what they were: scoring changes nothing."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)


_scores: Registry[ScoreRule] = Registry("score")


def register(
    name: str,
    *,
    absolute: bool = False,
    rounds: int = 1,
    draws: Callable[[int, int, torch.Generator], int] | None = None,
    needs_data: bool = False,
    within_rows: bool = False,
    replace: bool = False,
) -> Callable[[Score], Score]:
    """Decorator: make a score available under `name`.

    Args:
        name: what users write.
        absolute: rank by magnitude; the function may then return the weights themselves.
        rounds: prune in that many steps, scoring anew each time.
        draws: (wanted zeros, weights, generator) -> how many go, for schemes whose count is random.
        needs_data: the function reads `context.data`; commands then load the training set.
        within_rows: compare weights within an output row where the pattern leaves the choice.
        replace: allow a name that exists already.

    Returns:
        The decorator, which gives the function back.

    Raises:
        BadInput: if the name exists already.

    Example:
        >>> import prunus
        >>> @prunus.scores.register("square")
        ... def square(context):
        ...     return {name: weight.parameter.detach() ** 2 for name, weight in context.weights.items()}
        >>> "square" in prunus.scores.names()
        True
    """

    def add(function: Score) -> Score:
        rule = ScoreRule(name, function, absolute, rounds, draws, needs_data, within_rows)
        _scores.add(name, rule, replace=replace)
        return function

    return add


def needs_data(score: str | Score | ScoreRule) -> bool:
    """Whether a score needs data.

    Args:
        score: A name, a function, or a `ScoreRule`.

    Returns:
        True or False.

    Example:
        >>> needs_data("snip"), needs_data("magnitude")
        (True, False)
    """
    return parse(score).needs_data


def names() -> tuple[str, ...]:
    """The names of the scores.

    Returns:
        The names, in the order of their registration.

    Example:
        >>> "wanda" in names()
        True
    """
    return tuple(_scores)


def parse(score: str | Score | ScoreRule) -> ScoreRule:
    """A score as a `ScoreRule`.

    Args:
        score: A name, "package.module:function", a function of a `ScoreContext`, or a `ScoreRule`.

    Returns:
        The rule.

    Raises:
        UnknownName: There is no score of this name.
        BadInput: It is none of these, or cannot be imported.

    Example:
        >>> parse("wanda").within_rows
        True
    """
    if isinstance(score, str) and score not in tuple(_scores) and is_import_path(score):
        found = import_object(score, "score")
        return found if isinstance(found, ScoreRule) else dataclasses.replace(parse(found), name=score)
    if isinstance(score, str):
        return _scores[score]
    if isinstance(score, ScoreRule):
        return score
    if not callable(score):
        raise BadInput(f"A score is a name or a function of a ScoreContext, not {type(score).__name__}.")
    name = getattr(score, "__name__", "score")
    return ScoreRule(name, score, needs_data=bool(getattr(score, "needs_data", False)))


# ------------------------------------------------------------------------------------------------------- without data


@register("magnitude", absolute=True)
def magnitude(context: ScoreContext) -> dict[str, Tensor]:
    """|w|."""
    return {name: weight.parameter.detach() for name, weight in context.weights.items()}


@register("random")
def random(context: ScoreContext) -> dict[str, Tensor]:
    """A uniform draw: every set of zeros of the given count is equally likely (without replacement, ledger P-3)."""
    generator = context.generator()
    return {name: torch.rand(weight.shape, generator=generator) for name, weight in context.weights.items()}


def _distinct(draws: int, total: int, generator: torch.Generator) -> int:
    """How many different positions `draws` independent draws hit."""
    hits = torch.zeros(total, dtype=torch.bool)
    hits[torch.randint(total, (draws,), generator=generator)] = True
    return int(hits.count_nonzero())


@register("random-with-replacement", draws=_distinct)
def random_with_replacement(context: ScoreContext) -> Mapping[str, Tensor]:
    """Independent draws that may repeat, as in the closeness theorems: fewer zeros than asked for (ledger P-3).

    The zeros are a uniform set of a random size, D (1 - (1 - 1/D)^N) on average for N draws from D weights.
    """
    return random(context)


@register("synflow", rounds=100, needs_data=True)
def synflow(context: ScoreContext) -> dict[str, Tensor]:
    """|w dR/dw| with R the sum of outputs of the network of absolute weights on an input of ones (Tanaka et al., 2020).

    Reads only the shape of the data; pruned in 100 rounds.
    """
    model = copy.deepcopy(context.model).double().eval()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.abs_()
    batch = next(_batches(context))
    args = tuple(_ones(value) for value in batch.args)
    ones = Batch(args, {name: _ones(value) for name, value in batch.kwargs.items()})
    with torch.enable_grad():
        main_output(call(model, ones)).sum().backward()
    return {
        name: (weight.parameter * weight.parameter.grad).abs().detach() if weight.parameter.grad is not None
        else torch.zeros_like(weight.parameter)
        for name, weight in all_weights(model).items()
        if name in context.weights
    }  # fmt: skip


def _ones(value: Any) -> Any:
    """One sample of ones in place of numbers; token ids and masks stay."""
    if not isinstance(value, Tensor):
        return value
    return torch.ones_like(value[:1], dtype=torch.float64) if value.is_floating_point() else value[:1]


# ------------------------------------------------------------------------------------------------------------ with data


def _batches(context: ScoreContext) -> Iterator[Batch]:
    device = next((weight.parameter.device for weight in context.weights.values()), torch.device("cpu"))
    together = isinstance(context.data, (Tensor, np.ndarray, tuple, Mapping))  # tensors given whole are one batch
    size = sys.maxsize if together else 128
    for batch in batches(context.data, size, shuffle=isinstance(context.data, Dataset), seed=context.draw_seed(1)):
        yield check_finite(batch).to(device)


def _gradients(context: ScoreContext, score: str) -> list[Tensor | None]:
    """The weights' gradients on the first batch."""
    batch = next(_batches(context))
    if batch.labels is None:
        raise BadInput(f"The score {score!r} needs labels: pass data that give (inputs, labels).")
    with torch.enable_grad():
        value = batch_loss(context.model, batch, context.loss)
        parameters = [weight.parameter for weight in context.weights.values()]
        return list(torch.autograd.grad(value, parameters, allow_unused=True))


@register("snip", absolute=True, needs_data=True)
def snip(context: ScoreContext) -> dict[str, Tensor]:
    """|w dL/dw| on one batch (Lee et al., 2019)."""
    gradients = _gradients(context, "snip")
    return {
        name: torch.zeros_like(weight.parameter) if gradient is None else (weight.parameter * gradient).detach()
        for (name, weight), gradient in zip(context.weights.items(), gradients)
    }


GRASP_TEMPERATURE = 200.0
GRASP_SAMPLES = 10  # of every class


def _tempered(context: ScoreContext, batch: Batch) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The loss on outputs divided by GraSP's temperature; None leaves the loss to the model."""
    assert batch.labels is not None
    if context.loss is None and (batch.labels.ndim != 1 or batch.labels.is_floating_point()):
        return None
    loss = context.loss or nn.functional.cross_entropy
    return lambda outputs, labels: loss(outputs / GRASP_TEMPERATURE, labels)


def _class_balanced(context: ScoreContext) -> Batch:
    """Ten samples of every class of a data set, in random order by the seed; else the first batch as it is given."""
    found = _batches(context)
    first = next(found)
    if first.labels is None:
        raise BadInput("The score 'grasp' needs labels: pass data that give (inputs, labels).")
    if not isinstance(context.data, Dataset) or first.labels.ndim != 1 or first.labels.is_floating_point():
        return first
    with torch.no_grad():
        classes = main_output(call(context.model, first)).shape[-1]
    counts, parts = torch.zeros(classes, dtype=torch.long), []
    for batch in itertools.chain((first,), found):
        assert batch.labels is not None
        rows = []
        for row, label in enumerate(batch.labels.tolist()):
            if 0 <= label < classes and counts[label] < GRASP_SAMPLES:
                counts[label] += 1
                rows.append(row)
        parts.append(batch.rows(rows))
        if bool((counts == GRASP_SAMPLES).all()):
            break
    return Batch.joined(parts)


@register("grasp", needs_data=True)
def grasp(context: ScoreContext) -> dict[str, Tensor]:
    """w . (H g): what a weight adds to the flow of the gradient (Wang et al., 2020).

    As published: outputs divided by a temperature of 200 before the loss, and from a data set ten samples of every
    class. Tensors and batches that are given are taken as they are. A loss that the model computes itself over more
    than one label for each sample (a language model's) has no temperature.
    """
    batch = _class_balanced(context)
    parameters = [weight.parameter for weight in context.weights.values()]
    # The fused kernels of attention have no second derivative.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        value = batch_loss(context.model, batch, _tempered(context, batch))
        gradients = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
        parts = [(gradient * gradient.detach()).sum() for gradient in gradients if gradient is not None]
        flow = torch.stack([part.to(parts[0]) for part in parts]).sum()
        products = torch.autograd.grad(flow, parameters, allow_unused=True)
    return {
        name: torch.zeros_like(weight.parameter) if product is None else (weight.parameter * product).detach()
        for (name, weight), product in zip(context.weights.items(), products)
    }


@register("wanda", absolute=True, needs_data=True, within_rows=True)
def wanda(context: ScoreContext) -> dict[str, Tensor]:
    """|w| times the norm of the inputs it meets (Sun et al., 2024), from all the calibration data given.

    Weights are compared within an output row, as published, where the pattern leaves the choice.

    A weight whose inputs cannot be seen (inside fused attention) is scored by its magnitude and the mean input norm.
    """
    squares: dict[int, Tensor] = {}
    modules = {id(weight.module): weight.module for weight in context.weights.values()}
    handles = [module.register_forward_hook(_record_inputs(squares)) for module in modules.values()]
    try:
        with torch.no_grad():
            for batch in _batches(context):
                call(context.model, batch)
    finally:
        for handle in handles:
            handle.remove()
    scores = {}
    for name, weight in context.weights.items():
        norms = squares.get(id(weight.module))
        rows = weight.rows(weight.parameter.detach())
        groups = weight.groups
        if norms is not None and norms.numel() == rows.shape[2] * groups:
            per_row = norms.sqrt().reshape(groups, 1, 1, -1).expand(-1, rows.shape[0] // groups, 1, -1)
            rows = rows * per_row.reshape(rows.shape[0], 1, -1).to(rows.dtype)
        scores[name] = weight.unrows(rows)
    return scores


def _record_inputs(squares: dict[int, Tensor]) -> Callable[[nn.Module, Any, Any], None]:
    """Adds up the squares of each input channel over samples and positions."""

    def hook(module: nn.Module, inputs: Iterable[Any], _: Any) -> None:
        value = next((item for item in inputs if isinstance(item, Tensor)), None)
        if value is None or not value.is_floating_point():
            return
        axis = 1 if hasattr(module, "kernel_size") and value.dim() > 2 else value.dim() - 1
        others = [place for place in range(value.dim()) if place != axis]
        square = value.detach().double().square()
        square = square.sum(others) if others else square
        squares[id(module)] = squares.get(id(module), torch.zeros_like(square)) + square

    return hook

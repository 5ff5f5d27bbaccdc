"""How a cell's pruned network is made: the axis `method` of a study.

A method is one way to get from a dense network to a pruned one, perhaps followed by a distillation: "prune",
"reconstruct", "reconstruct+distil", "gradual", "imp", "iterand", "edge-popup", "gem-miner", "multicoated", "shrink".
`make` runs one; `METHODS` says what each needs, so that a grid leaves out combinations that do not exist, and says so.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from prunus.contract import Duration, Masks
from prunus.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from pathlib import Path

    from prunus.study.grid import Cell
    from prunus.training import FitConfig

DISTILLED = "+distil"
_SAVED = "1min"
"""How often a distillation keeps its state, for a study that is broken off."""
_LEFT_PER_ROUND = 0.8
"""Iterative magnitude pruning keeps about this share of the weights from one round to the next."""


@dataclass(frozen=True)
class Method:
    """One way to make a pruned network.

    Attributes:
        about: what it does, in a few words.
        score: the score it ranks weights by; empty where the study's axis `score` decides.
        patterns: the patterns it can make; empty for all.
    """

    about: str
    score: str = ""
    patterns: tuple[str, ...] = ()


METHODS = {
    "prune": Method("zeros by score, nothing adjusted"),
    "reconstruct": Method("zeros by second-order choice, what stays is adjusted on data", "second-order"),
    "gradual": Method("zeros grow while the network trains on, taught by the dense one"),
    "imp": Method("train, prune, rewind, again", "magnitude", ("unstructured",)),
    "iterand": Method("a subnetwork of random weights, some redrawn on the way", "learned", ("unstructured",)),
    "edge-popup": Method("a subnetwork of random weights", "learned", ("unstructured",)),
    "gem-miner": Method("a subnetwork of random weights, frozen step by step", "learned", ("unstructured",)),
    "multicoated": Method(
        "a subnetwork of random weights, the best counted more than once", "learned", ("unstructured",)
    ),
    "shrink": Method("channels and neurons removed: a smaller ordinary network", "reconstruction", ("channels",)),
}


@dataclass
class Made:
    """A pruned network, its masks, and notes on how it was made.

    `smaller`: an ordinary network of fewer channels, with tensors of other shapes than the dense one's; the masks then
    say which weights of the dense one are gone.
    """

    model: nn.Module
    masks: Masks
    smaller: bool = False
    record: dict[str, Any] = field(default_factory=dict)


def parse(name: str) -> tuple[str, bool]:
    """A method's name as its first step and whether a distillation follows: "distil" alone prunes first."""
    first = "prune" if name == "distil" else name.removesuffix(DISTILLED)
    if first not in METHODS:
        raise UnknownName("method of a study", name, (*METHODS, "distil", f"reconstruct{DISTILLED}"))
    return first, name == "distil" or name.endswith(DISTILLED)


def score_of(method: str, score: str) -> str:
    """The score a cell of this method ranks by: its own where it has one, else the one the study asks for."""
    return METHODS[parse(method)[0]].score or score


def misfit(method: str, pattern: str) -> str:
    """Why a method cannot make a pattern, in one sentence; empty where it can."""
    allowed = METHODS[parse(method)[0]].patterns
    if not allowed or pattern in allowed:
        return ""
    return f"{method} makes {' and '.join(allowed)} masks only: {pattern} is left out for it."


def make(cell: Cell, dense: nn.Module, train: Any, state: Path | None = None) -> Made:
    """The pruned network of a cell. `dense` is not touched.

    Args:
        cell: what is asked for.
        dense: the trained network; tickets and iterative pruning start from new weights of the same kind instead.
        train: the training part of the cell's data.
        state: a folder of this cell's own; where it was broken off, reconstruction and distillation go on from there.

    Returns:
        The network with zeros in place, in eval mode, and its masks.

    Raises:
        BadInput: a method, pattern and sparsity that do not go together.
    """
    first, distilled = parse(cell.method)
    reason = misfit(cell.method, cell.pattern)
    if reason:
        raise BadInput(reason)
    ways: dict[str, Callable[[Cell, nn.Module, Any], Made]] = {
        "prune": _prune,
        "reconstruct": functools.partial(_reconstruct, state=state),
        "gradual": _gradual,
        "imp": _imp,
        "iterand": _ticket,
        "edge-popup": _ticket,
        "gem-miner": _ticket,
        "multicoated": _ticket,
        "shrink": _shrink,
    }
    made = ways[first](cell, dense, train)
    if distilled:
        from prunus.settings.training import DISTILLING
        from prunus.training import distil

        length = cell.settings.distil
        config = _config(cell, cell.settings.finetune_lr, salt=2).replace(clip=DISTILLING.clip)
        if state is not None:
            config = config.replace(folder=state / "distil", every=_SAVED, keep=1, resume=True)
        masks = None if made.smaller else made.masks
        distil(made.model, dense, train, length=length, masks=masks, config=config)
    made.model.eval()
    return made


def _prune(cell: Cell, dense: nn.Module, train: Any) -> Made:
    from prunus.study.measure import masks_of

    masks = masks_of(cell, dense)
    return Made(masks.apply_(copy.deepcopy(dense)), masks)


def _reconstruct(cell: Cell, dense: nn.Module, train: Any, state: Path | None) -> Made:
    from prunus.recovery import ReconstructOptions, reconstruct

    model, settings = copy.deepcopy(dense), cell.settings
    masks = reconstruct(
        model,
        cell.sparsity,
        train,
        pattern=cell.pattern,
        allocation=settings.allocation,
        exclude=settings.exclude,
        samples=settings.samples,
        seed=cell.seed,
        options=ReconstructOptions(folder=None if state is None else state / "reconstruct"),
    )
    return Made(model, masks, record={"layer_errors": masks.notes.get("layers")})


def _gradual(cell: Cell, dense: nn.Module, train: Any) -> Made:
    from prunus.training import GradualOptions, prune_gradually

    model, settings = copy.deepcopy(dense), cell.settings
    options = GradualOptions(score=cell.score, allocation=settings.allocation, exclude=settings.exclude)
    config = _config(cell, settings.finetune_lr, salt=3).replace(distill_from=dense)
    masks = prune_gradually(
        model, train, cell.sparsity, cell.pattern, length=settings.gradual, config=config, options=options
    )
    return Made(model, masks)


def _imp(cell: Cell, dense: nn.Module, train: Any) -> Made:
    from prunus.study.networks import build
    from prunus.training import ImpOptions, imp

    rounds, fraction = imp_rounds(cell.sparsity)
    allocation = "global" if cell.settings.allocation == "global" else "uniform"
    options = ImpOptions(allocation=allocation, exclude=cell.settings.exclude)
    config = _config(cell, cell.settings.lr)
    level = imp(build(cell), train, rounds, fraction, length=cell.settings.length, config=config, options=options)[-1]
    return Made(level.model, level.masks, record={"rounds": rounds})


def imp_rounds(sparsity: float) -> tuple[int, float]:
    """How many rounds of iterative pruning reach a sparsity, and the share each removes: about a fifth of what is left.

    Example:
        >>> imp_rounds(0.5)
        (3, 0.2062994740159002)
    """
    rounds = max(1, round(math.log(1 - sparsity) / math.log(_LEFT_PER_ROUND)))
    return rounds, 1 - (1 - sparsity) ** (1 / rounds)


def _ticket(cell: Cell, dense: nn.Module, train: Any) -> Made:
    from prunus.study.networks import build
    from prunus.training import find_ticket

    settings = cell.settings
    per_epoch = math.ceil(len(train) / settings.batch_size)
    total = Duration.parse(settings.length).steps(per_epoch)
    ticket = find_ticket(
        build(cell),
        train,
        method=parse(cell.method)[0],
        sparsity=cell.sparsity,
        period=max(1, min(300, total // 12)),
        length=settings.length,
        config=_config(cell, 0.3),
        exclude=settings.exclude,
    )
    return Made(ticket.model, ticket.masks, record={"events": ticket.record.get("events")})


def _shrink(cell: Cell, dense: nn.Module, train: Any) -> Made:
    """A network with 1 - sparsity of the multiply-adds."""
    from prunus.structure import find_removal
    from prunus.study.networks import drawn, first_inputs

    data = drawn(train, cell.settings.samples)
    example = first_inputs(train, 1)
    removal = find_removal(
        dense, 1 - cell.sparsity, example=example, data=data, exclude=cell.settings.exclude, seed=cell.seed
    )
    return Made(removal.apply(), removal.masks, smaller=True, record={"multiply_adds": removal.share})


def _config(cell: Cell, lr: float, salt: int = 0) -> FitConfig:
    from prunus.training import FitConfig

    settings = cell.settings
    return FitConfig(
        optimizer=settings.optimizer,
        lr=lr,
        batch_size=settings.batch_size,
        augment=settings.augment,
        seed=cell.seed + salt,
        progress=False,
    )

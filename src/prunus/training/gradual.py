"""Masks that change during training: gradual pruning, and regrowth at constant sparsity (SET, RigL).

All three are one callback: at an update it asks `find_masks` for new masks under the current sparsity, with what is
gone ranked last (so masks nest) or, when regrowing, with a part of what is kept given up and the same number grown
elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from prunus.contract import Duration, Masks, Pattern, Score, ScoreContext, check_sparsity
from prunus.errors import BadInput, UnknownName
from prunus.pruning import find_masks, patterns, scores
from prunus.settings.training import FitConfig
from prunus.training import distributed
from prunus.training.batches import derive, generator
from prunus.training.history import Callback
from prunus.training.loop import Run, require_filled
from prunus.training.ramps import Ramp

if TYPE_CHECKING:
    from prunus.pruning.scores import ScoreRule

REGROWTHS = ("set", "rigl")


@dataclass(frozen=True)
class Regrowth:
    """Give up a part of the kept weights at each update and grow as many elsewhere, starting from zero.

    Attributes:
        rule: "set" grows at random (Mocanu et al. 2018), "rigl" where the gradient is largest (Evci et al. 2020).
        fraction: The part given up at first; it falls to zero with a cosine until `end`.
        every: How often.
        end: When it stops; None means after three quarters of the run.

    Example:
        >>> regrowth = prunus.training.Regrowth("set", fraction=0.2, every="10it", end="100it")
        >>> [round(regrowth.part(step, total=200, per_epoch=50), 3) for step in (5, 10, 50, 100)]
        [0.0, 0.195, 0.1, 0.0]
    """

    rule: str = "rigl"
    fraction: float = 0.3
    every: str = "100it"
    end: str | None = None

    def __post_init__(self) -> None:
        if self.rule not in REGROWTHS:
            raise UnknownName("rule of regrowth", self.rule, REGROWTHS)
        if not 0.0 < self.fraction < 1.0:
            raise BadInput(f"fraction is {self.fraction!r}; the part of weights given up must lie in (0, 1).")
        for text in (self.every, *((self.end,) if self.end is not None else ())):
            Duration.parse(text)

    def part(self, step: int, total: int, per_epoch: int) -> float:
        """The part given up at `step`; 0 where no update is due.

        Args:
            step: number of the step.
            total: steps of the run.
            per_epoch: steps of an epoch.

        Returns:
            The share of the kept weights.
        """
        every = max(1, Duration.parse(self.every).steps(per_epoch))
        end = 3 * total // 4 if self.end is None else Duration.parse(self.end).steps(per_epoch)
        if step == 0 or step % every or step >= end:
            return 0.0
        return 0.5 * self.fraction * (1.0 + math.cos(math.pi * step / end))


@dataclass(frozen=True)
class GradualOptions:
    """What else decides the masks of `prune_gradually`.

    Attributes:
        score: What ranks the weights, by name or as a function.
        allocation: How the sparsity is spread over the layers.
        exclude: Names and globs that are never pruned.
        regrow: A `Regrowth`, or None.

    Example:
        >>> options = prunus.training.GradualOptions(allocation="erk", regrow=prunus.training.Regrowth("set"))
        >>> options.score, options.regrow.fraction
        ('magnitude', 0.3)
    """

    score: str | Score = "magnitude"
    allocation: str = "uniform"
    exclude: tuple[str, ...] = ()
    regrow: Regrowth | None = None


class Growing(Callback):
    """Masks that follow a ramp, and regrow where asked. `masks` are the current ones."""

    name = "gradual"

    def __init__(self, sparsity: float, pattern: Pattern, ramp: Ramp, options: GradualOptions, seed: int = 0) -> None:
        self.final, self.pattern, self.ramp, self.options, self.seed = sparsity, pattern, ramp, options, seed
        self.rule: ScoreRule = scores.parse(options.score)
        self.masks: Masks | None = None
        self.level = -1.0
        self.updates = 0

    def start(self, run: Run) -> None:
        self.ramp.bounds(run.total, run.per_epoch)
        if self.masks is not None:
            run.set_masks(self.masks)

    def before_step(self, run: Run) -> None:
        self.update(run, run.step)

    def after_step(self, run: Run) -> None:
        if run.step + 1 == run.total:  # a ramp may end with the run
            self.update(run, run.total)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"level": self.level, "updates": self.updates}
        return state | {f"mask/{name}": mask for name, mask in (self.masks or {}).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.level, self.updates = state["level"], state["updates"]
        found = {name.removeprefix("mask/"): mask for name, mask in state.items() if name.startswith("mask/")}
        self.masks = Masks.adopt(found) if found else None

    # ---------------------------------------------------------------------------------------------------------- update

    def update(self, run: Run, step: int) -> None:
        """New masks where the ramp or the regrowth asks for them."""
        level = self.ramp.at(self.final, step, run.total, run.per_epoch)
        regrow = self.options.regrow
        part = regrow.part(step, run.total, run.per_epoch) if regrow is not None and step < run.total else 0.0
        if level != self.level:
            self.masks = self._shrunk(run, level)
        if part and self.masks is not None:
            self.masks = self._exchanged(run, level, part)
        if level != self.level or part:
            self.level = level
            self.updates += 1
            assert self.masks is not None
            clear_state(run.optimizer, self.masks, run.model)
            run.set_masks(self.masks)

    def _find(self, run: Run, level: float, score: Score, beyond: bool = False) -> Masks:
        shape, level = at_level(self.pattern, level, beyond)
        return find_masks(
            run.model,
            level,
            score=score,
            pattern=shape,
            allocation=self.options.allocation,
            exclude=self.options.exclude,
            data=run.data,
            seed=derive(self.seed, "masks", run.step) >> 32,
        )

    def _shrunk(self, run: Run, level: float, beyond: bool = False) -> Masks:
        """Masks at `level` inside the present ones; `beyond` the pattern's own sparsity where weights are given up."""
        old = self.masks

        def score(context: ScoreContext) -> Mapping[str, Tensor]:
            ranked = {n: v.detach().abs() if self.rule.absolute else v.detach() for n, v in self.rule(context).items()}
            if old is None:
                return ranked
            return {n: v.masked_fill(~old[n].to(v.device), -math.inf) for n, v in ranked.items()}

        found = self._find(run, level, score, beyond)
        return found if old is None else found & old

    def _exchanged(self, run: Run, level: float, part: float) -> Masks:
        """Masks of the same sparsity after giving up `part` of the kept weights and growing as many."""
        assert self.options.regrow is not None
        kept = self._shrunk(run, 1.0 - (1.0 - level) * (1.0 - part), beyond=True)
        if self.options.regrow.rule == "set":
            wish = {
                n: torch.rand(m.shape, generator=generator(self.seed, "grow", run.step, n)) for n, m in kept.items()
            }
        else:
            wish = gradient_sizes(run, kept)

        def score(context: ScoreContext) -> Mapping[str, Tensor]:
            return {n: wish[n].to(m.device).masked_fill(m, math.inf) for n, m in kept.items()}

        return self._find(run, level, score)


def at_level(pattern: Pattern, level: float, beyond: bool = False) -> tuple[Pattern, float]:
    """The pattern to ask for at `level`. N:M has one sparsity only: on the way it keeps more of every M.

    With `beyond` fewer than N may be kept, at least one less while one is left to keep.
    """
    if isinstance(pattern, patterns.NM):
        room = round((1.0 - level) * pattern.m, 9)
        kept = max(1, math.ceil(room) - 1) if beyond else min(pattern.m, max(pattern.n, math.ceil(room)))
        return patterns.NM(kept, pattern.m), 1.0 - kept / pattern.m
    return pattern, level


def gradient_sizes(run: Run, masks: Masks) -> dict[str, Tensor]:
    """|gradient| of every masked weight on the coming batch, dropped ones included; nothing is left behind."""
    if run.hold is not None:
        run.hold.remove()
    buffers = [(buffer, buffer.clone()) for buffer in run.model.buffers()]
    inputs, labels, share = next(run.batches.from_step(run.step, run.rank, run.world))
    run.model.zero_grad(set_to_none=True)
    if len(labels):
        whole, _, _ = run.objective(inputs.to(run.device), labels.to(run.device))
        (whole * share).backward()
    if run.world > 1:
        distributed.sum_gradients(p for p in run.model.parameters() if p.requires_grad)
    named = masks.parameters_of(run.model)
    found = {n: torch.zeros_like(p) if p.grad is None else p.grad.detach().abs() for n, p in named.items()}
    run.model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    return found


def clear_state(optimizer: torch.optim.Optimizer, masks: Masks, model: nn.Module) -> None:
    """Momenta of dropped weights are forgotten: one that grows again starts afresh."""
    with torch.no_grad():
        for name, parameter in masks.parameters_of(model).items():
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.masked_fill_(~masks[name].to(value.device), 0.0)


def prune_gradually(
    model: nn.Module,
    data: Dataset[Any],
    sparsity: float,
    pattern: str | Pattern = "unstructured",
    schedule: str | Ramp = "cubic",
    length: str | Duration = "10ep",
    *,
    config: FitConfig | None = None,
    options: GradualOptions | None = None,
    test: Dataset[Any] | None = None,
) -> Masks:
    """Train `model` in place while its masks grow to `sparsity`.

    The masks of one update contain those of the next. With `pattern="balanced:B"` this is the balance-aware
    procedure of the balanced sparsity paper (Yao et al. 2019).

    Args:
        model: Any module; it is trained, and obeys the final masks.
        data: A data set of (input, label) pairs.
        sparsity: Final fraction of zeros.
        pattern: Which sets of zeros are allowed.
        schedule: "linear", "cubic", "constant" (pruned from the first step: use it with regrowth), or a `Ramp`.
        length: How long to train, such as "20ep" or "5000it".
        config: How to train.
        options: The score, the allocation, what is never pruned, regrowth.
        test: A data set to measure on after every epoch.

    Returns:
        The final masks; `masks.notes["history"]` holds the records of the run.

    Raises:
        BadInput: The sparsity, the pattern and the options do not fit each other or the model.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.arange(32) % 4)
        >>> model = prunus.models.make("fc:8-16-4", seed=0)
        >>> prunus.training.prune_gradually(model, data, 0.75, length="4ep").sparsity
        0.75
    """
    config, options = config or FitConfig(), options or GradualOptions()
    check_sparsity(sparsity)
    ramp = schedule if isinstance(schedule, Ramp) else Ramp(schedule, every="1ep" if schedule != "constant" else "1it")
    shape = patterns.parse(pattern)
    fixed = patterns.fixed_sparsity(shape)
    if fixed is not None and abs(sparsity - fixed) > 1e-9:
        raise BadInput(f"{shape} has the sparsity {fixed:g}, not {sparsity:g}: ask for that one.")
    _check_masks(model, sparsity, shape, options)
    growing = Growing(sparsity, shape, ramp, options, config.seed)
    about = {"sparsity": sparsity, "pattern": str(shape), "ramp": repr(ramp), "gradual": _said(options), "masks": None}
    run = Run(model, data, length, config, test=test, callbacks=[growing], about=about)
    if run.total < 1:
        raise BadInput(f"Masks grow during training, but length={length!r} has no step: give at least '1it'.")
    history = run.train()
    assert growing.masks is not None
    growing.masks.apply_(model)
    notes = {"from": "prune_gradually", **about, "updates": growing.updates, "history": history.to_dicts()}
    del notes["masks"]
    return Masks(growing.masks, notes)


def _check_masks(model: nn.Module, sparsity: float, shape: Pattern, options: GradualOptions) -> None:
    """Refuse before the first step what could only fail later."""
    if isinstance(shape, patterns.NM):
        if options.allocation != "uniform":
            raise BadInput(f"{shape} keeps the same share everywhere: use allocation='uniform' with it.")
        if options.regrow is not None and shape.n == 1:
            raise BadInput(f"{shape} has one weight to keep and none to exchange: regrow with 2:{2 * shape.m} instead.")
    level = at_level(shape, sparsity)
    found = find_masks(model, level[1], pattern=level[0], allocation=options.allocation, exclude=options.exclude)
    require_filled(found)


def _said(options: GradualOptions) -> str:
    return repr(options) if isinstance(options.score, str) else repr(options.allocation)

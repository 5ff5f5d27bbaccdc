"""Edge-popup and IteRand (ledger I-2, I-4): frozen random weights, trained scores, masks from the scores.

What Gem-Miner and multicoated masks do otherwise is in `supermasks.py`.

The model's parameters hold the effective weights w * m, so the forward and backward passes are those of the plain
model. The gradient that arrives there, dL/d(w m), gives that of the scores by the straight-through rule,
dL/ds = dL/d(w m) * w, for pruned entries too; the optimizer then moves the scores alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from prunus.contract import Masks, check_sparsity, whole
from prunus.errors import BadInput, RunFailed, UnknownName
from prunus.layers import Weight
from prunus.models import fans, fill_
from prunus.select import drop_smallest
from prunus.training.batches import generator
from prunus.training.history import Callback
from prunus.training.ramps import Ramp

if TYPE_CHECKING:
    from prunus.training.loop import Run

METHODS = ("edge-popup", "iterand", "gem-miner", "multicoated")
RANKINGS = ("signed", "absolute")
COUNTINGS = ("exact", "iterand", "hidden-networks")
SCORE_INITS = ("kaiming", "narrow")
COATINGS = ("uniform", "linear")
REDRAWS = ("signed_constant", "kaiming_uniform", "kaiming_normal", "initial")


@dataclass(frozen=True)
class TicketOptions:
    """The finer points of a search for a ticket; the defaults are those of IteRand with exact counts.

    Attributes:
        weights: Redraw the model's weights first from this distribution ("signed_constant", "kaiming_uniform", ...)
            and the run's seed; None takes them as they are.
        redraw: What IteRand draws new values from; None finds it out: a layer with a single magnitude is a signed
            constant, one that fits U(+-sqrt(6/fan_in)) is Kaiming uniform, any other is drawn from its own initial
            values ("initial").
        ranking: Keep the largest scores ("signed", IteRand) or the largest magnitudes ("absolute", hidden-networks).
        score_init: U(+-sqrt(6/fan_in)) ("kaiming") or U(+-1/sqrt(fan_in)) ("narrow", hidden-networks).
        counting: Prune round(p n) of n, ties by position ("exact"), or as the authors' codes do: round(p (n - 1))
            with all ties kept ("iterand"), int(p n) ("hidden-networks").
        allocation: "uniform" (each layer the same sparsity), "erk", or "global" (one threshold over all scores).
        ramp: Sparsity over time.
        biases: Set to zero, as in the papers, unless "keep".
        l1: Weight of the sum of Gem-Miner's scores beside the loss; that of their squares is half the configuration's
            `weight_decay`.
        restore: Gem-Miner leaves weights out by rounding beside those it froze: at the end they come back, for exactly
            the sparsity asked for, unless False.
        coats: How many masks "multicoated" adds up; one is edge-popup.
        coating: Each coat keeps the same number fewer than the one below ("uniform"), or thresholds lie at equal steps
            between the score that just stays and the largest ("linear").

    Example:
        >>> options = prunus.training.TicketOptions(weights="signed_constant", allocation="erk")
        >>> options.ranking, options.counting
        ('signed', 'exact')
    """

    weights: str | None = None
    redraw: str | None = None
    ranking: str = "signed"
    score_init: str = "kaiming"
    counting: str = "exact"
    allocation: str = "uniform"
    ramp: Ramp = field(default_factory=lambda: Ramp("constant"))
    biases: str = "zero"
    # Not in the repr, which runs that were started before these existed must agree on; `Popup.about` has them.
    l1: float = field(default=0.0, repr=False)
    restore: bool = field(default=True, repr=False)
    coats: int = field(default=3, repr=False)
    coating: str = field(default="uniform", repr=False)

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("ranking", self.ranking, RANKINGS),
            ("counting", self.counting, COUNTINGS),
            ("score initialisation", self.score_init, SCORE_INITS),
            ("allocation for tickets", self.allocation, ("uniform", "erk", "global")),
            ("treatment of biases", self.biases, ("zero", "keep")),
            ("distribution to redraw from", self.redraw or "initial", REDRAWS),
            ("coating", self.coating, COATINGS),
        ):
            if name not in known:
                raise UnknownName(kind, name, known)
        if self.allocation == "global" and self.counting == "iterand":
            raise BadInput("counting='iterand' is defined layer by layer: use it with allocation='uniform'.")
        if isinstance(self.coats, bool) or not isinstance(self.coats, int) or not 1 <= self.coats <= 255:
            raise BadInput(f"coats is {self.coats!r}; it counts masks that are added up and lies between 1 and 255.")
        if isinstance(self.l1, bool) or not isinstance(self.l1, (int, float)) or not 0.0 <= self.l1 < math.inf:
            raise BadInput(f"l1 is {self.l1!r}; it weighs the sum of the scores and must be 0 or a positive number.")


def number_pruned(total: int, sparsity: float, counting: str = "exact") -> int:
    """How many of `total` scores go at `sparsity`, by the three countings of I-2 (where no scores are equal)."""
    if counting == "iterand":
        return round(sparsity * (total - 1))
    if counting == "hidden-networks":
        return int(sparsity * total)
    return whole(sparsity, total)


def mask_of(scores: Tensor, sparsity: float, ranking: str = "signed", counting: str = "exact") -> Tensor:
    """True for the scores that stay."""
    count = number_pruned(scores.numel(), sparsity, counting)
    if counting != "iterand":
        return drop_smallest(scores, count, absolute=ranking == "absolute")
    key = scores.abs() if ranking == "absolute" else scores
    return key >= key.reshape(-1).kthvalue(count + 1).values


def redraw_of(values: Tensor, fan_in: int) -> str:
    """The distribution a layer's weights seem to be drawn from; see `TicketOptions.redraw`."""
    if values.numel() and bool((values.abs() == values.abs().reshape(-1)[0]).all()):
        return "signed_constant"
    bound, variance = math.sqrt(6.0 / fan_in), 2.0 / fan_in
    # Six standard deviations of the variance of n uniform draws: variance * sqrt(0.8 / n).
    spread = 6.0 * variance * math.sqrt(0.8 / values.numel())
    fits = abs(float(values.double().square().mean()) - variance) <= spread
    # The largest of n such draws is nearer to the bound than this but for once in three thousand times.
    least = bound * (1.0 - min(1.0, 8.0 / values.numel()))
    largest = float(values.abs().max())
    return "kaiming_uniform" if fits and least <= largest <= bound * (1 + 1e-6) else "initial"


class Popup(Callback):
    """Scores, frozen weights and masks of a search. `period` None is edge-popup."""

    name = "popup"

    def __init__(
        self,
        weights: Mapping[str, Weight],
        levels: Mapping[str, float],
        seed: int,
        options: TicketOptions,
        period: int | None = None,
        rate: float = 0.0,
    ) -> None:
        self.weights, self.levels, self.seed, self.options = dict(weights), dict(levels), seed, options
        self.period, self.rate = period, rate
        self.frozen = {name: weight.parameter.detach().clone() for name, weight in weights.items()}
        self.scores: dict[str, nn.Parameter] = {}
        self.masks: dict[str, Tensor] = {}
        self.coats: dict[str, Tensor] = {}
        self.fans = {name: fans(weight.module, weight.parameter)[0] for name, weight in weights.items()}
        self.events = 0
        for name, weight in weights.items():
            start = torch.empty(weight.shape).uniform_(
                *self.score_range(name), generator=generator(seed, "scores", name)
            )
            self.scores[name] = nn.Parameter(start.to(weight.parameter))
        self.redraw = {name: options.redraw or redraw_of(w, self.fans[name]) for name, w in self.frozen.items()}
        if period is None:
            self.redraw = {}
        self.pools = {name: self.frozen[name].clone() for name, kind in self.redraw.items() if kind == "initial"}
        self._check_levels()

    @property
    def sparsity(self) -> float:
        return Masks.adopt(self.masks).sparsity

    def about(self) -> dict[str, Any]:
        """The settings that a resumed search must share."""
        return {"period": self.period, "rate": self.rate if self.period else None}

    def found(self) -> dict[str, Any]:
        """Numbers about the search for the ticket's record."""
        return {"events": self.events}

    def score_range(self, name: str) -> tuple[float, float]:
        """Initial scores are uniform in it."""
        bound = math.sqrt((6.0 if self.options.score_init == "kaiming" else 1.0) / self.fans[name])
        return -bound, bound

    def check_length(self, total: int) -> None:
        """Refuse a search of `total` steps that is too short for the method."""

    def _check_levels(self) -> None:
        for name, level in self.levels.items():
            total = self.weights[name].numel
            if number_pruned(total, check_sparsity(level), self.options.counting) >= total:
                raise BadInput(f"Sparsity {level:g} would prune all {total} weights of {name}: choose a lower one.")

    # -------------------------------------------------------------------------------------------------------- callback

    def start(self, run: Run) -> None:
        self.refresh(run.step, run.total, run.per_epoch)

    def before_step(self, run: Run) -> None:
        if self.period is not None and (run.step + 1) % self.period == 0:
            self.rerandomise(run.step)

    @torch.no_grad()
    def after_backward(self, run: Run) -> None:
        for name, weight in self.weights.items():
            gradient, scores = weight.parameter.grad, self.scores[name]
            if gradient is not None:
                scores.grad = gradient.mul_(self.frozen[name])
                if self.options.ranking == "absolute":
                    scores.grad.mul_(scores.sign())
                weight.parameter.grad = None

    def after_step(self, run: Run) -> None:
        for name, scores in self.scores.items():
            if not torch.isfinite(scores.detach().sum()):
                run.fail(f"The scores of {name} became infinite or NaN")
        self.refresh(run.step + 1, run.total, run.per_epoch)

    def epoch_end(self, run: Run, record: Any) -> None:
        self.require_filled(self.masks, run.step)

    def require_filled(self, masks: Mapping[str, Tensor], step: int, remedy: str = "allocation='uniform'") -> None:
        for name, mask in masks.items():
            if not bool(mask.any()):
                raise RunFailed(f"No weight of {name} is left at step {step}: use {remedy}, or a lower sparsity.")

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """The tensors of a checkpoint."""
        return {"score": self.scores, "weight": self.frozen, "pool": self.pools}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"events": self.events}
        for kind, tensors in self.parts().items():
            state |= {f"{kind}/{name}": tensor for name, tensor in tensors.items()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.events = state["events"]
        for kind, tensors in self.parts().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[f"{kind}/{name}"])

    # ----------------------------------------------------------------------------------------------------------- masks

    @torch.no_grad()
    def refresh(self, step: int = 0, total: int = 1, per_epoch: int = 1) -> None:
        """Masks from the scores as they are, and the effective weights from the masks."""
        self.masks = self.choose(step, total, per_epoch)
        for name, weight in self.weights.items():
            value = self.value(name)  # where, not a product: a negative weight times zero would leave -0.0
            torch.where(self.masks[name], value, value.new_zeros(()), out=weight.parameter.data)

    def choose(self, step: int, total: int, per_epoch: int) -> dict[str, Tensor]:
        """The masks at `step`."""
        start, share = self.options.ramp.start, self.options.ramp.share(step, total, per_epoch)
        return self.select(
            {n: min(start, level) + share * (level - min(start, level)) for n, level in self.levels.items()}
        )

    def value(self, name: str) -> Tensor:
        """What the weights that stay are in the forward pass."""
        return self.frozen[name]

    def select(self, levels: Mapping[str, float], keys: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """True for the largest `keys`, the scores unless given, at these sparsities, by layer or over all."""
        options, keys = self.options, keys or {name: scores.detach() for name, scores in self.scores.items()}
        if options.allocation != "global":
            return {name: mask_of(key, levels[name], options.ranking, options.counting) for name, key in keys.items()}
        sizes = {name: weight.numel for name, weight in self.weights.items()}
        count = whole(sum(levels[n] * size for n, size in sizes.items()) / sum(sizes.values()), sum(sizes.values()))
        return dict(zip(keys, drop_smallest(list(keys.values()), count, absolute=options.ranking == "absolute")))

    @torch.no_grad()
    def rerandomise(self, step: int) -> None:
        """Draw a Bernoulli(`rate`) part of the pruned weights anew. Kept weights, scores and momenta are untouched."""
        self.events += 1
        for name, frozen in self.frozen.items():
            source = generator(self.seed, "rerandomise", step, name)
            chosen = torch.empty(frozen.shape).bernoulli_(self.rate, generator=source).bool().to(frozen.device)
            chosen.logical_and_(self.masks[name].logical_not())
            frozen.copy_(torch.where(chosen, self._fresh(name, source), frozen))

    def _fresh(self, name: str, source: torch.Generator) -> Tensor:
        frozen, kind = self.frozen[name], self.redraw[name]
        if kind == "initial":
            pool = self.pools[name].reshape(-1)
            return pool[torch.randint(pool.numel(), frozen.shape, generator=source).to(pool.device)]
        if kind == "signed_constant" and self.options.redraw is None:
            constant = frozen.reshape(-1)[:1].abs()
            heads = torch.empty(frozen.shape).bernoulli_(0.5, generator=source).bool().to(frozen.device)
            return torch.where(heads, constant, -constant)
        fresh = torch.empty(frozen.shape)
        return fill_(fresh, kind, fan_in=self.fans[name], generator=source).to(frozen)

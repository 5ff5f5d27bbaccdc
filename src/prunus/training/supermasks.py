"""Gem-Miner and multicoated supermasks: two other ways from trained scores to the masks of frozen random weights.

Both are edge-popup (`Popup`) but for what is written here: the range of the scores, how masks come from them, and what
the straight-through rule makes of the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prunus.errors import BadInput
from prunus.layers import Weight
from prunus.training.popup import Popup, TicketOptions

if TYPE_CHECKING:
    from prunus.training.loop import Run


def searcher(
    method: str,
    weights: Mapping[str, Weight],
    levels: Mapping[str, float],
    seed: int,
    options: TicketOptions,
    period: int,
    rate: float,
) -> Popup:
    """The callback that searches by `method`."""
    if method == "gem-miner":
        return GemMiner(weights, levels, seed, options, period)
    if method == "multicoated":
        return Multicoated(weights, levels, seed, options)
    return Popup(weights, levels, seed, options, period if method == "iterand" else None, rate)


class GemMiner(Popup):
    """Scores p in [0, 1] (Sreenivasan et al. 2022, algorithm 1): a weight takes part where p >= 1/2 and it is alive.

    Every `every` steps the smallest living scores are frozen at zero, for good, as many as leave the share
    (1 - sparsity)^(e / E) of all weights alive after e of E freezes. The gradient of a living score is
    dL/d(w m) * w + l1; a frozen one has none.
    """

    def __init__(
        self,
        weights: Mapping[str, Weight],
        levels: Mapping[str, float],
        seed: int,
        options: TicketOptions,
        every: int,
    ) -> None:
        if options.ranking != "signed" or options.counting != "exact" or options.ramp.shape != "constant":
            raise BadInput(
                "gem-miner ranks by value, counts exactly and has its own ramp: leave ranking, counting and ramp as "
                "they are."
            )
        super().__init__(weights, levels, seed, options)
        self.every, self.restored = every, 0
        self.alive = {name: torch.ones_like(scores, dtype=torch.bool) for name, scores in self.scores.items()}

    def about(self) -> dict[str, Any]:
        return {"period": self.every, "rate": None, "l1": self.options.l1, "restore": self.options.restore}

    def found(self) -> dict[str, Any]:
        return {"events": self.events, "restored": self.restored}

    def score_range(self, name: str) -> tuple[float, float]:
        return 0.0, 1.0

    def check_length(self, total: int) -> None:
        if total <= self.every:
            raise BadInput(
                f"gem-miner would freeze nothing: its period is {self.every} steps and the search has {total}; choose "
                "a period of about a twelfth of the search."
            )

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        return {**super().parts(), "alive": self.alive}

    @torch.no_grad()
    def after_backward(self, run: Run) -> None:
        super().after_backward(run)
        for name, scores in self.scores.items():
            if scores.grad is not None:
                scores.grad.add_(self.options.l1).mul_(self.alive[name])

    def epoch_end(self, run: Run, record: Any) -> None:
        self.require_filled(self.alive, run.step)
        if run.step == run.total:
            self.require_filled(self.masks, run.step, "a smaller weight_decay or l1, restore=True")

    @torch.no_grad()
    def choose(self, step: int, total: int, per_epoch: int) -> dict[str, Tensor]:
        for name, scores in self.scores.items():
            scores.clamp_(0.0, 1.0).mul_(self.alive[name])
        if step and step % self.every == 0 and step < total:
            self.freeze(step // self.every, (total - 1) // self.every)
        on = {name: (scores.detach() >= 0.5) & self.alive[name] for name, scores in self.scores.items()}
        if step < total or not self.options.restore:
            return on
        self.restored = sum(int((self.alive[name] & ~mask).sum()) for name, mask in on.items())
        return dict(self.alive)

    def freeze(self, event: int, last: int) -> None:
        """Freeze down to the number of living weights that belongs to this event; again changes nothing."""
        self.events = event
        levels = {n: p if event == last else 1.0 - (1.0 - p) ** (event / last) for n, p in self.levels.items()}
        keys = {n: torch.where(self.alive[n], s.detach(), s.new_full((), -1.0)) for n, s in self.scores.items()}
        self.alive = self.select(levels, keys)
        for name, scores in self.scores.items():
            scores.mul_(self.alive[name])


class Multicoated(Popup):
    """Several masks of the same scores, each inside the one before, added up (Okoshi et al. 2022).

    A weight counts as often as there are coats that keep it. The first coat has the sparsity asked for. Every coat
    passes the gradient straight on, so with N of them dL/ds = N * dL/d(w m) * w.
    """

    def about(self) -> dict[str, Any]:
        return {**super().about(), "coats": self.options.coats, "coating": self.options.coating}

    @torch.no_grad()
    def after_backward(self, run: Run) -> None:
        super().after_backward(run)
        for scores in self.scores.values():
            if scores.grad is not None:
                scores.grad.mul_(self.options.coats)

    def choose(self, step: int, total: int, per_epoch: int) -> dict[str, Tensor]:
        masks, count = super().choose(step, total, per_epoch), self.options.coats
        self.coats = {name: mask.to(torch.uint8) for name, mask in masks.items()}
        density = {name: int(mask.sum()) / mask.numel() for name, mask in masks.items()}
        for coat in range(1, count):
            if self.options.coating == "linear":
                inner = self._equally_spaced(masks, coat / count)
            else:
                inner = self.select({name: 1.0 - d * (count - coat) / count for name, d in density.items()})
            for name, mask in inner.items():
                self.coats[name] += mask & masks[name]
        return masks

    def value(self, name: str) -> Tensor:
        return self.frozen[name] * self.coats[name]

    def _equally_spaced(self, masks: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
        """Scores at least this share of the way from the smallest that is kept to the largest."""
        absolute = self.options.ranking == "absolute"
        keys = {n: scores.detach().abs() if absolute else scores.detach() for n, scores in self.scores.items()}
        kept = {name: key[masks[name]] for name, key in keys.items()}
        if self.options.allocation == "global":
            together = torch.cat(list(kept.values()))
            kept = dict.fromkeys(kept, together)
        low = {name: values.min() + share * (values.max() - values.min()) for name, values in kept.items()}
        return {name: key >= low[name] for name, key in keys.items()}

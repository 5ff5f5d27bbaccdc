"""Training: the plain loop with resume, tickets of random weights, iterative magnitude pruning, gradual pruning.

    history = prunus.training.fit(model, train, length="20ep", test=test)
    history[-1].test_accuracy

Every run is the same loop with other callbacks; see `loop.py`, which is short.
"""

from __future__ import annotations

from prunus.settings.training import FitConfig, Schedule
from prunus.training._recipes import Recipe, recipe, recipes
from prunus.training.distillation import DistilOptions, distil
from prunus.training.gradual import GradualOptions, Regrowth, prune_gradually
from prunus.training.history import Callback, History, Record
from prunus.training.integrations import Growth, lightning_callback, trainer_callback
from prunus.training.loop import Run, fit
from prunus.training.lottery import ImpOptions, Level, imp, random_ticket
from prunus.training.metrics import embed, perplexity, spearman
from prunus.training.objective import accuracy, evaluate
from prunus.training.popup import TicketOptions
from prunus.training.ramps import Ramp
from prunus.training.rescaling import recalibrate, rescaled
from prunus.training.tickets import Ticket, find_ticket

__all__ = [
    "Callback",
    "DistilOptions",
    "FitConfig",
    "GradualOptions",
    "Growth",
    "History",
    "ImpOptions",
    "Level",
    "Ramp",
    "Recipe",
    "Record",
    "Regrowth",
    "Run",
    "Schedule",
    "Ticket",
    "TicketOptions",
    "accuracy",
    "distil",
    "embed",
    "evaluate",
    "find_ticket",
    "fit",
    "imp",
    "lightning_callback",
    "perplexity",
    "prune_gradually",
    "random_ticket",
    "recalibrate",
    "recipe",
    "recipes",
    "rescaled",
    "spearman",
    "trainer_callback",
]

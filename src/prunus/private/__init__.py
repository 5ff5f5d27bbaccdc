"""Private sparsification: send only some coordinates of a gradient, chosen at random around the largest.

    mech = prunus.private.NoisyTopK(k=0.01, theta=2.64)
    kept = mech.select(gradient)
    print(mech.privacy(d=gradient.numel()))      # both readings, and what is not covered

Data-parallel and federated training, DP-SGD on kept coordinates and an audit build on it.
"""

from __future__ import annotations

from prunus.private import federated
from prunus.private.accounting import Accountant, BudgetSpent, Meter, Release, noise_for_budget
from prunus.private.ddp import ddp_hook
from prunus.private.dpsgd import PrivateOptions, PrivateTraining, make_private
from prunus.private.index_mechanism import Rounded
from prunus.private.mechanism import NoisyTopK, TwoLevelTopK
from prunus.private.policies import Falling, WarmUp
from prunus.private.privacy import Privacy
from prunus.private.value_noise import ValueNoise

__all__ = [
    "Accountant",
    "BudgetSpent",
    "Falling",
    "Meter",
    "NoisyTopK",
    "Privacy",
    "PrivateOptions",
    "PrivateTraining",
    "Release",
    "Rounded",
    "TwoLevelTopK",
    "ValueNoise",
    "WarmUp",
    "ddp_hook",
    "federated",
    "make_private",
    "noise_for_budget",
]

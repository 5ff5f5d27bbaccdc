"""DP-SGD on kept coordinates (as in a public implementation, N-14, N-15), on Opacus's per-example gradients.

    private = make_private(model, optimizer, loader, NoisyTopK.from_local_epsilon(0.1, 1e-3, d),
                           noise_multiplier=1.1, clip=1.0, options=PrivateOptions(epsilon=3.0))
    for inputs, labels in private.loader: ...      # the usual loop with private.model and private.optimizer
    private.optimizer.epsilon                      # spent

The unit of privacy is one training record (add or remove); the trainer is trusted, masks and weights after every
step are public.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from prunus.errors import BadInput, MissingExtra
from prunus.private.accounting import Meter
from prunus.private.policies import Falling, Keep, Policy, WarmUp, policy_for

UNIT = "one training record, added or removed (trusted trainer)"


@dataclass(frozen=True)
class PrivateOptions:
    """Budget and details of `make_private`.

    epsilon, delta: the budget; a step that would pass it raises `BudgetSpent` before anything is released.
    group: draw masks in groups of so many coordinates (256 is in use); None ranks all of them together.
    swaps: count the indices as if one record moved at most so many of them. This is metric privacy: an assumption that
        nothing enforces, not a guarantee. None makes none.
    poisson: sample batches as the accounting assumes; False keeps the loader's own and gives up amplification.
    insecure_seed: repeatable masks and noise, for tests; gives no privacy.

    Example:
        >>> options = prunus.private.PrivateOptions(epsilon=3.0, delta=1e-5)
        >>> options.epsilon, options.poisson
        (3.0, True)
    """

    epsilon: float = math.inf
    delta: float = 1e-5
    group: int | None = None
    swaps: int | None = None
    poisson: bool = True
    insecure_seed: int | None = None


class PrivateTraining(NamedTuple):
    """The wrapped parts, to be used as usual.

    Example:
        >>> records = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
        >>> net = torch.nn.Linear(8, 2)
        >>> parts = net, torch.optim.SGD(net.parameters(), lr=0.1), torch.utils.data.DataLoader(records, 8)
        >>> found = prunus.private.make_private(*parts, "random", noise_multiplier=1.0, clip=1.0, keep=0.5)
        >>> for x, y in found.loader:
        ...     found.optimizer.zero_grad()
        ...     torch.nn.functional.cross_entropy(found.model(x), y).backward()
        ...     _ = found.optimizer.step()
        >>> found.optimizer.epsilon > 0
        True
    """

    model: nn.Module
    optimizer: Any
    loader: Any


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any,
    mech: Any,
    *,
    noise_multiplier: float,
    clip: float,
    keep: float | Falling | Keep | None = None,
    options: PrivateOptions | None = None,
) -> PrivateTraining:
    """Turn a model, an optimizer and a loader into private ones that update only some coordinates at each step.

    Args:
        model: its layers must be ones that Opacus knows; it is wrapped.
        optimizer: holds all trained parameters of the model, in the model's order; it is wrapped.
        loader: a `DataLoader` over the training records.
        mech: what chooses the coordinates: `NoisyTopK` or `TwoLevelTopK` (k a fraction), "random", `Masks`, a `WarmUp`,
            or "dense".
        noise_multiplier: standard deviation of the noise over `clip`.
        clip: largest 2-norm of a masked per-example gradient.
        keep: the share kept, constant or by step (`Falling(0.1, steps)`); the mechanism's own k without it.
        options: the budget and details; without it there is no budget.

    Returns:
        The wrapped model, optimizer and loader.

    Raises:
        BadInput: A number is out of its range, or the optimizer does not hold the model's parameters.

    Example:
        >>> records = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
        >>> model = prunus.models.make("fc:8-4-2", seed=0)
        >>> parts = model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(records, 8)
        >>> mech = prunus.private.NoisyTopK(k=0.5, theta=1.0)
        >>> trained = prunus.private.make_private(*parts, mech, noise_multiplier=1.0, clip=1.0)
        >>> len(trained.loader)
        4
    """
    options = options or PrivateOptions()
    if not (isinstance(noise_multiplier, (int, float)) and 0.0 <= noise_multiplier < math.inf):
        raise BadInput(f"noise_multiplier must be a finite number of at least 0, got {noise_multiplier!r}.")
    if not (isinstance(clip, (int, float)) and 0.0 < clip < math.inf):
        raise BadInput(f"clip must be a finite number above 0, got {clip!r}.")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    policy = policy_for(mech, dict(trained), options.group, options.swaps, options.insecure_seed)
    schedule = _schedule(keep, policy)
    engine, masked = _opacus()
    generator = None
    if options.insecure_seed is not None:
        generator = torch.Generator().manual_seed(options.insecure_seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        wrapped, dense, sampled = engine(accountant="rdp").make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=noise_multiplier,
            max_grad_norm=clip,
            poisson_sampling=options.poisson,
            noise_generator=generator,
        )
    order = [id(p) for p in dense.params]
    if order != [id(p) for p in trained.values()]:
        raise BadInput("The optimizer must hold all trained parameters of the model, in the model's order.")
    private = masked(
        dense.original_optimizer,
        policy,
        schedule,
        Meter(options.epsilon, options.delta),
        noise_multiplier=noise_multiplier,
        max_grad_norm=clip,
        expected_batch_size=dense.expected_batch_size,
        generator=generator,
        sampling=1.0 / len(loader) if options.poisson else 1.0,
        scheduled=callable(keep),
    )
    return PrivateTraining(wrapped, private, sampled)


def _schedule(keep: float | Falling | Keep | None, policy: Policy) -> Keep:
    if keep is None:
        return lambda step: policy.k
    if callable(keep):
        return keep
    share = float(keep)
    if not 0.0 < share <= 1.0:
        raise BadInput(f"keep must be a fraction in (0, 1], got {keep!r}.")
    return lambda step: share


def _opacus() -> tuple[Any, Any]:
    try:
        from opacus import PrivacyEngine
    except ImportError:
        raise MissingExtra("opacus", "dp", "DP-SGD with per-example gradients") from None
    from prunus.private._opacus import MaskedOptimizer

    return PrivacyEngine, MaskedOptimizer


__all__ = ["Falling", "PrivateOptions", "PrivateTraining", "WarmUp", "make_private"]

"""`find_ticket`: a subnetwork of random weights, found rather than trained; and the file it is kept in."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from prunus._maskfile import pack_bits, unpack_bits
from prunus.contract import Duration, Masks, check_sparsity
from prunus.errors import BadFile, BadInput, UnknownName, first_line
from prunus.layers import Weight, load_state_tensors, prunable_weights, state_tensors
from prunus.models import initialise
from prunus.pruning import find_masks
from prunus.settings.training import FitConfig
from prunus.storage import digest
from prunus.training.batches import derive
from prunus.training.checkpoints import read, write
from prunus.training.history import History
from prunus.training.loop import Run
from prunus.training.popup import METHODS, TicketOptions
from prunus.training.supermasks import searcher

FORMAT = "ticket"
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


@dataclass
class Ticket:
    """What a search for a ticket found.

    Attributes:
        model: The model with zeros in place.
        masks: Its masks.
        history: The records of the search.
        method: "edge-popup", "iterand", "gem-miner" or "multicoated".
        record: How it was found.
        weights: The distribution that the weights were drawn from, where they can be drawn again.
        weights_seed: The seed of that draw, with `TicketOptions(weights=...)`, except for IteRand; else None.
        coats: For "multicoated" the factor of each weight, 0 where it is masked, else from 1 up; else empty.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.arange(16) % 4)
        >>> model = prunus.models.make("fc:8-16-4", seed=0)
        >>> ticket = prunus.training.find_ticket(model, data, "edge-popup", length="1ep")
        >>> ticket.save("ticket.safetensors")
        >>> prunus.training.Ticket.load("ticket.safetensors", model).masks.sparsity
        0.5
    """

    model: nn.Module
    masks: Masks
    history: History
    method: str
    record: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    weights_seed: int | None = None
    coats: dict[str, Tensor] = field(default_factory=dict)

    def save(self, path: str | Path, with_weights: bool | None = None) -> None:
        """One file. Without `with_weights` the masked weights are left out where a seed can bring them back.

        The seed's file holds one bit per masked weight, all that is not masked, and a hash of the weights: random
        streams are not promised across torch versions, so loading verifies it. Of several coats each is a mask of bits.

        Args:
            path: where it goes.
            with_weights: True writes all weights, False none that a seed can bring back; None takes the smaller form
                that exists.

        Raises:
            BadInput: if the weights are to be left out and no seed can bring them back.
        """
        if with_weights is False and self.weights_seed is None:
            raise BadInput(
                "This ticket's weights cannot be drawn again from a seed (that needs another "
                "method than iterand, and TicketOptions(weights='signed_constant')): save it with its weights."
            )
        whole = self.weights_seed is None if with_weights is None else with_weights
        state = state_tensors(self.model)
        tensors = {f"mask/{name}": pack_bits(mask) for name, mask in self.masks.items()}
        most = max((int(count.max()) for count in self.coats.values()), default=1)
        for coat in range(1, most):
            tensors |= {f"coat/{coat}/{name}": pack_bits(count > coat) for name, count in self.coats.items()}
        tensors |= {f"state/{name}": value for name, value in state.items() if whole or name not in self.masks}
        record = {
            "method": self.method,
            "record": self.record,
            "history": self.history.to_dicts(),
            "weights": None if whole else self.weights,
            "weights_seed": None if whole else self.weights_seed,
            "weights_hash": digest({name: state[name] for name in self.masks}),
            "coats": most if self.coats else 0,
            "shapes": {name: list(mask.shape) for name, mask in self.masks.items()},
        }
        write(Path(path), tensors, record, FORMAT)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> Ticket:
        """Read a ticket into a copy of `model`, which gives the architecture; its weights do not matter.

        Args:
            path: a file that `save` wrote.
            model: a model of the same architecture; it is left as it is.

        Returns:
            The ticket.

        Raises:
            BadFile: if the file is damaged or of another kind.
        """
        tensors, record = read(Path(path), FORMAT)
        try:
            return cls._restored(path, tensors, record, model)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadFile(f"{path} is damaged: its parts do not fit together ({first_line(error)}).") from None

    @classmethod
    def _restored(
        cls, path: str | Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], model: nn.Module
    ) -> Ticket:
        copied = copy.deepcopy(model)
        bits: dict[str, list[Tensor]] = {
            n: [
                unpack_bits(Path(path), n, tensors[f"coat/{i}/{n}" if i else f"mask/{n}"], shape)
                for i in range(max(1, record.get("coats", 0)))
            ]
            for n, shape in record["shapes"].items()
        }
        masks = Masks.adopt({n: coats[0] for n, coats in bits.items()})
        masks.parameters_of(copied)
        coats = (
            {n: torch.stack(each).sum(0, dtype=torch.uint8) for n, each in bits.items()} if record.get("coats") else {}
        )
        if record["weights_seed"] is not None:
            initialise(copied, record["weights"], seed=record["weights_seed"])
            with torch.no_grad():
                for name, count in coats.items():
                    copied.get_parameter(name).mul_(count)
        state = {name.removeprefix("state/"): value for name, value in tensors.items() if name.startswith("state/")}
        own = state_tensors(copied)
        wrong = [n for n, value in state.items() if n not in own or own[n].shape != value.shape]
        if wrong or set(own) - set(state) - (set(masks) if record["weights_seed"] is not None else set()):
            raise BadFile(f"{path} is the ticket of another model: build the model it was found in.")
        load_state_tensors(copied, {**own, **state})
        masks.apply_(copied)
        if digest({name: copied.state_dict()[name] for name in masks}) != record["weights_hash"]:
            raise BadFile(
                f"The seed in {path} gives other weights with torch {torch.__version__} than those the ticket was "
                "found in: use the version that wrote it, or a ticket saved with its weights."
            )
        history = History.from_dicts(record["history"])
        drawn = (record["weights"], record["weights_seed"])
        return cls(copied, masks, history, record["method"], record["record"], *drawn, coats)


def find_ticket(
    model: nn.Module,
    data: Dataset[Any],
    method: str = "iterand",
    sparsity: float | Mapping[str, float] = 0.5,
    period: int = 300,
    rate: float = 0.1,
    length: str | Duration = "100ep",
    test: Dataset[Any] | None = None,
    *,
    config: FitConfig | None = None,
    options: TicketOptions | None = None,
    exclude: Iterable[str] = (),
    seed: int | None = None,
) -> Ticket:
    """Search a subnetwork in random weights: the scores are trained, the weights never.

    Biases are zero, norms do not learn; excluded layers stay random and dense.

    Args:
        model: Any module; it is not touched.
        data: A data set of (input, label) pairs.
        method: "edge-popup" (Ramanujan et al. 2020), "iterand" (Chijiwa et al. 2021), "gem-miner" (Sreenivasan et al.
            2022) or "multicoated" (Okoshi et al. 2022).
        sparsity: Fraction pruned, one for all layers or by layer ({layer: fraction}).
        period: Steps after which "iterand" draws pruned weights anew, and "gem-miner" freezes more of them.
        rate: The part of them that is drawn anew, each with this probability.
        length: How long to search, such as "20ep" or "5000it".
        test: A data set to measure on after every epoch.
        config: How to train the scores; SGD with lr 0.3, momentum 0.9, weight decay 1e-4 and a cosine per epoch unless
            given (ledger I-5, I-14).
        options: The finer points.
        exclude: Names and globs that are not pruned.
        seed: Seed of the search, in place of the configuration's.

    Returns:
        The `Ticket`.

    Raises:
        BadInput: The sparsity, the period or the rate lies outside its range.
        UnknownName: There is no such method.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.arange(16) % 4)
        >>> ticket = prunus.training.find_ticket(prunus.models.make("fc:8-16-4", seed=0), data, length="2ep", seed=0)
        >>> ticket.method, ticket.masks.sparsity, len(ticket.history)
        ('iterand', 0.5, 2)
    """
    config, options = config or FitConfig(lr=0.3, schedule="cosine-epoch"), options or TicketOptions()
    if seed is not None:
        config = config.replace(seed=seed)
    if method not in METHODS:
        raise UnknownName("way to find a ticket", method, METHODS)
    _check_events(method, period, rate)
    copied = copy.deepcopy(model)
    weights_seed = derive(config.seed, "weights") >> 1
    if options.weights is not None:
        initialise(copied, options.weights, seed=weights_seed)
    weights, levels = _targets(copied, sparsity, options, exclude)
    wanted = freeze(copied, weights, options.biases)
    popup = searcher(method, weights, levels, config.seed, options, period, rate)
    about = {
        "method": method,
        "sparsity": sparsity if isinstance(sparsity, (int, float)) else dict(sparsity),
        **popup.about(),
        "options": repr(options),
        "layers": sorted(weights),
    }
    scores = list(popup.scores.values())
    run = Run(copied, data, length, config, test=test, parameters=scores, callbacks=[popup], about=about)
    popup.check_length(run.total)
    history = run.train()
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(wanted[name])
        parameter.grad = None
    record = {**about, "length": str(Duration.parse(length)), **popup.found(), "config": config.record()}
    masks = Masks.adopt(popup.masks, {"from": method, "sparsity": about["sparsity"]})
    drawn = weights_seed if options.weights is not None and method != "iterand" else None
    law = options.weights if drawn is not None else None
    return Ticket(copied, masks, history, method, record, law, drawn, dict(popup.coats))


def freeze(model: nn.Module, weights: Mapping[str, Weight], biases: str = "zero") -> dict[str, bool]:
    """Let gradients flow to `weights` only, zero biases, make norms neutral; returns what required a gradient."""
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    chosen = {id(weight.parameter) for weight in weights.values()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in chosen)
    if biases == "zero":
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, _NORMS):
                    if module.weight is not None:
                        module.weight.fill_(1.0)
                    if module.bias is not None:
                        module.bias.zero_()
                elif any(weight.module is module for weight in weights.values()):
                    for name, parameter in module.named_parameters(recurse=False):
                        if "bias" in name:
                            parameter.zero_()
    return wanted


def _check_events(method: str, period: int, rate: float) -> None:
    what = {"iterand": "redraws", "gem-miner": "freezes"}.get(method)
    if what and (isinstance(period, bool) or not isinstance(period, int) or period < 1):
        raise BadInput(f"period is {period!r}; it counts steps between two {what} and must be at least 1.")
    if method == "iterand" and not 0.0 <= rate <= 1.0:
        raise BadInput(f"rate is {rate!r}; it is the part of the pruned weights that is redrawn and lies in [0, 1].")


def _targets(
    model: nn.Module, sparsity: float | Mapping[str, float], options: TicketOptions, exclude: Iterable[str]
) -> tuple[dict[str, Weight], dict[str, float]]:
    """The weights to mask and the sparsity of each."""
    plain = not isinstance(sparsity, Mapping)
    if plain:
        check_sparsity(sparsity)
    elif options.allocation != "uniform":
        raise BadInput(f"Sparsities by layer leave nothing to allocation={options.allocation!r}: use 'uniform'.")
    allocation = "erk" if options.allocation == "erk" else "uniform"
    asked = find_masks(model, sparsity, score="random", allocation=allocation, exclude=exclude)
    every = prunable_weights(model)
    weights = {name: every[name] for name in asked}
    if plain and allocation == "uniform":
        return weights, dict.fromkeys(weights, float(sparsity))  # type: ignore[arg-type]
    return weights, {row.name: row.sparsity for row in asked.layers}

"""`prunus train`: train a network, plainly or with held, growing or rewound masks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import data_pair
from prunus.cli._training import Place, configure, print_presets, processes, show_run, training_flags
from prunus.cli.options import Data, DataDir, Exclude, Json, Pattern, Seed, Weights, flags_of
from prunus.cli.options import flags as flags_from
from prunus.settings.training import FitConfig

METHODS = ("dense", "random", "snip", "grasp", "synflow", "magnitude", "gradual", "set", "rigl", "imp")


@dataclass
class Pruning:
    """What is pruned, when, and how."""

    method: Annotated[
        str,
        Parameter(
            help="dense; random, snip, grasp, synflow or magnitude masks before training; gradual, set or rigl masks "
            "during it; imp, in rounds with rewinding."
        ),
    ] = "dense"
    sparsity: Annotated[float, Parameter(help="Fraction of zeros at the end, in [0, 1).")] = 0.9
    pattern: Pattern = "unstructured"
    allocation: Annotated[
        str | None, Parameter(help="uniform, global, erk or lamp; imp is global unless told, the others uniform.")
    ] = None
    ramp: Annotated[str, Parameter(help="How gradual masks grow: cubic or linear.")] = "cubic"
    masks: Annotated[Path | None, Parameter(help="Hold the masks of this file instead.")] = None
    rescale: Annotated[
        bool, Parameter(negative="", help="Multiply pruned layers by 1/sqrt(density), folded in at the end.")
    ] = False
    rounds: Annotated[int, Parameter(help="Rounds of imp.")] = 9
    fraction: Annotated[str, Parameter(help="Part that a round of imp removes; or certified, or statistical.")] = "0.2"
    rewind: Annotated[str, Parameter(help="Where imp rewinds to, as in 0ep or 500it.")] = "0ep"
    rewound: Annotated[
        str, Parameter(help="What imp rewinds: weights, or the learning rate alone (rate), the weights as trained.")
    ] = "weights"
    error: Annotated[float | None, Parameter(help="Error that a planned round of imp may make.")] = None
    radius: Annotated[float, Parameter(help="Radius of the inputs for --fraction certified.")] = 1.0
    controls: Annotated[
        list[str] | None,
        Parameter(negative="", help="Beside each level of imp: reinitialise, shuffle-layers, shuffle-global."),
    ] = None
    regrow_every: Annotated[
        str | None, Parameter(help="How often set and rigl exchange weights; 100it, or twenty times in a short run.")
    ] = None
    regrow_fraction: Annotated[float, Parameter(help="Part of the weights that set and rigl exchange at first.")] = 0.3


if TYPE_CHECKING:
    Flags = Any
    Terms = Any
else:
    Flags = training_flags(FitConfig())
    _TERMS = ("spectral_penalty", "distill_from", "distill_weight", "temperature")
    Terms = flags_of("Terms", flags_from(FitConfig, {"distill_from": Path}, _TERMS))


def train(
    model: Annotated[str | None, Parameter(help="Zoo name or `package.module:factory`; a preset has its own.")] = None,
    *,
    data: Data = None,
    length: Annotated[str | None, Parameter(help="Epochs as in 20ep, or steps as in 5000it.")] = None,
    preset: Annotated[str | None, Parameter(help="A published setting; see --presets.")] = None,
    presets: Annotated[bool, Parameter(negative="", help="List the published settings.")] = False,
    pruning: Annotated[Pruning | None, Parameter(name="*")] = None,
    flags: Annotated[Flags | None, Parameter(name="*")] = None,
    terms: Annotated[Terms | None, Parameter(name="*")] = None,
    recalibrate: Annotated[
        int, Parameter(help="Batches on which batch norms are measured anew after training; 10 is enough.")
    ] = 0,
    place: Annotated[Place | None, Parameter(name="*")] = None,
    exclude: Exclude | None = None,
    weights: Weights = None,
    init: Annotated[str | None, Parameter(help="Initial weights: kaiming_uniform, signed_constant, ...")] = None,
    data_dir: DataDir = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train a network, plainly or with held, growing or rewound masks.

    Prints a learning curve; with `-o` leaves a run folder that holds the record, the weights, the masks, the curve and
    the checkpoints. A run that was killed goes on with `--resume` and ends in the same bytes. Under `torchrun` the
    processes share each batch.

    Example: `prunus train fc:64-300-100-10 --data digits --length 4ep --method gradual --sparsity 0.9
    --pattern balanced:16 -o runs/digits`
    """
    from prunus.errors import BadInput, UnknownName
    from prunus.models import resolve

    if presets:
        print_presets(json, searches=False)
        return
    if recalibrate < 0:
        raise BadInput(f"--recalibrate is {recalibrate}: give the number of batches, or 0 to leave batch norms alone.")
    pruning = pruning or Pruning()
    if pruning.method not in METHODS:
        raise UnknownName("way to train", pruning.method, METHODS)
    _check_methods(pruning)
    base, model, data, length, init = _preset(preset, model, data, length, init)
    if model is None or data is None:
        raise BadInput("train needs a model and --data, or a --preset that names both.")
    with processes() as prints:
        quiet = json or not prints
        network = _network(model, weights, init, seed)
        config, folder = configure(base, flags, place, seed, quiet)
        beside = {name: value for name, value in vars(terms or Terms()).items() if value is not None}
        if "distill_from" in beside:
            beside["distill_from"] = resolve(model, str(beside["distill_from"])).eval()
        config = config.replace(**beside)
        pair = data_pair(data, data_dir, model)
        about = {"network": model, "init": init, "method": pruning.method, "rescale": pruning.rescale}
        history, masks, extra = _run(network, pair, length, config, pruning, tuple(exclude or ()), about)
        if recalibrate:
            extra |= _recalibrate(network, pair, recalibrate)
        settings = {"model": model, "data": data, "length": length, "preset": preset, "init": init, "seed": seed}
        settings |= {"method": pruning.method, "rescale": pruning.rescale, "config": config.record()}
        record = {**settings, **extra, "final": history[-1].to_dict() if history else None, "notes": history.notes}
        if masks is not None:
            record["sparsity"] = masks.sparsity
        if folder is not None and prints:
            folder.write(settings, record, history, network, masks)
        _show(record, history, folder, json, prints)


def _check_methods(pruning: Pruning) -> None:
    """Options that the method would not use are refused before a long run."""
    from prunus.errors import BadInput

    before = ("random", "snip", "grasp", "synflow", "magnitude")
    if pruning.masks is not None and pruning.method != "dense":
        raise BadInput(f"--masks holds the masks of a file; --method {pruning.method} makes its own: give one of them.")
    if pruning.rescale and pruning.method not in before and pruning.masks is None:
        raise BadInput(f"--rescale is for masks that do not change: use --method {', '.join(before)}, or --masks.")
    if pruning.method == "imp" and pruning.pattern != "unstructured":
        raise BadInput("imp prunes weights one by one: leave out --pattern, or use --method gradual.")
    if pruning.method == "imp" and pruning.fraction in ("certified", "statistical") and pruning.error is None:
        raise BadInput(f"--fraction {pruning.fraction} needs --error, the change of the outputs that a round may make.")
    if pruning.controls and pruning.method != "imp":
        raise BadInput("--controls are random tickets beside those of imp: give them with --method imp.")


def _preset(name: str | None, model: Any, data: Any, length: Any, init: Any) -> tuple[Any, Any, Any, str, Any]:
    from prunus.errors import BadInput
    from prunus.training.presets import preset

    if name is None:
        return FitConfig(), model, data, length or "10ep", init
    found = preset(name)
    if found.method != "sgd":
        raise BadInput(
            f"The preset {name!r} searches a ticket: use it with prunus ticket, or one of prunus train --presets."
        )
    return found.config, model or found.model, data or found.data, length or found.length, init or found.init


def _network(model: str, weights: Path | None, init: str | None, seed: int) -> Any:
    import torch

    from prunus.models import initialise, resolve

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = resolve(model, str(weights) if weights else None)
    return initialise(network, init, seed=seed) if init is not None else network


def _run(
    network: Any,
    pair: Any,
    length: str,
    config: Any,
    pruning: Pruning,
    exclude: tuple[str, ...],
    about: dict[str, Any],
) -> Any:
    """(history, masks or None, what else is on record); a resumed run must agree on `about`."""
    from prunus import training
    from prunus.training.loop import Run

    train, test = pair
    if pruning.method in ("gradual", "set", "rigl"):
        regrow = _regrowth(pruning, train, length, config) if pruning.method != "gradual" else None
        options = training.GradualOptions(allocation=pruning.allocation or "uniform", exclude=exclude, regrow=regrow)
        ramp = pruning.ramp if regrow is None else "constant"
        masks = training.prune_gradually(
            network, train, pruning.sparsity, pruning.pattern, ramp, length, config=config, options=options, test=test
        )
        return training.History.from_dicts(masks.notes.pop("history")), masks, {}
    if pruning.method == "imp":
        return _imp(network, pair, length, config, pruning, exclude)
    masks = _masks(network, train, pruning, exclude, config.seed)
    if masks is not None:
        about = about | {"sparsity": masks.sparsity, "pattern": pruning.pattern, "exclude": list(exclude)}
    context = training.rescaled(network, masks) if pruning.rescale and masks is not None else nullcontext()
    with context:
        history = Run(network, train, length, config, masks, test, about=about).train()
    return history, masks, {}


def _recalibrate(network: Any, pair: Any, batches: int) -> dict[str, Any]:
    from prunus.training import accuracy, recalibrate

    train, test = pair
    recalibrate(network, train, batches)
    told = {"recalibrated": network.recalibrated}
    return told | {"recalibrated test accuracy": None if test is None else accuracy(network, test)}


def _regrowth(pruning: Pruning, data: Any, length: str, config: Any) -> Any:
    from prunus.contract import Duration
    from prunus.training import Regrowth
    from prunus.training.batches import Batches

    every = pruning.regrow_every
    if every is None:
        total = Duration.parse(length).steps(Batches(data, config.batch_size, config.seed).per_epoch)
        every = f"{min(100, max(1, total // 20))}it"
    return Regrowth(pruning.method, pruning.regrow_fraction, every)


def _masks(network: Any, data: Any, pruning: Pruning, exclude: tuple[str, ...], seed: int) -> Any:
    from prunus import Masks, find_masks

    if pruning.masks is not None:
        return Masks.load(pruning.masks)
    if pruning.method == "dense":
        return None
    return find_masks(
        network, pruning.sparsity, score=pruning.method, pattern=pruning.pattern,
        allocation=pruning.allocation or "uniform", exclude=exclude, data=data, seed=seed,
    )  # fmt: skip


def _imp(network: Any, pair: Any, length: str, config: Any, pruning: Pruning, exclude: tuple[str, ...]) -> Any:
    from prunus import training
    from prunus.errors import BadInput

    train, test = pair
    fraction: float | str = pruning.fraction
    domain = None
    if fraction == "certified":
        from prunus import Ball

        domain = Ball(pruning.radius)
    elif fraction != "statistical":
        try:
            fraction = float(pruning.fraction)
        except ValueError:
            raise BadInput(f"--fraction is {fraction!r}: give a number, certified or statistical.") from None
    options = training.ImpOptions(
        allocation=pruning.allocation or "global", controls=tuple(pruning.controls or ()),
        exclude=exclude, domain=domain, error=pruning.error, rewound=pruning.rewound,
    )  # fmt: skip
    levels = training.imp(
        network, train, pruning.rounds, fraction, pruning.rewind, length, test, config=config, options=options
    )
    network.load_state_dict(levels[-1].model.state_dict())
    return levels[-1].history, levels[-1].masks, {"levels": [level.to_dict() for level in levels]}


def _show(record: dict[str, Any], history: Any, folder: Any, json: bool, prints: bool) -> None:
    from prunus.cli.output import console, print_json, print_table

    if not prints:
        return
    if json:
        print_json(record)
        return
    if "levels" in record:
        rows = record["levels"]
        print_table(list(rows[0]), [list(row.values()) for row in rows], left=())
    show_run(record, history, folder)
    if "recalibrated" in record:
        right = record["recalibrated test accuracy"]
        after = "" if right is None else f"; test accuracy {right:.4f}"
        console().print(f"batch norm: {record['recalibrated']}{after}", markup=False)

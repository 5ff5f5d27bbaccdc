"""What `prunus train` and `prunus ticket` share: the flags of a run, and how they become a configuration."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.errors import BadInput


@dataclass
class Flags:
    """How the run is made; what is not given is taken from the preset, or from the defaults."""

    optimizer: Annotated[str | None, Parameter(help="sgd, adam or adamw.")] = None
    lr: Annotated[float | None, Parameter(help="Learning rate.")] = None
    momentum: Annotated[float | None, Parameter(help="Momentum of SGD.")] = None
    weight_decay: Annotated[float | None, Parameter(help="Weight decay.")] = None
    nesterov: Annotated[bool | None, Parameter(negative="", help="Nesterov's momentum.")] = None
    schedule: Annotated[str | None, Parameter(help="constant, cosine, cosine-epoch, step or warmup.")] = None
    warmup: Annotated[str | None, Parameter(help="How long the rate rises at first, as in 5ep.")] = None
    milestones: Annotated[
        list[str] | None, Parameter(negative="", help="Where a step schedule drops the rate, as in 80ep 120ep.")
    ] = None
    factor: Annotated[float | None, Parameter(help="By how much; a tenth unless given.")] = None
    batch_size: Annotated[int | None, Parameter(help="Samples in a step.")] = None
    accumulate: Annotated[int | None, Parameter(help="Parts in which a batch goes through the network.")] = None
    precision: Annotated[str | None, Parameter(help="full, or bf16: forward passes under autocast.")] = None
    ema: Annotated[float | None, Parameter(help="Decay of a running mean of the weights, as in 0.999.")] = None
    label_smoothing: Annotated[float | None, Parameter(help="Part of a label spread over all classes.")] = None
    augment: Annotated[str | None, Parameter(help="none, crop-flip or resized-crop-flip.")] = None
    clip: Annotated[float | None, Parameter(help="Largest norm of the gradient.")] = None
    workers: Annotated[int | None, Parameter(help="Processes that read the data.")] = None


@dataclass
class Place:
    """Where the run is kept and shown."""

    folder: Annotated[
        Path | None, Parameter(alias="-o", help="Run folder: record, weights, masks, curve, checkpoints.")
    ] = None
    every: Annotated[str, Parameter(help="How often to keep a checkpoint: 1ep, 500it or 10min.")] = "1ep"
    resume: Annotated[bool, Parameter(negative="", help="Go on with the run in the folder.")] = False
    tensorboard: Annotated[Path | None, Parameter(help="Folder for TensorBoard's event files.")] = None


def configure(base: Any, flags: Flags, place: Place, seed: int, quiet: bool) -> tuple[Any, Any]:
    """(`FitConfig`, run folder or None): `base` with the flags that were given."""
    from prunus.training.records import RunFolder

    given = {name: value for name, value in dataclasses.asdict(flags).items() if value is not None}
    _spell_schedule(given, base.schedule)
    if "optimizer" in given and given["optimizer"] != base.optimizer and "lr" not in given:
        given["lr"] = None  # the default of that optimizer
    if place.resume and place.folder is None:
        raise BadInput("--resume needs --folder: name the folder that holds the run.")
    folder = RunFolder(place.folder, place.resume) if place.folder is not None else None
    config = base.replace(
        **given,
        seed=seed,
        every=place.every,
        folder=folder.checkpoints if folder is not None else None,
        resume=place.resume,
        tensorboard=place.tensorboard,
        progress=False if quiet else None,
    )
    return config, folder


def _spell_schedule(given: dict[str, Any], before: Any) -> None:
    """Put what was said of the schedule's parts into one `Schedule`."""
    from prunus.training import Schedule

    parts = {name: given.pop(name) for name in ("warmup", "milestones", "factor") if name in given}
    if not parts:
        return
    if "milestones" in parts:
        parts["milestones"] = tuple(parts["milestones"])
    shape = given.get("schedule", "step" if "milestones" in parts or "factor" in parts else None)
    if isinstance(before, Schedule) and shape is None:
        given["schedule"] = dataclasses.replace(before, **parts)
        return
    shape = shape or before
    if shape != "step" and ("milestones" in parts or "factor" in parts):
        raise BadInput(f"--milestones and --factor belong to --schedule step, not {shape}.")
    given["schedule"] = Schedule("cosine" if shape == "warmup" else shape, **parts)


def fitting_example(network: Any, data: Any) -> Any:
    """One input of the data as a batch; refused where the network cannot run on it."""
    from prunus.training.batches import first_inputs
    from prunus.training.objective import check_fits

    example = first_inputs(data, 1)
    check_fits(network, example)
    return example


def data_pair(name: str, folder: Path | None, model: str = "") -> tuple[Any, Any]:
    """Training and test data; the test data may be missing for a user's own set.

    `model` is how the command names it: its folder holds the tokenizer for texts of the user's own.
    """
    from prunus.cli._inputs import own_pair
    from prunus.data import load

    own = own_pair(name, model)
    if own is not None:
        return own

    if name == "imagenet":
        raise BadInput(
            "ImageNet does not come with Prunus: give your own data set with --data package.module:dataset, a function "
            "of (split) that returns a torch Dataset of (image, label)."
        )
    train = load(name, split="train", folder=folder)
    try:
        return train, load(name, split="test", folder=folder)
    except BadInput:
        if ":" in name:
            return train, None
        raise


@contextlib.contextmanager
def processes() -> Iterator[bool]:
    """Join the other processes under torchrun; yields whether this one prints."""
    from prunus.training import distributed

    started = distributed.start_from_environment()
    try:
        yield distributed.place()[0] == 0
    finally:
        if started:
            distributed.stop()


def print_presets(json: bool, searches: bool) -> None:
    """The published settings, as a table."""
    from prunus.cli.output import print_json, print_table
    from prunus.training.presets import PRESETS

    rows = [
        {"name": p.name, "model": p.model, "data": p.data, "length": p.length, "lr": p.config.lr}
        | {"status": p.reach, "source": p.source}
        for p in PRESETS.values()
        if (p.method != "sgd") == searches
    ]
    if json:
        print_json(rows)
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows], left=(0, 1, 2, 3, 5, 6))


def show_run(record: dict[str, Any], history: Any, folder: Any) -> None:
    """The outcome for people: last line, small plot, where things are."""
    from prunus.cli.output import console
    from prunus.training.curves import lines_of, text_plot

    out = console()
    if len(history) > 1:
        out.print(text_plot(lines_of(history)), markup=False)
    if history:
        out.print(str(history[-1]), markup=False)
    for note in history.notes:
        out.print(note, markup=False)
    if folder is not None:
        out.print(f"wrote {', '.join(sorted(path.name for path in folder.folder.iterdir()))} in {folder.folder}")

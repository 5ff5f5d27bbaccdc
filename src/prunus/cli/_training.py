"""What `prunus train` and `prunus ticket` share: the flags of a run, and how they become a configuration."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prunus.cli.options import flags, flags_of, given
from prunus.errors import BadInput
from prunus.settings.training import FitConfig, Schedule

TRAINED = (
    "optimizer", "lr", "momentum", "nesterov", "weight_decay", "schedule", "batch_size", "accumulate", "precision",
    "ema", "clip", "label_smoothing", "augment", "workers",
)  # fmt: skip
"""Fields of `FitConfig` that are flags of every command that trains."""
_ALONE = Parameter(negative="")
_TYPES = {"schedule": str, "augment": str, "nesterov": Annotated[bool, _ALONE], "resume": Annotated[bool, _ALONE]}
_RATES = {"milestones": Annotated[list[str], _ALONE]}


def training_flags(base: FitConfig) -> type:
    """The flags of `FitConfig` and `Schedule`; what is not given is taken from the preset, or from `base`."""
    rates = flags(Schedule, _RATES, ("warmup", "milestones", "factor"))
    return flags_of("TrainingFlags", flags(FitConfig, _TYPES, TRAINED, base), rates)


if TYPE_CHECKING:
    Place = Any
else:
    _FOLDER = Parameter(alias="-o", help="Run folder: record, weights, masks, curve, checkpoints.")
    Place = flags_of(
        "Place",
        [("folder", Annotated[Path | None, _FOLDER], None)],
        flags(FitConfig, {**_TYPES, "tensorboard": Path}, ("every", "resume", "tensorboard")),
    )


WEIGHT_FILES = (".safetensors", ".pt", ".pth", ".th", ".bin")
"""Endings of files, which a folder of a run does not have."""


def configure(base: FitConfig, flags: Any, place: Place, seed: int, quiet: bool) -> tuple[FitConfig, Any]:
    """(configuration, run folder or None): `base` with the flags that were given; None gives none."""
    from prunus.training.records import RunFolder

    place = place or Place()
    chosen = given(flags)
    _spell_schedule(chosen, base.schedule)
    if "optimizer" in chosen and chosen["optimizer"] != base.optimizer and "lr" not in chosen:
        chosen["lr"] = None  # the default of that optimizer
    if place.resume and place.folder is None:
        raise BadInput("--resume needs --folder: name the folder that holds the run.")
    if place.folder is not None and place.folder.suffix in WEIGHT_FILES:
        raise BadInput(
            f"-o names the folder of the run, and {place.folder.name!r} looks like a file: give a folder, as in "
            f"-o {place.folder.stem}; the weights will be {place.folder.stem}/model.safetensors."
        )
    folder = RunFolder(place.folder, bool(place.resume)) if place.folder is not None else None
    config = base.replace(
        **chosen,
        seed=seed,
        every=place.every or base.every,
        folder=folder.checkpoints if folder is not None else None,
        resume=bool(place.resume),
        tensorboard=place.tensorboard,
        progress=False if quiet else None,
    )
    return config, folder


def _spell_schedule(given: dict[str, Any], before: Any) -> None:
    """Join the flags of the schedule's parts into one `Schedule`."""
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
    spelt = FitConfig(schedule=shape).plan(1)  # what the name means; "warmup" has its own, which the flag replaces
    given["schedule"] = dataclasses.replace(spelt, **parts)


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

"""Recipes: the steps from a dense network to a pruned one, as a TOML file.

A file has an `about` and up to three steps, made in this order: `[reconstruct]`, `[distil]`, `[fit]`. The keys of a
step are the arguments of `prunus.reconstruct`, `prunus.training.distil` and `prunus.training.fit` and the fields of
`ReconstructOptions`, `DistilOptions` and `FitConfig`. In `[fit]` the dense network is the teacher.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from prunus.contract import Duration, Masks
from prunus.errors import BadFile, BadInput, UnknownName
from prunus.layers import require_module
from prunus.settings.training import FitConfig
from prunus.training._unchanged import unchanged_after
from prunus.training.batches import Batches, isolated
from prunus.training.distillation import DistilOptions, distil
from prunus.training.loop import fit
from prunus.training.objective import evaluate

_FOLDER = Path(__file__).parent / "recipes"
_OWN = {"folder", "resume", "progress", "callbacks", "tensorboard", "distill_from", "seed", "penalty", "layers"}


def _names(kind: Any) -> set[str]:
    return {entry.name for entry in dataclasses.fields(kind)} - _OWN


@functools.cache
def _steps() -> dict[str, set[str]]:
    """The settings that each step takes. Recovery is imported here, not by everyone who trains."""
    from prunus.recovery import ReconstructOptions

    arguments = {"sparsity", "pattern", "allocation", "exclude", "samples", "misfits"}
    return {
        "reconstruct": arguments | _names(ReconstructOptions),
        "distil": {"length"} | _names(DistilOptions) | _names(FitConfig),
        "fit": {"length"} | _names(FitConfig),
    }


@dataclass(frozen=True)
class Recipe:
    """The steps of a recipe; `run` makes them.

    Attributes:
        name: Its name, or the file it came from.
        about: What it is for.
        source: Where its settings come from.
        reconstruct: Settings of the reconstruction.
        distil: Settings of the distillation that follows; empty where there is none.
        fit: Settings of the training on labels that follows; empty where there is none.

    Example:
        >>> recipe = prunus.training.recipe("llm-oneshot")
        >>> recipe.reconstruct["samples"], recipe.fit
        (128, {})
    """

    name: str
    about: str
    source: str = ""
    reconstruct: Mapping[str, Any] = field(default_factory=dict)
    distil: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for step in _steps():
            settings = getattr(self, step)
            if not isinstance(settings, Mapping):
                raise BadInput(
                    f"{step} of the recipe {self.name!r} is {settings!r}; give settings by name, as in "
                    '{"samples": 512}.'
                )
            _check_names(self.name, step, settings)

    def replace(self, **changes: Any) -> Recipe:
        """A copy in which some settings of the reconstruction differ; None leaves one as it is.

        Args:
            changes: new values by the names of settings.

        Returns:
            The copy.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        _check_names(self.name, "reconstruct", given)
        return dataclasses.replace(self, reconstruct={**self.reconstruct, **given})

    def run(
        self,
        model: nn.Module,
        data: Any,
        test: Any = None,
        *,
        folder: str | Path | None = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> Masks:
        """Prune `model` in place and win its quality back.

        Args:
            model: A trained network.
            data: What the steps look at and train on; only `[fit]` needs labels.
            test: Data to measure on after every epoch of `[fit]`.
            folder: Keep the state here; the same call goes on with a run that was broken off.
            seed: Of every random choice.
            progress: Show lines with the time left; None shows them in a terminal.

        Returns:
            The masks; `notes["steps"]` holds the losses of the training steps.

        Raises:
            BadInput: A setting does not fit the model or the data; labels and images are looked at first. After any
                error, and after Ctrl-C, the model is as it was before.

        Example:
            >>> model = prunus.models.make("fc:64-64-10", seed=0)
            >>> data = prunus.data.load("digits", split="train")
            >>> recipe = prunus.training.recipe("llm-oneshot").replace(exclude=("layers.1",))
            >>> recipe.run(model, data).sparsity
            0.5
        """
        from prunus.recovery import ReconstructOptions, reconstruct

        require_module(model)
        place = None if folder is None else Path(folder)
        step = dict(self.reconstruct)
        options = ReconstructOptions(
            **_take(step, ReconstructOptions),
            progress=progress,
            folder=None if place is None else place / "reconstruct",
        )
        sparsity = step.pop("sparsity", 0.5)
        own: dict[str, Any] = {"seed": seed, "progress": progress, "resume": place is not None}
        lessons = [
            _Lesson.of(name, settings, {**own, "folder": None if place is None else place / name})
            for name, settings in (("distil", self.distil), ("fit", self.fit))
            if settings
        ]
        steps: dict[str, Any] = {}
        if not lessons:  # nothing to take back: reconstruct changes the model only at its end
            masks = reconstruct(model, sparsity, data, seed=seed, options=options, **step)
            return Masks(masks, {**masks.notes, "recipe": self.name, "steps": steps})
        dense = copy.deepcopy(model).eval()
        if self.fit:
            _require_trainable(self.name, dense, data, test, lessons[-1].config)
        with unchanged_after(BaseException, model, dense):
            masks = reconstruct(model, sparsity, data, seed=seed, options=options, **step)
            for lesson in lessons:
                steps[lesson.name] = lesson.learn(model, dense, data, test, masks)
        return Masks(masks, {**masks.notes, "recipe": self.name, "steps": steps})


@dataclass(frozen=True)
class _Lesson:
    """A training step of a recipe, ready to run: `matched` is for a distillation."""

    name: str
    length: Duration
    config: FitConfig
    matched: DistilOptions | None

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any], own: Mapping[str, Any]) -> _Lesson:
        step = dict(settings)
        length = Duration.parse(step.pop("length", "1ep"))
        matched = DistilOptions(**_take(step, DistilOptions)) if name == "distil" else None
        return cls(name, length, FitConfig(**step, **own), matched)

    def learn(self, model: nn.Module, dense: nn.Module, data: Any, test: Any, masks: Masks) -> list[dict[str, Any]]:
        """Train the model with its zeros held; returns the losses."""
        if self.matched is not None:
            return distil(model, dense, data, self.length, masks, self.config, options=self.matched).to_dicts()
        config = self.config.replace(distill_from=dense)
        return fit(model, data, self.length, config, masks=masks, test=test).to_dicts()


def _require_trainable(name: str, dense: nn.Module, data: Any, test: Any, config: FitConfig) -> None:
    """Refuse data that `[fit]` cannot use, before the long reconstruction: they have no labels, or are no images."""
    evaluate(dense, data, config.batch_size, config.loss, limit=1)
    if test is not None:
        evaluate(dense, test, config.batch_size, config.loss, limit=1)
    try:
        with isolated():
            next(Batches(data, config.batch_size, config.seed, config.augment).from_step(0))
    except BadInput as error:
        raise BadInput(
            f"The recipe {name!r} varies its images by augment = {config.augment!r}, which these data do not allow "
            f"({str(error).rstrip('.')}): give images, or a recipe file of your own without augment."
        ) from error


def _take(step: dict[str, Any], kind: Any) -> dict[str, Any]:
    return {name: step.pop(name) for name in _names(kind) if name in step}


def recipes() -> list[Recipe]:
    """The recipes that come with Prunus.

    Returns:
        All of them, by name.

    Example:
        >>> [recipe.name for recipe in prunus.training.recipes()]
        ['cnn-retrain', 'encoder', 'llm-oneshot']
    """
    return [recipe(path.stem) for path in sorted(_FOLDER.glob("*.toml"))]


def recipe(name: str | Path) -> Recipe:
    """A recipe by the name of one that comes with Prunus, or from a file.

    Args:
        name: "cnn-retrain", "encoder", "llm-oneshot", or the path of a TOML file.

    Returns:
        The recipe.

    Raises:
        UnknownName: There is no recipe and no file of that name, or a setting is not known.
        BadFile: The file is no recipe.
        BadInput: The name is neither a text nor a path.

    Example:
        >>> prunus.training.recipe("encoder").distil["optimizer"]
        'adamw'
    """
    if not isinstance(name, (str, os.PathLike)):
        raise BadInput(f"A recipe is named by a text or the path of a TOML file, not by {type(name).__name__}.")
    path = Path(name)
    if path.suffix != ".toml":
        path = _FOLDER / f"{name}.toml"
        if not path.is_file() or path.parent != _FOLDER:
            raise UnknownName("recipe", str(name), sorted(found.stem for found in _FOLDER.glob("*.toml")))
    try:
        content = tomllib.loads(path.read_text("utf8"))
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} is no recipe: {error}.") from None
    for key, value in content.items():
        if key in _steps() and isinstance(value, dict):
            _check_names(path.name, key, value)
        elif key not in ("about", "source") or not isinstance(value, str):
            raise UnknownName(f"part of the recipe {path.name}", key, ("about", "source", *_steps()))
    if "reconstruct" not in content:
        raise BadInput(f"{path.name} has no [reconstruct]: a recipe begins with it.")
    own = path.stem if path.parent == _FOLDER else str(name)
    return Recipe(own, **{"about": "", **content})


def _check_names(name: str, step: str, settings: Mapping[str, Any]) -> None:
    wrong = next((key for key in settings if key not in _steps()[step]), None)
    if wrong is not None:
        raise UnknownName(f"setting of [{step}] in {name}", wrong, sorted(_steps()[step]))

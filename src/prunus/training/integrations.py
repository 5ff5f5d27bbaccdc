"""Masks inside training loops of other libraries: a Lightning callback and a Hugging Face Trainer callback (extras).

    trainer = lightning.Trainer(callbacks=[prunus.training.lightning_callback(masks)])
    trainer = transformers.Trainer(..., callbacks=[prunus.training.trainer_callback(Growth(0.9, "balanced:16"))])

Given `Masks` they hold them; given a `Growth` they let masks grow on its ramp. The loop stays the other library's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus.contract import Masks, Pattern, check_sparsity
from prunus.errors import BadInput, MissingExtra
from prunus.pruning import patterns, scores
from prunus.training.gradual import GradualOptions, Growing
from prunus.training.ramps import Ramp


@dataclass(frozen=True)
class Growth:
    """Masks to grow during a foreign loop: the arguments of `prune_gradually` without the training.

    Attributes:
        sparsity: Final fraction of zeros.
        pattern: Which sets of zeros are allowed.
        ramp: Sparsity over time.
        options: The score, the allocation, what is never pruned, regrowth.
        seed: Seed of every random choice.

    Raises:
        BadInput: A score that needs data, or regrowth that needs gradients: a foreign loop gives neither.

    Example:
        >>> growth = prunus.training.Growth(0.75, "balanced:4")
        >>> growth.ramp.shape
        'cubic'
    """

    sparsity: float
    pattern: str | Pattern = "unstructured"
    ramp: Ramp = field(default_factory=lambda: Ramp("cubic", every="10it"))
    options: GradualOptions = field(default_factory=GradualOptions)
    seed: int = 0

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        patterns.parse(self.pattern)
        if self.options.regrow is not None and self.options.regrow.rule == "rigl":
            raise BadInput("RigL needs gradients that a foreign loop does not give: use 'set', or prune_gradually.")
        if scores.needs_data(self.options.score):
            raise BadInput(
                f"The score {scores.parse(self.options.score).name!r} needs data that a foreign loop does not give: "
                "use 'magnitude', or prune_gradually."
            )


class Keeper:
    """What both callbacks do: hold the masks on a model and its optimizer, and let them grow step by step."""

    def __init__(self, masks: Masks | Growth) -> None:
        self.growing: Growing | None = None
        self.masks: Masks | None = masks if isinstance(masks, Masks) else None
        if isinstance(masks, Growth):
            shape = patterns.parse(masks.pattern)
            self.growing = Growing(masks.sparsity, shape, masks.ramp, masks.options, masks.seed)
        elif not isinstance(masks, Masks):
            raise BadInput(f"This callback takes Masks or a Growth, not {type(masks).__name__}.")
        # What `Growing` asks of a run.
        self.model: nn.Module | None = None
        self.optimizer: Any = None
        self.data: Any = None
        self.hold: Any = None
        self.step, self.total, self.per_epoch = 0, 1, 1
        self.updated = -1  # the last optimiser step whose update was made

    def begin(self, model: nn.Module, optimizer: torch.optim.Optimizer, total: int, per_epoch: int) -> None:
        """The loop starts."""
        self.model, self.optimizer = model, optimizer
        self.total, self.per_epoch = max(1, total), max(1, per_epoch)
        if self.growing is not None:
            self.growing.start(self)  # type: ignore[arg-type] # holds the masks of a resumed loop
        elif self.masks is not None:
            self.set_masks(self.masks)

    def set_masks(self, masks: Masks) -> None:
        """Hold these from now on."""
        self.end()
        assert self.model is not None
        self.masks = masks
        self.hold = masks.hold(self.model, self.optimizer)

    def before_step(self, step: int) -> None:
        """The optimizer is about to make step number `step`; asked again for the same step, nothing happens."""
        if step == self.updated:  # another part of the same batch, where gradients are accumulated
            return
        self.step = self.updated = step
        if self.growing is not None:
            self.growing.update(self, step)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed loop needs to go on with the same masks: plain numbers and tensors."""
        masks = {} if self.masks is None else {f"mask/{name}": mask for name, mask in self.masks.items()}
        grown = {} if self.growing is None else {"level": self.growing.level, "updates": self.growing.updates}
        return {"updated": self.updated, **grown, **masks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; if the loop has begun, the masks are held from now on."""
        found = {name.removeprefix("mask/"): mask for name, mask in state.items() if name.startswith("mask/")}
        self.updated = int(state["updated"])
        if not found:
            return
        self.masks = Masks(found)
        if self.growing is not None:
            self.growing.load_state_dict({**state})
        if self.model is not None:
            self.set_masks(self.masks)

    def finish(self) -> None:
        """The loop is over: apply the last masks and stop holding them."""
        if self.growing is not None and self.model is not None:
            self.growing.update(self, self.total)  # type: ignore[arg-type]
        self.end()

    def end(self) -> None:
        """Stop holding the masks."""
        if self.hold is not None:
            self.hold.remove()
            self.hold = None


def lightning_callback(masks: Masks | Growth) -> Any:
    """A Lightning callback that holds `masks`, or grows them.

    Args:
        masks: The masks to hold, or a `Growth`.

    Returns:
        The callback, for `lightning.Trainer(callbacks=[...])`; its `keeper.masks` are the current masks.

    Raises:
        BadInput: `masks` is neither; or, when training starts, the module has several optimizers.
        MissingExtra: Lightning is not installed.

    Example:
        >>> masks = prunus.find_masks(torch.nn.Linear(4, 2), 0.5)
        >>> callback = prunus.training.lightning_callback(masks)
        >>> callback.keeper.masks.sparsity
        0.5
    """
    keeper = Keeper(masks)
    try:
        from lightning.pytorch.callbacks import Callback as LightningCallback
    except ImportError:
        raise MissingExtra("lightning", "lightning", "The Lightning callback") from None

    class HoldMasks(LightningCallback):
        def __init__(self, keeper: Keeper) -> None:
            self.keeper = keeper

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if len(trainer.optimizers) != 1:
                raise BadInput(f"Holding masks needs one optimizer, but this module has {len(trainer.optimizers)}.")
            total = trainer.estimated_stepping_batches
            steps = int(total) if math.isfinite(total) else 1
            parts = trainer.num_training_batches / trainer.accumulate_grad_batches  # infinite for streams
            per_epoch = math.ceil(parts) if math.isfinite(parts) else steps
            self.keeper.begin(pl_module, trainer.optimizers[0], steps, per_epoch)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.keeper.before_step(trainer.global_step)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.keeper.finish()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.keeper.end()

        def state_dict(self) -> dict[str, Any]:
            return self.keeper.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.keeper.load_state_dict(state_dict)

    return HoldMasks(keeper)


def trainer_callback(masks: Masks | Growth) -> Any:
    """A Hugging Face Trainer callback that holds `masks`, or grows them.

    Args:
        masks: The masks to hold, or a `Growth`.

    Returns:
        The callback, for `transformers.Trainer(callbacks=[...])`; its `keeper.masks` are the current masks.

    Raises:
        BadInput: `masks` is neither; or, when training starts, a resumed run's masks are not beside its checkpoint.
        MissingExtra: Transformers is not installed.

    Example:
        >>> masks = prunus.find_masks(torch.nn.Linear(4, 2), 0.5)
        >>> callback = prunus.training.trainer_callback(masks)
        >>> callback.keeper.masks.sparsity
        0.5
    """
    keeper = Keeper(masks)
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise MissingExtra("transformers", "transformers", "The Trainer callback") from None

    class HoldMasksInTrainer(TrainerCallback):
        def __init__(self, keeper: Keeper) -> None:
            self.keeper = keeper

        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            optimizer = rest["optimizer"]
            plain = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
            per_epoch = round(state.max_steps / max(1, state.num_train_epochs))
            kept = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
            if state.global_step and kept.is_file():  # resumed
                read_state(self.keeper, kept)
            elif state.global_step and self.keeper.growing is not None:
                raise BadInput(
                    f"The run goes on at step {state.global_step}, but its masks are not in {kept.parent}: resume it "
                    "with the output_dir that it was started with."
                )
            self.keeper.begin(rest["model"], plain, state.max_steps, per_epoch)

        def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            self.keeper.before_step(state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            self.keeper.finish()

        def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if folder.is_dir():
                write_state(self.keeper, folder / STATE)

    return HoldMasksInTrainer(keeper)


STATE = "prunus.masks.safetensors"


def write_state(keeper: Keeper, path: Path) -> None:
    """Write what a keeper must know to go on."""
    state = keeper.state_dict()
    numbers = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    Masks({name.removeprefix("mask/"): value for name, value in state.items() if isinstance(value, Tensor)},
          {"keeper": numbers}).save(path)  # fmt: skip


def read_state(keeper: Keeper, path: Path) -> None:
    """Read what `write_state` wrote."""
    masks = Masks.load(path)
    keeper.load_state_dict({**masks.notes["keeper"], **{f"mask/{name}": mask for name, mask in masks.items()}})

"""The plain training loop, and `fit`.

A run's state is data: weights, optimizer moments, the penalty's vectors, what callbacks keep, and a step number. The
learning rate, the order of the samples and every random stream are pure functions of (settings, step), so a run that is
killed and resumed makes the very steps it would have made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus.contract import Duration, Masks
from prunus.errors import BadInput, PrunusError, RunFailed, first_line
from prunus.layers import load_state_tensors, require_changeable, require_module, state_tensors
from prunus.settings.training import FitConfig, Schedule, interval
from prunus.storage import digest, locked
from prunus.training import distributed
from prunus.training.averaging import Averaging
from prunus.training.batches import SHA, Batches, Inputs, fingerprint, in_parts, isolated
from prunus.training.checkpoints import Checkpoints, pack_optimizer, require_same, unpack_optimizer
from prunus.training.history import Callback, EachEpoch, History, Record
from prunus.training.objective import Objective, correct, evaluate, labelled, own_tokens
from prunus.training.optimizers import make_optimizer


def fit(
    model: nn.Module,
    data: Any,
    length: str | Duration = "10ep",
    config: FitConfig | None = None,
    masks: Masks | None = None,
    test: Any = None,
) -> History:
    """Train `model` in place.

    With `config.folder` the run keeps checkpoints, and with `config.resume` it goes on from the newest and ends in the
    bytes an unbroken run ends in.

    Args:
        model: Any module.
        data: A data set of (input, label) pairs, or batches.
        length: How long, such as "20ep" or "5000it".
        config: How to train.
        masks: The weights they drop are set to zero and held there.
        test: Data to measure on after every epoch.

    Returns:
        One record for each epoch.

    Raises:
        BadInput: The model cannot run on the data, or there is nothing to train.
        RunFailed: The loss is not finite any more.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.arange(32) % 4)
        >>> model = prunus.models.make("fc:8-16-4", seed=0)
        >>> history = prunus.training.fit(model, data, "2ep", masks=prunus.find_masks(model, 0.5))
        >>> [record.sparsity for record in history]
        [0.5, 0.5]
    """
    return Run(model, data, length, config or FitConfig(), masks=masks, test=test).train()


@dataclass
class Tally:
    """Sums over the epoch so far."""

    loss: float = 0.0
    right: float = 0.0
    count: float = 0.0
    counted: bool = True

    def add(self, loss: float, right: int | None, count: int) -> None:
        self.loss += loss * count
        self.right += right or 0
        self.count += count
        self.counted = self.counted and right is not None

    def means(self) -> tuple[float, float | None]:
        """Loss and accuracy; over all processes where there are several."""
        loss, right, count = self.loss, self.right, self.count
        if distributed.place()[1] > 1:
            loss, right, count = distributed.sum_numbers(loss, right, count)
        return loss / max(count, 1.0), right / max(count, 1.0) if self.counted else None


@dataclass
class Run:
    """One training run. `fit` makes one; tickets and gradual pruning make one with their own callbacks.

    Attributes:
        model: The model, trained in place.
        data: A data set of (input, label) pairs, or batches.
        length: How long the whole schedule is, such as "20ep" or "5000it".
        config: How to train.
        masks: Masks to hold, or None.
        test: Data to measure on after every epoch, or None.
        parameters: What the optimizer moves; all that require a gradient, unless given.
        callbacks: `Callback` objects, called before those of the configuration.
        start: The step the run begins at, on the schedule of the whole length (rewinding).
        stop: The step it ends before; None is the end of the length.
        about: Anything else a resumed run must agree on.
        learn: Gives (objective, loss, outputs) in place of the configuration's losses.
        in_training_mode: False runs the model as in evaluation (no dropout, batch norms as they are).

    Raises:
        BadInput: There is nothing to train, or the masks leave a layer empty.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.arange(16) % 4)
        >>> config = prunus.training.FitConfig(batch_size=8)
        >>> run = prunus.training.Run(prunus.models.make("fc:8-16-4", seed=0), data, "3ep", config)
        >>> len(run.train()), run.total
        (3, 6)
    """

    model: nn.Module
    data: Any
    length: str | Duration
    config: FitConfig
    masks: Masks | None = None
    test: Any = None
    parameters: Sequence[nn.Parameter] | None = None
    callbacks: Sequence[Callback] = ()
    start: int = 0
    stop: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    learn: Any = None
    in_training_mode: bool = True

    def __post_init__(self) -> None:
        require_module(self.model)
        duration, config = Duration.parse(self.length), self.config
        self.rank, self.world = distributed.place()
        self.batches = Batches(self.data, config.batch_size, config.seed, config.augment, config.workers)
        self.per_epoch = self.batches.per_epoch
        self.total = duration.steps(self.per_epoch)
        self.in_epochs = duration.unit == "ep"
        self.schedule: Schedule = config.plan(self.total)
        self.step, self.seconds, self.lr = self.start, 0.0, config.lr
        self.history, self.tally = History(), Tally()
        if self.parameters is None:
            self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise BadInput("The model has no parameter that requires a gradient: there is nothing to train.")
        if self.masks is not None:
            require_filled(self.masks)
        self.optimizer = make_optimizer(config, list(self.parameters), self.model)
        self.objective = self.learn or Objective(self.model, config)
        self.device = next(iter(self.parameters)).device
        self.mean = Averaging(config.ema) if config.ema else None
        own = [self.mean] if self.mean is not None else []
        self.hooks: list[Callback] = [*self.callbacks, *own, *_wrapped(config.callbacks)]
        self.hold: Any = None
        if config.tensorboard is not None and self.rank == 0:
            from prunus.training.tensorboard import TensorBoard

            self.hooks.append(TensorBoard(config.tensorboard))
        self.checkpoints = Checkpoints(config.folder, config.keep) if config.folder is not None else None
        self.saved_step, self.saved_time = -1, time.monotonic()

    @property
    def epoch(self) -> int:
        """The epoch of the current step, from 0."""
        return self.step // self.per_epoch

    @property
    def last(self) -> int:
        """The number of steps after which this run ends."""
        return self.total if self.stop is None else min(self.stop, self.total)

    # ------------------------------------------------------------------------------------------------------------ loop

    def train(self) -> History:
        """Make the steps that are left; returns the history."""
        require_changeable(self.model)
        was_training = self.model.training
        self.model.train(self.in_training_mode)
        with torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
            stack.callback(self.model.train, was_training)
            if self.checkpoints is not None and self.rank == 0:
                stack.enter_context(locked(self.checkpoints.folder, "run"))
            stack.enter_context(isolated())
            for hook in self.hooks:
                stack.callback(hook.finish, self)
            if self.masks is not None:
                self.set_masks(self.masks)
            stack.callback(self._let_go)
            self._resume()
            self._require_equal_ranks()
            self._save(force=True)  # the initial weights too: a run killed early starts again from the same ones
            for hook in self.hooks:
                hook.start(self)
            display = stack.enter_context(_display(self))
            while self.step < self.last:
                self._epoch(display)
            self._save(force=True)
            if self.mean is not None:
                self.mean.leave(self)
        return self.history

    def set_masks(self, masks: Masks) -> None:
        """Hold these masks from now on, in place of those held before.

        Args:
            masks: masks of the model's weights.
        """
        self._let_go()
        self.masks = masks.to(self.device)
        self.hold = self.masks.hold(self.model, self.optimizer)

    def _let_go(self) -> None:
        if self.hold is not None:
            self.hold.remove()
            self.hold = None

    def _epoch(self, display: Any) -> None:
        end = min(self.last, (self.epoch + 1) * self.per_epoch)
        for inputs, labels, share in self.batches.from_step(self.step, self.rank, self.world):
            began = time.perf_counter()
            self._step(inputs.to(self.device), labels.to(self.device), share)
            self.step += 1
            self.seconds += time.perf_counter() - began
            display.update(self)
            if self.step >= end:
                break
            self._save()
        self._close_epoch()
        self._save()

    def _step(self, inputs: Inputs, labels: Tensor, share: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(group.get("base", self.config.lr))
        self.lr = self._rate(self.config.lr)
        for hook in self.hooks:
            hook.before_step(self)
        self.model.zero_grad(set_to_none=True)
        for part, answers, size in in_parts(inputs, labels, self.config.accumulate) if len(labels) else ():
            with self._precision():
                whole, plain, outputs = self._objective(part, answers)
            loss = float(plain.detach())
            if not torch.isfinite(whole):
                if own_tokens(part, answers) and answers.shape[-1] == 1:
                    raise BadInput(
                        "A batch holds texts of one token only, where no next token is to be learnt: leave them out."
                    )
                self.fail(f"The loss became {float(whole.detach())}")
            size *= share if self.world > 1 else 1.0
            (whole if size == 1.0 else whole * size).backward()
            copied = getattr(self.objective, "own", False) and own_tokens(part, answers)
            self.tally.add(loss, None if copied else correct(outputs.detach(), answers), labelled(answers))
        if self.world > 1:
            distributed.sum_gradients(p for p in self.model.parameters() if p.requires_grad)
            distributed.broadcast_buffers(self.model)
        for hook in self.hooks:
            hook.after_backward(self)
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(list(self.parameters or ()), self.config.clip)
        self.optimizer.step()
        for hook in self.hooks:
            hook.after_step(self)

    def _rate(self, base: float) -> float:
        return self.schedule.rate(base, self.step, self.total, self.per_epoch, self.in_epochs)

    def _precision(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def _objective(self, inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.step > self.start:
            return self.objective(inputs, labels)
        try:
            return self.objective(inputs, labels)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if isinstance(error, PrunusError):
                raise
            shape = tuple((inputs if isinstance(inputs, Tensor) else inputs.inputs).shape)
            raise BadInput(
                f"The model cannot learn from this data ({first_line(error)}): its inputs have shape "
                f"{shape} and its labels go up to {labels.max().item():g}."
            ) from error

    def _close_epoch(self) -> None:
        loss, accuracy = self.tally.means()
        test_loss, test_accuracy = None, None
        if self.test is not None:
            size = max(256, self.config.batch_size)
            with self.mean.shown(self) if self.mean is not None else nullcontext():
                test_loss, test_accuracy = evaluate(self.model, self.test, size, self.config.loss)
            if not math.isfinite(test_loss):
                self.fail(f"The loss on the test data became {test_loss}")
        self._require_equal_ranks()
        told = [hook.sparsity for hook in self.hooks if hook.sparsity is not None]
        sparsity = told[0] if told else self.masks.sparsity if self.masks is not None else None
        epoch = -(-self.step // self.per_epoch)
        self.history.append(
            Record(epoch, self.step, loss, accuracy, test_loss, test_accuracy, self.seconds, self.lr, sparsity)
        )
        self.tally = Tally()
        for hook in self.hooks:
            hook.epoch_end(self, self.history[-1])

    def _require_equal_ranks(self) -> None:
        if self.world > 1:
            distributed.require_equal(state_tensors(self.model), "The weights")
            if self.masks is not None:
                distributed.require_equal(self.masks, "The masks")

    def fail(self, what: str) -> None:
        """Raise `RunFailed` with the norms of the parameters and the last good checkpoint.

        Args:
            what: what went wrong, as the beginning of a sentence.

        Raises:
            RunFailed: always.
        """
        norms = ", ".join(f"{name} {float(p.detach().norm()):.3g}" for name, p in self.model.named_parameters())
        kept = self.checkpoints.paths() if self.checkpoints is not None else []
        good = f"the last good checkpoint is {kept[0]}" if kept else "no checkpoint was kept"
        raise RunFailed(
            f"{what} at step {self.step} (epoch {self.epoch + 1}, lr {self.lr:.3g}); {good}; try a smaller lr. "
            f"Norms: {norms}."
        )

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def _agreement(self) -> dict[str, Any]:
        """What a resumed run must share with the one that was started."""
        shapes = {name: list(value.shape) for name, value in state_tensors(self.model).items()}
        return {
            "length": str(Duration.parse(self.length)),
            "start": self.start,
            "processes": self.world,
            "data": fingerprint(self.data),
            "model": digest({}, str(sorted(shapes.items())))[:16],
            "masks": digest(self.masks)[:16] if self.masks is not None and "masks" not in self.about else None,
            **self.config.record(),
            **self.about,
        }

    def _due(self) -> bool:
        amount, unit = interval(self.config.every)
        if unit == "min":
            return time.monotonic() - self.saved_time >= 60.0 * amount
        steps = max(1, Duration.parse(self.config.every).steps(self.per_epoch))
        return self.step % steps == 0

    def _save(self, force: bool = False) -> None:
        if self.checkpoints is None or self.rank or self.step == self.saved_step or not (force or self._due()):
            return
        tensors = {f"model.{name}": value for name, value in state_tensors(self.model).items()}
        for name, value in tensors.items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                self.fail(f"{name.removeprefix('model.')} holds values that are not finite")
        moments, plain = pack_optimizer(self.optimizer)
        tensors |= {f"optimizer.{name}": value for name, value in moments.items()}
        kept: dict[str, Any] = {}
        for name, source in self._stateful():
            for key, value in source.state_dict().items():
                if isinstance(value, Tensor):
                    tensors[f"{name}.{key}"] = value
                else:
                    kept[f"{name}.{key}"] = value
        record = {
            "step": self.step,
            "seconds": self.seconds,
            "tally": [self.tally.loss, self.tally.right, self.tally.count, self.tally.counted],
            "history": self.history.to_dicts(),
            "notes": self.history.notes,
            "optimizer": plain,
            "kept": kept,
            "agreement": self.agreed,
        }
        self.checkpoints.save(self.step, tensors, record)
        self.saved_step, self.saved_time = self.step, time.monotonic()

    def _stateful(self) -> list[tuple[str, Any]]:
        return [("objective", self.objective), *((f"callback.{hook.name}", hook) for hook in self.hooks if hook.name)]

    def _resume(self) -> None:
        if self.checkpoints is None:
            return
        self.agreed = self._agreement()
        if not self.config.resume:
            if self.checkpoints.paths():
                raise BadInput(
                    f"{self.checkpoints.folder} already holds a run: give resume=True to go on with it, or another "
                    "folder."
                )
            return
        found = self.checkpoints.newest()
        if found is None:
            return
        tensors, record, note = found
        started = record["agreement"]
        early = SHA not in str(started.get("data"))
        now = self.agreed | {"data": fingerprint(self.data, earlier=True)} if early else self.agreed
        require_same(started, now, Path(self.checkpoints.folder))
        self._restore(tensors, record)
        if note:
            self.history.notes.append(note)

    def _restore(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        def part(prefix: str, source: Mapping[str, Any]) -> dict[str, Any]:
            return {name.removeprefix(prefix): value for name, value in source.items() if name.startswith(prefix)}

        load_state_tensors(self.model, part("model.", tensors))
        unpack_optimizer(self.optimizer, part("optimizer.", tensors), record["optimizer"])
        for name, source in self._stateful():
            state = {**part(f"{name}.", tensors), **part(f"{name}.", record["kept"])}
            if state:
                source.load_state_dict(state)
        self.step = self.saved_step = record["step"]
        self.seconds = record["seconds"]
        self.tally = Tally(*record["tally"])
        self.history = History.from_dicts(record["history"])
        self.history.notes.extend(record["notes"])


def require_filled(masks: Mapping[str, Tensor]) -> None:
    """Refuse masks that leave a layer without a weight: nothing would pass through it."""
    for name, mask in masks.items():
        if mask.numel() and not bool(mask.any()):
            raise BadInput(f"This pruning would leave no weight in {name}: prune less, or exclude that layer.")


def _wrapped(callbacks: Sequence[Any]) -> list[Callback]:
    wrong = [item for item in callbacks if not isinstance(item, Callback) and not callable(item)]
    if wrong:
        raise BadInput(f"{wrong[0]!r} is no callback: give a Callback, or a function of a Record.")
    return [item if isinstance(item, Callback) else EachEpoch(item) for item in callbacks]


def _display(run: Run) -> Any:
    from prunus.training.progress import display

    return display(run)

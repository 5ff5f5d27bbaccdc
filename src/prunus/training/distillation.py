"""`distil`: train a pruned network to answer as the original does, on data without labels."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import Batch, IndexedSamples, as_batch, as_inputs, batches, call, main_output, unpadded
from prunus.contract import Duration, Masks
from prunus.errors import BadInput
from prunus.layers import as_globs, prunable_weights, require_changeable, require_module
from prunus.settings.training import DISTILLING, FitConfig
from prunus.training._unchanged import modes_kept, unchanged_after
from prunus.training.batches import Prepared, check_finite, in_order, reader
from prunus.training.history import History
from prunus.training.loop import Run
from prunus.training.objective import relative, softened


@dataclass(frozen=True)
class DistilOptions:
    """What the student learns from the teacher.

    Attributes:
        outputs: weight of the outputs: softened class scores (Kullback-Leibler), or relative squares for other outputs.
        hidden: weight of the hidden states: relative squared distance after every block.
        layers: names of the modules whose outputs are matched; the blocks of the network unless given.

    Example:
        >>> DistilOptions(hidden=0.0).outputs
        1.0
    """

    outputs: float = 1.0
    hidden: float = 1.0
    layers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("outputs", "hidden"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Real) or not math.isfinite(value) or value < 0:
                raise BadInput(f"The weight of {name} is {value!r}; it must be a number of at least 0.")
        if not self.outputs and not self.hidden:
            raise BadInput("There is nothing to learn: give outputs or hidden states a positive weight.")
        if self.layers is not None:
            object.__setattr__(self, "layers", as_globs(self.layers, "layers"))


def distil(
    student: nn.Module,
    teacher: nn.Module,
    data: Any,
    length: str | Duration = "1ep",
    masks: Masks | None = None,
    config: FitConfig | None = None,
    *,
    options: DistilOptions | None = None,
) -> History:
    """Train `student` in place to give the outputs and hidden states of `teacher`; labels are not needed.

    Both run as in evaluation (no dropout, batch norms as they are), so the teacher's answers are the only source of
    change. With `masks` the zeros are held. With `config.folder` the run keeps checkpoints and can be resumed.

    Hidden states are matched after blocks that run in both networks; a note in the history names those left out.

    Args:
        student: the network to train. After an error it is as it was before; after Ctrl-C, as the last step left it.
        teacher: the original, of the same architecture, or wider and deeper where `prunus.shrink` made the student; it
            is not changed. Hidden states are matched where both have the same shape.
        data: anything that `prunus.adapters.batches` reads. A data set of samples is shuffled anew in every epoch; data
            that come in batches keep them and are shuffled batch by batch. Labels are ignored.
        length: "2ep" or "500it".
        masks: zeros to hold; those the student already has unless given.
        config: how to train; AdamW at a small rate unless given.
        options: what is matched.

    Returns:
        One record for each epoch; `loss` is the distance from the teacher.

    Raises:
        BadInput: if the networks differ in architecture or the data cannot be read.
        RunFailed: if the loss or the weights are not finite any more.

    Example:
        >>> import copy, prunus, torch
        >>> teacher = prunus.models.make("fc:64-32-10", seed=0)
        >>> student = copy.deepcopy(teacher)
        >>> masks = prunus.prune(student, 0.5)
        >>> history = distil(student, teacher, torch.randn(256, 64), length="4ep", masks=masks)
        >>> history[-1].loss < history[0].loss
        True
    """
    for name, given, kind in (
        ("masks", masks, Masks),
        ("config", config, FitConfig),
        ("options", options, DistilOptions),
    ):
        if given is not None and not isinstance(given, kind):
            raise BadInput(f"{name} must be {_SPELT[kind]}, not {type(given).__name__}.")
    config, options = config or DISTILLING, options or DistilOptions()
    require_module(student)
    require_changeable(student)
    _require_alike(student, teacher)
    with torch.inference_mode(False), torch.enable_grad(), unchanged_after(Exception, student):
        return _train(student, teacher, data, length, masks, config, options)


_SPELT = {
    Masks: "prunus.Masks, as prunus.prune and prunus.reconstruct return them",
    FitConfig: "a prunus.training.FitConfig, as in FitConfig(lr=1e-3)",
    DistilOptions: "prunus.training.DistilOptions, as in DistilOptions(hidden=0.5)",
}


def _train(
    student: nn.Module, teacher: nn.Module, data: Any, length: str | Duration, masks: Masks | None, config: FitConfig,
    options: DistilOptions,
) -> History:  # fmt: skip
    if masks is None:
        masks = Masks.from_model(student) or None
    ready = _ready(student, data, config.batch_size)
    names, left = _layers(student, teacher, ready, options)
    size = 1 if isinstance(ready, Prepared) else config.batch_size
    learn = _Matching(student, teacher, names, options, config.temperature)
    about = {"teacher": FitConfig(distill_from=teacher).record()["distill_from"], "matched": list(names)}
    about |= {"outputs": options.outputs, "hidden": options.hidden}
    run = Run(
        student, ready, length, config.replace(batch_size=size), masks, about=about, learn=learn, in_training_mode=False
    )  # fmt: skip
    history = run.train()
    for name, parameter in student.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            run.fail(f"{name} holds values that are not finite")
    if left:
        history.notes.append(
            f"Hidden states are not matched after {', '.join(left)}: student and teacher do not both run these modules "
            "on the first samples, or they return no tensor."
        )
    return history


def _require_alike(student: nn.Module, teacher: nn.Module) -> None:
    """Refuse a student that is no smaller version of the teacher, or the teacher itself."""
    if not isinstance(teacher, nn.Module) or teacher is student:
        raise BadInput("The teacher must be the original network: give a copy made before pruning.")
    theirs = {name: tuple(parameter.shape) for name, parameter in teacher.named_parameters()}
    for name, parameter in student.named_parameters():
        shape, own = theirs.get(_teachers_name(student, name), ()), tuple(parameter.shape)
        if len(shape) != len(own) or any(a > b for a, b in zip(own, shape)):
            raise BadInput(
                f"Student and teacher must have the same architecture, but they differ in {name!r}: only a narrower "
                "student with fewer blocks, as prunus.shrink makes it, may differ."
            )


def _teachers_name(student: nn.Module, name: str) -> str:
    """What something of the student is called in the teacher, which may have blocks that left the student."""
    module, path = student, []
    for part in name.split("."):
        kept = getattr(module, "kept_blocks", None)
        path.append(str(kept[int(part)]) if kept is not None else part)
        module = getattr(module, part, module)
    return ".".join(path)


def _ready(student: nn.Module, data: Any, size: int) -> Any:
    """Data of (input, label) that can be read sample by sample as they are; everything else as a list of batches."""
    if data is None:
        raise BadInput("Distillation needs data: give samples like those the model will meet, labels are not needed.")
    if reader(data) is not None and not _all_inputs(student, data):
        for inputs, _ in in_order(data):
            check_finite(inputs)
        return data
    read = (as_inputs(student, batch) for batch in batches(data, size=size))
    found = [Batch(batch.args, batch.kwargs, None, batch.size) for batch in read]
    for batch in found:
        check_finite(batch)
    return Prepared(found)


def _all_inputs(student: nn.Module, data: Any) -> bool:
    """Does the network take as an input what stands where labels do?"""
    return as_inputs(student, IndexedSamples(data).take(torch.zeros(1, dtype=torch.long))).labels is None


def _layers(
    student: nn.Module, teacher: nn.Module, data: Any, options: DistilOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the modules whose outputs are matched, those left out: the first samples do not reach them in both networks)."""
    from prunus.recovery import blocks

    if not options.hidden:
        return (), ()
    first, _ = reader(data)(torch.arange(min(2, len(data))))  # type: ignore[misc]
    device = next((parameter.device for parameter in student.parameters()), torch.device("cpu"))
    batch, left = as_batch(first).to(device), []
    if options.layers is not None:
        known = dict(student.named_modules())
        for name in options.layers:
            if name not in known:
                raise BadInput(f"The model has no module named {name!r} whose output could be matched.")
        names = list(options.layers)
    else:
        weights = prunable_weights(student)
        names = blocks(student, weights, batch, skip=True)
        lost = {id(weight.module) for weight in weights.values()}
        lost -= {id(module) for name in names for module in student.get_submodule(name).modules()}
        left = [name for name, module in student.named_modules() if id(module) in lost]
    own, theirs = _seen(student, names, batch), _seen(teacher, [_teachers_name(student, name) for name in names], batch)
    both = tuple(name for name in names if not name or (name in own and _teachers_name(student, name) in theirs))
    if not both and not options.outputs:
        raise BadInput(
            "No module whose output could be matched runs in both networks on the data: give outputs a positive weight."
        )
    return both, (*left, *(name for name in names if name not in both))


def _seen(model: nn.Module, names: Sequence[str], batch: Batch) -> set[str]:
    """Those of the named modules that run on the batch, as in evaluation, and return a tensor."""
    known = dict(model.named_modules())
    there = [name for name in names if name in known]
    with modes_kept(model), torch.no_grad(), _outputs_of(model, there) as found:
        model.eval()
        call(model, batch)
    return set(found)


_MAPS = 4
"""Sides of a batch of outputs with classes before height and width."""


class _Matching:
    """The distance of the student's outputs and hidden states from the teacher's on one batch."""

    def __init__(
        self, student: nn.Module, teacher: nn.Module, names: Sequence[str], options: DistilOptions, heat: float
    ) -> None:
        self.student, self.teacher, self.names, self.options, self.heat = student, teacher, names, options, heat
        self.named = {name: _teachers_name(student, name) for name in names}

    def __call__(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch = as_batch(inputs)
        theirs = [self.named[name] for name in self.names]
        with modes_kept(self.teacher), torch.no_grad(), _outputs_of(self.teacher, theirs) as wanted:
            self.teacher.eval()
            target = call(self.teacher, batch)
        with _outputs_of(self.student, self.names) as seen:
            output = call(self.student, batch)
        keep = batch.real_positions()
        answer, right = main_output(output), main_output(target)
        if not bool(torch.isfinite(right).all()):
            raise BadInput("The teacher gives NaN or Inf on the data: mend the teacher or the data.")
        loss = answer.new_zeros(())
        if self.options.outputs:
            loss = loss + self.options.outputs * self._answers(answer, right, keep, hasattr(output, "logits"))
        if self.names:
            both = [name for name in self.names if name in seen and self.named[name] in wanted]
            pairs = [(seen[name], wanted[self.named[name]]) for name in both]
            parts = [relative(_real(a, keep), _real(b, keep)) for a, b in pairs if a.shape == b.shape]
            if parts:
                loss = loss + self.options.hidden * torch.stack(parts).mean()
            elif not self.options.outputs:
                raise BadInput("No hidden state of the student has the teacher's shape; match the outputs as well.")
        return loss, loss.detach(), answer

    def _answers(self, answer: Tensor, right: Tensor, keep: tuple[Tensor, ...], scores: bool) -> Tensor:
        """Softened scores where the outputs are scores of classes; else, or where they may not be, plain distances."""
        answer, right = _real(answer, keep), _real(right, keep)
        if scores and answer.dim() == _MAPS:
            answer, right = answer.movedim(1, -1), right.movedim(1, -1)  # scores of every place of an image
        plain = answer.dim() == 2 and not keep
        if answer.shape[-1] < 2 or not (scores or plain):
            return relative(answer, right)
        far = softened(answer, right, self.heat)
        # Numbers of a regression look like scores, but softmax sees neither their common part nor how large they are.
        return far if scores else far + relative(answer, right)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is carried from step to step."""


def _real(values: Tensor, keep: tuple[Tensor, ...]) -> Tensor:
    """Without padded positions; distances are taken in full precision."""
    return unpadded(values.float() if values.dtype in (torch.bfloat16, torch.float16) else values, keep)


@contextmanager
def _outputs_of(model: nn.Module, names: Sequence[str]) -> Iterator[Mapping[str, Tensor]]:
    """The first tensor that each named module returns, filled in while the model runs."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, (tuple, list)) and output else output
            if isinstance(first, Tensor) and first.is_floating_point():
                found[name] = first

        return hook

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in names if name]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()

"""The loss of a batch, and the loss and accuracy over a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.adapters import IGNORED, Batch, as_weights, call, main_output, unpadded
from prunus.errors import BadInput, PrunusError, first_line
from prunus.settings.training import FitConfig
from prunus.training.batches import Inputs, check_finite, in_order


def kind_of(loss: str, outputs: Tensor, labels: Tensor) -> str:
    """What "auto" means for these outputs and labels."""
    if loss != "auto":
        return loss
    if labels.is_floating_point():
        return "mse"
    return "binary" if outputs.dim() == 1 or outputs.shape[-1] == 1 else "cross_entropy"


def loss_of(
    loss: str | Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """The mean loss of a batch."""
    if not isinstance(loss, str):
        return loss(outputs, labels)
    kind = kind_of(loss, outputs, labels)
    if kind == "cross_entropy":
        if outputs.dim() < 2:
            raise BadInput(
                f"The model gives outputs of shape {tuple(outputs.shape)}; class scores (batch, classes) expected."
            )
        if outputs.dim() == labels.dim() + 1 and outputs.shape[:-1] == labels.shape:  # classes last, for each token
            return F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), label_smoothing=smoothing)
        return F.cross_entropy(outputs, labels, label_smoothing=smoothing)
    if smoothing:
        raise BadInput("label_smoothing spreads class labels over the classes, but this data has none: leave it out.")
    if kind == "binary":
        return F.binary_cross_entropy_with_logits(outputs.reshape(labels.shape), labels.to(outputs.dtype))
    return F.mse_loss(outputs.reshape(labels.shape), labels.to(outputs.dtype))


def correct(outputs: Tensor, labels: Tensor) -> int | None:
    """How many labels are predicted right; None where labels are real numbers."""
    if labels.is_floating_point():
        return None
    if outputs.dim() == 1 or outputs.numel() == labels.numel():  # one score for each label
        return int(((outputs.reshape(labels.shape) > 0) == (labels > 0)).sum())
    if outputs.dim() > 2 and outputs.shape[:-1] == labels.shape:
        return int((outputs.argmax(-1) == labels).sum())
    return int((outputs.argmax(1) == labels).sum())


def own_tokens(inputs: Any, labels: Tensor) -> bool:
    """Are the labels the input tokens themselves? Then what is predicted at a place is the next one, not its own."""
    ids = inputs.kwargs.get("input_ids") if isinstance(inputs, Batch) else None
    if not isinstance(ids, Tensor) or labels.is_floating_point() or not labels.dim() or ids.shape != labels.shape:
        return False
    told = labels != IGNORED
    return bool(told.any()) and bool((ids[told] == labels[told]).all())


def answer(model: nn.Module, inputs: Inputs, loss: Any = None) -> tuple[Tensor, Tensor | None]:
    """(outputs, the model's own loss): the latter where the loss is "auto" and the model computes one from labels."""
    if isinstance(inputs, Tensor):
        output = model(as_weights(model, inputs))
        return (output if isinstance(output, Tensor) else main_output(output)), None
    output = call(model, inputs, labels=loss == "auto")
    own = getattr(output, "loss", None) if loss == "auto" else None
    return main_output(output), own if isinstance(own, Tensor) else None


def labelled(labels: Tensor) -> int:
    """How many labels there are, padding left out."""
    return int((labels != IGNORED).sum()) if not labels.is_floating_point() and labels.dim() > 1 else len(labels)


def softened(outputs: Tensor, target: Tensor, heat: float) -> Tensor:
    """T^2 KL(target || outputs) of scores softened by the temperature T, classes last: the mean over all places."""
    soft, wish = (F.log_softmax(t.flatten(0, -2) / heat, dim=-1) for t in (outputs, target))
    return heat * heat * F.kl_div(soft, wish, reduction="batchmean", log_target=True)


def relative(values: Tensor, target: Tensor) -> Tensor:
    """The squares of the differences as a share of the target's."""
    return (values - target).square().mean() / target.square().mean().clamp_min(1e-12)


def distance(kind: str, outputs: Tensor, target: Tensor, labels: Tensor, inputs: Inputs, heat: float) -> Tensor:
    """How far outputs are from a teacher's, by the kind of loss: a mean over the places that count."""
    if target.numel() != outputs.numel():
        raise BadInput(
            f"The teacher gives outputs of shape {tuple(target.shape)}, the model {tuple(outputs.shape)}: distillation "
            "needs a teacher with outputs like the model's."
        )
    target = target.reshape(outputs.shape)
    masks = inputs.real_positions() if isinstance(inputs, Batch) else ()
    if kind == "mse":
        return relative(unpadded(outputs, masks), unpadded(target.to(outputs.dtype), masks))
    if kind == "binary":  # one score of the second class; the first has none
        if outputs.numel() == labels.numel():
            outputs, target = outputs.reshape(labels.shape), target.reshape(labels.shape)
        outputs, target = (torch.stack([torch.zeros_like(t), t], -1) for t in (outputs, target))
    elif _classes_second(outputs, labels):
        outputs, target = outputs.movedim(1, -1), target.movedim(1, -1)
    if not labels.is_floating_point() and labels.shape == outputs.shape[:-1]:
        real = labels != IGNORED
        if not bool(real.all()):
            outputs, target = outputs[real], target[real]
    elif kind != "binary":
        outputs, target = unpadded(outputs, masks), unpadded(target, masks)
    return softened(outputs, target, heat)


def _classes_second(outputs: Tensor, labels: Tensor) -> bool:
    """Do class scores stand before the places, as those of images do, and not last, as those of tokens?"""
    if outputs.dim() < 3 or outputs.shape[:-1] == labels.shape:
        return False
    return outputs.dim() == 4 or labels.shape in (outputs.shape, outputs.shape[:1] + outputs.shape[2:])


class Objective:
    """The loss of a batch with the terms a `FitConfig` adds: spectral penalty, own penalty, distillation."""

    def __init__(self, model: nn.Module, config: FitConfig) -> None:
        self.model, self.config = model, config
        self.spectral: Any = None
        if config.spectral_penalty:
            from prunus.operators import SpectralPenalty

            self.spectral = SpectralPenalty(model, config.seed)
        self.teacher = config.distill_from
        self.own = False  # did the model compute the last loss itself?

    def __call__(self, inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(whole objective, plain loss, outputs)."""
        outputs, own = answer(self.model, inputs, self.config.loss)
        self.own = own is not None
        if own is not None and self.config.label_smoothing:
            raise BadInput("The model computes its own loss from the labels: label_smoothing cannot change it.")
        outputs = outputs.float() if outputs.dtype == torch.bfloat16 and self.config.precision == "bf16" else outputs
        smoothing = self.config.label_smoothing
        plain = loss_of(self.config.loss, outputs, labels, smoothing) if own is None else own
        whole = plain
        if self.teacher is not None:
            weight = self.config.distill_weight
            whole = (1.0 - weight) * plain + weight * self._distillation(inputs, outputs, labels)
        if self.spectral is not None:
            whole = whole + self.config.spectral_penalty * self.spectral()
        if self.config.penalty is not None:
            whole = whole + self.config.penalty(self.model)
        return whole, plain, outputs

    def _distillation(self, inputs: Inputs, outputs: Tensor, labels: Tensor) -> Tensor:
        """How far the outputs are from the teacher's."""
        assert self.teacher is not None
        training, loss = self.teacher.training, self.config.loss
        self.teacher.eval()
        with torch.no_grad():
            target = answer(self.teacher, inputs)[0]
        self.teacher.train(training)
        kind = kind_of(loss if isinstance(loss, str) else "auto", outputs, labels)
        return distance(kind, outputs, target, labels, inputs, self.config.temperature)

    def state_dict(self) -> dict[str, Any]:
        """The penalty's vectors, which carry over from step to step."""
        return dict(self.spectral.state_dict()) if self.spectral is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if self.spectral is not None:
            self.spectral.load_state_dict(state)


@torch.no_grad()
def check_fits(model: nn.Module, inputs: Tensor) -> None:
    """Refuse inputs on which the model cannot run, or gives no tensor."""
    try:
        main_output(model(inputs))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, PrunusError):
            raise
        raise BadInput(
            f"The model cannot run on this data ({first_line(error)}): its inputs have shape "
            f"{tuple(inputs.shape[1:])}; give data that fits the model."
        ) from error


def _range(labels: Tensor) -> str:
    if not labels.numel() or labels.is_floating_point():
        return f"shape {tuple(labels.shape[1:])}"
    return f"run from {int(labels.min())} to {int(labels.max())}"


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Any,
    batch_size: int = 256,
    loss: str | Callable[[Tensor, Tensor], Tensor] = "auto",
    limit: int | None = None,
) -> tuple[float, float | None]:
    """Mean loss and accuracy in evaluation mode; the mode is put back.

    Args:
        model: Any module.
        data: A data set of (input, label) pairs, or batches.
        batch_size: Samples at a time.
        loss: As `FitConfig.loss`.
        limit: Number of batches to look at; None takes all.

    Returns:
        The loss, and the accuracy or None where the labels are no classes, or a language model's own input tokens.

    Raises:
        BadInput: The model cannot run on the data.

    Example:
        >>> data = torch.utils.data.TensorDataset(10 * torch.eye(4), torch.tensor([0, 1, 2, 0]))
        >>> loss, accuracy = prunus.training.evaluate(torch.nn.Identity(), data)
        >>> round(loss, 2), accuracy
        (2.5, 0.75)
    """
    training = model.training
    model.eval()
    total, hits, count = 0.0, 0, 0
    counted = True
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        for inputs, labels in in_order(data, batch_size, limit):
            inputs, labels = inputs.to(device), labels.to(device)
            check_finite(inputs)
            number = labelled(labels)
            try:
                outputs, own = answer(model, inputs, loss)
                total += float(loss_of(loss, outputs, labels) if own is None else own) * number
                right = None if own is not None and own_tokens(inputs, labels) else correct(outputs, labels)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
                if isinstance(error, PrunusError):
                    raise
                shape = tuple((inputs if isinstance(inputs, Tensor) else inputs.inputs).shape[1:])
                raise BadInput(
                    f"The model cannot be measured on this data ({first_line(error)}): its inputs have shape "
                    f"{shape}, its labels {_range(labels)}; give data that fits the model."
                ) from error
            counted = counted and right is not None
            hits += right or 0
            count += number
    finally:
        model.train(training)
    return total / max(1, count), hits / max(1, count) if counted else None


def accuracy(model: nn.Module, data: Any, batch_size: int = 256, limit: int | None = None) -> float:
    """Fraction of labels predicted right, in evaluation mode.

    Args:
        model: Any module; its mode is put back afterwards.
        data: A data set of (input, label) pairs, or batches.
        batch_size: Samples at a time.
        limit: Number of batches to look at; None takes all.

    Returns:
        The accuracy, in [0, 1].

    Raises:
        BadInput: The labels are no classes, or the model cannot run on the data.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.eye(4), torch.tensor([0, 1, 2, 0]))
        >>> prunus.training.accuracy(torch.nn.Identity(), data)
        0.75
    """
    found = evaluate(model, data, batch_size, limit=limit)[1]
    if found is None:
        raise BadInput(
            "Accuracy needs class labels, but the labels of this data are real numbers, or the tokens that a language "
            "model predicts: use evaluate or perplexity."
        )
    return found

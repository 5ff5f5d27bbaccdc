"""What a run reports: one record per epoch, and the callbacks that receive it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from prunus.training.loop import Run


@dataclass(frozen=True)
class Record:
    """The state after an epoch (or after the last, partial one).

    Attributes:
        epoch: Epochs done, from 1.
        step: Optimizer steps done.
        loss: Mean over the epoch's training batches as they were seen.
        accuracy: The same for the accuracy; None where the labels are no classes.
        test_loss: On the test data, where given.
        test_accuracy: On the test data, where given.
        seconds: Training time so far.
        lr: Learning rate of the epoch's last step.
        sparsity: Fraction of zeros in the masked weights, where masks are held.

    Example:
        >>> print(Record(1, 4, 0.5, 0.75, None, None, 2.0, 0.1))
        epoch 1, loss 0.5000, accuracy 0.7500, 2.0 s
    """

    epoch: int
    step: int
    loss: float
    accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None
    seconds: float
    lr: float
    sparsity: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        parts = [f"epoch {self.epoch}", f"loss {self.loss:.4f}"]
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.4f}")
        if self.test_accuracy is not None:
            parts.append(f"test accuracy {self.test_accuracy:.4f}")
        if self.sparsity is not None:
            parts.append(f"sparsity {self.sparsity:.3f}")
        return ", ".join([*parts, f"{self.seconds:.1f} s"])


class History(list[Record]):
    """Records in order.

    Attributes:
        notes: Remarks beside the records, such as a damaged checkpoint that was passed over.

    Example:
        >>> history = History([Record(1, 4, 0.5, 0.75, None, None, 2.0, 0.1)])
        >>> history[-1].loss
        0.5
        >>> History.from_dicts(history.to_dicts()) == history
        True
    """

    def __init__(self, records: Iterable[Record] = (), notes: Iterable[str] = ()) -> None:
        super().__init__(records)
        self.notes = list(notes)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The records as plain JSON."""
        return [record.to_dict() for record in self]

    @classmethod
    def from_dicts(cls, rows: Iterable[Mapping[str, Any]]) -> History:
        """The inverse of `to_dicts`.

        Args:
            rows: the records as plain data.

        Returns:
            The history.
        """
        return cls(Record(**row) for row in rows)


class Callback:
    """What may happen during a run: subclass it and override what you need.

    A callback with a `name` keeps its `state_dict` in the run's checkpoints: tensors, numbers or text.

    Example:
        >>> class Count(prunus.training.Callback):
        ...     steps = 0
        ...     def after_step(self, run):
        ...         self.steps += 1
        >>> count = Count()
        >>> data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.arange(16) % 2)
        >>> config = prunus.training.FitConfig(batch_size=8, callbacks=(count,))
        >>> history = prunus.training.fit(torch.nn.Linear(4, 2), data, "3ep", config)
        >>> count.steps
        6
    """

    name: str = ""

    @property
    def sparsity(self) -> float | None:
        """The fraction of zeros to put on record, for callbacks that have masks of their own."""
        return None

    def start(self, run: Run) -> None:
        """Before the first step, after a checkpoint was read.

        Args:
            run: the run.
        """

    def before_step(self, run: Run) -> None:
        """Before the forward pass of step `run.step`.

        Args:
            run: the run.
        """

    def after_backward(self, run: Run) -> None:
        """Gradients are there (averaged over processes), the optimizer has not moved.

        Args:
            run: the run.
        """

    def after_step(self, run: Run) -> None:
        """The optimizer has moved; `run.step` still names the step just made.

        Args:
            run: the run.
        """

    def epoch_end(self, run: Run, record: Record) -> None:
        """A record was added to the history.

        Args:
            run: the run.
            record: the new record.
        """

    def finish(self, run: Run) -> None:
        """After the last step, or when the run fails.

        Args:
            run: the run.
        """

    def state_dict(self) -> dict[str, Tensor | float | int | str]:
        """What a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave.

        Args:
            state: that state.
        """


class EachEpoch(Callback):
    """A plain function of the record as a callback."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def epoch_end(self, run: Run, record: Record) -> None:
        self.function(record)

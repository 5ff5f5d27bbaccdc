"""Scalars for TensorBoard, one per epoch (extra: tensorboard)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunus.errors import MissingExtra
from prunus.training.history import Callback, Record

if TYPE_CHECKING:
    from prunus.training.loop import Run


class TensorBoard(Callback):
    """Writes loss, accuracy, test accuracy, learning rate and sparsity into event files under `folder`."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard", "Logging for TensorBoard") from None
        self.writer: Any = SummaryWriter(str(folder))

    def epoch_end(self, run: Run, record: Record) -> None:
        for name, value in record.to_dict().items():
            if value is not None and name not in ("epoch", "step"):
                self.writer.add_scalar(name, value, record.step)

    def finish(self, run: Run) -> None:
        self.writer.close()

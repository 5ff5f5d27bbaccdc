"""The state of a reconstruction in a folder, block by block, so that a run that was broken off goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from prunus.adapters import Batch
from prunus.errors import BadInput
from prunus.settings.recovery import ReconstructOptions
from prunus.storage import digest, read_record, read_tensors, write_record, write_tensors

_KIND = "reconstruction"
_SILENT = ("memory", "progress", "folder")


class Saved:
    """A file for the spread of the sparsity and one for each finished block, all of the same run."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder, self.run = folder, run

    def _path(self, number: int) -> Path:
        return self.folder / f"block-{number:04d}.safetensors"

    def _require_same(self, run: Any) -> None:
        if run != self.run:
            raise BadInput(
                f"{self.folder} holds a reconstruction of another model, other data or other settings: give the same "
                "ones to go on with it, or another folder."
            )

    def block(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and record of a finished block; None where it is still to be done."""
        if not self._path(number).is_file():
            return None
        tensors, record = read_tensors(self._path(number), _KIND)
        self._require_same(record["run"])
        return tensors, record

    def keep(self, number: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Write a finished block."""
        write_tensors(self._path(number), tensors, _KIND, {**record, "run": self.run})

    def levels(self) -> dict[str, float] | None:
        """How the sparsity was spread over the layers, where that was measured."""
        path = self.folder / "levels.json"
        if not path.is_file():
            return None
        record = read_record(path, _KIND)
        self._require_same(record["run"])
        return {str(name): float(level) for name, level in record["levels"].items()}

    def keep_levels(self, levels: Mapping[str, float]) -> None:
        """Write them."""
        write_record(self.folder / "levels.json", _KIND, {"levels": dict(levels), "run": self.run})


def saved(
    model: nn.Module, calibration: Sequence[Batch], options: ReconstructOptions, *said: object
) -> Saved | None:  # fmt: skip
    """The state that belongs to exactly this run; None without a folder."""
    if options.folder is None:
        return None
    state = model.state_dict().items()
    tensors: dict[str, Tensor] = {f"model.{name}": value for name, value in state if isinstance(value, Tensor)}
    for number, batch in enumerate(calibration):
        named = [*((str(place), value) for place, value in enumerate(batch.args)), *batch.kwargs.items()]
        tensors |= {f"data.{number}.{name}": value for name, value in named if isinstance(value, Tensor)}
    settings = {k: v for k, v in dataclasses.asdict(options).items() if k not in _SILENT}
    return Saved(Path(options.folder), digest(tensors, repr(sorted(settings.items())), *map(repr, said)))

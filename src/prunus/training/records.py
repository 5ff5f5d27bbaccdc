"""A run folder: record.json, the weights, the masks, a learning curve, and the checkpoints in a folder of their own."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunus.contract import Masks
from prunus.errors import BadInput
from prunus.models.weights import save_weights
from prunus.storage import write, write_json
from prunus.training.curves import lines_of, svg_plot
from prunus.training.history import History


def versions() -> dict[str, str]:
    """Versions of Python and the libraries the run used."""
    import numpy
    import safetensors

    from prunus import __version__

    return {
        "prunus": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
    }


class RunFolder:
    """Where one run of a command leaves what it made. `checkpoints` is the folder for `FitConfig`."""

    def __init__(self, folder: str | Path, resume: bool = False) -> None:
        self.folder = Path(folder)
        if not resume and (self.folder / "record.json").exists():
            raise BadInput(f"{self.folder} already holds a finished run: choose another folder, or give --resume.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise BadInput(f"{self.folder} is a file: name a folder for the run.") from None
        except OSError as error:
            raise BadInput(f"{self.folder} cannot be made: {error.strerror or error}; choose another folder.") from None

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"

    def write(
        self,
        settings: Mapping[str, Any],
        result: Mapping[str, Any],
        history: History,
        model: nn.Module,
        masks: Masks | None = None,
    ) -> None:
        """Leave everything; the record last, so that a folder with a record is whole."""
        save_weights(model, self.weights)
        if masks is not None:
            masks.save(self.folder / "masks.safetensors")
        title = str(settings.get("model", "training"))
        write(self.folder / "curve.svg", svg_plot(lines_of(history), title))
        record = {
            "command": " ".join(Path(part).name if not i else part for i, part in enumerate(sys.argv)),
            "settings": dict(settings),
            "result": dict(result),
            "versions": versions(),
            "notes": history.notes,
            "history": history.to_dicts(),
        }
        write_json(self.folder / "record.json", record)

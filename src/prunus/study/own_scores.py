"""A user's own score, registered in the processes that run the cells by importing the file that registers it."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

from prunus.errors import BadInput


def address(score: str) -> dict[str, str] | None:
    """Where a worker finds a registered score; None for those of Prunus and for names it can import itself.

    Args:
        score: a score's name, as in `prunus.scores.register("mine")`.

    Returns:
        The module's name, or the path of the program that registered it.

    Raises:
        BadInput: a score that was typed into an interpreter, which no other process can read.
    """
    from prunus.pruning import scores

    if score not in scores.names():
        return None
    function = scores.parse(score).function
    module = getattr(function, "__module__", "") or ""
    if module.split(".")[0] == "prunus":
        return None
    if module != "__main__":
        return {"name": score, "module": module}
    file = getattr(sys.modules["__main__"], "__file__", None)
    if not file or not Path(file).is_file():
        raise BadInput(
            f"The score {score!r} was registered in an interpreter, where the processes of a study cannot find it: "
            "put it into a file and import it."
        )
    return {"name": score, "file": str(Path(file).resolve())}


def fetch(found: dict[str, Any] | None) -> None:
    """Register in this process what `address` found; a score that is known already is left as it is."""
    from prunus.pruning import scores

    if found is None or found["name"] in scores.names():
        return
    if "file" in found:
        runpy.run_path(found["file"], run_name="__prunus_study__")  # not __main__: the study must not start again
    else:
        importlib.import_module(found["module"])
    if found["name"] not in scores.names():
        raise BadInput(
            f"{found.get('file') or found['module']} does not register the score {found['name']!r} when it is "
            "imported: register it at the top of the file."
        )

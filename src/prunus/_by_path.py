"""Objects named as "package.module:name": the user's own models and data sets."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from prunus.errors import BadInput


def is_import_path(text: str) -> bool:
    """Whether `text` reads as dotted module, colon, dotted attribute."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])


def import_object(path: str, kind: str) -> Any:
    """The object at "package.module:name"; modules in the current folder are found too.

    `kind` says what is being looked for ("model", "data set") in the error's sentence.
    """
    module_name, _, attribute = path.partition(":")
    here = os.getcwd()
    sys.path.append(here)  # a console script does not have the user's folder on its path
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BadInput(
            f"The {kind} {path!r} cannot be imported: there is no module {error.name!r} on Python's path or in {here}."
        ) from error
    except Exception as error:
        raise BadInput(
            f"The {kind} {path!r} cannot be imported: the module {module_name} fails with {describe(error)}."
        ) from error
    finally:
        sys.path.remove(here)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadInput(f"The {kind} {path!r} cannot be imported: the module {module_name} has no {attribute!r}.")
        found = getattr(found, part)
    return found


def describe(error: BaseException) -> str:
    """The error's type and the first line of its message, for use inside a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__

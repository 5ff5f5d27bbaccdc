"""Finding a set's files in a folder, and one sentence for each way in which that fails."""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prunus._by_path import describe
from prunus.errors import BadFile, BadInput


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what decoders raise on damaged bytes into one sentence that names the file."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # gzip, lzma, zipfile, numpy and json raise a dozen types; only decoding stands inside
        raise BadFile(
            f"The data file {path} is damaged or of another kind ({describe(error)}): fetch it again."
        ) from error


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked where its name ends in .gz or .xz."""
    with reading(path):
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                return stream.read()
        if path.suffix == ".xz":
            with lzma.open(path) as stream:
                return stream.read()
        return path.read_bytes()


def data_folder(folder: str | os.PathLike[str] | None, title: str, expected: str) -> Path:
    """The folder that was given, or that of PRUNUS_DATA; `title` and `expected` are for the error's sentence."""
    chosen = folder if folder is not None else os.environ.get("PRUNUS_DATA") or None
    if chosen is None:
        raise BadInput(
            f"{title} needs a data folder with {expected}: name the folder with folder=, --data-dir or the environment "
            "variable PRUNUS_DATA."
        )
    path = Path(chosen).expanduser()
    if not path.is_dir():
        raise BadInput(f"There is no data folder {path}: {title} is expected there as {expected}.")
    return path


def find(folder: Path, places: Sequence[str], choices: Sequence[str]) -> Path | None:
    """The first of `choices` in the first of the subfolders `places` (then the folder itself) that has one."""
    for place in [*places, "."]:
        for choice in choices:
            path = folder / place / choice
            if path.exists():
                return path
    return None

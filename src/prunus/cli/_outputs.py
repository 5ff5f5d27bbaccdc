"""What a command may write to: never to what it reads, and over no file that Prunus did not write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prunus.errors import BadInput

_OUTPUTS = ("output", "onnx", "plot", "export")
_BESIDE = ("prune", "reconstruct", "recipe", "shrink")
"""These write masks beside the weights."""
_WEIGHTS = (*_BESIDE, "distil")
"""To these a name without an ending means a file of safetensors."""
_FOREIGN = "{file} exists and is no file that Prunus wrote: name another with {flag}, or move it away."


def check_outputs(command: str, values: Mapping[str, Any]) -> None:
    """Refuse, before anything is done, an output that would destroy something.

    Args:
        command: the name of the command.
        values: its arguments by the names of its parameters.

    Raises:
        BadInput: an output is one of the inputs, or a file that Prunus did not write, or no file at all.
    """
    read = {f"--{name.replace('_', '-')}": value for name, value in values.items() if name not in _OUTPUTS}
    for name in _OUTPUTS:
        output = values.get(name)
        if not isinstance(output, Path):
            continue
        flag = "-o" if name == "output" else f"--{name}"
        written = list(_written(command, output) if name == "output" else [output])
        for file in (file for file in written if file.exists()):
            for given, value in read.items():
                if any(_is_part(file, source) for source in _files(value)):
                    called = "the model" if given == "--model" else f"what {given} names"
                    raise BadInput(f"{flag} would replace {file}, which is {called}: give another name with {flag}.")
            if file.is_file() and not _ours(file):
                raise BadInput(_FOREIGN.format(file=file, flag=flag))


def _written(command: str, output: Path) -> Iterator[Path]:
    """The files that `-o` stands for."""
    if command not in _WEIGHTS:
        yield output
        return
    from prunus.cli.prune import file_named, masks_beside

    yield file_named(output)
    if command in _BESIDE:
        yield masks_beside(file_named(output))


def _files(value: Any) -> Iterator[Path]:
    """The files and folders that an argument names: as a path, as "hf:FOLDER", or as "FILE:column"."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _files(each)
    elif isinstance(value, (str, Path)):
        text = str(value).removeprefix("hf:")
        for name in (text, text.rpartition(":")[0]):
            if name and "\0" not in name and Path(name).exists():
                yield Path(name)
                return


def _is_part(file: Path, source: Path) -> bool:
    """Whether a file is the source, or one of those that make the model in a folder."""
    if file.samefile(source):
        return True
    config = source / "config.json"
    if not config.is_file() or file.resolve().parent != source.resolve():
        return False
    return file.suffix in (".json", ".bin", ".txt") or file.match("model*.safetensors")


def _ours(file: Path) -> bool:
    """Whether Prunus writes such files: marked safetensors, JSON, pages, drawings, tables and ONNX; or it is empty."""
    if file.suffix in (".onnx", ".csv", ".parquet"):
        return True
    with file.open("rb") as stream:
        head = stream.read(8)
        rest = stream.read(min(int.from_bytes(head, "little"), 1 << 27)) if head[:1] not in b"{[<" else b""
    return head[:1] in (b"", b"{", b"[", b"<") or (rest[:1] == b"{" and b'"prunus.' in rest)

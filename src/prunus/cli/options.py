"""Options that several commands share, with their help."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators

Model = Annotated[
    str, Parameter(help="Zoo name, as in `resnet20` or `conv6:width=0.5`, `hf:FOLDER`, or `package.module:factory`.")
]
Weights = Annotated[
    Path | None, Parameter(help="Weights to load: safetensors, or a torch file (read without running code).")
]
Data = Annotated[
    str | None,
    Parameter(
        help="digits, digits-images, mnist, fashion-mnist, cifar10, covertype, imdb, sst2, `package.module:dataset`, "
        "a JSONL, CSV or text file, or a folder of images."
    ),
]
DataDir = Annotated[Path | None, Parameter(help="Folder of the public data sets; PRUNUS_DATA is used otherwise.")]
Seed = Annotated[
    int,
    Parameter(
        validator=validators.Number(gte=0, lt=2**63),
        help="Seed of every random choice: on one machine, with as many threads, the same seed gives the same bytes.",
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document instead of tables.")]
State = Annotated[
    Path | None, Parameter(help="Keep the state here; the same command goes on from it if it is broken off.")
]
NewWeights = Annotated[
    Path | None, Parameter(alias="-o", help="Where the new weights go (safetensors); masks go beside them.")
]
Pattern = Annotated[str, Parameter(help="unstructured, balanced:B, N:M, kernels, channels or blocks:RxC.")]
Exclude = Annotated[
    list[str], Parameter(negative="", help="Names or globs of layers that are never pruned; may be repeated.")
]


def flags_of(name: str, *fields: list[tuple[str, Any, None]]) -> type:
    """A dataclass of flags, all None unless given, of the fields that `flags` makes."""
    made = [field for part in fields for field in part]
    return dataclasses.make_dataclass(name, made, frozen=True, namespace={"__module__": __name__})


def flags(
    owner: type, own_types: Mapping[str, Any] | None = None, names: Collection[str] = (), base: Any = None
) -> list[tuple[str, Any, None]]:
    """Flags for the fields of the dataclass `owner`.

    The help of a flag is the field's `help` in its metadata, else its line under "Attributes:" in the docstring of
    `owner`, with its default.

    Args:
        owner: the dataclass.
        own_types: types of flags that are not those of the fields.
        names: which fields; all unless given.
        base: has the defaults of this command, where they are not those of `owner`.
    """
    texts, hints = attributes(owner), typing.get_type_hints(owner)
    made: list[tuple[str, Any, None]] = []
    for field in dataclasses.fields(owner):
        if names and field.name not in names:
            continue
        text, default = field.metadata.get("help") or texts[field.name], field.default
        if base is not None and getattr(base, field.name) != getattr(owner(), field.name):
            default = getattr(base, field.name)
            text = re.sub(r"; [^;]* unless given", "", text)
        if isinstance(default, (int, float, str)) and not isinstance(default, bool) and default != "":
            text += f" {default if isinstance(default, str) else format(default, 'g')} unless given."
        kind = (own_types or {}).get(field.name, hints[field.name])
        name = f"--{field.name}" if len(field.name) == 1 else None  # not -k
        made.append((field.name, Annotated[kind | None, Parameter(name=name, help=text)], None))
    return made


def given(flags: Any) -> dict[str, Any]:
    """The flags of a `flags_of` dataclass that were given, by name; None has none."""
    return {} if flags is None else {name: value for name, value in vars(flags).items() if value is not None}


def attributes(owner: type) -> dict[str, str]:
    """The lines under "Attributes:" in a docstring, by name."""
    section = re.search(r"^Attributes:\n((?: .*\n?|\n)*)", inspect.getdoc(owner) or "", re.MULTILINE)
    found = re.findall(r"^ {4}(\w+): ((?:.*\n?)(?: {8}.*\n?)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}

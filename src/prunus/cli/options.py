"""Options that several commands share, with their help."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping
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
Exclude = Annotated[
    list[str], Parameter(negative="", help="Names or globs of layers that are never pruned; may be repeated.")
]


def flags_of(owner: type, own_types: Mapping[str, Any], group: Parameter) -> type:
    """A dataclass of flags with the fields of `owner`, all None unless given.

    The help of a flag is the field's line under "Attributes:" in the docstring of `owner`, with its default.
    `own_types` has the types of flags that are not those of the fields.
    """
    texts, hints = attributes(owner), typing.get_type_hints(owner)
    made = []
    for field in dataclasses.fields(owner):
        kind = own_types.get(field.name, hints[field.name])
        text = texts[field.name]
        if field.default not in ("", (), True, False):
            text += f" {field.default} unless given."
        made.append((field.name, Annotated[kind | None, Parameter(help=text)], None))
    return group(
        dataclasses.make_dataclass(f"{owner.__name__}Flags", made, frozen=True, namespace={"__module__": __name__})
    )


def attributes(owner: type) -> dict[str, str]:
    """The lines under "Attributes:" in a docstring, by name."""
    section = re.search(r"^Attributes:\n((?: .*\n?|\n)*)", inspect.getdoc(owner) or "", re.MULTILINE)
    found = re.findall(r"^ {4}(\w+): ((?:.*\n?)(?: {8}.*\n?)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}

"""Options that several commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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

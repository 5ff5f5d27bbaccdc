"""Data of one's own from files: text in JSONL, CSV or plain lines, and folders of images.

reviews.jsonl            the column "text" (or the only one with text), labels from "label"
pairs.csv:first,second   two texts for each sample; their similarity from "label" or "score"
words.txt                one sample for each line, or running text for a language model
photos/                  a folder for each class, or images beside each other
"""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prunus.errors import BadFile, BadInput, MissingExtra, first_line

TEXT = (".jsonl", ".csv", ".tsv", ".txt")
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
_LABELS = ("label", "labels", "score", "class", "target")


def is_own(name: str) -> bool:
    """Whether a name means a file or folder of the user's."""
    path = Path(_parts(name)[0])
    return path.suffix.lower() in TEXT or path.is_dir()


def is_text(name: str) -> bool:
    """Whether a name means a file of text."""
    return Path(_parts(name)[0]).suffix.lower() in TEXT


@dataclass(frozen=True)
class Pictures:
    """How a model takes its pictures: brought to `shorter` on the shorter side, then cut to (height, width)."""

    size: tuple[int, int] | None = None
    shorter: int | None = None
    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)


def load_own(
    name: str,
    tokenizer: Any = None,
    length: int = 128,
    pictures: Pictures | None = None,
    decoder_start: int | None = None,
) -> list[Any]:
    """Samples from a file of text or a folder of images.

    Args:
        name: the path, for text perhaps with ":column" or ":first,second".
        tokenizer: makes token ids from text, as a model of transformers brings it.
        length: longest text, in tokens.
        pictures: how images are sized and scaled; as they are, in 0..1, without it.
        decoder_start: the token that the decoder of a model with an encoder begins with; it then reads the text after
            that.

    Returns:
        A list: dicts of token ids with labels, or (image, label) pairs.

    Raises:
        BadFile: if the file is missing, empty, or lacks the column.
        BadInput: if text is given and there is no tokenizer.
    """
    text, columns = _parts(name)
    path = Path(text)
    if path.is_dir():
        return _images(path, pictures or Pictures())
    if not path.is_file():
        raise BadFile(f"There is no file {path}: give a JSONL, CSV or text file, or a folder of images.")
    if tokenizer is None:
        raise BadInput(f"Text such as {path} needs a tokenizer: name the model as hf:FOLDER, with a tokenizer in it.")
    rows = _rows(path)
    if not rows:
        raise BadFile(f"The file {path} holds no samples.")
    found = [_sample(row, _columns(rows[0], columns, path), tokenizer, length, path) for row in rows]
    if decoder_start is not None:
        for sample in found:
            if isinstance(sample, dict):
                sample["decoder_input_ids"] = [decoder_start, *list(sample["input_ids"])[:-1]]
    return found


def _parts(name: str) -> tuple[str, list[str]]:
    path, colon, columns = name.rpartition(":")
    if colon and Path(path).suffix.lower() in TEXT:
        return path, [column.strip() for column in columns.split(",")]
    return name, []


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:  # Excel begins a file with a mark
            if path.suffix.lower() == ".jsonl":
                return [_object(line, number, path) for number, line in enumerate(stream, 1) if line.strip()]
            if path.suffix.lower() == ".txt":
                return [{"text": line.rstrip("\n")} for line in stream if line.strip()]
            return list(csv.DictReader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    except BadFile:
        raise
    except (OSError, UnicodeError, ValueError, csv.Error) as error:
        raise BadFile(f"The file {path} cannot be read ({first_line(error)}).") from error


def _object(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise BadFile(f"The file {path} cannot be read: line {number} is no JSON.") from error
    if not isinstance(row, dict):
        raise BadFile(f'The file {path} holds something else than an object in line {number}: write {{"text": ...}}.')
    return row


def _columns(row: dict[str, Any], wanted: list[str], path: Path) -> list[str]:
    known = [name for name, value in row.items() if isinstance(value, str) and name not in _LABELS]
    found = wanted or (["text"] if "text" in row else known[:1] if len(known) == 1 else [])
    if not found or any(name not in row for name in found):
        one = known[0] if known else "text"
        names = ", ".join(map(str, row))
        raise BadFile(f"The file {path} has the columns {names}: say which one to read, as {path}:{one}.")
    return found


def _sample(row: dict[str, Any], columns: list[str], tokenizer: Any, length: int, path: Path) -> Any:
    label_column = next((name for name in _LABELS if name in row), None)
    label = None if label_column is None else row[label_column]
    needed = [*columns, *([] if label_column is None else [label_column])]
    missing = next((name for name in needed if row.get(name) is None), None)
    if missing is not None:
        raise BadFile(f"The file {path} holds a row without {missing!r}: every row needs it, or none.")
    try:
        number = None if label is None else float(label)
    except (TypeError, ValueError) as error:
        raise BadFile(f"The file {path} holds the label {label!r}: write the number of the class instead.") from error
    texts = [str(row[name]) for name in columns]
    parts = [dict(tokenizer(text, truncation=True, max_length=length)) for text in texts]
    if len(parts) == 2:
        return (*parts, 0.0 if number is None else number)
    sample = parts[0]
    if number is None:
        return {**sample, "labels": list(sample["input_ids"])}  # a language model predicts the text itself
    return {**sample, "labels": int(number) if number.is_integer() else number}


def pictures_of(folder: str | os.PathLike[str]) -> Pictures:
    """How the model of a folder takes its pictures: as in preprocessor_config.json, else of its config's size.

    Raises:
        BadFile: if the file is there and cannot be read.
    """
    place = Path(folder)
    rules, config = (_record(place / name) for name in ("preprocessor_config.json", "config.json"))
    sides, cut = rules.get("size", config.get("image_size")), rules.get("crop_size")
    shorter = sides.get("shortest_edge") if isinstance(sides, dict) else None
    size = _square(cut) if rules.get("do_center_crop") and cut else _square(sides)
    if size is None:
        return Pictures()
    if shorter and rules.get("crop_pct"):
        shorter = int(shorter / rules["crop_pct"])
    scaled = rules.get("do_normalize", "image_mean" in rules)
    mean, deviation = (tuple(rules.get(name, ())) for name in ("image_mean", "image_std"))
    return Pictures(size, shorter, mean or (0.0,), deviation or (1.0,)) if scaled else Pictures(size, shorter)


def decoder_start_of(folder: str | os.PathLike[str]) -> int | None:
    """The token that the decoder of this folder's model begins with; None for models without an encoder beside it.

    Raises:
        BadFile: if config.json is there and cannot be read.
    """
    config = _record(Path(folder) / "config.json")
    if not config.get("is_encoder_decoder"):
        return None
    start = config.get("decoder_start_token_id", config.get("pad_token_id"))
    return start if isinstance(start, int) else 0


def _record(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text("utf-8-sig")))
    except (OSError, ValueError) as error:
        raise BadFile(f"The file {path} cannot be read ({first_line(error)}).") from error


def _square(sides: Any) -> tuple[int, int] | None:
    """(height, width) from a number, a pair, or {"height", "width"} or {"shortest_edge"}."""
    if isinstance(sides, dict):
        sides = [sides.get("height", sides.get("shortest_edge")), sides.get("width", sides.get("shortest_edge"))]
    both = list(sides) if isinstance(sides, (list, tuple)) else [sides, sides]
    return (int(both[0]), int(both[1])) if all(isinstance(side, int) for side in both) else None


def _images(folder: Path, rules: Pictures) -> list[tuple[Tensor, int]]:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "images", "A folder of images") from None

    classes = sorted(place for place in folder.iterdir() if place.is_dir()) or [folder]
    found: list[tuple[Tensor, int]] = []
    for label, place in enumerate(classes):
        for file in sorted(place.iterdir()):
            if file.suffix.lower() in IMAGES:
                try:
                    with Image.open(file) as image:
                        found.append((_pixels(image.convert("RGB"), rules), label))
                except OSError as error:
                    raise BadFile(f"The image {file} cannot be read ({first_line(error)}).") from error
    if not found:
        raise BadFile(f"The folder {folder} holds no images ({', '.join(IMAGES)}).")
    sizes = {tuple(image.shape[1:]) for image, _ in found}
    if len(sizes) > 1:
        shown = " and ".join(f"{height} x {width}" for height, width in sorted(sizes)[:2])
        raise BadFile(f"The images in {folder} differ in size ({shown}): resize them to the size that the model takes.")
    return found


def _pixels(image: Any, rules: Pictures) -> Tensor:
    """(channels, height, width), sized, cut from the middle and scaled."""
    import numpy as np

    if rules.size is not None:
        height, width = rules.size
        factor = (rules.shorter or 0) / min(image.size)
        wanted = (width, height) if not factor else tuple(max(1, round(side * factor)) for side in image.size)
        image = image.resize(wanted)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
    mean, deviation = (torch.tensor(values).reshape(-1, 1, 1) for values in (rules.mean, rules.deviation))
    return ((pixels - mean) / deviation).contiguous()

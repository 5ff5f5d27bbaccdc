from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tools.evidence import record

from prunus.contract import Masks
from prunus.errors import BadFile, BadInput
from support import scale


def masks_of_many_shapes() -> Masks:
    generator = torch.Generator().manual_seed(4)
    shapes = [(3, 5), (1,), (7, 2, 3, 3), (64, 64), (0, 4), (13,)]
    return Masks(
        {f"layer{i}.weight": torch.rand(s, generator=generator) < 0.4 for i, s in enumerate(shapes)}, {"score": "test"}
    )


def test_round_trip(tmp_path: Path) -> None:
    masks = masks_of_many_shapes()
    masks.save(tmp_path / "m.safetensors")
    again = Masks.load(tmp_path / "m.safetensors")
    assert again == masks
    assert list(again) == list(masks)
    assert again.notes == {"score": "test"}
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_eight_weights_to_a_byte(tmp_path: Path) -> None:
    Masks({"w": torch.rand(1000, 800) < 0.1}).save(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size < 1000 * 800 / 8 + 1000


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    Masks({"w": torch.tensor([True, False, False, True, True, False, False, False, True])}).save(tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    begin, end = header["w"]["data_offsets"]
    assert content[8 + size + begin : 8 + size + end] == bytes([0b00011001, 0b1])


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{}", b"hello world, this is no file"])
def test_foreign_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(BadFile):
        Masks.load(tmp_path / "m")


def test_other_safetensors_and_missing_files(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "weights")
    with pytest.raises(BadFile, match="does not hold masks"):
        Masks.load(tmp_path / "weights")
    with pytest.raises(BadFile, match="cannot be read"):
        Masks.load(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="cannot be written"):
        masks_of_many_shapes().save(tmp_path / "no" / "such" / "folder")


@pytest.mark.prove
def test_damaged_files_never_load_as_something_else(tmp_path: Path) -> None:
    """Flips, cuts, insertions and overwrites at random places: an error, or the very same masks."""
    masks = masks_of_many_shapes()
    masks.save(tmp_path / "m")
    good = (tmp_path / "m").read_bytes()
    source, refused = random.Random(1), 0
    count = scale(600, full=10_000)
    for number in range(count):
        bad = bytearray(good)
        kind = number % 4
        if kind == 0:
            bad[source.randrange(len(bad))] ^= 1 << source.randrange(8)
        elif kind == 1:
            del bad[source.randrange(len(bad)) :]
        elif kind == 2:
            bad[source.randrange(len(bad)) : 0] = source.randbytes(source.randrange(1, 9))
        else:
            start = source.randrange(len(bad))
            bad[start : start + 8] = source.randbytes(8)
        (tmp_path / "bad").write_bytes(bytes(bad))
        try:
            assert Masks.load(tmp_path / "bad") == masks
        except BadFile:
            refused += 1
    assert refused > 0.9 * count
    if count == 10_000:
        record("mask-files", [{"damaged files": count, "refused": refused, "loaded equal": count - refused}])


def test_the_same_masks_are_the_same_bytes(tmp_path: Path) -> None:
    masks = Masks({"a.weight": torch.rand(4, 9) > 0.5}, {"from": "a test", "\u00fc": [1, 2]})
    written = set()
    for number in range(12):
        masks.save(tmp_path / f"{number}.safetensors")
        written.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(written) == 1
    assert Masks.load(tmp_path / "0.safetensors") == masks

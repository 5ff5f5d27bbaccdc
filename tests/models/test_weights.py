from __future__ import annotations

import hashlib
import os
import pickle
import random
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from prunus.errors import BadFile
from prunus.models import load_weights, make, save_weights
from support import scale


def trained() -> nn.Module:
    return make("resnet20:width=0.25", seed=1)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def refused(path: Path, *words: str) -> str:
    """Loading raises one sentence with these words and leaves the model as it was."""
    model = make("resnet20:width=0.25", seed=0)
    before = state(model)
    with pytest.raises(BadFile) as caught:
        load_weights(model, path)
    message = str(caught.value)
    assert equal(before, state(model))
    assert "\n" not in message
    for word in (str(path), *words):
        assert word in message
    return message


@pytest.mark.parametrize("kind", ["own", "safetensors", "safetensors-as-bin", "torch", "legacy", "wrapped"])
def test_every_kind_of_file_gives_back_the_tensors(kind: str, tmp_path: Path) -> None:
    source = trained()
    path = tmp_path / ("w.bin" if kind.endswith("bin") else "w.safetensors" if "s" in kind[:1] else "w.pt")
    tensors = state(source)
    if kind == "own":
        save_weights(source, path)
    elif kind.startswith("safetensors"):
        save_file(tensors, path)
    elif kind == "wrapped":
        torch.save({"state_dict": {f"module._orig_mod.{k}": v for k, v in tensors.items()}, "best": 91.2}, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=kind == "torch")
    model = load_weights(make("resnet20:width=0.25", seed=0), path)
    assert equal(state(model), tensors)


def test_a_wrapped_model_takes_plain_weights(tmp_path: Path) -> None:
    path = save_weights(trained(), tmp_path / "w.safetensors")
    wrapped = nn.DataParallel(make("resnet20:width=0.25", seed=0))
    load_weights(wrapped, path)
    assert equal(state(wrapped.module), state(trained()))
    assert equal(state(load_weights(make("resnet20:width=0.25"), save_weights(wrapped, path))), state(trained()))


def test_a_model_on_the_meta_device_becomes_real(tmp_path: Path) -> None:
    path = save_weights(trained(), tmp_path / "w.safetensors")
    with torch.device("meta"):
        model = make("resnet20:width=0.25")
    load_weights(model, path)
    assert equal(state(model), state(trained()))
    assert isinstance(model.get_parameter("conv1.weight"), nn.Parameter)


def test_other_precisions_are_converted_and_tied_weights_survive(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

    source = Tied()
    target = load_weights(Tied().double(), save_weights(source, tmp_path / "w.safetensors"))
    assert target.a.weight is target.b.weight
    assert target.a.weight.dtype == torch.float64
    assert torch.equal(target.b.weight.float(), source.a.weight)


def test_old_files_may_lack_the_batch_counter(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in state(trained()).items() if "num_batches" not in name}
    torch.save(tensors, tmp_path / "w.pt")
    model = load_weights(make("resnet20:width=0.25", seed=0), tmp_path / "w.pt")
    assert torch.equal(model.conv1.weight, tensors["conv1.weight"])


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    def written(**changes: Tensor | None) -> Path:
        tensors = state(trained())
        for name, value in changes.items():
            tensors.pop(name.replace("__", "."), None)
            if value is not None:
                tensors[name.replace("__", ".")] = value
        torch.save(tensors, tmp_path / "w.pt")
        return tmp_path / "w.pt"

    refused(written(linear__bias=None), "lacks linear.bias")
    refused(written(other=torch.ones(1)), "holds other, which the model does not have")
    refused(written(linear__bias=torch.ones(11)), "linear.bias (file (11,), model (10,))")
    refused(written(linear__bias=torch.full((10,), float("nan"))), "10 NaN or infinite values in linear.bias")
    refused(written(bn1__running_var=torch.tensor([1.0, 1.0, float("inf"), 1.0])), "1 NaN or infinite")
    refused(written(linear__bias=torch.ones(10, dtype=torch.int64)), "linear.bias as torch.int64")
    torch.save(make("fc:6-5-3").state_dict(), tmp_path / "w.pt")
    assert "more" in refused(tmp_path / "w.pt", "lacks conv1.weight", "and holds layers.0.weight")


class Wicked:
    """What a hostile file would do when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_foreign_and_hostile_files(tmp_path: Path) -> None:
    path, target = tmp_path / "w.pt", tmp_path / "made-by-the-file"
    refused(tmp_path / "absent.pt", "There is no weights file")
    refused(tmp_path, "is a folder: give the path")
    for content in (b"", b"hello, this is a text", b"{}", bytes(8) + b"{", os.urandom(100)):
        path.write_bytes(content)
        refused(path)
    torch.save({"conv1.weight": Wicked(target)}, path)
    refused(path, "could run code")
    path.write_bytes(pickle.dumps(Wicked(target)))
    refused(path, "could run code")
    assert not target.exists()
    torch.save([torch.ones(3)], path)
    refused(path, "no tensors by name")
    torch.save({"conv1.weight": 3}, path)
    refused(path, "type int under 'conv1.weight'")


@pytest.mark.prove
@pytest.mark.parametrize("kind", ["own", "torch", "legacy"])
def test_corrupted_files_are_refused_and_never_half_loaded(kind: str, tmp_path: Path) -> None:
    """Cut or bit-flipped files: the old weights or, where a flip hits nothing that matters, exactly the new.

    Torch's old format has no checksum, so there a flip inside the numbers cannot be seen.
    """
    source = make("fc:6-5-3", seed=1)
    path = tmp_path / ("w.safetensors" if kind == "own" else "w.pt")
    if kind == "own":
        save_weights(source, path)
    else:
        torch.save(source.state_dict(), path, _use_new_zipfile_serialization=kind == "torch")
    content, rng = path.read_bytes(), random.Random(0)
    model = make("fc:6-5-3", seed=0)
    before, wanted = state(model), state(source)
    for case in range(scale(150, full=3000)):
        damaged = bytearray(content[: rng.randrange(len(content))] if case % 3 == 0 else content)
        if case % 3:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            load_weights(model, path)
        except BadFile:
            assert equal(state(model), before)
        else:
            assert kind == "legacy" or equal(state(model), wanted)
            model.load_state_dict(before)


def test_saving_is_all_or_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be written"):
        save_weights(trained(), tmp_path / "no" / "such" / "folder" / "w.safetensors")
    first = save_weights(trained(), tmp_path / "a.safetensors").read_bytes()
    assert first == save_weights(trained(), tmp_path / "b.safetensors").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_files_without_checksums_say_so_and_names_with_a_hash_are_compared(tmp_path: Path) -> None:
    source = make("fc:6-5-3", seed=1)
    plain = tmp_path / "model.th"
    torch.save(source.state_dict(), plain, _use_new_zipfile_serialization=False)
    with pytest.warns(UserWarning, match="has no checksum"):
        load_weights(make("fc:6-5-3"), plain)
    while (beginning := hashlib.sha256(plain.read_bytes()).hexdigest()[:8]).isdigit():  # would be taken for a date
        source = make("fc:6-5-3", seed=random.randrange(10**6))
        torch.save(source.state_dict(), plain, _use_new_zipfile_serialization=False)
    named = tmp_path / f"model-{beginning}.th"
    good = plain.read_bytes()
    named.write_bytes(good)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert equal(state(load_weights(make("fc:6-5-3"), named)), state(source))
    loaded, source_of_places = 0, random.Random(3)
    for _ in range(200):
        bad = bytearray(good)
        bad[source_of_places.randrange(len(bad))] ^= 1 << source_of_places.randrange(8)
        named.write_bytes(bytes(bad))
        try:
            load_weights(make("fc:6-5-3"), named)
            loaded += 1
        except BadFile:
            continue
    assert loaded == 0
    dated = tmp_path / "model-20240131.th"
    dated.write_bytes(good)
    with pytest.warns(UserWarning, match="has no checksum"):
        load_weights(make("fc:6-5-3"), dated)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save(make("fc:6-5-3").state_dict(), path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("archive/data/99", "w") as part:
        for _ in range(64):
            part.write(bytes(1 << 20))
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    refused(path, "would unpack to 67,1")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()

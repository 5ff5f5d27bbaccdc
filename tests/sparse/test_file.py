"""Files: small, the same network back, and nothing damaged gets through."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import prunus
from prunus import storage
from prunus.errors import BadFile, BadInput
from prunus.sparse import compress, explain, load, save
from support import scale
from support.fresh import run_fresh


def small_net() -> nn.Module:
    model = prunus.models.make("fc:64-64-48-10").eval()
    prunus.prune(model, 0.9, pattern="balanced:16")
    return model


def dense_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def test_a_balanced_net_takes_a_fifth_and_a_ninth(tmp_path: Path) -> None:
    model = prunus.models.make("fc:1024-1024-1024-10").eval()
    prunus.prune(model, 0.9, pattern="balanced:16", exclude=("layers.2*",))
    for dtype, part in ((None, 5), (torch.bfloat16, 9), (torch.int8, 14)):
        path = save(compress(model, select="always", dtype=dtype), tmp_path / "net.safetensors")
        assert os.path.getsize(path) < dense_bytes(model) / part


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.int8])
def test_the_same_network_comes_back(tmp_path: Path, dtype: torch.dtype | None) -> None:
    model = small_net()
    fast = compress(model, select={"layers.0": True, "layers.1": True}, dtype=dtype)
    save(fast, tmp_path / "net.safetensors")
    with torch.device("meta"):
        empty = prunus.models.make("fc:64-64-48-10")
    x = torch.randn(5, 64)
    for base in (empty, prunus.models.make("fc:64-64-48-10")):
        again = load(tmp_path / "net.safetensors", base)
        with torch.no_grad():
            assert torch.equal(again(x), fast(x))
        assert explain(again) == explain(fast)
    assert empty.layers[0].weight.is_meta  # the given model is left alone


@pytest.mark.parametrize("fuse", [False, True])
def test_a_resnet_comes_back(tmp_path: Path, fuse: bool) -> None:
    model = prunus.models.make("resnet20").eval()
    prunus.prune(model, 0.9, pattern="balanced:16", exclude=("linear",))
    fast = compress(model, select="always", fuse=fuse)
    save(fast, tmp_path / "net.safetensors")
    with torch.device("meta"):
        empty = prunus.models.make("resnet20")
    again = load(tmp_path / "net.safetensors", empty)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(x), fast(x))


def test_loading_builds_no_dense_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(compress(small_net(), select="always"), tmp_path / "net.safetensors")
    with torch.device("meta"):
        empty = prunus.models.make("fc:64-64-48-10")
    made: list[int] = []
    real = torch.empty

    def watched(*arguments: object, **options: object) -> torch.Tensor:
        tensor = real(*arguments, **options)
        made.append(0 if tensor.is_meta else tensor.numel())
        return tensor

    monkeypatch.setattr(torch, "empty", watched)
    again = load(tmp_path / "net.safetensors", empty)
    assert max(made, default=0) < 64 * 48
    assert not any(isinstance(module, nn.Linear) for module in again.modules())


@pytest.mark.prove
def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """Cut, flipped, swapped, stretched: every damage is one clear error, or (in unused header space) no change."""
    path = tmp_path / "net.safetensors"
    fast = compress(small_net(), select="always")
    save(fast, path)
    good = path.read_bytes()
    model, x = small_net(), torch.randn(2, 64)
    with torch.no_grad():
        expected = fast(x)
    generator = torch.Generator().manual_seed(31)

    def number(most: int) -> int:
        return int(torch.randint(most, (1,), generator=generator))

    refused, count = 0, scale(400, full=10_000)
    for _ in range(count):
        body, kind = bytearray(good), number(5)
        if kind == 0:
            body = body[: number(len(body))]
        elif kind == 1:
            body[number(len(body))] ^= 1 << number(8)
        elif kind == 2:
            start, size = number(len(body) - 8), 1 + number(8)
            body[start : start + size] = bytes(number(256) for _ in range(size))
        elif kind == 3:
            body += bytes(1 + number(100))
        else:
            start = number(3000)
            body[start] = number(256)
        bad = tmp_path / "bad.safetensors"
        bad.write_bytes(body)
        if bytes(body) == good:
            continue
        message = ""
        try:
            again = load(bad, model)
        except BadFile as error:
            message = str(error)
        if message:
            refused += 1
            assert str(bad) in message
            assert "\n" not in message
        else:  # harmless, such as a space in the header: nothing may differ
            with torch.no_grad():
                assert torch.equal(again(x), expected)
    assert refused > 0.9 * count


def test_inconsistent_content_with_a_right_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save(compress(small_net(), select="always"), path)

    def rewrite(change) -> Path:  # type: ignore[no-untyped-def]
        tensors, record = storage.read_tensors(path, "sparse model")
        change(tensors, record["plan"])
        return storage.write_tensors(tmp_path / "bad.safetensors", tensors, "sparse model", record)

    def set_first(name: str, value: int):  # type: ignore[no-untyped-def]
        return lambda tensors, plan: tensors[name].view(-1)[:1].fill_(value)

    changes = [
        set_first("layers.0.schedule", 99),
        set_first("layers.0.schedule", -1),
        set_first("layers.0.starts", 10**12),
        lambda tensors, plan: tensors["layers.0.starts"].mul_(-1),
        lambda tensors, plan: tensors["layers.0.values"].fill_(float("nan")),
        lambda tensors, plan: tensors.pop("layers.0.index"),
        lambda tensors, plan: tensors.update({"layers.0.index": tensors["layers.0.index"][:-1].clone()}),
        lambda tensors, plan: plan["layers"]["layers.0"].pop("bank"),
        lambda tensors, plan: plan["layers"]["layers.0"].update(bank=48),
        lambda tensors, plan: plan["layers"]["layers.0"].update(kind="conv2d", geometry=[1, 2]),
        lambda tensors, plan: plan.pop("rows"),
        lambda tensors, plan: plan.update(version=4),
    ]
    for change in changes:
        with pytest.raises(BadInput):
            load(rewrite(change), small_net())


def test_the_wrong_model_or_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save(compress(small_net(), select="always"), path)
    with pytest.raises(BadInput, match=r"layers\.0.*but the model has"):
        load(path, prunus.models.make("fc:64-32-48-10"))
    with pytest.raises(BadInput, match="nothing of the kind"):
        load(path, prunus.models.make("lenet5"))
    with pytest.raises(BadFile, match="no file"):
        load(tmp_path / "absent", small_net())
    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(BadFile, match="not written by"):
        load(tmp_path / "other.safetensors", small_net())
    with pytest.raises(BadInput, match="not made by"):
        save(small_net(), path)


@pytest.mark.parametrize("harm", ["truncate", "overwrite", "replace", "remove"])
def test_a_loaded_model_does_not_depend_on_its_file(tmp_path: Path, harm: str) -> None:
    """The file is cut, written over with other bytes, replaced or removed while the model is in use."""
    code = f"""
import os, sys, torch, prunus
from prunus.sparse import load
torch.manual_seed(0)
path, harm, x = sys.argv[1], {harm!r}, torch.randn(3, 64)
model = load(path, prunus.models.make("fc:64-64-48-10"))
with torch.no_grad():
    before = model(x)
    again = load(path, prunus.models.make("fc:64-64-48-10"))  # not run yet when its file goes
    if harm == "truncate": os.truncate(path, 0)
    elif harm == "overwrite":
        with open(path, "r+b") as file: file.write(b"\\xff" * os.path.getsize(path))
    elif harm == "replace": open(path + "2", "wb").close(); os.replace(path + "2", path)
    else: os.remove(path)
    assert torch.equal(model(x), before) and torch.equal(again(x), before)
print("well")
"""
    path = save(compress(small_net(), select="always"), tmp_path / "net.safetensors")
    done = run_fresh(code, str(path))
    assert (done.stdout, done.returncode) == ("well\n", 0), done.stderr


class Classifier(nn.Module):
    """A head on top of an encoder."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(10, 64)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.encoder(x))
        return found


@pytest.mark.parametrize("later", [None, torch.int8])
def test_what_was_compressed_twice_comes_back(tmp_path: Path, later: torch.dtype | None) -> None:
    model, x = small_net(), torch.randn(5, 64)
    once = compress(model, select={"layers.0": True, "layers.1": False, "layers.2": False})
    twice = compress(once, select={"layers.1": True}, activations=later)
    rows = {row.layer: row.format for row in explain(twice)}
    assert [rows[f"layers.{number}"].split()[0] for number in range(3)] == ["bank", "bank", "dense"]
    again = load(save(twice, tmp_path / "net.safetensors"), model)
    with torch.no_grad():
        assert torch.equal(again(x), twice(x))
    assert explain(again) == explain(twice)


def test_a_compressed_part_of_a_larger_model_comes_back(tmp_path: Path) -> None:
    resnet, images = prunus.models.make("resnet20", seed=0).eval(), torch.randn(2, 3, 32, 32)
    prunus.prune(resnet, 0.8)
    whole = Classifier(resnet).eval()
    prunus.prune(whole.head, 0.5)
    parts = Classifier(compress(resnet, select="always"))
    parts.head = whole.head
    fast = compress(parts, select="always")
    again = load(save(fast, tmp_path / "net.safetensors"), whole)
    with torch.no_grad():
        assert torch.equal(again(images), fast(images))


def test_what_was_fused_is_not_compressed_again(tmp_path: Path) -> None:
    resnet = prunus.models.make("resnet20", seed=0).eval()
    prunus.prune(resnet, 0.8)
    fused = compress(resnet, select="always", fuse=True)
    with pytest.raises(BadInput, match="fuse=True: compress the pruned model instead"):
        compress(fused)
    with pytest.raises(BadInput, match="compress the whole pruned model"):
        save(compress(Classifier(fused)), tmp_path / "net.safetensors")


def test_a_model_with_weight_norm_beside_its_packed_layers_comes_back(tmp_path: Path) -> None:
    def made() -> nn.Module:
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(64, 64)), nn.ReLU(), nn.Linear(64, 16))

    model, x = made().eval(), torch.randn(4, 64)
    with torch.no_grad():
        model(x)
    prunus.prune(model, 0.5, pattern="balanced:16")
    path = prunus.sparse.save(prunus.compress(model, example=x, select="always"), tmp_path / "fast")
    with torch.no_grad():
        torch.testing.assert_close(prunus.sparse.load(path, made())(x), model(x), rtol=1e-4, atol=1e-5)

"""Every file format, damaged and crafted: one sentence or the very same content; no crash, no traceback, no hang."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import random
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.evidence import record
from torch import Tensor, nn

import prunus
from prunus import storage
from prunus.errors import BadFile
from prunus.models import load_weights, make, save_weights
from prunus.private.accounting import Release
from prunus.private.ledger import Ledger
from prunus.sparse import compress
from prunus.structure import files as shrunk
from prunus.study import Grid, Store, digests
from prunus.training import checkpoints
from prunus.training.tickets import Ticket
from support import PROVING, scale
from support.fuzzing import JUNK, Format, changed, craft_record, craft_tensors

SIZES = "fc:20-16-5"


def network(seed: int = 0) -> nn.Module:
    return make(SIZES, seed=seed).eval()


def masks() -> prunus.Masks:
    return prunus.find_masks(network(), 0.5, pattern="unstructured")


def state(model: nn.Module) -> str:
    return storage.digest(model.state_dict())


# ----------------------------------------------------------------------------------------------------- tensor formats


def make_sparse(path: Path) -> None:
    model = network()
    prunus.prune(model, 0.5, pattern="2:4")
    prunus.sparse.save(compress(model, select="always"), path)


def read_sparse(path: Path) -> Any:
    """Load and run it: what passes the checks must not crash the kernels."""
    model = prunus.sparse.load(path, network())
    with torch.no_grad():
        return model(torch.ones(2, 20)).tolist()


def make_shrunk(path: Path) -> None:
    shrunk.save(prunus.shrink(network(), 0.5, example=torch.zeros(1, 20)), path)


def read_shrunk(path: Path) -> Any:
    return state(shrunk.load(path, network(1)))


def make_checkpoint(path: Path) -> None:
    tensors = {"model.a": torch.arange(6.0), "optimizer.0.m": torch.ones(3, dtype=torch.float64)}
    checkpoints.write(path, tensors, {"step": 3, "history": [{"epoch": 1, "loss": 0.5}]})


def read_checkpoint(path: Path) -> Any:
    tensors, about = checkpoints.read(path)
    return storage.digest(tensors, json.dumps(about))


def make_ticket(path: Path) -> None:
    model = network()
    found = masks()
    from prunus.training.history import History

    Ticket(found.apply_(model), found, History(), "iterand", {"sparsity": 0.5}, None, None).save(path)


def read_ticket(path: Path) -> Any:
    ticket = Ticket.load(path, network(1))
    return state(ticket.model), sorted(ticket.masks), ticket.method


def read_masks(path: Path) -> Any:
    found = prunus.Masks.load(path)
    return storage.digest(dict(found), json.dumps(found.notes)), found.sparsity


def read_weights(path: Path) -> Any:
    return state(load_weights(network(1), path))


def make_torch(path: Path) -> None:
    torch.save(network().state_dict(), path)


def make_legacy(path: Path) -> None:
    torch.save(network().state_dict(), path, _use_new_zipfile_serialization=False)


def read_legacy(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_weights(path)


GOOD: dict[str, str] = {}


def make_named(path: Path) -> None:
    """The whole hash: eight of its characters can all be digits, which may be a date and prove nothing."""
    make_legacy(path)
    GOOD["named"] = hashlib.sha256(path.read_bytes()).hexdigest()


def read_named(path: Path) -> Any:
    """The same under a name that ends in the hash of the good file."""
    named = path.with_name(f"model-{GOOD['named']}.th")
    named.write_bytes(path.read_bytes())
    return read_weights(named)


# ------------------------------------------------------------------------------------------------------- other formats


def make_ledger(path: Path) -> None:
    ledger = Ledger(path)
    for number in range(3):
        ledger.charge_all(["a", "b"], number, Release(rho=0.1, value_epsilon=0.5))


def read_ledger(path: Path) -> Any:
    """From a copy: opening cuts off what a kill left."""
    copy = path.with_name("ledger-copy")
    copy.write_bytes(path.read_bytes())
    ledger = Ledger(copy)
    return [(client, ledger.charges(client), ledger.spent(client)) for client in ledger.clients]


def craft_ledger(path: Path, source: random.Random) -> None:
    """Records of junk in a chain that is right."""
    lines = path.read_bytes().splitlines()
    bodies = [json.loads(line.partition(b" ")[2]) for line in (lines[0], *lines[2:])]
    place = source.randrange(len(bodies))
    bodies[place] = changed(bodies[place], source)
    chain, out = "", []
    for body in bodies:
        text = json.dumps(body, sort_keys=True)
        chain = storage.digest_of(f"{chain} {text}")
        out.append(f"{chain} {text}\n")
    end = sum(len(line) for line in out) + len(lines[1]) + 1
    reach = f"reach {end:020d} {storage.digest_of(f'reach {end} {chain}')}\n"
    path.write_text("".join([out[0], reach, *out[1:]]))


def make_study(path: Path) -> None:
    cells = Grid(model=(SIZES,), sparsity=(0.5, 0.9), seed=(0,)).cells()
    with Store(path.with_suffix(".sqlite"), create=True) as store:
        store.add_base(cells[0], {"accuracy": 0.5, "loss": 1.0})
        for cell in cells:
            store.add(cell, {"accuracy": 0.25, "layers": [{"name": "a"}]}, seconds=1.0)
        store.settle()
    path.with_suffix(".sqlite").rename(path)


def read_study(path: Path) -> Any:
    place = path.with_name("study-copy.sqlite")
    for old in path.parent.glob("study-copy.sqlite*"):
        old.unlink()
    place.write_bytes(path.read_bytes())
    with Store(place) as store:
        return [store.rows(), store.bases(), sorted(store.done()), store.seconds(), store.reproductions()]


def craft_study(path: Path, source: random.Random) -> None:
    database = sqlite3.connect(path)
    table = source.choice(["cells", "bases", "meta"])
    column = source.choice({"meta": ["value"], "bases": ["key", "record"]}.get(table, ["config", "record", "seconds"]))
    (old,) = database.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone()
    new: Any = source.choice([value for value in JUNK if not isinstance(value, (list, dict))])
    if column in ("config", "record") and source.random() < 0.8:
        new = json.dumps(changed(json.loads(old), source))
    elif isinstance(new, int) and abs(new) >= 2**63:
        new = float(new)
    new = new.encode("utf8", "replace").decode() if isinstance(new, str) else new
    try:
        database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid IN (SELECT rowid FROM {table} LIMIT 1)", (new,))
        digests.seal_all(database)
        database.commit()
    except sqlite3.IntegrityError:
        pass
    database.close()


def make_grid(path: Path) -> None:
    path.write_text(
        'model = ["fc:20-16-5"]\nsparsity = [0.5, 0.9]\nseed = [0, 1]\npattern = "balanced:16"\n'
        '[settings]\nlength = "2ep"\nlr = 0.1\nexclude = ["layers.1*"]\ncompress = true\nbatch = 4\n'
    )


def read_grid(path: Path) -> Any:
    return [cell.title for cell in Grid.read(path).cells()]


def craft_grid(path: Path, source: random.Random) -> None:
    import tomllib

    content = changed(tomllib.loads(path.read_text()), source)
    content = content if isinstance(content, dict) else {"model": content}
    top = {name: value for name, value in content.items() if name != "settings" and name.isidentifier()}
    lines = [f"{name} = {_toml(value)}" for name, value in top.items()]
    if isinstance(content.get("settings"), dict):
        lines += ["[settings]"]
        lines += [f"{name} = {_toml(value)}" for name, value in content["settings"].items() if name.isidentifier()]
    path.write_text("\n".join(lines), "utf8", "replace")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if value is not None else '"none"'


def make_images(path: Path) -> None:
    """MNIST's format, compressed: gzip has a checksum."""
    images = torch.arange(3 * 28 * 28, dtype=torch.int64).remainder(256).to(torch.uint8).numpy().tobytes()
    header = b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4, "big") for size in (3, 28, 28))
    path.write_bytes(gzip.compress(header + images, mtime=0))


def read_images(path: Path) -> Any:
    folder = path.with_name("mnist-folder") / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(path.read_bytes())
    labels = b"\x00\x00\x08\x01" + (3).to_bytes(4, "big") + bytes([1, 2, 3])
    (folder / "t10k-labels-idx1-ubyte").write_bytes(labels)
    data = prunus.data.load("mnist", split="test", folder=folder.parent)
    inputs = torch.stack([data[index][0] for index in range(len(data))])
    return len(data), float(inputs.sum()), storage.digest({"x": inputs})


def make_certificate(path: Path) -> None:
    model = network()
    prunus.certify(model, masks(), prunus.Ball(0.5), attack=False).save(path)


def read_certificate(path: Path) -> Any:
    from prunus.certificates import Certificate

    found = Certificate.load(path)
    assert not math.isnan(found.bound)
    return found.bound, found.method, found.hashes


FORMATS = [
    Format("masks", lambda path: masks().save(path), read_masks, craft_tensors("masks")),
    Format("weights", lambda path: save_weights(network(), path) and None, read_weights, craft_tensors("weights")),
    Format("sparse model", make_sparse, read_sparse, craft_tensors("sparse model")),
    Format("shrunk model", make_shrunk, read_shrunk, craft_tensors("shrunk model")),
    Format("checkpoint", make_checkpoint, read_checkpoint, craft_tensors("checkpoint")),
    Format("ticket", make_ticket, read_ticket, craft_tensors("ticket")),
    Format("torch file", make_torch, read_weights),
    Format("old torch file with its hash in the name", make_named, read_named),
    Format("old torch file", make_legacy, read_legacy, sealed=False),
    Format("privacy ledger", make_ledger, read_ledger, craft_ledger),
    Format("study", make_study, read_study, craft_study),
    Format("grid", make_grid, read_grid, craft_grid, sealed=False),
    Format("compressed images", make_images, read_images),
    Format("certificate", make_certificate, read_certificate, craft_record("prunus-certificate-1")),
]


RESULTS: list[dict[str, Any]] = []


@pytest.fixture(scope="module", autouse=True)
def evidence() -> Iterator[None]:
    """Under `make prove`, the table of counts once every format has passed."""
    yield
    if PROVING and len(RESULTS) == len(FORMATS):
        names = [name for name in RESULTS[0] if name != "format"]
        total = {name: sum(row[name] for row in RESULTS) for name in names}
        note = (
            "Damaged and crafted files: each refused in one sentence or read. Where a format has a digest, what is "
            "read after plain damage is what was written; the others say how often damage was not seen."
        )
        record("fuzzing", [*RESULTS, {"format": "together", **total}], note)


@pytest.mark.prove
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.filterwarnings("ignore")
def test_damaged_and_crafted_files(form: Format, tmp_path: Path) -> None:
    plain, crafted = scale(20, full=1000), scale(15, full=900)
    tally = form.run(tmp_path, plain, crafted, seed=1)
    if form.sealed:  # the rest hit padding
        assert tally["read"] <= 0.35 * plain + tally["crafted"]
    RESULTS.append({"format": form.name, **tally, "crashes, tracebacks, hangs": 0})


def test_the_fuzzer_would_see_a_wrong_load(tmp_path: Path) -> None:
    """A format that believes what it reads fails under the fuzzer."""
    blind = Format("blind", lambda path: path.write_bytes(bytes(100)) and None, lambda path: path.read_bytes())
    with pytest.raises(AssertionError, match="a wrong load"):
        blind.run(tmp_path, 5, 0, seed=0)

    def rude(path: Path) -> Tensor:
        if path.name.startswith("bad"):
            raise KeyError("oh")
        return torch.ones(1)

    with pytest.raises(AssertionError, match="KeyError"):
        Format("rude", lambda path: path.write_bytes(b"x") and None, rude).run(tmp_path, 1, 0, seed=0)

    def wordy(path: Path) -> None:
        if path.name.startswith("bad"):
            raise BadFile("two\nlines")

    with pytest.raises(AssertionError, match="more than one line"):
        Format("wordy", lambda path: path.write_bytes(b"x") and None, wordy).run(tmp_path, 1, 0, seed=0)

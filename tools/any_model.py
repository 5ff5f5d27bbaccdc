"""Take models that nobody here wrote through every step, and write docs/evidence/any-model-*.

    python -m tools.any_model small                 # random ones from transformers' configs
    python -m tools.any_model real                  # MiniLM, SmolLM2, EfficientNet-Lite0, the encoder of Resemblyzer
    python -m tools.any_model real minilm --folder /tmp/evidence

Each cell says "works" and what was measured, or "refused" in the words that a user sees. Anything else (another kind
of error, an answer that is off, a layer passed over in silence) is written as BROKEN, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from tools.evidence import FOLDER, record
from tools.foreign_models import REAL, Case, small_cases
from torch import Tensor, nn

import prunus
from prunus.adapters import batches, call, output_tensors
from prunus.errors import PrunusError, first_line
from prunus.layers import EMBEDDING, all_weights, unrecognised
from prunus.recovery import ReconstructOptions

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("prune", "reconstruct", "compress", "save", "load", "use", "onnx", "command line")
AGREE = 1e-4  # how far float32 outputs may be off, relative to their size


class Broken(Exception):
    """The step ended without an error and yet did something wrong."""


def walk(case: Case, folder: Path, steps: Iterable[str] = STEPS, shell: bool = False) -> dict[str, str]:
    """One row of the table: what each step came to.

    Args:
        case: the model.
        folder: for its files.
        steps: which of `STEPS`; "load" only leaves files for `load_in_a_fresh_process`.
        shell: run the commands in processes of their own instead of in this one.
    """
    place = folder / case.name
    place.mkdir(parents=True)
    trip = _Trip(case, place, shell)
    row = {"model": case.about}
    jobs: dict[str, Callable[[], str]] = {
        "prune": trip.prune, "reconstruct": trip.reconstruct, "compress": trip.compress, "save": trip.save,
        "load": trip.leave, "use": trip.use, "onnx": trip.onnx, "command line": trip.commands,
    }  # fmt: skip
    for name in steps:
        began = time.process_time()
        row[name] = _said(jobs[name])
        print(f"{case.name}: {name}: {row[name]} ({time.process_time() - began:.1f} s)", file=sys.stderr, flush=True)
    return row


def _said(step: Callable[[], str]) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return step()
    except PrunusError as error:
        sentence = str(error)
        return f"refused: {sentence}" if "\n" not in sentence else f"BROKEN: more than one line: {first_line(error)}"
    except Exception as error:
        return f"BROKEN: {type(error).__name__}: {first_line(error)}"


class _Trip:
    """One model on its way."""

    def __init__(self, case: Case, place: Path, shell: bool) -> None:
        self.case, self.place, self.shell = case, place, shell
        self.model = case.make().eval()
        self.dense = copy.deepcopy(self.model)
        self.example = case.example(self.model)
        self.fast: nn.Module | None = None

    def prune(self) -> str:
        masks = prunus.prune(self.model, 0.75, pattern="balanced:16", misfits="skip")
        known = {weight.name for weight in all_weights(self.model).values() if weight.kind != EMBEDDING}
        silent = known - set(masks) - set(masks.notes.get("skipped", ()))
        unknown = set(unrecognised(self.model)) - set(masks.notes.get("unrecognised", ()))
        if silent or unknown:
            raise Broken(f"passed over in silence: {', '.join(sorted(silent | unknown))}")
        said = f"works: {masks.sparsity:.2f} of {sum(row.total for row in masks.layers):,} weights"
        for key, words in (("skipped", "that do not fit"), ("unrecognised", "of unknown kinds")):
            said += f"; {len(masks.notes[key])} layers {words} are named" if masks.notes.get(key) else ""
        return said

    @torch.no_grad()
    def reconstruct(self) -> str:
        data = self.case.samples(self.dense)
        part, settings = self.case.part, {"pattern": "balanced:16", "misfits": "skip"}
        sparsity = {part: 0.5} if part else 0.5
        plain, fitted = copy.deepcopy(self.dense), copy.deepcopy(self.dense)
        prunus.prune(plain, sparsity, **settings)
        options = ReconstructOptions(refine=self.case.refine, progress=False)
        prunus.reconstruct(fitted, sparsity, data, samples=len(data), options=options, **settings)
        samples = next(batches(data, len(data)))
        wanted, before, after = (output_tensors(call(model, samples)) for model in (self.dense, plain, fitted))
        off, was = distance(after, wanted), distance(before, wanted)
        if not off < was:
            raise Broken(f"the outputs are off by {off:.2f}, by magnitude alone by {was:.2f}")
        where = f", {part} alone" if part else ""
        return f"works: outputs on the samples off by {off:.2f} instead of {was:.2f}{where}"

    def compress(self) -> str:
        self.fast = prunus.compress(self.model, example=self.example, select="always")
        off = distance(run(self.fast, self.example), run(self.model, self.example))
        if off > AGREE:
            raise Broken(f"outputs off by {off:.1e}")
        rows = prunus.sparse.explain(self.fast)
        packed = [row for row in rows if row.format != "dense"]
        if not packed or any(row.format == "dense" and not row.why for row in rows):
            raise Broken("a layer stayed dense without a reason")
        return f"works: {len(packed)} of {len(rows)} layers packed, outputs off by {off:.0e}"

    def save(self) -> str:
        fast = self._compressed()
        if hasattr(fast, "save_pretrained"):
            fast.save_pretrained(self.place / "fast")
        else:
            (self.place / "fast").mkdir()
            prunus.sparse.save(fast, self.place / "fast" / "prunus.safetensors")
        size = (self.place / "fast" / "prunus.safetensors").stat().st_size
        dense = sum(4 * parameter.numel() for parameter in self.model.parameters())
        return f"works: {size / 1e6:.3g} MB instead of {dense / 1e6:.3g}"

    def leave(self) -> str:
        fast = self._compressed()
        torch.save({"example": self.example, "outputs": run(fast, self.example)}, self.place / "answers.pt")
        (self.place / "job.json").write_text(json.dumps({"factory": self.case.factory}))
        return "left for a fresh process"

    def use(self) -> str:
        fast = self._compressed()
        if self.case.use == "generate":
            ids = self.example["input_ids"][:, :5]
            options = {"max_new_tokens": 8, "do_sample": False}
            one, two = (model.generate(ids, **options) for model in (self.model, fast))
            if not torch.equal(one, two):
                raise Broken("generates other tokens")
            return f"works: the same {one.shape[1]} tokens"
        one, two = (self.case.answers(model, self.example) for model in (self.model, fast))
        off = distance([two], [one])
        if off > AGREE:
            raise Broken(f"answers off by {off:.1e}")
        return f"works: {self.case.use} off by {off:.0e}"

    def onnx(self) -> str:
        import onnx

        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            path = prunus.sparse.export_onnx(self.model, self.place / "model.onnx", self.example)
        if out.getvalue() or err.getvalue():
            raise Broken(f"prints {first_line(Exception(out.getvalue() + err.getvalue()))}")
        sides = [side.dim_param for entry in onnx.load(path).graph.input for side in entry.type.tensor_type.shape.dim]
        return f"works: open are {', '.join(dict.fromkeys(filter(None, sides))) or 'no sides'}"

    def commands(self) -> str:
        model, flags = self.case.named, list(self.case.flags)
        if model == "hf:":
            self.dense.save_pretrained(self.place / "dense")
            model = f"hf:{self.place / 'dense'}"
        pruned, packed = self.place / "pruned.safetensors", self.place / "packed.safetensors"
        common = ["--pattern", "balanced:16", "--misfits", "skip"]
        self._command("prune", model, *flags, "--sparsity", "0.75", *common, "-o", str(pruned))
        self._command(
            "compress", model, *flags, "--weights", str(pruned), "--select", "always", "-o", str(packed), "--batch", "2"
        )
        return "works: prune, compress"

    def _compressed(self) -> nn.Module:
        if self.fast is None:
            raise Broken("there is no compressed model")
        return self.fast

    def _command(self, *words: str) -> None:
        environment = {**os.environ, "COLUMNS": "80"}
        if self.shell:
            done = subprocess.run(
                [sys.executable, "-m", "prunus", *words], cwd=ROOT, env=environment, capture_output=True, text=True
            )
            status, out, err = done.returncode, done.stdout, done.stderr
        else:
            from prunus.cli import run as command

            with contextlib.redirect_stdout(io.StringIO()) as held, contextlib.redirect_stderr(io.StringIO()) as said:
                status = command(list(words))
            out, err = held.getvalue(), said.getvalue()
        if status == 2 and "Traceback" not in err:
            raise PrunusError(err.strip().replace("\n", " "))
        if status or "Traceback" in err or "wrote" not in out:
            raise Broken(f"prunus {words[0]} ended with status {status}: {err.strip()[-300:]}")
        wide = [line for line in out.splitlines() if len(line) > 80]
        if self.shell and wide:
            raise Broken(f"prunus {words[0]} prints lines of {max(map(len, wide))} letters")


def run(model: nn.Module, example: Any) -> list[Tensor]:
    """The numbers that a model answers with."""
    with torch.no_grad():
        return output_tensors(model(**example) if isinstance(example, dict) else model(example))


def distance(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest difference, relative to the size of what is wanted, over all outputs."""
    return max(
        float((one.double() - two.double()).norm() / two.double().norm().clamp_min(1e-30))
        for one, two in zip(found, wanted, strict=True)
    )


def load_in_a_fresh_process(folder: Path) -> dict[str, str]:
    """What loading each saved model in a new process came to, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.any_model", "--load", str(folder)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    if done.returncode:
        return {place.parent.name: f"BROKEN: {done.stderr[-300:]}" for place in folder.glob("*/job.json")}
    return dict(json.loads(done.stdout))


def _load_all(folder: Path) -> dict[str, str]:
    return {
        place.parent.name: _said(lambda place=place: _load(place.parent)) for place in sorted(folder.glob("*/job.json"))
    }


def _load(place: Path) -> str:
    factory = json.loads((place / "job.json").read_text())["factory"]
    if factory:
        from prunus._by_path import import_object

        with torch.device("meta"):
            empty = import_object(factory, "model")()
        model = prunus.sparse.load(place / "fast" / "prunus.safetensors", empty)
    else:
        model = prunus.sparse.load_pretrained(place / "fast")
    answers = torch.load(place / "answers.pt", weights_only=True)
    off = distance(run(model, answers["example"]), answers["outputs"])
    if off > 1e-6:
        raise Broken(f"outputs off by {off:.1e}")
    return f"works: outputs off by {off:.0e}"


def table(cases: Iterable[Case], shell: bool) -> Iterator[dict[str, str]]:
    """One row after another; models whose packages are not installed say so."""
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = walk(case, Path(folder), shell=shell)
            except ImportError as error:
                row = {"model": case.about, "prune": f"not installed: {error.name}"}
            for said in load_in_a_fresh_process(Path(folder)).values():
                row["load"] = said
        yield row


def keep(rows: Iterable[dict[str, str]], which: str, folder: Path = FOLDER) -> bool:
    """Write every row as soon as it is there, among those measured before; whether none of them is broken."""
    path, whole = folder / f"any-model-{which}.json", True
    for row in rows:
        whole = whole and not any("BROKEN" in cell for cell in row.values())
        known = {old["model"]: old for old in json.loads(path.read_text("utf8"))["rows"]} if path.is_file() else {}
        record(path.stem, list({**known, row["model"]: row}.values()), NOTES[which], folder)
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="?", choices=("small", "real"), default="small")
    parser.add_argument("names", nargs="*", help="only these models")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load:
        print(json.dumps(_load_all(chosen.load)))
        return 0
    cases = small_cases() if chosen.which == "small" else REAL
    rows = table([case for case in cases if not chosen.names or case.name in chosen.names], chosen.which == "real")
    return 0 if keep(rows, chosen.which, chosen.folder) else 1


NOTES = {
    "small": "Random models from transformers' configs, pruned to 75 % balanced:16 (reconstruct: 50 %), through every "
    "step. `use`: generate, embed or classify with the compressed model. `load`: in a fresh process. Numbers are "
    "differences over sizes. python -m tools.any_model small",
    "real": "Trained models as their packages bring them, through the same steps; commands run as a user would, at 80 "
    "columns. python -m tools.any_model real",
}


if __name__ == "__main__":
    sys.exit(main())

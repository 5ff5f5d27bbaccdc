"""What is printed: text as text, tables that fit, one sentence for any error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from prunus.cli import run, visible
from prunus.cli.output import console, fit, print_table, progress

COLUMNS = [
    "layer",
    "shape",
    "weights",
    "kept",
    "sparsity",
    "energy removed",
    "output SNR",
    "mult-adds",
    "mult-adds kept",
]
ROWS = [
    [f"stage{n}.block.{n}.conv2.weight", "64x64x3x3", 36_864, 3_686, "0.9000", "41.10%", "3.9 dB", 2_359_296, 235_904]
    for n in range(3)
]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_tables_fit_and_names_stay_whole(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS, left=(0, 1))
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    for row in ROWS:
        assert any(row[0] in line and row[1] in line and "36,864" in line for line in lines)
    hidden = any(line.startswith("not shown") for line in lines)
    assert hidden == (width < 110)


def test_a_pipe_has_no_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(COLUMNS, [[name * 10 for name in COLUMNS]], left=(0, 1))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_nothing_is_one_letter_a_line() -> None:
    """Ten columns at 60, as `study` prints: names keep a readable width, numbers go."""
    names = ["network", "data", "method", *(f"number {i}" for i in range(7))]
    cells = [["resnet20 width 0.5", "cifar10", "magnitude balanced:16", *["12.34%"] * 7]]
    shown, widths = fit(names, cells, (0, 1, 2), 60)
    assert sum(widths[i] for i in shown) + 2 * (len(shown) - 1) <= 60
    assert all(widths[i] >= 7 for i in (0, 1, 2))
    assert 3 in shown
    shown, widths = fit(names, cells, (0, 1, 2), 12)
    assert sum(widths[i] for i in shown) + 2 * (len(shown) - 1) <= 12


NASTY = ["[/red]", "[/data/x]", "[bold]", "a[link=x]b", "\x1b[31mred\x1b]0;title\x07", "\x9b31m", "a\u202eb", ":smile:"]


@pytest.mark.parametrize("name", NASTY)
def test_names_are_text_and_escapes_are_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table([name, "x"], [[name, 1]], title=name)
    console().print(name)
    with progress(name, 1):
        pass
    text = capsys.readouterr().out
    assert text.count(visible(name)) == 4
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


class Named(nn.Module):
    """A model whose layer's name looks like markup."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("[/red]", nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, "[/red]")(x)


OWN = """
import numpy, torch
from torch import nn
from torch.utils.data import TensorDataset
from test_output_models import Named

class Dict(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        return {"logits": self.layer(x)}

class Nothing(Dict):
    def forward(self, x):
        return {"answer": "yes"}

class Samples(torch.utils.data.Dataset):
    def __init__(self, *items):
        self.items = items
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        return self.items[index]

x, y = torch.randn(6, 64), torch.arange(6)
good = lambda split: TensorDataset(x, y)
other = lambda split: TensorDataset(torch.randn(6, 7), y)
nan = lambda split: TensorDataset(x * float("nan"), y)
labels = lambda split: TensorDataset(x, y + 100)
empty = lambda split: TensorDataset(x[:0], y[:0])
dicts = lambda split: Samples(*({"x": x[i], "labels": y[i]} for i in range(6)))
arrays = lambda split: Samples(*((x[i].numpy(), int(y[i])) for i in range(6)))
texts = lambda split: Samples(*(("a", "b") for i in range(6)))
"""
MODEL = "import torch\nfrom torch import nn\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import inspect

    (tmp_path / "test_output_models.py").write_text(MODEL + inspect.getsource(Named))
    (tmp_path / "test_output_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("model", ["Named", "Dict"])
@pytest.mark.parametrize("data", ["good", "arrays", "dicts"])
def test_unusual_models_and_items_work(own: Path, model: str, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = "test_output_own"
    assert run(["prune", f"{where}:{model}", "--data", f"{where}:{data}", "--sparsity", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "accuracy" in out
    assert model == "Dict" or "[/red].weight" in out


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        ("fc:64-10", "other", "shape"),
        ("fc:64-10", "nan", "NaN"),
        ("fc:64-10", "labels", "labels run from 100 to 105"),
        ("fc:64-10", "empty", "empty"),
        ("fc:64-10", "texts", "tensor"),
        ("test_output_own:Nothing", "good", ""),
    ],
)
@pytest.mark.parametrize("command", ["prune", "plan"])
def test_data_that_does_not_fit_is_one_sentence(
    own: Path, model: str, data: str, words: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--statistical", "--error", "0.5"] if command == "plan" else []
    if command == "plan" and data == "labels":
        return  # it does not look at labels
    status = run([command, model, "--data", f"test_output_own:{data}", *more])
    said = capsys.readouterr().err
    assert status == 2, said
    assert len(said.splitlines()) == 1
    assert said.startswith("prunus: ")
    if command == "prune":
        assert words in said


def test_a_study_records_data_that_does_not_fit(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["study", "fc:64-10", "--data", "test_output_own:other", "--length", "1it", "--seeds", "1"]) in (1, 2)
    said = capsys.readouterr()
    assert "shape" in said.err + said.out
    assert "Traceback" not in said.err


def test_any_error_is_one_sentence_with_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import prunus.models

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug\nin [/two] lines \x1b[1m")

    monkeypatch.setattr(prunus.models, "resolve", fail)
    assert run(["prune", "fc:64-10"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("prunus: ZeroDivisionError: a bug in [/two] lines \\x1b[1m (test_output.py, line ")
    assert said.count("\n") == 1
    assert "PRUNUS_TRACEBACK=1" in said
    monkeypatch.setenv("PRUNUS_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(["prune", "fc:64-10"])
    monkeypatch.delenv("PRUNUS_TRACEBACK")
    for error, words in ((MemoryError(), "Memory ran out"), (OSError(28, "No space left"), "The disk is full")):

        def other(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(prunus.models, "resolve", other)
        assert run(["prune", "fc:64-10"]) == 1
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", [["prune", "fc:64-10"], ["study", "fc:64-10"], ["ticket", "fc:64-10"]])
def test_seeds_below_zero_are_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--seed", "-1"]) == 2
    assert "--seed" in capsys.readouterr().err


def test_a_run_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert run(["train", "fc:64-10", "--data", "digits", "--length", "1it", "-o", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_while_pruning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert run(["prune", "fc:64-10", "-o", str(tmp_path / "p.safetensors")]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_quiet_prints_nothing_but_errors_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune", "fc:64-10", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert run(["prune", "fc:64-10", "--quiet", "--json"]) == 0
    assert capsys.readouterr().out.startswith("{")
    assert run(["prune", "fc:64-10", "--sparsity", "7", "--quiet"]) == 2
    assert "prunus: " in capsys.readouterr().err
    assert run(["prune", "fc:64-10"]) == 0
    assert capsys.readouterr().out


def test_completion_knows_commands_and_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert run(["--completion", shell]) == 0
        script = capsys.readouterr().out
        assert "sparsity" in script
        assert "reproduce" in script
    assert run(["--completion", "bash"]) == 0
    (tmp_path / "s").write_text(capsys.readouterr().out)
    assert subprocess.run(["bash", "-n", tmp_path / "s"]).returncode == 0
    assert run(["--completion", "tcsh"]) == 2


def test_a_terminal_without_these_letters(tmp_path: Path) -> None:
    code = "from prunus.cli.output import console, print_table; import prunus.cli, sys\n"
    code += "prunus.cli.run(['--version']); print_table(['größe'], [['± ½ \\u2588']]); console().print('naïve')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "\\xb1" in done.stdout

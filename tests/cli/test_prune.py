from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import prunus
from prunus.cli import COMMANDS, run


def prunus_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from prunus.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = prunus.models.make("fc:64-48-32-10")
    save_file(model.state_dict(), tmp_path / "dense.safetensors")
    return tmp_path / "dense.safetensors"


def test_prune_writes_weights_and_masks(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = trained.with_name("pruned.safetensors")
    status = run(
        ["prune", "fc:64-48-32-10", "--weights", str(trained), "--data", "digits", "--sparsity", "0.75"]
        + ["--pattern", "balanced:16", "--exclude", "layers.2", "-o", str(output), "--json"]
    )
    record = json.loads(capsys.readouterr().out)
    assert status == 0
    masks = prunus.Masks.load(output.with_name("pruned.masks.safetensors"))
    weights, dense = load_file(output), load_file(trained)
    assert set(masks) == {"layers.0.weight", "layers.1.weight"}
    for name, value in weights.items():
        kept = masks[name] if name in masks else torch.ones_like(value, dtype=torch.bool)
        assert torch.equal(value, dense[name] * kept)
    assert record["sparsity"] == masks.sparsity == 0.75
    row = record["layers"][0]
    square = dense["layers.0.weight"].double().square()
    removed = float(square[~masks["layers.0.weight"]].sum() / square.sum())
    assert row["energy_removed"] == pytest.approx(removed)
    assert row["signal_to_noise"] == pytest.approx(-10 * torch.log10(torch.tensor(removed)).item(), rel=1e-5)
    assert (row["multiply_adds"], row["multiply_adds_kept"]) == (64 * 48, 64 * 12)
    assert 0 <= record["accuracy_after"] <= 1


@pytest.mark.parametrize(("pattern", "sparsity"), [("balanced:16", 0.75), ("2:4", 0.5)])
def test_damage_hands_over_to_reconstruct(
    pattern: str, sparsity: float, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, name = trained.with_name("pruned.safetensors"), "fc:64-48-32-10"
    shared = [name, "--weights", str(trained), "--data", "digits", "--pattern", pattern, "--sparsity", str(sparsity)]
    shared += ["--allocation", "damage", "--json"]
    assert run(["prune", *shared, "--reconstruct", "-o", str(output)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert run(["reconstruct", *shared, "-o", str(trained.with_name("same.safetensors"))]) == 0
    other = json.loads(capsys.readouterr().out)
    assert record["sparsity"] == other["sparsity"] == pytest.approx(sparsity, abs=0.02)
    assert output.read_bytes() == trained.with_name("same.safetensors").read_bytes()
    for key in ("accuracy_before", "accuracy_after"):
        assert record[key] == other[key]
    dense = load_file(trained)["layers.0.weight"].double().square()
    masks = prunus.Masks.load(output.with_name("pruned.masks.safetensors"))
    removed = float(dense[~masks["layers.0.weight"]].sum() / dense.sum())
    assert record["layers"][0]["energy_removed"] == pytest.approx(removed), (
        "of the dense network, not of the fitted one"
    )


@pytest.mark.parametrize(("given", "file"), [("p", "p.safetensors"), ("a.b", "a.b"), ("q.bin", "q.bin")])
def test_a_name_without_an_ending_gets_that_of_safetensors(
    given: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", "fc:16-16-4", "--sparsity", "0.5", "-o", str(tmp_path / given), "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["weights_file"]) == tmp_path / file
    assert (tmp_path / file).is_file()
    assert (tmp_path / f"{Path(file).stem}.masks.safetensors").is_file()


def test_the_table_is_for_people(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune", "fc:64-48-32-10", "--weights", str(trained), "--data", "digits"]) == 0
    text = capsys.readouterr().out
    for word in ("layers.0.weight", "48x64", "energy removed", "dB", "accuracy", "together"):
        assert word in text


def test_convolutions_count_every_pixel(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune", "resnet20", "--sparsity", "0.5", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["layers"][0]["multiply_adds"] == 16 * 27 * 32 * 32
    assert sum(row["multiply_adds"] for row in record["layers"]) == pytest.approx(40.55e6, rel=2e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fc:64-48-32-10", "--sparsity", "1.5"], r"[0, 1)"),
        (["fc:64-48-32-10", "--sparsity", "much"], "much"),
        (["fc:64-48-32-10", "--pattern", "2:4"], "ask for 0.5"),
        (["fc:64-48-32-10", "--pattern", "balanced:100"], "rows of at least 100"),
        (["fc:64-48-32-10", "--score", "size"], "magnitude"),
        (["fc:64-48-32-10", "--exclude", "fc"], "matches no prunable weight"),
        (["resnet21"], "resnet20"),
        (["fc:64-48-32-10", "--weights", "nowhere.safetensors"], "nowhere.safetensors"),
        (["fc:64-48-32-10", "--data", "digitz"], "digits"),
        (["fc:64-48-32-10", "--score", "snip"], "data"),
        (["fc:64-48-32-10", "--allocation", "damage", "--data", "digits"], "add --reconstruct"),
        (["fc:64-48-32-10", "--allocation", "damage", "--reconstruct"], "name some with --data"),
        (
            ["fc:64-48-32-10", "--allocation", "damage", "--reconstruct", "--data", "digits", "--score", "wanda"],
            "leave --score out",
        ),
        ([], "model"),
        (["fc:64-48-32-10", "--colour", "red"], "--colour"),
    ],
)
def test_bad_input_has_status_2_and_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", *arguments]) == 2
    captured = capsys.readouterr()
    assert message.lower() in captured.err.lower()
    assert len(captured.err.strip().splitlines()) == 1
    assert not captured.out


def test_a_wrong_checkpoint_leaves_the_files_alone(trained: Path) -> None:
    output = trained.with_name("out.safetensors")
    output.write_text("precious")
    wrong = load_file(trained)
    wrong["layers.0.weight"] = wrong["layers.0.weight"][:, :10].contiguous()
    save_file(wrong, trained)
    assert run(["prune", "fc:64-48-32-10", "--weights", str(trained), "-o", str(output)]) == 2
    assert output.read_text() == "precious"
    assert sorted(path.name for path in trained.parent.iterdir()) == ["dense.safetensors", "out.safetensors"]


def test_help_teaches_and_is_quick() -> None:
    result = prunus_command("--help")
    assert result.returncode == 0
    assert "prune" in result.stdout
    assert "Example" in result.stdout
    code = (
        "import sys, prunus.cli as c\n"
        "for words in [[], *([name] for name in c.COMMANDS)]:\n"
        "    assert c.run([*words, '--help']) == 0, words\n"
        "    assert 'torch' not in sys.modules and 'numpy' not in sys.modules, words\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-1000:]
    code = "import sys, prunus; prunus.__version__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.util

    for command in COMMANDS:
        if importlib.util.find_spec(f"prunus.cli.{command}") is None:
            continue
        assert run([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert "xample" in text, command
        assert "--json" in text or "COMMAND" in text, command


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prun"]) == 2
    said = capsys.readouterr().err
    assert 'Did you mean "prune"?' in said
    assert said.rstrip().endswith("See prunus --help.")
    assert run(["prune", "fc:8-8-2", "--sparsty", "0.5"]) == 2
    assert "Did you mean --sparsity? See prunus prune --help." in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["packages"]["torch"] == torch.__version__
    assert set(record["kernels"]) == {"select", "kernels", "double"}


def test_doctor_lists_every_extra(capsys: pytest.CaptureFixture[str]) -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf8"))["project"]
    assert run(["doctor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    extras = set(project["optional-dependencies"])
    assert set(record["extras"]) == extras
    assert len(record["packages"]) == len(project["dependencies"])
    assert run(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(f"(extra {extra})" in shown for extra in extras)


def test_doctor_says_when_kernels_are_off() -> None:
    result = prunus_command("doctor", "--json", PRUNUS_NATIVE="0")
    assert "switched off" in json.loads(result.stdout)["kernels"]["select"]
    forced = prunus_command("doctor", "--json", PRUNUS_CPU="portable")
    assert json.loads(forced.stdout)["kernels"]["select"] in ("portable", "not built: plain torch runs instead")

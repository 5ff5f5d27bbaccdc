from __future__ import annotations

import json

import pytest
from safetensors.torch import save_file

import prunus
from prunus.cli import run

NET = "fc:64-24-24-10"


@pytest.fixture
def weights(tmp_path):
    model = prunus.models.make(NET, seed=0)
    path = tmp_path / "net.safetensors"
    save_file(dict(model.state_dict()), path)
    return str(path)


def test_certify_prints_both_sides_and_the_layers(weights, capsys):
    assert run(["certify", NET, "--weights", weights, "--sparsity", "0.5", "--radius", "1"]) == 0
    text = capsys.readouterr().out
    assert "No input in the ball" in text
    assert "one moves it by" in text
    assert "layers.1" in text


def test_a_saved_certificate_is_verified_and_a_wrong_one_refused(weights, tmp_path, capsys):
    file = tmp_path / "c.json"
    base = ["certify", NET, "--weights", weights]
    assert run([*base, "--sparsity", "0.5", "--radius", "1", "-o", str(file), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert 0 < record["attained"] <= record["bound"]
    assert record["models"]["original"] != record["models"]["pruned"]
    assert run([*base, "--sparsity", "0.5", "--verify", str(file)]) == 0
    assert "holds for these networks" in capsys.readouterr().out
    assert run([*base, "--sparsity", "0.4", "--verify", str(file)]) == 2
    assert "does not match" in capsys.readouterr().err


def test_the_largest_output_is_a_norm_too(weights, capsys):
    base = ["certify", NET, "--weights", weights, "--sparsity", "0.5", "--json", "--norm"]
    bounds = {}
    for norm in ("2", "max"):
        assert run([*base, norm]) == 0
        bounds[norm] = json.loads(capsys.readouterr().out)["bound"]
    assert 0 < bounds["max"] <= bounds["2"]
    assert run([*base, "3"]) == 2
    assert "--norm is" in capsys.readouterr().err


def test_samples_masks_and_statistics(weights, tmp_path, capsys):
    model = prunus.models.make(NET, seed=0)
    masks = tmp_path / "m.safetensors"
    prunus.find_masks(model, 0.5).save(masks)
    options = [
        "--masks",
        str(masks),
        "--data",
        "digits",
        "--samples",
        "2",
        "--radius",
        "0.01",
        "--statistical",
        "--json",
    ]
    assert run(["certify", NET, "--weights", weights, *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["domain"]["kind"] == "samples"
    assert len(record["each"]) == 2
    assert record["statistical"]["points"] == len(prunus.data.load("digits", split="test"))


def test_bad_input_is_one_sentence_and_nothing_is_written(weights, tmp_path, capsys):
    file = tmp_path / "c.json"
    base = ["certify", NET, "--weights", weights, "-o", str(file)]
    for options, message in (
        ([], "in one way"),
        (["--sparsity", "0.5", "--masks", "x"], "in one way"),
        (["--sparsity", "0.5", "--radius", "0"], "positive"),
        (["--sparsity", "0.5", "--samples", "3"], "need --data"),
        (["--sparsity", "0.5", "--method", "magic"], "certificate method"),
        (["--sparsity", "0.5", "--data", "digits", "--statistical", "--confidence", "2"], "strictly between"),
    ):
        assert run([*base, *options]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not file.exists()


def test_plan_keeps_the_budget_and_writes_masks(weights, tmp_path, capsys):
    file = tmp_path / "plan.safetensors"
    options = ["--error", "0.5", "--radius", "1", "--exclude", "layers.0", "-o", str(file)]
    assert run(["plan", NET, "--weights", weights, *options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["bound"] <= 0.5
    assert record["sparsity"] >= record["uniform"] - 1e-9
    masks = prunus.Masks.load(file)
    assert masks.sparsity == pytest.approx(record["sparsity"])


def test_labels_are_a_budget_of_plan(weights, tmp_path, capsys):
    file = tmp_path / "plan.safetensors"
    base = ["plan", NET, "--weights", weights, "--exclude", "layers.[01]", "-o", str(file)]
    near = ["--data", "digits", "--samples", "12", "--radius"]
    assert run([*base, *near, "0.001", "--labels", "0.75", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["labels"] >= 0.75
    assert record["points"] == 12
    model, masks = prunus.models.make(NET, seed=0).eval(), prunus.Masks.load(file)
    assert masks.sparsity == pytest.approx(record["sparsity"])
    assert masks.sparsity > 0
    points = prunus.data.load("digits", split="test").tensors[0][:12]
    found = prunus.certify_labels(model, masks, prunus.Samples(points, 0.001))
    assert found.fraction == pytest.approx(record["labels"])
    assert run([*base, *near, "0.001", "--labels", "0.75"]) == 0
    assert "provably keep their label" in capsys.readouterr().out
    file.unlink()
    for more, message in (
        ([*near, "0.001"], "one budget"),
        ([*near, "0.001", "--labels", "0.75", "--error", "1"], "one budget"),
        ([*near, "0.001", "--labels", "1.5"], "at most 1"),
        (["--labels", "0.75", "--radius", "1"], "--samples COUNT"),
        ([*near, "30", "--labels", "1"], "a smaller radius"),
    ):
        assert run([*base, *more]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not file.exists()


def test_a_statistical_plan_and_a_hopeless_one(weights, capsys):
    base = ["plan", NET, "--weights", weights]
    assert run([*base, "--error", "0.3", "--statistical", "--data", "digits"]) == 0
    assert "within the budget" in capsys.readouterr().out
    assert run([*base, "--error", "1e-12"]) == 2
    assert "smallest budget" in capsys.readouterr().err

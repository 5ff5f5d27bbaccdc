"""Other metrics, dense engines beside, integer products, and examples a person can look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from prunus.errors import UnknownName
from prunus.report import render
from prunus.report.facts import panels
from prunus.report.words import best, headline
from prunus.study import Settings, Store, run_study
from prunus.study.examples import png
from prunus.study.retiming import retime
from support.studies import Here, tiny


def test_a_metric_of_ones_own_of_which_less_is_better(tmp_path: Path) -> None:
    settings = {"metric": "support.studies:error_rate"}
    run_study(tiny(sparsity=(0.5, 0.95), settings=settings), tmp_path, engine=Here())
    with Store(tmp_path) as store:
        (panel,) = panels(store.results(), store.bases())
        page = render(store)
    low, high = panel.groups
    assert low.lower
    assert low.mean("accuracy") is None
    assert 0 < (low.mean("quality") or 0) < (high.mean("quality") or 0), "more zeros, more errors"
    assert best(panel) is not None
    assert panel.front[-1] is low or low.mean("speedup") == max(group.mean("speedup") or 0 for group in panel.groups)
    assert "error rate of" in headline(panel)
    assert "error rate, lower is better" in page


def test_an_unknown_metric_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnknownName, match="did you mean 'perplexity'"):
        Settings(metric="perplexty")


def test_dense_engines_stand_beside_and_are_judged(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the int8 engine is ONNX Runtime")
    settings = {"peers": True, "integers": True, "second_batch": 4, "held_out": 300}
    cells = tiny(pattern=("balanced:16",), settings=settings)
    run_study(cells, tmp_path, engine=Here())
    with Store(tmp_path) as store:
        (result,) = store.results()
        (base,) = store.bases().values()
        (panel,) = panels(store.results(), store.bases())
    names = {(row["name"], row["batch"]) for row in base["peers"]}
    assert {("dense, torch", 1), ("dense, torch", 4), ("int8, ONNX Runtime", 1)} <= names
    assert result.record["quality_int8"] == pytest.approx(result.record["quality_dense"], abs=0.02)
    assert result.record["quality_integers"] == pytest.approx(result.record["quality"], abs=0.03)
    assert result.record["agreement_integers"] > result.record["agreement_low_integers"] > 0.5
    for name in ("speedup_integers", "speedup_second", "faster_than_int8", "faster_than_dense_second"):
        assert result.record[name] > 0
    assert result.record["bytes_integers"] < result.record["bytes"]
    assert result.record["bytes_integers"] <= result.record["bytes_memory"]
    assert "dense int8" in headline(panel).lower()
    with Store(tmp_path) as store:
        retime(cells, store)
        (again,) = store.bases().values()
    assert {(row["name"], row["batch"]) for row in again["peers"]} == names
    assert [row["faster"] for row in again["peers"]] != [row["faster"] for row in base["peers"]]
    assert again["quality_int8"] == base["quality_int8"]


def test_layers_with_a_forward_of_their_own_count_as_packed_in_the_size(tmp_path: Path) -> None:
    settings = {"integers": True, "exclude": ("0",)}
    cells = tiny(model=("support.studies:padding",), data=("digits-images",), sparsity=(0.75,), settings=settings)
    run_study(cells, tmp_path, engine=Here())
    with Store(tmp_path) as store:
        (result,) = store.results()
    record = result.record
    assert record["bytes"] < record["bytes_dense"] / 1.5
    assert record["bytes_integers"] < record["bytes_dense"] / 3


def test_images_whose_label_changed_are_kept(tmp_path: Path) -> None:
    settings = {"examples": 3, "exclude": ("linear", "conv1"), "compress": False}
    model = ("resnet20:width=0.25,channels=1",)
    cells = tiny(model=model, data=("digits-images",), sparsity=(0.9,), settings=settings)
    run_study(cells, tmp_path, engine=Here())
    with Store(tmp_path) as store:
        (result,) = store.results()
        page = render(store)
    found = result.record["examples"]
    assert len(found) == 3
    assert result.record["labels_changed"] <= result.record["labels_seen"]
    assert 0 < result.record["labels_broken"] + result.record["labels_mended"] <= result.record["labels_changed"]
    for example in found:
        assert example["before"] != example["after"]
        assert example["picture"].startswith("data:image/png;base64,")
        assert example["picture"] in page


def test_pictures_are_pictures(tmp_path: Path) -> None:
    import base64
    import io

    import torch

    image = pytest.importorskip("PIL.Image", reason="reads the picture back")
    given = torch.rand(3, 5, 7)
    given.flatten()[0], given.flatten()[1] = 0.0, 1.0
    body = base64.b64decode(png(given).partition(",")[2])
    read = bytearray(image.open(io.BytesIO(body)).convert("RGB").tobytes())
    pixels = torch.asarray(read, dtype=torch.uint8).reshape(5, 7, 3)
    assert torch.equal(pixels.permute(2, 0, 1), (given * 255).round().to(torch.uint8))

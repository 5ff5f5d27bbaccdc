"""Orderings the ledger calls safe (I-14), over seeds and with its margins; and that every reproduction runs."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from prunus.contract import Masks
from prunus.papers import runs
from prunus.papers.iterand import reproductions as tickets
from prunus.papers.reproducing import collect, reproductions
from prunus.papers.tangent import reproductions_lottery as lottery
from prunus.papers.tangent import reproductions_training as tangent
from support import PROVING, scale


def gaps(rows: list[dict], weights: str) -> dict[float, float]:
    """IteRand minus edge-popup by width."""
    means = {(row["width"], row["method"]): row["ours"] for row in rows if row["weights"] == weights}
    return {width: means[width, "iterand"] - means[width, "edge-popup"] for width in {width for width, _ in means}}


@pytest.mark.prove
def test_iterand_is_above_edge_popup_for_narrow_networks_and_the_gap_vanishes() -> None:
    """Ledger: gaps of 13 points (Kaiming uniform, width .5) and below 1 (width 2); asserted with a margin of 2 points.

    In `make test` two seeds of the clearest cell; under `make prove` five seeds, both distributions and all widths.
    """
    if not PROVING:
        table = {key: value for key, value in tickets.DIGITS.items() if key[1] == "kaiming_uniform" and key[0] != "sgd"}
        settings = {"lr": 0.3, "sgd_lr": 0.03, "batch_size": 64, "period": 7, "rate": 0.1}
        rows = list(tickets.by_width(runs.digits(), "64-32-32-10", table, "60ep", settings, (1, 2), (0.5,)))
        assert gaps(rows, "kaiming_uniform")[0.5] > 2.0
        return
    rows = tickets.widths_digits()
    for weights in ("signed_constant", "kaiming_uniform"):
        found = gaps(rows, weights)
        assert found[0.5] > 2.0
        # Signed constants at width .25 scatter by 20 points between seeds: that gap is reported, not asserted.
        assert found[0.25] > 2.0 or weights == "signed_constant"
        assert abs(found[2]) < 2.0
        assert abs(found[4]) < 2.0
    ours = {(row["width"], row["method"], row["weights"]): row["ours"] for row in rows}
    assert ours[0.5, "edge-popup", "signed_constant"] > ours[0.5, "edge-popup", "kaiming_uniform"]


@pytest.mark.prove
def test_resampling_in_moderation_is_above_hardly_any() -> None:
    """In the middle 2 points above edge-popup; with twelve seeds also above what redraws everything at every step."""
    if PROVING:
        rows = tickets.period_rate()
        by_setting = {(row["period"], row["rate"]): row["ours"] for row in rows}
        assert by_setting[7, 0.1] > by_setting[None, 0.0] + 2.0
        assert by_setting[7, 0.1] > by_setting[1, 1.0] + 1.5
    else:
        chosen = tuple(row for row in tickets.ABLATION if row[:2] == (7, 0.1))
        rows = tickets.period_rate(seeds=2, settings=chosen, length="60ep", many=2)
    inside = [row["ours"] for row in rows if 20 <= row["resamplings"] <= 100]
    ends = [row["ours"] for row in rows if row["resamplings"] < 0.2]
    assert statistics.fmean(inside) > statistics.fmean(ends) + 2.0


@pytest.mark.prove
def test_imp_is_above_random_and_the_gap_shrinks_with_width() -> None:
    """Ledger: 45 points at width 32 and 5 at width 128, density .107; margins of 10, and half the gap."""
    seeds, length = scale(1, full=3), "40ep" if PROVING else "15ep"
    rows = lottery.widths_digits(seeds=seeds, levels=(10,), length=length)
    means = {(row["width"], row["method"]): row["ours"] for row in rows if row["density"] < 1}
    gap = {width: means[width, "imp"] - means[width, "random"] for width in (32, 128)}
    assert gap[32] > 10.0
    assert gap[128] > -1.0
    assert gap[128] < gap[32] / 2


def test_rows_carry_published_numbers_beside_ours() -> None:
    rows = tickets.widths_digits(seeds=1, widths=(0.5,), length="1ep")
    assert len(rows) == 5
    conv6 = {(row["method"], row["weights"]): row["published (Conv6, CIFAR-10)"] for row in rows}
    assert conv6["iterand", "signed_constant"] == 84.31
    assert all(0 <= row["ours"] <= 100 and row["ledger"] for row in rows)
    rows = tickets.sparsities(seeds=1, levels=(0.5, 0.99), length="1ep")
    assert {row["published"] for row in rows} == {"lost"}
    rows = lottery.widths_digits(seeds=1, widths=(32,), levels=(3,), length="1ep")
    assert {row["method"] for row in rows} == {"imp", "random", "random rescaled", "snip", "grasp"}
    assert {row["density"] for row in rows} == {1.0, 0.512}


@pytest.mark.data
@pytest.mark.prove
def test_reproductions_with_public_data_run() -> None:
    """A few steps of each: what takes an hour is at least known to begin and to end."""
    if PROVING:  # reading all reviews takes a quarter of a minute
        rows = tickets.imdb_lstm(reviews=64, tests=64, words=10, epochs=1, width=0.1)
        assert [row["published"] for row in rows] == [88.44, 88.16, 87.39]
    rows = tickets.conv6_cifar(seeds=1, images=64, tests=64, epochs=1, width=0.1, methods=("iterand",))
    assert rows[0]["seeds"] == 1
    rows = lottery.mnist_wide(images=128, length="1ep", width=0.05)
    assert len(rows) == 1 + 3 * 5


def test_a_killed_search_goes_on_by_the_epoch(tmp_path, monkeypatch) -> None:
    """One batch of noise for two epochs: stopped after the first, and asked again when it is done."""
    noise = TensorDataset(torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(8))
    monkeypatch.setattr(tickets, "load", lambda *_, **__: noise)
    small = {"seeds": 1, "images": 8, "tests": 8, "epochs": 2, "width": 0.1, "methods": ("iterand",)}
    whole = tickets.conv6_cifar(**small)
    fresh = tickets.score_of

    def killed(model, pair, method, length, config, ticket):
        stop = config.replace(callbacks=(lambda record: _stop(record.epoch),))
        return fresh(model, pair, method, length, stop, ticket)

    def _stop(epoch: float) -> None:
        if epoch < 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(tickets, "score_of", killed)
    with pytest.raises(KeyboardInterrupt):
        tickets.conv6_cifar(**small, runs=tmp_path)
    monkeypatch.setattr(tickets, "score_of", fresh)
    assert tickets.conv6_cifar(**small, runs=tmp_path) == whole
    assert tickets.conv6_cifar(**small, runs=tmp_path) == whole


def test_a_shortened_training_redraws_as_often() -> None:
    """45,000 images in batches of 128 are 351 steps: 117 events in 100 epochs with a period of 300."""
    assert tickets.proportional_period(100) == 300
    for epochs in (1, 10, 20, 50):
        assert 351 * epochs // tickets.proportional_period(epochs) == 351 * 100 // 300


def test_masks_of_the_tangent_figures_do_not_know_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn with the weights' own seed a random mask keeps the largest of uniform weights: 1.2 spreads off in mean.

    Over 10,000 kept weights the mean of an independent mask is within 0.06 spreads but for one time in 10^6.
    """
    means: list[float] = []

    def look(model: nn.Module, masks: Masks, *rest: Any) -> float:
        kept = torch.cat([model.get_parameter(name)[mask].detach() for name, mask in masks.items()])
        every = torch.cat([model.get_parameter(name).detach().flatten() for name in masks])
        means.append(float((kept.mean() - every.mean()) / every.std()))
        return 0.0

    monkeypatch.setattr(tangent, "trained_under", look)
    monkeypatch.setattr(tangent, "small_cifar", lambda *arguments: (None, None))
    tangent.accuracies("vgg11", 0.125, "random", tangent.Scale((), rounds=1), None, 0)
    assert len(means) == 1
    assert abs(means[0]) < 0.06


@pytest.mark.data
@pytest.mark.prove
def test_figures_of_the_tangent_paper_run() -> None:
    """Figures in small (in `make test` one of them): each width, density and method once, the gap from the full net."""
    tiny = tangent.Scale(widths=(0.125, 0.25), images=100, tests=50, length="1ep", rounds=1, rate=0.5)
    methods = {
        tangent.figure_3: {"random"},
        tangent.figure_5: {"random", "random rescaled", "imp"},
        tangent.figure_6: {"random", "random rescaled", "imp"},
        tangent.figure_7: {"random rescaled"},
        tangent.figure_8: {"imp"},
    }
    for figure, expected in methods.items() if PROVING else [(tangent.figure_6, methods[tangent.figure_6])]:
        rows = figure(scale=tiny)
        found = {(row["width factor"], row["density"], row["method"]) for row in rows}
        assert found == {(width, 0.5, method) for width in (0.125, 0.25) for method in expected}
        assert len(found) == len(rows)
        assert all(row["gap"] == pytest.approx(row["full"] - row["ours"], abs=0.011) for row in rows)
        assert set(tangent.mean_gaps(rows)) == {0.125, 0.25}
    rows = tangent.figure_4(scale=tangent.Scale((0.02,), 200, 100, "1ep", 1))
    assert {row["method"] for row in rows} == {"imp", "random", "random rescaled", "snip", "grasp"}


def test_all_are_registered_with_their_needs() -> None:
    collect()

    ours = {name for name in reproductions if name.startswith(("ticket-", "imp-", "finetune-"))}
    assert len(ours) >= 10
    assert reproductions["ticket-imagenet-full"].out_of_reach
    assert not reproductions["ticket-conv6-cifar"].out_of_reach
    assert reproductions["ticket-imdb-lstm"].needs == ("imdb",)
    assert all(f"tangent-figure-{number}" in reproductions for number in range(3, 9))

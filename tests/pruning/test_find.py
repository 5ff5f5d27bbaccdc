from __future__ import annotations

import copy
import itertools
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import prunus
from prunus.errors import BadInput, UnknownName
from prunus.formulas.banks import van_der_corput
from prunus.layers import prunable_weights
from support import scale
from support.networks import MAKERS, network

PATTERNS = ["unstructured", "balanced:16", "balanced:8", "2:4", "1:4", "kernels", "channels", "blocks:4x4"]


def level(pattern: str) -> float:
    return {"2:4": 0.5, "1:4": 0.75}.get(pattern, 0.6)


def nearest(share: float, count: int) -> int:
    return math.floor(share * count + 0.5)


def check_counts(pattern: str, mask: torch.Tensor, rows: torch.Tensor) -> None:
    """The number of zeros a pattern promises, counted from the mask; `rows` is (outputs, taps, channels)."""
    outputs, taps, channels = rows.shape
    share, flat, zeros = level(pattern), rows.reshape(outputs, -1), int((~mask).sum())
    if pattern == "unstructured":
        assert zeros == nearest(share, mask.numel())
    elif pattern == "channels":
        dropped = ~flat.any(1)
        assert int(dropped.sum()) == nearest(share, outputs)
        assert zeros == int(dropped.sum()) * flat.shape[1]
    elif pattern == "kernels":
        slices = mask.flatten(2) if mask.dim() > 2 else mask[:, :, None]
        assert int((~slices.any(2)).sum()) == nearest(share, slices.shape[0] * slices.shape[1])
        assert zeros == int((~slices.any(2)).sum()) * slices.shape[2]
    elif pattern.startswith("blocks"):
        tiles = [flat[i : i + 4, j : j + 4] for i in range(0, outputs, 4) for j in range(0, flat.shape[1], 4)]
        assert sum(not tile.any() for tile in tiles) == nearest(share, len(tiles))
        assert zeros == sum(tile.numel() for tile in tiles if not tile.any())
    else:
        size = int(re.sub(r".*:", "", pattern))
        segment = channels if channels >= size else taps * channels
        banks = [bank for part in flat.split(segment, 1) for bank in part.split(size, 1)]
        lost = [(~bank).sum(1) for bank in banks]
        assert all(bool((each == each[0]).all()) for each in lost), "a bank loses equally many in every row"
        if pattern.startswith("balanced"):
            assert all(abs(int(each[0]) - share * bank.shape[1]) < 1 for each, bank in zip(lost, banks))
            slack = 1 + math.log2(len(banks)) / 3
            assert abs(int(sum(lost)[0]) - share * flat.shape[1]) <= slack
        else:
            keep = int(pattern[0])
            assert all(int(bank[0].sum()) == math.ceil(bank.shape[1] * keep / size) for bank in banks)


@pytest.mark.parametrize("kind", list(MAKERS))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_kind_of_layer_and_pattern(kind: str, pattern: str) -> None:
    model, inputs, _ = network(kind)
    before = copy.deepcopy(model.state_dict())
    masks = prunus.find_masks(
        model, level(pattern), pattern=pattern, exclude=("head",) if "head.weight" in before else ()
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert set(masks) == {n for n in prunable_weights(model) if not n.startswith("head")}
    for name, weight in prunable_weights(model).items():
        if name in masks:
            check_counts(pattern, masks[name], weight.rows(masks[name]))
    masks.apply_(model)
    assert torch.isfinite(model(inputs)).all()


@pytest.mark.parametrize("score", prunus.scores.names())
@pytest.mark.parametrize("kind", ["linear", "convolution", "tied", "attention", "lstm"])
def test_every_score_prunes_every_kind(score: str, kind: str) -> None:
    model, inputs, labels = network(kind)
    state = copy.deepcopy(model.state_dict())
    masks = prunus.find_masks(model, 0.5, score=score, data=(inputs, labels), seed=3)
    again = prunus.find_masks(model, 0.5, score=score, data=(inputs, labels), seed=3)
    assert masks == again
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    if score != "random-with-replacement":
        for row in masks.layers:
            assert row.total - row.kept == (row.total + 1) // 2


@pytest.mark.parametrize("allocation", prunus.allocations.names())
@pytest.mark.parametrize("pattern", ["unstructured", "balanced:8", "channels", "kernels", "blocks:2x4"])
def test_allocations_meet_the_total_and_nest(allocation: str, pattern: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 40), nn.ReLU(), nn.Linear(40, 16))
    with torch.no_grad():
        model[2].weight.mul_(3)
    chain = [
        prunus.find_masks(model, sparsity, allocation=allocation, pattern=pattern) for sparsity in (0.2, 0.5, 0.7, 0.9)
    ]
    for sparsity, masks in zip((0.2, 0.5, 0.7, 0.9), chain):
        assert masks.sparsity == pytest.approx(sparsity, abs=0.005 if pattern == "unstructured" else 0.03)
    for coarse, fine in itertools.pairwise(chain):
        assert all(bool((fine[name] <= coarse[name]).all()) for name in fine)


def test_global_drops_the_smallest_of_all() -> None:
    model, _, _ = network("linear")
    masks = prunus.find_masks(model, 0.7, allocation="global")
    kept = torch.cat([model.get_parameter(n).detach()[m].abs() for n, m in masks.items()])
    gone = torch.cat([model.get_parameter(n).detach()[~m].abs() for n, m in masks.items()])
    assert gone.numel() == round(0.7 * (gone.numel() + kept.numel()))
    assert gone.max() <= kept.min()


def test_lamp_keeps_a_weight_everywhere_and_is_the_published_rule() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    masks = prunus.find_masks(model, 0.99, allocation="lamp")
    assert all(row.kept >= 1 for row in masks.layers)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    ratios = []
    for index in (0, 1):  # score_i = w_i^2 / sum of all w_j^2 with |w_j| >= |w_i|
        w = model[index].weight.detach().reshape(-1).double()
        ratios.append(torch.stack([x * x / (w[w.abs() >= x.abs()] ** 2).sum() for x in w]))
    joint = torch.cat(ratios)
    cut = joint.sort().values[round(0.6 * joint.numel()) - 1]
    masks = prunus.find_masks(model, 0.6, allocation="lamp")
    for index in (0, 1):
        assert torch.equal(masks[f"{index}.weight"].reshape(-1), ratios[index] > cut)


def test_erk_densities_follow_the_sides() -> None:
    model = nn.Sequential(nn.Linear(400, 300), nn.Linear(300, 200))
    masks = prunus.find_masks(model, 0.9, allocation="erk")
    first, second = (1 - row.sparsity for row in masks.layers)
    assert first / second == pytest.approx((700 / 120_000) / (500 / 60_000), rel=1e-3)


def test_random_with_replacement_hits_fewer() -> None:
    model = nn.Linear(100, 100)
    sparsities = [prunus.find_masks(model, 0.5, score="random-with-replacement", seed=s).sparsity for s in range(20)]
    # mean 1 - (1 - 1/D)^N; sd of a count is below sqrt(D)/2, so six of them over sqrt(20): false alarms below 1e-6
    assert sum(sparsities) / 20 == pytest.approx(1 - (1 - 1e-4) ** 5000, abs=6 * 0.005 / 20**0.5)


def test_balanced_rows_are_equal_in_every_bank() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(48, 12, 3)
    for sparsity in (0.5, 0.75, 0.9):
        mask = prunus.find_masks(layer, sparsity, pattern="balanced:16")["weight"]
        rows = mask.permute(0, 2, 3, 1).reshape(12, -1, 16).sum(2)
        assert (rows == rows[0]).all()
        drops = [16 - int(count) for count in rows[0]]
        u = van_der_corput(len(drops))
        floor, part = int(sparsity * 16), sparsity * 16 - int(sparsity * 16)
        assert drops == [floor + (x < part) for x in u]


def test_a_narrow_stem_is_banked_across_taps() -> None:
    mask = prunus.find_masks(nn.Conv2d(3, 8, 3), 0.5, pattern="balanced:16")["weight"]
    rows = mask.permute(0, 2, 3, 1).reshape(8, 27)
    assert (rows[:, :16].sum(1) == 8).all()
    assert (rows[:, 16:].sum(1) == rows[0, 16:].sum()).all()


def test_transposed_convolutions_are_balanced_by_output() -> None:
    layer = nn.ConvTranspose2d(32, 6, 2, groups=2)
    mask = prunus.find_masks(layer, 0.5, pattern="2:4")["weight"]
    rows = mask.reshape(2, 16, 6 // 2, 4).permute(0, 2, 3, 1).reshape(6, -1, 4)
    assert (rows.sum(2) == 2).all()


def test_kernels_and_channels_fall_as_wholes_by_their_norm() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 8, 3)
    kernels = prunus.find_masks(layer, 0.5, pattern="kernels")["weight"].flatten(2)
    assert (kernels.all(2) | ~kernels.any(2)).all()
    norms = layer.weight.detach().abs().sum((2, 3))
    assert norms[~kernels.any(2)].max() <= norms[kernels.all(2)].min()
    channels = prunus.find_masks(layer, 0.25, pattern="channels")["weight"].flatten(1)
    assert int((~channels.any(1)).sum()) == 2


@pytest.mark.prove
@settings(max_examples=scale(150, full=2000), deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(16, 90),
    pattern=st.sampled_from(PATTERNS),
    ties=st.sampled_from(["none", "signs", "equal", "few"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    kind=st.sampled_from(["linear", "conv"]),
    seed=st.integers(0, 2**31),
)
def test_properties(rows, columns, pattern, ties, dtype, kind, seed) -> None:  # type: ignore[no-untyped-def]
    """Exact counts, kept weights bitwise equal, every row alike in a bank, masks of growing sparsity nested."""
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(columns, rows) if kind == "linear" else nn.Conv2d(columns, rows, 3)
    with torch.no_grad():
        values = torch.randn(layer.weight.shape, generator=generator)
        values = {"none": values, "signs": values.sign(), "equal": values * 0 + 1, "few": (2 * values).round()}[ties]
        layer.weight.copy_(values)
    layer = layer.to(dtype)
    levels = [level(pattern)] if ":" in pattern and pattern[0].isdigit() else [0.1, 0.5, 0.77, 0.9]
    previous = None
    for sparsity in levels:
        mask = prunus.find_masks(layer, sparsity, pattern=pattern)["weight"]
        zeros = int((~mask).sum())
        if pattern == "unstructured":
            assert zeros == int(sparsity * mask.numel() + 0.5 + 1e-9)
        if pattern.startswith("balanced") or pattern[0].isdigit():
            bank = int(pattern.split(":")[1])
            view = mask.reshape(rows, columns, -1).transpose(1, 2)
            for start in range(0, columns, bank):
                counts = view[:, :, start : start + bank].sum(2)
                assert (counts == counts[0]).all()
            if pattern.startswith("balanced"):  # the sequence's discrepancy, and at most a weight for each short bank
                banks = view.shape[1] * -(-columns // bank)
                slack = 1 + math.log2(banks + 1) / 3 + (view.shape[1] if columns % bank else 0)
                assert abs(zeros - sparsity * mask.numel()) / rows <= slack
        pruned = prunus.Masks({"weight": mask}).apply_(copy.deepcopy(layer))
        assert torch.equal(pruned.weight[mask], layer.weight[mask])
        assert not pruned.weight[~mask].any()
        if previous is not None:
            assert bool((mask <= previous).all())
        previous = mask


def test_dict_sparsity_prunes_only_what_it_names() -> None:
    model, _, _ = network("linear")
    masks = prunus.find_masks(model, {"0": 0.25, "2.weight": 0.5})
    assert [row.sparsity for row in masks.layers] == pytest.approx([0.25, 0.5])
    assert list(prunus.find_masks(model, {"2*": 0.5})) == ["2.weight"]


def test_exclude_takes_names_globs_and_wrapped_names() -> None:
    model, _, _ = network("linear")
    for exclude in (("2",), ("2.weight",), ("2*",), ("module.2",), "2"):
        assert list(prunus.find_masks(model, 0.5, exclude=exclude)) == ["0.weight"]


def bad_weights(value: float) -> nn.Module:
    layer = nn.Linear(16, 4)
    with torch.no_grad():
        layer.weight[1, 2] = value
    return layer


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: prunus.find_masks(m, 1.0), r"\[0, 1\)"),
        (lambda m: prunus.find_masks(m, -0.1), r"\[0, 1\)"),
        (lambda m: prunus.find_masks(m, float("nan")), r"\[0, 1\)"),
        (lambda m: prunus.find_masks(m, "0.5"), "must be a number"),
        (lambda m: prunus.find_masks(m, 0.9, pattern="2:4"), "ask for 0.5"),
        (lambda m: prunus.find_masks(m, 0.5, pattern="balanced:64"), "rows of at least 64"),
        (lambda m: prunus.find_masks(m, 0.5, pattern="4:2"), "1 <= N <= M"),
        (lambda m: prunus.find_masks(m, 0.5, pattern="balanced:0"), "at least 1"),
        (lambda m: prunus.find_masks(m, 0.5, pattern="blocks:0x4"), "at least 1"),
        (lambda m: prunus.find_masks(m, 0.5, pattern="striped"), "balanced:B"),
        (lambda m: prunus.find_masks(m, 0.5, pattern=7), "A pattern is"),
        (lambda m: prunus.find_masks(m, 0.5, score="size"), "magnitude"),
        (lambda m: prunus.find_masks(m, 0.5, allocation="fair"), "uniform"),
        (lambda m: prunus.find_masks(m, 0.5, exclude=("fc*",)), "matches no prunable weight"),
        (lambda m: prunus.find_masks(m, 0.5, exclude=("*",)), "nothing to prune"),
        (lambda m: prunus.find_masks(nn.ReLU(), 0.5), "no prunable weights"),
        (lambda m: prunus.find_masks(m, {"7": 0.5}), "no prunable weight"),
        (lambda m: prunus.find_masks(m, {"0": 0.5, "0.weight": 0.6}), "twice"),
        (lambda m: prunus.find_masks(m, 0.5, score="snip"), "pass data="),
        (lambda m: prunus.find_masks(m, 0.5, score="snip", data=[]), "empty"),
        (lambda m: prunus.find_masks(m, 0.5, score="snip", data=torch.zeros(2, 32)), "needs labels"),
        (lambda m: prunus.find_masks(m, 0.5, score="random-with-replacement", pattern="channels"), "unstructured"),
        (lambda m: prunus.find_masks(bad_weights(float("nan")), 0.5), "NaN or Inf"),
        (lambda m: prunus.find_masks(bad_weights(float("inf")), 0.5), "NaN or Inf"),
        (lambda m: prunus.find_masks(nn.Linear(4, 4, device="meta"), 0.5), "meta device"),
    ],
)
def test_bad_input_is_one_sentence(call, message) -> None:  # type: ignore[no-untyped-def]
    model, _, _ = network("linear")
    with pytest.raises(BadInput, match=message) as caught:
        call(model)
    text = str(caught.value)
    assert "\n" not in text
    assert text[-1] in ".?"


def test_registries_refuse_silent_overwrite() -> None:
    @prunus.scores.register("test-largest", replace=True)
    def largest(context):  # type: ignore[no-untyped-def]
        return {name: -weight.parameter.abs() for name, weight in context.weights.items()}

    with pytest.raises(BadInput, match="exists already"):
        prunus.scores.register("test-largest")(largest)
    model, _, _ = network("linear")
    mask = prunus.find_masks(model, 0.5, score="test-largest")["0.weight"]
    weight = model[0].weight.detach().abs()
    assert weight[mask].max() <= weight[~mask].min()
    assert len(prunus.check_score("test-largest")) >= 30
    with pytest.raises(UnknownName, match="did you mean 'magnitude'"):
        prunus.find_masks(model, 0.5, score="magnitud")
    with pytest.raises(BadInput, match="returns int: it must return a tensor for each name"):
        prunus.find_masks(model, 0.5, score=lambda context: 3)


def test_conformance_batteries_accept_ours_and_reject_faults() -> None:
    for score in prunus.scores.names():
        assert len(prunus.check_score(score)) >= 30
    for pattern in PATTERNS:
        assert len(prunus.check_pattern(pattern)) >= 30

    def careless(context):  # type: ignore[no-untyped-def]
        for weight in context.weights.values():
            weight.parameter.data.mul_(0.5)
        return {name: weight.parameter.abs() for name, weight in context.weights.items()}

    with pytest.raises(BadInput, match="the model is not touched"):
        prunus.check_score(careless)
    with pytest.raises(BadInput, match="a weight has no score"):
        prunus.check_score(lambda context: {})

    class Threshold(prunus.patterns.Unstructured):
        def mask(self, scores, weight, sparsity, *, absolute=False):  # type: ignore[no-untyped-def]
            values = scores.abs() if absolute else scores
            return values > values.flatten().kthvalue(max(1, int(sparsity * values.numel()))).values

    with pytest.raises(BadInput, match="ties do not change the count"):
        prunus.check_pattern(Threshold())

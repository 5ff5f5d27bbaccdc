"""Verdicts: proofs hold against a search, counterexamples are real, and the published answers come out."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.equivalent import network as read_network
from torch import nn

import prunus
from prunus.errors import BadFile, BadInput
from support import only_when_proving

ACAS = Path(os.environ.get("PRUNUS_DATA", "nowhere")) / "acasxu"
needs_acas = pytest.mark.skipif(not ACAS.is_dir(), reason="the ACAS Xu networks are not in PRUNUS_DATA")


def network(file: str, name: str) -> nn.Sequential:
    return read_network(np.load(ACAS / file), name)


def acas_box(number: int) -> prunus.Box:
    found = json.loads((ACAS / "properties.json").read_text())["properties"][str(number)]
    return prunus.Box(torch.tensor(found["low"]).double(), torch.tensor(found["high"]).double())


@needs_acas
@pytest.mark.parametrize(("number", "status"), [(10, "proved"), (3, "refuted"), (4, "refuted"), (8, "refuted")])
def test_acas_networks_get_the_published_verdicts(number: int, status: str) -> None:
    one, two = network("pairs.npz", "acas_1_1"), network("pairs.npz", "acas_1_1_pruned5")
    verdict = prunus.equivalent(one, two, acas_box(number), tolerance=0.05, boxes=400)
    assert verdict.status == status
    if status == "refuted":
        box, found = acas_box(number), verdict.counterexample
        assert found is not None
        assert bool((found.double() >= box.low).all() & (found.double() <= box.high).all())
        with torch.no_grad():
            assert float((one(found[None]) - two(found[None])).abs().max()) > 0.05
    else:
        assert verdict.bound <= 0.05


@needs_acas
@pytest.mark.prove
@only_when_proving
@pytest.mark.parametrize("number", [1, 2, 5, 7, 9])
def test_acas_networks_get_all_published_verdicts(number: int) -> None:
    one, two = network("pairs.npz", "acas_1_1"), network("pairs.npz", "acas_1_1_pruned5")
    verdict = prunus.equivalent(one, two, acas_box(number), tolerance=0.05, boxes=4000)
    assert verdict.status == ("proved" if number in (1, 2) else "refuted")


def small(seed: int, *, softmax: bool = False) -> tuple[nn.Module, prunus.Masks]:
    torch.manual_seed(seed)
    last = [nn.Softmax(1)] if softmax else []
    model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3), *last).eval()
    return model, prunus.find_masks(model, 0.3)


@pytest.mark.parametrize("seed", range(3))
def test_verdicts_agree_with_a_search(seed: int) -> None:
    model, masks = small(seed)
    pruned = masks.apply_(small(seed)[0])
    low, high = torch.full((3,), -0.3), torch.full((3,), 0.4)
    points = low + (high - low) * torch.rand(20_000, 3)
    with torch.no_grad():
        worst = float((model(points) - pruned(points)).abs().max())
    box = prunus.Box(low, high)
    above = prunus.equivalent(model, masks, box, tolerance=worst * 1.15, boxes=3000)
    below = prunus.equivalent(model, masks, box, tolerance=worst * 0.97, boxes=3000)
    assert above.status == "proved"
    assert worst <= above.bound <= worst * 1.15
    assert below.status == "refuted"
    assert below.difference is not None
    assert below.difference > worst * 0.97
    two = prunus.equivalent(model, masks, prunus.Ball(0.2), tolerance=worst * 2, norm=2, boxes=500)
    again = prunus.equivalent(model, masks, prunus.Ball(0.2), tolerance=worst * 2, norm=2, boxes=500)
    assert (two.status, two.bound, two.boxes) == (again.status, again.bound, again.boxes)


@pytest.mark.parametrize("softmax", [False, True])
def test_labels_are_proved_only_where_no_input_has_another(softmax: bool) -> None:
    model, masks = small(4, softmax=softmax)
    pruned = masks.apply_(small(4, softmax=softmax)[0])
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    for radius in (0.0, 0.05, 0.5):
        same = prunus.certify_labels(model, masks, prunus.Samples(points, radius))
        noise = torch.randn(12, 500, 3, generator=torch.Generator().manual_seed(1))
        near = points[:, None] + radius * noise / noise.norm(dim=2, keepdim=True)
        with torch.no_grad():
            one, two = (net(near.reshape(-1, 3)).argmax(1).reshape(12, -1) for net in (model, pruned))
        constant = (one == two).all(1) & (one == one[:, :1]).all(1)
        for proved, holds in zip(same.agree, constant.tolist(), strict=True):
            assert holds or not proved
        if radius < 0.1:
            assert same.fraction > 0.5
        whole = prunus.equivalent(model, masks, prunus.Samples(points[:1], radius or 0.01), labels=True, boxes=300)
        assert whole.status == "refuted" or not (radius <= 0.05 and same.agree[0] and whole.status != "proved")


def test_what_cannot_be_asked_is_refused() -> None:
    model, masks = small(0)
    box = prunus.Box(torch.zeros(3), torch.ones(3))
    for tolerance in (0.0, -1.0, float("nan"), float("inf"), True, "x"):
        with pytest.raises(BadInput, match="tolerance"):
            prunus.equivalent(model, masks, box, tolerance=tolerance)  # type: ignore[arg-type]
    near = prunus.Samples(torch.zeros(1, 3), 0.1)
    for seconds in (0, -1.0, float("nan"), True, "x", None):
        with pytest.raises(BadInput, match="time"):
            prunus.equivalent(model, masks, box, seconds=seconds)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="time"):
            prunus.certify_labels(model, masks, near, seconds=seconds)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="norm"):
        prunus.equivalent(model, masks, box, norm=1)
    with pytest.raises(BadInput, match="boxes"):
        prunus.equivalent(model, masks, box, boxes=0)
    with pytest.raises(BadInput, match="low <= high"):
        prunus.Box(torch.ones(3), torch.zeros(3))
    with pytest.raises(BadInput, match="does not run on an example"):
        prunus.equivalent(model, nn.Sequential(nn.Linear(4, 3)).eval(), box)
    with pytest.raises(BadInput, match="different architectures"):
        prunus.equivalent(model, nn.Sequential(nn.Linear(3, 2)).eval(), box)
    with pytest.raises(BadInput, match="Samples"):
        prunus.certify_labels(model, masks, box)  # type: ignore[arg-type]


def test_a_vnnlib_box_is_read_and_anything_else_refused(tmp_path: Path) -> None:
    from prunus.certificates.vnnlib import read_vnnlib

    good = tmp_path / "good.vnnlib"
    good.write_text(
        "; a box\n(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n"
        "(assert (<= X_0 0.5))\n(assert (>= X_0 -1e-1))\n(assert (and (<= X_1 2) (<= 1 X_1)))\n(assert (>= Y_0 3))\n"
    )
    box = read_vnnlib(good)
    assert box.low.tolist() == [-0.1, 1.0]
    assert box.high.tolist() == [0.5, 2.0]
    for text, words in (
        ("(declare-const X_0 Real)(assert (<= X_0 1))", "lacks"),
        ("(assert (<= X_0 1))(assert (>= X_0 2))", "empty"),
        ("(assert (or (<= X_0 1) (>= X_0 2)))", "not a box"),
        ("(assert (<= X_0 X_1))", "not a box"),
        ("(assert (<= X_0 1)", "parentheses"),
        ("(check-sat)", "neither"),
        ("", "without a gap"),
    ):
        bad = tmp_path / "bad.vnnlib"
        bad.write_text(text)
        with pytest.raises(BadFile, match=words):
            read_vnnlib(bad)
    with pytest.raises(BadFile, match="cannot be read"):
        read_vnnlib(tmp_path / "missing")


def test_onnx_networks_are_read_as_they_compute(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the export extra is not installed")
    from onnx import TensorProto, helper, numpy_helper, reference

    from prunus.models.onnx_models import read_onnx

    generator = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> object:
        return numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)

    weights = [tensor("w0", 3, 2, 3, 3), tensor("b0", 3), tensor("w1", 12, 5), tensor("b1", 5), tensor("w2", 4, 5)]
    weights.append(numpy_helper.from_array(np.array([0, -1], dtype=np.int64), "flat"))
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["c", "flat"], ["d"]),
        helper.make_node("MatMul", ["d", "w1"], ["e"]),
        helper.make_node("Add", ["e", "b1"], ["f"]),
        helper.make_node("Relu", ["f"], ["g"]),
        helper.make_node("Gemm", ["g", "w2"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        weights,
    )
    path = tmp_path / "net.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    read = read_onnx(path)
    inputs = torch.randn(3, 2, 4, 4)
    expected = reference.ReferenceEvaluator(model).run(None, {"x": inputs.numpy()})[0]
    with torch.no_grad():
        assert torch.allclose(read(inputs), torch.from_numpy(expected), atol=1e-4)
    other = read_onnx(path)
    with torch.no_grad():
        other.weights["p2"].mul_(0.999)  # type: ignore[union-attr, operator]
    box = prunus.Box(torch.zeros(2, 4, 4), torch.full((2, 4, 4), 0.01))
    assert prunus.equivalent(read, other, box, tolerance=1.0, boxes=50).status == "proved"
    nodes[1] = helper.make_node("Erf", ["a"], ["b"])
    graph = helper.make_graph(nodes, "net", graph.input, graph.output, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    with pytest.raises(BadInput, match="Erf"):
        read_onnx(path)
    path.write_bytes(b"not onnx")
    with pytest.raises(BadFile, match="ONNX"):
        read_onnx(path)


def test_a_tie_leaves_the_label_open_even_beside_a_copy() -> None:
    """Where two outputs tie, rounding decides, and sums may be taken in any order."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False)).eval()
    nn.init.eye_(model[0].weight)  # type: ignore[arg-type]
    other = copy.deepcopy(model)
    tied, apart = prunus.Box([-1.0, -1.0], [1.0, 1.0]), prunus.Box([0.5, -1.0], [1.0, 0.25])
    assert prunus.equivalent(model, other, tied, labels=True, boxes=40).status == "undecided"
    assert prunus.equivalent(model, other, apart, labels=True, boxes=40).status == "proved"

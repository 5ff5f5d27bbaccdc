"""Every ONNX operator that is read means what ONNX Runtime computes, or it is refused in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import prunus
from prunus.errors import BadInput
from prunus.models.onnx_models import OPERATORS, read_onnx

onnx = pytest.importorskip("onnx", reason="the export extra is not installed")
runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

Case = tuple[str, tuple[int, ...], dict[str, Any], int]
"""An operator, the shape of its input, its attributes and its further inputs, and the version of the operator set."""


def ranks(name: str, before: int, given: Mapping[str, Any]) -> int:
    """How many axes the output has, which a file must say."""
    if name == "Reshape":
        return len(given["sizes"])
    if name == "Flatten":
        return 2
    return before - (name == "Squeeze" or given.get("keepdims", 1) == 0)


def saved(path: Path, case: Case) -> nn.Module:
    """A network of one node, written to the path, as it is read."""
    name, shape, given, opset = case
    attributes = {key: value for key, value in given.items() if not isinstance(value, np.ndarray)}
    tensors = {key: value for key, value in given.items() if isinstance(value, np.ndarray)}
    inputs = ["x", *("" if key.startswith("none") else key for key in tensors)]
    left = attributes.pop("left", None)
    if left is not None:
        inputs = [*inputs[1:], "x"]
    axes = [str(axis) for axis in range(ranks(name, len(shape), given))]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(name, inputs, ["y"], **attributes)],
        "net",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, axes)],
        [onnx.numpy_helper.from_array(value, key) for key, value in tensors.items() if not key.startswith("none")],
    )
    ir = 8 if opset < 20 else 10
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir)
    onnx.save(model, str(path))
    return read_onnx(path)


def computed(path: Path, x: torch.Tensor) -> torch.Tensor:
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def one(value: float) -> np.ndarray:
    return np.array(value, dtype=np.float32)


NORM = {"s": floats(3), "b": floats(3), "m": floats(3), "v": floats(3) ** 2}
SAME: list[Case] = [
    *(("Softmax", (1, 3, 4, 2), {} if axis is None else {"axis": axis}, opset) for opset in (9, 11, 12, 13, 17)
      for axis in (None, 1, 2, 3)),
    ("Softmax", (1, 3, 4), {"axis": -2}, 12),
    ("Softmax", (1, 3, 4), {"axis": -2}, 13),
    ("Softmax", (1, 7), {}, 12),
    *(("Flatten", (1, 3, 4), {} if axis is None else {"axis": axis}, 13) for axis in (None, 1)),
    *(("Reshape", (1, 8), {"sizes": ints(*sizes)}, 13) for sizes in
      ((1, 8), (1, -1), (-1, 8), (0, 2, 4), (0, -1), (1, 2, -1), (4, -1), (-1, 4), (2, 2, 2), (8,), (-1,))),
    *(("Reshape", (1, 2, 4), {"sizes": ints(*sizes)}, 14) for sizes in ((0, 0, -1), (0, 4, 2), (2, 4), (1, 8))),
    ("Squeeze", (1, 1, 4), {"axes": [1]}, 11),
    ("Squeeze", (1, 3, 1), {"axes": ints(-1)}, 13),
    ("Transpose", (1, 2, 3), {"perm": [0, 2, 1]}, 13),
    ("Transpose", (1, 2, 3), {}, 13),
    ("Concat", (1, 3), {"w": floats(1, 2), "axis": 1}, 13),
    ("ReduceMean", (1, 3, 4), {"axes": [1, 2]}, 13),
    ("ReduceMean", (1, 3, 4), {"axes": [-1], "keepdims": 0}, 13),
    ("ReduceMean", (1, 3, 4), {"a": ints(2)}, 18),
    ("Clip", (1, 9), {"min": -0.5, "max": 0.25}, 10),
    ("Clip", (1, 9), {"max": 0.25}, 6),
    ("Clip", (1, 9), {"low": one(-0.5), "high": one(0.25)}, 13),
    ("Clip", (1, 9), {"low": one(-0.5)}, 13),
    ("Clip", (1, 9), {"none": one(0), "high": one(0.25)}, 13),
    ("Clip", (1, 9), {}, 13),
    ("Clip", (1, 9), {"low": one(0.5), "high": one(-0.5)}, 13),
    ("Dropout", (1, 9), {"ratio": one(0.5)}, 13),
    ("Dropout", (1, 9), {"ratio": one(0.5), "training": np.array(False)}, 13),
    ("Dropout", (1, 9), {"ratio": 0.5}, 7),
    ("Gemm", (1, 4), {"w": floats(4, 3)}, 13),
    *(("Gemm", (1, 4), {"w": floats(3, 4), "c": floats(*shape), "alpha": 0.5, "beta": -2.0, "transB": 1}, 13)
      for shape in ((3,), (1, 3), (1, 1), (1,), ())),
    ("MatMul", (1, 4), {"w": floats(4, 3)}, 13),
    ("MatMul", (1, 5, 4), {"w": floats(4, 3)}, 13),
    ("MatMul", (1, 5, 4), {"w": floats(2, 5), "left": 1}, 13),
    ("Conv", (1, 4, 7), {"w": floats(6, 2, 3), "b": floats(6), "group": 2, "pads": [2, 1], "dilations": [2]}, 13),
    ("Conv", (1, 2, 7, 6), {"w": floats(3, 2, 3, 2), "strides": [2, 1], "pads": [1, 0, 2, 1]}, 13),
    ("Conv", (1, 2, 7, 6), {"w": floats(3, 2, 3, 2), "auto_pad": "VALID"}, 13),
    ("BatchNormalization", (1, 3, 4), NORM, 13),
    ("BatchNormalization", (1, 3, 4), {**NORM, "epsilon": 0.5, "training_mode": 0}, 15),
    *((name, (1, 2, 7, 6), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": pads, "ceil_mode": ceil}, 13)
      for name in ("MaxPool", "AveragePool") for pads in ([0, 0, 0, 0], [1, 1, 1, 1]) for ceil in (0, 1)),
    ("AveragePool", (1, 2, 6), {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}, 13),
    ("AveragePool", (1, 2, 6), {"kernel_shape": [3], "pads": [1, 1]}, 13),
    ("MaxPool", (1, 2, 9), {"kernel_shape": [3], "dilations": [2]}, 13),
    ("GlobalAveragePool", (1, 2, 4, 3), {}, 13),
    ("LeakyRelu", (1, 9), {}, 13),
    ("LeakyRelu", (1, 9), {"alpha": 0.3}, 13),
    ("Elu", (1, 9), {"alpha": 0.3}, 13),
    *((name, (1, 9), {}, 13) for name in ("Relu", "Sigmoid", "Tanh", "Neg", "Identity", "Elu")),
    *((name, (1, 3, 4), {"w": floats(*shape), **left}, 13) for name in ("Add", "Sub", "Mul", "Div")
      for shape in ((4,), (3, 1), (1, 3, 4)) for left in ({}, {"left": 1})),
]  # fmt: skip
REFUSED: list[Case] = [
    ("BatchNormalization", (1, 3, 4), {**NORM, "training_mode": 1}, 15),
    ("Dropout", (1, 9), {"ratio": one(0.5), "training": np.array(True)}, 13),
    ("Flatten", (1, 3, 4), {"axis": 2}, 13),
    ("Flatten", (1, 3, 4), {"axis": 0}, 13),
    ("Reshape", (1, 8), {"sizes": ints(0, 8), "allowzero": 1}, 14),
    ("Squeeze", (1, 3, 1), {}, 13),
    ("ReduceMean", (1, 3, 4), {}, 13),
    ("ReduceMean", (1, 3, 4), {}, 18),
    ("Conv", (1, 2, 7, 6), {"w": floats(3, 2, 3, 2), "auto_pad": "SAME_UPPER"}, 13),
    ("MaxPool", (1, 2, 7), {"kernel_shape": [2], "auto_pad": "SAME_LOWER"}, 13),
    ("MaxPool", (1, 2, 7), {"kernel_shape": [3], "pads": [0, 1]}, 13),
    ("MaxPool", (1, 2, 7), {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}, 13),
    ("AveragePool", (1, 2, 7), {"kernel_shape": [2], "strides": [2], "pads": [1, 1], "ceil_mode": 1}, 13),
    ("MaxPool", (1, 2, 6, 6, 6), {"kernel_shape": [3, 3, 3]}, 13),
    ("AveragePool", (1, 2, 9), {"kernel_shape": [3], "dilations": [2]}, 19),
    ("Gemm", (4, 1), {"w": floats(4, 3), "transA": 1}, 13),
    ("Add", (1, 3, 4), {"w": floats(3), "axis": 1, "broadcast": 1}, 6),
]  # fmt: skip


def named(cases: Sequence[Case]) -> list[str]:
    def words(given: Mapping[str, Any]) -> str:
        shown = {k: v.shape if isinstance(v, np.ndarray) and v.dtype != np.int64 else v for k, v in given.items()}
        return "-".join(f"{key}={value}" for key, value in shown.items())

    return [f"{name}-{opset}-{words(given)}" for name, _, given, opset in cases]


@pytest.mark.parametrize("case", SAME, ids=named(SAME))
def test_an_operator_means_what_it_says(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(case[1])
    path = tmp_path / "net.onnx"
    model = saved(path, case)
    expected = computed(path, x)
    with torch.no_grad():
        found = model(x)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", REFUSED, ids=named(REFUSED))
def test_what_has_no_rule_is_refused_in_one_sentence(case: Case, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no rule"):
        saved(tmp_path / "net.onnx", case)(torch.randn(case[1]))


def test_every_operator_is_compared() -> None:
    assert {name for name, *_ in SAME} == set(OPERATORS)


def test_a_second_output_and_a_foreign_operator_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    for node, words in (
        (onnx.helper.make_node("Dropout", ["x"], ["z", "y"]), "second output"),
        (onnx.helper.make_node("Gemm", ["x"], ["y"], domain="com.example"), "Gemm"),
    ):
        graph = onnx.helper.make_graph(
            [node],
            "net",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 4))],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BOOL, (1, 4))],
        )
        sets = [onnx.helper.make_opsetid("", 13), onnx.helper.make_opsetid("com.example", 1)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8), str(path))
        with pytest.raises(BadInput, match=words):
            read_onnx(path)


def test_a_softmax_over_all_later_axes_is_compared_as_it_is(tmp_path: Path) -> None:
    """Over the last axis alone the two networks below would have equal outputs."""
    cases = [("Softmax", (1, 2, 1), {}, opset) for opset in (12, 13)]
    one_, two = (saved(tmp_path / f"{case[3]}.onnx", case) for case in cases)
    x = torch.tensor([[[1.0], [0.0]]])
    with torch.no_grad():
        assert float((one_(x) - two(x)).abs().max()) > 0.2
    with pytest.raises(BadInput):
        prunus.certify(one_, two, prunus.Samples(x))


@pytest.mark.parametrize("sizes", [(1, -1), (1, 8), (0, -1), (-1, 8)])
def test_a_file_for_one_row_takes_several(sizes: tuple[int, ...], tmp_path: Path) -> None:
    model = saved(tmp_path / "net.onnx", ("Reshape", (1, 2, 4), {"sizes": ints(*sizes)}, 13))
    x = torch.randn(3, 2, 4)
    assert torch.equal(model(x), x.flatten(1))

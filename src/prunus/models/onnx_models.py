"""ONNX networks as torch modules: the operators that feed-forward networks of the verification literature use.

Every node runs as the torch operator that means the same, so the module can be certified, pruned and compared like any
other. Initialisers are parameters under their ONNX names. An operator that is not listed is refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.errors import BadFile, BadInput, MissingExtra

Attributes = dict[str, Any]
Operator = Callable[[list[Any], Attributes], Any]


def read_onnx(path: str | os.PathLike[str]) -> nn.Module:
    """Read an ONNX file as a module in evaluation mode.

    Args:
        path: the file.

    Returns:
        A module of one input and one output; `input_shape` is its input without the batch, where the file says it.

    Raises:
        BadFile: the file is missing or no ONNX network.
        BadInput: the network uses an operator without a rule.
        MissingExtra: the package onnx is not installed.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise MissingExtra("onnx", "export", "Reading ONNX networks") from None
    place = Path(path)
    if not place.is_file():
        raise BadFile(f"The network {path} cannot be read: there is no such file.")
    try:
        model = onnx.load(str(place))
        onnx.checker.check_model(model, full_check=False)
    except Exception as error:  # protobuf and the checker raise their own kinds
        raise BadFile(f"{path} is no ONNX network or is damaged ({type(error).__name__}).") from None
    tensors = {item.name: torch.from_numpy(np.array(numpy_helper.to_array(item))) for item in model.graph.initializer}
    return OnnxNetwork(model.graph, tensors, str(path)).eval()


class OnnxNetwork(nn.Module):
    """An ONNX graph, run node by node with torch operators."""

    def __init__(self, graph: Any, tensors: dict[str, Tensor], name: str) -> None:
        super().__init__()
        from onnx import helper, numpy_helper

        inputs = [item for item in graph.input if item.name not in tensors]
        if len(inputs) != 1 or len(graph.output) != 1:
            raise BadInput(f"{name} has {len(inputs)} inputs and {len(graph.output)} outputs; one of each is needed.")
        self.input_name, self.output_name = inputs[0].name, graph.output[0].name
        sizes = [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim]
        self.full_shape = tuple(sizes)
        # The first size is the batch where it is free or 1; ACAS Xu files have (1, 1, 1, 5).
        self.input_shape = tuple(sizes[1:]) if len(sizes) > 1 and all(sizes[1:]) else None
        self.nodes: list[tuple[str, list[str], str, Attributes]] = []
        self.constants: dict[str, Any] = {}
        floats = nn.ParameterDict()
        self.keys: dict[str, str] = {}
        for number, (key, tensor) in enumerate(tensors.items()):
            if tensor.is_floating_point():
                self.keys[key] = f"p{number}"
                floats[f"p{number}"] = nn.Parameter(tensor, requires_grad=False)
            else:
                self.constants[key] = _numbers(tensor)
        self.weights = floats
        for node in graph.node:
            attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            if node.op_type == "Constant":
                value = torch.from_numpy(np.array(numpy_helper.to_array(attributes["value"])))
                self.constants[node.output[0]] = _numbers(value)
                continue
            if node.op_type not in OPERATORS:
                raise BadInput(
                    f"{name} uses the ONNX operator {node.op_type}, which has no rule here; known are "
                    f"{', '.join(sorted(OPERATORS))}."
                )
            self.nodes.append((node.op_type, list(node.input), node.output[0], attributes))

    def forward(self, x: Tensor) -> Tensor:
        values: dict[str, Any] = {self.input_name: x, "": None}
        values.update(self.constants)
        values.update({key: self.weights[place] for key, place in self.keys.items()})
        for kind, inputs, output, attributes in self.nodes:
            values[output] = OPERATORS[kind]([values[name] for name in inputs], attributes)
        result: Tensor = values[self.output_name]
        return result


def _numbers(tensor: Tensor) -> Any:
    """Sizes and axes as plain numbers, which a graph can be read with; other constants stay tensors."""
    return tensor.tolist() if tensor.ndim == 1 and not tensor.is_floating_point() else tensor


def _gemm(given: list[Any], attributes: Attributes) -> Tensor:
    x, weight = given[0], given[1]
    if attributes.get("transA", 0):
        raise BadInput("An ONNX Gemm with a transposed input has no rule.")
    if not attributes.get("transB", 0):
        weight = weight.T
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    bias = given[2] if len(given) > 2 else None
    if alpha != 1.0:
        weight = weight * alpha
    if bias is not None:
        bias = (bias * beta if beta != 1.0 else bias).expand(weight.shape[0])
    return functional.linear(x, weight, bias)


def _matmul(given: list[Any], attributes: Attributes) -> Tensor:
    left, right = given
    return functional.linear(left, right.T) if right.ndim == 2 else left @ right


def _sides(attributes: Attributes, axes: int) -> list[int]:
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise BadInput("An ONNX operator with automatic padding has no rule.")
    pads = list(attributes.get("pads", [0] * 2 * axes))
    return [side for axis in reversed(range(axes)) for side in (pads[axis], pads[axis + axes])]


def _conv(given: list[Any], attributes: Attributes) -> Tensor:
    x, weight = given[0], given[1]
    axes = weight.ndim - 2
    sides = _sides(attributes, axes)
    if any(sides):
        x = functional.pad(x, sides)
    run: Any = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[axes]
    bias = given[2] if len(given) > 2 else None
    ones = [1] * axes
    result: Tensor = run(
        x,
        weight,
        bias,
        attributes.get("strides", ones),
        0,
        attributes.get("dilations", ones),
        attributes.get("group", 1),
    )
    return result


def _pool(average: bool) -> Operator:
    def pool(given: list[Any], attributes: Attributes) -> Tensor:
        kernel = list(attributes["kernel_shape"])
        axes = len(kernel)
        sides = _sides(attributes, axes)
        if any(left != right for left, right in zip(sides[::2], sides[1::2])):
            raise BadInput("An ONNX pool with uneven padding has no rule.")
        padding, strides = sides[::2][::-1], attributes.get("strides", [1] * axes)
        ceil = bool(attributes.get("ceil_mode", 0))
        if average:
            run: Any = functional.avg_pool1d if axes == 1 else functional.avg_pool2d
            include = bool(attributes.get("count_include_pad", 0))
            return run(given[0], kernel, strides, padding, ceil, include)  # type: ignore[no-any-return]
        run = functional.max_pool1d if axes == 1 else functional.max_pool2d
        return run(given[0], kernel, strides, padding, attributes.get("dilations", [1] * axes), ceil)  # type: ignore

    return pool


def _batch_norm(given: list[Any], attributes: Attributes) -> Tensor:
    x, scale, bias, mean, variance = given
    return functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, attributes.get("epsilon", 1e-5))


def _flatten(given: list[Any], attributes: Attributes) -> Tensor:
    axis = attributes.get("axis", 1)
    if axis != 1:
        raise BadInput("An ONNX Flatten of the batch has no rule.")
    return torch.flatten(given[0], 1)


def _reshape(given: list[Any], attributes: Attributes) -> Tensor:
    sizes = [int(size) for size in given[1]]
    x = given[0]
    sizes = [x.shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    rest = list(sizes[1:])
    if -1 in rest:
        return cast("Tensor", x.reshape(x.shape[0], *rest))
    return cast("Tensor", x.reshape(-1, *rest) if len(rest) else x.reshape(-1))


def _squeezed(given: list[Any], attributes: Attributes) -> Tensor:
    axes = attributes.get("axes") or [int(axis) for axis in given[1]]
    return given[0].squeeze(tuple(axes))  # type: ignore[no-any-return]


def _clip(given: list[Any], attributes: Attributes) -> Tensor:
    low = attributes.get("min", given[1] if len(given) > 1 else None)
    high = attributes.get("max", given[2] if len(given) > 2 else None)
    return given[0].clamp(  # type: ignore[no-any-return]
        None if low is None else float(low), None if high is None else float(high)
    )


def _concat(given: list[Any], attributes: Attributes) -> Tensor:
    return torch.cat(given, attributes["axis"])


def _mean(given: list[Any], attributes: Attributes) -> Tensor:
    axes = attributes.get("axes") or [int(axis) for axis in given[1]]
    return given[0].mean(tuple(axes), keepdim=bool(attributes.get("keepdims", 1)))  # type: ignore[no-any-return]


OPERATORS: dict[str, Operator] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _conv,
    "BatchNormalization": _batch_norm,
    "MaxPool": _pool(average=False),
    "AveragePool": _pool(average=True),
    "GlobalAveragePool": lambda given, _: given[0].mean(tuple(range(2, given[0].ndim)), keepdim=True),
    "Relu": lambda given, _: torch.relu(given[0]),
    "LeakyRelu": lambda given, a: functional.leaky_relu(given[0], a.get("alpha", 0.01)),
    "Elu": lambda given, a: functional.elu(given[0], a.get("alpha", 1.0)),
    "Sigmoid": lambda given, _: torch.sigmoid(given[0]),
    "Tanh": lambda given, _: torch.tanh(given[0]),
    "Softmax": lambda given, a: torch.softmax(given[0], a.get("axis", -1)),
    "Clip": _clip,
    "Add": lambda given, _: given[0] + given[1],
    "Sub": lambda given, _: given[0] - given[1],
    "Mul": lambda given, _: given[0] * given[1],
    "Div": lambda given, _: given[0] / given[1],
    "Neg": lambda given, _: -given[0],
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Squeeze": _squeezed,
    "Transpose": lambda given, a: given[0].permute(tuple(a["perm"])),
    "Concat": _concat,
    "ReduceMean": _mean,
    "Identity": lambda given, _: given[0],
    "Dropout": lambda given, _: given[0],
}

"""ONNX networks as torch modules: the operators that feed-forward networks of the verification literature use.

Every node runs as the torch operator that means the same, so the module can be certified, pruned and compared like any
other. Initialisers are parameters under their ONNX names. What an operator means may depend on the version of the
operator set that the file names. An operator or an attribute that is not listed is refused by name.
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
    if len(model.graph.sparse_initializer):
        raise BadInput(f"{path} has sparse weights, which have no rule here: write them as ordinary ones.")
    try:
        tensors = {i.name: torch.from_numpy(np.array(numpy_helper.to_array(i))) for i in model.graph.initializer}
    except TypeError:
        raise BadInput(f"{path} has weights of a type that numpy does not know: write them as float32.") from None
    opset = next((item.version for item in model.opset_import if item.domain in _DOMAINS), 1)
    return OnnxNetwork(model.graph, tensors, str(path), opset).eval()


class OnnxNetwork(nn.Module):
    """An ONNX graph, run node by node with torch operators."""

    def __init__(self, graph: Any, tensors: dict[str, Tensor], name: str, opset: int) -> None:
        super().__init__()
        from onnx import helper

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
        single = {key: tensor for key, tensor in tensors.items() if tensor.numel() == 1}
        for node in graph.node:
            attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            if node.op_type == "Constant":
                value = _constant(attributes)
                self.constants[node.output[0]] = _numbers(value)
                single |= {node.output[0]: value} if value.numel() == 1 else {}
                continue
            _check_node(node, attributes, name)
            given = list(node.input)
            if node.op_type in _SETTINGS:
                attributes |= _settings(node, single)
                given = given[:1]
            attributes |= {"opset": opset, "file_rows": sizes[0] if sizes else 0}
            self.nodes.append((node.op_type, given, node.output[0], attributes))
        wanted = {self.output_name}.union(*(node.input for node in graph.node))
        for node in graph.node:
            if wanted.intersection(node.output[1:]) - {""}:
                raise BadInput(f"{name} uses a second output of the ONNX operator {node.op_type}, which has no rule.")

    def forward(self, x: Tensor) -> Tensor:
        values: dict[str, Any] = {self.input_name: x, "": None}
        values.update(self.constants)
        values.update({key: self.weights[place] for key, place in self.keys.items()})
        for kind, inputs, output, attributes in self.nodes:
            values[output] = OPERATORS[kind]([values[name] for name in inputs], {**attributes, "rows": x.shape[0]})
        result: Tensor = values[self.output_name]
        return result


_DOMAINS = ("", "ai.onnx")
_SETTINGS = {"Clip": ("min", "max"), "Dropout": ("ratio", "training_mode")}
"""Operators whose second and third inputs are settings; the files of earlier versions have them as attributes."""

_POOL = {"auto_pad", "ceil_mode", "kernel_shape", "pads", "strides", "dilations"}
_ATTRIBUTES: dict[str, set[str]] = {
    "Gemm": {"alpha", "beta", "transA", "transB", "broadcast"},
    "Conv": {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"},
    "BatchNormalization": {"epsilon", "momentum", "spatial", "is_test", "training_mode"},
    "MaxPool": _POOL | {"storage_order"},
    "AveragePool": _POOL | {"count_include_pad"},
    "LeakyRelu": {"alpha"},
    "Elu": {"alpha"},
    "Softmax": {"axis"},
    "Clip": {"min", "max"},
    "Flatten": {"axis"},
    "Reshape": {"shape", "allowzero"},
    "Squeeze": {"axes"},
    "Transpose": {"perm"},
    "Concat": {"axis"},
    "ReduceMean": {"axes", "keepdims", "noop_with_empty_axes"},
    "Dropout": {"ratio", "seed", "is_test"},
    **{key: {"broadcast"} for key in ("Add", "Sub", "Mul", "Div")},
}
"""What is read of each operator; "consumed_inputs" of the first versions means nothing."""


def _check_node(node: Any, attributes: Attributes, name: str) -> None:
    if node.op_type not in OPERATORS or node.domain not in _DOMAINS:
        raise BadInput(
            f"{name} uses the ONNX operator {node.op_type}, which has no rule here; known are "
            f"{', '.join(sorted(OPERATORS))}."
        )
    for attribute in attributes.keys() - _ATTRIBUTES.get(node.op_type, set()) - {"consumed_inputs"}:
        raise BadInput(f"{name} uses {attribute!r} of the ONNX operator {node.op_type}, which has no rule here.")


def _constant(attributes: Attributes) -> Tensor:
    from onnx import numpy_helper

    if "value" in attributes:
        return torch.from_numpy(np.array(numpy_helper.to_array(attributes["value"])))
    for name, dtype in (("float", torch.float32), ("int", torch.int64)):
        for form in (f"value_{name}", f"value_{name}s"):
            if form in attributes:
                return torch.tensor(attributes[form], dtype=dtype)
    raise BadInput(f"An ONNX Constant with {', '.join(attributes)} has no rule.")


def _settings(node: Any, single: dict[str, Tensor]) -> Attributes:
    """The inputs of a node that are settings, as numbers."""
    found: Attributes = {}
    for key, given in zip(_SETTINGS[node.op_type], node.input[1:]):
        if given and given not in single:
            raise BadInput(f"An ONNX {node.op_type} whose {key} is computed has no rule.")
        found |= {key: single[given].item()} if given else {}
    return found


def _numbers(tensor: Tensor) -> Any:
    """Sizes and axes as plain numbers, which a graph can be read with; other constants stay tensors."""
    return tensor.tolist() if tensor.ndim == 1 and not tensor.is_floating_point() else tensor


def _listed(attributes: Attributes, given: list[Any], name: str, operator: str) -> list[int]:
    """Axes or sizes, which earlier versions have as an attribute and later ones as the second input."""
    found = attributes.get(name, given[1] if len(given) > 1 else None)
    if not isinstance(found, (list, tuple)) or not found:
        raise BadInput(f"An ONNX {operator} without {name} written in the file has no rule.")
    return [int(item) for item in found]


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
    if bias is None:
        return functional.linear(x, weight)
    bias = bias * beta if beta != 1.0 else bias
    if bias.ndim == 2 and bias.shape[0] == 1 and isinstance(bias, nn.Parameter):
        bias = bias[0]
    if bias.ndim < 2:
        return functional.linear(x, weight, bias.expand(weight.shape[0]))
    return functional.linear(x, weight) + bias


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
        dilations = list(attributes.get("dilations", [1] * axes))
        if average and any(step != 1 for step in dilations):
            raise BadInput("An ONNX AveragePool with dilations has no rule.")
        if attributes.get("ceil_mode", 0):
            spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations)]
            lengths = [size + 2 * side for size, side in zip(given[0].shape[2:], padding)]
            if any((size - span) % step for size, span, step in zip(lengths, spans, strides)):
                raise BadInput("An ONNX pool whose last windows reach over the edge (ceil_mode) has no rule.")
        if axes not in (1, 2):
            raise BadInput(f"An ONNX pool over {axes} axes has no rule.")
        if average:
            run: Any = functional.avg_pool1d if axes == 1 else functional.avg_pool2d
            include = bool(attributes.get("count_include_pad", 0))
            return run(given[0], kernel, strides, padding, False, include)  # type: ignore[no-any-return]
        run = functional.max_pool1d if axes == 1 else functional.max_pool2d
        return run(given[0], kernel, strides, padding, dilations)  # type: ignore[no-any-return]

    return pool


def _batch_norm(given: list[Any], attributes: Attributes) -> Tensor:
    x, scale, bias, mean, variance = given
    trains = attributes.get("training_mode", attributes["opset"] < 7 and not attributes.get("is_test", 0))
    if trains or not attributes.get("spatial", 1):
        raise BadInput("An ONNX BatchNormalization in training mode, or of single entries, has no rule.")
    return functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, attributes.get("epsilon", 1e-5))


def _flatten(given: list[Any], attributes: Attributes) -> Tensor:
    axis = attributes.get("axis", 1)
    if axis != 1:
        raise BadInput("An ONNX Flatten that does not begin after the batch (axis 1) has no rule.")
    return torch.flatten(given[0], 1)


def _reshape(given: list[Any], attributes: Attributes) -> Tensor:
    """The sizes of the file; where they begin with the file's own number of rows, that of the batch takes its place."""
    x, sizes = given[0], _listed(attributes, given, "shape", "Reshape")
    if 0 in sizes[x.ndim :] or (0 in sizes and attributes.get("allowzero", 0)):
        raise BadInput("An ONNX Reshape to a size of 0 has no rule.")
    sizes = [x.shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    if sizes[0] == attributes["file_rows"] and x.shape[0] == attributes["rows"]:
        sizes[0] = x.shape[0]
    return cast("Tensor", x.reshape(sizes))


def _softmax(given: list[Any], attributes: Attributes) -> Tensor:
    """Over one axis; before version 13 over that axis and all after it together."""
    x = given[0]
    if attributes["opset"] >= 13:
        return torch.softmax(x, attributes.get("axis", -1))
    return torch.softmax(x.flatten(attributes.get("axis", 1)), -1).reshape(x.shape)


def _squeezed(given: list[Any], attributes: Attributes) -> Tensor:
    axes = _listed(attributes, given, "axes", "Squeeze")
    if any(given[0].shape[axis] != 1 for axis in axes):
        raise BadInput("An ONNX Squeeze of the batch, or of an axis that is longer than 1, has no rule.")
    return given[0].squeeze(tuple(axes))  # type: ignore[no-any-return]


def _clip(given: list[Any], attributes: Attributes) -> Tensor:
    low, high = attributes.get("min"), attributes.get("max")
    return given[0] if low is None and high is None else given[0].clamp(low, high)  # type: ignore[no-any-return]


def _dropout(given: list[Any], attributes: Attributes) -> Tensor:
    if attributes.get("training_mode", attributes["opset"] < 7 and not attributes.get("is_test", 0)):
        raise BadInput("An ONNX Dropout in training mode is random and has no rule.")
    return given[0]  # type: ignore[no-any-return]


def _transposed(given: list[Any], attributes: Attributes) -> Tensor:
    order = attributes.get("perm", range(given[0].ndim)[::-1])
    return given[0].permute(tuple(order))  # type: ignore[no-any-return]


def _concat(given: list[Any], attributes: Attributes) -> Tensor:
    return torch.cat(given, attributes.get("axis", 1))


def _mean(given: list[Any], attributes: Attributes) -> Tensor:
    axes = _listed(attributes, given, "axes", "ReduceMean")
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
    "Softmax": _softmax,
    "Clip": _clip,
    "Add": lambda given, _: given[0] + given[1],
    "Sub": lambda given, _: given[0] - given[1],
    "Mul": lambda given, _: given[0] * given[1],
    "Div": lambda given, _: given[0] / given[1],
    "Neg": lambda given, _: -given[0],
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Concat": _concat,
    "ReduceMean": _mean,
    "Identity": lambda given, _: given[0],
    "Dropout": _dropout,
}

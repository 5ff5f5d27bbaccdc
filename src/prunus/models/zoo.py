"""Networks by name: the list, the one-string form, and the user's own factories."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunus._by_path import describe as describe_error
from prunus._by_path import import_object, is_import_path
from prunus.errors import BadInput, UnknownName
from prunus.models import cifar_resnet, fc, hf, recurrent, resnet
from prunus.models.convolutional import Conv6, TanhCNN, vgg11, vgg16
from prunus.models.init import initialise
from prunus.models.lenet import LeNet5
from prunus.models.weights import load_weights


@dataclass(frozen=True)
class Entry:
    """One network of the zoo.

    `input` is the shape of one example (without the batch), `outputs` the number of logits;
    `build(width=..., **options)` makes it. For "fc" both follow from the sizes, so they are None here.

    Example:
        >>> prunus.models.describe("resnet20").outputs
        10
    """

    name: str
    build: Callable[..., nn.Module]
    about: str
    input: tuple[int, ...] | None
    outputs: int | None

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options besides `width`, with defaults and types as `build` declares them."""
        found = dict(inspect.signature(self.build).parameters)
        found.pop("width")
        return found


def _fixed(sizes: str) -> Callable[..., nn.Module]:
    def build(width: float = 1.0, bias: bool = True) -> nn.Module:
        return fc.fully_connected(sizes, width, bias)

    return build


_IMAGE, _GREY, _LARGE, _TEXT = (3, 32, 32), (1, 28, 28), (3, 224, 224), (256,)
_ENTRIES = (
    Entry("fc", fc.fully_connected, "fully connected of any sizes, as in fc:64-300-100-10", None, None),
    Entry("lenet-300-100", _fixed("784-300-100-10"), "fully connected 784-300-100-10", _GREY, 10),
    Entry("fc-5x1024", _fixed("784-1024-1024-1024-1024-1024-10"), "784, five hidden layers of 1024, 10", _GREY, 10),
    Entry("fc-2x2048", _fixed("784-2048-2048-10"), "784, two hidden layers of 2048, 10", _GREY, 10),
    Entry("lenet5", LeNet5, "LeNet-5 for MNIST, resized to 32x32 inside", _GREY, 10),
    Entry("tanh-cnn", TanhCNN, "two convolutions with tanh, for private training on MNIST", _GREY, 10),
    Entry("conv6", Conv6, "six convolutions and three linear layers", _IMAGE, 10),
    Entry("vgg11", vgg11, "VGG-11 for 32x32 images", _IMAGE, 10),
    Entry("vgg16", vgg16, "VGG-16 for 32x32 images", _IMAGE, 10),
    *(
        Entry(f"resnet{depth}", cifar_resnet.of_depth(depth), "thin CIFAR ResNet, parameter-free shortcuts", _IMAGE, 10)
        for depth in (20, 32, 44, 56)
    ),
    *(
        Entry(name, resnet.of_plan(name), "for ImageNet", _LARGE, 1000)
        if plan.imagenet
        else Entry(name, resnet.of_plan(name), "for CIFAR: 3x3 stem of 64", _IMAGE, 10)
        for name, plan in resnet.PLANS.items()
    ),
    Entry("lstm", recurrent.of_directions(False), "LSTM classifier of token ids", _TEXT, 2),
    Entry("bilstm", recurrent.of_directions(True), "bidirectional LSTM classifier of token ids", _TEXT, 2),
)
_ZOO: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """The names `make` knows.

    Returns:
        The names.

    Example:
        >>> "resnet20" in prunus.models.names()
        True
    """
    return tuple(_ZOO)


def describe(name: str) -> Entry:
    """What the zoo knows about a name; of a one-string form, with the input and outputs that its options ask for.

    Args:
        name: A name of the zoo, or its one-string form.

    Returns:
        The entry: builder, shape of an input, number of outputs.

    Raises:
        UnknownName: There is no such network.

    Example:
        >>> prunus.models.describe("fc:64-300-10").input
        (64,)
    """
    entry = _entry(name)
    return _described(entry, _check(entry, _parse(entry, name)) if ":" in name else {})


def _described(entry: Entry, given: dict[str, Any]) -> Entry:
    if "sizes" in given:
        sizes = fc.parse_sizes(given["sizes"])
        return replace(entry, input=(sizes[0],), outputs=sizes[-1])
    if entry.input is None:
        return entry
    channels, *sides = entry.input
    shape = (given.get("channels", channels), *(given.get("size", side) for side in sides))
    return replace(entry, input=shape, outputs=1 if given.get("binary") else given.get("classes", entry.outputs))


def _entry(name: str) -> Entry:
    head = name.partition(":")[0] if isinstance(name, str) else name
    if head not in _ZOO:
        raise UnknownName("model", head, _ZOO)
    return _ZOO[head]


def make(
    name: str, width: float = 1.0, init: str | None = None, *, seed: int | None = None, **options: Any
) -> nn.Module:
    """Build a new network of the zoo.

    Args:
        name: A name of the zoo. It may carry the options after a colon: "conv6:width=0.5",
            "resnet20:width=2,affine=false", "fc:64-300-100-10".
        width: Factor of the number of channels (ledger I-5).
        init: Names the initial weights (`init_names()`); None leaves torch's.
        seed: With a seed the global generator is neither read nor moved.
        options: Options of the network itself.

    Returns:
        The network, an ordinary module.

    Raises:
        UnknownName: There is no such network.
        BadInput: An option is unknown or out of range.

    Example:
        >>> model = prunus.models.make("conv6:width=0.5", seed=0)
        >>> model(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    entry = _entry(name)
    given = _parse(entry, name)
    if width != 1.0:
        options["width"] = width
    if init is not None:
        options["init"] = init
    twice = sorted(set(given) & set(options))
    if twice:
        raise BadInput(f"The model {name!r} already gives {twice[0]}: leave it out of the string or of the call.")
    arguments = _check(entry, {**given, **options})
    chosen = arguments.pop("init", None)
    if seed is None:
        return _build(entry, arguments, chosen)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build(entry, arguments, chosen)


def resolve(spec: str, weights: str | None = None) -> nn.Module:
    """The model that a command line names: of the zoo, "hf:FOLDER" or "package.module:factory"; with weights of a file.

    A factory is called without arguments and returns the module; a module found at the path is taken as it is.

    Args:
        spec: A name of the zoo, "hf:FOLDER" for a Hugging Face folder, or "package.module:factory".
        weights: A file to load into it.

    Returns:
        The model.

    Raises:
        UnknownName: There is no such network.
        BadInput: The path leads to no model.

    Example:
        >>> type(prunus.models.resolve("resnet20")).__name__
        'CifarResNet'
    """
    head = spec.partition(":")[0]
    if spec.startswith(hf.PREFIX):
        model = hf.load_folder(spec.removeprefix(hf.PREFIX))
    elif head in _ZOO:
        model = make(spec)
    elif is_import_path(spec):
        model = _from_path(spec)
    elif Path(spec).is_dir():
        raise BadInput(f"{spec} is a folder: write hf:{spec} for the model in it.")
    elif Path(spec).is_file():
        raise BadInput(f"{spec} is a file: name the network it belongs to, and give the file with --weights.")
    else:
        raise UnknownName("model", head, _ZOO)
    return model if weights is None else load_weights(model, weights)


def _from_path(path: str) -> nn.Module:
    found = import_object(path, "model")
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise BadInput(
            f"{path} is an object of type {type(found).__name__}: a model is a torch module or a function "
            "that returns one."
        )
    try:
        model = found()
    except Exception as error:
        raise BadInput(f"The model factory {path} failed with {describe_error(error)}.") from error
    if not isinstance(model, nn.Module):
        raise BadInput(
            f"The model factory {path} returned an object of type {type(model).__name__}: it must return a torch "
            "module."
        )
    return model


def _build(entry: Entry, arguments: dict[str, Any], init: str | None) -> nn.Module:
    model = entry.build(**arguments)
    shape = _described(entry, arguments).input
    if shape is not None:
        model.input_shape = shape  # type: ignore[assignment] # what example_input goes by
    return model if init is None else initialise(model, init)


def _parse(entry: Entry, text: str) -> dict[str, Any]:
    """The options of "name:a=1,b=2", as text; sizes may stand first without their name, as in "fc:64-10"."""
    given: dict[str, Any] = {}
    parts = [part for part in re.split("[:,]", text)[1:] if part]
    for position, part in enumerate(parts):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and position == 0 and "sizes" in entry.options:
            key, value = "sizes", part.strip()
        elif not equals:
            raise BadInput(f"The option {part!r} of the model {text!r} has no value: write {part}=value.")
        if key in given:
            raise BadInput(f"The model {text!r} gives {key} twice: leave one out.")
        given[key] = value
    return given


def _check(entry: Entry, given: dict[str, Any]) -> dict[str, Any]:
    """The options as the types that `build` declares."""
    if "sizes" in entry.options and "sizes" not in given:
        raise BadInput(f"The model {entry.name!r} needs its sizes: write them as in {entry.name}:64-300-100-10.")
    kinds = {key: str(option.annotation) for key, option in entry.options.items()} | {"width": "float", "init": "str"}
    checked: dict[str, Any] = {}
    for key, value in given.items():
        if key not in kinds:
            raise UnknownName(f"option of the model {entry.name!r}", key, kinds)
        checked[key] = _convert(entry.name, key, value, kinds[key])
    width = checked.setdefault("width", 1.0)
    if not (math.isfinite(width) and width > 0):
        raise BadInput(f"The width factor of {entry.name!r} is {width}: it must be a positive number.")
    return checked


def _convert(model: str, key: str, value: Any, kind: str) -> Any:
    if isinstance(value, str) and kind == "bool" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, str) and kind == "int" and re.fullmatch("[0-9]+", value):
        value = int(value)
    if isinstance(value, str) and kind == "float":
        try:
            value = float(value)
        except ValueError:
            value = None
    good = {
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool) and value > 0,
        "float": isinstance(value, (int, float)) and not isinstance(value, bool),
        "str": isinstance(value, str),
    }[kind]
    if not good:
        words = {"bool": "true or false", "int": "a positive whole number", "float": "a number", "str": "a name"}
        raise BadInput(f"The option {key} of the model {model!r} must be {words[kind]}.")
    return float(value) if kind == "float" else value

"""Runs of neighbouring layers of a fused graph, executed by one call of the kernels.

Called one by one, the layers of a small network cost more in calls and fresh memory than in arithmetic. A region is a
run of packed convolutions and of what commonly stands between them (max pools, thinned shortcuts, zeros on some sides,
ReLU6); its result is, byte for byte, that of the layers called one by one. It is laid out once for each size of image:
every value gets a place in one piece of memory, used again once its last reader is done, with the zeros around it that
the next convolution reads. The kernels then take image after image through all steps, so what passes between layers
stays in the cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._integer_ops import add_conv
from prunus.sparse._modules import SparseConv2d, uncast
from prunus.sparse._ops import check_bias
from prunus.sparse._packed import Packed, kernels
from prunus.sparse._quick import watch_packed

Shape = tuple[int, ...]  # of one image: channels, height, width
_SIZES = 16  # sizes of image for which a region stays laid out
_SETTINGS = ("min_val", "max_val", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
"""Of pools and clamps: what a layout depends on."""


@dataclass(frozen=True)
class RegionStep:
    """One node. `inputs` number the values: first the region's own inputs, then the results of the steps in turn.

    `numbers` are, for "thin", the steps in y and x and the zero channels before and after; for "max_pool", kernel and
    stride; for "conv", the zeros that its image gets on the left, right, top and bottom first, if any. A "conv" with a
    `cap` is clamped between zero and that afterwards. `module` names the pool, or what clamps, where it is a module.
    """

    kind: str  # "conv", "thin" or "max_pool"
    inputs: tuple[int, ...]
    numbers: tuple[int, ...] = ()
    cap: float = math.inf
    module: str = ""

    def geometry(self, conv: SparseConv2d) -> ConvGeometry:
        """The sizes of the convolution together with the zeros before it."""
        return conv.geometry.after_pad(*self.numbers) if self.numbers else conv.geometry

    def rectifies(self, conv: SparseConv2d) -> bool:
        """Whether what is negative becomes zero."""
        return conv.relu or self.cap < math.inf


@dataclass(frozen=True)
class _Laid:
    """A region laid out for one size: the program, and what its addresses were taken from."""

    program: Any
    watch: Any  # whether all of that is unchanged, asked by one call
    outputs: tuple[Shape, ...]
    packed: tuple[Packed, ...]
    biases: tuple[int, ...]
    manners: tuple[Any, ...]


class FusedRegion:
    """Called with its inputs; returns the values numbered in `results`, or the only one.

    `convs` are the names of the convolutions in `model`, looked up at every call so that replacing one is seen.
    """

    def __init__(
        self, model: nn.Module, convs: Sequence[str], steps: tuple[RegionStep, ...], results: tuple[int, ...]
    ) -> None:
        self.__name__ = "region"
        self.steps, self.results = steps, results
        self._model, self._paths = model, [name.split(".") for name in convs]
        self._laid: dict[Any, _Laid] = {}
        self._last: _Laid | None = None  # the layout that ran last, if it takes one tensor and gives one

    def convs(self) -> list[Any]:
        """The convolutions as they stand now, in the order of their steps."""
        return [self._at(path) for path in self._paths]

    def _at(self, path: Sequence[str]) -> Any:
        module: Any = self._model
        for part in path:
            module = module._modules[part]  # `getattr` on a module takes ten times as long
        return module

    def _named(self, step: RegionStep) -> Any:
        """The pool or clamp of a step as it stands now."""
        return self._at(step.module.split("."))

    def _unchanged(self) -> bool:
        """Whether pools and clamps still do what the steps say, and nothing else."""
        for step in self.steps:
            if not step.module:
                continue
            module = self._named(step)
            same = pool_of(module) == step.numbers if step.kind == "max_pool" else cap_of(module) == step.cap
            if not same or module._forward_hooks or module._forward_pre_hooks:
                return False
        return True

    def _watched(self) -> tuple[list[tuple[Any, ...]], list[Any]]:
        """What a layout depends on, as `watch_modules` gives it."""
        entries, hooks = list[tuple[Any, ...]](), list[Any]()
        for path in self._paths:
            module: Any = self._model
            for part in path:
                entries.append((module._modules, part, module._modules[part], False))
                module = module._modules[part]
            more = watch_packed(module)
            entries += more[0]
            hooks += more[1]
        for name in {step.module for step in self.steps} - {""}:
            module, own = self._model, vars(self._at(name.split(".")))
            for part in name.split("."):
                entries.append((module._modules, part, module._modules[part], False))
                module = module._modules[part]
            entries += [(own, key, own[key], False) for key in _SETTINGS if key in own]
            hooks += [module._forward_hooks, module._forward_pre_hooks]
        return entries, hooks

    def __call__(self, *inputs: Tensor) -> Any:
        last = self._last
        # What follows the quick way costs two microseconds for every layer.
        if last is not None and not inputs[0].is_neg() and last.watch.same():
            out = last.program.run_on(inputs[0], None, torch.get_num_threads())
            if out is not None:
                return out
        convs = self.convs()
        if not all(isinstance(x, Tensor) for x in inputs):  # a number that is added
            return self.one_by_one(convs, inputs)
        inputs = tuple(uncast(x).resolve_neg() for x in inputs)
        batch = inputs[0].shape[0] if inputs[0].dim() else 0
        for x in inputs:
            if x.dim() != 4 or x.shape[0] != batch or x.dtype != torch.float32 or not x.is_cpu:
                return self.one_by_one(convs, inputs)  # which raises the error
        inputs = tuple(x.contiguous() for x in inputs)
        laid = self._laid_out(convs, inputs)
        if laid is None:
            return self.one_by_one(convs, inputs)
        self._last = laid if len(inputs) == len(laid.outputs) == 1 else None
        out = [inputs[0].new_empty(batch, *shape) for shape in laid.outputs]
        addresses = [x.data_ptr() for x in inputs] + [x.data_ptr() for x in out]
        laid.program.run(batch, addresses, torch.get_num_threads())
        return out[0] if len(out) == 1 else tuple(out)

    def _laid_out(self, convs: Sequence[SparseConv2d], inputs: Sequence[Tensor]) -> _Laid | None:
        """The layout for inputs of these sizes, or None where the layers must be called one by one."""
        module = kernels()
        for conv in convs:
            if conv._forward_hooks or conv._forward_pre_hooks:
                return None
        if not self._unchanged():
            return None
        key = (None if module is None else module.level(), *(x.shape[1:] for x in inputs))
        laid = self._laid.get(key)
        if laid is not None and _current(laid, convs):
            return laid
        if module is None or not all(type(conv) is SparseConv2d and conv.packed.layer is not None for conv in convs):
            return None
        shapes = self._shapes(convs, inputs)
        if shapes is None:
            return None
        if len(self._laid) >= _SIZES:
            self._laid.clear()
        laid = self._laid[key] = self._lay_out(convs, shapes, len(inputs))
        return laid

    def one_by_one(self, convs: Sequence[nn.Module], inputs: Sequence[Tensor]) -> Any:
        """The same by calling each layer: what the program must agree with."""
        values, waiting = list(inputs), iter(convs)
        for step in self.steps:
            x = values[step.inputs[0]]
            if step.kind == "conv":
                x = functional.pad(x, step.numbers) if step.numbers else x
                y = next(waiting)(x, *(values[number] for number in step.inputs[1:]))
                clamp = (
                    self._named(step)
                    if step.module
                    else functools.partial(functional.hardtanh, max_val=step.cap, min_val=0.0)
                )
                values.append(clamp(y) if step.cap < math.inf else y)
            elif step.kind == "thin":
                step_y, step_x, before, after = step.numbers
                values.append(functional.pad(x[..., ::step_y, ::step_x], (0, 0, 0, 0, before, after)))
            else:
                values.append(self._named(step)(x))
        out = [values[number] for number in self.results]
        return out[0] if len(out) == 1 else tuple(out)

    def _lay_out(self, convs: Sequence[SparseConv2d], shapes: list[Shape], first: int) -> _Laid:
        for conv in convs:
            if conv.bias is not None:
                check_bias(conv.packed, conv.bias)
        make = self._integers if any(conv.integer for conv in convs) else self._floats
        packed = tuple(conv.packed for conv in convs)
        biases = tuple(_address(conv.bias) for conv in convs)
        outputs = tuple(shapes[value] for value in self.results)
        manners = tuple(_manner(conv) for conv in convs)
        watch = kernels().Watch(*self._watched())
        return _Laid(make(convs, shapes, first), watch, outputs, packed, biases, manners)

    def _integers(self, convs: Sequence[SparseConv2d], shapes: list[Shape], first: int) -> Any:
        """Integer products, and floats where a layer wants them; the program finds places for its values itself."""
        program, waiting = kernels().IntegerProgram(), iter(convs)
        for shape in shapes[:first]:
            program.input(*shape)
        for step in self.steps:
            source = step.inputs[0]
            if step.kind == "conv":
                conv = next(waiting)
                other, relu = step.inputs[1] if len(step.inputs) > 1 else -1, step.rectifies(conv)
                size, bias, geometry = shapes[source], _address(conv.bias), step.geometry(conv)
                if conv.integer:
                    ends = conv.ends()
                    add_conv(program, conv.packed, geometry, size, bias, relu, ends, source, other, step.cap)
                else:
                    numbers, layer = geometry.native.data_ptr(), conv.packed.layer
                    program.float_conv(layer, numbers, *size, bias, relu, step.cap, source, other)
            else:
                getattr(program, step.kind)(*step.numbers, source)
        program.finish(list(self.results))
        return program

    def _floats(self, convs: Sequence[SparseConv2d], shapes: list[Shape], first: int) -> Any:
        places, memory = self._places(convs, shapes, first)
        tensors = [*range(first), *self.results]
        program = kernels().Program(memory, [_count(shapes[value]) for value in tensors])
        waiting = iter(convs)
        for number, step in enumerate(self.steps, first):
            source, target = places[step.inputs[0]], places[number]
            size = kernels().Size(*shapes[step.inputs[0]])
            if step.kind == "conv":
                conv = next(waiting)
                other = places[step.inputs[1]] if len(step.inputs) > 1 else None
                geometry, bias, relu = step.geometry(conv), _address(conv.bias), step.rectifies(conv)
                numbers = geometry.native.data_ptr()
                program.conv(conv.packed.layer, bias, relu, step.cap, size, numbers, source, target, other)
            else:
                getattr(program, step.kind)(size, *step.numbers, source, target)
        if first == len(self.results) == 1:
            program.between(kernels().Size(*shapes[0]), kernels().Size(*shapes[self.results[0]]))
        return program

    def _shapes(self, convs: Sequence[SparseConv2d], inputs: Sequence[Tensor]) -> list[Shape] | None:
        """The shape of every value, for one image; None where they do not fit each other."""
        shapes: list[Shape] = [tuple(x.shape[1:]) for x in inputs]
        waiting = iter(convs)
        for step in self.steps:
            channels, height, width = shapes[step.inputs[0]]
            if step.kind == "conv":
                conv = next(waiting)
                geometry = step.geometry(conv)
                if step.numbers and not pads_anyhow(conv):  # one that was put there later
                    return None
                shape: Shape = (geometry.outputs, *geometry.output(height, width))
                if channels != geometry.inputs or any(shapes[other] != shape for other in step.inputs[1:]):
                    return None
            elif step.kind == "thin":
                step_y, step_x, before, after = step.numbers
                shape = (before + channels + after, -(-height // step_y), -(-width // step_x))
            else:
                kernel_y, kernel_x, stride_y, stride_x = step.numbers
                shape = (channels, (height - kernel_y) // stride_y + 1, (width - kernel_x) // stride_x + 1)
            if min(shape) < 1:
                return None
            shapes.append(shape)
        return shapes

    def _places(self, convs: Sequence[SparseConv2d], shapes: list[Shape], first: int) -> tuple[list[Any], int]:
        """Where each value lies, and the floats needed for those that stay inside."""
        halos, ends, waiting = [0] * len(shapes), [0] * len(shapes), iter(convs)
        wanted: list[set[int]] = [set() for _ in shapes]
        for number, step in enumerate(self.steps, first):
            for value in step.inputs:
                ends[value] = number
            if step.kind == "conv":
                wanted[step.inputs[0]].add(step.geometry(next(waiting)).in_place)
        inside = [value for value in range(first, len(shapes)) if value not in self.results]
        for value in inside:
            asked = wanted[value] - {-1}
            halos[value] = asked.pop() if len(asked) == 1 else 0
        numbers = assign_places([(value, ends[value]) for value in inside])
        sizes = [0] * (max(numbers, default=-1) + 1)
        for value, number in zip(inside, numbers):
            needed = (
                _count(shapes[value])
                if not halos[value]
                else shapes[value][0] * _padded(halos[value], shapes[value])[2]
            )
            sizes[number] = max(sizes[number], -(-needed // 16) * 16)
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        tensors = {value: base for base, value in enumerate([*range(first), *self.results])}
        where = dict(zip(inside, numbers))
        module = kernels()
        places = []
        for value, shape in enumerate(shapes):
            layout = module.Layout(*(_padded(halos[value], shape) if halos[value] else (0, 0, 0)))
            inside_at = starts[where[value]] if value in where else 0
            places.append(module.Place(tensors.get(value, -1), inside_at, layout))
        return places, sum(sizes)


def _current(laid: _Laid, convs: Sequence[SparseConv2d]) -> bool:
    """Whether the addresses in the program are still those of the layers."""
    for conv, packed, bias, manner in zip(convs, laid.packed, laid.biases, laid.manners):
        if type(conv) is not SparseConv2d or conv.packed is not packed or _address(conv._parameters["bias"]) != bias:
            return False
        if _manner(conv) != manner:
            return False
    return True


def _manner(conv: SparseConv2d) -> Any:
    """What it does beside its weights: its sizes, the activation, and how inputs are quantised."""
    return conv.geometry, conv.relu, conv.ends() if conv.activations is not None else False


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _count(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _padded(halo: int, shape: Shape) -> tuple[int, int, int]:
    """Pad, pitch and plane of images with `halo` zeros around them; rows share theirs, and the end may be read past."""
    _, height, width = shape
    pitch = width + halo
    return halo, pitch, -(-((height + 2 * halo) * pitch + halo + 32) // 16) * 16


def assign_places(lives: list[tuple[int, int]]) -> list[int]:
    """For values that live from a first to a last moment (both included), places that no two share while they live."""
    places: list[int] = []
    for number, (start, _) in enumerate(lives):
        taken = {places[other] for other in range(number) if lives[other][1] >= start}
        places.append(next(place for place in range(number + 1) if place not in taken))
    return places


def cap_of(module: nn.Module) -> float | None:
    """The upper limit of a module that clamps between zero and a positive number."""
    if not isinstance(module, nn.Hardtanh) or type(module) not in (nn.ReLU6, nn.Hardtanh):
        return None
    return float(module.max_val) if module.min_val == 0 < module.max_val < math.inf else None


def pads_anyhow(conv: SparseConv2d) -> bool:
    """Whether its image may get more zeros on the right and below: not where it is planes of bytes."""
    return not conv.integer or conv.geometry.inputs >= conv.bank


def pool_of(module: nn.Module) -> tuple[int, ...] | None:
    """Kernel and stride of a max pool that does nothing else."""
    if not isinstance(module, nn.MaxPool2d):
        return None
    plain = _two(module.padding) == (0, 0) and _two(module.dilation) == (1, 1)
    plain = plain and not (module.ceil_mode or module.return_indices)
    return (*_two(module.kernel_size), *_two(module.stride)) if plain else None


def _two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])

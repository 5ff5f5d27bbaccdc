"""Copies that share memory with what they were made from, and the comparison of both."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus._torch import TorchDispatchMode, is_mutable, pytree
from prunus.adapters import Batch, output_tensors
from prunus.contract import Masks
from prunus.errors import BadInput, PrunusWarning, RunFailed, first_line

EXACT, ROUNDED = 1e-3, 0.5  # how far results may be off, relative to their size: in float32, and with fewer bits


class UnlikeModel(RunFailed):
    """The copy's output differs from that of the model it was made from."""


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of a model: by position and by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)


def as_example(example: Any) -> ModelInputs:
    """An input, a tuple of inputs, a dict of named ones, or a `Batch`."""
    if isinstance(example, ModelInputs):
        return example
    if isinstance(example, Batch):
        return ModelInputs(example.args, dict(example.kwargs))
    if isinstance(example, Mapping):
        return ModelInputs((), dict(example))
    return ModelInputs(example if isinstance(example, tuple) else (example,), {})


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """Torch's encoder layers run as their parts: as one fused operator they pass by hooks, and zero what is padded."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def run(model: nn.Module, example: ModelInputs) -> list[Tensor]:
    """The tensors of a model's output, without gradients."""
    try:
        with torch.no_grad(), layer_by_layer():
            return [tensor.clone() for tensor in output_tensors(example.run(model))]
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        raise BadInput(
            f"The model cannot run on the example ({first_line(error)}): give an input of the right shape."
        ) from error


class _Originals(TorchDispatchMode):
    """Keeps the values of a model's tensors that an operator is about to change in place."""

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        tensors = [*model.parameters(), *model.buffers()]
        self.owners = {_place(tensor): tensor for tensor in tensors if _place(tensor)}
        self.kept: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_mutable(func):
            for place in map(_place, pytree.tree_leaves((args, kwargs))):
                if place in self.owners and place not in self.kept:
                    self.kept[place] = self.owners[place].detach().clone()
        return func(*args, **(kwargs or {}))


def _place(value: Any) -> int:
    """Where a tensor's memory begins; 0 where there is none that can be shared."""
    shared = isinstance(value, Tensor) and value.device.type == "cpu" and value.layout is torch.strided
    return value.untyped_storage().data_ptr() if shared else 0


def run_apart(work: nn.Module, example: ModelInputs) -> list[Tensor]:
    """`run` on a copy that shares its tensors: those that the run itself changes become its own, the others' stay."""
    try:
        with _Originals(work) as originals:
            found = run(work, example)
    except BadInput:  # or something in it runs under no such mode
        found = run(work, example)
    changed: dict[int, Any] = {}
    with torch.no_grad():
        for place, before in originals.kept.items():
            owner = originals.owners[place]
            now = owner.detach().clone()
            owner.copy_(before)
            parameter = isinstance(owner, nn.Parameter)
            changed[id(owner)] = nn.Parameter(now, owner.requires_grad) if parameter else now
    _exchange(work, changed)
    return found


def changed_flags(model: nn.Module, copied: nn.Module) -> dict[str, dict[str, bool]]:
    """What a model has noted on itself, as True or False, since it was copied: by module and attribute."""
    twins, found = dict(model.named_modules()), dict[str, dict[str, bool]]()
    for name, module in copied.named_modules():
        twin = vars(twins[name]) if type(twins.get(name)) is type(module) else {}
        flags = {key: value for key, value in vars(module).items() if isinstance(value, bool) and key != "training"}
        other = {key: value for key, value in flags.items() if isinstance(twin.get(key), bool) and twin[key] != value}
        found |= {name: other} if other else {}
    return found


def input_shapes(
    model: nn.Module, layers: Mapping[str, nn.Module], example: ModelInputs | None
) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """The shape each layer sees when the example runs, and the layers fed something else (a packed sequence)."""
    if example is None:
        return {}, set()
    shapes: dict[str, tuple[int, ...]] = {}
    foreign: set[str] = set()

    def note(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            first = inputs[0] if inputs else named.get("input", named.get("query"))
            if isinstance(first, Tensor) and not first.is_nested:
                shapes.setdefault(name, tuple(first.shape))
            else:
                foreign.add(name)

        return hook

    handles = [layer.register_forward_pre_hook(note(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        run(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return shapes, foreign


@dataclass(frozen=True)
class ExpectedAnswer:
    """An example, and what a model answers to it; `exact` is False where values or inputs have fewer bits."""

    example: ModelInputs
    expected: list[Tensor]
    exact: bool

    def holds(self, model: nn.Module) -> bool:
        """Whether a model gives this answer."""
        try:
            self.require(model)
        except RunFailed:
            return False
        return True

    def require(self, model: nn.Module) -> None:
        """Refuse a model that does not."""
        try:
            with torch.no_grad(), layer_by_layer():
                found = output_tensors(self.example.run(model))
        except Exception as error:  # whatever the model's code raises, the copy is not usable
            raise RunFailed(
                f"The compressed model does not run on the example ({first_line(error)}): leave layers that are used "
                "in a way of their own dense with select={layer: False}."
            ) from error
        narrow = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in self.expected)
        allowed = ROUNDED if not self.exact else 0.05 if narrow else EXACT
        if [tensor.shape for tensor in found] != [tensor.shape for tensor in self.expected]:
            raise RunFailed(
                "The compressed model answers the example in another shape than the model it was made from."
            )
        for ours, theirs in zip(found, self.expected):
            _require_close(ours.double(), theirs.double(), allowed)

    def warn_if_empty(self) -> None:
        """Say so where the answer holds nothing that can be compared."""
        if not any(tensor.numel() for tensor in self.expected):
            warnings.warn(
                "The compressed model could not be compared with the one it was made from: the answer to the example "
                "holds no tensor of real numbers (in tuples, mappings and dataclasses).",
                PrunusWarning,
                stacklevel=4,
            )


def _require_close(ours: Tensor, theirs: Tensor, allowed: float) -> None:
    """NaN and infinity stand in the same places, and the rest is off by no more than is allowed."""
    finite = torch.isfinite(theirs)
    if not torch.equal(finite, torch.isfinite(ours)) or not bool(
        torch.isclose(ours, theirs, equal_nan=True)[~finite].all()
    ):
        raise UnlikeModel(
            "The compressed model has NaN or infinity in other places of its answer to the example: it was not "
            "returned; leave layers dense with select={layer: False}."
        )
    off, size = (ours - theirs)[finite].norm(), theirs[finite].norm()
    if not bool(off <= allowed * size + 1e-6):
        raise UnlikeModel(
            f"The compressed model is off by {float(off / size):.2%} on the example: it was not returned; leave "
            "layers dense with select={layer: False}, or store more bits."
        )


def require_repeatable(model: nn.Module, example: ModelInputs, expected: list[Tensor]) -> None:
    """Refuse a model that itself does not give the expected answer again."""
    for ours, theirs in zip(run_apart(model, example), expected):
        if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=EXACT, atol=1e-6, equal_nan=True):
            raise BadInput(
                "The model answers the same example in another way each time (it draws random numbers, or changes "
                "itself when it runs), so that its copy cannot be compared with it: leave the example out."
            )


def sharing(model: nn.Module) -> nn.Module:
    """A copy of the modules over the very same tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def own(model: nn.Module, source: nn.Module) -> None:
    """Give `model` its own copy of every tensor that it shares with `source`."""
    shared = {id(tensor) for tensor in [*source.parameters(), *source.buffers()]}
    copies: dict[int, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and id(tensor) in shared:
                    if id(tensor) not in copies:
                        fresh = tensor.detach().clone()
                        parameter = isinstance(tensor, nn.Parameter)
                        copies[id(tensor)] = nn.Parameter(fresh, tensor.requires_grad) if parameter else fresh
                    held[name] = copies[id(tensor)]


class Spent:
    """Frees the dense weights of a model and of the working copy that shares them, layer by layer.

    A weight that several layers use is freed with the last of them; what another module needs stays.
    """

    def __init__(self, work: nn.Module, model: nn.Module) -> None:
        self.models = (work, model)
        self.users: dict[int, set[int]] = {}  # of each parameter: the modules of the working copy that hold it
        for module in work.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    self.users.setdefault(id(parameter), set()).add(id(module))
        for parameter in list(model.parameters()):  # in place of those that lost channels stand others
            if id(parameter) not in self.users:
                self._empty(parameter, model)

    def free(self, layer: nn.Module) -> None:
        """The parameters of this layer are not needed any more: they become empty, of the same shape."""
        inside = [(id(module), held) for module in layer.modules() for held in module._parameters.values()]
        for module, parameter in inside:
            if parameter is None or parameter.is_meta:
                continue
            users = self.users.get(id(parameter), set())
            users.discard(module)
            if not users:
                self._empty(parameter, *self.models, layer)

    def free_all(self, layers: Iterable[nn.Module]) -> None:
        """Those that are still there."""
        for layer in layers:
            self.free(layer)

    def _empty(self, parameter: nn.Parameter, *models: nn.Module) -> None:
        empty = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
        for model in models:
            for module in model.modules():
                for name, held in module._parameters.items():
                    if held is parameter:
                        module._parameters[name] = empty


def mask_copy(model: nn.Module, masks: Masks) -> None:
    """Apply masks to a copy that shares its tensors: those that change are replaced by new ones."""
    changed: dict[int, nn.Parameter] = {}
    for name, parameter in masks.parameters_of(model).items():
        dropped = ~masks[name].to(parameter.device)
        values = parameter.detach()
        # Weights that are -0.0 where they were dropped count as zeros.
        if bool((values.masked_select(dropped) != 0).any()):
            changed[id(parameter)] = nn.Parameter(values.masked_fill(dropped, 0.0), parameter.requires_grad)
    _exchange(model, changed)


def _exchange(model: nn.Module, changed: Mapping[int, Any]) -> None:
    """Put other tensors in the places of those with these ids."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, held in tensors.items():
                if held is not None and id(held) in changed:
                    tensors[name] = changed[id(held)]


def share_packed(packed: nn.Module, layer: nn.Module, norm: nn.Module | None, known: dict[Any, nn.Module]) -> None:
    """Let a layer whose weight another one uses too read the same packed tensors, so that they are stored once."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or norm is not None:
        return
    first = known.setdefault((id(weight), type(packed)), packed)
    if first is packed:
        return
    for mine, other in zip(packed.modules(), first.modules()):
        for name, tensor in other._buffers.items():
            held = mine._buffers.get(name)
            if tensor is not None and held is not None and torch.equal(held, tensor):
                mine._buffers[name] = tensor

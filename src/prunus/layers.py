"""Which tensors of a model can be pruned, what they are called, and how their rows read.

Recognised are the weights of linear and convolution layers (grouped, depthwise and transposed too), `Conv1D` of
transformers, the matrices of recurrent cells, the projections of attention, and embeddings. Embeddings, and output
layers tied to them, stay dense unless they are named. A tensor that several modules share is listed once, under its
first name, and knows its other names. `unrecognised` lists what looks like a weight matrix and is none of these.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from prunus.errors import BadInput

__all__ = [
    "EMBEDDING",
    "LEFT_DENSE",
    "Weight",
    "all_weights",
    "is_conv1d",
    "listing",
    "matches",
    "named_parameters",
    "plain_name",
    "plain_names",
    "prunable_weights",
    "require_apart",
    "require_values",
    "rows_to_weight",
    "unrecognised",
    "weight_rows",
]

LINEAR, CONVOLUTION, TRANSPOSED, CONV1D = "linear", "convolution", "transposed convolution", "Conv1D"
RECURRENT, ATTENTION, EMBEDDING = "recurrent", "attention", "embedding"

LEFT_DENSE = {
    "skipped": "does not fit the pattern",
    "unrecognised": "is of no known kind",
    "unreached": "is never reached by the data",
}
"""The notes of masks that name weights which stay dense without having been excluded, and why they do."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_RECURRENT = re.compile(r"weight_(ih|hh|hr)(_l\d+(_reverse)?)?")


# --------------------------------------------------------------------------------------------------------------- names


def plain_name(name: str) -> str:
    """`name` without what wrappers add: a leading "module." and every "_orig_mod."."""
    name = name.replace("_orig_mod.", "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Full name -> plain name; names that would collide once the wrappers' parts are gone keep their full form."""
    full = list(names)
    counts = Counter(plain_name(name) for name in full)
    return {name: plain_name(name) if counts[plain_name(name)] == 1 else name for name in full}


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by plain name, those shared by several modules under each of their names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {plain: parameters[name] for name, plain in plain_names(parameters).items()}


def state_tensors(model: nn.Module, keep_vars: bool = False) -> dict[str, Tensor]:
    """The tensors of a model's state by name, without what modules keep beside them (`get_extra_state`)."""
    return {name: value for name, value in model.state_dict(keep_vars=keep_vars).items() if isinstance(value, Tensor)}


def load_state_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `state_tensors` gave; what modules keep beside tensors stays as it is."""
    beside = {name: value for name, value in model.state_dict().items() if not isinstance(value, Tensor)}
    model.load_state_dict({**beside, **tensors})


def require_module(model: object) -> None:
    """Refuse what is no model: its name is a likely mistake.

    Raises:
        BadInput: if `model` is no torch module.
    """
    if not isinstance(model, nn.Module):
        named = isinstance(model, str)
        hint = ": prunus.models.resolve makes one of a name such as 'resnet20' or 'hf:FOLDER'" if named else ""
        raise BadInput(f"The model must be a torch module, not {type(model).__name__}{hint}.")


def require_changeable(model: nn.Module) -> None:
    """Refuse a model made inside `torch.inference_mode`: torch neither trains its tensors nor changes them elsewhere.

    Raises:
        BadInput: if a parameter or buffer was made there.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_inference():
            raise BadInput(
                f"{name!r} was made inside torch.inference_mode, so torch does not let it change: use "
                "copy.deepcopy(model), taken outside of it."
            )


def as_globs(given: object, argument: str = "exclude") -> tuple[str, ...]:
    """Names and globs, of which one alone may stand for itself.

    Raises:
        BadInput: if there is anything but texts.
    """
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(glob, str) for glob in found):
        raise BadInput(f"{argument} is {given!r}; give names or globs of layers, such as ('head', 'blocks.0.*').")
    return found


def matches(name: str, glob: str) -> bool:
    """Whether a name or glob matches this parameter, its module, or a module around it."""
    glob = plain_name(glob)
    parts = name.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:end]), glob) for end in range(1, len(parts) + 1))


def listing(names: Iterable[str], shown: int = 6) -> str:
    """The first names and how many more there are, for one sentence."""
    every = list(names)
    return ", ".join(every[:shown]) + (f" and {len(every) - shown} more" if len(every) > shown else "")


# ------------------------------------------------------------------------------------------------------------- weights


@dataclass(frozen=True, eq=False)
class Weight:
    """One tensor that can be pruned.

    Attributes:
        name: its plain name; of a shared tensor, the first.
        parameter: the tensor.
        module: the module that holds it.
        attribute: its name in that module.
        kind: "linear", "convolution", "transposed convolution", "Conv1D", "recurrent", "attention" or "embedding"; an
            output layer tied to an embedding is an embedding.
        names: all its plain names.

    `rows(tensor)` shows a tensor of the weight's shape as (rows, taps, channels): one row for each output, read tap by
    tap with the input channels fastest. A linear layer has one tap. `unrows` is the inverse.
    """

    name: str
    parameter: Tensor
    module: nn.Module
    attribute: str
    kind: str = LINEAR
    names: tuple[str, ...] = ()

    @property
    def shape(self) -> torch.Size:
        return self.parameter.shape

    @property
    def numel(self) -> int:
        return self.parameter.numel()

    @property
    def layer(self) -> str:
        """The name of the module that holds the weight."""
        return self.name.rpartition(".")[0]

    @property
    def groups(self) -> int:
        """How many groups of channels the layer keeps apart; 1 but for grouped convolutions."""
        return int(getattr(self.module, "groups", 1)) if self.kind in (CONVOLUTION, TRANSPOSED) else 1

    def called(self, glob: str) -> bool:
        """Whether a name or glob matches this weight, under any of its names."""
        return any(matches(name, glob) for name in self.names or (self.name,))

    def rows(self, tensor: Tensor) -> Tensor:
        if self.kind == CONV1D:
            return tensor.t().unsqueeze(1)
        return weight_rows(tensor, groups=self.groups, transposed=self.kind == TRANSPOSED)

    def unrows(self, rows: Tensor) -> Tensor:
        if self.kind == CONV1D:
            return rows.squeeze(1).t()
        return rows_to_weight(rows, self.shape, groups=self.groups, transposed=self.kind == TRANSPOSED)


def weight_rows(tensor: Tensor, *, groups: int = 1, transposed: bool = False) -> Tensor:
    """(out, in/groups, *kernel) as (out, taps, in/groups); a transposed convolution's (in, out/groups, *kernel) too."""
    if transposed:
        inputs, outputs = tensor.shape[:2]
        split = tensor.reshape(groups, inputs // groups, outputs, -1)
        return split.permute(0, 2, 3, 1).reshape(groups * outputs, -1, inputs // groups)
    if tensor.dim() == 1:
        return tensor.reshape(1, 1, -1)
    return tensor.reshape(tensor.shape[0], tensor.shape[1], -1).transpose(1, 2)


def rows_to_weight(rows: Tensor, shape: torch.Size, *, groups: int = 1, transposed: bool = False) -> Tensor:
    """The inverse of `weight_rows`."""
    if transposed:
        outputs = shape[1]
        split = rows.reshape(groups, outputs, -1, shape[0] // groups)
        return split.permute(0, 3, 1, 2).reshape(shape)
    return rows.transpose(1, 2).reshape(shape)


def is_conv1d(module: nn.Module) -> bool:
    """Whether `module` is transformers' `Conv1D`: a linear layer whose weight has shape (inputs, outputs)."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in type(module).__mro__
    )


def _recognised(module: nn.Module) -> Iterator[tuple[str, str]]:
    """(attribute, kind) of the weights of one module."""
    if isinstance(module, nn.Linear):
        yield "weight", LINEAR
    elif isinstance(module, _CONVOLUTIONS):
        yield "weight", CONVOLUTION
    elif isinstance(module, _TRANSPOSED):
        yield "weight", TRANSPOSED
    elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        yield "weight", EMBEDDING
    elif isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        found = (name for name, _ in module.named_parameters(recurse=False) if _RECURRENT.fullmatch(name))
        yield from ((name, RECURRENT) for name in found)
    elif isinstance(module, nn.MultiheadAttention):
        yield from ((name, ATTENTION) for name in _PROJECTIONS if getattr(module, name, None) is not None)
    elif is_conv1d(module):
        yield "weight", CONV1D


def all_weights(model: nn.Module) -> dict[str, Weight]:
    """Every recognised weight by plain name, embeddings too, in the order of the model; a shared tensor once.

    Weights under `torch.nn.utils.prune` are not parameters any more and are not listed: make them permanent first.
    """
    empty = next((name for name, parameter in model.named_parameters() if is_lazy(parameter)), None)
    if empty is not None:
        raise BadInput(f"The weight {empty!r} has no size yet: run the model on an input first, which gives it one.")
    owners: dict[int, tuple[nn.Module, str, str]] = {}
    for module in model.modules():
        for attribute, kind in _recognised(module):
            parameter = module._parameters.get(attribute)
            if parameter is None:
                continue
            if kind == EMBEDDING and id(parameter) in owners:  # a head that comes before the table it is tied to
                owners[id(parameter)] = (*owners[id(parameter)][:2], EMBEDDING)
            owners.setdefault(id(parameter), (module, attribute, kind))
    names: dict[int, list[str]] = {}
    parameters = named_parameters(model)
    for name, parameter in parameters.items():
        if id(parameter) in owners:
            names.setdefault(id(parameter), []).append(name)
    weights = {}
    for key, called in names.items():
        module, attribute, kind = owners[key]
        weights[called[0]] = Weight(called[0], parameters[called[0]], module, attribute, kind, tuple(called))
    return weights


def prunable_weights(model: nn.Module, named: Iterable[str] = ()) -> dict[str, Weight]:
    """The weights that pruning covers, by plain name: all but embeddings and output layers tied to them.

    Args:
        model: any module.
        named: names or globs. An embedding is covered if one of them means embeddings alone ("embeddings",
            "lm_head.weight", "wte*"); "*" and a name that covers other layers as well do not name it.

    Returns:
        Plain name -> `Weight`, in the order of the model.

    Example:
        >>> from torch import nn
        >>> list(prunable_weights(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))))
        ['1.weight']
        >>> list(prunable_weights(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)), named=["0"]))
        ['0.weight', '1.weight']
    """
    weights = all_weights(model)
    ordinary = [weight for weight in weights.values() if weight.kind != EMBEDDING]
    own = [glob for glob in named if not any(weight.called(glob) for weight in ordinary)]
    return {
        name: weight
        for name, weight in weights.items()
        if weight.kind != EMBEDDING or any(weight.called(glob) for glob in own)
    }


def require_values(weights: Mapping[str, Weight]) -> None:
    """Refuse weights without values, or with NaN or infinity among them.

    Args:
        weights: as `prunable_weights` gives them.

    Raises:
        BadInput: A weight is on the meta device, or holds a number that is not finite.

    Example:
        >>> from torch import nn
        >>> require_values(prunable_weights(nn.Linear(4, 2)))
    """
    for name, weight in weights.items():
        if weight.parameter.is_meta:
            raise BadInput(f"The weight {name!r} is on the meta device and has no values; load the weights first.")
        # A sum is finite only if every term is, save for overflow; only then is the elementwise test needed.
        values = weight.parameter.detach()
        if not torch.isfinite(values.sum(dtype=torch.float64)) and not bool(torch.isfinite(values).all()):
            raise BadInput(f"The weight {name!r} holds NaN or Inf; mend the checkpoint before pruning it.")


def require_apart(model: nn.Module, weights: Mapping[str, Weight]) -> None:
    """Refuse weights in the memory of another parameter: a zero in one would be a zero in the other.

    Args:
        model: any module.
        weights: those that are to change, as `prunable_weights` gives them.

    Raises:
        BadInput: A weight is a view of another parameter, or the other of it.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))
        >>> require_apart(model, prunable_weights(model))
    """
    changing = {id(weight.parameter) for weight in weights.values()}
    held: dict[int, list[tuple[int, int, str, Tensor]]] = {}
    for name, own in model.named_parameters():  # a parameter with several names comes once
        if own.layout is torch.strided and own.numel() and own.untyped_storage().data_ptr():
            low = int(own.storage_offset())
            high = low + 1 + sum((side - 1) * step for side, step in zip(own.shape, own.stride()))
            held.setdefault(own.untyped_storage().data_ptr(), []).append((low, high, plain_name(name), own))
    for together in held.values():
        together.sort(key=lambda entry: entry[:2])
        for place, (_, high, first, one) in enumerate(together):
            for low, _, second, two in together[place + 1 :]:
                if low >= high:
                    break
                if (id(one) in changing or id(two) in changing) and _overlap(one, two):
                    raise BadInput(
                        f"{first!r} and {second!r} lie in the same memory without being one parameter, so that a zero "
                        "in one is a zero in the other: give one of them a copy, as in "
                        "nn.Parameter(weight.detach().clone()), or exclude both."
                    )


def _overlap(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors in one storage have a number in common."""
    if one.dtype != two.dtype:
        return False
    places = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    places.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(places.as_strided(two.shape, two.stride(), two.storage_offset()).any())


def unrecognised(model: nn.Module) -> dict[str, str]:
    """Parameters that look like weight matrices but belong to no known kind of layer: plain name -> class of the owner.

    They are left dense, and the caller reports them. What broadcasts over the batch (a first side of 1, as position
    tables and class tokens have) and the weights of norms are no matrices.
    """
    known = {id(weight.parameter) for weight in all_weights(model).values()}
    found: dict[int, str] = {}
    for module in model.modules():
        if "Norm" in type(module).__name__:
            continue
        for parameter in module.parameters(recurse=False):
            sides = parameter.shape
            if parameter.is_floating_point() and len(sides) > 1 and sides[0] > 1 and sides[1:].numel() > 1:
                found.setdefault(id(parameter), type(module).__name__)
    parameters: Mapping[str, Tensor] = named_parameters(model)
    return {
        name: found[id(parameter)]
        for name, parameter in parameters.items()
        if id(parameter) in found and id(parameter) not in known
    }

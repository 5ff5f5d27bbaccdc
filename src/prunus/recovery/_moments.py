"""Second moments of the inputs of layers: as the pruned network gives them, and together with the dense network's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from prunus.adapters import Batch, call
from prunus.errors import BadInput
from prunus.layers import Weight
from prunus.recovery._record import Recorder, Stop, Use, norms_of, storage
from prunus.recovery._units import Walk


@dataclass(eq=False)
class Moments:
    """Sums over all places a layer's rows were laid on; x are inputs of the dense network, z of the pruned one.

    own: z z^T, cross: x z^T (groups, columns, columns); dense, pruned: sums of x and z (groups, columns); count.
    outputs, squares: sums over the dense outputs and their squares, by weight (rows), where a batch norm follows.
    """

    own: Tensor
    cross: Tensor
    dense: Tensor
    pruned: Tensor
    count: int = 0
    outputs: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def empty(cls, groups: int, columns: int, device: torch.device) -> Moments:
        square = torch.zeros(groups, columns, columns, dtype=torch.float64, device=device)
        line = torch.zeros(groups, columns, dtype=torch.float64, device=device)
        return cls(square, square.clone(), line, line.clone())

    def add(self, dense: Tensor, pruned: Tensor, part: slice = slice(None)) -> None:
        """Lines (places, groups, columns) of both networks, for the groups in `part`."""
        x, z = _precise(dense).transpose(0, 1), _precise(pruned).transpose(0, 1)
        self.own[part] += z.transpose(1, 2) @ z
        self.cross[part] += x.transpose(1, 2) @ z
        self.dense[part] += x.sum(1)
        self.pruned[part] += z.sum(1)
        self.count += z.shape[1] if part.start in (None, 0) else 0

    def add_output(self, use: Use) -> None:
        """What the dense layer gives."""
        values = use.output.detach().movedim(1, 0).flatten(1).double()
        name = use.weight.name
        self.outputs[name] = self.outputs.get(name, 0.0) + values.sum(1)
        self.squares[name] = self.squares.get(name, 0.0) + values.square().sum(1)


def _precise(lines: Tensor) -> Tensor:
    return lines.float() if lines.dtype in (torch.float16, torch.bfloat16) else lines


@dataclass(frozen=True, eq=False)
class Stage:
    """Weights whose inputs can be measured together: those with the same inputs, or one that is used in another way.

    uses: how many products a forward pass makes with them; chunks: in how many parts the rows meet different inputs;
    norms: the batch norms that directly follow, by the name of the weight.
    """

    names: tuple[str, ...]
    uses: int
    chunks: int = 1
    norms: Mapping[str, str] = field(default_factory=dict)


def trace(model: nn.Module, weights: Mapping[str, Weight], batch: Batch, keep: Tensor | None = None) -> list[Stage]:
    """The stages of a model in the order they run."""
    uses: list[Use] = []  # holds every input, so that no address is used twice
    followed: dict[int, str] = {}
    paths = {id(module): name for name, module in model.named_modules()}
    norms = norms_of(model)

    def normed(inputs: Tensor, mean: Tensor) -> None:
        if storage(mean) in norms:
            followed[inputs.data_ptr()] = paths[id(norms[storage(mean)])]

    with torch.no_grad(), Recorder(weights.values(), uses.append, normed, keep):
        call(model, batch)
    by_name: dict[str, list[Use]] = {}
    for use in uses:
        by_name.setdefault(use.weight.name, []).append(use)
    missing = next((name for name in weights if name not in by_name), None)
    if missing is not None:
        raise BadInput(f"The data never reach {missing!r}: exclude that layer, or give data that use it.")
    groups: dict[object, list[str]] = {}
    for name, found in by_name.items():
        whole = len(found) == 1 and found[0].rows == (0, _rows(found[0].weight))
        groups.setdefault(found[0].key if whole else name, []).append(name)
    return [
        Stage(
            tuple(names),
            sum(len(by_name[name]) for name in names),
            _chunks(by_name[names[0]]) if key == names[0] else 1,
            {
                n: followed[use.output.data_ptr()]
                for n in names
                for use in by_name[n]
                if use.output.data_ptr() in followed
            },
        )
        for key, names in groups.items()
    ]


def _rows(weight: Weight) -> int:
    return int(weight.rows(weight.parameter.detach()).shape[0])


def _chunks(uses: Sequence[Use]) -> int:
    total = _rows(uses[0].weight)
    return total // math.gcd(total, *(edge for use in uses for edge in use.rows))


def measure(
    dense: Walk, pruned: Walk, stage: Stage, weights: Mapping[str, Weight], originals: Mapping[str, Weight],
    keeps: Sequence[Tensor | None],
) -> Moments:  # fmt: skip
    """The moments of a stage's inputs over all batches; `originals` are the dense network's weights."""
    found: Moments | None = None
    for index, keep in enumerate(keeps):
        there = _seen(dense, [originals[name] for name in stage.names], stage.uses, index, keep)
        here = _seen(pruned, [weights[name] for name in stage.names], stage.uses, index, keep)
        if [use.weight.name for use in there] != [use.weight.name for use in here]:
            raise BadInput(f"The model does not run {stage.names[0]!r} in the same way twice; exclude it.")
        alone = len(stage.names) == 1
        for old, new in zip(there, here) if alone else [(there[0], here[0])]:
            x, z = old.columns(), new.columns()
            if not bool(torch.isfinite(z.sum()) & torch.isfinite(x.sum())):
                raise BadInput(f"The inputs of {new.weight.name!r} hold NaN or Inf: mend the model or the data.")
            if found is None:
                found = Moments.empty(z.shape[1] * stage.chunks, z.shape[2], z.device)
            if stage.chunks == 1:
                found.add(x, z)
            else:
                each = _rows(new.weight) // stage.chunks
                for chunk in range(new.rows[0] // each, new.rows[1] // each):
                    found.add(x, z, slice(chunk, chunk + 1))
        assert found is not None
        for use in there:
            if use.weight.name in stage.norms:
                found.add_output(use)
    assert found is not None
    return found


def _seen(walk: Walk, weights: Sequence[Weight], count: int, index: int, keep: Tensor | None) -> list[Use]:
    """The uses of `weights` while the present unit runs on one batch."""
    uses: list[Use] = []

    def see(use: Use) -> None:
        uses.append(use)
        if len(uses) == count:
            raise Stop

    args, kwargs = walk.inputs(index)
    with Recorder(weights, see, keep=keep), contextlib.suppress(Stop):
        walk.module(*args, **kwargs)
    return uses

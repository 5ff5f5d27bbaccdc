"""Second moments of the inputs of layers: as the pruned network gives them, and together with the dense network's."""

from __future__ import annotations

import contextlib
import math
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import Batch, call
from prunus.errors import BadInput
from prunus.layers import Weight
from prunus.recovery._calibration import FOLDS
from prunus.recovery._record import Keep, Recorder, Stop, Use, added_to, norms_of, place, real, storage
from prunus.recovery._shelf import trim
from prunus.recovery._solve import Factors
from prunus.recovery._units import UnitWalk, missed

PLENTY = 32
"""With so many places to a column, chance plays no part in a fit."""
WIDE = 4096
"""Inputs of a linear layer with more columns are not held aside: their sums are too large to keep them apart."""
ALIKE = 4
"""So many places of an image are taken for one: neighbours look alike, and patches overlap."""
TRIMMED = 8
"""After so many weights, tracing gives free memory back."""


@dataclass(eq=False)
class Moments:
    """Sums over all places a layer's rows were laid on; x are inputs of the dense network, z of the pruned one.

    own: z z^T, cross: x z^T (groups, columns, columns); dense, pruned: sums of x and z (groups, columns); count.
    outputs, squares: sums over the dense outputs and their squares, by weight (rows), where a batch norm follows.
    beside, gap: with g what a residual connection adds in the dense network less what it adds in the pruned one, sums
    of g z^T (1, rows, columns) and g (rows); None where the outputs are not added to anything.
    target, aimed: sums of y z^T (1, rows, columns) and y (rows) with y = W x + g, and a bias if the layer has one; they
    take the place of `cross` and `beside` where that is less work.
    lack: sum of (W x + g - W z)^2 by weight, what the outputs lack with the dense weights.
    aside: the same sums over the batches held aside; the others hold them too.
    factors: of these moments, about their means or not, by damping; made when the first layer asks for them.
    """

    own: Tensor
    cross: Tensor | None
    dense: Tensor
    pruned: Tensor
    count: int = 0
    outputs: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, Tensor] = field(default_factory=dict)
    beside: Tensor | None = None
    gap: Tensor | None = None
    lack: dict[str, float] = field(default_factory=dict)
    target: Tensor | None = None
    aimed: Tensor | None = None
    aside: Moments | None = None
    factors: dict[tuple[bool, float, float | None], Factors] = field(default_factory=dict)

    def rest(self) -> Moments:
        """The sums without those over the batches held aside."""
        assert self.aside is not None
        return self._combined(self.aside, operator.sub)

    def with_aside(self, aside: Moments) -> Moments:
        """The sums over these batches and those held aside."""
        return replace(self._combined(aside, operator.add), aside=aside)

    def _combined(self, other: Moments, sign: Callable[[Any, Any], Any]) -> Moments:
        def each(mine: Any, its: Any) -> Any:
            if isinstance(mine, dict):
                return {name: sign(value, its.get(name, 0.0)) for name, value in mine.items()}
            return None if mine is None else sign(mine, its)

        names = [entry.name for entry in fields(self) if entry.name not in ("aside", "factors")]
        return Moments(**{name: each(getattr(self, name), getattr(other, name)) for name in names})

    @classmethod
    def empty(cls, groups: int, columns: int, device: torch.device, cross: bool = True) -> Moments:
        square = torch.zeros(groups, columns, columns, dtype=torch.float64, device=device)
        line = torch.zeros(groups, columns, dtype=torch.float64, device=device)
        return cls(square, square.clone() if cross else None, line, line.clone())

    def add(self, dense: Tensor, pruned: Tensor, part: slice = slice(None)) -> None:
        """Lines (places, groups, columns) of both networks, for the groups in `part`."""
        x, z = _precise(dense).transpose(0, 1), _precise(pruned).transpose(0, 1)
        _add_square(self.own[part], z)
        if self.cross is not None:
            self.cross[part] += x.transpose(1, 2) @ z
        self.dense[part] += x.sum(1)
        self.pruned[part] += z.sum(1)
        self.count += z.shape[1] if part.start in (None, 0) else 0

    def add_use(self, use: Use, stage: Stage, dense: Tensor, pruned: Tensor) -> None:
        """The same for those of the groups that the use's rows belong to."""
        if stage.chunks == 1:
            return self.add(dense, pruned)
        each = _rows(use.weight) // stage.chunks
        for chunk in range(use.rows[0] // each, use.rows[1] // each):
            self.add(dense, pruned, slice(chunk, chunk + 1))

    def add_lack(self, weight: Weight, change: Tensor, gap: Tensor | None) -> None:
        """x - z (places, groups, columns), and g where there is a sum."""
        lines = change.transpose(0, 1)
        matrix = weight.rows(weight.parameter.detach()).reshape(len(lines), -1, lines.shape[2])
        missing = lines @ matrix.transpose(1, 2).to(lines.dtype)
        missing = missing if gap is None else missing + gap.unsqueeze(0)
        self.lack[weight.name] = self.lack.get(weight.name, 0.0) + float(missing.double().square().sum())

    def add_beside(self, gap: Tensor, pruned: Tensor, output: Tensor | None = None) -> None:
        """What is missing in the sum (places, rows), with the lines (places, 1, columns) it goes with.

        With `output`, what the dense layer gives (places, rows), both go into `target`.
        """
        g, z = _precise(gap), _precise(pruned)[:, 0]
        y = g if output is None else g + _precise(output)
        product, total = (y.T @ z).double().unsqueeze(0), y.sum(0).double()
        if output is None:
            self.beside = product if self.beside is None else self.beside + product
        else:
            self.target = product if self.target is None else self.target + product
            self.aimed = total if self.aimed is None else self.aimed + total
            total = g.sum(0).double()
        self.gap = total if self.gap is None else self.gap + total

    def add_output(self, use: Use) -> None:
        """What the dense layer gives."""
        values = use.output.detach().movedim(1, 0).flatten(1).double()
        name = use.weight.name
        self.outputs[name] = self.outputs.get(name, 0.0) + values.sum(1)
        self.squares[name] = self.squares.get(name, 0.0) + values.square().sum(1)


def _add_square(total: Tensor, lines: Tensor, block: int = 384) -> None:
    """Add z^T z (groups, columns, columns) of lines z (groups, places, columns), each block of columns pair once."""
    columns = lines.shape[-1]
    for begin in range(0, columns, block):
        own, rest = slice(begin, min(begin + block, columns)), slice(begin + block, columns)
        product = lines[..., own].transpose(1, 2) @ lines[..., begin:]
        total[..., own, begin:] += product
        total[..., rest, own] += product[..., block:].transpose(1, 2)


def _precise(lines: Tensor) -> Tensor:
    return lines.float() if lines.dtype in (torch.float16, torch.bfloat16) else lines


@dataclass(frozen=True, eq=False)
class Stage:
    """Weights whose inputs can be measured together: those with the same inputs, or one that is used in another way.

    uses: how many products a forward pass makes with them; chunks: in how many parts the rows meet different inputs;
    norms: the batch norms that directly follow, by the name of the weight; summed: the output of its one product is
    added to something, as at the end of a residual branch; after: other batch norms that run before the next stage,
    such as those behind layers that are not pruned.
    """

    names: tuple[str, ...]
    uses: int
    chunks: int = 1
    norms: Mapping[str, str] = field(default_factory=dict)
    summed: bool = False
    after: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Trace:
    """A `Use` without its tensors: the weight's name, which inputs it had, which rows, and where its output began."""

    weight: Weight
    key: object
    rows: tuple[int, int]
    made: object


def trace(
    model: nn.Module, weights: Mapping[str, Weight], batch: Batch, keep: Keep = (),
    units: Sequence[str] = (),
) -> list[Stage]:  # fmt: skip
    """The stages of a model in the order they run; weights of different `units` are in different ones."""
    by_name: dict[str, list[Trace]] = {}
    recent: deque[Use] = deque(maxlen=4)
    outputs: dict[object, tuple[object, ...]] = {}
    followed: dict[object, str] = {}
    paths = {id(module): name for name, module in model.named_modules()}
    norms = norms_of(model)
    later: dict[str, list[str]] = {}
    sums: set[str] = set()

    def see(use: Use) -> None:
        made = place(use.output)
        if len(by_name) % TRIMMED == TRIMMED - 1 and use.weight.name not in by_name:
            trim()  # models that keep a cache would else scatter it over all the memory they ever computed with
        by_name.setdefault(use.weight.name, []).append(Trace(use.weight, use.key, use.rows, made))
        outputs[made] = _state(use.output, use.version)
        recent.append(use)

    def normed(inputs: Tensor, mean: Tensor) -> None:
        if storage(mean) not in norms:
            return
        path, made = paths[id(norms[storage(mean)])], place(inputs)
        if made not in followed and outputs.get(made) == _state(inputs, inputs._version):
            followed[made] = path
        elif recent:
            later.setdefault(recent[-1].weight.name, []).append(path)

    def summed(first: Tensor, second: Tensor) -> None:
        sums.update(use.weight.name for use in recent if added_to(use, first, second) is not None)

    with torch.no_grad(), Recorder(weights.values(), see, normed, keep, summed):
        call(model, batch)
    missing = [name for name in weights if name not in by_name]
    if missing:
        raise missed(missing)
    groups: dict[object, list[str]] = {}
    for name, found in by_name.items():
        whole = len(found) == 1 and found[0].rows == (0, _rows(found[0].weight))
        unit = next((unit for unit in units if name.startswith(f"{unit}.")), None)
        groups.setdefault((found[0].key, unit) if whole else name, []).append(name)
    return [
        Stage(
            tuple(names),
            sum(len(by_name[name]) for name in names),
            _chunks(by_name[names[0]]) if key == names[0] else 1,
            {n: followed[use.made] for n in names for use in by_name[n] if use.made in followed},
            len(names) == 1 and len(by_name[names[0]]) == 1 and names[0] in sums,
            tuple(dict.fromkeys(path for name in names for path in later.get(name, ()))),
        )
        for key, names in groups.items()
    ]


def _state(values: Tensor, version: int) -> tuple[object, ...]:
    """Equal for a product's output and what a batch norm is given if the norm's channels are the rows of the weight and
    nothing was done to the values in between, not even in place."""
    return version, values.numel(), values.shape[1], values.stride(1) if values.shape[1] > 1 else 0


def bias_of(weight: Weight) -> Tensor | None:
    """The bias that is added to the weight's outputs, or None."""
    names = {"weight": "bias", "in_proj_weight": "in_proj_bias"}
    found = getattr(weight.module, names.get(weight.attribute, weight.attribute.replace("weight", "bias")), None)
    return found if isinstance(found, Tensor) and found.shape == (_rows(weight),) else None


def _rows(weight: Weight) -> int:
    return int(weight.rows(weight.parameter.detach()).shape[0])


def _chunks(uses: Sequence[Trace]) -> int:
    total = _rows(uses[0].weight)
    return total // math.gcd(total, *(edge for use in uses for edge in use.rows))


def measure(
    dense: UnitWalk, pruned: UnitWalk, stage: Stage, weights: Mapping[str, Weight], originals: Mapping[str, Weight],
    keeps: Sequence[Keep], last: bool = False, hold: bool = False, paired: bool = True,
) -> Moments:  # fmt: skip
    """The moments of a stage's inputs over all batches; `originals` are the dense network's weights.

    With `last` the dense network goes on to the end of its unit and keeps what it gives, so that it need not run again.
    With one walk for both there is no other network, and nothing but the moments of its inputs is taken. With `hold`
    some batches are held aside where there are few places for the columns: their sums are kept apart as well. Of few
    batches for a linear layer it is the last places of each, so that the number of batches makes no difference.

    Where the model chooses which samples a layer is given, as for experts, the pruned network may choose others. Then
    nothing is `paired`: the layer is fitted to what its dense weights make of the inputs that it is given now.
    """
    found: Moments | None = None
    fit, aside = found, found
    doubtful = direct = lines = False
    for index, keep in enumerate(keeps):
        there, full = _seen(dense, [originals[name] for name in stage.names], stage, index, keep, last)
        alike = pruned is dense  # then nothing needs to run twice
        here, part = (
            (there, full) if alike else _seen(pruned, [weights[name] for name in stage.names], stage, index, keep)
        )
        if [use.weight.name for use in there] != [use.weight.name for use in here]:
            raise BadInput(f"The model does not run {stage.names[0]!r} in the same way twice; exclude it.")
        full, part = (full, part) if paired else (None, None)
        alone = len(stage.names) == 1
        for old, new in zip(there, here) if alone else [(there[0], here[0])]:
            z = new.columns()
            x = z if alike or not paired else old.columns()
            if x.shape != z.shape:
                return measure(dense, pruned, stage, weights, originals, keeps, last, hold, paired=False)
            if not bool(torch.isfinite(z.sum()) & torch.isfinite(x.sum())):
                raise BadInput(f"The inputs of {new.weight.name!r} hold NaN or Inf: mend the model or the data.")
            if found is None:
                once = stage.chunks == 1 and stage.uses == len(stage.names) and new.output.dim() == 2
                image = new.output.dim() > 2
                few = not alike and z.shape[0] * len(keeps) < PLENTY * z.shape[2] * (ALIKE if image else 1)
                hold = hold and few and (len(keeps) >= FOLDS if image else z.shape[2] <= WIDE)
                lines, doubtful = hold and not image and len(keeps) < 2 * FOLDS, once and few
                known = new.plain or bias_of(new.weight) is not None
                added = full is not None and part is not None and not stage.norms
                direct = once and added and known and not doubtful
                form = (z.shape[1] * stage.chunks, z.shape[2], z.device, not direct and not alike)
                fit, aside = Moments.empty(*form), Moments.empty(*form) if hold else None
            assert fit is not None
            found = fit if aside is None or lines or (index + 1) % FOLDS else aside
            sums = [(found, slice(None))]
            if lines and aside is not None:
                cut = -(-(FOLDS - 1) * len(z) // FOLDS)
                sums = [(fit, slice(cut)), (aside, slice(cut, None))]
            for total, some in sums:
                total.add_use(new, stage, x[some], z[some])
        assert found is not None
        gap = real(full - part, keep) if full is not None and part is not None and not alike else None
        for total, some in sums:
            if gap is not None:
                total.add_beside(gap[some], z[some], real(there[0].output, keep)[some] if direct else None)
            for name in stage.names if doubtful else ():
                total.add_lack(originals[name], _precise(x[some] - z[some]), None if gap is None else gap[some])
        for use in there if paired else here:  # the layer still has its dense weights here
            if use.weight.name in stage.norms:
                found.add_output(use)
    assert fit is not None
    if last:
        dense.move_on()
    whole = fit if aside is None else fit.with_aside(aside)
    return whole if aside is None or aside.count > 1 else replace(whole, aside=None)  # one place has no spread


def settle(dense: UnitWalk, pruned: UnitWalk, name: str, batches: int) -> None:
    """Move a batch norm's statistics by what its inputs moved from the dense network to the pruned one.

    Paired, on the same samples, as for norms right behind a pruned layer; nothing happens where the norm does not run.
    """
    norm = pruned.model.get_submodule(name)
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    old, new = _spread(dense, name, batches), _spread(pruned, name, batches)
    if old is None or new is None or norm.running_mean is None or norm.running_var is None:
        return
    norm.running_mean += (new[0] - old[0]).to(norm.running_mean.dtype)
    rescale(norm.running_var, old[0], old[1], new[1])


def rescale(variance: Tensor, mean: Tensor, was: Tensor, now: Tensor) -> None:
    """Multiply a batch norm's variance in place by the ratio of its inputs' variances on the samples.

    Paired, on the same samples: what the samples differ from those of training cancels. An input that hardly varies any
    more, as that from a row without weights, has no such ratio, nor one that hardly varied before: divided by next to
    nothing, the small distance of the samples' mean to the norm's own would become a large constant.
    """
    varies = (was > 1e-12 * (1 + mean.square())) & (now > 1e-3 * was)
    variance *= torch.where(varies, now / was.clamp_min(1e-30), 1.0).to(variance.dtype)


def _spread(walk: UnitWalk, name: str, batches: int) -> tuple[Tensor, Tensor] | None:
    """Mean and variance of every channel that a batch norm of the present unit, or right before it, is given."""
    own = walk.model.get_submodule(name).running_mean
    assert isinstance(own, Tensor)
    sums: list[Tensor] = []
    count = 0

    def normed(inputs: Tensor, mean: Tensor) -> None:
        nonlocal count
        if storage(mean) != storage(own):
            return
        values = inputs.detach().movedim(1, 0).flatten(1).double()
        found = torch.stack([values.sum(1), values.square().sum(1)])
        sums[:] = [found if not sums else sums[0] + found]
        count += values.shape[1]

    for index in range(batches):
        with Recorder((), lambda use: None, normed):
            walk.run(index)
    if not sums:
        return None
    mean, square = sums[0] / count
    return mean, (square - mean.square()).clamp_min(1e-12)


def _seen(
    walk: UnitWalk, weights: Sequence[Weight], stage: Stage, index: int, keep: Keep, through: bool = False
) -> tuple[list[Use], Tensor | None]:
    """The uses of `weights` while the present unit runs on one batch, and what is added to the output of the last.

    With `through` the unit runs to its end and the walk keeps its output. Otherwise it runs no further than it must:
    weights with the same inputs need the first product only, and where no norm follows not even what it gives. What the
    dense network adds to is needed whole, and its parts need not run again.
    """
    uses: list[Use] = []
    made: list[Use] = []  # the same with their outputs where they are
    beside: list[Tensor] = []
    needed = 1 if len(stage.names) > 1 and not stage.norms else stage.uses

    def see(use: Use) -> None:
        made.append(use)
        more = through or stage.summed or (len(stage.names) == 1 and len(uses) + 1 < needed)
        if more and len(uses) < needed:  # what runs on may change the inputs in place
            lines = use.columns().clone()
            use = replace(use, columns=lambda: lines, output=use.output.clone() if stage.summed else use.output)
        uses.append(use)
        if len(uses) == needed and not stage.summed and not through:
            raise Stop

    def blank() -> bool:
        whole = through or stage.norms or (stage.summed and walk.fixed)
        return not whole and len(uses) + 1 == needed

    def summed(first: Tensor, second: Tensor) -> None:
        other = added_to(made[-1], first, second) if made else None
        if other is not None and not beside:
            runs_on = through or walk.parts.depth
            beside.append(other.clone() if runs_on else other)  # what runs on may change it in place
            if not through:
                walk.parts.stop()

    args, kwargs = walk.inputs(index)
    recorder = Recorder(weights, see, None, keep, summed if stage.summed else None, blank)
    with recorder, contextlib.suppress(Stop):
        output = walk.call(index, args, kwargs)
        if through:
            walk.store(index, output)
    return uses[:needed], beside[0] if beside else None

"""`shrink` and `find_removal`: which units leave, and the smaller model."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn
from torch.nn.parameter import UninitializedParameter

from prunus.adapters import Batch
from prunus.contract import Masks
from prunus.errors import BadInput, first_line
from prunus.graph import read, unwrapped
from prunus.layers import listing, prunable_weights, require_module, require_values
from prunus.settings.structure import Options
from prunus.structure import _depth, _latency, _surgery, costs
from prunus.structure._call import Example, example_for
from prunus.structure._choice import Known, learn, shares_of_damage, widths, widths_by_name
from prunus.structure._compare import outputs_of
from prunus.structure._config import Knob, configured, find_knobs, matched, tie_layers, update_config
from prunus.structure._features import solvable
from prunus.structure._labels import Array
from prunus.structure._options import looked_at, options_from, shares_from
from prunus.structure._recover import answers, distance, first_rows, recalibrate, solve
from prunus.structure._walk import walk
from prunus.structure.allocations import best
from prunus.structure.groups import Coupling, FixedLayer, find_groups

_LEAST = 1 / 8  # of a group that is narrowed so that others, which a configuration cannot say, stay whole
_ROUNDS = 6  # of choosing and timing
_NEAR = 0.93  # of the time asked for: fast enough, and no faster than need be


@dataclass(frozen=True)
class GroupRow:
    """One group of a removal.

    Attributes:
        name: The layer that makes the units first.
        kind: What they are: "neurons", "channels", "groups" (of channels), "heads", "units" (of recurrent layers),
            "columns" (of embeddings), or "block" for a whole residual block that left.
        before: How many units the group had.
        after: How many it keeps.
        damage: Its share of the whole damage, where the allocation measured it; for a block the change of the outputs
            without it, relative to their variation.

    Example:
        >>> model = prunus.models.make("fc:8-32-4", seed=0).eval()
        >>> prunus.structure.find_removal(model, 0.5, example=torch.zeros(1, 8)).rows
        (GroupRow(name='layers.0', kind='neurons', before=32, after=16, damage=None),)
    """

    name: str
    kind: str
    before: int
    after: int
    damage: float | None = None


@dataclass(frozen=True, eq=False)
class Removal:
    """A choice of units, as masks and as a smaller model.

    Attributes:
        model: The original model, without wrappers.
        coupling: The groups of units the choice was made among.
        stays: For every unit of the model, whether it stays.
        example: What the model is called with.
        masks: The same choice as zeros: rows and columns of what leaves.
        rows: One line for each group: name, kind, before, after, damage.
        share: What is left of the measure, at most the fraction asked for; of "time", as it was measured.
        blocks: Residual blocks that left, by their names in the original; the masks do not contain them.
        fixed: Layers whose outputs cannot be removed, with the reason.
        configured: Whether a Hugging Face configuration says the new sizes, so that `from_pretrained` reads the model.

    Example:
        >>> model = prunus.models.make("fc:8-32-4", seed=0).eval()
        >>> removal = prunus.structure.find_removal(model, 0.5, example=torch.zeros(1, 8))
        >>> removal.share, removal.apply().layers[0]
        (0.5, Linear(in_features=8, out_features=16, bias=True))
    """

    model: nn.Module
    coupling: Coupling
    stays: Array
    example: Example
    masks: Masks
    rows: tuple[GroupRow, ...]
    share: float
    fixed: tuple[FixedLayer, ...]
    configured: bool
    blocks: tuple[str, ...] = ()
    _small: nn.Module = field(kw_only=True, repr=False)

    def apply(self) -> nn.Module:
        """The smaller model: of the same class, with the same keys; checked against the masked original."""
        return self._small


def find_removal(
    model: nn.Module, fraction: float | Mapping[str, float], *, example: Any, data: Any = None, **options: Any
) -> Removal:
    """Choose the units that leave, and make the smaller model; `model` is not touched.

    Args:
        model: Any module; DataParallel, DistributedDataParallel and torch.compile wrappers are taken off.
        fraction: The share of the measure that stays, between 0 and 1; or {glob: share} of the units of named groups.
        example: What the model is called with: a tensor, a tuple, or a dictionary by name.
        data: A data set or batches, or None.
        options: Fields of `Options`, by name.

    Returns:
        A `Removal`: the smaller model with `apply()`, the same choice as `masks`, a row for each group.

    Raises:
        BadInput: The fraction cannot be reached, the model cannot be read, or names match nothing.

    Example:
        >>> import torch, prunus
        >>> model = prunus.models.make("fc:8-32-4", seed=0).eval()
        >>> removal = prunus.structure.find_removal(model, 0.5, example=torch.zeros(1, 8))
        >>> [(row.name, row.kind, row.before, row.after) for row in removal.rows]
        [('layers.0', 'neurons', 32, 16)]
        >>> removal.masks.sparsity
        0.5
    """
    require_module(model)
    wanted = options_from(options)
    shares = shares_from(fraction, wanted)
    model = unwrapped(model)
    batches = looked_at(data, wanted)
    search = _Search(model, example_for(model, example), batches, wanted)
    if isinstance(shares, float):
        search.remove_blocks(shares)
    while True:
        if not search.coupling.groups and not search.gone:
            raise BadInput(_nothing(search.coupling))
        try:
            found = search.narrowed(shares)
            break
        except _surgery.DoesNotRun as error:
            search.coupling = _without_failing(search.work, search.coupling, search.example, error)
    return search.finished(found)


@dataclass(frozen=True, eq=False)
class _Narrowed:
    """Widths that were chosen, what they leave of the measure, and the model cut to them."""

    known: Known
    counts: list[int]
    stays: Array
    cut: _surgery.Cut
    share: float


class _Search:
    """One call of `find_removal`: a copy of the model, its groups, and what has been decided so far."""

    def __init__(self, model: nn.Module, example: Example, batches: list[Batch], options: Options) -> None:
        self.model, self.example, self.batches, self.options = model, example, batches, options
        self.teacher = _copied(model).eval()
        require_values(prunable_weights(model))
        self.work = self.teacher  # without the blocks that left
        self.gone: list[_depth.Gone] = []
        self.plain = configured(model) and not options.per_layer
        self.coupling, self.knobs = self._read()
        self.whole = self._cost()(costs.full(self.coupling))

    def _read(self) -> tuple[Coupling, list[Knob]]:
        """Groups of the model as it is now, and the entries of its configuration that decide their sizes."""
        seen = walk(read(self.work, self.example.whole, dynamic_batch=False), exact=self.options.exact)
        coupling = find_groups(seen, self.work, named=self.options.embeddings, exclude=self.options.exclude)
        if not self.plain:
            return coupling, []
        knobs = matched(self.knobs, coupling) if self.gone else find_knobs(self.work, coupling)
        tie_layers(coupling, knobs)
        return coupling, knobs

    def _cost(self) -> costs.Cost:
        if self.options.measure == "parameters":
            return costs.parameters(self.coupling, self.work)
        return costs.multiply_adds(self.coupling)

    def remove_blocks(self, fraction: float) -> None:
        """With `depth`, take out residual blocks as far as the fraction allows it."""
        if not self.options.depth:
            return
        blocks = _depth.residual_blocks(self.work, self.example)
        if not blocks:
            raise BadInput(
                "depth=True finds no residual block that could leave; leave it out to narrow layers instead."
            )
        by_name = {name: costs.of_module(self.coupling, self.work, name, self.options.measure) for name in blocks}
        self.work = copy.deepcopy(self.work)
        spare = (1 - fraction) * self.whole
        beyond = not self.coupling.groups
        self.gone = _depth.remove_blocks(
            self.work, blocks, by_name, spare, self.example, self.batches, beyond=beyond
        )  # fmt: skip
        self.coupling, self.knobs = self._read()

    def narrowed(self, shares: float | Mapping[str, float]) -> _Narrowed:
        """Choose widths and cut; with "time", again and again until the measured time is what was asked for."""
        options, coupling = self.options, self.coupling
        done = self._cost()(costs.full(coupling)) / self.whole
        enough = isinstance(shares, float) and done <= shares and options.measure != "time"
        if not coupling.groups or enough:
            stays = coupling.kept({})
            cut, _ = _surgery.operate(self.work, coupling, stays, self.example)
            if options.measure == "time":
                done = _latency.share_of_time(self.teacher, cut.model, self.example)
            return _Narrowed(Known([], None), costs.full(coupling), stays, cut, done)
        if self.plain and isinstance(shares, float):
            least = 0.0 if options.configured else _LEAST
            coupling = self.coupling = _as_configured(coupling, self.knobs, self._cost(), shares * self.whole, least)
        known = learn(self.work, coupling, self.batches, options, by_name=isinstance(shares, Mapping))
        if options.measure == "time" and isinstance(shares, float):
            return self._timed(known, shares)
        cost, multiple = self._cost(), options.multiple or 1
        if isinstance(shares, Mapping):
            counts = widths_by_name(coupling, shares, multiple)
        else:
            counts = widths(coupling, known, cost, shares * self.whole, options, multiple)
        return self._cut(known, counts, cost)

    def _cut(self, known: Known, counts: list[int], cost: costs.Cost) -> _Narrowed:
        keep = {at: best(known.scores[at], count) for at, count in enumerate(counts)}
        stays = self.coupling.kept(keep)
        cut, _ = _surgery.operate(self.work, self.coupling, stays, self.example)
        return _Narrowed(known, counts, stays, cut, cost(counts) / self.whole)

    def _timed(self, known: Known, fraction: float) -> _Narrowed:
        cost, liked = _latency.seconds(self.coupling, self.work, self.example)
        now = cost(costs.full(self.coupling))
        if self.gone:
            now /= _latency.share_of_time(self.teacher, self.work, self.example)
        aim, fastest, best = fraction, float("inf"), None
        tried: set[tuple[int, ...]] = set()
        for _ in range(_ROUNDS):
            counts = widths(self.coupling, known, cost, aim * now, self.options, self.options.multiple or liked)
            if tuple(counts) in tried:
                break
            tried.add(tuple(counts))
            found = self._cut(known, counts, cost)
            share = _latency.share_of_time(self.teacher, found.cut.model, self.example)
            if share <= fraction:  # told from a second, longer measurement: the first was lucky if it was chosen for it
                share = _latency.share_of_time(self.teacher, found.cut.model, self.example, repeats=45)
            if share <= fraction and (best is None or share > best.share):
                best = _Narrowed(known, counts, found.stays, found.cut, share)
            if _NEAR * fraction <= share <= fraction:
                break
            fastest = min(fastest, share)
            aim = min(aim * 0.98 * fraction / share, 1.0)
        if best is not None:
            return best
        raise BadInput(
            f"The model cannot be brought to {fraction:.1%} of its time on this machine: the fastest that was tried "
            f"takes {fastest:.1%}. Ask for a larger fraction, exclude less, or give a larger batch as the example."
        )

    def finished(self, found: _Narrowed) -> Removal:
        """Solve on the data, take out the places of blocks, bring the configuration up to date, and report."""
        small, coupling = found.cut.model, self.coupling
        if self.batches and self.options.recover:
            _recovered(small, self.teacher, coupling, found.stays, self.batches)
        modes = {name: module.training for name, module in self.model.named_modules()}
        for name, module in small.named_modules():
            module.training = modes[name]
        expected = outputs_of(small, self.example) if self.gone else []
        _depth.compact(small)
        if self.gone:
            _surgery.require_equal(small, self.example, expected)
        plain = configured(small) and update_config(small, coupling, self.knobs, found.counts)
        if configured(small) and not plain:
            warnings.warn(
                f"The configuration {type(small.config).__name__} cannot say the new sizes, so from_pretrained would "
                "not read this model: keep it with prunus.structure.save and prunus.structure.load.",
                stacklevel=3,
            )
        idle = _surgery.never_run(self.work, coupling, found.counts)
        if idle:
            warnings.warn(
                f"The example does not run {listing(idle)}: what it reads or gives may be narrower now, and where the "
                "model's code runs it the smaller model may fail. Give an example that runs it, or exclude its "
                "neighbours.",
                stacklevel=3,
            )
        rows = [GroupRow(each.name, "block", 1, 0, each.change) for each in self.gone]
        damage = shares_of_damage(found.known, found.counts)
        rows += [
            GroupRow(group.name, group.kind, len(group), count, share)
            for group, count, share in zip(coupling.groups, found.counts, damage)
        ]
        masks = _surgery.masks_of(self.work, coupling, found.stays)
        return Removal(
            self.model, coupling, found.stays, self.example, masks, tuple(rows), found.share, tuple(coupling.fixed),
            plain, tuple(each.name for each in self.gone), _small=small,
        )  # fmt: skip


def _as_configured(coupling: Coupling, knobs: list[Knob], cost: costs.Cost, target: float, least: float) -> Coupling:
    """Only what the configuration can say is narrowed, where that is enough."""
    fine = [knob for knob in knobs if not least or knob.step * 8 <= len(knob.groups[0])]  # else too much would leave
    sayable = {id(group) for knob in fine for group in knob.groups}
    others = {at for at, group in enumerate(coupling.groups) if id(group) not in sayable}
    smallest = [
        len(group) if at in others else max(coupling.step(at), int(len(group) * least))
        for at, group in enumerate(coupling.groups)
    ]
    if least and cost(smallest) > target:
        coupling.grains.clear()
        return coupling
    return coupling.without(
        dict.fromkeys(others, "the configuration, which cannot say its size (per_layer=True lets it leave)")
    )


def _recovered(small: nn.Module, model: nn.Module, coupling: Coupling, stays: Array, batches: list[Batch]) -> None:
    """Solve the smaller model's layers on the data, in place; what does not bring it nearer is undone."""
    flags = [(module, module.training) for module in small.modules()]
    small.eval()
    try:
        judged = [first_rows(batch, batch.size) for batch in batches]
        wanted = answers(model, judged)
        before, old = copy.deepcopy(small.state_dict()), distance(small, wanted, judged)
        solve(small, model, coupling, stays, solvable(small, coupling), batches[0])
        recalibrate(small, wanted, judged)
        if not distance(small, wanted, judged) < old:
            small.load_state_dict(before)
            recalibrate(small, wanted, judged)
    finally:
        for module, flag in flags:
            module.training = flag


def shrink(
    model: nn.Module,
    fraction: float | Mapping[str, float],
    example: Any,
    *,
    data: Any = None,
    score: str | None = None,
    measure: str = "multiply-adds",
    exclude: Iterable[str] = (),
    **options: Any,
) -> nn.Module:
    """A smaller ordinary network: channels, heads and neurons leave with everything that reads them.

    What belongs together is read from the operators that run on the example, so that residual sums, concatenations,
    grouped convolutions, norms and attention are understood whatever the modules are called. Before it is returned, the
    smaller model is run and compared with the original under the same choice as masks.

    Args:
        model: Any module; it is not touched. DataParallel, DistributedDataParallel and torch.compile wrappers are taken
            off.
        fraction: The share of the measure that stays, between 0 and 1; or {glob: share} of the units of named groups.
        example: What the model is called with: a tensor, a tuple, or a dictionary by name. One or two rows are enough.
        data: A data set or batches. With it the default score is "reconstruction", the default allocation "damage", and
            the layers that stay are solved for, so that the outputs on the data stay.
        score: "magnitude", "random", "taylor" or "reconstruction": which units of a group stay.
        measure: What the fraction is a fraction of: "multiply-adds", "parameters", or "time": seconds of one call with
            the example, measured on this machine.
        exclude: Names and globs of layers whose own outputs stay.
        options: `allocation`: "uniform", "global" or "damage"; `embeddings`: names and globs of embeddings whose
            columns may leave; `exact=False`: also narrow what layer norms see, which zeros cannot imitate;
            `depth=True`: whole residual blocks leave first, those whose absence changes the outputs least; `multiple`:
            widths are multiples of this; `samples`: rows of data that are looked at; `recover=False`: leave the weights
            as they are; `per_layer=True`: what the configuration of a Hugging Face model cannot say may leave as well;
            `loss` for "taylor"; `seed`. All of them are fields of `prunus.structure.Options`.

    Returns:
        A model of the same class with the same keys.

    Raises:
        BadInput: The fraction cannot be reached, the model cannot be read, or names match nothing.

    Example:
        >>> import torch, prunus
        >>> model = prunus.models.make("resnet20", seed=0).eval()
        >>> small = prunus.shrink(model, 0.5, example=torch.zeros(1, 3, 32, 32))
        >>> small(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
        >>> small.layer1[0].conv1
        Conv2d(11, 11, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """
    return find_removal(
        model, fraction, example=example, data=data, score=score, measure=measure, exclude=exclude, **options
    ).apply()


def _copied(model: nn.Module) -> nn.Module:
    lazy = [name for name, value in model.named_parameters() if isinstance(value, UninitializedParameter)]
    if lazy:
        raise BadInput(f"{lazy[0]} has no size yet: call the model once on an input, then shrink it.")
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise BadInput(
            f"The model cannot be copied ({first_line(error).rstrip('.')}); take off what computes its weights, as "
            "torch.nn.utils.remove_weight_norm does, or what it holds that is no tensor."
        ) from None


def _nothing(coupling: Coupling) -> str:
    blocked = "; ".join(f"{each.name} ({each.reason})" for each in coupling.fixed[:4])
    return (
        "There is nothing to remove from this model: every layer is excluded or fixed"
        + (f", for instance {blocked}." if blocked else ".")
        + " Exclude less, or name the embeddings that may leave."
    )


def _without_failing(model: nn.Module, coupling: Coupling, example: Example, error: BadInput) -> Coupling:
    """Groups whose removal makes the model's code fail are moved to the fixed ones, family by family."""
    families: dict[str, list[int]] = {}
    for at, group in enumerate(coupling.groups):
        families.setdefault(re.sub(r"\d+", "*", group.name) + group.kind, []).append(at)
    bad: dict[int, str] = {}
    for period in (None, 2):  # the first unit leaves, or every second
        for members in families.values():
            keep = {
                at: np.arange(len(coupling.groups[at])) % (period or len(coupling.groups[at])) > 0 for at in members
            }
            try:
                _surgery.operate(model, coupling, coupling.kept(keep), example)
            except BadInput as problem:
                bad.update({at: str(problem).partition(": ")[2].rstrip(".") for at in members})
        if bad:
            return coupling.without(bad)
    raise error

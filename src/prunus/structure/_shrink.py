"""`shrink` and `find_removal`: which units leave, and the smaller model."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from torch import Tensor, nn

from prunus.adapters import Batch, batches
from prunus.contract import Masks
from prunus.errors import BadInput, UnknownName
from prunus.graph import read
from prunus.layers import listing, matches
from prunus.structure import _surgery, costs
from prunus.structure._call import Example, example_for
from prunus.structure._config import configured, tie_layers, update_config
from prunus.structure._damage import damages, study
from prunus.structure._features import solvable
from prunus.structure._labels import Array
from prunus.structure._recover import answers, distance, joined, recalibrate, solve
from prunus.structure._walk import walk
from prunus.structure.allocations import ALLOCATIONS, best, equalised, least_damage
from prunus.structure.groups import Coupling, FixedLayer, find_groups
from prunus.structure.scores import SCORES, Seen

MEASURES = ("parameters", "multiply-adds")


@dataclass(frozen=True)
class GroupRow:
    """One group of a removal.

    Attributes:
        name: The layer that makes the units first.
        kind: What they are: "neurons", "channels", "groups" (of channels), "heads" or "units" (of recurrent layers).
        before: How many units the group had.
        after: How many it keeps.
        damage: Its share of the whole damage, where the allocation measured it.

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
        model: The original model, as it was given.
        coupling: The groups of units the choice was made among.
        stays: For every unit of the model, whether it stays.
        example: What the model is called with.
        masks: The same choice as zeros: rows and columns of what leaves.
        rows: One line for each group: name, kind, before, after, damage.
        share: What is left of the measure, at most the fraction asked for.
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
    _cut: _surgery.Cut = field(repr=False)

    def apply(self) -> nn.Module:
        """The smaller model: of the same class, with the same keys; checked against the masked original."""
        return self._cut.model


@dataclass(frozen=True, eq=False)
class Options:
    """How `shrink` chooses: its arguments, with their defaults.

    Attributes:
        score: "magnitude", "random", "taylor" or "reconstruction"; None takes "reconstruction" with data and
            "magnitude" without.
        measure: "multiply-adds" or "parameters": what the fraction is a fraction of.
        allocation: "uniform", "global" or "damage"; None takes "damage" with data, else "uniform".
        exclude: Names and globs of layers whose own outputs stay.
        embeddings: Names and globs of embeddings whose columns may leave.
        exact: False also narrows what layer norms see, which zeros cannot imitate.
        multiple: Widths are multiples of this.
        samples: Rows of data that are looked at.
        recover: Solve for the layers that stay, so that the outputs on the data stay.
        per_layer: Alike layers of a Hugging Face model may differ, which its configuration cannot say.
        loss: Loss of (outputs, labels) for "taylor".
        seed: Seed of every random choice.

    Example:
        >>> options = prunus.structure.Options(multiple=8)
        >>> options.measure, options.multiple
        ('multiply-adds', 8)
    """

    score: str | None = None
    measure: str = "multiply-adds"
    allocation: str | None = None
    exclude: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    exact: bool = True
    multiple: int = 1
    samples: int = 512
    recover: bool = True
    per_layer: bool = False
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    seed: int = 0


def find_removal(
    model: nn.Module, fraction: float | Mapping[str, float], *, example: Any, data: Any = None, **options: Any
) -> Removal:
    """Choose the units that leave, and make the smaller model; `model` is not touched.

    Args:
        model: Any module.
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
    wanted = _options(options)
    shares = _check(fraction, wanted)
    batches = _batches(data, wanted)
    work = copy.deepcopy(model).eval()
    given = example_for(work, example)
    seen = walk(read(work, given.whole, dynamic_batch=False), exact=wanted.exact)
    coupling = find_groups(seen, work, named=wanted.embeddings, exclude=wanted.exclude)
    if configured(work) and not wanted.per_layer:
        tie_layers(coupling)
    while True:
        if not coupling.groups:
            raise BadInput(_nothing(coupling))
        chosen = _choose(work, coupling, shares, batches, wanted)
        stays = coupling.kept({at: best(chosen.scores[at], count) for at, count in enumerate(chosen.counts)})
        try:
            cut, _ = _surgery.operate(model, coupling, stays, given)
            break
        except BadInput as error:
            coupling = _without_failing(work, coupling, given, error)
    plain = configured(cut.model) and update_config(cut.model, coupling, chosen.counts)
    if batches and wanted.recover:
        _recovered(cut.model, work, coupling, stays, batches)
    rows = tuple(
        GroupRow(group.name, group.kind, len(group), count, damage)
        for group, count, damage in zip(coupling.groups, chosen.counts, chosen.damage)
    )
    masks = _surgery.masks_of(model, coupling, stays)
    return Removal(model, coupling, stays, given, masks, rows, chosen.share, tuple(coupling.fixed), plain, cut)


@dataclass(frozen=True, eq=False)
class _Choice:
    scores: list[Array]
    counts: list[int]
    damage: list[float | None]
    share: float


def _choose(
    model: nn.Module,
    coupling: Coupling,
    shares: float | Mapping[str, float],
    batches: list[Batch],
    options: Options,
) -> _Choice:
    """Scores and widths."""
    cost = costs.parameters(coupling, model) if options.measure == "parameters" else costs.multiply_adds(coupling)
    whole = cost(costs.full(coupling))
    score = options.score or ("reconstruction" if batches else "magnitude")
    allocation = options.allocation or ("damage" if batches else "uniform")
    least = [1] * len(coupling.groups)
    harm: list[Array] | None = None
    known = study(model, coupling, batches, options.seed) if batches and score == "reconstruction" else None
    if known is not None:
        scores = [each.scores for each in known.eliminations]
    else:
        scores = SCORES[score](Seen(model, coupling, batches, options.loss, options.seed))
    if isinstance(shares, Mapping):
        counts = _named_counts(coupling, shares, options.multiple)
    elif allocation == "damage":
        known = known or study(model, coupling, batches, options.seed)
        harm = damages(model, coupling, known, batches)
        counts = least_damage(coupling, harm, cost, shares * whole, least, options.multiple)
    else:
        counts = ALLOCATIONS[allocation](coupling, scores, cost, shares * whole, least, options.multiple)
    damage: list[float | None] = [None] * len(counts)
    if harm is not None:
        each = [float(curve[count]) for curve, count in zip(harm, counts)]
        damage = [value / max(sum(each), 1e-300) for value in each]
    return _Choice(scores, counts, damage, cost(counts) / whole)


def _named_counts(coupling: Coupling, shares: Mapping[str, float], multiple: int) -> list[int]:
    counts = costs.full(coupling)
    for glob, share in shares.items():
        hit = [at for at, g in enumerate(coupling.groups) if any(matches(maker, glob) for maker in g.makers)]
        if not hit:
            raise BadInput(
                f"The fractions name {glob!r}, which matches no group; there are "
                f"{listing([group.name for group in coupling.groups])}."
            )
        for at in hit:
            wanted = max(1, round(share * len(coupling.groups[at]) / multiple)) * multiple
            counts[at] = min(wanted, len(coupling.groups[at]))
    return equalised(coupling, counts)


def _recovered(small: nn.Module, model: nn.Module, coupling: Coupling, stays: Array, batches: list[Batch]) -> None:
    """Solve the smaller model's layers on the data, in place; what does not bring it nearer is undone."""
    flags = [(module, module.training) for module in small.modules()]
    small.eval()
    try:
        wanted = answers(model, batches)
        before, old = copy.deepcopy(small.state_dict()), distance(small, wanted, batches)
        solve(small, model, coupling, stays, solvable(small, coupling), batches[0])
        recalibrate(small, wanted, batches)
        if not distance(small, wanted, batches) < old:
            small.load_state_dict(before)
            recalibrate(small, wanted, batches)
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
        model: Any module; it is not touched.
        fraction: The share of the measure that stays, between 0 and 1; or {glob: share} of the units of named groups.
        example: What the model is called with: a tensor, a tuple, or a dictionary by name. One or two rows are enough.
        data: A data set or batches. With it the default score is "reconstruction", the default allocation "damage", and
            the layers that stay are solved for, so that the outputs on the data stay.
        score: "magnitude", "random", "taylor" or "reconstruction": which units of a group stay.
        measure: "multiply-adds" or "parameters": what the fraction is a fraction of.
        exclude: Names and globs of layers whose own outputs stay.
        options: `allocation`: "uniform", "global" or "damage"; `embeddings`: names and globs of embeddings whose
            columns may leave; `exact=False`: also narrow what layer norms see, which zeros cannot imitate; `multiple`:
            widths are multiples of this; `samples`: rows of data that are looked at; `recover=False`: leave the weights
            as they are; `per_layer=True`: alike layers of a Hugging Face model may differ, which its
            configuration cannot say; `loss` for "taylor"; `seed`.

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


def _options(given: Mapping[str, Any]) -> Options:
    names = [each.name for each in fields(Options)]
    for name in given:
        if name not in names:
            raise UnknownName("option of shrink", name, names)
    globs = {name: _globs(given[name]) for name in ("exclude", "embeddings") if name in given}
    options = Options(**{**given, **globs})
    if options.score is not None and options.score not in (*SCORES, "reconstruction"):
        raise UnknownName("score", options.score, [*SCORES, "reconstruction"])
    if options.allocation is not None and options.allocation not in ALLOCATIONS:
        raise UnknownName("allocation", options.allocation, ALLOCATIONS)
    if options.measure not in MEASURES:
        raise UnknownName("measure", options.measure, MEASURES)
    if not isinstance(options.multiple, int) or options.multiple < 1:
        raise BadInput(f"multiple is a whole number of at least 1, not {options.multiple!r}.")
    return options


def _batches(data: Any, options: Options) -> list[Batch]:
    """The first rows of the data, as one batch where they fit together."""
    if data is None:
        for name, value in (("score", options.score), ("allocation", options.allocation)):
            if value in ("taylor", "reconstruction", "damage"):
                raise BadInput(f'The {name} {value!r} needs data: give data=, or take "magnitude" and "uniform".')
        return []
    found: list[Batch] = []
    for batch in batches(data, size=min(options.samples, 128), shuffle=True, seed=options.seed):
        found.append(batch)
        if sum(each.size for each in found) >= options.samples:
            break
    return joined(found)


def _check(fraction: object, options: Options) -> float | Mapping[str, float]:
    if isinstance(fraction, Mapping):
        for name, share in fraction.items():
            _check(share, options)
            if not isinstance(name, str):
                raise BadInput(f"Fractions by name need names of layers, not {name!r}.")
        return fraction
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise BadInput(f"The fraction is what stays and must lie between 0 and 1, not {fraction!r}.")
    return float(fraction)


def _globs(names: Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _nothing(coupling: Coupling) -> str:
    blocked = "; ".join(f"{each.name} ({each.reason})" for each in coupling.fixed[:4])
    return (
        "There is nothing to remove from this model: every layer is excluded or fixed"
        + (f", for instance {blocked}." if blocked else ".")
        + " Exclude less, or name the embeddings that may leave."
    )


def _without_failing(model: nn.Module, coupling: Coupling, example: Example, error: BadInput) -> Coupling:
    """Groups whose removal the model's code does not bear are moved to the fixed ones, family by family."""
    families: dict[str, list[int]] = {}
    for at, group in enumerate(coupling.groups):
        families.setdefault(re.sub(r"\d+", "*", group.name) + group.kind, []).append(at)
    bad: dict[int, str] = {}
    for members in families.values():
        keep = {at: np.arange(len(coupling.groups[at])) > 0 for at in members}
        try:
            _surgery.operate(model, coupling, coupling.kept(keep), example)
        except BadInput as problem:
            bad.update({at: str(problem).partition(": ")[2].rstrip(".") for at in members})
    if not bad:
        raise error
    kept = [at for at in range(len(coupling.groups)) if at not in bad]
    where = {old: new for new, old in enumerate(kept)}
    fixed = [FixedLayer(coupling.groups[at].name, len(coupling.groups[at]), reason) for at, reason in bad.items()]
    ties = [[where[at] for at in tie if at in where] for tie in coupling.ties]
    return Coupling(
        coupling.walk,
        coupling.classes,
        coupling.number,
        [coupling.groups[at] for at in kept],
        [*coupling.fixed, *fixed],
        [tie for tie in ties if len(tie) > 1],
    )

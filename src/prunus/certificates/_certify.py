"""`certify`: the best of all methods for two networks on a domain, beside the largest difference an attack found."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from prunus.certificates._attack import AttackSettings, ascend
from prunus.certificates._guard import check_attained, check_reading, with_gradients
from prunus.certificates.bounds.intervals import Ranges, propagate_ranges
from prunus.certificates.bounds.pointwise import Relaxed, bound_relaxation
from prunus.certificates.bounds.products import bound_products
from prunus.certificates.bounds.recursion import OUTWARDS, Norms, Size, lengths, propagate
from prunus.certificates.bounds.rounding import computed_ranges, rounding_terms
from prunus.certificates.certificate import Certificate, CertifiedLayer, hash_model
from prunus.certificates.domains import Ball, Box, Domain, Region, Samples
from prunus.certificates.reading.compressed import is_packed
from prunus.certificates.reading.pair import Pair, check_model, input_shape, read_graph, read_pair
from prunus.certificates.reading.pieces import Affine, Lipschitz
from prunus.certificates.reading.rules import rule_for_module
from prunus.contract import Masks
from prunus.errors import BadInput, UnknownName
from prunus.graph import Graph

METHODS = ("recursion", "products", "intervals", "relaxation")
_ENTRIES = 2**23
"""Entries of all values of a chunk of points together."""


@dataclass(frozen=True)
class CertifyOptions:
    """Finer control of `certify`.

    Attributes:
        methods: Which methods to use.
        seconds: How much time the linear relaxation may take.
        starts: Inputs (n, *shape) from which the attack also climbs, such as the worst data points.
        progress: Called with a sentence before every stage.
        tune: Spend about a second more to tighten the norms of products and the slopes of the relaxation.

    Raises:
        BadInput: No method, or a negative time.
        UnknownName: There is no such method.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> options = prunus.certificates.CertifyOptions(methods=("recursion",))
        >>> prunus.certify(model, prunus.find_masks(model, 0.5), prunus.Ball(1.0), options=options).method
        'recursion'
    """

    methods: tuple[str, ...] = METHODS
    seconds: float = 60.0
    starts: Tensor | None = None
    progress: Callable[[str], None] | None = None
    tune: bool = True

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise UnknownName("certificate method", name, METHODS)
        if not self.methods:
            raise BadInput(f"A certificate needs at least one method: choose among {', '.join(METHODS)}.")
        if not self.seconds >= 0:
            raise BadInput(f"The time for the linear relaxation is {self.seconds} s: it must be 0 or more.")

    def say(self, sentence: str) -> None:
        """Report a stage, where progress was asked for.

        Args:
            sentence: what is being done.
        """
        if self.progress is not None:
            self.progress(sentence)


def certify(
    model: nn.Module,
    pruned: Masks | nn.Module,
    domain: Domain,
    *,
    attack: bool | AttackSettings = True,
    seed: int = 0,
    norm: int | str = 2,
    example: Tensor | None = None,
    options: CertifyOptions | None = None,
) -> Certificate:
    """How far the pruned network can be from the original anywhere in the domain.

    The certificate is about the modules as they run, in their own precision: both are run on points of the domain and
    compared with what was read of them, and nothing is returned where an input was found that exceeds the bound.

    Args:
        model: the original network, in evaluation mode.
        pruned: masks, or the pruned module itself: another copy of the architecture with its own weights, biases and
            batch-norm statistics, such as a fine-tuned or a compressed one.
        domain: a `Ball`, a `Box` or `Samples`.
        attack: also search for a large difference (ledger P-29); the certificate then shows both sides.
        seed: of the attack.
        norm: 2 for the 2-norm of the outputs' difference, "max" for its largest entry.
        example: a tensor (n, *input shape), where neither the domain nor the first layer shows the inputs' shape.
        options: which methods, how much time.

    Returns:
        A `Certificate`: `bound`, `attained`, `outputs` (a bound for every output), `statement`, `save(path)`.

    Raises:
        BadInput: an operator without a rule, networks of different architectures, training mode, a wrong domain.
        RunFailed: a guard failed.

    Example:
        >>> import prunus
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> cert = prunus.certify(model, prunus.find_masks(model, 0.5), prunus.Ball(1.0))
        >>> cert.attained <= cert.bound
        True
    """
    return certified(model, pruned, domain, attack, seed, norm, example, options or CertifyOptions())[0]


@with_gradients
def certified(
    model: nn.Module,
    pruned: Masks | nn.Module,
    domain: Domain,
    attack: bool | AttackSettings,
    seed: int,
    norm: int | str,
    example: Tensor | None,
    options: CertifyOptions,
) -> tuple[Certificate, Combined, Pair]:
    """The certificate, the bounds of all methods at every point, and the networks as they were read."""
    if norm not in (2, "max"):
        raise BadInput(f'The norm of a certificate is 2 or "max", not {norm!r}.')
    begin = time.monotonic()
    original, other = prepared(model, pruned)
    if not isinstance(domain, (Ball, Box, Samples)):
        raise BadInput("The domain must be a prunus.Ball, prunus.Box or prunus.Samples.")
    shape = input_shape(original, domain.shape, example)
    options.say("reading the networks")
    pair = read_pair(original, other, shape, graph=shared_graph(original, pruned, shape))
    pair, region = pair.on(domain.region(shape))
    found = Bounds(pair, options).of(region, norm)
    check_reading(pair, (model, other), region, seed)
    certificate = Certificate(
        bound=found.bound,
        method=found.method,
        methods=found.methods,
        rounding=found.rounding,
        sizes=found.sizes,
        layers=found.layers,
        norm=norm,
        outputs=found.outputs,
        domain=domain,
        hashes=(hash_model(original), hash_model(other)),
        each=found.each,
        logits=not _ends_in_softmax(pair),
        seed=seed,
        notes={"input_shape": list(shape)},
    )
    if attack:
        options.say("searching for a large difference")
        settings = attack if isinstance(attack, AttackSettings) else AttackSettings()
        reached = ascend(pair, region, settings, seed, options.starts, norm)
        check_attained(reached.distance, found.bound)
        certificate = replace(certificate, attained=reached.distance, witness=reached.witness)
    return replace(certificate, seconds=time.monotonic() - begin), found, pair


def prepared(model: nn.Module, pruned: Masks | nn.Module) -> tuple[nn.Module, nn.Module]:
    """Both networks, checked; masks are applied to a copy."""
    if not isinstance(model, nn.Module) or not isinstance(pruned, (Masks, nn.Module)):
        raise BadInput("certify takes a torch module and, second, prunus.Masks or the pruned torch module.")
    check_model(model, "original")
    if isinstance(pruned, Masks):
        return model, pruned.apply_(_copied(model))
    check_model(pruned, "pruned")
    return model, pruned


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError:
        raise BadInput(
            "The network has computed weights (torch.nn.utils.prune or weight_norm) and cannot be copied: make them "
            "permanent with prune.remove or remove_weight_norm before masks are applied, or give the pruned module."
        ) from None


def shared_graph(original: nn.Module, pruned: Masks | nn.Module, shape: tuple[int, ...]) -> Graph | None:
    """One graph for both networks where the pruned one is our own copy: masks change values and nothing else."""
    special = any(is_packed(module) or rule_for_module(module) for module in original.modules())
    if special or not isinstance(pruned, Masks):
        return None
    graph = read_graph(original, shape)
    known = {*dict(original.named_parameters()), *dict(original.named_buffers())}
    # A tensor that is neither parameter nor buffer may share memory with one: the copy is read by itself then.
    loose = any(node.is_state and not known.intersection(node.names) for node in graph.nodes)
    return None if loose else graph


def _ends_in_softmax(pair: Pair) -> bool:
    last = pair.steps[-1].original
    return isinstance(last, Lipschitz) and last.kind == "softmax"


@dataclass(frozen=True, eq=False)
class Spread:
    """One number for each point (points,): after tightening, and before it, as a run without time would give it."""

    found: Tensor
    untightened: Tensor

    def clean(self) -> Spread:
        """The same with infinity for what is not a number."""
        return Spread(*(torch.where(torch.isnan(part), math.inf, part) for part in (self.found, self.untightened)))


@dataclass(frozen=True, eq=False)
class Combined:
    """The best bounds of all methods together.

    The last three fields are `rounding`, `sizes` and `layers` at every point of the region.
    """

    bound: float
    method: str
    methods: Mapping[str, float]
    rounding: float
    sizes: float
    layers: tuple[CertifiedLayer, ...]
    each: tuple[float, ...]
    outputs: tuple[float, ...]
    rounding_by_point: Spread
    sizes_by_point: Spread
    layers_by_point: Callable[[int], tuple[CertifiedLayer, ...]]


def _measured(single: Tensor, norm: int | str) -> Tensor:
    """Bounds by output (points, outputs) in one number for each point."""
    return (lengths(single) if norm == 2 else single.amax(1)) * OUTWARDS


def _output_sizes(ranges: Sequence[Ranges]) -> Tensor:
    last = ranges[-1]
    return (lengths(last.original.magnitude) + lengths(last.pruned.magnitude)) * OUTWARDS


class Bounds:
    """All methods on one pair of networks; norms are computed once and serve every region.

    Attributes:
        pair: Both networks, from `read_pair`.
        options: Which methods, how much time.
        norms: The norms of the layers, computed when they are asked for.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> pruned = prunus.find_masks(model, 0.5).apply_(prunus.models.make("fc:8-16-4", seed=0).eval())
        >>> bounds = prunus.certificates.Bounds(prunus.certificates.read_pair(model, pruned, (8,)))
        >>> small, large = (bounds.of(prunus.Ball(radius).region((8,))).bound for radius in (0.5, 1.0))
        >>> small < large
        True
    """

    def __init__(self, pair: Pair, options: CertifyOptions | None = None) -> None:
        self.pair = pair
        self.options = options or CertifyOptions()
        self.norms = Norms(pair)

    def of(self, region: Region, norm: int | str = 2) -> Combined:
        """The best bounds of all methods on one region, in the given norm.

        Args:
            region: the inputs, as `prunus.Ball(...).region(shape)` gives them.
            norm: 2, or "max" for the largest entry.

        Returns:
            The bound of every method, the best one, and what they are made of.
        """
        entries = math.prod(self.pair.input_shape) + sum(math.prod(step.shape) for step in self.pair.steps)
        chunk = max(1, _ENTRIES // entries)
        columns: dict[str, list[Tensor]] = {}
        rounding, sizes, shares, outputs, loose = [], [], [], [], []
        deadline = time.monotonic() + self.options.seconds
        with torch.no_grad():
            for start in range(0, region.points, chunk):
                part = region.part(start, min(start + chunk, region.points))
                last = deadline - (deadline - time.monotonic()) * (1 - part.points / (region.points - start))
                bounds, values, drift, own, single, untightened = self._chunk(part, last, norm)
                for name, column in bounds.items():
                    columns.setdefault(name, []).append(column)
                rounding.append(drift)
                sizes.append(own)
                shares.append(values[-1].shares)
                outputs.append(single)
                loose.append(untightened)
        joined = {name: torch.cat(parts) for name, parts in columns.items()}
        before = torch.cat(loose, dim=1)
        rounds, owns = Spread(torch.cat(rounding), before[0]), Spread(torch.cat(sizes), before[1])
        return self._decide(joined, rounds.clean(), owns.clean(), torch.cat(shares, dim=1), torch.cat(outputs))

    def _chunk(
        self, region: Region, deadline: float, norm: int | str = 2
    ) -> tuple[dict[str, Tensor], list[Size], Tensor, Tensor, Tensor, Tensor]:
        """Bounds by method with rounding in them, sizes of all values, rounding, output sizes, bounds by output.

        Last, rounding and output sizes (2, points) before anything was tightened.
        """
        pair, options = self.pair, self.options
        options.say("norms of the layers")
        sizes = propagate(pair, region, self.norms)
        options.say("intervals of the difference")
        ranges = propagate_ranges(pair, region, sizes)
        drift = rounding_terms(pair, self.norms, ranges)
        own = torch.minimum(sizes[-1].both, _output_sizes(ranges))
        loose = torch.stack([drift, own])
        if region.radius == 0.0:
            last = sizes[-1]
            single = (last.centre_pruned - last.centre_original).abs().flatten(1) * OUTWARDS
            return {"exact": _measured(single, norm) + drift}, sizes, drift, own, single + drift[:, None], loose
        bounds: dict[str, Tensor] = {}
        relaxed: Relaxed | None = None
        single = ranges[-1].difference.magnitude.flatten(1)
        if "intervals" in options.methods:
            bounds["intervals"] = _measured(single, norm)
        if "relaxation" in options.methods and options.seconds > 0:
            options.say("linear relaxation")

            def tell(point: int, tightened: Sequence[Ranges]) -> None:
                """Lower the rounding and the output sizes of a point to what its tightened ranges allow."""
                here = rounding_terms(pair, self.norms, tightened)
                drift[point] = torch.minimum(drift[point], here[0])
                own[point] = torch.minimum(own[point], _output_sizes(tightened)[0])

            computed = computed_ranges(pair, region, self.norms, ranges)
            relaxed = bound_relaxation(pair, region, ranges, computed, deadline, tell, options.tune, norm)
        if "recursion" in options.methods:
            bounds["recursion"] = sizes[-1].error * OUTWARDS
        if "products" in options.methods:
            self._products(region, sizes, ranges, bounds)
        # Bounds on exact values get the rounding added; the relaxation has counted it already, entry by entry.
        bounds = {name: column + drift for name, column in bounds.items()}
        single, rounding = single + drift[:, None], drift
        if relaxed is not None:
            mine = torch.where(torch.isinf(relaxed.rounding), relaxed.bounds + drift[:, None], relaxed.bounds)
            bounds["relaxation"] = torch.minimum(_measured(mine, norm), relaxed.lengths)
            single = torch.minimum(single, mine)
            share = _measured(relaxed.rounding, norm)
            wins = bounds["relaxation"] <= torch.stack(list(bounds.values())).amin(0)
            rounding = torch.where(wins & torch.isfinite(share), torch.minimum(share, drift), drift)
        least = torch.stack(list(bounds.values())).amin(0) if bounds else single.new_full((region.points,), math.inf)
        return bounds, sizes, rounding, own, torch.minimum(single, least[:, None]), loose

    def _products(self, region: Region, sizes: list[Size], ranges: list[Ranges], bounds: dict[str, Tensor]) -> None:
        self.options.say("norms of products")
        found = bound_products(self.pair, region, sizes, ranges, self.options.tune)
        if found is not None:
            bounds["products"] = found

    def _decide(
        self, bounds: dict[str, Tensor], rounding: Spread, sizes: Spread, shares: Tensor, outputs: Tensor
    ) -> Combined:
        if not bounds:
            raise BadInput("None of the chosen methods applies to this network: add the method 'recursion'.")
        names = list(bounds)
        table = torch.stack([bounds[name] for name in names])
        table = torch.where(torch.isnan(table), torch.full_like(table, math.inf), table)
        outputs = torch.where(torch.isnan(outputs), torch.full_like(outputs, math.inf), outputs)
        each, winner = table.min(0)
        worst = int(each.argmax())
        return Combined(
            bound=float(each[worst]),
            method=names[int(winner[worst])],
            methods={name: float(row.max()) for name, row in zip(names, table)},
            rounding=float(rounding.found[worst]),
            sizes=float(sizes.found[worst]),
            layers=self.layers(shares[:, worst]),
            each=tuple(each.tolist()),
            outputs=tuple(outputs.amax(0).tolist()),
            rounding_by_point=rounding,
            sizes_by_point=sizes,
            layers_by_point=lambda point: self.layers(shares[:, point]),
        )

    def layers(self, shares: Tensor) -> tuple[CertifiedLayer, ...]:
        """The linear layers, with the shares (steps,) of the error at one point.

        Args:
            shares: the part of each step in the error, as the recursion gives it.

        Returns:
            A row for each layer with a weight.
        """
        total = float(shares.sum())
        rows = []
        for number, step in enumerate(self.pair.steps):
            if isinstance(step.original, Affine) and step.original.weight is not None:
                norm = self.norms[number]
                share = float(shares[number]) / total if total > 0 else 0.0
                kind = step.original.kind
                rows.append(CertifiedLayer(step.name, kind, norm.original, norm.pruned, norm.removed, share))
        return tuple(rows)

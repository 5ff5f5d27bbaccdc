"""`certify`: the best of all methods for two networks on a domain, with the other side attached."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.certificates._attack import AttackSettings, ascend
from prunus.certificates.certificate import Certificate, CertifiedLayer, hash_model
from prunus.certificates.domains import Ball, Box, Domain, Region, Samples
from prunus.certificates.graph import Pair, check_model, input_shape, read_pair
from prunus.certificates.intervals import Ranges, error_of, propagate_ranges
from prunus.certificates.pieces import Affine, Lipschitz
from prunus.certificates.products import bound_products
from prunus.certificates.relaxation import bound_relaxation
from prunus.certificates.rounding import rounding_terms
from prunus.certificates.sizes import OUTWARDS, Norms, Size, lengths, propagate
from prunus.contract import Masks
from prunus.errors import BadFile, BadInput, UnknownName

METHODS = ("recursion", "products", "intervals", "relaxation")
_ENTRIES = 2**23
"""Entries of all values of a chunk of points together."""


@dataclass(frozen=True)
class CertifyOptions:
    """Finer control: which methods, how many seconds for the linear relaxation, extra starts, a progress callback.

    `starts` are inputs (n, *shape) from which the attack also climbs, such as the worst data points. `progress` is
    called with a sentence before every stage. `tune` spends about a second more to tighten the norms of products.
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
        if self.progress is not None:
            self.progress(sentence)


def certify(
    model: nn.Module,
    pruned: Masks | nn.Module,
    domain: Domain,
    *,
    attack: bool | AttackSettings = True,
    seed: int = 0,
    example: Tensor | None = None,
    options: CertifyOptions | None = None,
) -> Certificate:
    """How far the pruned network can be from the original anywhere in the domain, in the 2-norm of the outputs.

    pruned    masks, or the pruned module itself: another copy of the architecture with its own weights, biases and
              batch-norm statistics, such as a fine-tuned or a compressed one
    domain    `Ball`, `Box` or `Samples`
    attack    also search for a large difference (ledger P-29); the certificate then shows both sides
    example   a tensor (n, *input shape), where neither the domain nor the first layer shows the inputs' shape
    """
    options = options or CertifyOptions()
    begin = time.monotonic()
    original, other = prepared(model, pruned)
    if not isinstance(domain, (Ball, Box, Samples)):
        raise BadInput("The domain must be a prunus.Ball, prunus.Box or prunus.Samples.")
    shape = input_shape(original, domain.shape, example)
    options.say("reading the networks")
    pair = read_pair(original, other, shape)
    region = domain.region(shape)
    found = Bounds(pair, options).of(region)
    certificate = Certificate(
        bound=found.bound,
        method=found.method,
        methods=found.methods,
        rounding=found.rounding,
        sizes=found.sizes,
        layers=found.layers,
        domain=domain,
        hashes=(hash_model(original), hash_model(other)),
        each=found.each,
        logits=not _ends_in_softmax(pair),
        seed=seed,
        notes={"input_shape": list(shape)},
    )
    if attack:
        options.say("climbing to a large difference")
        settings = attack if isinstance(attack, AttackSettings) else AttackSettings()
        reached = ascend(pair, region, settings, seed, options.starts)
        certificate = replace(certificate, attained=reached.distance, witness=reached.witness)
    return replace(certificate, seconds=time.monotonic() - begin)


def prepared(model: nn.Module, pruned: Masks | nn.Module) -> tuple[nn.Module, nn.Module]:
    """Both networks, checked; masks are applied to a copy."""
    if not isinstance(model, nn.Module) or not isinstance(pruned, (Masks, nn.Module)):
        raise BadInput("certify takes a torch module and, second, prunus.Masks or the pruned torch module.")
    check_model(model, "original")
    if isinstance(pruned, Masks):
        return model, pruned.apply_(copy.deepcopy(model))
    check_model(pruned, "pruned")
    return model, pruned


def _ends_in_softmax(pair: Pair) -> bool:
    last = pair.steps[-1].original
    return isinstance(last, Lipschitz) and last.kind == "softmax"


@dataclass(frozen=True)
class Found:
    """What the methods say together."""

    bound: float
    method: str
    methods: Mapping[str, float]
    rounding: float
    sizes: float
    layers: tuple[CertifiedLayer, ...]
    each: tuple[float, ...]


def _output_sizes(ranges: Sequence[Ranges]) -> Tensor:
    last = ranges[-1]
    return (lengths(last.original.magnitude) + lengths(last.pruned.magnitude)) * OUTWARDS


class Bounds:
    """All methods on one pair of networks; norms are computed once and serve every region."""

    def __init__(self, pair: Pair, options: CertifyOptions | None = None) -> None:
        self.pair = pair
        self.options = options or CertifyOptions()
        self.norms = Norms(pair)

    def of(self, region: Region) -> Found:
        entries = math.prod(self.pair.input_shape) + sum(math.prod(step.shape) for step in self.pair.steps)
        chunk = max(1, _ENTRIES // entries)
        columns: dict[str, list[Tensor]] = {}
        rounding, sizes, shares = [], [], []
        deadline = time.monotonic() + self.options.seconds
        with torch.no_grad():
            for start in range(0, region.points, chunk):
                part = region.part(start, min(start + chunk, region.points))
                last = deadline - (deadline - time.monotonic()) * (1 - part.points / (region.points - start))
                bounds, values, drift, own = self._chunk(part, last)
                for name, column in bounds.items():
                    columns.setdefault(name, []).append(column)
                rounding.append(drift)
                sizes.append(own)
                shares.append(values[-1].shares)
        joined = {name: torch.cat(parts) for name, parts in columns.items()}
        return self._decide(joined, torch.cat(rounding), torch.cat(sizes), torch.cat(shares, dim=1))

    def _chunk(self, region: Region, deadline: float) -> tuple[dict[str, Tensor], list[Size], Tensor, Tensor]:
        """Bounds by method, sizes of all values, rounding, and the sum of the two networks' own output sizes."""
        pair, options = self.pair, self.options
        options.say("norms of the layers")
        sizes = propagate(pair, region, self.norms)
        options.say("intervals of the difference")
        ranges = propagate_ranges(pair, region, sizes)
        magnitudes = [(value.original.magnitude, value.pruned.magnitude) for value in ranges]
        drift = rounding_terms(pair, self.norms, magnitudes)
        own = torch.minimum(sizes[-1].both, _output_sizes(ranges))
        if region.radius == 0.0:
            last = sizes[-1]
            exact = lengths(last.centre_pruned - last.centre_original) * OUTWARDS
            return {"exact": exact}, sizes, drift, own
        bounds: dict[str, Tensor] = {}
        if "recursion" in options.methods:
            bounds["recursion"] = sizes[-1].error * OUTWARDS
        if "intervals" in options.methods:
            bounds["intervals"] = error_of(ranges[-1])
        if "products" in options.methods:
            self._products(region, sizes, ranges, bounds)
        if "relaxation" in options.methods and options.seconds > 0:
            options.say("linear relaxation")

            def tell(point: int, tightened: Sequence[Ranges]) -> None:
                """Tighter values mean smaller roundings, and smaller sizes to beat."""
                sharper = [(value.original.magnitude, value.pruned.magnitude) for value in tightened]
                here = rounding_terms(pair, self.norms, sharper)
                drift[point] = torch.minimum(drift[point], here[0])
                own[point] = torch.minimum(own[point], _output_sizes(tightened)[0])

            bounds["relaxation"] = bound_relaxation(pair, region, sizes, ranges, deadline, tell)
        return bounds, sizes, drift, own

    def _products(self, region: Region, sizes: list[Size], ranges: list[Ranges], bounds: dict[str, Tensor]) -> None:
        self.options.say("norms of products")
        found = bound_products(self.pair, region, sizes, ranges, self.options.tune)
        if found is not None:
            bounds["products"] = found

    def _decide(self, bounds: dict[str, Tensor], rounding: Tensor, sizes: Tensor, shares: Tensor) -> Found:
        if not bounds:
            raise BadInput("None of the chosen methods applies to this network: add the method 'recursion'.")
        names = list(bounds)
        table = torch.stack([torch.nan_to_num(bounds[name], nan=math.inf) for name in names])
        best, winner = table.min(0)
        each = best + rounding
        worst = int(each.argmax())
        return Found(
            bound=float(each[worst]),
            method=names[int(winner[worst])],
            methods={name: float((row + rounding).max()) for name, row in zip(names, table)},
            rounding=float(rounding[worst]),
            sizes=float(sizes[worst]),
            layers=self._layers(shares[:, worst]),
            each=tuple(each.tolist()),
        )

    def _layers(self, shares: Tensor) -> tuple[CertifiedLayer, ...]:
        total = float(shares.sum())
        rows = []
        for number, step in enumerate(self.pair.steps):
            if isinstance(step.original, Affine) and step.original.weight is not None:
                norm = self.norms[number]
                share = float(shares[number]) / total if total > 0 else 0.0
                kind = step.original.kind
                rows.append(CertifiedLayer(step.name, kind, norm.original, norm.pruned, norm.removed, share))
        return tuple(rows)


def verify(
    path: str | os.PathLike[str], model: nn.Module, pruned: Masks | nn.Module, *, options: CertifyOptions | None = None
) -> Certificate:
    """Read a certificate, check that it speaks of these networks, compute it again, and return the fresh one.

    The file is refused where a hash differs or where its bound is smaller than the one found now.
    """
    kept = Certificate.load(path)
    original, other = prepared(model, pruned)
    for which, network, expected in (("original", original, kept.hashes[0]), ("pruned", other, kept.hashes[1])):
        if hash_model(network) != expected:
            raise BadFile(f"The certificate {path} belongs to another {which} network: its hash does not match.")
    methods = tuple(name for name in METHODS if name in kept.methods) or METHODS
    seconds = options.seconds if options else max(60.0, 2 * kept.seconds)
    chosen = replace(options or CertifyOptions(), methods=methods, seconds=seconds)
    example = _example(kept)
    fresh = certify(original, other, kept.domain, seed=kept.seed, example=example, options=chosen)
    if kept.bound < fresh.bound * (1 - 1e-6):
        raise BadFile(
            f"The certificate {path} claims {kept.bound:.6g}, but these networks only allow {fresh.bound:.6g}."
        )
    return fresh


def _example(kept: Certificate) -> Tensor | None:
    shape: Any = kept.notes.get("input_shape")
    return torch.zeros(1, *shape) if shape and kept.domain.shape is None else None

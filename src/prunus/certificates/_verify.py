"""`verify`: a certificate's file beside the same certificate computed again, field by field."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.certificates._certify import METHODS, CertifyOptions, Combined, certified, prepared
from prunus.certificates.certificate import Certificate, hash_model
from prunus.certificates.reading.pair import Pair
from prunus.contract import Masks
from prunus.errors import BadFile

_CLOSE = 1e-6
"""Relative difference that another processor or library may make."""


def verify(
    path: str | os.PathLike[str], model: nn.Module, pruned: Masks | nn.Module, *, options: CertifyOptions | None = None
) -> Certificate:
    """Read a certificate, check that it is about these networks, and compute it again.

    Args:
        path: The file that `Certificate.save` wrote.
        model: The original network, in evaluation mode.
        pruned: Masks, or the pruned module itself.
        options: How much time; the methods are the certificate's own. Left out, it takes as long as it needs.

    Returns:
        The fresh certificate.

    Raises:
        BadFile: The file is damaged, belongs to other networks, claims a smaller bound than the one found now, or
            shows anything else that these networks do not.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> masks = prunus.find_masks(model, 0.5)
        >>> path = prunus.certify(model, masks, prunus.Ball(1.0)).save("certificate.json")
        >>> prunus.certificates.verify(path, model, masks).bound > 0
        True
    """
    kept = Certificate.load(path)
    original, other = prepared(model, pruned)
    for which, network, expected in (("original", original, kept.hashes[0]), ("pruned", other, kept.hashes[1])):
        if hash_model(network) != expected:
            raise BadFile(f"The certificate {path} belongs to another {which} network: its hash does not match.")
    methods = tuple(name for name in METHODS if name in kept.methods) or METHODS
    # A true certificate must not fail for lack of time on a slower or busier machine.
    seconds = options.seconds if options else max(600.0, 10 * kept.seconds)
    chosen = replace(options or CertifyOptions(), methods=methods, seconds=seconds)
    fresh, found, pair = certified(model, pruned, kept.domain, True, kept.seed, kept.norm, _example(kept), chosen)
    compare(path, kept, fresh, found, pair)
    return fresh


def compare(path: str | os.PathLike[str], kept: Certificate, fresh: Certificate, found: Combined, pair: Pair) -> None:
    """Every field of a certificate from a file beside what was computed now; `BadFile` for the first false one."""
    _check_form(path, kept, fresh)
    for what, claimed, allowed in _claims(kept, fresh):
        if claimed < allowed * (1 - _CLOSE):
            raise BadFile(
                f"The certificate {path} claims {claimed:.6g}{what}, but these networks only allow {allowed:.6g}."
            )
    for what, claimed, low, high in _descriptions(kept, found):
        if not low * (1 - _CLOSE) - 1e-12 <= claimed <= high * (1 + _CLOSE) + 1e-12:
            raise BadFile(f"The certificate {path} shows {claimed:.6g} as {what}, and these networks give {high:.6g}.")
    if kept.attained is not None:
        moved = 0.0 if kept.witness is None else _moved(pair, kept)
        if not abs(kept.attained - moved) <= _CLOSE * moved + 1e-12:
            raise BadFile(
                f"The certificate {path} claims an input that moves the output by {kept.attained:.6g}: {moved:.6g}."
            )


def _check_form(path: str | os.PathLike[str], kept: Certificate, fresh: Certificate) -> None:
    """What does not depend on any number: the outputs, points and layers there are, and how the network ends."""
    if len(kept.outputs) not in (0, len(fresh.outputs)) or len(kept.each) not in (0, len(fresh.each)):
        raise BadFile(f"The certificate {path} is about other outputs or points than these networks have.")
    if [(row.name, row.kind) for row in kept.layers] != [(row.name, row.kind) for row in fresh.layers]:
        raise BadFile(f"The certificate {path} is about other layers than these networks have.")
    if kept.logits != fresh.logits:
        raise BadFile(f"The certificate {path} is wrong about whether the networks end in probabilities.")


def _claims(kept: Certificate, fresh: Certificate) -> Iterator[tuple[str, float, float]]:
    """Everything a certificate promises not to be exceeded, beside what is found now."""
    yield "", kept.bound, fresh.bound
    for number, (claimed, found) in enumerate(zip(kept.outputs, fresh.outputs)):
        yield f" for output {number}", claimed, found
    for number, (claimed, found) in enumerate(zip(kept.each, fresh.each)):
        yield f" near point {number}", claimed, found
    for name, claimed in kept.methods.items():
        yield f" by {name}", claimed, fresh.methods.get(name, math.inf)
    for one, two in zip(kept.layers, fresh.layers):
        for claimed, found in (
            (one.norm, two.norm),
            (one.pruned_norm, two.pruned_norm),
            (one.removed_norm, two.removed_norm),
        ):
            yield f" for the norm of {one.name}", claimed, found


def _descriptions(kept: Certificate, found: Combined) -> Iterator[tuple[str, float, float, float]]:
    """What a certificate shows beside its promises, and between which numbers that must lie.

    They belong to the point with the largest bound. Rounding and sizes are smaller the further the relaxation came, so
    a file may show anything from their last to their first value; shares do not depend on time.
    """
    worst = max(range(len(kept.each)), key=kept.each.__getitem__) if kept.each else 0
    for what, claimed, spread in (
        ("rounding", kept.rounding, found.rounding_by_point),
        ("the sum of the networks' largest output norms", kept.sizes, found.sizes_by_point),
    ):
        yield what, claimed, float(spread.found[worst]), float(spread.untightened[worst])
    for one, two in zip(kept.layers, found.layers_by_point(worst)):
        yield f"the share of {one.name}", one.share, two.share, two.share


def _moved(pair: Pair, kept: Certificate) -> float:
    """How far the witness moves the output; nothing where it is outside of the domain."""
    assert kept.witness is not None
    _, region = pair.on(kept.domain.region(tuple(kept.witness.shape)))
    around = kept.witness.double()[None].expand(region.points, *kept.witness.shape)
    nearest = region.project(around, region.centres)
    if float((nearest - around).abs().flatten(1).amax(1).min()) > 1e-6 * (1 + float(around.abs().max())):
        return 0.0
    one, two = pair.outputs(kept.witness.double()[None])
    return float((two - one).norm() if kept.norm == 2 else (two - one).abs().max())


def _example(kept: Certificate) -> Tensor | None:
    shape: Any = kept.notes.get("input_shape")
    return torch.zeros(1, *shape) if shape and kept.domain.shape is None else None

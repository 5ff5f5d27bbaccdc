"""Dense against pruned at several densities and widths: the rows that `prunus tangent` prints (ledger K-21)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import IndexedSamples
from prunus.contract import Masks
from prunus.errors import BadInput
from prunus.pruning import find_masks
from prunus.tangent._angles import density_in
from prunus.tangent._empirical import Effort, empirical
from prunus.tangent._form import NTKForm
from prunus.tangent._spectrum import spectrum
from prunus.tangent.diagnostics import alignment, dead_units, distance, limit_of
from prunus.tangent.regression import regress

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Sample:
    """Training inputs with labels, and test inputs with labels: what kernels are measured on."""

    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor

    @classmethod
    def of(cls, train: Any, test: Any, count: int, test_count: int, seed: int = 0, unit: bool = True) -> Sample:
        """Some inputs of two data sets, each scaled to norm 1 unless `unit` is False."""
        parts: list[Tensor] = []
        for number, (data, size) in enumerate(((train, count), (test, test_count))):
            generator = torch.Generator().manual_seed(seed + number)
            samples = IndexedSamples(data)
            found = samples.take(torch.randperm(len(samples), generator=generator)[:size])
            if not found.inputs.is_floating_point() or found.labels is None or found.labels.is_floating_point():
                raise BadInput("Tangent kernels need inputs of real numbers with class labels, such as images.")
            x = found.inputs.double()
            if unit:
                x /= x.flatten(1).norm(dim=1).clamp(min=1e-300).view(-1, *[1] * (x.dim() - 1))
            parts += [x, found.labels.long()]
        return cls(*parts)


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared: densities, random networks of each kind, and how the masks are found.

    score        of `find_masks`: random is what the theorems cover; under magnitude, snip and others none holds
    prune_input  whether the first layer is pruned too, as the theorems do not
    data         for scores that look at data
    """

    densities: Sequence[float] = (1.0, 0.5, 0.1)
    networks: int = 2
    score: str = "random"
    prune_input: bool = False
    data: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        for density in self.densities:
            density_in(density)
        if self.networks < 1:
            raise BadInput(f"networks must be at least 1, got {self.networks}.")


def limit_row(form: NTKForm, sample: Sample) -> Row:
    """The limit on the sample, as one row."""
    kernel, cross = limit_of(form, sample.inputs), limit_of(form, sample.test_inputs, sample.inputs)
    return {"network": "limit", "density": None, **_measured(kernel, cross, sample)}


def compare(
    build: Callable[[int], nn.Module],
    name: str,
    sample: Sample,
    plan: ComparisonPlan,
    advance: Callable[[], Any] = lambda: None,
) -> list[Row]:
    """One row for each density: means over networks `build(seed)`; condition numbers by their median.

    Networks in NTK form are rescaled and compared with their limit; others are taken as they are.
    """
    rows = []
    networks = [build(plan.seed + number) for number in range(plan.networks)]
    first = networks[0]
    for density in plan.densities:
        limit, found = _limit_or_none(first, sample.inputs, density if plan.prune_input else 1.0), []
        for number, network in enumerate(networks):
            masks = _masks(network, density, plan, number)
            double = network.double()
            effort = Effort(progress=False)
            kernel = empirical(double, sample.inputs, masks=masks, effort=effort)
            cross = empirical(double, sample.test_inputs, sample.inputs, masks=masks, effort=effort)
            row = _measured(kernel, cross, sample)
            row["distance"] = None if limit is None else distance(kernel, limit)
            units = dead_units(double, sample.inputs, masks)
            row["dead"] = sum(layer.dead for layer in units) / max(1, sum(layer.units for layer in units))
            found.append(row)
            network.float()
            advance()
        rows.append({"network": name, "density": density, **_averaged(found)})
    return rows


def _limit_or_none(network: nn.Module, x: Tensor, pruned_input: float) -> Tensor | None:
    if not isinstance(network, NTKForm):
        return None
    try:
        return limit_of(network, x, pruned_input=pruned_input)
    except BadInput:  # a chain without a known limit: its kernel can still be looked at
        return None


def _masks(network: nn.Module, density: float, plan: ComparisonPlan, number: int) -> Masks | None:
    if density == 1:
        return None
    weights = [name for name, _ in network.named_parameters() if name.endswith("weight")]
    exclude = () if plan.prune_input else (weights[0],)
    return find_masks(
        network, 1 - density, score=plan.score, exclude=exclude, data=plan.data, seed=plan.seed + 1000 + number
    )


def _measured(kernel: Tensor, cross: Tensor, sample: Sample) -> Row:
    found = spectrum(kernel)
    fitted = regress(kernel, cross, sample.labels)
    return {
        "distance": 0.0,
        "smallest": found.smallest,
        "largest": found.largest,
        "condition": found.condition,
        "effective_rank": found.effective_rank,
        "largest_step": found.largest_step,
        "steps": found.steps(0.01),
        "alignment": alignment(kernel, sample.labels),
        "accuracy": fitted.accuracy(sample.test_labels),
        "dead": 0.0,
        "singular": fitted.note != "",
    }


def _averaged(rows: list[Row]) -> Row:
    averaged: Row = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        if key == "singular":
            averaged[key] = sum(values)
        elif values[0] is None:
            averaged[key] = None
        elif key in ("condition", "steps"):
            averaged[key] = statistics.median(values)
        else:
            averaged[key] = math.fsum(values) / len(values)
    return averaged

"""How large a bank should be: excess of balanced over unstructured pruning (B-0, B-4, B-5, B-6, B-11)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from prunus.errors import BadInput
from prunus.formulas import domain, laws
from prunus.formulas.binding import claim
from prunus.formulas.energy import bank_energy, limit_energy
from prunus.papers.balanced._energies import bank_cost

_LARGEST = 10**9

_ROUNDING = 1e-12  # tolerance


@claim("B-0")
def ideal_time(dense: float, overhead: float, sparsity: float) -> float:
    """B-0: (dense - overhead)(1 - sparsity) + overhead, the line a sparse kernel is measured against."""
    dense = domain.positive("dense", dense)
    overhead = domain.real("overhead", overhead, 0.0, dense)
    sparsity = domain.probability("sparsity", sparsity)
    return (dense - overhead) * (1.0 - sparsity) + overhead


@claim("B-11")
def prune_count(sparsity: float, bank: int) -> dict[str, Any]:
    """B-11: weights pruned in a bank, sparsity times bank rounded half to even, and the sparsity realised."""
    sparsity = domain.probability("sparsity", sparsity)
    bank = domain.whole("bank", bank, 1)
    r = round(sparsity * bank)
    return {"r": r, "realised": r / bank}


@claim("B-4")
def energy_order(rows: int, columns: int, banks: int, r: int, law: str = "normal") -> dict[str, Any]:
    """B-4: share of energy removed from a large layer, a whole matrix and bank by bank, at the same sparsity.

    limit <= unstructured <= balanced always (the level of the threshold shrinks in convex order as the sample
    grows); the printed formulas imply the opposite.
    """
    rows, columns, banks, r, bank = matrix_arguments(rows, columns, banks, r)
    values = {
        "limit": limit_energy(r / bank, law)["energy"],
        "unstructured": bank_energy(rows * columns, r * rows * banks, law),
        "balanced": bank_energy(bank, r, law),
    }
    slack = 1.0 + _ROUNDING
    ordered = values["limit"] <= values["unstructured"] * slack and values["unstructured"] <= values["balanced"] * slack
    return values | {"ordered": ordered}


@claim("B-5a")
def first_order_energy(sparsity: float, bank: int, law: str = "normal") -> dict[str, float]:
    """B-5a: energy removed by a bank to first order: e(s) + s(1-s) Q/(f (bank+1)), Q the threshold, f its density."""
    bank = domain.whole("bank", bank, 1)
    limit, curvature = _limit_and_curvature(sparsity, law)
    excess = curvature / (bank + 1)
    return {"energy": limit + excess, "excess": excess, "relative": excess / limit}


@claim("B-5b")
def smallest_bank_rule(sparsity: float, relative: float, law: str = "normal") -> float:
    """B-5b: bank at which the first-order relative excess equals the allowance; a real number, to be rounded up."""
    relative = domain.positive("relative", relative)
    limit, curvature = _limit_and_curvature(sparsity, law)
    return curvature / (relative * limit) - 1.0


@claim("B-5c")
def smallest_bank(sparsity: float, relative: float, step: int | None = None, law: str = "normal") -> dict[str, Any]:
    """B-5c: smallest bank whose exact relative excess (B-3a) does not pass the allowance.

    Banks are multiples of `step` in which the pruned count is whole. The excess falls along them (B-4), so a
    bisection started at the rule of thumb finds the first.
    """
    relative = domain.positive("relative", relative)
    share = _fraction(sparsity)
    unit = share.denominator if step is None else math.lcm(domain.whole("step", step, 1), share.denominator)

    def excess(count: int) -> float:
        bank = count * unit
        return bank_cost(bank, bank * share.numerator // share.denominator, law)["relative"]

    most = _LARGEST // unit
    high = min(most, max(1, math.ceil(smallest_bank_rule(sparsity, relative, law) / unit)))
    while excess(high) > relative:
        if high == most:
            raise BadInput(
                f"No bank of up to {_LARGEST} weights keeps the relative excess below {relative:.6g} at sparsity "
                f"{sparsity:.6g}: allow at least {excess(most):.3g}."
            )
        high = min(2 * high, most)
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(middle) <= relative else (middle, high)
    return {"bank": high * unit, "relative": excess(high)}


@claim("B-6")
def excess_curve(sparsity: float, bank: int, law: str = "normal") -> dict[str, Any]:
    """B-6: relative excess energy of a bank in percent, at the sparsity r/bank realised after rounding (B-11)."""
    sparsity = domain.probability("sparsity", sparsity, open_low=True, open_high=True)
    bank = domain.whole("bank", bank, 2, _LARGEST)
    r = prune_count(sparsity, bank)["r"]
    if r in (0, bank):
        raise BadInput(
            f"At sparsity {sparsity:.6g} a bank of {bank} loses {'nothing' if r == 0 else 'everything'}: the bank must "
            f"hold at least {math.floor(0.5 / min(sparsity, 1.0 - sparsity)) + 1} weights."
        )
    return {"r": r, "percent": 100.0 * bank_cost(bank, r, law)["relative"]}


def matrix_arguments(rows: int, columns: int, banks: int, r: int) -> tuple[int, int, int, int, int]:
    """Checked (rows, columns, banks, r, bank): banks divide the columns, r weights go from each bank."""
    rows = domain.whole("rows", rows, 1)
    columns = domain.whole("columns", columns, 1)
    banks = domain.whole("banks", banks, 1, columns)
    if columns % banks:
        raise BadInput(f"columns must be a multiple of banks, got {columns} columns in {banks} banks.")
    bank = columns // banks
    return rows, columns, banks, domain.whole("r", r, 1, bank), bank


def _limit_and_curvature(sparsity: float, law: str) -> tuple[float, float]:
    """e(s), and s(1-s) H''(s)/2 with H'' = 2 Q/f: the factor of 1/(bank+1) in the delta method."""
    shape = laws.find(law)
    level = domain.probability("sparsity", sparsity, open_low=True, open_high=True)
    threshold = float(shape.quantile(level))
    density = float(shape.density(threshold))
    return float(shape.energy(threshold)), level * (1.0 - level) * threshold / density


def _fraction(sparsity: float) -> Fraction:
    level = domain.probability("sparsity", sparsity, open_low=True, open_high=True)
    share = Fraction(level).limit_denominator(1024)
    if abs(float(share) - level) > _ROUNDING or share in (0, 1):
        raise BadInput(
            f"sparsity must be a fraction with a denominator of at most 1024, got {level!r}: the nearest is {share}."
        )
    return share

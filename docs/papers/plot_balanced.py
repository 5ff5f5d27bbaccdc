"""Plot of the balanced page: excess energy of a bank over free choice, against the size of the bank."""

from __future__ import annotations

from pathlib import Path

from prunus.charts import Chart, write_charts
from prunus.theory import balanced

BANKS = [2**power for power in range(2, 11)]


def main() -> None:
    """Write excess-energy.svg beside this file."""
    series = {}
    for sparsity in (0.25, 0.5, 0.75, 0.875, 0.9375):
        banks = [bank for bank in BANKS if bank * (1 - sparsity) >= 1]
        series[f"{100 * sparsity:g} % zeros"] = [(n, balanced.excess_curve(sparsity, n)["percent"]) for n in banks]
    rule = [(bank, 100 * balanced.first_order_energy(0.5, bank)["relative"]) for bank in BANKS]
    series["50 %, rule of thumb"] = rule
    chart = Chart(
        "What a bank costs over pruning freely",
        "weights in a bank",
        "excess energy removed (%)",
        series,
        log_x=True,
        log_y=True,
        dashed=("50 %, rule of thumb",),
    )
    write_charts(Path(__file__).with_name("excess-energy.svg"), [chart])


if __name__ == "__main__":
    main()

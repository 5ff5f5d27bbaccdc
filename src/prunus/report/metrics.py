"""How a study's metric is written: accuracies as percent, correlations and perplexities as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from prunus.study.groups import Mean, SeedGroup

NARROW = "\u00a0"
"""A space where no line may break."""


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}{NARROW}%"


@dataclass(frozen=True)
class Metric:
    """One metric: its name in sentences, on axes, and which losses of it count as close to dense."""

    name: str
    axis: str
    percent: bool = False
    lower: bool = False
    digits: int = 3
    close: tuple[float, ...] = (0.01, 0.03, 0.1)

    def show(self, value: float) -> str:
        """91.2 % or 26.4 or 0.825"""
        return percent(value) if self.percent else f"{value:.{self.digits}f}"

    def spread(self, mean: Mean) -> str:
        """91.2 ± 0.3 %"""
        if mean.deviation is None:
            return self.show(mean.value)
        if self.percent:
            return f"{100 * mean.value:.1f}{NARROW}±{NARROW}{100 * mean.deviation:.1f}{NARROW}%"
        return f"{self.show(mean.value)}{NARROW}±{NARROW}{self.show(mean.deviation)}"

    def show_lost(self, lost: float) -> str:
        return f"{100 * lost:z.1f}{NARROW}%" if self.lower else f"{100 * lost:z.1f}" if self.percent else f"{lost:z.3f}"


def metric_of(group: SeedGroup) -> Metric:
    """The metric a group was judged by."""
    name = group.metric
    if name == "accuracy":
        return Metric("accuracy", "test accuracy, %", percent=True)
    if name == "perplexity":
        return Metric("perplexity", "perplexity, lower is better", lower=True, digits=1, close=(0.1, 0.5, 1.0))
    if name == "spearman":
        return Metric("Spearman correlation", "Spearman correlation")
    plain = name.rpartition(":")[2].replace("_", " ")
    return Metric(plain, plain + (", lower is better" if group.lower else ""), lower=group.lower)

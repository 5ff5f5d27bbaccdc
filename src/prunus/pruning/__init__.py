"""Which weights stay: score x pattern x allocation -> Masks."""

from prunus.pruning import allocations, patterns, scores
from prunus.pruning._conformance import check_pattern, check_score
from prunus.pruning._find import find_masks, prune
from prunus.pruning._summary import LayerSummary, summarise

__all__ = [
    "LayerSummary",
    "allocations",
    "check_pattern",
    "check_score",
    "find_masks",
    "patterns",
    "prune",
    "scores",
    "summarise",
]

"""The results of the papers as a checked index: `prunus.theory.claims["B-3"](n=4, r=2)`.

Each paper is an attribute here (`prunus.theory.closeness`, `balanced`, `noisy_topk`, `tangent`, `iterand`) with its
formulas as ordinary functions: numbers in, numbers out.
"""

from prunus.papers import balanced, closeness, iterand, noisy_topk, tangent
from prunus.papers.index import Case, Claim, Claims, claims

__all__ = ["Case", "Claim", "Claims", "balanced", "claims", "closeness", "iterand", "noisy_topk", "tangent"]

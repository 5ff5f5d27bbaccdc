"""What the papers prove: numbers in, numbers out. `prunus.theory.claims` is the index."""

from prunus.theory._index import Case, Claim, Claims, claims

__all__ = ["Case", "Claim", "Claims", "claims"]

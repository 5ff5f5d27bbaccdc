"""A smaller ordinary network: channels, heads and neurons leave with everything that reads them."""

from prunus.structure._shrink import Removal, Row, find_removal, shrink
from prunus.structure.groups import Coupling, Fixed, Group

__all__ = ["Coupling", "Fixed", "Group", "Removal", "Row", "find_removal", "shrink"]

"""`python -m prunus` is `prunus`."""

from __future__ import annotations

from prunus.cli import main

main()

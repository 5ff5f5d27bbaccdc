"""The old place of `tools.evidence`."""

from tools.evidence import cpu, record

__all__ = ["cpu", "record"]

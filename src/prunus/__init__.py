"""Prune neural networks, and know before and after what it costs."""

__version__ = "0.1.0"

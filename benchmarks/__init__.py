"""Ratios against named peers, measured in interleaved runs. `python -m benchmarks [names]` runs them."""

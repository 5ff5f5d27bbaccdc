"""Bounds on the difference of two networks: recursion, products, intervals, relaxation, zonotopes, rounding."""

"""Noisy top-k: what it keeps, what it costs, what it tells. (10 s)"""

import torch

import prunus

gradient = torch.randn(100_000)
mech = prunus.private.NoisyTopK(k=0.01, theta=2.64)
kept = mech.select(gradient)
assert kept.numel() == 1000
assert kept.unique().numel() == 1000
privacy = mech.privacy(d=gradient.numel(), swaps=1)
print(f"{privacy.per_swap:.2f} per swapped index, {privacy.local:.0f} in the worst case")
print(
    "expected squared error",
    mech.expected_error(gradient),
    "measured",
    gradient.square().sum() - gradient[kept].square().sum(),
)
assert prunus.private.NoisyTopK.from_swap_epsilon(k=0.01, epsilon=5.28).theta == 2.64

"""The spectral penalty: twice the sum of the layers' squared spectral norms, by persistent singular vectors.

Added to a loss with a coefficient around 2e-3 it lowers the product of the norms, and with it every certificate, at
no cost in accuracy on small problems (ledger P-26, prototype); the factor two makes that the right size for
certificates by norms of products too. It is an estimate and serves training only.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from prunus.errors import BadInput

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class SpectralPenalty:
    """A callable that returns the differentiable penalty of a model's linear and convolution layers.

    One step of power iteration per call refines a right singular vector per layer; the vectors are the whole state,
    so saving and loading them makes a resumed run equal byte for byte. Kernels count as matrices (out, in * taps).

    Example:
        >>> penalty = prunus.operators.SpectralPenalty(torch.nn.Linear(4, 4))
        >>> penalty().requires_grad
        True
    """

    def __init__(self, model: nn.Module, seed: int = 0) -> None:
        self._weights: dict[str, Tensor] = {}
        for name, module in model.named_modules():
            if isinstance(module, _LAYERS):
                self._weights[f"{name}.weight" if name else "weight"] = module.weight
        if not self._weights:
            raise BadInput("The spectral penalty found no linear or convolution layer in this model.")
        self._vectors: dict[str, Tensor] = {}
        for name, weight in self._weights.items():
            generator = torch.Generator().manual_seed((seed * 1_000_003 + zlib.crc32(name.encode())) % 2**63)
            start = torch.randn(weight[0].numel(), generator=generator, dtype=torch.float32)
            self._vectors[name] = (start / start.norm()).to(weight)
        for _ in range(5):
            self._refine()

    def __call__(self) -> Tensor:
        """The penalty, a scalar on the graph of the weights."""
        lefts = self._refine()
        total: Tensor | None = None
        for name, weight in self._weights.items():
            size = torch.dot(lefts[name], weight.flatten(1) @ self._vectors[name]).square()
            total = size if total is None else total + size.to(total)
        assert total is not None
        return 2.0 * total

    @torch.no_grad()
    def _refine(self) -> dict[str, Tensor]:
        lefts = {}
        for name, weight in self._weights.items():
            matrix = weight.detach().flatten(1)
            vector = self._vectors[name].to(matrix)
            left = nn.functional.normalize(matrix @ vector, dim=0)
            right = matrix.T @ left
            length = torch.linalg.vector_norm(right)
            self._vectors[name] = right / length if length > 0 else vector
            lefts[name] = left
        return lefts

    def state_dict(self) -> dict[str, Tensor]:
        """The singular vectors by parameter name."""
        return {name: vector.clone() for name, vector in self._vectors.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up the vectors of an earlier run of the same model.

        Args:
            state: what `state_dict` gave.

        Raises:
            BadInput: if it belongs to a model with other layers.
        """
        if set(state) != set(self._vectors):
            raise BadInput("The saved spectral penalty belongs to a model with other layers.")
        for name, vector in state.items():
            if vector.shape != self._vectors[name].shape:
                raise BadInput(
                    f"The saved vector of {name} has {vector.numel()} entries, the layer needs another count."
                )
            self._vectors[name] = vector.clone().to(self._vectors[name])


def spectral_penalty(model: nn.Module, steps: int = 10, seed: int = 0) -> Tensor:
    """The penalty once, from fresh vectors refined by `steps` iterations; in a loop keep a `SpectralPenalty`.

    Args:
        model: Any module.
        steps: Steps of power iteration.
        seed: Seed of the first vectors.

    Returns:
        A scalar that can be differentiated.

    Example:
        >>> prunus.operators.spectral_penalty(torch.nn.Linear(4, 4)).dim()
        0
    """
    penalty = SpectralPenalty(model, seed)
    for _ in range(max(0, steps - 5)):
        penalty._refine()
    return penalty()

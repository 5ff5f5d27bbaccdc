"""`Masks`: which weights of a model are kept. The value that every other part of the library takes or returns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.layers import named_parameters, plain_name, plain_names, prunable_weights

if TYPE_CHECKING:
    from prunus._hold import Hold

__all__ = ["LayerRow", "Masks"]


@dataclass(frozen=True)
class LayerRow:
    """One line of `Masks.layers`: how much of one weight tensor is kept.

    Attributes:
        name: Name of the parameter.
        shape: Its shape.
        total: Number of weights in it.
        kept: Number of weights the mask keeps.

    Example:
        >>> from prunus.contract import LayerRow
        >>> LayerRow("fc.weight", (2, 4), total=8, kept=2).sparsity
        0.75
    """

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int

    @property
    def sparsity(self) -> float:
        """Fraction of zeros in this tensor."""
        return 1 - self.kept / self.total if self.total else 0.0


class Masks(Mapping[str, Tensor]):
    """Which weights are kept: a read-only mapping from parameter names to boolean tensors, True where kept.

    Names are plain: prefixes that wrappers add ("module.", "_orig_mod.") are stripped, both here and in the models the
    masks are used with. A tensor shared by two modules has one mask, under its first name. The tensors are copied.

    Args:
        masks: Boolean tensors by parameter name, each of the parameter's shape.
        notes: A small record of how the masks were made. It is saved with them and ignored by `==`.

    Raises:
        BadInput: A mask is not a boolean tensor, or a name is empty.

    Example:
        >>> import torch, prunus
        >>> masks = prunus.Masks({"weight": torch.tensor([[True, False], [False, False]])})
        >>> masks.sparsity
        0.75
        >>> layer = masks.apply_(torch.nn.Linear(2, 2))
        >>> int((layer.weight == 0).sum())
        3
    """

    def __init__(self, masks: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> None:
        for name, mask in masks.items():
            _check_mask(name, mask)
        self._masks = {
            plain: masks[name].detach().clone(memory_format=torch.contiguous_format)
            for name, plain in plain_names(masks).items()
        }
        self.notes = dict(notes or {})

    @classmethod
    def adopt(cls, masks: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> Masks:
        """The same as the constructor, but without copying: for tensors that nothing else refers to.

        Args:
            masks: Boolean tensors by parameter name; do not change them afterwards.
            notes: A small record of how the masks were made.

        Returns:
            The masks.

        Raises:
            BadInput: A mask is not a boolean tensor, or a name is empty.

        Example:
            >>> import torch, prunus
            >>> prunus.Masks.adopt({"weight": torch.ones(2, 2, dtype=torch.bool)}).sparsity
            0.0
        """
        new = cls({}, notes)
        for name, mask in masks.items():
            _check_mask(name, mask)
        new._masks = {plain: masks[name].contiguous() for name, plain in plain_names(masks).items()}
        return new

    @classmethod
    def from_model(cls, model: nn.Module) -> Masks:
        """Read the masks a model already has: those of `torch.nn.utils.prune`, and the zeros of every other weight.

        Args:
            model: Any module. It is not changed.

        Returns:
            The masks. A weight without a single zero gets none.

        Example:
            >>> import torch, prunus
            >>> layer = torch.nn.Linear(4, 4)
            >>> masks = prunus.prune(layer, 0.5)
            >>> prunus.Masks.from_model(layer) == masks
            True
        """
        found: dict[str, Tensor] = {}
        buffers = {plain_name(name): buffer for name, buffer in model.named_buffers()}
        for name in named_parameters(model):
            base = name.removesuffix("_orig")
            if base != name and f"{base}_mask" in buffers:
                found[base] = buffers[f"{base}_mask"] != 0
        for name, weight in prunable_weights(model).items():
            kept = weight.parameter.detach() != 0
            if not bool(kept.all()):
                found[name] = kept
        return cls.adopt(found, {"from": "model"})

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name if name in self._masks else plain_name(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masks):
            return NotImplemented
        same_names = self._masks.keys() == other._masks.keys()
        return same_names and all(torch.equal(mask.cpu(), other[name].cpu()) for name, mask in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Masks) -> Masks:
        """Keep what both keep; a weight that only one of them covers follows that one."""
        if not isinstance(other, Masks):
            return NotImplemented
        joint = dict(self._masks)
        for name, mask in other.items():
            mine = joint.get(name)
            if mine is not None and mine.shape != mask.shape:
                raise BadInput(
                    f"The masks disagree on {name!r}: shapes {tuple(mine.shape)} and {tuple(mask.shape)}; "
                    "join only masks of one model."
                )
            joint[name] = mask.clone() if mine is None else mine & mask.to(mine.device)
        return Masks.adopt(joint)

    @property
    def layers(self) -> list[LayerRow]:
        """One row for each mask, with name, shape, total, kept and sparsity.

        Example:
            >>> import torch, prunus
            >>> [(row.name, row.kept) for row in prunus.Masks({"w": torch.tensor([True, False])}).layers]
            [('w', 1)]
        """
        return [
            LayerRow(name, tuple(mask.shape), mask.numel(), int(mask.count_nonzero())) for name, mask in self.items()
        ]

    @property
    def sparsity(self) -> float:
        """Fraction of zeros over all weights the masks cover.

        Example:
            >>> import torch, prunus
            >>> prunus.Masks({"w": torch.tensor([True, False])}).sparsity
            0.5
        """
        rows = self.layers
        total = sum(row.total for row in rows)
        return 1 - sum(row.kept for row in rows) / total if total else 0.0

    def parameters_of(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters of `model` that the masks cover.

        Args:
            model: The model the masks were found for, wrapped or not.

        Returns:
            Parameters by mask name.

        Raises:
            BadInput: The model has no such parameter, or one of another shape.

        Example:
            >>> import torch, prunus
            >>> layer = torch.nn.Linear(4, 4)
            >>> list(prunus.find_masks(layer, 0.5).parameters_of(layer))
            ['weight']
        """
        parameters = named_parameters(model)
        for name, mask in self.items():
            if name not in parameters:
                raise BadInput(
                    f"The masks name {name!r}, which this model does not have as a parameter; "
                    "use masks that were found for this model."
                )
            if parameters[name].shape != mask.shape:
                raise BadInput(
                    f"The mask of {name!r} has shape {tuple(mask.shape)} but the parameter has "
                    f"{tuple(parameters[name].shape)}; use masks that were found for this model."
                )
        return {name: parameters[name] for name in self}

    def apply_(self, model: nn.Module) -> nn.Module:
        """Set the weights that are not kept to +0.0, in place.

        Args:
            model: The model the masks were found for, wrapped or not.

        Returns:
            The same model.

        Raises:
            BadInput: A mask does not fit the model; nothing has been changed then.

        Example:
            >>> import torch, prunus
            >>> layer = torch.nn.Linear(4, 4)
            >>> masks = prunus.find_masks(layer, 0.5)
            >>> int((masks.apply_(layer).weight == 0).sum())
            8
        """
        parameters = self.parameters_of(model)
        made_there = any(parameter.is_inference() for parameter in parameters.values())
        with torch.inference_mode() if made_there else torch.no_grad():  # elsewhere torch lets nobody change them
            for name, parameter in parameters.items():
                parameter.masked_fill_(~self[name].to(parameter.device), 0.0)
        return model

    def hold(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Hold:
        """Keep the zeros at exactly +0.0 while the model trains.

        Args:
            model: The model the masks were found for. Its masked weights are set to zero at once.
            optimizer: The optimizer that updates it. Without one, only gradients are masked.

        Returns:
            A context manager that is also a handle: leave the `with` block, or call `remove()`, to stop.

        Raises:
            BadInput: A mask does not fit the model, or `optimizer` is not a torch optimizer.

        Example:
            >>> import torch, prunus
            >>> layer = torch.nn.Linear(4, 4)
            >>> optimizer = torch.optim.Adam(layer.parameters())
            >>> with prunus.find_masks(layer, 0.5).hold(layer, optimizer):
            ...     layer(torch.ones(1, 4)).sum().backward()
            ...     _ = optimizer.step()
            >>> int((layer.weight == 0).sum())
            8
        """
        from prunus._hold import Hold

        return Hold(self, model, optimizer)

    def to(self, device: torch.device | str) -> Masks:
        """The same masks on another device.

        Args:
            device: Any torch device, or its name.

        Returns:
            New masks; these stay where they are.

        Example:
            >>> import torch, prunus
            >>> prunus.Masks({"w": torch.tensor([True])}).to("meta")["w"].device.type
            'meta'
        """
        return Masks.adopt({name: mask.to(device) for name, mask in self.items()}, self.notes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, eight weights to a byte, with a checksum over everything.

        Args:
            path: Where to write. An existing file is replaced in one step.

        Raises:
            OSError: The file cannot be written.

        Example:
            >>> import tempfile, torch, prunus
            >>> masks = prunus.find_masks(torch.nn.Linear(8, 8), 0.5)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     masks.save(f"{folder}/masks.safetensors")
            ...     prunus.Masks.load(f"{folder}/masks.safetensors") == masks
            True
        """
        from prunus._maskfile import write_masks

        write_masks(self, Path(path))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Masks:
        """Read a file that `save` wrote.

        Args:
            path: The file.

        Returns:
            The masks, with their notes.

        Raises:
            BadFile: The file is damaged, or is not a file of masks.

        Example:
            >>> import tempfile, torch, prunus
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     prunus.Masks({"w": torch.tensor([True, False])}).save(f"{folder}/masks.safetensors")
            ...     prunus.Masks.load(f"{folder}/masks.safetensors").sparsity
            0.5
        """
        from prunus._maskfile import read_masks

        return read_masks(Path(path))

    def __deepcopy__(self, memo: dict[int, Any]) -> Masks:
        return Masks(self._masks, self.notes)

    def __repr__(self) -> str:
        rows = self.layers
        lines = [
            f"Masks over {len(rows)} tensors, {sum(row.total for row in rows):,} weights, sparsity {self.sparsity:.4f}"
        ]
        lines += [
            f"  {row.name}  {'x'.join(map(str, row.shape))}  keeps {row.kept:,}  ({row.sparsity:.4f})"
            for row in rows[:8]
        ]
        return "\n".join(lines + ([f"  ... and {len(rows) - 8} more"] if len(rows) > 8 else []))


def _check_mask(name: str, mask: object) -> None:
    if not isinstance(name, str) or not plain_name(name):
        raise BadInput(f"A mask needs the name of a parameter, not {name!r}.")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise BadInput(f"The mask of {name!r} must be a boolean tensor, not {kind}.")

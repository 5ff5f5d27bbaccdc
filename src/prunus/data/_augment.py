"""Random crops and flips of a whole batch at once."""

from __future__ import annotations

import torch
from torch import Tensor

from prunus.errors import BadInput


def augment(
    images: Tensor,
    generator: torch.Generator | None = None,
    *,
    pad: int = 4,
    flip: bool = True,
    fill: float | Tensor = 0.0,
) -> Tensor:
    """The usual augmentation of CIFAR-10: pad by `pad`, cut a random window of the old size, flip half of them.

    `images` (N, C, H, W) -> the same shape; every image gets its own window and coin. `fill` is the value of the
    border, a number or one per channel; `Labelled.black` is what a black pixel becomes after normalisation.

    Args:
        images: (N, C, H, W).
        generator: Source of the random choices; torch's global one unless given.
        pad: Pixels of border on every side.
        flip: Mirror half of the images.
        fill: Value of the border, a number or one per channel.

    Returns:
        Images of the same shape.

    Raises:
        BadInput: The images are not (N, C, H, W), or the border does not fit.

    Example:
        >>> images = torch.zeros(2, 3, 32, 32)
        >>> prunus.data.augment(images, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 32, 32])
    """
    if images.dim() != 4:
        raise BadInput(
            f"Augmentation takes a batch of images (N, C, H, W), not a tensor of shape {tuple(images.shape)}."
        )
    if pad < 0:
        raise BadInput(f"Augmentation pads by {pad}: give 0 or more pixels.")
    count, channels, height, width = images.shape
    border = torch.as_tensor(fill, dtype=images.dtype, device=images.device).expand(channels)
    padded = border[None, :, None, None].repeat(count, 1, height + 2 * pad, width + 2 * pad)
    padded[:, :, pad : pad + height, pad : pad + width] = images

    def draw(high: int) -> Tensor:
        # Drawn where the generator lives (the CPU unless it says otherwise), so that a seed means the same everywhere.
        device = "cpu" if generator is None else generator.device
        return torch.randint(high, (count, 1), generator=generator, device=device).to(images.device)

    rows = draw(2 * pad + 1) + torch.arange(height, device=images.device)
    columns = draw(2 * pad + 1) + torch.arange(width, device=images.device)
    if flip:
        columns = torch.where(draw(2).bool(), columns.flip(1), columns)
    sample = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]

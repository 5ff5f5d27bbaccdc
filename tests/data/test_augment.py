from __future__ import annotations

import pytest
import torch

from prunus.data import augment
from prunus.errors import BadInput


def batch(count: int = 300) -> torch.Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0)) + 1


def test_every_image_is_a_window_of_its_padded_self_and_all_windows_occur() -> None:
    images = batch(2000)
    border = torch.tensor([-1.0, -2.0, -3.0])
    out = augment(images, torch.Generator().manual_seed(1), pad=1, fill=border)
    padded = border[None, :, None, None].repeat(2000, 1, 10, 10)
    padded[:, :, 1:9, 1:9] = images
    hits = []
    for top in range(3):
        for left in range(3):
            window = padded[:, :, top : top + 8, left : left + 8]
            hits += [(out == window).flatten(1).all(1), (out == window.flip(3)).flatten(1).all(1)]
    table = torch.stack(hits)
    assert (table.sum(0) == 1).all()
    # 18 equally likely cells of 2000 draws: mean 111, standard deviation 10.2; six of them are a 1e-7 false alarm.
    assert ((table.sum(1) - 2000 / 18).abs() < 62).all()


def test_the_generator_decides_and_the_input_stays() -> None:
    images = batch()
    copy = images.clone()
    first, second = (augment(images, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, augment(images, torch.Generator().manual_seed(6)))
    assert torch.equal(images, copy)
    assert torch.equal(augment(images, pad=0, flip=False), images)


def test_bad_input() -> None:
    with pytest.raises(BadInput, match=r"\(N, C, H, W\)"):
        augment(torch.ones(3, 8, 8))
    with pytest.raises(BadInput, match="0 or more"):
        augment(batch(), pad=-1)

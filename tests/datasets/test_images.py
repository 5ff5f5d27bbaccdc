from __future__ import annotations

import torch

from prunus.data import load


def test_digits_split_sizes_scale_and_disjointness() -> None:
    train, test = load("digits", split="train"), load("digits", split="test")
    assert (len(train), len(test)) == (1297, 500)
    x, y = train[0]
    assert x.shape == (64,)
    assert x.dtype == torch.float32
    assert isinstance(y, int)
    inputs = torch.cat([train.tensors[0], test.tensors[0]])
    labels = torch.cat([train.tensors[1], test.tensors[1]])
    assert inputs.min() == 0
    assert inputs.max() == 1
    assert torch.equal(inputs * 16, (inputs * 16).round())
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # all of the 1,797
    assert len(torch.unique(inputs, dim=0)) == 1797  # so no image is in both parts
    assert int((inputs * 16).sum()) == 561_718


def test_digits_are_learnable_and_the_parts_agree() -> None:
    """The nearest of the ten class means gets about 90 % of the test part right; a shuffled label would not."""
    train, test = load("digits"), load("digits", split="test")
    x, y = train.tensors
    means = torch.stack([x[y == digit].mean(0) for digit in range(10)])
    guessed = torch.cdist(test.tensors[0], means).argmin(1)
    assert (guessed == test.tensors[1]).float().mean() > 0.85

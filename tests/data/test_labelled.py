from __future__ import annotations

import pickle

import pytest
import torch

from prunus.data import Labelled

MEAN, STD = torch.tensor([0.5, 0.25])[:, None, None], torch.tensor([0.5, 2.0])[:, None, None]


def example() -> Labelled:
    raw = torch.randint(0, 256, (5, 2, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Labelled(raw, torch.arange(5), "abcde", scale=1 / 255, mean=MEAN, std=STD)


def test_items_batches_and_tensors_agree() -> None:
    data = example()
    before = [data[i] for i in range(5)]
    inputs, labels = data.batch(torch.tensor([3, 1]))
    everything = data.tensors
    after = [data[i] for i in range(5)]
    for (x, y), (x2, y2), number in zip(before, after, range(5)):
        assert torch.equal(x, x2)
        assert y == y2 == number
        assert torch.equal(x, everything[0][number])
    assert torch.equal(inputs, everything[0][[3, 1]])
    assert labels.tolist() == [3, 1]
    assert data.tensors[0] is everything[0]


def test_normalisation_is_not_done_in_place() -> None:
    data = example()
    raw = data.raw.clone()
    data.tensors, data[0], data.batch([0])
    assert torch.equal(raw, data.raw)


def test_black_is_what_zero_becomes() -> None:
    black = Labelled(torch.zeros(1, 2, 3, 3, dtype=torch.uint8), torch.zeros(1), "a", mean=MEAN, std=STD)
    assert torch.equal(black[0][0][:, 0, 0], black.black)


def test_iteration_ends_and_bad_indices_are_refused() -> None:
    assert len(list(example())) == 5
    assert example()[-1][1] == 4
    with pytest.raises(IndexError):
        example()[5]


def test_it_can_be_sent_to_a_worker() -> None:
    data = pickle.loads(pickle.dumps(example()))
    assert torch.equal(data[2][0], example()[2][0])

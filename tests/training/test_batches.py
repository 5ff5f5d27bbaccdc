from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from prunus.errors import BadInput, UnknownName
from prunus.training.batches import Batches, collate, derive, fingerprint, in_order, reader, resized_crop_flip
from support.training import Noisy, digits


def test_derived_seeds_are_stable_and_apart() -> None:
    """Written down: another value here would change every seeded run."""
    assert derive(0, "order", 0) == 3471081512423777433
    seeds = {derive(seed, *labels) for seed in range(50) for labels in (("order", 1), ("step", 1), ("step", 2, 0))}
    assert len(seeds) == 150
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_any_step_can_be_the_first() -> None:
    data = TensorDataset(torch.arange(23), torch.zeros(23, dtype=torch.long))
    whole = list(Batches(data, 5, seed=3).from_step(5))
    for start in range(5):
        part = list(Batches(data, 5, seed=3).from_step(5 + start))
        assert len(part) == 5 - start
        assert all(torch.equal(one[0], two[0]) for one, two in zip(part, whole[start:]))
    assert [len(labels) for _, labels, _ in whole] == [5, 5, 5, 5, 3]


@pytest.mark.parametrize("world", [2, 3, 7])
def test_processes_share_a_batch_without_overlap(world: int) -> None:
    data = TensorDataset(torch.arange(23), torch.zeros(23, dtype=torch.long))
    alone = list(Batches(data, 5, seed=1).from_step(0))
    shared = [list(Batches(data, 5, seed=1).from_step(0, rank, world)) for rank in range(world)]
    for number, (inputs, _, _) in enumerate(alone):
        parts = torch.cat([ranks[number][0] for ranks in shared])
        assert torch.equal(parts.sort().values, inputs.sort().values)
        assert sum(ranks[number][2] for ranks in shared) == pytest.approx(1.0)


def test_workers_read_the_same_batches() -> None:
    data = Listed()
    plain = list(Batches(data, 4, seed=1).from_step(0))
    workers = list(Batches(data, 4, seed=1, workers=1).from_step(0))
    assert all(torch.equal(one[0], two[0]) for one, two in zip(plain, workers))


class Listed(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(index)), index % 2


def test_random_transforms_are_the_same_whenever_a_step_is_read() -> None:
    data = Noisy(40)
    one = list(Batches(data, 8, seed=1).from_step(0))
    torch.rand(5)
    two = list(Batches(data, 8, seed=1).from_step(2))
    assert torch.equal(one[2][0], two[0][0])
    assert not torch.equal(one[0][0][0], data[int(Batches(data, 8, seed=1).order(0)[0])][0])


def test_evaluation_reads_everything_in_order() -> None:
    train, _ = digits()
    inputs = torch.cat([inputs for inputs, _ in in_order(train, 100)])
    assert torch.equal(inputs, train.tensors[0])
    assert len(list(in_order(train, 100, limit=2))) == 2


def test_fingerprints_tell_data_apart() -> None:
    train, test = digits()
    assert fingerprint(train) == fingerprint(train)
    assert fingerprint(train) != fingerprint(test)
    inputs, labels = train.tensors
    other = labels.clone()
    other[7] = (other[7] + 1) % 10
    assert fingerprint(TensorDataset(inputs, labels)) != fingerprint(TensorDataset(inputs, other))
    noisy = Noisy(30)
    torch.rand(3)
    assert fingerprint(noisy) == fingerprint(Noisy(30))  # its noise is seeded while it is looked at
    assert fingerprint(noisy) != fingerprint(Noisy(29))
    still = TensorDataset(torch.zeros(3, 2), torch.arange(3))
    assert (
        fingerprint(still, earlier=True) == "3 samples, c76635a5da705752"
    )  # stands in checkpoints of the first versions


def test_the_resized_crop_keeps_shape_and_constant_images() -> None:
    source = torch.Generator().manual_seed(0)
    images = torch.randn(64, 3, 32, 32, generator=source)
    one = resized_crop_flip(images, torch.Generator().manual_seed(1), pad=0)
    two = resized_crop_flip(images, torch.Generator().manual_seed(1), pad=0)
    assert one.shape == images.shape
    assert torch.equal(one, two)
    assert not torch.equal(one[0], images[0])
    flat = torch.ones(16, 1, 32, 32)
    inside = resized_crop_flip(flat, source, pad=0)[:, :, 8:24, 8:24]
    assert torch.allclose(inside, torch.ones_like(inside), atol=1e-5)


def test_augmentation_draws_anew_for_every_step_and_the_same_for_the_same() -> None:
    data = TensorDataset(torch.randn(8, 3, 16, 16), torch.zeros(8, dtype=torch.long))
    for name in ("crop-flip", "resized-crop-flip"):
        batches = Batches(data, 8, seed=2, augment=name)
        one, two = next(batches.from_step(0))[0], next(batches.from_step(1))[0]
        assert torch.equal(one, next(batches.from_step(0))[0])
        assert not torch.equal(one.sum((1, 2, 3)).sort().values, two.sum((1, 2, 3)).sort().values)


def test_bad_data() -> None:
    class Endless(IterableDataset):
        def __iter__(self):
            yield torch.zeros(1), 0

    with pytest.raises(BadInput, match="has no length"):
        Batches(Endless(), 4, 0)
    with pytest.raises(BadInput, match="empty"):
        Batches(TensorDataset(torch.zeros(0, 2), torch.zeros(0)), 4, 0)
    with pytest.raises(UnknownName):
        Batches(Listed(), 4, 0, augment="mixup")
    assert reader(Subset(Listed(), [1])) is None
    assert collate(Listed(), [])[0].shape == (0, 2)

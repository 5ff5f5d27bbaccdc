from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from prunus.data import images as images_module
from prunus.data import load
from prunus.errors import BadFile, BadInput


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


def test_digits_come_flat_or_as_images() -> None:
    flat, images = load("digits", split="test"), load("digits-images", split="test")
    assert images[0][0].shape == (1, 8, 8)
    assert torch.equal(images.tensors[0].flatten(1), flat.tensors[0])
    assert torch.equal(images.labels, flat.labels)


def test_digits_are_learnable_and_the_parts_agree() -> None:
    """The nearest of the ten class means gets about 90 % of the test part right; a shuffled label would not."""
    train, test = load("digits"), load("digits", split="test")
    x, y = train.tensors
    means = torch.stack([x[y == digit].mean(0) for digit in range(10)])
    guessed = torch.cdist(test.tensors[0], means).argmin(1)
    assert (guessed == test.tensors[1]).float().mean() > 0.85


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


def written_mnist(folder: Path, place: str = "mnist", packed: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(0)
    images, labels = rng.randint(0, 256, (7, 28, 28)), rng.randint(0, 10, 7)
    (folder / place).mkdir(parents=True)
    for stem, array in (("images-idx3", images), ("labels-idx1", labels)):
        for part in ("train", "t10k"):
            name = folder / place / f"{part}-{stem}-ubyte"
            if packed:
                name.with_name(name.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                name.write_bytes(idx(array))
    return images, labels


@pytest.mark.parametrize("place", ["mnist", ".", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_wherever_it_usually_lies(tmp_path: Path, place: str, packed: bool) -> None:
    images, labels = written_mnist(tmp_path / "data", place, packed)
    x, y = load("mnist", split="test", folder=tmp_path / "data").tensors
    assert x.shape == (7, 1, 28, 28)
    torch.testing.assert_close(x[:, 0].double(), torch.from_numpy((images / 255 - 0.1307) / 0.3081), rtol=0, atol=1e-6)
    assert y.tolist() == labels.tolist()


def test_damaged_idx_files(tmp_path: Path) -> None:
    written_mnist(tmp_path, packed=False)
    images, labels = tmp_path / "mnist/t10k-images-idx3-ubyte", tmp_path / "mnist/t10k-labels-idx1-ubyte"
    good = images.read_bytes()

    def sentence() -> str:
        with pytest.raises(BadFile) as caught:
            load("mnist", split="test", folder=tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    for bad in (b"", good[:3], good[:10], good[:-1], good + b"\0", b"PK" + good[2:], idx(np.zeros((2, 2)))):
        images.write_bytes(bad)
        assert str(images) in sentence()
    images.write_bytes(good[:4] + np.array([-1, 28, 28], ">i4").tobytes() + good[16:])
    assert str(images) in sentence()
    images.write_bytes(good)
    labels.write_bytes(idx(np.full(7, 10)))
    assert "labels up to 10" in sentence()
    labels.write_bytes(idx(np.zeros(6)))
    assert "6 labels" in sentence()
    images.unlink()
    (tmp_path / "mnist/t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(good)[:-9])
    assert "damaged" in sentence()


def packed(images: np.ndarray) -> np.ndarray:
    """The residual form of (n, 3, 32, 32) bytes, written from its description: the inverse of what is read."""
    planes = images.transpose(1, 0, 2, 3).copy()
    planes[0] -= planes[1]
    planes[2] -= planes[1]
    for axis in (3, 2):
        planes = np.diff(planes, axis=axis, prepend=np.zeros_like(planes.take([0], axis)))
    return planes


@pytest.mark.parametrize("kind", ["npz", "binary"])
def test_cifar_in_both_formats(tmp_path: Path, kind: str) -> None:
    rng = np.random.RandomState(1)
    everything = []
    place = tmp_path / ("cifar10" if kind == "npz" else "cifar-10-batches-bin")
    place.mkdir()
    for number in range(1, 6):
        images, labels = rng.randint(0, 256, (4, 3, 32, 32)).astype(np.uint8), rng.randint(0, 10, 4).astype(np.uint8)
        everything.append((images, labels))
        if kind == "npz":
            np.savez_compressed(place / f"train_{number}.npz", residual=packed(images), labels=labels)
        else:
            records = np.concatenate([labels[:, None], images.reshape(4, -1)], 1)
            (place / f"data_batch_{number}.bin").write_bytes(records.tobytes())
    data = load("cifar10", folder=tmp_path)
    assert np.array_equal(data.raw.numpy(), np.concatenate([images for images, _ in everything]))
    assert data.labels.tolist() == np.concatenate([labels for _, labels in everything]).tolist()
    x, label = data[6]
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (everything[1][0][2] / 255 - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(x.double(), torch.from_numpy(expected), rtol=0, atol=1e-5)
    assert data.classes[label] == images_module.CIFAR10_CLASSES[everything[1][1][2]]


def test_pickled_cifar_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(b"whatever")
    with pytest.raises(BadInput, match=r"test_batch\.bin.*pickled Python version.*is not read"):
        load("cifar10", split="test", folder=tmp_path)


def test_damaged_cifar_files(tmp_path: Path) -> None:
    place = tmp_path / "cifar10"
    place.mkdir()
    np.savez_compressed(place / "test.npz", residual=np.zeros((3, 2, 32, 32), np.uint8), labels=np.zeros(2, np.uint8))
    good = (place / "test.npz").read_bytes()
    load("cifar10", split="test", folder=tmp_path)
    flipped = bytearray(good)
    flipped[len(good) // 3] ^= 4
    for bad in (b"", b"text", good[: len(good) // 2], bytes(flipped)):
        (place / "test.npz").write_bytes(bad)
        with pytest.raises(BadFile, match=r"test\.npz is damaged or of another kind"):
            load("cifar10", split="test", folder=tmp_path)
    wrong = [{"residual": np.zeros((3, 2, 32, 31), np.uint8), "labels": np.zeros(2, np.uint8)}]
    wrong += [{"residual": np.zeros((3, 2, 32, 32), np.uint8), "labels": np.full(2, 10, np.uint8)}, {"x": np.zeros(1)}]
    wrong += [{"residual": np.array([{}], dtype=object), "labels": np.zeros(2, np.uint8)}]  # pickled inside
    for content in wrong:
        np.savez_compressed(place / "test.npz", **content)
        with pytest.raises(BadFile, match=r"test\.npz is damaged or of another kind"):
            load("cifar10", split="test", folder=tmp_path)
    (place / "test.npz").unlink()
    (place / "test_batch.bin").write_bytes(bytes(3072))
    with pytest.raises(BadFile, match="not whole records"):
        load("cifar10", split="test", folder=tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("name, mean, std", [("mnist", 0.0, 1.0), ("fashion-mnist", 0.0, 1.0)])
def test_normalisation_centres_the_real_training_set(name: str, mean: float, std: float) -> None:
    data = load(name)
    assert len(data) == 60_000
    pixels = data.raw.double() / 255
    assert abs((pixels.mean() - data.mean) / data.std - mean) < 1e-3
    assert abs(pixels.std() / data.std - std) < 1e-3
    assert len(load(name, split="test")) == 10_000


@pytest.mark.data
def test_the_real_cifar_batch_has_the_published_bytes() -> None:
    data = load("cifar10", split="test")
    records = np.concatenate([data.labels.numpy().astype(np.uint8)[:, None], data.raw.numpy().reshape(-1, 3072)], 1)
    assert hashlib.md5(records.tobytes()).hexdigest() == "803d5f7f4d78ea53de84dbe85f74fb6d"

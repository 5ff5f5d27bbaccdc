"""One run of DP-SGD with the usual network of private training: accuracy against privacy and bytes sent.

A run is a `Setting`; `train_once` is a function of it. Rates and clips are chosen on a part of the training images that
no run trains on (its own privacy cost is not counted, as is usual in the field); the test images are looked at once.
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from prunus.errors import BadInput, UnknownName
from prunus.models.convolutional import TanhCNN
from prunus.papers.noisy_topk._tanh_gradients import per_example_gradients
from prunus.papers.noisy_topk.simulation import accuracy, without_advice
from prunus.private.accounting import BudgetSpent, noise_for_budget
from prunus.private.dpsgd import PrivateOptions, make_private
from prunus.private.mechanism import NoisyTopK, TwoLevelTopK
from prunus.private.policies import WarmUp

METHODS = ("dense", "random", "warm-up", "noisy-top-k", "two-level")
VALIDATION = 5000
_LOOKING = ("noisy-top-k", "two-level")
_SEED_BYTES = 8


@dataclass(frozen=True)
class Setting:
    """Everything a run depends on.

    k: kept share of the coordinates (ignored by "dense"). rate: learning rate times clip, the length of a step.
    index_share: part of epsilon that the indices get (noisy top-k and the two-level rule). warm: part of the steps that
    "warm-up" (TP-TopK) takes with all coordinates. images: how many training images are used.
    """

    method: str
    epsilon: float = 3.0
    k: float = 0.1
    rate: float = 0.05
    clip: float = 0.1
    seed: int = 0
    index_share: float = 0.01
    warm: float = 0.2
    data: str = "mnist"
    model: str = "tanh-cnn"
    epochs: int = 2
    batch: int = 256
    images: int = 55_000
    momentum: float = 0.9
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnknownName("method", self.method, METHODS)
        if not 0.0 < self.k <= 1.0 or not 0.0 < self.index_share < 1.0 or not 0.0 < self.warm < 1.0:
            raise BadInput("k must lie in (0, 1], index_share and warm between 0 and 1.")
        if self.epochs < 1 or self.batch < 1 or self.images < self.batch:
            raise BadInput("A run needs at least one epoch and one batch of images.")

    @property
    def batches(self) -> int:
        """Steps of one epoch."""
        return math.ceil(self.images / self.batch)

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.epochs * self.batches

    @property
    def index_epsilon(self) -> float:
        """Pure epsilon of one step's indices before sampling, so that all steps together spend about the share."""
        return self.index_share * self.epsilon / self.epochs if self.method in _LOOKING else 0.0


def bytes_sent(setting: Setting, d: int) -> int:
    """Bytes that one worker sends in the run, values as 32-bit floats.

    A random set is a seed of eight bytes and a fixed one is known; a drawn set costs a bit for each coordinate or a
    binary index for each kept one, whichever is less.
    """
    kept = max(round(setting.k * d), 1)
    dense, sparse = 4 * d, 4 * kept
    if setting.method == "dense":
        return setting.steps * dense
    if setting.method == "warm-up":
        first = _warm_steps(setting)
        return first * dense + (setting.steps - first) * sparse
    if setting.method == "random":
        return setting.steps * (sparse + _SEED_BYTES)
    indices = min(math.ceil(d / 8), math.ceil(kept * math.ceil(math.log2(d)) / 8))
    return setting.steps * (sparse + indices)


def _warm_steps(setting: Setting) -> int:
    return max(round(setting.warm * setting.steps), 1)


def _mechanism(setting: Setting, d: int) -> Any:
    if setting.method == "noisy-top-k":
        return NoisyTopK.from_local_epsilon(setting.k, setting.index_epsilon, d)
    if setting.method == "two-level":
        return TwoLevelTopK(setting.k, setting.index_epsilon)
    if setting.method == "warm-up":
        return WarmUp(_warm_steps(setting), setting.k, by="squares")
    return setting.method


@functools.lru_cache(maxsize=2)
def parts(data: str, images: int, folder: str | None = None) -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """Training, validation and test images; the last 5,000 training images are for validation."""
    from prunus.data import load

    whole: Any = load(data, split="train", folder=folder)
    inputs, labels = whole.tensors
    rest = len(labels) - VALIDATION
    if images > rest:
        raise BadInput(f"{data} leaves {rest} images to train on, {images} were asked for.")
    test: Any = load(data, split="test", folder=folder)
    train = TensorDataset(inputs[:images], labels[:images])
    return train, TensorDataset(inputs[rest:], labels[rest:]), TensorDataset(*test.tensors)


class _Rows(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """A tensor data set that hands a whole batch over at once: one at a time would take as long as a step."""

    def __init__(self, data: TensorDataset) -> None:
        self.tensors = data.tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tensors[0][index], self.tensors[1][index]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        chosen = torch.as_tensor(indices)
        return list(zip(self.tensors[0][chosen], self.tensors[1][chosen]))


def _differentiate(model: nn.Module, wrapped: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Put per-example gradients where the optimizer looks for them: by Opacus's hooks, faster for the usual network."""
    if not isinstance(model, TanhCNN):
        nn.functional.cross_entropy(wrapped(inputs), labels).backward()
        return
    for parameter, gradients in zip(model.parameters(), per_example_gradients(model, inputs, labels)):
        holder: Any = parameter
        holder.grad_sample = gradients


# Many runs of a study share their budget, and finding the noise takes as long as thirty steps.
_noise = functools.lru_cache(maxsize=64)(noise_for_budget)


def train_once(setting: Setting, folder: str | None = None) -> dict[str, Any]:
    """One run. Seeded, so it gives no privacy: for measurements only.

    Returns:
        Accuracies on the validation and test images, epsilon spent, noise multiplier, bytes sent and steps.
    """
    from prunus.models import make

    train, validation, test = parts(setting.data, setting.images, folder)
    sampling = 1.0 / setting.batches
    noise = _noise(setting.epsilon, setting.delta, setting.steps, sampling, setting.index_epsilon)
    torch.manual_seed(setting.seed)
    model = make(setting.model, seed=setting.seed)
    d = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.rate / setting.clip, momentum=setting.momentum)
    with without_advice():
        private = make_private(
            model,
            optimizer,
            DataLoader(_Rows(train), batch_size=setting.batch),
            _mechanism(setting, d),
            noise_multiplier=noise,
            clip=setting.clip,
            keep=setting.k if setting.method == "random" else None,
            options=PrivateOptions(setting.epsilon, setting.delta, insecure_seed=setting.seed),
        )
        # The budget may end a step or two before the last epoch does: that is what it is for.
        with contextlib.suppress(BudgetSpent):
            for _ in range(setting.epochs):
                for inputs, labels in private.loader:
                    private.optimizer.zero_grad()
                    _differentiate(model, private.model, inputs, labels)
                    private.optimizer.step()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # pooling takes a fifth of the time
    with torch.no_grad():
        found = {"validation": accuracy(private.model, validation), "test": accuracy(private.model, test)}
    return found | {
        "epsilon spent": private.optimizer.epsilon,
        "noise multiplier": noise,
        "megabytes": bytes_sent(setting, d) / 1e6,
        "steps": private.optimizer.steps_done,
        "d": d,
    }

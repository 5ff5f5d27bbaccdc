from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import prunus
from prunus.adapters import Batch, as_batch, batch_loss, batches, call, example_input, main_output, output_tensors
from prunus.errors import BadInput
from prunus.models import make

X, Y = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 2


class Records(Dataset):
    def __init__(self, names: tuple[str, str] = ("x", "label")) -> None:
        self.names = names

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, object]:
        return {self.names[0]: X[index], self.names[1]: int(Y[index]), "text": f"sample {index}"}


class Stream(IterableDataset):
    def __iter__(self):
        return iter((x, y) for x, y in zip(X, Y))


@dataclass
class Sample:
    x: object
    y: object


SOURCES = {
    "pair of tensors": lambda: (X, Y),
    "list pair": lambda: [X, Y],
    "pair of arrays": lambda: (X.numpy(), Y.numpy()),
    "tensor data set": lambda: TensorDataset(X, Y),
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=4),
    "list of samples": lambda: [(x, int(y)) for x, y in zip(X, Y)],
    "list of numpy samples": lambda: [(x.numpy(), int(y)) for x, y in zip(X, Y)],
    "list of batches": lambda: [(X[:4], Y[:4]), (X[4:8], Y[4:8]), (X[8:], Y[8:])],
    "dict of tensors": lambda: {"x": X, "labels": Y},
    "dict samples": Records,
    "list of dicts": lambda: [{"x": x.tolist(), "y": int(y)} for x, y in zip(X, Y)],
    "list of dict batches": lambda: [{"x": X[:4], "y": Y[:4]}, {"x": X[4:8], "y": Y[4:8]}, {"x": X[8:], "y": Y[8:]}],
    "dict and label": lambda: [({"x": x}, int(y)) for x, y in zip(X, Y)],
    "lists of numbers": lambda: [(x.tolist(), int(y)) for x, y in zip(X, Y)],
    "records": lambda: [Sample(x, int(y)) for x, y in zip(X, Y)],
    "batches in records": lambda: [Sample(X[i : i + 4], Y[i : i + 4]) for i in range(0, 10, 4)],
    "stream": Stream,
    "generator": lambda: ((X[i : i + 4], Y[i : i + 4]) for i in range(0, 10, 4)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_batches(source: str) -> None:
    found = list(batches(SOURCES[source](), 4))
    assert [batch.size for batch in found] == [4, 4, 2]
    torch.testing.assert_close(torch.cat([batch.inputs.float() for batch in found]), X)
    assert torch.equal(torch.cat([batch.labels for batch in found]), Y)
    model = nn.Linear(3, 2)
    logits = torch.cat([main_output(call(model, batch)) for batch in batches(SOURCES[source](), 4)])
    torch.testing.assert_close(logits, model(X))


@pytest.mark.parametrize("data", [X, X.numpy(), list(X), [x.numpy() for x in X], TensorDataset(X), [X[:5], X[5:]]])
def test_inputs_without_labels(data: object) -> None:
    found = list(batches(data, 5))
    assert all(batch.labels is None for batch in found)
    torch.testing.assert_close(torch.cat([batch.inputs for batch in found]), X)


def test_limit_and_shuffle_are_repeatable() -> None:
    assert len(list(batches((X, Y), 2, limit=3))) == 3
    orders = [torch.cat([b.labels for b in batches((X, torch.arange(10)), 3, shuffle=True, seed=s)]) for s in (1, 1, 2)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert torch.equal(orders[2].sort().values, torch.arange(10))


def test_token_sequences_are_padded_with_a_mask() -> None:
    words = [{"input_ids": [5, 6, 7], "labels": [1, 2, 3]}, {"input_ids": [8], "labels": [4]}]
    batch = next(batches(words))
    assert batch.kwargs["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch.kwargs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.labels.tolist() == [[1, 2, 3], [4, -100, -100]]


def test_a_collator_makes_batches_of_samples() -> None:
    found = list(batches([X[:2], X[2:4]], 2, collate=torch.stack))  # without it these would be two batches
    assert found[0].inputs.shape == (2, 2, 3)


def test_three_columns_are_two_inputs_and_labels() -> None:
    batch = as_batch((X, X + 1, Y))
    assert len(batch.args) == 2
    assert torch.equal(batch.labels, Y)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layer(pixels)
        return {"logits": logits} if labels is None else {"loss": (logits - 7).square().mean(), "logits": logits}


def test_unknown_names_are_left_out_and_the_models_own_loss_is_used() -> None:
    model, batch = Named(), as_batch({"pixels": X, "idx": torch.arange(10), "labels": Y})
    logits = model.layer(X)
    assert torch.equal(main_output(call(model, batch)), logits)
    assert torch.equal(batch_loss(model, batch), (logits - 7).square().mean())
    expected = nn.functional.cross_entropy(logits, Y)
    assert torch.equal(batch_loss(model, batch, nn.functional.cross_entropy), expected)
    assert torch.equal(batch_loss(model.layer, batch), expected)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda: list(batches([])), "empty"),
        (lambda: list(batches(torch.zeros(0, 3))), "empty"),
        (lambda: list(batches(7)), "type int"),
        (lambda: list(batches("text")), "type str"),
        (lambda: list(batches({"a": X, "b": X[:3]})), "one entry for each sample"),
        (lambda: list(batches([{"a": "words"}])), "no tensor"),
        (lambda: list(batches([(torch.zeros(3), 1), (torch.zeros(4), 1)])), "stacked"),
        (lambda: list(batches((X, Y), 0)), "at least one sample"),
        (lambda: call(nn.Linear(4, 2), as_batch((X, Y))), "cannot run on the data"),
        (lambda: main_output(object()), "answers with object"),
        (lambda: main_output({}), "answers with dict"),
        (lambda: batch_loss(nn.Linear(3, 2), Batch((X,))), "needs labels"),
        (lambda: example_input(nn.Conv2d(3, 4, 3)), "--input"),
        (lambda: example_input(nn.Linear(3, 2), tokens=4), "no embedding"),
        (lambda: example_input(nn.Linear(3, 2), batch=0), "at least 1"),
    ],
)
def test_bad_input_is_one_sentence(run, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        run()
    assert str(caught.value).endswith(".")


def test_outputs_of_every_form() -> None:
    for output in (X, (X, Y), [X], {"loss": Y, "logits": X}, {"a": {"b": X}}, ((X,), None)):
        assert main_output(output) is X
    assert output_tensors({"a": (X, Y), "cache": object(), "b": X}) == [X, X]


@pytest.mark.parametrize(
    "name", ["conv6:channels=1,width=0.1", "fc:20-5", "lenet-300-100", "lstm", "lenet5", "resnet20"]
)
def test_the_zoo_runs_on_its_example(name: str) -> None:
    model = make(name).eval()
    assert model(example_input(model, batch=2)).shape[0] == 2
    assert torch.equal(example_input(model, seed=3), example_input(model, seed=3))


def test_examples_of_own_models() -> None:
    assert example_input(nn.Conv2d(3, 4, 3), shape=(3, 8, 8), batch=2).shape == (2, 3, 8, 8)
    ids = example_input(nn.Sequential(nn.Embedding(11, 4)), tokens=6)
    assert ids.shape == (1, 6)
    assert int(ids.max()) < 11


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5", "vit", "llama", "resnet"])
def test_models_of_transformers_run_on_their_example(kind: str) -> None:
    from support.foreign import small

    model = small(kind)
    example = example_input(model, batch=2)
    assert main_output(model(**example)).shape[0] == 2
    batch = next(batches({name: value.numpy() for name, value in example.items()}, 1))
    assert isinstance(batch.inputs, Tensor)
    assert main_output(call(model, batch)).shape[0] == 1


def test_numpy_scalars_are_labels() -> None:
    found = next(batches([(np.zeros(3, dtype=np.float32), np.int64(1))] * 2))
    assert found.labels.tolist() == [1, 1]


@pytest.mark.parametrize("what", ["snip", "wanda", "reconstruct", "shrink"])
def test_data_with_nan_are_refused_where_they_are_read(what: str) -> None:
    model = make("fc:8-6-3", seed=0)
    x = torch.randn(16, 8)
    x[3, 2] = float("nan")
    data = TensorDataset(x, torch.zeros(16, dtype=torch.long))
    with pytest.raises(BadInput, match="The data holds 1 NaN"):
        if what == "reconstruct":
            prunus.reconstruct(model, 0.5, data)
        elif what == "shrink":
            prunus.shrink(model, 0.5, example=torch.zeros(1, 8), data=data)
        else:
            prunus.find_masks(model, 0.5, score=what, data=data)


def test_labels_that_do_not_fit_are_one_sentence() -> None:
    model = make("fc:8-6-3", seed=0)
    data = TensorDataset(torch.randn(16, 8), torch.full((16,), 99))
    with pytest.raises(BadInput, match="run from 99 to 99") as refused:
        prunus.find_masks(model, 0.5, score="snip", data=data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "options", "asked", "given"),
    [
        ("CLIPModel", {}, {}, {"input_ids", "attention_mask", "pixel_values"}),
        ("WhisperForConditionalGeneration", {"num_mel_bins": 16, "max_source_positions": 32, "d_model": 48},
         {"shape": (16, 64)}, {"input_features", "decoder_input_ids"}),
        ("Wav2Vec2Model", {}, {"shape": (800,)}, {"input_values"}),
    ],
)  # fmt: skip
def test_examples_of_models_with_several_inputs(name: str, options: dict, asked: dict, given: set[str]) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, name).config_class(**options)
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    assert set(example_input(model, **asked)) == given
    if asked:
        with pytest.raises(BadInput, match="--input"):
            example_input(model)


def test_a_dict_whose_sides_differ_is_one_sample() -> None:
    samples = [{"input_features": torch.randn(4, 6), "decoder_input_ids": torch.arange(3)} for _ in range(5)]
    batch = next(batches(samples, 5))
    assert batch.kwargs["input_features"].shape == (5, 4, 6)
    assert batch.kwargs["decoder_input_ids"].shape == (5, 3)


@pytest.mark.parametrize(
    "others",
    [
        {"decoder_input_ids": torch.zeros(8, 5, dtype=torch.long)},
        {"labels": torch.zeros(8, dtype=torch.long)},
        {"lengths": torch.full((8,), 9)},
    ],
    ids=lambda others: next(iter(others)),
)
@pytest.mark.parametrize("first", [True, False])
def test_a_dict_whose_sides_agree_is_a_batch_if_one_of_its_tensors_is(others: dict, first: bool) -> None:
    sounds = {"input_features": torch.randn(8, 4, 9)}
    batch, again = batches([sounds | others if first else others | sounds] * 2, 5)
    assert batch.size == again.size == 8
    assert batch.kwargs["input_features"].shape == (8, 4, 9)


def test_a_dict_of_vectors_or_one_image_is_a_sample() -> None:
    words = {"input_ids": torch.arange(6), "attention_mask": torch.ones(6, dtype=torch.long)}
    assert next(batches([words] * 3, 3)).kwargs["input_ids"].shape == (3, 6)
    picture = {"pixel_values": torch.randn(3, 8, 8), "labels": torch.tensor(1)}
    assert next(batches([picture] * 5, 5)).kwargs["pixel_values"].shape == (5, 3, 8, 8)

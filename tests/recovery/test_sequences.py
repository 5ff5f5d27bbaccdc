"""Of an encoder-decoder every real position counts: each side has a mask of its own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.adapters import Batch, unpadded
from prunus.layers import prunable_weights
from prunus.recovery._record import Recorder
from prunus.training.distillation import DistilOptions, _Matching


class Translator(nn.Module):
    """The simplest encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor,
        decoder_attention_mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        mask = attention_mask.unsqueeze(-1)
        read = (self.encoder(self.words(input_ids)) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        return self.decoder(self.words(decoder_input_ids) + read)


def batch(length: int, tokens: int | None) -> Batch:
    """Three texts with 2 of 6 words, and `tokens` (None: nothing said) of `length` words to be decoded."""
    generator = torch.Generator().manual_seed(0)
    words, more = (torch.randint(10, (3, size), generator=generator) for size in (6, length))
    masks = {"attention_mask": (torch.arange(6) < 2).expand(3, 6).long()}
    if tokens is not None:
        masks["decoder_attention_mask"] = (torch.arange(length) < tokens).expand(3, length).long()
    return Batch((), {"input_ids": words, "decoder_input_ids": more, **masks}, None, 3)


@pytest.mark.parametrize(
    "length, tokens, used",
    [(7, None, (6, 21)), (7, 5, (6, 15)), (6, None, (18, 18)), (6, 4, (12, 12)), (6, 1, (6, 6))],
)
def test_no_token_of_the_decoder_is_left_out_by_the_mask_of_the_encoder(
    length: int, tokens: int | None, used: tuple[int, int]
) -> None:
    model, data = Translator(), batch(length, tokens)
    seen: dict[str, int] = {}
    keep = data.real_positions()
    with (
        torch.no_grad(),
        Recorder(
            prunable_weights(model).values(), lambda use: seen.update({use.weight.name: len(use.columns())}), keep=keep
        ),
    ):
        output = model(**data.kwargs)
    assert (seen["encoder.weight"], seen["decoder.weight"]) == used
    assert len(unpadded(output, keep)) == used[1] or tokens is None


@pytest.mark.parametrize("length", [6, 7])
def test_a_decoder_is_fitted_to_all_of_its_tokens(length: int) -> None:
    data = [dict(batch(length, None).kwargs)]
    masks = prunus.reconstruct(Translator(), {"decoder.weight": 0.5}, data, "unstructured", samples=3)
    assert "remarks" not in masks.notes


def test_texts_without_a_decoder_have_their_own_mask_and_other_data_none() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    ids = torch.ones(2, 3, dtype=torch.long)
    (found,) = Batch((), {"input_ids": ids, "attention_mask": mask}, None, 2).real_positions()
    assert torch.equal(found, mask.bool())
    assert Batch((ids,), {}, None, 2).real_positions() == ()
    assert Batch((), {"decoder_input_ids": ids}, None, 2).real_positions() == ()


def test_a_student_learns_all_that_the_decoder_answers() -> None:
    torch.manual_seed(0)
    student, data = Translator(), batch(6, None)
    teacher = Translator()
    teacher.load_state_dict(student.state_dict())
    data.kwargs["input_ids"].fill_(0)
    data.kwargs["decoder_input_ids"][:] = torch.tensor([0, 0, 9, 9, 9, 9])  # the encoder's mask ends before the nines
    with torch.no_grad():
        teacher.words.weight[9] += 1.0
    _, loss, _ = _Matching(student, teacher, (), DistilOptions(hidden=0.0), 1.0)(data, torch.zeros(3))
    assert float(loss) > 0.01


class _Packed(nn.Module):
    """A recurrent network over sequences packed by their lengths, as torch packs them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.cells = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        packed = nn.utils.rnn.pack_padded_sequence(hidden, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.last(torch.relu(self.again(hidden)))


def test_packed_sequences_between_layers() -> None:
    torch.manual_seed(0)
    data = {"x": torch.randn(256, 5, 8), "lengths": torch.randint(1, 6, (256,))}
    model = _Packed()
    dense, plain = copy.deepcopy(model), copy.deepcopy(model)
    masks = prunus.reconstruct(model, 0.5, data, "unstructured", samples=256)
    prunus.prune(plain, 0.5)
    with torch.no_grad():
        there, here, poor = (each(**data) for each in (dense, model, plain))
    assert {"cells.weight_ih_l0", "cells.weight_hh_l0", "last.weight"} <= set(masks)
    assert float((here - there).norm()) < 0.7 * float((poor - there).norm())

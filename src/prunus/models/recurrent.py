"""LSTM and BiLSTM classifiers of token sequences (ledger I-5: embedding 100, hidden 256, dropout 0.2, linear 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.models.fc import scaled

_EMBEDDING, _HIDDEN = 100, 256
_PAD = 0  # the id that fills short texts up, after their last word


class LSTMClassifier(nn.Module):
    """Token ids (N, T), padded with 0 at the end -> logits (N, 2).

    The text is read once (or once in each direction); the state after the last word, and in the BiLSTM that of the
    backward reading after the first word, go through dropout into `fc`, a linear layer with one output z. The logits
    are (0, z): softmax of these is (1 - sigmoid(z), sigmoid(z)), so cross-entropy on them is the binary cross-entropy
    of the paper's sigmoid head. `binary=True` returns z itself, (N,), for a binary loss. With `classes` above 2 `fc`
    has that many outputs. The width factor scales the hidden state.
    """

    def __init__(
        self,
        bidirectional: bool,
        width: float = 1.0,
        vocabulary: int = 25_002,
        classes: int = 2,
        dropout: float = 0.2,
        binary: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise BadInput(f"The dropout of an LSTM classifier is {dropout}: it must be at least 0 and below 1.")
        if binary and classes > 2:
            raise BadInput(
                f"A binary LSTM classifier cannot tell {classes} classes apart: leave out binary or classes."
            )
        hidden = scaled(_HIDDEN, width)
        self.embedding = nn.Embedding(vocabulary, _EMBEDDING, padding_idx=_PAD)
        self.lstm = nn.LSTM(_EMBEDDING, hidden, batch_first=True, bidirectional=bidirectional)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden * (2 if bidirectional else 1), classes if classes > 2 else 1)
        self.hidden, self.bidirectional, self.binary = hidden, bidirectional, binary

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        last = (tokens != _PAD).sum(1).clamp(min=1) - 1
        index = last[:, None, None].expand(-1, 1, self.hidden)
        state = states[:, :, : self.hidden].gather(1, index).squeeze(1)
        if self.bidirectional:
            state = torch.cat([state, states[:, 0, self.hidden :]], 1)
        out = self.fc(self.dropout(state))
        if self.binary:
            return cast("Tensor", out.squeeze(1))
        return out if self.fc.out_features > 1 else torch.cat([torch.zeros_like(out), out], 1)


def of_directions(bidirectional: bool) -> Callable[..., LSTMClassifier]:
    """The builder of the LSTM (False) or BiLSTM (True) classifier."""

    def build(
        width: float = 1.0,
        vocabulary: int = 25_002,
        classes: int = 2,
        dropout: float = 0.2,
        binary: bool = False,
    ) -> LSTMClassifier:
        return LSTMClassifier(bidirectional, width, vocabulary, classes, dropout, binary)

    return build

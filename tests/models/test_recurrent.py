from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from prunus.models import make


def tokens(*lengths: int, total: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 50, (len(lengths), total), generator=generator)
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
    return ids


def test_layers_of_the_ledger() -> None:
    with torch.device("meta"):
        one, two = make("lstm"), make("bilstm")
    assert one.get_parameter("embedding.weight").shape == (25_002, 100)
    assert one.get_parameter("lstm.weight_hh_l0").shape == (4 * 256, 256)
    assert one.get_parameter("fc.weight").shape == (1, 256)
    assert two.get_parameter("fc.weight").shape == (1, 512)
    assert one.get_submodule("dropout").p == 0.2


def test_cross_entropy_on_the_pair_is_the_binary_loss_on_the_logit() -> None:
    pair = make("bilstm:vocabulary=50,width=0.1", seed=0).eval()
    single = make("bilstm:vocabulary=50,width=0.1,binary=true", seed=0).eval()
    x, y = tokens(5, 12, 1), torch.tensor([0, 1, 1])
    assert single(x).shape == (3,)
    torch.testing.assert_close(
        functional.cross_entropy(pair(x), y),
        functional.binary_cross_entropy_with_logits(single(x), y.float()),
    )


@pytest.mark.parametrize("length", [1, 5, 12])
def test_the_lstm_does_not_see_the_padding(length: int) -> None:
    model = make("lstm:vocabulary=50,width=0.1", seed=0).eval()
    x = tokens(length)
    torch.testing.assert_close(model(x), model(x[:, :length]))


def test_the_bilstm_reads_both_ways() -> None:
    """Against torch's own final states, on texts without padding."""
    model = make("bilstm:vocabulary=50,width=0.1", seed=0).eval()
    x = tokens(12, 12)
    _, (states, _) = model.lstm(model.embedding(x))
    expected = model.fc(torch.cat([states[0], states[1]], 1))
    torch.testing.assert_close(model(x)[:, 1:], expected)


def test_a_text_of_nothing_but_padding_is_not_an_error() -> None:
    assert torch.isfinite(make("lstm:vocabulary=50,width=0.1", seed=0)(tokens(0))).all()


def test_more_classes() -> None:
    assert make("lstm:vocabulary=50,classes=5,width=0.1", seed=0)(tokens(3, 4)).shape == (2, 5)

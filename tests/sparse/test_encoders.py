"""Torch's encoder with padding, which it runs as one fused operator on nested tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.sparse import compress, load, save


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 16)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=padding))


def padded() -> tuple[Tensor, Tensor]:
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[0, 4:] = padding[2, 5:] = True
    return torch.randn(3, 6, 32, generator=torch.Generator().manual_seed(5)), padding


@pytest.mark.parametrize("options", [{}, {"select": "always"}, {"select": "always", "fuse": True}])
def test_an_encoder_with_padding_is_compressed(options: dict, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = Encoder().eval()
    prunus.prune(model, 0.5, pattern="balanced:16")
    x, padding = padded()
    fast = compress(model, example=(x, padding), **options)
    with torch.no_grad():
        expected, found = model(x, padding), fast(x, padding)
        torch.testing.assert_close(found[~padding], expected[~padding], rtol=1e-4, atol=1e-5)
        assert torch.equal(load(save(fast, tmp_path / "fast"), Encoder())(x, padding), found)
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_encoder_with_padding_is_compressed_to_integers() -> None:
    model = Encoder().eval()
    prunus.prune(model, 0.5, pattern="balanced:16")
    x, padding = padded()
    integers = {"activations": torch.int8, "calibration": [x], "select": "always"}
    with pytest.raises(prunus.BadInput):  # the calibration data lack the padding
        compress(model, example=(x, padding), **integers)
    integers["calibration"] = prunus.adapters.Batch(args=(x, padding), kwargs={}, labels=None)
    fast = compress(model, example=(x, padding), **integers)
    with torch.no_grad():
        off = (fast(x, padding) - model(x, padding))[~padding]
        assert off.norm() < 0.2 * model(x, padding)[~padding].norm()


def test_an_encoder_with_padding_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    model = Encoder().eval()
    prunus.prune(model, 0.5, pattern="balanced:16")
    assert prunus.sparse.export_onnx(model, tmp_path / "model.onnx", padded()).is_file()

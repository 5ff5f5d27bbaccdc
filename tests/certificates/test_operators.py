"""Operators of attention, norms and products: no input exceeds the bound, and near a point the bound says something."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus
from prunus.certificates import AttackSettings, CertifyOptions
from prunus.errors import BadInput


class Lambda(nn.Module):
    """Two linear layers with a function of (module, hidden value) between them."""

    def __init__(self, between: Callable[..., Tensor], width: int = 12, wide: int = 12) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, width), nn.Linear(wide, 4)
        self.between = between
        self.factor = nn.Parameter(torch.randn(width))
        self.norm = nn.LayerNorm(width)
        self.group = nn.GroupNorm(3, width)
        self.rms = nn.RMSNorm(width)
        self.instance = nn.InstanceNorm1d(3, affine=True)
        self.slopes = nn.PReLU(width)
        self.up = nn.ConvTranspose1d(3, 3, 4, stride=2, padding=1)
        self.words = nn.Embedding(7, width)
        self.register_buffer("tokens", torch.tensor([3]))
        with torch.no_grad():
            for parameter in (self.norm.weight, self.norm.bias, self.group.weight, self.rms.weight, self.slopes.weight):
                parameter.normal_()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self, self.a(x)).flatten(1))


def attend(module: Lambda, h: Tensor, **how: object) -> Tensor:
    q = h.reshape(-1, 1, 3, 4)
    return F.scaled_dot_product_attention(q, q.flip(2), torch.tanh(q), **how)  # type: ignore[arg-type]


HIDE = torch.tensor([[True, True, False], [True, False, True], [False, True, True]])
CASES: dict[str, Callable[[], nn.Module]] = {
    "subtraction": lambda: Lambda(lambda m, h: 1.5 - torch.relu(h) - h * 0.5),
    "parameter": lambda: Lambda(lambda m, h: torch.relu(h) * m.factor / (1 + m.factor.square())),
    "product": lambda: Lambda(lambda m, h: torch.sigmoid(h) * h.flip(1)),
    "gated": lambda: Lambda(lambda m, h: h[:, :6] * torch.sigmoid(h[:, 6:]), wide=6),
    "square": lambda: Lambda(lambda m, h: h * h - h.pow(2).mean(1, keepdim=True)),
    "prelu": lambda: Lambda(lambda m, h: m.slopes(h)),
    "hardswish": lambda: Lambda(lambda m, h: F.hardswish(h)),
    "transposed": lambda: Lambda(lambda m, h: torch.relu(m.up(h.reshape(-1, 3, 4))), wide=24),
    "layer norm": lambda: Lambda(lambda m, h: torch.relu(m.norm(h))),
    "group norm": lambda: Lambda(lambda m, h: torch.relu(m.group(h))),
    "rms norm": lambda: Lambda(lambda m, h: torch.relu(m.rms(h))),
    "instance norm": lambda: Lambda(lambda m, h: torch.relu(m.instance(h.reshape(-1, 3, 4)))),
    "attention": lambda: Lambda(attend),
    "causal attention": lambda: Lambda(lambda m, h: attend(m, h, is_causal=True, scale=0.7)),
    "masked attention": lambda: Lambda(lambda m, h: attend(m, h, attn_mask=HIDE)),
    "matrix product": lambda: Lambda(lambda m, h: torch.relu(h).reshape(-1, 3, 4) @ h.reshape(-1, 4, 3), wide=9),
    "embedding": lambda: Lambda(lambda m, h: torch.relu(h + m.words(m.tokens))),
    "softplus": lambda: Lambda(lambda m, h: F.softplus(h * 9, threshold=25.0)),
}


def largest(model: nn.Module, pruned: nn.Module, points: Tensor) -> Tensor:
    with torch.no_grad():
        return (pruned(points).double() - model(points).double()).flatten(1).norm(dim=1)


@pytest.mark.parametrize("name", CASES)
def test_operators_are_sound_and_say_something(name: str) -> None:
    torch.manual_seed(3)
    model = CASES[name]().eval()
    masks = prunus.find_masks(model, 0.3, exclude=("words",))
    pruned = masks.apply_(copy.deepcopy(model))
    centre = torch.randn(6)
    for radius in (0.01, 0.5):
        noise = torch.randn(3000, 6)
        points = centre + radius * 0.999999 * noise / noise.norm(dim=1, keepdim=True) * torch.rand(3000, 1) ** 0.2
        domain = prunus.Ball(radius, centre)
        options = CertifyOptions(tune=False)
        cert = prunus.certify(model, masks, domain, attack=AttackSettings(starts=4, steps=15), options=options)
        assert float(largest(model, pruned, points).max()) <= cert.bound
        assert cert.attained is not None
        assert cert.attained <= cert.bound
        if radius == 0.01:
            assert cert.bound < 1.5 * cert.attained


class Encoder(nn.Module):
    """Two layers of torch's own text encoder on the embeddings of fixed tokens; the input is added to them."""

    def __init__(self, tokens: int = 5, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.register_buffer("tokens", torch.randint(0, 50, (tokens,)))
        layer = nn.TransformerEncoderLayer(width, 2, 24, 0.1, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(self.tokens) + x)[:, 0])


def test_a_text_encoder_is_certified_near_a_point() -> None:
    torch.manual_seed(0)
    model = Encoder().eval()
    masks = prunus.find_masks(model, 0.3, exclude=("words",))
    pruned = masks.apply_(copy.deepcopy(model))
    domain = prunus.Ball(0.001, torch.zeros(5, 16))
    cert = prunus.certify(model, masks, domain, attack=AttackSettings(starts=4, steps=10))
    points = torch.randn(500, 5, 16)
    points = 0.000999 * points / points.flatten(1).norm(dim=1)[:, None, None]
    assert float(largest(model, pruned, points).max()) <= cert.bound < 2 * cert.attained  # type: ignore[operator]


def test_a_mask_that_hides_a_row_and_a_norm_without_eps_are_refused() -> None:
    hide = torch.zeros(3, 3, dtype=torch.bool)
    for between, words in (
        (lambda m, h: attend(m, h, attn_mask=hide), "hides a whole row"),
        (lambda m, h: F.layer_norm(h, (12,), eps=0.0), "positive eps"),
        (lambda m, h: h.pow(3), "only the square"),
        (lambda m, h: h / (1 + h.abs()), "no certificate rule"),
    ):
        model = Lambda(between).eval()
        with pytest.raises(BadInput, match=words):
            prunus.certify(model, prunus.find_masks(model, 0.3), prunus.Ball(1.0, torch.zeros(6)), attack=False)

"""What a recorder hands over, multiplied with the weight's rows, is the layer's output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.layers import prunable_weights
from prunus.recovery._record import Recorder, Use, plain_layers

LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (5, 3, 6)),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 7, 6)),
    "dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2, padding=2), (2, 4, 9, 8)),
    "same": (lambda: nn.Conv2d(4, 6, (2, 3), padding="same"), (2, 4, 5, 5)),
    "circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (2, 4, 5, 5)),
    "grouped": (lambda: nn.Conv2d(8, 12, 3, groups=4), (2, 8, 5, 6)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), (2, 8, 5, 6)),
    "one-dimensional": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "three-dimensional": (lambda: nn.Conv3d(3, 5, (1, 2, 3), stride=(1, 2, 1)), (2, 3, 4, 6, 5)),
    "one image": (lambda: nn.Conv2d(4, 6, 3), (4, 6, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 5, 4)),
    "transposed, grouped": (lambda: nn.ConvTranspose1d(4, 6, 4, stride=3, groups=2, dilation=2), (2, 4, 6)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_columns_times_rows_are_the_outputs(kind: str) -> None:
    make, shape = LAYERS[kind]
    torch.manual_seed(0)
    module = make().double()
    (weight,) = prunable_weights(module).values()
    uses: list[Use] = []
    with torch.no_grad(), Recorder([weight], uses.append):
        output = module(torch.randn(shape, dtype=torch.float64))
    (use,) = uses
    columns = use.columns()
    rows = weight.rows(weight.parameter.detach()).reshape(columns.shape[1], -1, columns.shape[2])
    made = torch.einsum("ngk,grk->grn", columns, rows).flatten(0, 1) + module.bias.detach().unsqueeze(1)
    torch.testing.assert_close(
        made,
        (output if output.dim() > 3 or kind != "one image" else output[None])
        .movedim(1 if kind != "linear" else -1, 0)
        .flatten(1),
    )


def test_weights_are_seen_through_attention_and_its_slices() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    weights = prunable_weights(attention)
    x, y = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    uses: list[Use] = []
    with torch.no_grad(), plain_layers(attention), Recorder(weights.values(), uses.append):
        attention(x, y, y, need_weights=False)
    seen = {(use.weight.attribute, use.rows) for use in uses}
    assert seen == {("in_proj_weight", (0, 8)), ("in_proj_weight", (8, 24)), ("weight", (0, 8))}


class _Mixer(nn.Module):
    """Layers over positions, over their slices, and over columns."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.bare, self.columns = nn.Linear(6, 6), nn.Linear(8, 8, bias=False), nn.Linear(8, 4)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(x.transpose(1, 2)).transpose(1, 2)
        x = x[:, :3] + self.bare(x[:, :3])
        return self.columns(self.attention(x[:, :2], x, x, need_weights=False)[0])


def test_whether_weights_need_gradients_changes_nothing() -> None:
    torch.manual_seed(0)
    models = [_Mixer(), _Mixer().requires_grad_(False)]
    models[1].load_state_dict(models[0].state_dict())
    data = torch.randn(64, 6, 8)
    for model in models:
        prunus.reconstruct(model, 0.5, data, pattern="unstructured", samples=64)
        assert all(parameter.requires_grad is (model is models[0]) for parameter in model.parameters())
    for (name, one), two in zip(models[0].state_dict().items(), models[1].state_dict().values()):
        torch.testing.assert_close(one, two, msg=name)


def test_a_frozen_weight_is_seen_with_inputs_in_pieces() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4, bias=False).double().requires_grad_(False)
    uses: list[Use] = []
    with torch.no_grad(), Recorder(prunable_weights(layer).values(), uses.append):
        output = layer(torch.randn(5, 6, 3, dtype=torch.float64).transpose(1, 2))
    (use,) = uses
    torch.testing.assert_close(use.columns()[:, 0] @ layer.weight.T, output.flatten(0, 1))
    torch.testing.assert_close(use.output, output.flatten(0, 1))


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_matrices_are_seen_step_by_step(make: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    layer = make(6, 8, num_layers=2, bidirectional=True, batch_first=True).eval()
    weights = prunable_weights(layer)
    counts: dict[str, int] = {}
    x = torch.randn(3, 5, 6)
    with (
        torch.no_grad(),
        plain_layers(layer),
        Recorder(
            weights.values(),
            lambda use: counts.update({use.weight.name: counts.get(use.weight.name, 0) + len(use.columns())}),
        ),
    ):
        layer(x)
    assert counts == dict.fromkeys(weights, 15)


def test_padded_positions_are_left_out() -> None:
    layer = nn.Linear(4, 3)
    keep = torch.tensor([[True, True, False], [True, False, False]])
    uses: list[Use] = []
    with Recorder(prunable_weights(layer).values(), uses.append, keep=(keep,)):
        layer(torch.randn(2, 3, 4))
    assert uses[0].columns().shape == (3, 1, 4)

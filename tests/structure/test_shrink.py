"""Shrinking: exact against masks, honest about what is fixed, and harmless to the model it is given."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.structure import find_removal, load, save
from support.fresh import run_fresh


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def gap(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max() / right.abs().max())


@pytest.mark.parametrize("name", ["fc:16-48-32-4", "lenet5", "resnet20", "lstm:vocabulary=50", "vgg11:width=0.25"])
def test_zoo_networks_keep_class_keys_and_outputs(name: str) -> None:
    model = _zoo(name)
    example = prunus.adapters.example_input(model) if "lstm" not in name else torch.randint(1, 50, (2, 9))
    before = copy.deepcopy(model.state_dict())
    removal = find_removal(model, 0.5, example=example)
    small = removal.apply()
    assert type(small) is type(model)
    assert list(small.state_dict()) == list(model.state_dict())
    assert 0.4 < removal.share <= 0.5
    assert count(small) < count(model)
    masked = removal.masks.apply_(copy.deepcopy(model))
    with torch.no_grad():
        assert gap(small(example), masked(example)) < 1e-4
    small(example).sum().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def _zoo(name: str) -> nn.Module:
    try:
        return prunus.models.make(name, seed=0).eval()
    except prunus.BadInput:
        return prunus.models.make(name.partition(":")[0], seed=0).eval()


def test_parameters_are_a_measure_too() -> None:
    model = prunus.models.make("fc:16-64-64-4", seed=0).eval()
    small = prunus.shrink(model, 0.5, example=torch.zeros(1, 16), measure="parameters")
    assert 0.45 * count(model) < count(small) <= 0.5 * count(model)


def test_excluded_layers_keep_their_outputs() -> None:
    model = prunus.models.make("fc:16-64-64-4", seed=0).eval()
    removal = find_removal(model, 0.6, example=torch.zeros(1, 16), exclude=("layers.0",))
    assert [row.name for row in removal.rows] == ["layers.1"]
    assert removal.apply().layers[0].out_features == 64


def test_same_seed_same_bytes() -> None:
    model = prunus.models.make("lenet5", seed=0).eval()
    one, two = (prunus.shrink(model, 0.5, example=torch.zeros(1, 1, 28, 28), score="random", seed=3) for _ in range(2))
    assert all(torch.equal(one.state_dict()[key], value) for key, value in two.state_dict().items())


def test_widths_are_multiples_when_asked() -> None:
    model = prunus.models.make("fc:16-64-64-4", seed=0).eval()
    removal = find_removal(model, 0.5, example=torch.zeros(1, 16), multiple=8)
    assert all(row.after % 8 == 0 for row in removal.rows)
    assert removal.share <= 0.5


def test_fractions_by_name() -> None:
    model = prunus.models.make("fc:16-64-64-4", seed=0).eval()
    removal = find_removal(model, {"layers.1": 0.25}, example=torch.zeros(1, 16))
    assert [(row.before, row.after) for row in removal.rows] == [(64, 64), (64, 16)]


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(6, 20, bias=False), nn.Linear(6, 20, bias=False)
            self.down.weight = self.up.weight

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.up(x)) @ self.down.weight

    small = prunus.shrink(Tied().eval(), 0.5, example=torch.randn(2, 6))
    assert small.up.weight is small.down.weight
    assert small.up.weight.shape == (10, 6)


def test_a_size_written_in_the_code_is_found_and_named() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.a(x)).view(-1, 24)
            return self.c(torch.relu(self.b(x)))

    removal = find_removal(Stubborn().eval(), 0.7, example=torch.randn(2, 8))
    assert [row.name for row in removal.rows] == ["b"]
    assert any(each.name == "a" and "Stubborn" in each.reason for each in removal.fixed)
    with pytest.raises(prunus.BadInput, match="cannot be brought"):
        prunus.shrink(Stubborn().eval(), 0.1, example=torch.randn(2, 8))


def test_data_makes_it_better_than_magnitude() -> None:
    train, test = prunus.data.load("digits", split="train"), prunus.data.load("digits", split="test")
    model = prunus.models.make("fc:64-96-48-10", seed=0)
    prunus.training.fit(model, train, length="6ep")
    model.eval()
    example = torch.zeros(1, 64)
    plain = prunus.shrink(model, 0.2, example=example)
    solved = prunus.shrink(model, 0.2, example=example, data=train, samples=384)
    accuracy = prunus.training.accuracy
    assert accuracy(solved, test) > accuracy(plain, test)
    assert accuracy(solved, test) > accuracy(model, test) - 0.05
    taylor = prunus.shrink(model, 0.2, example=example, data=train, score="taylor", allocation="global")
    assert accuracy(taylor, test) > 0.5


def test_masks_of_a_removal_can_be_certified() -> None:
    model = prunus.models.make("fc:6-16-3", seed=0).eval()
    removal = find_removal(model, 0.5, example=torch.zeros(1, 6))
    certificate = prunus.certify(model, removal.masks, prunus.Ball(radius=0.5))
    inputs = torch.nn.functional.normalize(torch.randn(200, 6)) * 0.5
    with torch.no_grad():
        worst = float((model(inputs) - removal.apply()(inputs)).norm(dim=1).max())
    assert worst <= certificate.bound * (1 + 1e-5)
    tolerance = 1.05 * certificate.bound
    verdict = prunus.equivalent(model, removal.masks, prunus.Ball(radius=0.5), tolerance=tolerance, norm=2, boxes=50)
    assert verdict.status == "proved"
    assert worst <= verdict.bound <= tolerance


def test_a_plan_of_whole_channels_can_be_removed() -> None:
    model = prunus.models.make("fc:6-16-16-3", seed=0).eval()
    ball = prunus.Ball(radius=0.5)
    asked = find_removal(model, 0.7, example=torch.zeros(1, 6))
    error = prunus.certify(model, asked.masks, ball, attack=False).bound
    settings = prunus.certificates.PlanSettings(rounds=1, grid=(0.25, 0.5))
    plan = prunus.plan(model, ball, error=error, pattern="channels", exclude=("layers.2",), settings=settings)
    assert plan.bound <= error
    for mask in plan.masks.values():
        rows = mask.flatten(1)
        assert bool((rows.all(1) | ~rows.any(1)).all()), "a row stays or goes as a whole"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fraction": 0.0}, "between 0 and 1"),
        ({"fraction": 1.0}, "between 0 and 1"),
        ({"fraction": float("nan")}, "between 0 and 1"),
        ({"fraction": True}, "between 0 and 1"),
        ({"example": None}, "example"),
        ({"example": torch.zeros(1, 7)}, "does not run"),
        ({"measure": "speed"}, "multiply-adds"),
        ({"score": "taylor"}, "needs data"),
        ({"score": "magnitud"}, "did you mean 'magnitude'"),
        ({"exclude": ("nothing",)}, "matches no layer"),
        ({"exclude": ("*",)}, "nothing to remove"),
        ({"fraction": {"missing": 0.5}}, "matches no group"),
        ({"fraction": {}}, "name at least one"),
        ({"multiple": 0}, "at least 1"),
        ({"colour": "red"}, "option of shrink"),
    ],
)
def test_bad_input_is_one_sentence(changes: dict[str, Any], text: str) -> None:
    model = prunus.models.make("fc:6-16-3", seed=0).eval()
    arguments: dict[str, Any] = {"fraction": 0.5, "example": torch.zeros(1, 6), **changes}
    with pytest.raises(prunus.BadInput, match=text):
        prunus.shrink(model, arguments.pop("fraction"), **arguments)


def test_weights_that_are_no_numbers_are_refused() -> None:
    model = prunus.models.make("fc:6-16-3", seed=0).eval()
    with torch.no_grad():
        model.layers[1].weight[0, 0] = torch.nan
    with pytest.raises(prunus.BadInput, match=r"'layers\.1\.weight' holds NaN"):
        prunus.shrink(model, 0.5, example=torch.zeros(1, 6))


def test_saved_models_load_in_a_fresh_process(tmp_path: Path) -> None:
    model = prunus.models.make("resnet20", seed=0).eval()
    small = prunus.shrink(model, 0.5, example=torch.zeros(1, 3, 32, 32))
    save(small, tmp_path / "small.safetensors")
    code = (
        "import torch, prunus\n"
        "with torch.device('meta'): model = prunus.models.make('resnet20')\n"
        "model = prunus.structure.load('small.safetensors', model).eval()\n"
        "torch.manual_seed(1); print(model(torch.randn(1, 3, 32, 32)).double().sum().item())"
    )
    result = run_fresh(code, cwd=tmp_path, seconds=120)
    assert result.returncode == 0, result.stderr[-1500:]
    torch.manual_seed(1)
    with torch.no_grad():
        assert float(result.stdout) == pytest.approx(small(torch.randn(1, 3, 32, 32)).double().sum().item(), abs=1e-5)


def test_a_layer_with_two_names_is_saved_and_loaded(tmp_path: Path) -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layers, self.head = nn.Linear(6, 12), nn.ModuleList([nn.Linear(12, 12)]), nn.Linear(12, 3)
            self.again = self.layers[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.again(torch.relu(self.layers[0](torch.relu(self.first(x)))))))

    torch.manual_seed(0)
    x = torch.randn(2, 6)
    small = prunus.shrink(Again().eval(), 0.5, example=x)
    save(small, tmp_path / "small.safetensors")
    again = load(tmp_path / "small.safetensors", Again()).eval()
    assert again.again.weight is again.layers[0].weight
    assert again.again.in_features < 12
    with torch.no_grad():
        assert torch.equal(again(x), small(x))


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    save(prunus.models.make("fc:6-16-3"), tmp_path / "one.safetensors")
    with pytest.raises(prunus.BadInput, match="another model"):
        load(tmp_path / "one.safetensors", prunus.models.make("lenet5"))
    (tmp_path / "two.safetensors").write_bytes(b"nothing")
    with pytest.raises(prunus.BadFile):
        load(tmp_path / "two.safetensors", prunus.models.make("lenet5"))


def test_whole_blocks_leave_by_the_change_of_the_output(tmp_path: Path) -> None:
    model = prunus.models.make("resnet20", seed=0).eval()
    torch.manual_seed(0)
    for block in (model.layer1[1], model.layer3[2]):
        block.bn2.weight.data.zero_()  # these two do next to nothing
        block.bn2.bias.data.zero_()
    example = torch.randn(4, 3, 32, 32)
    removal = find_removal(model, 0.75, example=example, depth=True)
    small = removal.apply()
    assert set(removal.blocks) == {"layer1.1", "layer3.2"}
    assert 0.7 < removal.share <= 0.75
    assert len(small.layer1) == len(small.layer3) == 2
    assert len(model.layer1) == 3
    assert {row.kind for row in removal.rows} == {"block", "channels"}
    masked = removal.masks.apply_(copy.deepcopy(model))
    with torch.no_grad():
        assert gap(small(example), masked(example)) < 1e-4  # the blocks that left did nothing
    save(small, tmp_path / "small.safetensors")
    again = load(tmp_path / "small.safetensors", prunus.models.make("resnet20")).eval()
    with torch.no_grad():
        assert torch.equal(again(example), small(example))
    with pytest.raises(prunus.BadInput, match="another model"):
        other = prunus.models.make("vgg11:width=0.25")
        load(tmp_path / "small.safetensors", other)
    history = prunus.training.distil(small, model, torch.randn(8, 3, 32, 32), "2it")
    assert history[-1].loss >= 0
    only = find_removal(model, 0.8, example=example, depth=True, exclude="*")
    assert {row.kind for row in only.rows} == {"block"}
    assert only.share <= 0.8


def test_one_sample_is_enough_to_tell_how_much_a_block_changes() -> None:
    model = prunus.models.make("resnet20", seed=0).eval()
    example = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    removal = find_removal(model, 0.8, example=example, depth=True)
    changes = [row.damage for row in removal.rows if row.kind == "block"]
    assert changes
    assert all(change is not None and 0 <= change < 1e3 for change in changes)


def test_a_network_without_residual_blocks_has_none_to_remove() -> None:
    with pytest.raises(prunus.BadInput, match="no residual block"):
        prunus.shrink(prunus.models.make("fc:8-8-8-8", seed=0).eval(), 0.5, example=torch.randn(2, 8), depth=True)


def test_time_is_a_measure_too() -> None:
    model = prunus.models.make("fc:256-1024-1024-10", seed=0).eval()
    removal = find_removal(model, 0.6, example=torch.randn(16, 256), measure="time", multiple=16)
    assert removal.share <= 0.6
    assert count(removal.apply()) < 0.9 * count(model)
    assert all(row.after % 16 == 0 for row in removal.rows)
    with pytest.raises(prunus.BadInput, match="need one number"):
        prunus.shrink(model, {"layers.0": 0.5}, example=torch.randn(16, 256), measure="time")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_units_of_recurrent_layers_leave(kind: type[nn.RNNBase], bidirectional: bool) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = kind(6, 20, num_layers=2, batch_first=True, bidirectional=bidirectional)
            self.head = nn.Linear(40 if bidirectional else 20, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cells(x)[0])

    torch.manual_seed(0)
    model, x = Tagger().eval(), torch.randn(2, 7, 6)
    removal = find_removal(model, 0.5, example=x)
    small = removal.apply()
    assert {row.kind for row in removal.rows} == {"units"}
    assert small.cells.hidden_size < 20
    with torch.no_grad():
        assert gap(small(x), removal.masks.apply_(copy.deepcopy(model))(x)) < 1e-4


def test_smaller_models_compile_export_and_go_to_onnx(tmp_path: Path) -> None:
    model = prunus.models.make("lenet5", seed=0).eval()
    small = prunus.shrink(model, 0.5, example=torch.zeros(1, 1, 28, 28))
    x = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        expected = small(x)
        assert gap(torch.compile(small, backend="aot_eager")(x), expected) < 1e-5
        assert gap(torch.export.export(small, (x,)).module()(x), expected) < 1e-5
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.onnx.export(small, (x,), tmp_path / "small.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert gap(torch.from_numpy(found), expected) < 1e-4


def test_a_model_that_cannot_be_read_is_refused_and_untouched(capfd: pytest.CaptureFixture[str]) -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 24), nn.Linear(24, 2)

        def forward(own, x: Tensor) -> Tensor:
            hidden = torch.relu(own.a(x))
            return own.b(hidden if float(hidden.sum()) > 1 else -hidden)

    model = Moody().train()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(prunus.BadInput, match=r"Moody\.forward, line \d+"):
        prunus.shrink(model, 0.5, example=torch.randn(2, 8))
    assert "".join(capfd.readouterr()) == "", "the sentence is all; torch's own messages are held back"
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_layer_that_runs_twice_on_different_inputs_keeps_its_equal() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(6, 20), nn.Linear(6, 20)
            self.shared, self.head = nn.Linear(20, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            one, two = torch.relu(self.left(x)), torch.tanh(self.right(x))
            return self.head(torch.relu(self.shared(one)) * self.shared(two))

    torch.manual_seed(0)
    model, x = Twice().train(), torch.randn(4, 6)
    removal = find_removal(model, 0.5, example=x)
    small = removal.apply()
    assert small.training
    assert small.left.out_features == small.right.out_features == small.shared.in_features < 20
    with torch.no_grad():
        assert gap(small(x), removal.masks.apply_(copy.deepcopy(model))(x)) < 1e-4


def test_columns_of_an_embedding_leave_only_when_it_is_named() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.cells, self.head = nn.Embedding(30, 24), nn.GRU(24, 20, batch_first=True), nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cells(x)[0][:, -1]) if x.is_floating_point() else self.forward(self.table(x))

    torch.manual_seed(0)
    model, words = Words().eval(), torch.randint(30, (2, 7))
    assert prunus.shrink(model, 0.6, example=words).table.embedding_dim == 24
    removal = find_removal(model, 0.6, example=words, embeddings=("table",))
    small = removal.apply()
    assert small.table.embedding_dim == small.table.weight.shape[1] == small.cells.input_size < 24
    other = torch.randint(30, (3, 5))
    with torch.no_grad():
        assert gap(small(other), removal.masks.apply_(copy.deepcopy(model))(other)) < 1e-4


def test_few_samples_do_not_make_a_wide_layer_look_empty() -> None:
    """Sixteen rows can be answered with sixteen of two hundred columns; that says nothing about other rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 40)).eval()
    data = torch.randn(16, 64)
    removal = find_removal(model, 0.7, example=data[:1], data=data, samples=16)
    assert min(row.after for row in removal.rows) > 50
    test = torch.randn(500, 64)
    with torch.no_grad():
        wanted = model(test)
        lost = (removal.apply()(test) - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum()
    assert float(lost) < 0.5

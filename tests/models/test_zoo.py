from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prunus.errors import BadInput, UnknownName
from prunus.models import describe, make, names, resolve, save_weights

LARGE = {"imagenet-resnet101", "wide-resnet50-2"}  # built on the meta device only: the others share their code


def built(name: str) -> str:
    return "fc:12-8-5" if name == "fc" else name


def example(name: str, count: int = 2) -> Tensor:
    entry = describe(built(name))
    assert entry.input is not None
    generator = torch.Generator().manual_seed(0)
    if "lstm" in name:
        return torch.randint(1, 100, (count, 12), generator=generator)
    side = 64 if entry.input[-1] == 224 else entry.input[-1]
    return torch.randn(count, *[side if size == 224 else size for size in entry.input], generator=generator)


@pytest.mark.parametrize("name", [name for name in names() if name not in LARGE])
def test_every_network_runs_and_copies(name: str) -> None:
    torch.manual_seed(0)
    model = make(built(name), width=0.25).eval()
    x = example(name)
    with torch.no_grad():
        y = model(x)
        assert y.shape == (2, describe(built(name)).outputs)
        assert torch.isfinite(y).all()
        assert torch.equal(copy.deepcopy(model)(x), y)
        torch.testing.assert_close(model(x[:1]), y[:1], rtol=1e-4, atol=1e-4)  # examples do not see each other


@pytest.mark.parametrize("name", names())
def test_every_network_is_built_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = make(built(name), init="kaiming_uniform")
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert model.state_dict()


@pytest.mark.parametrize("name", ["fc", "lenet5", "conv6", "vgg11", "resnet20", "resnet18", "bilstm"])
@pytest.mark.filterwarnings("ignore:The tensor attributes")  # torch's own LSTM, while being exported
def test_export_gives_the_same_function(name: str) -> None:
    model = make(built(name), width=0.25, seed=0).eval()
    x = example(name, count=3)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    for size in (2, 3):
        torch.testing.assert_close(exported.module()(x[:size]), model(x[:size]))


def convolution_weights(model: nn.Module, linear: bool = False) -> float:
    kinds = (nn.Conv2d, nn.Linear) if linear else (nn.Conv2d,)
    return sum(module.weight.numel() for module in model.modules() if isinstance(module, kinds)) / 1e6


def test_parameter_counts_of_the_ledger() -> None:
    """I-13, I-17: table 4 counts convolutions, table 9 convolutions and the linear layer, in millions."""
    with torch.device("meta"):
        assert round(convolution_weights(make("imagenet-resnet18")), 2) == 11.17
        assert round(convolution_weights(make("imagenet-resnet34")), 2) == 21.27
        assert round(0.3 * convolution_weights(make("imagenet-resnet34")), 2) == 6.38
        assert round(0.3 * convolution_weights(make("imagenet-resnet50")), 2) == 7.04
        assert round(0.3 * convolution_weights(make("imagenet-resnet101")), 2) == 12.72
        assert round(convolution_weights(make("wide-resnet50-2"), linear=True), 2) == 68.81
        assert round(convolution_weights(make("imagenet-resnet50", width=2), linear=True), 2) == 97.85


@pytest.mark.parametrize(
    "name, count",
    [
        ("lenet5", 61_706),
        ("resnet20", 269_722),
        ("resnet32", 464_154),
        ("resnet44", 658_586),
        ("resnet56", 853_018),
        ("imagenet-resnet18", 11_689_512),
        ("imagenet-resnet50", 25_557_032),
        ("wide-resnet50-2", 68_883_240),
    ],
)
def test_published_parameter_counts(name: str, count: int) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in make(name).parameters()) == count


def test_options_in_the_string_equal_options_in_the_call() -> None:
    with torch.device("meta"):
        text = make("resnet20:width=2,affine=false,init=signed_constant")
        call = make("resnet20", width=2, affine=False, init="signed_constant")
    assert {k: v.shape for k, v in text.state_dict().items()} == {k: v.shape for k, v in call.state_dict().items()}
    assert text.get_parameter("conv1.weight").shape == (32, 3, 3, 3)
    assert not [name for name, _ in text.named_parameters() if "bn" in name]


@pytest.mark.parametrize(
    "spec", ["conv6:width=0.1,channels=1,size=28,classes=7", "resnet20:classes=100", "vgg11", "fc:6-4"]
)
def test_describe_follows_the_options(spec: str) -> None:
    entry = describe(spec)
    assert entry.input is not None
    assert make(spec, seed=0).eval()(torch.zeros(1, *entry.input)).shape == (1, entry.outputs)


def test_a_seed_fixes_the_bytes_and_leaves_the_global_stream_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, second = make("fc:9-9-9", seed=3), make("fc:9-9-9", seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    assert not torch.equal(next(make("fc:9-9-9", seed=4).parameters()), next(first.parameters()))


@pytest.mark.parametrize(
    "spec, options, sentence",
    [
        ("conv6:width=0", {}, "width factor of 'conv6' is 0.0"),
        ("conv6", {"width": float("nan")}, "width factor of 'conv6' is nan"),
        ("conv6:width=wide", {}, "width of the model 'conv6' must be a number"),
        ("conv6:affine=true", {}, "no option of the model 'conv6' named 'affine'"),
        ("resnet20:affine=maybe", {}, "must be true or false"),
        ("resnet20:classes=-1", {}, "must be a positive whole number"),
        ("resnet20", {"classes": 2.5}, "must be a positive whole number"),
        ("resnet20:affine", {}, "write affine=value"),
        ("conv6:width=2,width=3", {}, "gives width twice"),
        ("conv6:width=2", {"width": 3.0}, "already gives width"),
        ("conv6:size=4", {}, "cannot take images of side 4"),
        ("fc", {}, "needs its sizes"),
        ("lstm:dropout=1", {}, "dropout of an LSTM classifier is 1.0"),
        ("lstm:binary=true,classes=3", {}, "cannot tell 3 classes apart"),
    ],
)
def test_bad_options_are_one_sentence(spec: str, options: dict[str, float], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        make(spec, **options)  # type: ignore[arg-type]
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_zoo() -> None:
    for call in (make, resolve, describe):
        with pytest.raises(UnknownName, match=r"no model named 'resnet21'.*wide-resnet50-2.*did you mean 'resnet"):
            call("resnet21")


FACTORY = """
import torch
def factory(): return torch.nn.Linear(3, 2)
module = torch.nn.Linear(3, 1)
def fails(): raise RuntimeError("no such planet")
def wrong(): return 3
number = 4
"""


def test_resolve_finds_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(FACTORY)
    (tmp_path / "broken_models.py").write_text("def :\n")
    monkeypatch.chdir(tmp_path)  # as with a console script: the folder is not on sys.path
    assert resolve("own_models:factory").weight.shape == (2, 3)
    assert resolve("own_models:module").weight.shape == (1, 3)
    trained = nn.Linear(3, 2)
    file = save_weights(trained, tmp_path / "w.safetensors")
    assert torch.equal(resolve("own_models:factory", str(file)).weight, trained.weight)
    for spec, sentence in {
        "own_models:fails": "failed with RuntimeError: no such planet",
        "own_models:wrong": "returned an object of type int",
        "own_models:number": "is an object of type int",
        "own_models:absent": "has no 'absent'",
        "no.such.module:factory": "there is no module 'no'",
        "broken_models:factory": "fails with SyntaxError",
        str(tmp_path): f"write hf:{tmp_path}",
        str(file): "--weights",
    }.items():
        with pytest.raises(BadInput) as caught:
            resolve(spec)
        assert sentence in str(caught.value)

from __future__ import annotations

import copy
import itertools
import warnings

import pytest
import torch
from torch import nn

import prunus
from prunus.errors import BadInput, PrunusWarning
from prunus.layers import all_weights, plain_names, prunable_weights, unrecognised
from prunus.models import load_weights, save_weights
from support.foreign import KINDS, small


class Strange(nn.Module):
    """A linear layer that is none of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(6, 8))
        self.scale = nn.Parameter(torch.ones(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale) @ self.kernel.t()


@pytest.mark.parametrize("kind", KINDS)
def test_every_matrix_of_known_models_is_recognised_and_counted(kind: str) -> None:
    model = small(kind)
    assert not unrecognised(model)
    weights = prunable_weights(model)
    dense = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    matrices = {
        id(parameter): parameter.numel()
        for module in model.modules()
        if "Norm" not in type(module).__name__
        for parameter in module.parameters(recurse=False)
        if parameter.dim() > 1 and parameter.shape[0] > 1 and id(parameter) not in dense
    }
    assert sum(weight.numel for weight in weights.values()) == sum(matrices.values())
    for weight in all_weights(model).values():
        rows = weight.rows(weight.parameter.detach())
        assert torch.equal(weight.unrows(rows), weight.parameter.detach())


def test_gpt2_is_pruned_where_its_weights_are() -> None:
    model = small("gpt2")
    masks = prunus.prune(model, 0.75, pattern="balanced:16")
    assert set(masks) == {
        f"transformer.h.{i}.{name}.weight"
        for i in (0, 1)
        for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    weight = model.transformer.h[0].mlp.c_fc.weight  # (inputs, outputs): banks run along the inputs
    assert ((weight.reshape(4, 16, -1) != 0).sum(1) == 4).all()


def test_a_head_tied_to_an_embedding_is_dense_unless_it_is_named() -> None:
    model = small("llama-tied")
    assert not any(
        "embed" in name or "lm_head" in name for name in prunus.find_masks(model, 0.5, exclude=("lm_head*",))
    )
    for name in ("lm_head", "lm_head.weight", "model.embed_tokens", "*embed*"):
        assert list(prunus.find_masks(model, {name: 0.5})) == ["model.embed_tokens.weight"]
    assert "model.embed_tokens.weight" not in prunus.find_masks(model, {"*": 0.5})
    untied = small("llama")
    assert "lm_head.weight" in prunus.find_masks(untied, 0.5)
    assert "lm_head.weight" not in prunus.find_masks(untied, 0.5, exclude=("lm_head*",))


def test_a_head_before_its_table_is_an_embedding_too() -> None:
    model = nn.ModuleDict({"head": nn.Linear(4, 10, bias=False), "table": nn.Embedding(10, 4), "rest": nn.Linear(4, 4)})
    model["head"].weight = model["table"].weight
    assert list(prunable_weights(model)) == ["rest.weight"]
    assert all_weights(model)["head.weight"].names == ("head.weight", "table.weight")


def test_a_tensor_shared_by_linear_layers_is_excluded_under_either_name() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    assert list(prunus.find_masks(model, 0.5, exclude=("b",))) == ["c.weight"]


def test_unknown_weights_are_reported() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Strange())
    assert unrecognised(model) == {"1.kernel": "Strange"}
    with pytest.warns(PrunusWarning, match=r"1\.kernel of Strange"):
        masks = prunus.find_masks(model, 0.5)
    assert masks.notes["unrecognised"] == ["1.kernel"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prunus.find_masks(model, 0.5, exclude=("1",))
    with pytest.raises(BadInput, match="kernel of Strange"):
        prunus.find_masks(Strange(), 0.5)
    with pytest.raises(BadInput, match="only embeddings"):
        prunus.find_masks(nn.Sequential(nn.Embedding(4, 4)), 0.5)


def test_misfits_are_named_together_or_skipped() -> None:
    model = nn.Sequential(nn.Conv2d(32, 32, 3, groups=32), nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 3, groups=32))
    with pytest.raises(BadInput, match=r"0\.weight.*2\.weight.*skip"):
        prunus.find_masks(model, 0.75, pattern="balanced:16")
    masks = prunus.find_masks(model, 0.75, pattern="balanced:16", misfits="skip")
    assert list(masks) == ["1.weight"]
    assert masks.notes["skipped"] == ["0.weight", "2.weight"]
    with pytest.raises(BadInput, match="ask for 0"):
        prunus.find_masks(model, 0.75, pattern="2:4", misfits="skip")  # no layer fits: the sparsity is at fault
    with pytest.raises(BadInput, match="misfits"):
        prunus.find_masks(model, 0.75, misfits="drop")


def test_wrapped_models_have_one_name_everywhere(tmp_path) -> None:
    plain = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 2))
    inner = torch.compile(plain[0])
    wrapped = nn.Sequential(inner, plain[1])
    assert list(prunus.find_masks(wrapped, 0.5)) == list(prunus.find_masks(plain, 0.5))
    save_weights(wrapped, tmp_path / "wrapped.safetensors")
    save_weights(plain, tmp_path / "plain.safetensors")
    assert (tmp_path / "wrapped.safetensors").read_bytes() == (tmp_path / "plain.safetensors").read_bytes()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    load_weights(wrapped, tmp_path / "plain.safetensors")
    assert plain[1].weight.abs().sum() > 0
    assert set(plain_names(wrapped.state_dict()).values()) == set(plain.state_dict())


def test_wanda_compares_within_an_output_row() -> None:
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(24, 10)), torch.randn(40, 24)
    with torch.no_grad():
        model[0].weight[0] *= 100  # by layer this row would lose nothing
    mask = prunus.find_masks(model, 0.5, score="wanda", data=data)["0.weight"]
    assert (mask.sum(1) == 12).all()
    score = model[0].weight.detach().abs() * data.norm(dim=0)
    assert torch.equal(mask, score >= score.sort(1, descending=True).values[:, 11:12])
    odd = [prunus.find_masks(model, s, score="wanda", data=data)["0.weight"] for s in (0.3, 0.45, 0.72)]
    assert [int((~m).sum()) for m in odd] == [72, 108, 173]
    assert all(bool((fine <= coarse).all()) for coarse, fine in itertools.pairwise(odd))


def test_a_registered_pattern_is_known_by_its_form_and_says_its_sparsity() -> None:
    class Halves(prunus.patterns.NM):
        def __init__(self, m: int) -> None:
            super().__init__(m // 2, m)

    prunus.patterns.register("halves:M", replace=True)(Halves)
    assert prunus.patterns.fixed_sparsity("halves:8") == 0.5
    masks = prunus.find_masks(nn.Linear(16, 4), 0.5, pattern="halves:8")
    assert (masks["weight"].reshape(4, 2, 8).sum(2) == 4).all()
    with pytest.raises(BadInput, match="exists already"):
        prunus.patterns.register("halves:M")(Halves)
    prunus.patterns._FORMS.pop("halves:M")


def test_scores_say_whether_they_need_data() -> None:
    needing = {name for name in prunus.scores.names() if prunus.scores.needs_data(name)}
    assert needing == {"snip", "grasp", "synflow", "wanda"}


def test_synflow_takes_patterns_with_one_sparsity() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    assert prunus.find_masks(model, 0.5, score="synflow", pattern="2:4", data=torch.randn(4, 16)).sparsity == 0.5


def test_weights_without_a_size_are_refused() -> None:
    with pytest.raises(BadInput, match=r"'0\.weight' has no size yet: run the model"):
        prunus.prune(torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.ReLU()), 0.5)


X = torch.zeros(8, 16)
ENTRANCES = {
    "find_masks": lambda model: prunus.find_masks(model, 0.5),
    "prune": lambda model: prunus.prune(model, 0.5),
    "reconstruct": lambda model: prunus.reconstruct(model, 0.5, X),
    "compress": lambda model: prunus.compress(model, example=X),
    "shrink": lambda model: prunus.shrink(model, 0.5, example=X),
    "certify": lambda model: prunus.certify(model, model, prunus.Ball(1.0)),
    "plan": lambda model: prunus.plan(model, prunus.Ball(1.0), error=0.1),
    "distil": lambda model: prunus.training.distil(model, model, X),
    "fit": lambda model: prunus.training.fit(model, X),
    "empirical": lambda model: prunus.tangent.empirical(model, X),
}


@pytest.mark.parametrize("name", ENTRANCES)
@pytest.mark.parametrize("model", [None, "resnet20", 5], ids=str)
def test_what_is_no_model_is_refused_in_one_sentence(name: str, model: object) -> None:
    with pytest.raises(BadInput, match="torch module"):
        ENTRANCES[name](model)


@pytest.mark.parametrize("exclude", [5, [5], ["layers.0", None]], ids=str)
def test_excludes_that_are_no_names_are_refused(exclude: object) -> None:
    model = prunus.models.make("fc:16-16-4", seed=0)
    before = copy.deepcopy(model.state_dict())
    for call in (
        lambda: prunus.prune(model, 0.5, exclude=exclude),
        lambda: prunus.reconstruct(model, 0.5, X, exclude=exclude),
        lambda: prunus.shrink(model, 0.5, example=X, exclude=exclude),
        lambda: prunus.plan(model, prunus.Ball(1.0), error=0.1, exclude=exclude),
    ):
        with pytest.raises(BadInput, match=r"exclude is .* give names or globs"):
            call()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_weights_in_the_memory_of_another_are_refused_and_neighbours_in_one_memory_are_not() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    model[2].weight = nn.Parameter(model[0].weight.data.t())
    for work in (
        lambda: prunus.prune(model, 0.5),
        lambda: prunus.reconstruct(model, 0.5, torch.randn(64, 16), samples=64),
        lambda: prunus.prune(model, 0.5, exclude=("0",)),
    ):
        with pytest.raises(BadInput, match=r"'0.weight' and '2.weight' lie in the same memory"):
            work()
    both = torch.randn(32, 32)
    model[0].weight, model[2].weight = nn.Parameter(both[:, :16]), nn.Parameter(both[:, 16:].t())
    assert prunus.prune(model, 0.5).sparsity == 0.5
    assert int((both == 0).sum()) == 512
    model[2].weight = model[0].weight = nn.Parameter(torch.randn(16, 16))  # one parameter: tied, as ever
    assert list(prunus.prune(model, 0.5)) == ["0.weight"]

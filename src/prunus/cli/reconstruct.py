"""`prunus reconstruct`: prune one model and adjust what stays, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prunus.cli import options
from prunus.cli._inputs import Metric
from prunus.cli.options import Data, DataDir, Exclude, Json, Model, NewWeights, Pattern, Seed, State, Weights
from prunus.settings.recovery import ReconstructOptions

if TYPE_CHECKING:
    Flags = Any
else:
    FIELDS = ("refine", "descent", "rate", "damping", "towards", "aside", "batch_size", "memory")
    Flags = options.flags_of("ReconstructFlags", options.flags(ReconstructOptions, names=FIELDS))

_CLOSE = 0.005
"""A sparsity this near to that of the masks says the same."""


def reconstruct(
    model: Model,
    *,
    sparsity: Annotated[
        float | None, Parameter(help="Fraction of zeros among the prunable weights, in [0, 1); 0.5 unless given.")
    ] = None,
    pattern: Pattern = "balanced:16",
    allocation: Annotated[str, Parameter(help="uniform, global, erk, lamp or damage.")] = "uniform",
    exclude: Exclude | None = None,
    misfits: Annotated[str, Parameter(help="Layers the pattern does not fit: error, or skip them.")] = "error",
    masks: Annotated[Path | None, Parameter(help="Keep the zeros of this masks file and only adjust the rest.")] = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    metric: Metric = None,
    samples: Annotated[int, Parameter(help="Samples to adjust on; their labels are not used.")] = 512,
    flags: Annotated[Flags | None, Parameter(name="*")] = None,
    folder: State = None,
    output: NewWeights = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Prune a network and adjust what stays, so that its outputs stay. No training, no labels.

    Layer after layer, on some hundred samples of the data: the weights whose loss can best be made up for go, and those
    that stay are fitted to the outputs of the dense network. Prints the relative error of every layer's output as
    magnitude pruning would leave it, with the masks found, and after the fit; and the accuracy before and after.

    Example: `prunus reconstruct fc:64-128-64-10 --data digits --sparsity 0.8 --exclude layers.2 -o small.safetensors`
    """
    import torch

    from prunus.cli._inputs import data_pair, quality
    from prunus.cli.prune import left_dense, write_pruned
    from prunus.contract import Masks
    from prunus.errors import BadInput
    from prunus.models import resolve
    from prunus.recovery import reconstruct as rebuild

    if data is None:
        raise BadInput("reconstruct needs data: name some with --data, as in --data digits.")
    kept = None if masks is None else Masks.load(masks)
    if kept is not None and sparsity is not None and abs(sparsity - kept.sparsity) > _CLOSE:
        raise BadInput(
            f"--masks has the zeros already ({kept.sparsity:.4f} of its weights), and --sparsity {sparsity:g} asks for "
            "others: leave one of the two out."
        )
    torch.manual_seed(seed)
    network = resolve(model, str(weights) if weights else None).eval()
    train, test = data_pair(data, data_dir, model)
    before = quality(network, test, metric, "before")
    found = rebuild(
        network,
        None if kept is not None else 0.5 if sparsity is None else sparsity,
        train,
        pattern,
        allocation,
        tuple(exclude or ()),
        kept,
        samples,
        seed,
        misfits=misfits,
        options=ReconstructOptions(**options.given(flags), progress=False if json else None, folder=folder),
    )
    record: dict[str, Any] = {"model": model, "sparsity": found.sparsity, "samples": found.notes["samples"]}
    record["layers"] = [
        {"name": row.name, "total": row.total, "kept": row.kept, "sparsity": row.sparsity}
        | found.notes["layers"].get(row.name, {"before": None, "masked": None, "after": None})
        for row in found.layers
    ]
    record |= {"remarks": found.notes.get("remarks", [])} | left_dense(found)
    record |= before | quality(network, test, metric, "after")
    if output is not None:
        record |= write_pruned(network, found, output)
    _print(record, json)


def _print(record: dict[str, Any], json: bool) -> None:
    from prunus.cli._inputs import quality_line
    from prunus.cli.output import console, print_json, print_table
    from prunus.cli.prune import print_left_dense

    if json:
        print_json(record)
        return
    columns = ["layer", "weights", "sparsity", "error now", "by magnitude", "as masked", "kept"]
    rows = [
        [row["name"], row["total"], f"{row['sparsity']:.4f}"]
        + [None if row[name] is None else f"{row[name]:.2%}" for name in ("after", "before", "masked")]
        + [row["kept"]]
        for row in record["layers"]
    ]
    print_table(columns, rows)
    print_left_dense(record)
    out = console()
    count = f"{record['samples']} sample{'' if record['samples'] == 1 else 's'}"
    out.print(f"sparsity {record['sparsity']:.4f}, {count}; errors of outputs are relative squares")
    if "metric" in record:
        out.print(f"{quality_line(record)} (no training)")
    if "weights_file" in record:
        out.print(f"wrote {record['weights_file']} and {record['masks_file']}")

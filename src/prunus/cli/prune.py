"""`prunus prune`: masks for one model, the pruned weights, and what it costs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import Input, InputIds, Metric
from prunus.cli.options import Data, DataDir, Exclude, Json, Model, Pattern, Seed, Weights


def prune(
    model: Model,
    *,
    sparsity: Annotated[float, Parameter(help="Fraction of zeros among the prunable weights, in [0, 1).")] = 0.9,
    score: Annotated[
        str,
        Parameter(
            help="magnitude, random, random-with-replacement, snip, grasp, synflow, wanda or `package.module:score`."
        ),
    ] = "magnitude",
    pattern: Pattern = "unstructured",
    allocation: Annotated[
        str, Parameter(help="uniform, global, erk or lamp; with --reconstruct also damage.")
    ] = "uniform",
    exclude: Exclude | None = None,
    reconstruct: Annotated[
        bool, Parameter(negative="", help="Then fit the kept weights to the dense network's outputs on the data.")
    ] = False,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    metric: Metric = None,
    input: Input = None,
    input_ids: InputIds = None,
    misfits: Annotated[str, Parameter(help="error, or skip: leave out what the pattern does not fit.")] = "error",
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Where the pruned weights go (safetensors); masks go beside them.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Set the least important weights of a network to zero, and say what that costs.

    Prints a table by layer: what is kept, the share of weight energy that goes, the output signal-to-noise this
    predicts, and the multiply-adds before and after. With data, also the accuracy (or another `--metric`) before and
    after. With `-o`, writes `NAME.safetensors` and `NAME.masks.safetensors`. `--reconstruct` keeps the masks and
    adjusts what stays; `prunus reconstruct` chooses the masks for it too, which is better, as does this command with
    `--allocation damage`.

    Example: `prunus prune fc:64-300-100-10 --data digits --sparsity 0.9 --pattern balanced:16 --exclude layers.2
    -o pruned.safetensors`
    """
    import torch

    from prunus.cli._inputs import data_sets, example_or_none, fitting_example
    from prunus.models import resolve
    from prunus.pruning.scores import needs_data

    _check(reconstruct, allocation, score, data)
    torch.manual_seed(seed)
    network = resolve(model, str(weights) if weights else None).eval()
    train, test = data_sets(data, data_dir, model, look=reconstruct or needs_data(score))
    shared = {"pattern": pattern, "exclude": tuple(exclude or ()), "seed": seed, "misfits": misfits}
    masks, settle = _chosen(network, sparsity, score, allocation, train, shared, reconstruct, quiet=json)
    known = example_or_none(network, 1, input, input_ids)
    example = known if known is not None or test is None else fitting_example(network, test)
    rows, uncounted = _summary(network, masks, example, told=input is not None or input_ids is not None)
    pruned, accuracies = _quality(network, settle, test, metric, quiet=json)
    files = write_pruned(pruned, masks, output) if output is not None else {}
    record: dict[str, Any] = {
        "model": model,
        "sparsity": masks.sparsity,
        "layers": [{**vars(row), "sparsity": row.sparsity, "signal_to_noise": row.signal_to_noise} for row in rows],
        **left_dense(masks),
        **({"uncounted": uncounted} if uncounted else {}),
        **accuracies,
        **files,
    }
    _print(record, rows, json)


def left_dense(masks: Any) -> dict[str, list[str]]:
    """The names of weights that stay dense without having been excluded, for the record of a command."""
    from prunus.layers import LEFT_DENSE

    return {key: masks.notes[key] for key in LEFT_DENSE if key in masks.notes}


def print_left_dense(record: dict[str, Any]) -> None:
    """Say which weights those are, and why they stay dense."""
    from prunus.cli.output import console
    from prunus.layers import LEFT_DENSE

    for key, meaning in LEFT_DENSE.items():
        if record.get(key):
            console().print(f"left dense, as it {meaning}: {', '.join(record[key])}")


def _summary(network: Any, masks: Any, example: Any, told: bool) -> tuple[list[Any], str]:
    """The rows, and why multiply-adds are not in them: a guessed input may not be one that the model takes."""
    from prunus.errors import BadInput
    from prunus.pruning import summarise

    try:
        return summarise(network, masks, example), ""
    except BadInput as error:
        if told or example is None:
            raise
        return summarise(network, masks, None), str(error)


def _check(reconstruct: bool, allocation: str, score: str, data: str | None) -> None:
    """Refuse options that do not go together, before anything is loaded or measured."""
    from prunus.errors import BadInput

    if allocation == "damage" and not reconstruct:
        raise BadInput("--allocation damage measures what layers lose after a fit: add --reconstruct and --data.")
    if allocation == "damage" and score != "magnitude":
        raise BadInput("--allocation damage chooses the zeros as prunus reconstruct does: leave --score out.")
    if reconstruct and data is None:
        raise BadInput("--reconstruct needs data: name some with --data, as in --data digits.")


def _chosen(
    network: Any, sparsity: float, score: str, allocation: str, train: Any, shared: dict[str, Any], fit: bool,
    quiet: bool,
) -> tuple[Any, Callable[[], Any]]:  # fmt: skip
    """The masks, and a function that gives the pruned network; the dense one is as it was until that is called."""
    from prunus.pruning import find_masks

    if allocation == "damage":
        from prunus.recovery import ReconstructOptions, reconstruct

        pruned, options = copy.deepcopy(network), ReconstructOptions(progress=False if quiet else None)
        return reconstruct(pruned, sparsity, train, allocation=allocation, options=options, **shared), lambda: pruned
    masks = find_masks(network, sparsity, score=score, allocation=allocation, data=train, **shared)

    def settle() -> Any:
        if not fit:
            return masks.apply_(network)
        from prunus.recovery import reconstruct

        reconstruct(network, None, train, masks=masks, seed=shared["seed"])
        return network

    return masks, settle


def _quality(
    network: Any, settle: Callable[[], Any], test: Any, metric: str | None, quiet: bool
) -> tuple[Any, dict[str, Any]]:
    """The pruned network, as `settle` gives it, and the metric before and after."""
    if test is None:
        return settle(), {}
    from prunus.cli._inputs import measure, metric_for
    from prunus.cli.output import progress

    metric = metric_for(metric, test)
    with progress(f"measuring {metric}", 2, quiet) as advance:
        before = measure(metric, network, test)
        advance()
        pruned = settle()
        after = measure(metric, pruned, test)
        advance()
    return pruned, {"metric": metric, f"{metric}_before": before, f"{metric}_after": after}


def file_named(output: Path) -> Path:
    """The file that `-o` names; a name without an ending gets that of safetensors."""
    from prunus.errors import BadInput

    if output.name in ("", ".."):
        raise BadInput(f"{output} is a folder: name a file in it, as in {output / 'pruned.safetensors'}.")
    return output if output.suffix else output.with_name(f"{output.name}.safetensors")


def masks_beside(weights: Path) -> Path:
    """The file of masks beside one of weights."""
    return weights.with_name(f"{weights.stem}.masks.safetensors")


def write_pruned(network: Any, masks: Any, output: Path) -> dict[str, str]:
    """The weights, and the masks in a file beside them; returns both names."""
    from prunus.models import save_weights

    output = file_named(output)
    beside = masks_beside(output)
    save_weights(network, output)
    masks.save(beside)
    return {"weights_file": str(output), "masks_file": str(beside)}


def _print(record: dict[str, Any], rows: list[Any], json: bool) -> None:
    from prunus.cli._inputs import quality_line
    from prunus.cli.output import console, print_json, print_table

    if json:
        print_json(record)
        return
    counted = any(row.multiply_adds is not None for row in rows)
    columns = ["layer", "shape", "weights", "kept", "sparsity", "energy removed", "output SNR"]
    columns += ["mult-adds", "mult-adds kept"] if counted else []
    table = []
    for row in rows:
        line = [row.name, "x".join(map(str, row.shape)), row.total, row.kept, f"{row.sparsity:.4f}"]
        line += [f"{row.energy_removed:.2%}", f"{row.signal_to_noise:.1f} dB"]
        table.append(line + ([row.multiply_adds, row.multiply_adds_kept] if counted else []))
    total, kept = sum(row.total for row in rows), sum(row.kept for row in rows)
    line = ["together", "", total, kept, f"{record['sparsity']:.4f}", "", ""]
    if counted:
        line += [sum(row.multiply_adds or 0 for row in rows), sum(row.multiply_adds_kept or 0 for row in rows)]
    print_table(columns, [*table, line], left=(0, 1))
    out = console()
    print_left_dense(record)
    if "uncounted" in record:
        out.print("multiply-adds are not counted, as the input's shape is not known: give --input or --input-ids")
    if "metric" in record:
        out.print(f"{quality_line(record)} (no retraining)")
    if "weights_file" in record:
        out.print(f"wrote {record['weights_file']} and {record['masks_file']}")

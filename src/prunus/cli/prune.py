"""`prunus prune`: masks for one model, the pruned weights, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli.options import Data, DataDir, Exclude, Json, Model, Seed, Weights


def prune(
    model: Model,
    *,
    sparsity: Annotated[float, Parameter(help="Fraction of zeros among the prunable weights, in [0, 1).")] = 0.9,
    score: Annotated[
        str, Parameter(help="magnitude, random, random-with-replacement, snip, grasp, synflow or wanda.")
    ] = "magnitude",
    pattern: Annotated[
        str, Parameter(help="unstructured, balanced:B, N:M, kernels, channels or blocks:RxC.")
    ] = "unstructured",
    allocation: Annotated[str, Parameter(help="uniform, global, erk or lamp.")] = "uniform",
    exclude: Exclude | None = None,
    reconstruct: Annotated[
        bool, Parameter(negative="", help="Then fit what stays to the dense network's outputs on the data.")
    ] = False,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Where the pruned weights go (safetensors); masks go beside them.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Set the least important weights of a network to zero, and say what that costs.

    Prints a table by layer: what is kept, the share of weight energy that goes, the output signal-to-noise this
    predicts, and the multiply-adds before and after. With data, also the accuracy before and after. With `-o`, writes
    `NAME.safetensors` and `NAME.masks.safetensors`. `--reconstruct` keeps the masks and adjusts what stays; `prunus
    reconstruct` chooses the masks for it too, which is better.

    Example: `prunus prune fc:64-300-100-10 --data digits --sparsity 0.9 --pattern balanced:16 --exclude layers.2
    -o pruned.safetensors`
    """
    import torch

    from prunus.cli._training import fitting_example
    from prunus.errors import BadInput
    from prunus.models import resolve
    from prunus.pruning import find_masks, summarise

    torch.manual_seed(seed)
    network = resolve(model, str(weights) if weights else None).eval()
    if reconstruct and data is None:
        raise BadInput("--reconstruct looks at data: name some with --data, as in --data digits.")
    train, test = _data(data, data_dir, score, reconstruct)
    masks = find_masks(
        network,
        sparsity,
        score=score,
        pattern=pattern,
        allocation=allocation,
        exclude=tuple(exclude or ()),
        data=train,
        seed=seed,
    )
    example = _example(model, network) if test is None else fitting_example(network, test)
    rows = summarise(network, masks, example)
    accuracies = _accuracies(network, masks, test, train if reconstruct else None, seed, quiet=json)
    files = write_pruned(network, masks, output) if output is not None else {}
    record = {
        "model": model,
        "sparsity": masks.sparsity,
        "layers": [{**vars(row), "sparsity": row.sparsity, "signal_to_noise": row.signal_to_noise} for row in rows],
        **accuracies,
        **files,
    }
    _print(record, rows, json)


def _data(name: str | None, folder: Path | None, score: str, always: bool) -> tuple[Any, Any]:
    """(train, test) sets; the training set only where the score looks at it, or `always`."""
    if name is None:
        return None, None
    from prunus.data import load
    from prunus.pruning.scores import needs_data

    looks = always or needs_data(score)
    return load(name, split="train", folder=folder) if looks else None, load(name, split="test", folder=folder)


def _example(model: str, network: Any) -> Any:
    """One input of the shape the zoo's network expects; None for a factory of the user's own."""
    import torch

    from prunus.models import describe, names
    from prunus.models.fc import FullyConnected

    if isinstance(network, FullyConnected):
        return torch.zeros(1, next(network.parameters()).shape[1])
    name = model.partition(":")[0]
    shape = describe(name).input if name in names() else None
    if shape is None:
        return None
    return torch.zeros(1, *shape, dtype=torch.long) if len(shape) == 1 else torch.zeros(1, *shape)


def _settle(network: Any, masks: Any, samples: Any, seed: int) -> None:
    """Prune the network; with samples, adjust what stays."""
    if samples is None:
        masks.apply_(network)
        return
    from prunus.recovery import reconstruct

    reconstruct(network, None, samples, masks=masks, seed=seed)


def _accuracies(network: Any, masks: Any, test: Any, samples: Any, seed: int, quiet: bool) -> dict[str, float]:
    """Accuracy before, then after: the network is pruned here."""
    if test is None:
        _settle(network, masks, samples, seed)
        return {}
    from prunus.cli.output import progress
    from prunus.training import accuracy

    with progress("measuring accuracy", 2, quiet) as advance:
        before = accuracy(network, test)
        advance()
        _settle(network, masks, samples, seed)
        after = accuracy(network, test)
        advance()
    return {"accuracy_before": before, "accuracy_after": after}


def write_pruned(network: Any, masks: Any, output: Path) -> dict[str, str]:
    """The weights, and the masks in a file beside them; returns both names."""
    from prunus.models import save_weights

    beside = output.with_name(f"{output.stem}.masks.safetensors")
    save_weights(network, output)
    masks.save(beside)
    return {"weights_file": str(output), "masks_file": str(beside)}


def _print(record: dict[str, Any], rows: list[Any], json: bool) -> None:
    from prunus.cli.output import console, print_json, print_table

    if json:
        print_json(record)
        return
    counted = any(row.multiply_adds is not None for row in rows)
    columns = ["layer", "shape", "weights", "kept", "sparsity", "energy removed", "output SNR"]
    columns += ["mult-adds", "kept"] if counted else []
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
    if "accuracy_before" in record:
        out.print(
            f"accuracy {record['accuracy_before']:.2%} before, {record['accuracy_after']:.2%} after (no retraining)"
        )
    if "weights_file" in record:
        out.print(f"wrote {record['weights_file']} and {record['masks_file']}")

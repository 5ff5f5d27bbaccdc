"""`prunus recipe`: prune a network and win its quality back by a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli.options import Data, DataDir, Exclude, Json, Seed, Weights


def recipe(
    name: Annotated[str | None, Parameter(help="cnn-retrain, encoder, llm-oneshot, or a TOML file.")] = None,
    model: Annotated[
        str | None, Parameter(help="Zoo name, `package.module:factory`, or `hf:FOLDER` of a Hugging Face model.")
    ] = None,
    *,
    sparsity: Annotated[float | None, Parameter(help="Fraction of zeros, in place of the recipe's.")] = None,
    pattern: Annotated[str | None, Parameter(help="Pattern, in place of the recipe's.")] = None,
    exclude: Exclude | None = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    folder: Annotated[
        Path | None, Parameter(help="Keep the state here; the same command goes on from it if it is broken off.")
    ] = None,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Where the new weights go (safetensors); masks go beside them.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Prune a network and win its quality back by a recipe; without a name, list the recipes.

    A recipe is a TOML file with the steps `[reconstruct]`, `[distil]` and `[fit]` and their settings.

    Example: `prunus recipe llm-oneshot fc:64-128-64-10 --data digits --exclude layers.2 -o small.safetensors`
    """
    import torch

    from prunus.errors import BadInput
    from prunus.models import resolve
    from prunus.training import evaluate, recipes
    from prunus.training import recipe as read

    if name is None:
        _list(recipes(), json)
        return
    found = read(name)
    if model is None or data is None:
        raise BadInput("recipe needs a model and --data, as in: prunus recipe encoder hf:FOLDER --data digits.")
    found = found.replace(sparsity=sparsity, pattern=pattern, exclude=tuple(exclude) if exclude else None)
    torch.manual_seed(seed)
    network = resolve(model, str(weights) if weights else None).eval()
    from prunus.cli._training import data_pair

    train, test = data_pair(data, data_dir)
    before = None if test is None else evaluate(network, test)[1]
    masks = found.run(network, train, folder=folder, seed=seed, progress=False if json else None)
    record: dict[str, Any] = {"model": model, "recipe": found.name, "sparsity": masks.sparsity}
    record |= {"layers": masks.notes["layers"], "steps": masks.notes["steps"]}
    if before is not None:
        record |= {"accuracy_before": before, "accuracy_after": evaluate(network, test)[1]}
    if output is not None:
        from prunus.cli.prune import write_pruned

        record |= write_pruned(network, masks, output)
    _print(record, json)


def _list(found: Any, json: bool) -> None:
    from prunus.cli.output import print_json, print_table

    rows = [{"name": each.name, "about": each.about} for each in found]
    if json:
        print_json(rows)
    else:
        print_table(["name", "about"], [list(row.values()) for row in rows], left=(0, 1))


def _print(record: dict[str, Any], json: bool) -> None:
    from prunus.cli.output import console, print_json

    if json:
        print_json(record)
        return
    out = console()
    out.print(f"{record['recipe']}: sparsity {record['sparsity']:.4f}")
    for name, rows in record["steps"].items():
        out.print(f"{name}: loss {rows[0]['loss']:.4g} in the first epoch, {rows[-1]['loss']:.4g} in the last")
    if "accuracy_before" in record:
        out.print(f"accuracy {record['accuracy_before']:.2%} before, {record['accuracy_after']:.2%} after")
    if "weights_file" in record:
        out.print(f"wrote {record['weights_file']} and {record['masks_file']}")

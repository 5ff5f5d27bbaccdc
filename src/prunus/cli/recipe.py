"""`prunus recipe`: prune a network and win its quality back by a recipe."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import Metric
from prunus.cli.options import Data, DataDir, Exclude, Json, NewWeights, Seed, State, Weights


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
    metric: Metric = None,
    folder: State = None,
    output: NewWeights = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Prune a network and win its quality back by a recipe; without a name, list the recipes.

    A recipe is a TOML file with the steps `[reconstruct]`, `[distil]` and `[fit]` and their settings.

    Example: `prunus recipe llm-oneshot fc:64-128-64-10 --data digits --exclude layers.2 -o small.safetensors`
    """
    import torch

    from prunus.cli._inputs import data_pair, quality
    from prunus.errors import BadInput
    from prunus.models import resolve
    from prunus.training import recipe as read
    from prunus.training import recipes

    if name is None:
        _list(recipes(), json)
        return
    found = read(name)
    if model is None or data is None:
        raise BadInput("recipe needs a model and --data, as in: prunus recipe encoder hf:FOLDER --data digits.")
    found = found.replace(sparsity=sparsity, pattern=pattern, exclude=tuple(exclude) if exclude else None)
    torch.manual_seed(seed)
    network = resolve(model, str(weights) if weights else None).eval()
    train, test = data_pair(data, data_dir, model)
    before = quality(network, test, metric, "before")
    masks = found.run(network, train, folder=folder, seed=seed, progress=False if json else None)
    record: dict[str, Any] = {"model": model, "recipe": found.name, "sparsity": masks.sparsity}
    record |= {"layers": masks.notes["layers"], "steps": masks.notes["steps"]}
    record |= before | quality(network, test, metric, "after")
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
    from prunus.cli._inputs import quality_line
    from prunus.cli.output import console, print_json

    if json:
        print_json(record)
        return
    out = console()
    out.print(f"{record['recipe']}: sparsity {record['sparsity']:.4f}")
    for name, rows in record["steps"].items():
        out.print(f"{name}: loss {rows[0]['loss']:.4g} in the first epoch, {rows[-1]['loss']:.4g} in the last")
    if "metric" in record:
        out.print(quality_line(record))
    if "weights_file" in record:
        out.print(f"wrote {record['weights_file']} and {record['masks_file']}")

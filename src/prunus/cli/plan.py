"""`prunus plan`: the largest pruning whose certified error stays within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import Input, InputIds
from prunus.cli.certify import domain_of
from prunus.cli.options import Data, DataDir, Exclude, Json, Model, Pattern, Seed, Weights


def plan(
    model: Model,
    *,
    error: Annotated[float | None, Parameter(help="The budget: how far the output may move, in the 2-norm.")] = None,
    labels: Annotated[
        float | None,
        Parameter(help="The budget instead: the share of --samples whose label provably stays within --radius."),
    ] = None,
    weights: Weights = None,
    score: Annotated[str, Parameter(help="magnitude, random, snip, grasp, synflow or wanda.")] = "magnitude",
    pattern: Pattern = "unstructured",
    allocation: Annotated[
        str, Parameter(help="bound, or damage: also try layers as their errors on --data spread them.")
    ] = "bound",
    exclude: Exclude | None = None,
    radius: Annotated[
        float | None, Parameter(help="2-norm radius of the ball, or of the samples' surroundings.")
    ] = None,
    samples: Annotated[int, Parameter(help="Certify near this many test points of --data instead of in a ball.")] = 0,
    statistical: Annotated[
        bool, Parameter(negative="", help="Hold the budget on the data's distribution instead of everywhere.")
    ] = False,
    confidence: Annotated[float, Parameter(help="Confidence of a statistical plan.")] = 0.95,
    data: Data = None,
    data_dir: DataDir = None,
    input: Input = None,
    input_ids: InputIds = None,
    output: Annotated[Path | None, Parameter(alias="-o", help="Where the masks go (safetensors).")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Find the largest pruning whose certified error stays within a budget.

    Every layer gets its own sparsity, by marginal cost over the layers' error curves. Prints the layers with their
    sparsity and the error each would cause alone, the bound of the whole, and what the best uniform sparsity would be.

    Example: `prunus plan fc:64-64-64-10 --error 2 --radius 1 --exclude layers.2 -o masks.safetensors`, or with a share
    of labels `prunus plan fc:64-64-64-10 --labels 0.95 --data digits --samples 50 --radius 0.001`
    """
    import torch

    from prunus.certificates import OnData, PlanSettings
    from prunus.certificates import plan as make_plan
    from prunus.cli._inputs import data_sets, fitting_example, real_example
    from prunus.cli.output import progress
    from prunus.errors import BadInput
    from prunus.models import resolve
    from prunus.pruning.scores import needs_data

    if (error is None) == (labels is None):
        raise BadInput(
            "Give the plan one budget: --error NUMBER, or --labels SHARE with --data, --samples and --radius."
        )
    if labels is not None and (not samples or statistical):
        raise BadInput("--labels is about points: give --samples COUNT with --data, without --statistical.")
    torch.manual_seed(seed)  # a model without weights from a file is the same in every run
    network = resolve(model, str(weights) if weights else None).eval()
    if data is None and (samples or statistical):
        raise BadInput("--samples and --statistical need --data.")
    train, test = data_sets(data, data_dir, model, look=allocation == "damage" or needs_data(score))
    example = real_example(network, input, input_ids) if test is None else fitting_example(network, test)
    domain: Any = OnData(test, confidence) if statistical else domain_of(radius, samples, test)
    settings = PlanSettings(seed=seed, example=example, data=train, allocation=allocation)
    with progress("planning", None, quiet=json):
        found = make_plan(
            network,
            domain,
            error,
            labels=labels,
            score=score,
            pattern=pattern,
            exclude=tuple(exclude or ()),
            settings=settings,
        )
    record: dict[str, Any] = {"model": model, **found.to_dict()}
    if labels is not None:
        record |= {"labels": 1.0 - found.bound, "points": domain.points.shape[0], "radius": domain.radius}
    if found.probability is not None:
        record["confidence"] = confidence
    if output is not None:
        found.masks.save(output)
        record["masks_file"] = str(output)
    _print(record, found, json)


def _print(record: dict[str, Any], found: Any, json: bool) -> None:
    from prunus.cli.output import console, print_json, print_table, show

    if json:
        print_json(record)
        return
    rows = [[row.name, row.total, row.kept, f"{row.sparsity:.4f}", row.alone] for row in found.layers]
    total = sum(row.total for row in found.layers)
    kept = sum(row.kept for row in found.layers)
    rows.append(["together", total, kept, f"{found.sparsity:.4f}", "" if "labels" in record else found.bound])
    print_table(["layer", "weights", "kept", "sparsity", "certified error"], rows)
    out = console()
    if "labels" in record:
        kept_labels = round(record["labels"] * record["points"])
        sentence = (
            f"{kept_labels:,} of {record['points']:,} points ({record['labels']:.1%}) provably keep their label "
            f"everywhere within {record['radius']:g}; the budget asks for {1 - found.error:.1%}"
        )
    else:
        sentence = f"The output moves by at most {show(found.bound)}, within the budget of {show(found.error)}"
        if found.probability is not None:
            sentence = (
                f"With confidence {record['confidence']:.4g}, at most {found.probability:.3%} of the inputs of this "
                f"distribution move the output by more than {show(found.bound)}, within the budget of "
                f"{show(found.error)}"
            )
    out.print(f"{sentence}; the best uniform sparsity would be {found.uniform:.4f}.")
    if "masks_file" in record:
        out.print(f"wrote {record['masks_file']}")

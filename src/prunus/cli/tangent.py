"""`prunus tangent`: kernels of dense and pruned networks, and how wide a pruned network must be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli.options import DataDir, Json, Model, Seed, Weights


def tangent(
    model: Model,
    *,
    data: Annotated[str, Parameter(help="Data as in `prunus prune`; digits travel with the package.")] = "digits",
    data_dir: DataDir = None,
    weights: Weights = None,
    densities: Annotated[
        list[float] | None,
        Parameter(negative="", help="Densities to compare; 1, 0.5, 0.1 unless given."),
    ] = None,
    widths: Annotated[
        list[float] | None, Parameter(negative="", help="Width factors of the model; may be repeated. 1 if none.")
    ] = None,
    score: Annotated[str, Parameter(help="random, magnitude, snip, ...: theorems cover random only.")] = "random",
    prune_input: Annotated[bool, Parameter(negative="", help="Prune the first layer too.")] = False,
    inputs: Annotated[int, Parameter(help="Training inputs the kernel is measured on.")] = 100,
    tests: Annotated[int, Parameter(help="Test inputs for kernel regression.")] = 500,
    networks: Annotated[int, Parameter(help="Random networks each row is the mean of.")] = 2,
    sigma: Annotated[
        float | None,
        Parameter(help="Also say how wide each density must be for kernel entries to vary by this much at most."),
    ] = None,
    plot: Annotated[Path | None, Parameter(help="Draw the comparison in this .svg or .html file.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Compare the tangent kernels of dense and pruned networks.

    A chain of linear or convolution layers with ReLU is drawn anew in NTK form, `--networks` times for each width,
    pruned with rescaled masks (all layers but the first), and set beside the infinitely wide limit. With `--weights`,
    or for any other model, the kernel of the network as it is is shown. Inputs are scaled to norm 1.

    distance: to the limit, relative. condition: largest over smallest eigenvalue. step: largest stable learning rate
    of full-batch gradient descent on half the squared error. steps: predicted number to 1 % error. accuracy: of kernel
    regression. dead: share of hidden units that are never active.

    Example: `prunus tangent fc:64-128-128-10 --densities 1 --densities 0.1 --widths 0.5 --widths 1 --plot kernels.svg`
    """
    import torch

    from prunus.charts import check_target
    from prunus.cli._inputs import data_pair
    from prunus.cli.output import progress
    from prunus.tangent.comparison import ComparisonPlan, Sample, compare

    if plot is not None:
        check_target(plot)
    torch.manual_seed(seed)
    levels, factors = densities or [1.0, 0.5, 0.1], widths or [1.0]
    train, test = data_pair(data, data_dir, model)
    test = train if test is None else test  # a data set of one's own may have one part only
    sample = Sample.of(train, test, inputs, tests, seed)
    plan = ComparisonPlan(
        levels, 1 if weights else networks, score, prune_input, train if score != "random" else None, seed
    )
    builders = _builders(model, weights, factors)
    rows = _limit_rows(builders[0][1](seed), sample)
    total = len(builders) * len(levels) * plan.networks
    with progress("kernels", total, json) as advance:
        for name, build in builders:
            rows += compare(build, name, sample, plan, advance)
    plans = [] if sigma is None else _width_plans(builders[0][1](seed), sample, levels, sigma, seed, json)
    files = {} if plot is None else {"plot": str(_draw(plot, rows, model))}
    record = {"model": model, "data": data, "inputs": len(sample.inputs), "score": score, "rows": rows}
    _print({**record, "widths": plans, **files}, json)


def _builders(spec: str, weights: Path | None, factors: list[float]) -> list[tuple[str, Any]]:
    """(name, function of a seed) for each width: in NTK form where the model is a chain and not loaded."""
    from prunus.errors import BadInput
    from prunus.models import make, names, resolve
    from prunus.tangent import parametrise

    if weights is not None or spec.partition(":")[0] not in names():
        if factors != [1.0]:
            raise BadInput("--widths needs a model of the zoo without --weights: leave it out.")
        network = resolve(spec, str(weights) if weights else None).eval()
        return [("as it is", lambda seed: network)]

    def builder(factor: float) -> Any:
        def build(seed: int) -> Any:
            return parametrise(make(spec, width=factor, init="normal", seed=seed).eval(), weights="keep")

        def standard(seed: int) -> Any:
            return make(spec, width=factor, seed=seed).eval()

        try:
            build(0)
        except BadInput:  # no chain: its kernel is shown in the standard parametrisation
            return standard
        return build

    return [(f"width {factor:g}", builder(factor)) for factor in factors]


def _limit_rows(network: Any, sample: Any) -> list[dict[str, Any]]:
    from prunus.errors import BadInput
    from prunus.tangent.comparison import limit_row

    try:
        return [limit_row(network, sample)]
    except BadInput:  # no limit is known for this network: the table starts with the network itself
        return []


def _width_plans(
    network: Any, sample: Any, levels: list[float], sigma: float, seed: int, quiet: bool
) -> list[dict[str, Any]]:
    from prunus.cli.output import progress
    from prunus.errors import BadInput
    from prunus.tangent import NTKForm, plan_width

    if not isinstance(network, NTKForm) or not all(kind in ("layer", "relu", "flatten") for kind in network.kinds):
        raise BadInput("--sigma is for fully connected networks of the zoo: leave it out for this model.")
    found = []
    with progress("pilot runs", 2 * len(levels), quiet) as advance:
        for density in levels:
            plan = plan_width(sample.inputs, density, sigma, depth=network.depth, seed=seed, advance=advance)
            found.append({**vars(plan), "statement": plan.statement})
    return found


def _draw(path: Path, rows: list[dict[str, Any]], model: str) -> Path:
    from prunus.charts import Chart, lines_by, write_charts

    charts = []
    for key, label, log in (
        ("distance", "distance to the limit", False),
        ("condition", "condition number", True),
        ("accuracy", "accuracy of kernel regression", False),
    ):
        lines = lines_by([row for row in rows if row["density"] is not None], "network", "density", key)
        level = {row["network"]: row[key] for row in rows if row["density"] is None and (key != "distance")}
        if any(lines.values()):
            named = {name.removeprefix("network "): line for name, line in lines.items()}
            charts.append(Chart(f"{model}: {label}", "density", label, named, log_x=True, log_y=log, levels=level))
    return write_charts(path, charts, f"Tangent kernels of {model}")


def _print(record: dict[str, Any], json: bool) -> None:
    from prunus.cli.output import console, print_json, print_table

    if json:
        print_json(record)
        return
    columns = ["network", "density", "distance", "smallest", "condition", "eff. rank", "step", "steps"]
    keys = ["network", "density", "distance", "smallest", "condition", "effective_rank", "largest_step", "steps"]
    keys += ["alignment", "accuracy", "dead"]
    rows = [[row[key] for key in keys] for row in record["rows"]]
    for row in rows:
        row[-2], row[-1] = f"{row[-2]:.1%}", f"{row[-1]:.1%}"
    print_table([*columns, "alignment", "accuracy", "dead"], rows)
    out = console()
    singular = sum(int(row["singular"]) for row in record["rows"])
    if singular:
        out.print(f"{singular} of these kernels were singular: jitter was added to their diagonal for the regression.")
    if record["score"] != "random":
        out.print(f"Masks by {record['score']}: no theorem covers these kernels.")
    for plan in record["widths"]:
        out.print(plan["statement"])
    if "plot" in record:
        out.print(f"wrote {record['plot']}")

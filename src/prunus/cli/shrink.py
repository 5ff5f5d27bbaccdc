"""`prunus shrink`: a smaller ordinary network, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prunus.cli import options
from prunus.cli._inputs import Metric
from prunus.cli.options import Data, DataDir, Exclude, Json, Model, Seed, Weights
from prunus.settings.structure import Options

if TYPE_CHECKING:
    Flags = Any
else:
    FIELDS = ("measure", "score", "allocation", "samples", "multiple", "depth", "recover", "per_layer", "configured")
    Flags = options.flags_of("ShrinkFlags", options.flags(Options, names=FIELDS))


def shrink(
    model: Model,
    *,
    fraction: Annotated[float, Parameter(help="The share of the measure that stays, between 0 and 1.")] = 0.5,
    flags: Annotated[Flags | None, Parameter(name="*")] = None,
    distil: Annotated[
        str | None, Parameter(help="Then learn from the original on the training data for so long, as in 2ep.")
    ] = None,
    exclude: Exclude | None = None,
    input: Annotated[str | None, Parameter(help="Shape of one input, as 3x224x224, for a model of your own.")] = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    metric: Metric = None,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Where the smaller model goes (safetensors); masks go beside it.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Remove channels, heads and neurons: a smaller ordinary network.

    Prints a table by group: how many units it had and keeps, and its share of the damage. With data, what stays is
    solved for on the training data, and the accuracy (or another `--metric`) on the test data is given before and
    after. Times are of one input, measured in turns. With `-o`, writes `NAME.safetensors` (read it with
    `prunus.structure.load`) and `NAME.masks.safetensors`, the same choice as zeros.

    Example: `prunus shrink fc:64-300-100-10 --data digits --fraction 0.3 --samples 256 -o small.safetensors`
    """
    import torch

    from prunus.models import resolve
    from prunus.structure import find_removal

    torch.manual_seed(seed)
    network = resolve(model, str(weights) if weights else None).eval()
    train, test = _data(data, data_dir, model)
    example = _example(network, train, input)
    removal = find_removal(
        network,
        fraction,
        example=example,
        data=train,
        exclude=tuple(exclude or ()),
        seed=seed,
        **options.given(flags),
    )
    small = removal.apply()
    solved = _distilled(small, network, train, test, distil, metric)
    record = {
        "model": model,
        "measure": options.given(flags).get("measure", Options().measure),
        "share": removal.share,
        "blocks": list(removal.blocks),
        "parameters_before": _count(network),
        "parameters_after": _count(small),
        "groups": [vars(row) for row in removal.rows],
        "fixed": [vars(each) for each in removal.fixed],
        **solved,
        **_quality(network, small, test, metric, quiet=json),
        **_times(network, small, example),
        **_write(small, removal.masks, output),
    }
    _print(record, json)


def _distilled(
    small: Any, network: Any, train: Any, test: Any, length: str | None, metric: str | None
) -> dict[str, Any]:
    """With a length, train the smaller network to answer as the original; its quality before that, where known."""
    if length is None:
        return {}
    from prunus.cli._inputs import quality
    from prunus.errors import BadInput
    from prunus.training import distil

    if train is None:
        raise BadInput("--distil needs --data: samples on which the smaller network learns from the original.")
    before = quality(small.eval(), test, metric, "before_distil")
    distil(small, network, train, length)
    return {"distil": length, **before}


def _count(network: Any) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _data(name: str | None, folder: Path | None, model: str) -> tuple[Any, Any]:
    if name is None:
        return None, None
    from prunus.cli._inputs import data_pair

    return data_pair(name, folder, model)


def _example(network: Any, train: Any, shape: str | None) -> Any:
    """One input: of the data, of the shape that is given, or of what the network is known to take."""
    from prunus.adapters import example_input
    from prunus.errors import BadInput

    if train is not None:
        from prunus.cli._inputs import fitting_example

        return fitting_example(network, train)
    if shape is None:
        return example_input(network)
    try:
        sizes = [int(size) for size in shape.split("x")]
    except ValueError:
        raise BadInput(f"--input {shape!r} is not a shape: write sizes with x between them, as in 3x224x224.") from None
    return example_input(network, shape=sizes)


def _quality(network: Any, small: Any, test: Any, metric: str | None, quiet: bool) -> dict[str, Any]:
    """The metric of both networks, where there is something to measure."""
    if test is None:
        return {}
    from prunus.cli._inputs import quality
    from prunus.cli.output import progress

    with progress("measuring quality", 2, quiet) as advance:
        before = quality(network, test, metric, "before")
        advance()
        after = quality(small.eval(), test, metric, "after")
        advance()
    return before | after


def _times(network: Any, small: Any, example: Any) -> dict[str, float]:
    """Median seconds of one call, the two models in turns."""
    import torch

    from prunus.structure import run_once
    from prunus.timing import clock_for, interleave, median

    runs = {"before": lambda: run_once(network, example), "after": lambda: run_once(small, example)}
    samples = interleave(runs, clock=clock_for(torch.get_num_threads()))
    return {f"seconds_{name}": median(found) for name, found in samples.items()}


def _write(small: Any, masks: Any, output: Path | None) -> dict[str, str]:
    if output is None:
        return {}
    from prunus.cli.prune import file_named, masks_beside
    from prunus.structure import save

    output = file_named(output)
    beside = masks_beside(output)
    save(small, output)
    masks.save(beside)
    return {"model_file": str(output), "masks_file": str(beside)}


def _print(record: dict[str, Any], json: bool) -> None:
    from prunus.cli.output import console, print_json, print_table

    if json:
        print_json(record)
        return
    measured = any(row["damage"] is not None for row in record["groups"])
    table = [[row["name"], row["kind"], row["before"], row["after"]] for row in record["groups"]]
    if measured:
        for line, row in zip(table, record["groups"]):
            line.append("" if row["damage"] is None else f"{row['damage']:.1%}")
    print_table(["group", "kind", "before", "after", *(["damage"] if measured else [])], table, left=(0, 1))
    out = console()
    out.print(f"{record['measure']}: {record['share']:.1%} left")
    out.print(f"parameters: {record['parameters_before']:,} before, {record['parameters_after']:,} after")
    out.print(
        f"one input: {record['seconds_before'] * 1e3:.2f} ms before, {record['seconds_after'] * 1e3:.2f} ms after"
    )
    if f"{record.get('metric')}_after" in record:
        out.print(_line(record))
    if "model_file" in record:
        out.print(f"wrote {record['model_file']} and {record['masks_file']}")


def _line(record: dict[str, Any]) -> str:
    """The metric before, without training where that follows, and after."""
    name = record["metric"]
    form = "{:.2%}" if name == "accuracy" else "{:.4g}"
    told = [f"{form.format(record[f'{name}_before'])} before"]
    if f"{name}_before_distil" in record:
        told.append(f"{form.format(record[f'{name}_before_distil'])} without training")
    how = f"after {record['distil']} of distillation" if "distil" in record else "after (no training)"
    return f"{name}: {', '.join(told)}, {form.format(record[f'{name}_after'])} {how}"

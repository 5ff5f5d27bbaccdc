"""`prunus equivalent`: decide whether two networks agree on a whole box of inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import Input
from prunus.cli.certify import output_norm
from prunus.cli.options import Data, DataDir, Exclude, Json, Seed, Weights

First = Annotated[str, Parameter(help="A network: zoo name, `hf:FOLDER`, `package.module:factory`, or a .onnx file.")]
Second = Annotated[str | None, Parameter(help="The other network, named in the same way; or use --masks, --sparsity.")]


def equivalent(
    model: First,
    other: Second = None,
    *,
    weights: Weights = None,
    other_weights: Annotated[Path | None, Parameter(help="Weights of the other network (of the first's kind).")] = None,
    masks: Annotated[Path | None, Parameter(help="Masks that make the other network, from `prunus prune -o`.")] = None,
    sparsity: Annotated[float | None, Parameter(help="Prune by magnitude at this sparsity to make the other.")] = None,
    exclude: Exclude | None = None,
    spec: Annotated[Path | None, Parameter(help="A VNN-LIB file whose inputs form a box.")] = None,
    box: Annotated[tuple[float, float] | None, Parameter(help="All inputs between LOW and HIGH.")] = None,
    points: Annotated[int, Parameter(help="Neighbourhoods of this many test points of --data, one by one.")] = 0,
    radius: Annotated[float, Parameter(help="2-norm radius of those neighbourhoods.")] = 0.01,
    data: Data = None,
    data_dir: DataDir = None,
    input: Input = None,
    labels: Annotated[bool, Parameter(negative="", help="Ask for equal labels instead of a tolerance.")] = False,
    tolerance: Annotated[float, Parameter(help="Largest difference allowed.")] = 0.05,
    norm: Annotated[str, Parameter(help='"max" (every output by itself) or 2.')] = "max",
    seconds: Annotated[float, Parameter(help="Time for each box or point.")] = 60.0,
    boxes: Annotated[int | None, Parameter(help="Most boxes for each; then the answer ignores the clock.")] = None,
    output: Annotated[Path | None, Parameter(alias="-o", help="Where the verdict goes (JSON).")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Decide whether two networks agree on a whole box of inputs.

    "proved" means that no input of the domain makes the networks differ by more than the tolerance, in the precision
    they run in; "refuted" comes with an input at which they do. With `--labels` the question is whether both give the
    same label everywhere.

    Networks of the verification literature are named by their files, as in `prunus equivalent a.onnx b.onnx --spec
    box.vnnlib --tolerance 0.05`.

    Example: `prunus equivalent fc:64-32-10 --sparsity 0.1 --data digits --points 3 --radius 0.01 --tolerance 0.5`
    """
    from prunus.certificates import equivalent as decide
    from prunus.cli.output import progress

    measured = output_norm(norm)
    first = _network(model, weights)
    second = _other(model, first, other, other_weights, masks, sparsity, tuple(exclude or ()))
    test = _test(data, data_dir, model, points)
    domains = _domains(_shape(first, input), spec, box, points, radius, test)
    verdicts = []
    with progress("deciding", None, quiet=json) as advance:
        for name, domain in domains:
            say = _say(advance, name)
            verdict = decide(
                first,
                second,
                domain,
                tolerance,
                measured,
                labels=labels,
                seconds=seconds,
                boxes=boxes,
                seed=seed,
                progress=say,
            )
            verdicts.append((name, verdict))
    _print(model, verdicts, output, json)


def _say(advance: Any, name: str) -> Any:
    return lambda done, waiting, bound: advance(0, f"{name}: {done:,} boxes done, {waiting:,} wait, bound {bound:.3g}")


def _network(name: str, weights: Path | None) -> Any:
    if name.endswith(".onnx"):
        from prunus.errors import BadInput
        from prunus.models.onnx_models import read_onnx

        if weights is not None:
            raise BadInput("An ONNX file holds its own weights: leave --weights out.")
        return read_onnx(name)
    from prunus.models import resolve

    return resolve(name, str(weights) if weights else None).eval()


def _other(
    name: str,
    network: Any,
    other: str | None,
    weights: Path | None,
    masks: Path | None,
    sparsity: float | None,
    exclude: tuple[str, ...],
) -> Any:
    from prunus.contract import Masks
    from prunus.errors import BadInput
    from prunus.pruning import find_masks

    if other is None and weights is not None:
        other = name
    if sum(item is not None for item in (other, masks, sparsity)) != 1:
        raise BadInput(
            "Say what the other network is, in one way: a second model, --other-weights FILE, --masks FILE or "
            "--sparsity NUMBER."
        )
    if other is not None:
        return _network(other, weights)
    if masks is not None:
        return Masks.load(masks)
    assert sparsity is not None
    return find_masks(network, sparsity, exclude=exclude)


def _test(data: str | None, folder: Path | None, model: str, points: int) -> Any:
    """The samples whose neighbourhoods are compared."""
    from prunus.cli._inputs import data_sets
    from prunus.errors import BadInput

    if points and data is None:
        raise BadInput("--points needs --data.")
    return data_sets(data if points else None, folder, model, look=False)[1]


def _shape(network: Any, told: str | None) -> tuple[int, ...] | None:
    """The shape of one input: as given, or as the network has it; None where neither is known."""
    from prunus.cli._inputs import real_example

    if told is None and getattr(network, "input_shape", None) is not None:
        return tuple(network.input_shape)
    example = real_example(network, told)
    return None if example is None else tuple(example.shape[1:])


def _domains(
    shape: tuple[int, ...] | None,
    spec: Path | None,
    box: tuple[float, float] | None,
    points: int,
    radius: float,
    test: Any,
) -> list[tuple[str, Any]]:
    import torch

    from prunus.certificates import Box, Samples
    from prunus.certificates.vnnlib import read_vnnlib
    from prunus.cli._inputs import points_of
    from prunus.errors import BadInput

    if sum((spec is not None, box is not None, points > 0)) != 1:
        raise BadInput("Say where to compare, in one way: --spec FILE, --box LOW HIGH, or --points COUNT with --data.")
    if spec is not None:
        found = read_vnnlib(spec)
        if shape is not None and found.low.numel() == torch.Size(shape).numel():  # type: ignore[union-attr]
            found = Box(found.low.reshape(shape), found.high.reshape(shape))  # type: ignore[union-attr]
        return [(spec.name, found)]
    if box is not None:
        low, high = (torch.full(shape, side, dtype=torch.float64) if shape else side for side in box)
        return [(f"[{box[0]:g}, {box[1]:g}]", Box(low, high))]
    inputs = points_of(test, points)
    return [(f"point {number}", Samples(inputs[number : number + 1], radius)) for number in range(len(inputs))]


def _print(model: str, verdicts: list[tuple[str, Any]], output: Path | None, json: bool) -> None:
    from prunus.cli.output import console, print_json, print_table, show
    from prunus.storage import write_json

    rows = [{"domain": name, **verdict.to_dict()} for name, verdict in verdicts]
    counts = {status: sum(row["status"] == status for row in rows) for status in ("proved", "refuted", "undecided")}
    record: dict[str, Any] = {"model": model, "verdicts": rows, **counts}
    if output is not None:
        record["file"] = str(write_json(output, record))
    if json:
        print_json(record)
        return
    out = console()
    if len(verdicts) == 1:
        out.print(verdicts[0][1].statement)
    else:
        table = [[name, v.status, show(v.bound), v.boxes, f"{v.seconds:.1f}"] for name, v in verdicts]
        print_table(["domain", "verdict", "bound", "boxes", "seconds"], table, left=(0, 1))
        out.print(", ".join(f"{count} {status}" for status, count in counts.items()))
    if output is not None:
        out.print(f"wrote {record['file']}")

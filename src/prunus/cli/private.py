"""`prunus private`: plan, simulate, audit and train with private sparsification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from prunus.cli.options import DataDir, Json, Seed, flags, flags_of
from prunus.settings.private import METHODS, ComparisonOptions, SimulationOptions

private = App(
    name="private",
    help="Plan, simulate and audit private sparsification.",
    help_epilogue="Example: prunus private plan --d 1000000 --k 0.01 --theta 2.64",
)

Size = Annotated[int, Parameter(name="--d", help="Coordinates of the vector.")]
Share = Annotated[float, Parameter(name="--k", help="Fraction of the coordinates that is kept.")]
Theta = Annotated[float, Parameter(help="Concentration around the true top set; 0 is a random set.")]
DataName = Annotated[str, Parameter(help="digits, mnist or fashion-mnist.")]
if TYPE_CHECKING:
    Simulation = Any
    Comparison = Any
else:
    _SIMULATED = ("clients", "rounds", "k", "theta", "noise_multiplier", "dropout", "processes", "model")
    _COMPARED = ("epsilon", "delta", "epochs", "batch", "lr", "clip", "k", "seeds", "model")
    Simulation = flags_of("Simulation", flags(SimulationOptions, names=_SIMULATED))
    Comparison = flags_of("Comparison", flags(ComparisonOptions, names=_COMPARED))


@private.command
def plan(
    *,
    d: Size = 1_000_000,
    k: Share = 0.01,
    theta: Annotated[float | None, Parameter(help="Concentration around the true top set.")] = None,
    swap_epsilon: Annotated[float | None, Parameter(help="Or: epsilon for each swapped index.")] = None,
    local_epsilon: Annotated[float | None, Parameter(help="Or: epsilon between any two vectors.")] = None,
    error: Annotated[float | None, Parameter(help="Or: expected squared error as a share of the vector's.")] = None,
    group: Annotated[int | None, Parameter(help="Draw in groups of so many coordinates.")] = None,
    output: Annotated[Path | None, Parameter(alias="-o", help="Write the plot to this HTML file.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Print what noisy top-k keeps, loses and reveals, before anything is sent.

    The table is exact for normal coordinates. Both readings of the privacy stand side by side: for each swapped index,
    and between any two vectors.

    Example: `prunus private plan --d 1000000 --k 0.01 --swap-epsilon 5.28 -o plan.html`
    """
    from prunus.papers.noisy_topk import planning

    chosen = {"swap_epsilon": swap_epsilon, "local_epsilon": local_epsilon, "error": error}
    if theta is None and all(value is None for value in chosen.values()):
        theta = 2.64
    mech = planning.choose(k, d, theta, **chosen)
    rows = planning.trade_off(mech, d, group)
    privacy = mech.privacy(d, group=group)
    if output is not None:
        planning.write_plot(rows, output)
    record: dict[str, Any] = {"mechanism": {"k": mech.k, "theta": mech.theta}, "privacy": privacy.to_dict()}
    record |= {"summary": planning.summary(mech, d), "table": rows}
    if _machine(record, json):
        return
    _table(rows, mark=lambda entry: entry["theta"] == mech.theta)
    _say(f"theta = {mech.theta:.6g}: {privacy}", *(f"{key}: {_number(v)}" for key, v in record["summary"].items()))
    if output is not None:
        _say(f"wrote {output}")


@private.command
def simulate(
    data: DataName = "digits",
    *,
    choices: Annotated[Simulation | None, Parameter(name="*")] = None,
    data_dir: DataDir = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train with n clients: accuracy, bytes and privacy of noisy top-k against dense and plain top-k.

    Example: `prunus private simulate digits --clients 3 --rounds 2 --k 0.05`
    """
    from prunus.cli.output import progress
    from prunus.papers.noisy_topk.simulation import methods
    from prunus.papers.noisy_topk.simulation import simulate as run

    options = SimulationOptions(data, _folder(data_dir), seed=seed, **_given(choices))
    with progress("training", len(methods(options)) * options.rounds, json) as advance:
        rows = run(options, advance)
    if _machine({"options": options, "rows": rows}, json):
        return
    _table([{key: value for key, value in entry.items() if key != "unit"} for entry in rows])
    _say(
        "Index epsilons are for one message, the last epsilon for all rounds at delta 1e-5 (- : no guarantee).",
        "Local rows send values without noise: the values are not private. Sampling clients does not amplify anything "
        "against the server, which sees who takes part.",
    )


@private.command
def audit(
    *,
    d: Annotated[int, Parameter(name="--d", help="Coordinates; small, so that every index set can be counted.")] = 8,
    m: Annotated[int, Parameter(name="--m", help="Coordinates kept.")] = 3,
    theta: Theta = 0.5,
    draws: Annotated[int, Parameter(help="Draws from each vector.")] = 20_000,
    fault: Annotated[
        str | None, Parameter(help="Plant one: no-absolute-value, half-noise, truncated-tail or reused-seed.")
    ] = None,
    seed: Annotated[int | None, Parameter(help="Seeded draws; without it those of the operating system.")] = None,
    json: Json = False,
) -> int:
    """Bound epsilon from below by running the mechanism on worst-case neighbours; status 1 where it exceeds the claim.

    Example: `prunus private audit --draws 5000`. A planted fault is found, with status 1:
    `prunus private audit --fault half-noise`
    """
    from prunus.errors import UnknownName
    from prunus.private import NoisyTopK
    from prunus.private.audit import FAULTS
    from prunus.private.audit import audit as run

    if fault is not None and fault not in FAULTS:
        raise UnknownName("fault", fault, FAULTS)
    mech = NoisyTopK(m, theta)
    report = run(mech, d, draws, sampler=FAULTS[fault](mech) if fault else None, insecure_seed=seed)
    if not _machine(report.to_dict(), json):
        _table([vars(finding) for finding in report.findings])
        _say("passed: nothing exceeds its claim." if report.passed else "FAILED: it leaks more than it claims.")
    return 0 if report.passed else 1


@private.command
def train(
    data: DataName = "digits",
    *,
    choices: Annotated[Comparison | None, Parameter(name="*")] = None,
    data_dir: DataDir = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """DP-SGD with dense gradients, random masks, noisy top-k and the two-level rule, at equal total privacy.

    Example: `prunus private train digits --epsilon 3 --epochs 1 --seeds 1`
    """
    from prunus.cli.output import progress
    from prunus.papers.noisy_topk.comparison import compare, predictions

    options = ComparisonOptions(data, _folder(data_dir), seed=seed, **_given(choices))
    with progress("training", len(METHODS) * options.seeds, json) as advance:
        rows = compare(options, advance)
    noisy = next(entry for entry in rows if entry["method"] == "noisy-top-k")
    theory = predictions(options.k, noisy["d"], noisy["index epsilon per step"], noise_variance=1.0)
    if _machine({"options": options, "rows": rows, "theory": theory}, json):
        return
    _table([{key: value for key, value in entry.items() if key != "d"} for entry in rows])
    _say(
        f"theory (N-14): worst-case calibration gives theta = {theory['theta']:.3g}, which keeps {theory['gain']:.3g} "
        "more of the top set than a random mask: noisy top-k is a random mask here.",
        f"theory (N-11): if noise and coordinates had equal variance, keeping {theory['best_k']:.1%} would be best.",
    )


def _folder(data_dir: Path | None) -> str | None:
    return str(data_dir) if data_dir else None


def _given(choices: Any) -> dict[str, Any]:
    return {} if choices is None else {name: value for name, value in vars(choices).items() if value is not None}


def _machine(record: Any, json: bool) -> bool:
    from prunus.cli.output import print_json

    if json:
        print_json(record)
    return json


def _table(rows: list[dict[str, Any]], mark: Any = None) -> None:
    from prunus.cli.output import print_table

    columns = list(rows[0])
    cells = [[entry[column] for column in columns] for entry in rows]
    if mark is not None:
        columns = ["", *columns]
        cells = [[">" if mark(entry) else "", *line] for entry, line in zip(rows, cells)]
    text = [number for number in range(len(columns)) if isinstance(cells[0][number], str)]
    print_table(columns, cells, left=text)


def _say(*lines: str) -> None:
    from prunus.cli.output import console

    for line in lines:
        console().print(line, markup=False)


def _number(value: Any) -> str:
    from prunus.cli.output import show

    return show(value)

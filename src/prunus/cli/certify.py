"""`prunus certify`: bound how far a pruned network can be from the original, beside a difference that was found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import Input, InputIds
from prunus.cli.options import Data, DataDir, Exclude, Json, Model, Seed, Weights

Masks = Annotated[Path | None, Parameter(help="Masks of the pruning, as `prunus prune -o` writes them.")]
Pruned = Annotated[Path | None, Parameter(help="Weights of the pruned network, instead of masks.")]
Radius = Annotated[float | None, Parameter(help="2-norm radius: of the ball, or of the neighbourhood of every sample.")]
Samples = Annotated[int, Parameter(help="Certify near this many test points of --data instead of in a ball around 0.")]
Methods = Annotated[
    list[str] | None, Parameter(negative="", help="recursion, products, intervals, relaxation; may be repeated.")
]


def certify(
    model: Model,
    *,
    weights: Weights = None,
    masks: Masks = None,
    pruned: Pruned = None,
    sparsity: Annotated[float | None, Parameter(help="Prune by magnitude at this sparsity, instead of masks.")] = None,
    exclude: Exclude | None = None,
    radius: Radius = None,
    samples: Samples = 0,
    data: Data = None,
    data_dir: DataDir = None,
    input: Input = None,
    input_ids: InputIds = None,
    statistical: Annotated[bool, Parameter(negative="", help="Also certify statistically, on the test data.")] = False,
    confidence: Annotated[float, Parameter(help="Confidence of the statistical certificate.")] = 0.95,
    method: Methods = None,
    norm: Annotated[str, Parameter(help='2, or "max" for the output that moves furthest.')] = "2",
    seconds: Annotated[
        float | None, Parameter(help="Time for the linear relaxation: 60, or with --verify what it needs.")
    ] = None,
    attack: Annotated[bool, Parameter(help="Also search for an input with a large difference.")] = True,
    output: Annotated[Path | None, Parameter(alias="-o", help="Where the certificate goes (JSON).")] = None,
    verify: Annotated[Path | None, Parameter(help="Check this certificate against the networks, instead.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Bound how far a pruned network can be from the original.

    No input of the domain (the ball of `--radius` around 0, or the neighbourhoods of `--samples` test points) moves the
    output by more than the bound; the attack finds an input that moves it by the value attained. The table shows each
    layer: its norm, the norm of what was removed, and its share of the error.

    Example: `prunus certify fc:64-64-64-10 --sparsity 0.5 --exclude layers.2 --radius 1 -o certificate.json`, and to
    check it later `prunus certify fc:64-64-64-10 --sparsity 0.5 --exclude layers.2 --verify certificate.json`
    """
    import torch

    from prunus.certificates import METHODS, Certificate, CertifyOptions
    from prunus.certificates import certify as certify_networks
    from prunus.certificates import verify as verify_file
    from prunus.cli._inputs import fitting_example, real_example
    from prunus.cli.output import progress
    from prunus.models import resolve

    torch.manual_seed(seed)  # a model without weights from a file is the same in every run
    network = resolve(model, str(weights) if weights else None).eval()
    other = _pruned(model, network, masks, pruned, sparsity, tuple(exclude or ()))
    test = test_data(data, data_dir, model, samples, statistical)
    found: Certificate
    with progress("certifying", None, quiet=json) as advance:
        if verify is not None:
            limit = None if seconds is None else CertifyOptions(seconds=seconds)
            found = verify_file(verify, network, other, options=limit)
        else:
            options = CertifyOptions(
                tuple(method or METHODS),
                60.0 if seconds is None else seconds,
                progress=lambda text: advance(0, text),
            )
            domain = domain_of(radius, samples, test)
            example = real_example(network, input, input_ids) if test is None else fitting_example(network, test)
            found = certify_networks(
                network,
                other,
                domain,
                attack=attack,
                seed=seed,
                norm=output_norm(norm),
                example=example,
                options=options,
            )
    record: dict[str, Any] = {"model": model, **found.to_dict(), "statement": found.statement}
    record["verified"] = str(verify) if verify else None
    if statistical:
        from prunus.certificates import certify_statistically

        record["statistical"] = certify_statistically(network, other, test, confidence=confidence).to_dict()
    if output is not None:
        record["file"] = str(found.save(output))
    _print(record, found, json)


def _pruned(
    name: str, network: Any, masks: Path | None, pruned: Path | None, sparsity: float | None, exclude: tuple[str, ...]
) -> Any:
    """What is compared with the original: masks from a file, other weights, or magnitude pruning here."""
    import copy

    from prunus.contract import Masks as MasksType
    from prunus.errors import BadInput
    from prunus.models import load_weights
    from prunus.pruning import find_masks

    given = [item is not None for item in (masks, pruned, sparsity)]
    if sum(given) != 1:
        raise BadInput("Say what the pruned network is, in one way: --masks FILE, --pruned FILE or --sparsity NUMBER.")
    if masks is not None:
        return MasksType.load(masks)
    if pruned is not None:
        return load_weights(copy.deepcopy(network), str(pruned)).eval()
    assert sparsity is not None
    return find_masks(network, sparsity, exclude=exclude)


def output_norm(name: str) -> int | str:
    """The norm that --norm names."""
    from prunus.errors import BadInput

    if name not in ("2", "max"):
        raise BadInput(f'--norm is "max" or 2, not {name!r}.')
    return 2 if name == "2" else "max"


def test_data(data: str | None, folder: Path | None, model: str, samples: int, statistical: bool) -> Any:
    """The samples to certify on; None where there are none and none are needed."""
    from prunus.cli._inputs import data_sets
    from prunus.errors import BadInput

    if data is None and (samples or statistical):
        raise BadInput("--samples and --statistical need --data.")
    return data_sets(data, folder, model, look=False)[1]


def domain_of(radius: float | None, samples: int, test: Any) -> Any:
    """The surroundings of the first samples, or a ball around 0."""
    from prunus.certificates import Ball
    from prunus.certificates import Samples as SamplesDomain
    from prunus.cli._inputs import points_of

    if samples:
        return SamplesDomain(points_of(test, samples), 0.0 if radius is None else radius)
    return Ball(1.0 if radius is None else radius)


def _print(record: dict[str, Any], found: Any, json: bool) -> None:
    from prunus.cli.output import console, print_json, print_table, show

    if json:
        print_json(record)
        return
    rows = [
        [row.name, row.kind, row.norm, row.pruned_norm, row.removed_norm, f"{row.share:.1%}"] for row in found.layers
    ]
    print_table(["layer", "kind", "norm", "pruned", "removed", "share of error"], rows, left=(0, 1))
    out = console()
    out.print(found.statement)
    methods = ", ".join(f"{name} {show(value)}" for name, value in found.methods.items())
    out.print(
        f"methods: {methods}; rounding {show(found.rounding)}; "
        f"sum of both networks' largest output norms {show(found.sizes)}"
    )
    if found.loss_bound is not None:
        out.print(f"The cross-entropy changes by at most {show(found.loss_bound)}.")
    if "statistical" in record:
        out.print(record["statistical"]["statement"])
    if record["verified"]:
        out.print(f"{record['verified']} holds for these networks.")
    if "file" in record:
        out.print(f"wrote {record['file']}")

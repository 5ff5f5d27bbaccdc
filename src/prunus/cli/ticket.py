"""`prunus ticket`: find a subnetwork in random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import data_pair
from prunus.cli._training import Place, configure, print_presets, processes, show_run, training_flags
from prunus.cli.options import Data, DataDir, Exclude, Json, Seed
from prunus.settings.training import FitConfig

BASE = FitConfig(lr=0.3, schedule="cosine-epoch")

if TYPE_CHECKING:
    Flags = Any
else:
    Flags = training_flags(BASE)


@dataclass
class SearchOptions:
    """The search itself; what is not given is taken from the preset, or from the defaults."""

    method: Annotated[str | None, Parameter(help="edge-popup, iterand, gem-miner or multicoated.")] = None
    sparsity: Annotated[float | None, Parameter(help="Fraction pruned in every layer; 0.5 unless given.")] = None
    period: Annotated[
        int | None, Parameter(help="Steps between two redraws of IteRand or freezes of Gem-Miner; 300 unless given.")
    ] = None
    rate: Annotated[float | None, Parameter(help="Part of the pruned weights redrawn; 0.1 unless given.")] = None
    ranking: Annotated[str, Parameter(help="Keep the largest scores (signed) or magnitudes (absolute).")] = "signed"
    counting: Annotated[str, Parameter(help="exact, iterand or hidden-networks.")] = "exact"
    allocation: Annotated[str, Parameter(help="uniform, erk, or one global threshold.")] = "uniform"
    ramp: Annotated[str, Parameter(help="Sparsity over time: constant, linear or cubic.")] = "constant"
    ramp_start: Annotated[float, Parameter(help="Sparsity at the start of the ramp.")] = 0.0
    ramp_end: Annotated[str | None, Parameter(help="End of the ramp, as in 50ep; three quarters of the run.")] = None
    redraw: Annotated[
        str | None,
        Parameter(help="What IteRand draws from: signed_constant, kaiming_uniform, initial; found out if not given."),
    ] = None
    score_init: Annotated[str, Parameter(help="Scores begin wide (kaiming) or narrow.")] = "kaiming"
    biases: Annotated[str, Parameter(help="zero, as in the papers, or keep.")] = "zero"
    l1: Annotated[float, Parameter(help="Weight of the sum of Gem-Miner's scores beside the loss.")] = 0.0
    restore: Annotated[
        bool, Parameter(help="Gem-Miner ends at exactly the sparsity: what rounding left out comes back.")
    ] = True
    coats: Annotated[int, Parameter(help="Masks that multicoated adds up.")] = 3
    coating: Annotated[str, Parameter(help="Coats with equal steps in number (uniform) or in score (linear).")] = (
        "uniform"
    )
    spectral_penalty: Annotated[float, Parameter(help="Weight of the squared spectral norms beside the loss.")] = 0.0


def ticket(
    model: Annotated[str | None, Parameter(help="Zoo name or `package.module:factory`; a preset has its own.")] = None,
    *,
    data: Data = None,
    length: Annotated[str | None, Parameter(help="Epochs as in 100ep, or steps as in 5000it.")] = None,
    preset: Annotated[str | None, Parameter(help="A published setting; see --presets.")] = None,
    presets: Annotated[bool, Parameter(negative="", help="List the published settings.")] = False,
    search: Annotated[SearchOptions | None, Parameter(name="*")] = None,
    flags: Annotated[Flags | None, Parameter(name="*")] = None,
    place: Annotated[Place | None, Parameter(name="*")] = None,
    init: Annotated[
        str | None, Parameter(help="Random weights: signed_constant (unless given), kaiming_uniform, ...")
    ] = None,
    exclude: Exclude | None = None,
    data_dir: DataDir = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Find a subnetwork in random weights that classifies without a single weight being trained.

    The scores of the weights are trained and the best are kept (edge-popup); IteRand also draws part of the pruned
    weights anew from time to time, Gem-Miner freezes the worst step by step, and multicoated counts the best weights
    twice or more. With `-o` leaves a run folder; its `ticket.safetensors` holds, except for IteRand, only a seed, one
    bit per weight (and coat) and a hash.

    Example: `prunus ticket fc:64-64-64-10 --data digits --length 6ep --period 7 --rate 0.1 -o runs/ticket`
    """
    from prunus.errors import BadInput

    if presets:
        print_presets(json, searches=True)
        return
    search = search or SearchOptions()
    found = _preset(preset)
    model, data = model or found.get("model"), data or found.get("data")
    if model is None or data is None:
        raise BadInput("ticket needs a model and --data, or a --preset that names both.")
    with processes() as prints:
        config, folder = configure(found["config"], flags, place, seed, json or not prints)
        config = config.replace(spectral_penalty=search.spectral_penalty)
        chosen = _arguments(found, search, init, length)
        result = _search(model, data_pair(data, data_dir, model), chosen, config, tuple(exclude or ()), seed)
        settings = {"model": model, "data": data, "preset": preset, "seed": seed, **result.record}
        record = {**settings, "sparsity": result.masks.sparsity, "notes": result.history.notes}
        record["final"] = result.history[-1].to_dict() if result.history else None
        if folder is not None and prints:
            result.save(folder.folder / "ticket.safetensors")
            record["ticket_bytes"] = (folder.folder / "ticket.safetensors").stat().st_size
            folder.write(settings, record, result.history, result.model, result.masks)
        _show(record, result, folder, json, prints)


def _preset(name: str | None) -> dict[str, Any]:
    from prunus.errors import BadInput
    from prunus.training.presets import preset

    if name is None:
        return {
            "config": BASE,
            "method": "iterand",
            "length": "100ep",
            "init": "signed_constant",
        }
    chosen = preset(name)
    if chosen.method == "sgd":
        raise BadInput(
            f"The preset {name!r} trains weights: use it with prunus train, or one of prunus ticket --presets."
        )
    own = {"config": chosen.config, "model": chosen.model, "data": chosen.data, "method": chosen.method}
    return {**own, "length": chosen.length, "init": chosen.init, **chosen.ticket}


def _arguments(found: dict[str, Any], search: SearchOptions, init: str | None, length: str | None) -> dict[str, Any]:
    """The arguments of `find_ticket`."""
    from prunus.training import Ramp, TicketOptions

    chosen: dict[str, Any] = {
        key: found[key] for key in ("method", "sparsity", "period", "rate", "length") if key in found
    }
    given = {"method": search.method, "sparsity": search.sparsity, "period": search.period, "rate": search.rate}
    chosen |= {key: value for key, value in (given | {"length": length}).items() if value is not None}
    chosen["options"] = TicketOptions(
        weights=init or found["init"],
        ranking=search.ranking,
        counting=search.counting,
        allocation=search.allocation,
        ramp=Ramp(search.ramp, start=search.ramp_start, end=search.ramp_end),
        redraw=search.redraw,
        score_init=search.score_init,
        biases=search.biases,
        l1=search.l1,
        restore=search.restore,
        coats=search.coats,
        coating=search.coating,
    )
    return chosen


def _search(model: str, pair: Any, chosen: dict[str, Any], config: Any, exclude: tuple[str, ...], seed: int) -> Any:
    import torch

    from prunus.models import resolve
    from prunus.training import find_ticket

    train, test = pair
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = resolve(model)
    return find_ticket(network, train, test=test, config=config, exclude=exclude, **chosen)


def _show(record: dict[str, Any], result: Any, folder: Path | None, json: bool, prints: bool) -> None:
    from prunus.cli.output import print_json

    if not prints:
        return
    if json:
        print_json(record)
    else:
        show_run(record, result.history, folder)

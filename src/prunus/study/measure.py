"""What one cell measures. Everything here runs in a worker: plain data in, plain data out.

`train_base` makes the dense network that cells share; `run_cell` prunes it and measures. A measurement that does not
apply (a room that is not installed, an operation without a rule) leaves a sentence in `record["notes"]`; the other
measurements go on.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunus.contract import Duration, Masks
from prunus.errors import BadInput, PrunusError
from prunus.models.hf import PREFIX
from prunus.pruning import find_masks, scores, summarise
from prunus.study import kept, methods, pictures
from prunus.study.answers import same_answers
from prunus.study.examples import examples
from prunus.study.grid import Cell
from prunus.study.networks import (
    build,
    chance,
    drawn,
    first_inputs,
    load,
    measure_quality,
    quick,
    restored,
    settle,
    stored_bytes,
    versions,
)
from prunus.study.speeds import compressed, measure_peers, shrunk
from prunus.study.theory import predicted_energy

SMALL = 200_000
"""Up to so many weights the linear relaxation and the ball around all test points are computed too."""


def train_base(cell: Cell, weights_hash: str = "") -> tuple[bytes, dict[str, Any]]:
    """The dense network of a cell: its weights as safetensors bytes, and what is known about it.

    `weights_hash` is the SHA-256 that the file of given weights had when the study began.
    """
    from prunus.storage import pack_tensors
    from prunus.training import FitConfig, fit
    from prunus.training.metrics import require_fit

    settle(cell.seed)
    started = time.perf_counter()
    settings, model = cell.settings, build(cell)
    test = load(cell, "test")
    require_fit(settings.metric, model, test)
    record: dict[str, Any] = {"versions": versions(), "notes": {}, "history": []}
    if settings.weights:
        _read_given(model, settings.weights, weights_hash)
    elif Duration.parse(settings.length).amount > 0 and not cell.model.startswith(PREFIX):  # folders bring weights
        config = FitConfig(
            optimizer=settings.optimizer,
            lr=settings.lr,
            batch_size=settings.batch_size,
            augment=settings.augment,
            seed=cell.seed,
            progress=False,
        )
        history = fit(model, load(cell, "train"), length=settings.length, config=config)
        record["history"] = [{"epoch": row.epoch, "loss": row.loss, "accuracy": row.accuracy} for row in history]
    model.eval()
    with quick(model):
        record |= measure_quality(settings.metric, model, test)
    record["chance"] = chance(settings.metric, test)
    record["parameters"] = sum(p.numel() for p in model.parameters())
    _attempt(record, "weights", lambda: {"weights": pictures.weights(model)})
    if settings.kernel:
        _attempt(record, "kernel", lambda: {"kernel": _kernel_of(model, None, _points(test, settings.kernel))})
    if settings.peers:
        _attempt(record, "dense engines", lambda: measure_peers(cell, model, test))
    body = pack_tensors(model.state_dict(), "weights")
    record |= {"bytes": stored_bytes(model), "seconds": time.perf_counter() - started}
    return body, record


def _read_given(model: nn.Module, path: str, expected: str) -> None:
    """The weights a study was given, the same that its cells were named by."""
    from prunus.models import load_weights
    from prunus.storage import digest_of_file

    load_weights(model, path)
    if expected and digest_of_file(path) != expected:
        raise BadInput(f"The weights file {path} has changed since the study began: run the study again.")


def run_cell(cell: Cell, weights: bytes, base: dict[str, Any], network: str | None = None) -> dict[str, Any]:
    """Prune the dense network of this cell and measure: one flat record, with layers and pictures inside.

    `network` is the file that the pruned network is kept in.
    """
    settle(cell.seed)
    settings = cell.settings
    dense = restored(cell, weights)
    test = load(cell, "test")
    with quick(dense):
        made, seconds = kept.made(cell, dense, network)
    pruned, masks = made.model, made.masks
    record: dict[str, Any] = {"notes": {}, "versions": versions(), "realised_sparsity": masks.sparsity}
    record |= {"accuracy_dense": base["accuracy"], "loss_dense": base["loss"], "chance": base.get("chance")}
    record |= {"quality_dense": base.get("quality", base["accuracy"]), "quality_int8": base.get("quality_int8")}
    record |= {"making": made.record, "making_seconds": seconds}
    record |= _quality(cell, pruned, None if made.smaller else masks, test)
    layers = _layers(cell, dense, masks, test, made.record.get("layer_errors") or {})
    record |= _totals(layers)
    record["masks"] = pictures.masks(dense, masks)
    if settings.certify and not made.smaller:
        _attempt(record, "certificate", lambda: _certificate(cell, dense, pruned, test, layers))
    if settings.labels and not made.smaller:
        _attempt(record, "proved labels", lambda: _labels(cell, dense, pruned, test, layers))
    if settings.held_out:
        _attempt(record, "statistical certificate", lambda: same_answers(cell, dense, pruned, test))
    if settings.kernel:
        _attempt(record, "kernel", lambda: _kernel(cell, base, pruned, test))
    if settings.compress:
        timed = shrunk if made.smaller else compressed
        _attempt(record, "compress", lambda: timed(cell, base, dense, pruned, test, layers))
    if settings.examples:
        _attempt(record, "examples", lambda: examples(cell, dense, pruned, test))
    return record | {"layers": layers, "bytes_dense": base["bytes"]}


def _attempt(record: dict[str, Any], name: str, measure: Callable[[], dict[str, Any]]) -> None:
    """Add what a measurement gives, or say in one sentence why it is not there."""
    try:
        record |= measure()
    except PrunusError as error:
        record["notes"][name] = f"not available: {error}"
    except ImportError as error:
        record["notes"][name] = f"not available in this installation: {error.name or 'a module'} is missing something."


def _points(test: Any, count: int) -> Tensor:
    """Some inputs as points of a space; text has none."""
    found = first_inputs(drawn(test, count), count)
    if not isinstance(found, Tensor):
        raise BadInput("it needs inputs that are numbers, and these are texts.")
    return found


# ----------------------------------------------------------------------------------------------------- the measurements


def masks_of(cell: Cell, dense: nn.Module) -> Masks:
    """The masks of the cell's score, or by magnitude where its method chooses in a way of its own."""
    data = None
    score = "magnitude" if methods.METHODS[methods.parse(cell.method)[0]].score else cell.score
    if scores.needs_data(score):
        data = drawn(load(cell, "train"), cell.settings.look)
    return find_masks(
        dense,
        cell.sparsity,
        score=score,
        pattern=cell.pattern,
        allocation=cell.settings.allocation,
        exclude=cell.settings.exclude,
        data=data,
        seed=cell.seed,
    )


def _quality(cell: Cell, pruned: nn.Module, masks: Masks | None, test: Any) -> dict[str, Any]:
    """Loss and accuracy right after pruning, and again after the fine-tune where there is one."""
    with quick(pruned):
        return _tuned(cell, pruned, masks, test)


def _tuned(cell: Cell, pruned: nn.Module, masks: Masks | None, test: Any) -> dict[str, Any]:
    from prunus.training import FitConfig, fit, recalibrate

    settings = cell.settings
    if settings.recalibrate:
        recalibrate(pruned, load(cell, "train"), batches=settings.recalibrate)
        pruned.eval()
    found = measure_quality(settings.metric, pruned, test)
    found |= {"accuracy_pruned": found["accuracy"], "loss_pruned": found["loss"]}
    if Duration.parse(settings.finetune).amount > 0:
        config = FitConfig(
            optimizer=settings.optimizer,
            lr=settings.finetune_lr,
            batch_size=settings.batch_size,
            augment=settings.augment,
            seed=cell.seed + 1,
            progress=False,
        )
        fit(pruned, load(cell, "train"), length=settings.finetune, config=config, masks=masks)
        pruned.eval()
        found |= measure_quality(settings.metric, pruned, test)
    return found


def _layers(
    cell: Cell, dense: nn.Module, masks: Masks, test: Any, errors: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """For each layer: what is kept, energy removed and predicted, multiply-adds, and the loss it costs alone.

    `errors` are those of a reconstruction: the relative squared error of the layer's outputs by magnitude and now.
    """
    wanted = cell.settings.sensitivity and cell.settings.metric == "accuracy"
    costs = _costs(cell, dense, masks, test) if wanted else {}
    rows = []
    for row in summarise(dense, masks, first_inputs(test, 1)):
        rows.append(
            {
                "name": row.name,
                "shape": list(row.shape),
                "total": row.total,
                "kept": row.kept,
                "sparsity": row.sparsity,
                "energy_removed": row.energy_removed,
                "energy_predicted": predicted_energy(cell.score, cell.pattern, row.sparsity, row.total),
                "energy": float(dense.get_parameter(row.name).detach().double().square().sum()),
                "mac_dense": row.multiply_adds,
                "mac_kept": row.multiply_adds_kept,
                "sensitivity": costs.get(row.name),
                "error_before": errors.get(row.name, {}).get("before"),
                "error_after": errors.get(row.name, {}).get("after"),
            }
        )
    return rows


def _costs(cell: Cell, dense: nn.Module, masks: Masks, test: Any) -> dict[str, float]:
    """For each layer by name: the rise of the loss when it alone is pruned."""
    part = drawn(test, cell.settings.sensitivity)
    found = {}
    with quick(dense):
        before = measure_quality("accuracy", dense, part)["loss"] or 0.0
        for name, mask in masks.items():
            alone = Masks({name: mask}).apply_(copy.deepcopy(dense))
            found[name] = (measure_quality("accuracy", alone, part)["loss"] or 0.0) - before
    return found


def _totals(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over the pruned layers; energies are weighed by what each layer holds."""
    energy = math.fsum(row["energy"] for row in layers) or 1.0
    found: dict[str, Any] = {
        "energy_removed": math.fsum(row["energy_removed"] * row["energy"] for row in layers) / energy
    }
    if all(row["energy_predicted"] is not None for row in layers):
        found["energy_predicted"] = math.fsum(row["energy_predicted"] * row["energy"] for row in layers) / energy
    for name in ("mac_dense", "mac_kept"):
        if all(row[name] is not None for row in layers):
            found[name] = sum(row[name] for row in layers)
    return found


def _certificate(
    cell: Cell, dense: nn.Module, pruned: nn.Module, test: Any, layers: list[dict[str, Any]]
) -> dict[str, Any]:
    """Bounds near test points; on small networks also in the smallest ball around the test set's mean that holds it."""
    from prunus.certificates import AttackSettings, Ball, CertifyOptions, Samples, certify

    settings, points = cell.settings, _points(test, cell.settings.certify)
    small = sum(row["total"] for row in layers) <= SMALL
    options = CertifyOptions(seconds=120.0 if small else settings.certify_seconds)
    attack = AttackSettings(starts=max(16 if small else 4, len(points)), steps=40 if small else 10)
    if not small:
        dense, pruned, points = copy.deepcopy(dense).double(), copy.deepcopy(pruned).double(), points.double()
    near = Samples(points, radius=settings.radius)
    found = certify(dense, pruned, near, attack=attack, seed=cell.seed, options=options)
    record: dict[str, Any] = {"bound": found.bound, "attained": found.attained, "certificate_method": found.method}
    record |= {"vacuous": found.vacuous, "certificate_arithmetic": "float32" if small else "float64"}
    record["certificate_methods"] = {name: value for name, value in found.methods.items() if math.isfinite(value)}
    record["output_size"] = float(torch.linalg.vector_norm(dense(points).detach(), dim=1).mean())
    norms = {f"{layer.name}.weight": layer for layer in found.layers}
    for row in layers:
        layer = norms.get(row["name"])
        if layer is not None:
            row |= {"norm": layer.norm, "norm_pruned": layer.pruned_norm, "norm_removed": layer.removed_norm}
            row["certificate_share"] = layer.share
    if small:
        every = _points(test, len(test))
        centre = every.mean(0)
        radius = float(torch.linalg.vector_norm((every - centre).flatten(1), dim=1).max())
        quick = CertifyOptions(methods=("recursion", "products", "intervals"))
        ball = certify(dense, pruned, Ball(radius, centre), attack=attack, seed=cell.seed, options=quick)
        record |= {"ball_radius": radius, "ball_bound": ball.bound, "ball_attained": ball.attained}
    return record


def _labels(cell: Cell, dense: nn.Module, pruned: nn.Module, test: Any, layers: list[dict[str, Any]]) -> dict[str, Any]:
    """The share of test points for which both networks provably give one label in the whole neighbourhood."""
    from prunus.certificates import Samples, certify_labels

    settings = cell.settings
    plain = sum(row["total"] for row in layers) <= SMALL and all(len(row["shape"]) == 2 for row in layers)
    if not plain and not settings.certify_seconds:
        return {}  # convolutions take minutes for a point
    found = certify_labels(
        dense,
        pruned,
        Samples(_points(test, settings.labels), radius=settings.radius),
        seconds=math.inf if plain else settings.certify_seconds,
    )
    return {"labels_proved": found.fraction, "labels_points": len(found.agree), **steps_in(test, settings.radius)}


def steps_in(test: Any, radius: float) -> dict[str, Any]:
    """A radius as steps of one pixel or input, 255 from its smallest to its largest value in the data.

    Args:
        test: A data set.
        radius: A 2-norm radius.

    Returns:
        `labels_steps`, the number of steps, and `labels_step_of`, "pixel" or "input".

    Example:
        >>> data = [(torch.tensor([0.0, 1.0]), 0), (torch.tensor([0.5, 0.25]), 1)]
        >>> steps_in(data, 0.2)
        {'labels_steps': 51.0, 'labels_step_of': 'input'}
    """
    points = _points(test, min(len(test), 1000))
    image = points.ndim == 4 and points.shape[1] in (1, 3)
    values = points.transpose(0, 1).flatten(1) if image else points.reshape(1, -1)
    widest = float((values.amax(1) - values.amin(1)).max()) * math.sqrt(len(values))  # all colours of a pixel together
    return {"labels_steps": radius / widest * 255, "labels_step_of": "pixel" if image else "input"} if widest else {}


def _kernel_of(model: nn.Module, masks: Masks | None, points: Tensor) -> dict[str, Any]:
    """The tangent kernel on these points: eigenvalues in falling order, condition number and effective rank."""
    from prunus.tangent import empirical, spectrum

    kernel = empirical(model, points, masks=masks)
    matrix = kernel.double()
    values = torch.linalg.eigvalsh(matrix).flip(0)
    about = spectrum(kernel)
    get = about.get if hasattr(about, "get") else lambda name: getattr(about, name)
    return {
        "eigenvalues": [float(value) for value in values],
        "condition": _finite(float(get("condition"))),
        "effective_rank": float(get("effective_rank")),
        "largest_step": _finite(float(get("largest_step"))),
        "matrix": [[round(float(value), 6) for value in row] for row in matrix],
    }


def _kernel(cell: Cell, base: dict[str, Any], pruned: nn.Module, test: Any) -> dict[str, Any]:
    found = _kernel_of(pruned, None, _points(test, cell.settings.kernel))
    matrix = torch.tensor(found.pop("matrix"), dtype=torch.float64)
    record: dict[str, Any] = {
        "kernel": found,
        "kernel_condition": found["condition"],
        "kernel_effective_rank": found["effective_rank"],
    }
    dense = base.get("kernel")
    if dense:
        before = torch.tensor(dense["matrix"], dtype=torch.float64)
        cosine = float((before * matrix).sum() / (before.norm() * matrix.norm()).clamp_min(1e-300))
        record |= {"kernel_condition_dense": dense["condition"], "kernel_cosine": cosine}
    return record


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

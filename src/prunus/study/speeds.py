"""Times and sizes: the packed network in float32 and in integers, a smaller one, and dense engines beside them.

Everything is a ratio to the dense network in torch, from one interleaved run for each batch size. Dense engines (ONNX
Runtime in float32 and int8) depend on the dense network alone, so they are measured once, with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import PrunusError
from prunus.settings.study import Settings
from prunus.study.answers import same_answers
from prunus.study.grid import Cell
from prunus.study.networks import call, drawn, first_inputs, load, measure_quality, stored_bytes
from prunus.timing import clock_for, interleave, median, ratios

ROUNDS, LEAST = 21, 1e-3
_ENGINES = ("onnx", "onnx int8", "onnx int8 static", "openvino", "openvino int8", "torch int8")
_USELESS = 0.9
"""Outputs that are off by nearly their own size say hardly more than zeros do: such an int8 engine is no rival."""
Inputs = Tensor | Mapping[str, Tensor]


def compressed(
    cell: Cell,
    base: Mapping[str, Any],
    dense: nn.Module,
    pruned: nn.Module,
    test: Any,
    layers: list[dict[str, Any]],
    *,
    judge: bool = True,
) -> dict[str, Any]:
    """The packed network: its file, its time against the dense one, and the same layer by layer.

    Without `judge`, the quality of the network in integers and the answers it keeps are not measured.
    """
    from prunus.sparse import compress, explain, file_bytes

    settings = cell.settings
    example = first_inputs(test, settings.batch)
    fast = _packed(pruned, example)
    # What runs fast depends on the machine and the moment; what is written must not.
    record: dict[str, Any] = {"bytes": stored_bytes(compress(pruned, select="always", example=example))}
    record["bytes_memory"] = stored_bytes(fast)  # as it runs here, with what is faster dense
    models = {"": fast}
    if settings.integers:
        rounded: dict[str, Any] = {"activations": torch.int8, "embeddings": torch.int8}
        models["_integers"] = _packed(pruned, example, **rounded)
        whole = compress(pruned, select="always", example=example, **rounded)
        record["bytes_integers"] = file_bytes(whole)
        record["bytes_memory"] = stored_bytes(models["_integers"])
        if judge:
            record |= _judged(cell, dense, models["_integers"], test)
    rows = {f"{row.layer}.weight": row for row in explain(fast)}
    for layer in layers:
        row = rows.get(layer["name"])
        if row is not None:
            layer |= {"format": row.format, "time_us": row.microseconds, "time_dense_us": row.dense_microseconds}
    record["packed_layers"] = sum(row.format != "dense" for row in rows.values())
    return record | _times(settings, base, dense, models, test)


def _judged(cell: Cell, dense: nn.Module, rounded: nn.Module, test: Any) -> dict[str, Any]:
    """Quality of the network in integers, and the share of answers that stay: its own, not those in float32."""
    found = {"quality": measure_quality(cell.settings.metric, rounded, test)["quality"]}
    if cell.settings.held_out:
        answers = same_answers(cell, dense, rounded, test)
        found |= {name: value for name, value in answers.items() if name.startswith("agreement")}
    return {f"{name}_integers": value for name, value in found.items()}


def shrunk(
    cell: Cell, base: Mapping[str, Any], dense: nn.Module, small: nn.Module, test: Any, layers: list[dict[str, Any]]
) -> dict[str, Any]:
    """A smaller ordinary network runs as it is, in any engine: its bytes, and its times against the dense one's."""
    size, settings = stored_bytes(small), cell.settings
    record = {"bytes": size, "bytes_memory": size, **_times(settings, base, dense, {"": small}, test)}
    if not settings.peers:
        return record
    rows = time_peers(cell, small, test)
    for suffix, batch in _batches(settings):
        in_torch, speeds = record[f"speedup{suffix}"], dict[str, float]()
        for name, kind in (("", "dense"), ("_integers", "int8")):
            faster = _fastest(rows, kind, batch)
            if faster is not None:
                speeds[f"speedup{name}{suffix}"] = in_torch * faster
        record |= speeds | _against(base, max(speeds.values()), suffix, batch)
    rounded = _int8_quality(cell, small, rows, test)
    return record | ({"quality_integers": rounded["quality_int8"]} if rounded else {})


def _packed(pruned: nn.Module, example: Inputs, **options: Any) -> nn.Module:
    """Packed, with neighbouring layers run by one call where the model can be read so."""
    from prunus.sparse import compress

    try:
        return compress(pruned, example=example, fuse=True, **options)
    except PrunusError:
        return compress(pruned, example=example, **options)


def _times(
    settings: Settings, base: Mapping[str, Any], dense: nn.Module, models: Mapping[str, nn.Module], test: Any
) -> dict[str, Any]:
    """Times faster than the dense network in torch, and than the fastest dense engine of each kind."""
    record: dict[str, Any] = {"timed": []}
    for suffix, batch in _batches(settings):
        example = first_inputs(test, batch)
        record["timed"].append(list((example if isinstance(example, Tensor) else next(iter(example.values()))).shape))
        runs = {"dense": partial(call, dense, example)}
        runs |= {name or "packed": partial(call, model, example) for name, model in models.items()}
        with torch.no_grad():
            samples = interleave(runs, ROUNDS, LEAST, clock_for(torch.get_num_threads()))
        best = 0.0
        for name in models:
            faster = ratios(samples, name or "packed")["dense"]
            record[f"speedup{name}{suffix}"] = faster
            best = max(best, faster)
        if not suffix:
            record |= {"time_dense_us": 1e6 * median(samples["dense"]), "time_us": 1e6 * median(samples["packed"])}
        record |= _against(base, best, suffix, batch)
    return record


def _against(base: Mapping[str, Any], faster: float, suffix: str, batch: int) -> dict[str, float]:
    """What is `faster` than dense torch, against the fastest dense engine of each kind."""
    rivals = {kind: _fastest(base.get("peers") or [], kind, batch) for kind in ("dense", "int8")}
    return {f"faster_than_{kind}{suffix}": faster / rival for kind, rival in rivals.items() if rival is not None}


def _batches(settings: Settings) -> list[tuple[str, int]]:
    sizes = [("", settings.batch)]
    return [*sizes, ("_second", settings.second_batch)] if settings.second_batch else sizes


def _fastest(peers: list[dict[str, Any]], kind: str, batch: int) -> float | None:
    """How many times faster than torch the fastest engine of a kind is; torch itself counts as one in float32."""
    best = fastest_engine(peers, kind, batch)
    return None if best is None else best["faster"]


def fastest_engine(peers: Sequence[Mapping[str, Any]], kind: str, batch: int) -> Mapping[str, Any] | None:
    """The row of the fastest engine of a kind ("dense" or "int8") whose outputs are of use; None where there is none.

    Args:
        peers: rows of `time_peers`.
        kind: what the engine's name begins with.
        batch: the batch size.

    Returns:
        Its row.

    Example:
        >>> rows = [{"name": "int8, one", "batch": 1, "faster": 3.0, "error": 1.2}]
        >>> fastest_engine([*rows, {"name": "int8, two", "batch": 1, "faster": 2.0, "error": 0.1}], "int8", 1)["name"]
        'int8, two'
    """
    rows = [peer for peer in peers if peer["batch"] == batch and peer["name"].startswith(kind)]
    useful = [row for row in rows if row["error"] is not None and row["error"] < _USELESS]  # NaN: of another shape
    return max(useful, key=lambda row: float(row["faster"]), default=None)


# ------------------------------------------------------------------------------------------------- the dense engines


def measure_peers(cell: Cell, dense: nn.Module, test: Any) -> dict[str, Any]:
    """The dense network in other engines: times faster than torch, error of the outputs, quality of the int8 one."""
    rows = time_peers(cell, dense, test)
    return {"peers": rows, **_int8_quality(cell, dense, rows, test)}


def time_peers(cell: Cell, dense: nn.Module, test: Any) -> list[dict[str, Any]]:
    """A row for each engine and batch size: times faster than torch, and the error of the outputs."""
    from prunus.sparse import find_peers, output_error

    rows: list[dict[str, Any]] = []
    for _, batch in _batches(cell.settings):
        example = first_inputs(test, batch)
        model, inputs = _positional(dense, example)
        runs: dict[str, Callable[[], Any]] = {"dense, torch": partial(model, *inputs)}
        runs |= find_peers(model, inputs, _ENGINES)
        with torch.no_grad():
            expected = model(*inputs)
            samples = interleave(runs, ROUNDS, LEAST, clock_for(torch.get_num_threads()))
            errors = {name: output_error(run(), expected) for name, run in runs.items()}
        slower = ratios(samples, "dense, torch")
        rows += [{"batch": batch, "name": name, "faster": 1 / slower[name], "error": errors[name]} for name in runs]
    return rows


def _int8_quality(cell: Cell, dense: nn.Module, rows: list[dict[str, Any]], test: Any) -> dict[str, Any]:
    """The dense network with int8 weights and inputs: the study's metric, answers that stay, its size, and the engine.

    One engine takes all test data; the fastest at a batch size may be another, and then this is the better rival.
    """
    from prunus.sparse import int8_engine

    if not any(row["name"].startswith("int8") for row in rows):
        return {}
    engine = int8_engine(dense, first_inputs(drawn(load(cell, "train"), 64), 64))
    if engine is None:
        return {}
    found = {"quality": measure_quality(cell.settings.metric, engine, test)["quality"]}
    if cell.settings.held_out:
        found |= {n: v for n, v in same_answers(cell, dense, engine, test).items() if n.startswith("agreement")}
    named = {f"{name}_int8": value for name, value in found.items()}
    return named | {"engine_int8": engine.engine, "bytes_dense_int8": engine.file_bytes}


class _Named(nn.Module):
    """A model whose inputs have names, called by position, with one tensor as its output."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return call(self.model, dict(zip(self.names, inputs)))


def _positional(dense: nn.Module, example: Inputs) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if isinstance(example, Tensor):
        return dense, (example,)
    return _Named(copy.deepcopy(dense), tuple(example)).eval(), tuple(example.values())

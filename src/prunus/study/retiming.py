"""Times of finished cells measured again, one after the other: for studies that ran while the machine was busy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prunus.errors import BadFile
from prunus.study.grid import Cell
from prunus.study.store import Store


def retime(cells: Sequence[Cell], store: Store, show: Callable[[Cell, float], None] | None = None) -> int:
    """Put fresh times in the place of those in the store. Returns how many cells were timed.

    What the timed network answers in integers is measured again too, where the study kept the network: which layers are
    packed depends on times. Everything else stays.

    Dense engines that a study has times of are timed again first, once for each dense network.

    What runs is the network that the study kept. Where it kept none, it is the dense network under masks of the cell's
    pattern and sparsity: times depend on which weights are kept, not on their values, so nothing need be made again.
    """
    from prunus.study.networks import versions

    results = {result.key: result for result in store.results() if result.status == "done"}
    count, fresh = 0, set[str]()
    for cell in cells:
        result = results.get(cell.key)
        if result is None or result.record.get("speedup") is None or cell.method.startswith("shrink"):
            continue  # masks do not give a smaller network back: it would have to be made again
        if cell.settings.peers and cell.base not in fresh:
            _time_engines(cell, store)
            fresh.add(cell.base)
        record: dict[str, Any] = {**result.record, "layers": [dict(layer) for layer in result.record["layers"]]}
        record |= _times(cell, store, record["layers"]) | {"versions": versions()}
        store.add(cell, record, seconds=result.seconds)
        count += 1
        if show is not None:
            show(cell, record["speedup"])
    return count


def _time_engines(cell: Cell, store: Store) -> None:
    from prunus.study import networks, speeds

    networks.settle(cell.seed)
    dense = networks.restored(cell, _weights(cell, store))
    rows = speeds.time_peers(cell, dense, networks.load(cell, "test"))
    store.add_base(cell, {**store.bases().get(cell.base, {}), "peers": rows})


def _weights(cell: Cell, store: Store) -> bytes:
    file = store.path.parent / "bases" / f"{cell.base}.safetensors"
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadFile(
            f"The dense network {file} cannot be read: {error.strerror or error}; run the study again."
        ) from None


def _times(cell: Cell, store: Store, layers: list[dict[str, Any]]) -> dict[str, Any]:
    from prunus.study import kept, measure, networks, speeds

    weights = _weights(cell, store)
    networks.settle(cell.seed)
    dense = networks.restored(cell, weights)
    file = store.path.parent / "networks" / f"{cell.key}.safetensors"
    known = file.is_file()
    if known:
        pruned = kept.made(cell, dense, str(file))[0].model
    else:
        pruned = measure.masks_of(cell, dense).apply_(networks.restored(cell, weights))
    base = store.bases().get(cell.base, {})
    test = networks.load(cell, "test")
    return speeds.compressed(cell, base, dense, pruned, test, layers, judge=known)

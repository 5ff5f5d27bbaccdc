"""`prunus compress`: a pruned model made fast and small, and saved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli._inputs import Input, InputIds
from prunus.cli.options import Json, Model, Seed, Weights


def compress(
    model: Model,
    *,
    weights: Weights = None,
    masks: Annotated[
        Path | None, Parameter(help="Masks as `prunus prune -o` wrote them; otherwise the zeros of the weights count.")
    ] = None,
    input: Input = None,
    input_ids: InputIds = None,
    batch: Annotated[int, Parameter(help="Batch size the decision is measured for.")] = 1,
    select: Annotated[
        str, Parameter(help="measured: replace what gains; always: replace whatever can be.")
    ] = "measured",
    dtype: Annotated[str, Parameter(help="How kept values are stored: float32, bfloat16 or int8.")] = "float32",
    activations: Annotated[
        str | None, Parameter(help="int8: round inputs too and multiply integers, which is faster (with int8 values).")
    ] = None,
    fuse: Annotated[
        bool, Parameter(negative="", help="Run ReLUs and residual sums inside the layer before them.")
    ] = False,
    threads: Annotated[int | None, Parameter(help="Threads to measure with; torch's own number otherwise.")] = None,
    embeddings: Annotated[str | None, Parameter(help="Round embeddings, and store them so: bfloat16 or int8.")] = None,
    output: Annotated[
        Path | None,
        Parameter(alias="-o", help="Where it goes: a safetensors file, or a folder (hf:)."),
    ] = None,
    onnx: Annotated[
        Path | None, Parameter(help="Also write the dense model, zeros in place, as ONNX with a note of the masks.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Make a pruned network fast and small, and save it.

    Every linear layer and 2-D convolution with enough zeros is packed, timed against torch's dense layer for the batch
    size given, and replaced where that gains. Prints a row for each layer: format, kernel, bytes, times, and the share
    of the machine's limit that is reached. Load the file with `prunus.sparse.load(path, model)`.

    Example: `prunus prune fc:512-512-10 --sparsity 0.9 --pattern balanced:16 -o pruned.safetensors`, then
    `prunus compress fc:512-512-10 --weights pruned.safetensors --batch 8 -o small.safetensors`
    """
    import torch

    from prunus import sparse
    from prunus.cli._inputs import example_or_none
    from prunus.contract import Masks
    from prunus.errors import BadInput
    from prunus.models import resolve

    if batch < 1 or (threads is not None and threads < 1):
        raise BadInput("The batch size and the number of threads must be at least 1.")
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    network = resolve(model, str(weights) if weights else None).eval()
    example = example_or_none(network, batch, input, input_ids)
    kept = Masks.load(masks) if masks else None
    inputs = None if activations is None else _dtype(activations)
    stored = torch.int8 if inputs is not None and dtype == "float32" else _dtype(dtype)
    # Only the export reads the dense network again.
    tables = None if embeddings is None else _dtype(embeddings)
    fast = sparse.compress(
        network, kept, example, select, stored, inputs, embeddings=tables, fuse=fuse, release=onnx is None
    )
    record: dict[str, Any] = {"model": model, "layers": sparse.explain(fast), **_sizes(network, fast)}
    if output is not None:
        record["file"] = str(_saved(fast, output, model))
        files = output.rglob("*") if output.is_dir() else [output]
        record["file_bytes"] = sum(file.stat().st_size for file in files if file.is_file())
    if onnx is not None:
        if example is None:
            raise BadInput("Export to ONNX needs to know the input's shape: give --input 3x224x224 or --input-ids 128.")
        record["onnx"] = str(sparse.export_onnx(network, onnx, example, kept))
    _print(record, json)


def _saved(fast: Any, output: Path, model: str) -> Path:
    """One file; of a Hugging Face model, where the name has no ending, a folder with config and tokenizer."""
    from prunus import sparse
    from prunus.errors import BadFile
    from prunus.models.hf import PREFIX, tokenizer_of

    if output.suffix or not model.startswith(PREFIX):
        return sparse.save(fast, output)
    try:
        tokenizer = tokenizer_of(model.removeprefix(PREFIX))
    except BadFile:  # an image model has none
        tokenizer = None
    sparse.save_pretrained(fast, output, tokenizer)
    return output


def _dtype(name: str) -> Any:
    import torch

    from prunus.errors import UnknownName

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
    if name not in known:
        raise UnknownName("type of values", name, known)
    return known[name]


def _sizes(network: Any, fast: Any) -> dict[str, int]:
    """Bytes in memory; a tensor that has several names counts once."""
    states = [{id(tensor): tensor for tensor in one.state_dict(keep_vars=True).values()} for one in (network, fast)]
    dense, packed = (sum(tensor.nbytes for tensor in state.values()) for state in states)
    return {"dense_bytes": dense, "bytes": packed}


def _print(record: dict[str, Any], json: bool) -> None:
    from prunus.cli.output import console, print_json, print_table

    if json:
        print_json(record)
        return
    columns = ["layer", "format", "kernel", "sparsity", "bytes", "dense", "us", "dense us", "faster", "of limit"]
    rounded = any(row.error is not None for row in record["layers"])
    columns += ["error"] if rounded else []
    table = []
    for row in record["layers"]:
        times = [row.microseconds, row.dense_microseconds]
        times = [None if value is None else f"{value:.1f}" for value in times]
        faster = None if row.times_faster is None else f"{row.times_faster:.1f}x"
        share = None if row.share_of_limit is None else f"{row.share_of_limit:.0%}"
        line = [row.layer, row.format, row.kernel, f"{row.sparsity:.3f}", row.bytes, row.dense_bytes]
        error = None if row.error is None else f"{row.error:.2%}"
        table.append([*line, *times, faster, share, *([error] if rounded else [])])
    print_table(columns, table, left=(0, 1, 2))
    out = console()
    for row in record["layers"]:
        if row.format.startswith("embedding"):
            out.print(f"{row.layer} is rounded, with an error of {row.error:.2%}: {row.bytes:,} bytes in files")
    for why, count in Counter(row.why for row in record["layers"] if row.format == "dense" and row.why).items():
        out.print(f"dense: {count} layer{'s' if count > 1 else ''}, {why}")
    out.print(f"{record['bytes']:,} bytes instead of {record['dense_bytes']:,}")
    for key in ("file", "onnx"):
        if key in record:
            size = f", {record['file_bytes']:,} bytes" if key == "file" else ""
            out.print(f"wrote {record[key]}{size}")

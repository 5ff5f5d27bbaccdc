"""Trained weights to a file and from one, checked completely before the model is touched.

Read are safetensors files and torch files; the latter only with `weights_only=True`, which runs no code from the file.
Torch's old format (before 1.6, and many `.th` files) has no checksums: it is read with a warning, unless its name ends
in the beginning of its SHA-256, as in `resnet20-12fca82f.th`, which is compared.
A torch file may hold the tensors by name, or a checkpoint with them under "state_dict", "model_state_dict" or "model".
Files that `save_weights` wrote carry a digest of their tensors, which reading compares; safetensors has none itself.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from prunus import storage
from prunus._by_path import describe
from prunus.errors import BadFile
from prunus.layers import plain_names, state_tensors

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_SHOWN = 3
_KIND = "weights"
_T = TypeVar("_T")


def load_weights(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Fill `model` with the tensors of a file, in place; returns it.

    Names are compared without the wrapper prefixes "module." and "_orig_mod." on both sides. The file must hold every
    tensor of the model, no other, each of the right shape and finite; only batch norm's `num_batches_tracked`, which
    old files lack, may be missing. On any error the model is as it was. A model on the meta device gets the file's
    tensors as its own.

    Args:
        model: The model to fill.
        path: A safetensors file, or a torch file (read without running code).

    Returns:
        The same model.

    Raises:
        BadFile: The file is missing, damaged, or of another kind.
        BadInput: Its tensors do not fit the model.

    Example:
        >>> model = prunus.models.make("fc:64-10", seed=0)
        >>> path = prunus.models.save_weights(model, "fc.safetensors")
        >>> other = prunus.models.load_weights(prunus.models.make("fc:64-10", seed=1), path)
        >>> torch.equal(other.layers[0].weight, model.layers[0].weight)
        True
    """
    file = Path(path)
    found = _plain(read_tensors(file))
    wanted = _plain(state_tensors(model, keep_vars=True))
    _match(found, wanted, file)
    ready = {name: _fitting(tensor, wanted[name], name, file) for name, tensor in found.items()}
    with torch.no_grad():
        if any(tensor.is_meta for tensor in wanted.values()):
            long_names = {plain: name for name, plain in plain_names(model.state_dict()).items()}
            model.load_state_dict(
                {long_names[name]: tensor for name, tensor in ready.items()}, strict=False, assign=True
            )
        else:
            for name, tensor in ready.items():
                wanted[name].copy_(tensor)
    return model


def save_weights(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write all tensors of `model` as safetensors, with a digest, under its names without wrapper prefixes.

    The file appears complete or not at all. Tied weights are written under each of their names.

    Args:
        model: Any module.
        path: Where to write. An existing file is replaced in one step.

    Returns:
        The path.

    Example:
        >>> prunus.models.save_weights(prunus.models.make("fc:64-10"), "fc.safetensors").name
        'fc.safetensors'
    """
    return storage.write_tensors(path, _plain(state_tensors(model)), _KIND)


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The named tensors of a safetensors file or a torch file (`weights_only=True`), on the CPU."""
    file = Path(path)
    if file.is_dir():
        raise BadFile(f"{file} is a folder: give the path of a safetensors or torch file.")
    if not file.is_file():
        raise BadFile(f"There is no weights file {file}: give the path of a safetensors or torch file.")
    try:
        content = _read_safetensors(file) if _looks_like_safetensors(file) else _read_torch(file)
    except BadFile:
        raise
    except pickle.UnpicklingError as error:  # torch's own message advises to run the code in the file
        raise BadFile(
            f"The weights file {file} is damaged or holds more than tensors, and is not read any further, as it could "
            "run code: save the model's state_dict()."
        ) from error
    except Exception as error:  # whatever the parsers raise on damaged bytes: the file is at fault
        raise BadFile(
            f"The weights file {file} cannot be read ({describe(error)}): it must be an undamaged safetensors file or "
            "torch file that holds only tensors."
        ) from error
    return _named_tensors(content, file)


def _looks_like_safetensors(file: Path) -> bool:
    # An 8-byte length, then a JSON object; torch's zip files begin with "PK", its old ones with a pickle opcode.
    if file.suffix == ".safetensors":
        return True
    with file.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def _read_safetensors(file: Path) -> Mapping[str, Tensor]:
    return storage.read_tensors(file, None, f"The weights file {file}")[0]


def _read_torch(file: Path) -> Any:
    if not zipfile.is_zipfile(file):
        _check_name(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    # Torch does not compare checksums, and it can find a part elsewhere than zipfile does when a header is damaged:
    # it gets a new archive of the parts whose checksums were compared.
    verified = io.BytesIO()
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(verified, "w") as copy:
        _check_size(archive, file)
        for part in archive.infolist():
            copy.writestr(part.filename, archive.read(part))
    verified.seek(0)
    return torch.load(verified, map_location="cpu", weights_only=True)


def _check_size(archive: zipfile.ZipFile, file: Path) -> None:
    """Torch never compresses: parts that are larger together than their file are made to fill the memory."""
    unpacked, size = sum(part.file_size for part in archive.infolist()), file.stat().st_size
    if unpacked > size:
        raise BadFile(
            f"The weights file {file} has {size:,} bytes and would unpack to {unpacked:,}; torch.save does not "
            "compress, so it is not read: save the weights again."
        )


def _check_name(file: Path) -> None:
    """Compare a file that has no checksum of its own with the hash in its name; warn where there is none."""
    found = re.search(r"-([0-9a-f]{8,64})$", file.stem)
    if found is not None:
        if storage.digest_of_file(file).startswith(found[1]):
            return
        if not found[1].isdigit():  # digits alone may be a date
            raise BadFile(
                f"The weights file {file} is damaged or not the one its name says: its SHA-256 does not begin with "
                f"{found[1]}; take another copy of it, or rename it if the name means something else."
            )
    warnings.warn(
        f"The weights file {file} is in torch's old format, which has no checksum: damage in it cannot be seen. Save "
        "it again with prunus.models.save_weights.",
        stacklevel=6,
    )


def _named_tensors(content: Any, file: Path) -> dict[str, Tensor]:
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise BadFile(f"The weights file {file} holds no tensors by name: save the model's state_dict().")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise BadFile(
                f"The weights file {file} holds something of type {type(tensor).__name__} under {name!r} where a named "
                "tensor is expected: save the model's state_dict()."
            )
    return dict(content)


def _plain(tensors: Mapping[str, _T]) -> dict[str, _T]:
    """The tensors under the names that masks use too."""
    return {plain: tensors[name] for name, plain in plain_names(tensors).items()}


def _match(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], file: Path) -> None:
    missing = [name for name in wanted if name not in found and not name.endswith("num_batches_tracked")]
    extra = [name for name in found if name not in wanted]
    if missing or extra:
        parts = [f"lacks {_listed(missing)}"] if missing else []
        parts += [f"holds {_listed(extra)}, which the model does not have"] if extra else []
        raise BadFile(f"The weights file {file} {' and '.join(parts)}: check that it was saved from this model.")
    wrong = [
        f"{name} (file {tuple(found[name].shape)}, model {tuple(tensor.shape)})"
        for name, tensor in wanted.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if wrong:
        raise BadFile(
            f"The weights file {file} has other shapes than the model for {_listed(wrong)}: check that it was saved "
            "from this model and width."
        )


def _fitting(tensor: Tensor, target: Tensor, name: str, file: Path) -> Tensor:
    """`tensor` in the dtype of `target`, finite."""
    kind = (tensor.is_floating_point(), tensor.is_complex(), tensor.is_sparse)
    if kind != (target.is_floating_point(), target.is_complex(), target.is_sparse):
        raise BadFile(
            f"The weights file {file} holds {name} as {tensor.dtype} where the model has {target.dtype}: save it as "
            "dense floating point."
        )
    cast = tensor.to(target.dtype)
    if (cast.is_floating_point() or cast.is_complex()) and not torch.isfinite(cast).all():
        count = int((~torch.isfinite(cast)).sum())
        raise BadFile(f"The weights file {file} holds {count} NaN or infinite values in {name}: use finite weights.")
    return cast


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    shown = ", ".join(every[:_SHOWN])
    return shown if len(every) <= _SHOWN else f"{shown} and {len(every) - _SHOWN} more"

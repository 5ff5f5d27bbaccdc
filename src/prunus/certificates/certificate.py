"""`Certificate`: its fields and its file, JSON with the hashes of both networks, so that others can check it."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunus import __version__
from prunus.certificates.domains import Domain, restore
from prunus.errors import BadFile
from prunus.storage import digest, read_record, write_record

_FORMAT = "prunus-certificate-1"
_LOSS_FACTORS: Mapping[int | str, float] = {2: math.sqrt(2.0), "max": 2.0}
"""The dual norms of the gradient of the cross-entropy, by the norm of a certificate."""


@dataclass(frozen=True)
class CertifiedLayer:
    """One linear layer of a certificate.

    Attributes:
        name: The layer.
        kind: "linear", "convolution" or another kind of linear operator.
        norm: Norm of the original operator.
        pruned_norm: Norm of the pruned operator.
        removed_norm: Norm of what was removed.
        share: Its share of the recursion's error.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> cert = prunus.certify(model, prunus.find_masks(model, 0.5), prunus.Ball(1.0), attack=False)
        >>> [(layer.name, layer.kind) for layer in cert.layers]
        [('layers.0', 'linear'), ('layers.1', 'linear')]
    """

    name: str
    kind: str
    norm: float
    pruned_norm: float
    removed_norm: float
    share: float


@dataclass(frozen=True, eq=False)
class Certificate:
    """What `certify` found: no input of the domain makes the outputs differ by more than `bound`.

    Attributes:
        bound: The bound on the outputs' difference, in `norm`.
        method: The method that decided at the worst point.
        methods: Every method's own bound; infinite where it did not finish.
        rounding: The part of the bound that covers float32, or whatever the networks run in.
        sizes: The sum of both networks' largest output norms; a bound that is no better is `vacuous`.
        layers: The linear layers, one by one.
        domain: Where it holds.
        hashes: Hashes of the original and of the pruned network.
        norm: 2 or "max".
        outputs: A bound for every output.
        each: The bound of every point of the domain.
        attained: A difference that the attack reached, or None.
        witness: The input that shows it, or None.
        logits: False where the network ends in probabilities; then there is no `loss_bound`, the bound on the change of
            the cross-entropy (ledger P-35).
        seed: Seed of the attack.
        seconds: How long it took.
        notes: Anything else, such as the input's shape.

    Example:
        >>> model = prunus.models.make("fc:8-16-4", seed=0).eval()
        >>> cert = prunus.certify(model, prunus.find_masks(model, 0.5), prunus.Ball(1.0))
        >>> path = cert.save("certificate.json")
        >>> prunus.certificates.Certificate.load(path).bound == cert.bound
        True
    """

    bound: float
    method: str
    methods: Mapping[str, float]
    rounding: float
    sizes: float
    layers: tuple[CertifiedLayer, ...]
    domain: Domain
    hashes: tuple[str, str]
    norm: int | str = 2
    outputs: tuple[float, ...] = ()
    each: tuple[float, ...] = ()
    attained: float | None = None
    witness: torch.Tensor | None = None
    logits: bool = True
    seed: int = 0
    seconds: float = 0.0
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tightness(self) -> float | None:
        """bound / attained: 1 is perfect; infinite where nothing was attained but the bound is positive."""
        if self.attained is None:
            return None
        if self.attained == 0.0:
            return 1.0 if self.bound == 0.0 else math.inf
        return self.bound / self.attained

    @property
    def vacuous(self) -> bool:
        """Is the bound no better, within a percent, than the sum of both networks' largest output norms?"""
        return self.bound > 0.0 and self.bound >= 0.99 * self.sizes

    @property
    def loss_bound(self) -> float | None:
        """Largest change of the cross-entropy of one row of logits, or of its mean over several rows.

        Its gradient is what the softmax gives less the label: both sum to 1, so their difference has a 2-norm of at
        most sqrt(2) and entries whose magnitudes sum to at most 2. The loss moves by at most sqrt(2) times a bound in
        the 2-norm, and by at most 2 times a bound on the largest entry.
        """
        return _LOSS_FACTORS[self.norm] * self.bound if self.logits else None

    @property
    def statement(self) -> str:
        """The certificate in words."""
        place = {"ball": "in the ball", "box": "in the box", "samples": "near the samples"}[
            self.domain.describe()["kind"]
        ]
        words = f"No input {place} moves the output by more than {self.bound:.4g} ({self.method})"
        if self.attained is not None:
            words += f"; one moves it by {self.attained:.4g}"
        return words + (
            "; this is vacuous: the sum of both networks' largest output norms is no larger." if self.vacuous else "."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the witness as plain numbers, strings and lists."""
        return {
            "format": _FORMAT,
            "bound": _plain(self.bound),
            "norm": self.norm,
            "outputs": [_plain(value) for value in self.outputs],
            "attained": self.attained,
            "tightness": _plain(self.tightness),
            "method": self.method,
            "methods": {name: _plain(value) for name, value in self.methods.items()},
            "loss_bound": _plain(self.loss_bound),
            "vacuous": self.vacuous,
            "rounding": _plain(self.rounding),
            "sizes": _plain(self.sizes),
            "each": [_plain(value) for value in self.each],
            "layers": [vars(layer) for layer in self.layers],
            "domain": self.domain.describe(),
            "models": {"original": self.hashes[0], "pruned": self.hashes[1]},
            "logits": self.logits,
            "seed": self.seed,
            "seconds": self.seconds,
            "notes": dict(self.notes),
            "versions": {"prunus": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the certificate as JSON, in one piece, with a digest.

        Args:
            path: where it goes.

        Returns:
            The path.
        """
        record = self.to_dict() | {"witness": None if self.witness is None else self.witness.tolist()}
        return write_record(path, _FORMAT, _without_infinity(record))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Certificate:
        """Read what `save` wrote. This does not check it against models: see `prunus.certificates.verify`.

        Args:
            path: a file that `save` wrote.

        Returns:
            The certificate.

        Raises:
            BadFile: if the file is missing, damaged or something else.
        """
        try:
            return _restored(read_record(path, _FORMAT))
        except BadFile as error:
            if "cannot be read" in str(error):
                raise
            raise BadFile(f"{path} is no certificate of Prunus or is damaged: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise BadFile(
                f"{path} is no certificate of Prunus or is damaged ({type(error).__name__}: {error})."
            ) from None


def _plain(value: float | None) -> float | str | None:
    return "infinite" if value is not None and math.isinf(value) else value


def _without_infinity(value: Any) -> Any:
    """The same with "infinite" for infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {name: _without_infinity(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinity(item) for item in value]
    return _plain(value) if isinstance(value, float) else value


def _number(value: Any) -> float:
    number = math.inf if value == "infinite" else float(value)
    if math.isnan(number):
        raise ValueError("a bound is not a number")
    if number < 0:
        raise ValueError("a bound is negative")
    return number


def _witness(values: Any) -> torch.Tensor | None:
    if values is None:
        return None
    found = torch.tensor(values, dtype=torch.float64)
    if not bool(torch.isfinite(found).all()):
        raise ValueError("the input it shows is not finite")
    return found


def _layer(record: Mapping[str, Any]) -> CertifiedLayer:
    fields = ("name", "kind", "norm", "pruned_norm", "removed_norm", "share")
    if set(record) != set(fields):
        raise ValueError("a layer has other fields than it should")
    name, kind, *rest = (record[field] for field in fields)
    return CertifiedLayer(str(name), str(kind), *map(_number, rest))


def _restored(record: Mapping[str, Any]) -> Certificate:
    found = Certificate(
        bound=_number(record["bound"]),
        method=str(record["method"]),
        methods={name: _number(value) for name, value in record["methods"].items()},
        rounding=_number(record["rounding"]),
        norm=record["norm"],
        outputs=tuple(_number(value) for value in record["outputs"]),
        sizes=_number(record["sizes"]),
        layers=tuple(_layer(layer) for layer in record["layers"]),
        domain=restore(record["domain"]),
        hashes=(record["models"]["original"], record["models"]["pruned"]),
        each=tuple(_number(value) for value in record["each"]),
        attained=None if record["attained"] is None else _number(record["attained"]),
        witness=_witness(record.get("witness")),
        logits=bool(record["logits"]),
        seed=int(record["seed"]),
        seconds=float(record["seconds"]),
        notes=record["notes"],
    )
    _check_fields(found, record)
    return found


def _check_fields(found: Certificate, record: Mapping[str, Any]) -> None:
    """Fields that contradict each other, whatever the networks are."""
    if found.norm not in (2, "max") or (found.attained is not None and found.attained > found.bound):
        raise ValueError("its fields contradict each other")
    if found.outputs and max(found.outputs) > found.bound * (1 + 1e-6) and math.isfinite(found.bound):
        raise ValueError("its bounds by output exceed the bound of all")
    if found.each and max(found.each) != found.bound:
        raise ValueError("its bounds by point are not those of the bound")
    if found.method not in found.methods or min(found.methods.values()) < found.bound:
        raise ValueError("its bounds by method are not those of the bound")
    for name in ("tightness", "loss_bound", "vacuous"):  # what follows from other fields
        if record[name] != _plain(getattr(found, name)):
            raise ValueError(f"its {name} does not follow from its other fields")
    shares = [layer.share for layer in found.layers]
    if any(share < 0 for share in shares) or sum(shares) > 1 + 1e-9 or not 0 <= found.seconds < math.inf:
        raise ValueError("a share or a time is out of range")


def hash_model(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of everything in the state dict.

    Args:
        model: Any module.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> one, two = (prunus.models.make("fc:8-16-4", seed=seed) for seed in (0, 1))
        >>> len(hash_model(one)), hash_model(one) == hash_model(two)
        (64, False)
    """
    state = model.state_dict()
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return digest(tensors, *(f"{name}={state[name]!r}" for name in sorted(state.keys() - tensors.keys())))

"""Diagnostics of a kernel beside its spectrum (ledger K-21): alignment, distance, dead units, drift while training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from prunus.contract import Masks
from prunus.errors import BadInput
from prunus.tangent._convolutional import limit_convolutional
from prunus.tangent._empirical import Effort, acting_network, empirical
from prunus.tangent._form import NTKForm
from prunus.tangent._limit import limit
from prunus.tangent._spectrum import square


def distance(kernel: Tensor, reference: Tensor) -> float:
    """||K - R|| / ||R|| in the Frobenius norm.

    Args:
        kernel: a kernel, of any shape.
        reference: the kernel it is compared with, of the same shape.

    Returns:
        The distance: 0 for equal kernels, 1 for a kernel of zeros.

    Raises:
        BadInput: The shapes differ, or the reference is zero.

    Example:
        >>> prunus.tangent.distance(1.5 * torch.eye(3), torch.eye(3))
        0.5
    """
    if kernel.shape != reference.shape:
        raise BadInput(f"The kernels have shapes {tuple(kernel.shape)} and {tuple(reference.shape)}: they must agree.")
    size = float(reference.double().norm())
    if size == 0:
        raise BadInput("The reference kernel is zero: there is no distance relative to it.")
    return float((kernel.double() - reference.double()).norm()) / size


def alignment(kernel: Tensor, targets: Tensor, centred: bool = False) -> float:
    """Kernel-target alignment <K, Y Y^T> / (||K|| ||Y Y^T||), in [0, 1]: how well the kernel separates the targets.

    `targets` are labels (n,), taken as one-hot minus their mean, or values (n, outputs). `centred` centres the kernel.

    Args:
        kernel: a symmetric kernel, (n, n).
        targets: whole numbers (n,) are labels; other numbers, (n,) or (n, outputs), are values.
        centred: centre the kernel first.

    Returns:
        The alignment; 0 where the kernel or the targets are zero.

    Example:
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> same = (labels[:, None] == labels).double()
        >>> round(prunus.tangent.alignment(same, labels, centred=True), 6)
        1.0
    """
    matrix, values = square(kernel), as_targets(targets, len(kernel))
    if centred:
        matrix = matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()
    gram = values @ values.T
    scale = float(matrix.norm() * gram.norm())
    return float((matrix * gram).sum()) / scale if scale > 0 else 0.0


def as_targets(targets: Tensor, count: int) -> Tensor:
    """Labels as one-hot minus 1/classes, values as (n, outputs), in float64."""
    if not isinstance(targets, Tensor) or len(targets) != count or targets.dim() > 2:
        raise BadInput(f"targets must be {count} labels or {count} rows of values, one for each input of the kernel.")
    if targets.is_floating_point():
        return targets.detach().double().view(count, -1)
    if targets.dim() == 2 or int(targets.min()) < 0:
        raise BadInput("labels must be whole numbers of at least 0, one for each input.")
    hot = nn.functional.one_hot(targets.long()).double()
    return hot - 1 / hot.shape[1]


def limit_of(form: NTKForm, x1: Tensor, x2: Tensor | None = None, pruned_input: float = 1.0) -> Tensor:
    """The limit that the kernel of a network in NTK form tends to with its width, dense or with rescaled masks.

    `pruned_input` is the density of all layers where the masks cover the input layer too (K-9), fully connected only.

    Known for fully connected ReLU networks and for convolutions of stride 1 that keep the size, all of one odd kernel,
    with a linear head on the flattened map or on its average. One sentence says why there is none for others.

    Args:
        form: a network in NTK form, as `parametrise` makes it.
        x1: inputs, (n1, ...).
        x2: other inputs, (n2, ...); None for `x1` against itself.
        pruned_input: density of all layers where the input layer is pruned too; 1 where it is dense.

    Returns:
        The kernel (n1, n2), float64.

    Raises:
        BadInput: No limit is known for a network of this kind.

    Example:
        >>> form = prunus.tangent.parametrise(prunus.models.make("fc:6-64-1", init="normal", seed=0))
        >>> x = torch.randn(3, 6)
        >>> torch.equal(prunus.tangent.limit_of(form, x), prunus.tangent.limit(x, depth=1))
        True
    """
    if not isinstance(form, NTKForm):
        raise BadInput("The limit is known for networks in NTK form: give parametrise(model).")
    biased = [number for number, layer in enumerate(form._scaled_layers()) if layer.bias is not None]
    if biased:
        raise BadInput(f"layers.{biased[0]} has biases that are not zero: the limit is known without biases.")
    kinds = [kind for kind in form.kinds if kind != "flatten"]
    depth, layers = form.depth, form._scaled_layers()
    if all(isinstance(layer, nn.Linear) for layer in layers):
        if kinds != ["layer", "relu"] * depth + ["layer"]:
            raise BadInput("The limit is known for linear layers with one ReLU between each two of them.")
        return limit(x1, x2, depth=depth, density=pruned_input, prune_input=pruned_input < 1) * form.limit_scale
    if pruned_input < 1:
        raise BadInput("The limit with a pruned input layer is known for fully connected networks only.")
    head = _head(form, kinds, layers)
    return limit_convolutional(x1, x2, depth=depth, kernel=layers[0].kernel_size[0], head=head) * form.limit_scale


def _head(form: NTKForm, kinds: list[str], layers: list[Any]) -> str:
    expected = ["layer", "relu"] * form.depth
    averages = kinds[2 * form.depth : -1]
    plain = isinstance(layers[-1], nn.Linear) and all(_keeps_size(layer, layers[0]) for layer in layers[:-1])
    if not plain or kinds[: 2 * form.depth] != expected or averages not in ([], ["average"]):
        raise BadInput(
            "The convolutional limit is known for convolutions of one odd kernel, stride 1 and zero padding that keep "
            "the size, one ReLU after each, and one linear head on the flattened map or its mean over pixels."
        )
    return "average" if averages else "flatten"


def _keeps_size(layer: Any, first: Any) -> bool:
    side = first.kernel_size[0]
    return (
        isinstance(layer, nn.Conv2d)
        and side % 2 == 1
        and layer.kernel_size == (side, side)
        and layer.stride == (1, 1)
        and layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and layer.padding in ("same", (side // 2, side // 2))
    )


@dataclass(frozen=True)
class DeadUnits:
    """One layer: units, those whose pre-activation is never positive on the inputs, those without a kept weight.

    Example:
        >>> prunus.tangent.DeadUnits("layers.0", units=32, dead=3, cut_off=1).dead / 32
        0.09375
    """

    name: str
    units: int
    dead: int
    cut_off: int


def dead_units(model: nn.Module, x: Tensor, masks: Masks | None = None) -> list[DeadUnits]:
    """Units of each linear or convolution layer but the last that pass nothing on for these inputs.

    A dead unit's weights have no derivative: its row of the kernel's Jacobian is zero. The count supposes ReLU.

    Args:
        model: a network of linear and convolution layers.
        x: inputs, (n, ...).
        masks: masks for the model; None for the dense network.

    Returns:
        One row for each such layer but the last, in the order in which they run.

    Example:
        >>> model = prunus.models.make("fc:6-8-2", seed=0)
        >>> [(row.name, row.units) for row in prunus.tangent.dead_units(model, torch.randn(20, 6))]
        [('layers.0', 8)]
    """
    network = acting_network(model, masks)
    outputs: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda _m, _i, out, name=name: outputs.__setitem__(name, out.detach()))
        for name, module in network.model.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
    ]
    try:
        with torch.no_grad():
            network(x.to(next(iter(network.values.values())).dtype))
    finally:
        for handle in handles:
            handle.remove()
    rows = []
    for name, out in list(outputs.items())[:-1]:
        units = out.shape[-1] if out.dim() != 4 else out.shape[1]
        flat = out.flatten(0, -2) if out.dim() != 4 else out.transpose(1, 3).flatten(0, 2)
        mask = network.masks.get(f"{name}.weight".removeprefix("."))
        cut = 0 if mask is None else int((~mask.flatten(1).any(1)).sum())
        rows.append(DeadUnits(name, units, int((~(flat > 0).any(0)).sum()), cut))
    return rows


@dataclass
class Drift:
    """How far the kernel moves while training: give it to `FitConfig(callbacks=(drift,))`, or call it yourself.

    rows hold, for each epoch, the distance to the kernel at the start and the cosine between the two. In the lazy
    regime that the limit describes both stay near (0, 1); networks of practical width leave it.

    Example:
        >>> model = prunus.models.make("fc:6-8-2", seed=0)
        >>> drift = prunus.tangent.Drift(model, torch.randn(4, 6))
        >>> drift()["distance"]
        0.0
    """

    model: nn.Module
    x: Tensor
    masks: Masks | None = None
    options: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = self._kernel()

    def _kernel(self) -> Tensor:
        training = self.model.training
        self.model.eval()
        try:
            effort = self.options.get("effort", Effort(progress=False))
            return empirical(self.model, self.x, masks=self.masks, **{**self.options, "effort": effort}).double()
        finally:
            self.model.train(training)

    def __call__(self, record: Any = None) -> dict[str, float]:
        now = self._kernel()
        cosine = float((now * self.start).sum() / (now.norm() * self.start.norm()))
        step = float(getattr(record, "step", len(self.rows)))
        self.rows.append({"step": step, "distance": distance(now, self.start), "cosine": cosine})
        return self.rows[-1]

"""The exact tangent kernel of a concrete network (ledger K-3, K-20)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prunus.contract import Masks
from prunus.errors import BadInput, UnknownName
from prunus.layers import plain_names, require_module
from prunus.tangent._form import NTKForm
from prunus.tangent._jacobian import Jacobian, by_blocks, jacobian_kernel
from prunus.tangent._products import FORMS, Request, Term, product
from prunus.tangent._terms import Network, Unknown, bytes_for_one, terms

METHODS = ("auto", "jacobian", *FORMS)


@dataclass(frozen=True)
class Effort:
    """How the kernel is worked out; the numbers do not depend on it.

    memory    megabytes to work with, beside the kernel itself and the weights; blocks of inputs follow from it
    method    "auto" picks by density, width and outputs; "jacobian" writes Jacobians out (torch.func), as is done for
              modules that are not made of known layers; or the name of a form in `tangent/_products.py` where it fits
    progress  True shows a line on standard error, None only in a terminal; or a function of (done, total)

    Example:
        >>> prunus.tangent.Effort(memory=64, progress=False).method
        'auto'
    """

    memory: float = 256.0
    method: str = "auto"
    progress: bool | Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.memory, (int, float)) and self.memory > 0):
            raise BadInput(f"memory must be a positive number of megabytes, got {self.memory!r}.")
        if self.method not in METHODS:
            raise UnknownName("method", self.method, METHODS)

    @property
    def budget(self) -> int:
        """The memory in bytes."""
        return int(self.memory * 2**20)


def empirical(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    masks: Masks | None = None,
    output: str | int = "trace",
    *,
    rescale: bool | None = None,
    effort: Effort | None = None,
) -> Tensor:
    """The exact kernel of the network as it is: inner products of its outputs' derivatives by its parameters.

    Counted are all parameters that require a gradient, biases and norms included; a network in NTK form has no
    biases among its parameters. Inputs are (n, ...). The result has the model's type:

    output="trace"   (n1, n2), the mean over the C outputs of their own kernels: trace / C. Its limit is `limit`
    output="full"    (n1 C, n2 C), row a C + c for output c of input a. Its limit is `limit` times the identity
    output=3         (n1, n2), the kernel of output 3

    With `masks` the weights they drop are zero and are not differentiated by. `rescale` divides masked layers by
    sqrt(density) in the forward pass, with the density that the mask really has. By default a network in NTK form is
    rescaled, so that its kernel stays near the limit (Corollary 3.3), and any other is not: pruned weights are then
    all that changes. The factor belongs to the mask and never to the weights that are differentiated by (K-5).

    Args:
        model: any network whose outputs are (n, outputs); it is left as it is.
        x1: inputs, (n1, ...).
        x2: other inputs, (n2, ...); None for `x1` against itself.
        masks: masks for the model; None for the dense network.
        output: "trace", "full" or the number of an output, see above.
        rescale: whether masked layers are divided by sqrt(density); None rescales networks in NTK form only.
        effort: memory, method and progress line; the numbers do not depend on it.

    Returns:
        The kernel, (n1, n2), or (n1 C, n2 C) for "full".

    Raises:
        BadInput: The inputs do not fit each other or the model, the output does not exist, or the model has no kernel.

    Example:
        >>> model = prunus.models.make("fc:6-8-2", seed=0)
        >>> x = torch.randn(4, 6)
        >>> kernel = prunus.tangent.empirical(model, x, masks=prunus.find_masks(model, 0.5))
        >>> kernel.shape, torch.allclose(kernel, kernel.T)
        (torch.Size([4, 4]), True)
    """
    require_module(model)
    effort = effort or Effort()
    network = acting_network(model, masks, rescale)
    first = _inputs(network, "x1", x1)
    second = None if x2 is None else _inputs(network, "x2", x2)
    if second is not None and second.shape[1:] != first.shape[1:]:
        shapes = f"{tuple(first.shape[1:])} and {tuple(second.shape[1:])}"
        raise BadInput(f"x1 and x2 must hold inputs of one shape, got {shapes}.")
    count = _check_forward(network, first)
    chosen = _outputs(output, count)
    full = output == "full"
    with _advance(effort.progress) as advance:
        fast = effort.method != "jacobian" and _is_known(network, first)
        if fast:
            kernel = _by_layers(network, first, second, chosen, full, effort, advance)
        else:
            kernel = jacobian_kernel(Jacobian(network, chosen), first, second, full, effort.budget, advance)
    if full:
        return kernel.flatten(2).flatten(0, 1)
    return kernel / len(chosen)


def _by_layers(
    network: Network,
    x1: Tensor,
    x2: Tensor | None,
    chosen: Sequence[int],
    full: bool,
    effort: Effort,
    advance: Callable[[int, int], None],
) -> Tensor:
    """The sum of the layers' terms, block by block."""
    size = max(1, effort.budget // 4 // bytes_for_one(network, x1, len(chosen)))
    request = Request(full, effort.budget // 2, None if effort.method == "auto" else effort.method)

    def block(left: list[Term], right: list[Term]) -> Tensor:
        parts = (product(one, other, request) for one, other in zip(left, right))
        total = next(parts)
        for part in parts:
            total = total + part
        return total

    return by_blocks(lambda x: terms(network, x, chosen), block, x1, x2, size, advance)


# --------------------------------------------------------------------------------------------------------------- input


def acting_network(model: nn.Module, masks: Masks | None, rescale: bool | None = None) -> Network:
    """The network with its masks, rescaled by default where it is in NTK form; refuses what has no kernel."""
    model = model.module if isinstance(model, nn.DataParallel) else model  # which torch.func refuses
    rescale = isinstance(model, NTKForm) if rescale is None else rescale
    _check_deterministic(model)
    parameters = dict(model.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise BadInput("No parameter of the network requires a gradient: its kernel is zero.")
    values = {name: parameter.detach() for name, parameter in parameters.items()}
    if masks is None:
        return Network(model, values)
    masks.parameters_of(model)
    kept: dict[str, Tensor] = {}
    multiplier: dict[str, float] = {}
    by_plain = {plain: name for name, plain in plain_names(parameters).items()}
    for plain, mask in masks.items():
        if plain not in by_plain:
            raise BadInput(f"The masks name {plain!r}, a shared weight under its second name: use its first.")
        name = by_plain[plain]
        mask = mask.to(values[name].device)
        density = int(mask.count_nonzero()) / max(1, mask.numel())
        if rescale and density == 0:
            raise BadInput(f"The masks leave no weight in {plain}: its density is 0 and cannot be rescaled.")
        kept[name], multiplier[name] = mask, 1 / math.sqrt(density) if rescale else 1.0
        values[name] = torch.where(mask, values[name], 0.0).mul_(multiplier[name])
    return Network(model, values, kept, multiplier)


def _check_deterministic(model: nn.Module) -> None:
    for name, module in model.named_modules():
        where = f"The layer {name or 'itself'} is a {type(module).__name__}"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.training or module.running_mean is None:
                raise BadInput(f"{where} that mixes the inputs of a batch: call model.eval() with running statistics.")
        elif module.training and isinstance(module, (nn.modules.dropout._DropoutNd, nn.RReLU)) and _draws(module):
            raise BadInput(f"{where} in training mode and draws at random: call model.eval() first.")


def _draws(module: nn.Module) -> bool:
    return not isinstance(module, nn.modules.dropout._DropoutNd) or module.p > 0


def _inputs(network: Network, name: str, x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() < 2 or len(x) == 0:
        raise BadInput(f"{name} must be a tensor with at least one input in its rows, (n, ...).")
    reference = next(iter(network.values.values()))
    if not x.is_floating_point():
        return x.detach().to(reference.device)
    if not bool(torch.isfinite(x).all()):
        raise BadInput(f"{name} holds NaN or Inf: clean the inputs first.")
    return x.detach().to(reference.device, reference.dtype)


def _check_forward(network: Network, x: Tensor) -> int:
    """The number of outputs; refuses a network whose outputs are random or depend on the rest of the batch.

    A network in NTK form is neither.
    """
    with torch.no_grad():
        try:
            once = network(x[:2])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BadInput(
                f"The network does not take inputs of shape {tuple(x.shape[1:])}: {str(error).splitlines()[0]}."
            ) from error
        if not isinstance(once, Tensor) or once.dim() < 1 or len(once) != len(x[:2]):
            raise BadInput("The network must return one tensor with a row of outputs for each input.")
        if isinstance(network.model, NTKForm):
            return once.flatten(1).shape[1]
        if not torch.equal(once, network(x[:2])):
            raise BadInput("The network gives other outputs when asked again: switch its random layers off first.")
        alone = network(x[:1])
    if not torch.allclose(alone, once[:1], rtol=1e-3, atol=1e-3 * float(once.abs().max())):
        raise BadInput("The outputs for one input depend on the others in the batch: the kernel is not defined.")
    return once.flatten(1).shape[1]


def _outputs(output: str | int, count: int) -> list[int]:
    if output in ("trace", "full") and isinstance(output, str):
        return list(range(count))
    if isinstance(output, bool) or not isinstance(output, int) or not -count <= output < count:
        raise BadInput(f'output must be "trace", "full" or an index below {count}, got {output!r}.')
    return [output % count]


def _is_known(network: Network, x: Tensor) -> bool:
    """Is the network made of known layers? If it is no chain we made, autograd on one input must agree."""
    if isinstance(network.model, NTKForm):
        return True
    try:
        found = terms(network, x[:1], [0])
        ours = sum(float(product(term, term, Request())[0, 0]) for term in found)
    except Unknown:
        return False
    except RuntimeError:  # an output that does not reach the network's, what autograd cannot follow, padding of its own
        return False
    if not found:
        return False
    exact = float(Jacobian(network, [0])._plainly(x[0]).double().square().sum())
    return abs(ours - exact) <= 1e-3 * abs(exact)


# ------------------------------------------------------------------------------------------------------------ progress


@contextmanager
def _advance(progress: bool | Callable[[int, int], None] | None) -> Iterator[Callable[[int, int], None]]:
    """A function of (blocks done, blocks in all)."""
    if callable(progress):
        yield progress
        return
    import sys

    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=progress is None) as bar:
        task = bar.add_task("tangent kernel", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

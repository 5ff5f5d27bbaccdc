"""Convolution in double precision: torch's own runs at a small part of the machine's speed.

`convolve` is `torch.nn.functional.conv2d` without a bias, differentiable once by its input. Where the compiled kernel
does not apply (another dtype or device, a gradient by the weight is asked for, nothing was compiled) torch's runs. Both
sum the same products in another order, so they agree up to the rounding that certificates allow for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input

from prunus.native import load

_SMALL = 2**18
"""Products below which the call is not worth its set-up, or a second thread."""

Two = tuple[int, ...]


@dataclass(frozen=True)
class Steps:
    """How a kernel moves over an image: for height and width each."""

    stride: Two = (1, 1)
    padding: Two = (0, 0)
    dilation: Two = (1, 1)
    groups: int = 1

    def outputs(self, image: Two, kernel: Two) -> Two:
        sizes = zip(image, kernel, self.stride, self.padding, self.dilation)
        return tuple((n + 2 * pad - gap * (taps - 1) - 1) // step + 1 for n, taps, step, pad, gap in sizes)


def convolve(
    x: Tensor,
    weight: Tensor,
    stride: Two = (1, 1),
    padding: Two = (0, 0),
    dilation: Two = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Convolve images in double precision, with zero padding.

    Args:
        x: (images, channels, height, width), float64.
        weight: (filters, channels / groups, ky, kx), float64.
        stride: Step along each axis.
        padding: Zeros around the image along each axis.
        dilation: Distance of the taps along each axis.
        groups: Groups of channels.

    Returns:
        (images, filters, height, width), float64.

    Example:
        >>> x = torch.ones(1, 1, 4, 4, dtype=torch.float64)
        >>> prunus.operators.convolve(x, torch.ones(1, 1, 2, 2, dtype=torch.float64))[0, 0, 0, 0].item()
        4.0
    """
    steps = Steps(tuple(stride), tuple(padding), tuple(dilation), groups)
    if not _applies(x, weight, steps):
        return functional.conv2d(x, weight, None, stride, padding, dilation, groups)
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = _ByInput.apply(x, weight, steps)  # type: ignore[no-untyped-call]
        return result
    return _run(x, weight, steps)


def _applies(x: Tensor, weight: Tensor, steps: Steps) -> bool:
    plain = x.dtype == weight.dtype == torch.float64 and x.device.type == weight.device.type == "cpu"
    if not plain or x.ndim != 4 or weight.ndim != 4 or weight.requires_grad or load("_double") is None:
        return False
    fitting = x.shape[1] == weight.shape[1] * steps.groups and weight.shape[0] % steps.groups == 0
    return fitting and _work(x, weight, steps) >= _SMALL


def _work(x: Tensor, weight: Tensor, steps: Steps) -> int:
    high, wide = steps.outputs(x.shape[2:], weight.shape[2:])
    return x.shape[0] * weight.numel() * max(high, 0) * max(wide, 0)


def _run(x: Tensor, weight: Tensor, steps: Steps) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    filters, inner, *kernel = weight.shape
    out = steps.outputs(x.shape[2:], weight.shape[2:])
    y = torch.empty(x.shape[0], filters, *out, dtype=torch.float64)
    sizes = (inner, *x.shape[2:], filters // steps.groups, *kernel)
    sizes += (*steps.stride, *steps.padding, *steps.dilation, *out)
    threads = min(torch.get_num_threads(), max(1, _work(x, weight, steps) // _SMALL))
    native: Any = load("_double")
    native.convolve(x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.shape[0], steps.groups, sizes, threads)
    return y


class _ByInput(torch.autograd.Function):
    """The convolution, with the transposed one as its derivative by the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, steps: Steps) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.image, ctx.steps = x.shape[2:], steps
        return _run(x, weight, steps)

    @staticmethod
    def backward(ctx: Any, rows: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return transposed(rows, weight, ctx.image, ctx.steps), None, None


def transposed(rows: Tensor, weight: Tensor, image: Two, steps: Steps) -> Tensor:
    """The transposed operator: outputs spread out by the stride, then convolved with the turned kernel."""
    kernel = weight.shape[2:]
    reach = [gap * (taps - 1) for gap, taps in zip(steps.dilation, kernel)]
    if any(pad > far for pad, far in zip(steps.padding, reach)):
        shape = (rows.shape[0], weight.shape[1] * steps.groups, *image)
        return cast(
            "Tensor", conv2d_input(shape, weight, rows, steps.stride, steps.padding, steps.dilation, steps.groups)
        )
    sizes = [n + 2 * pad - far for n, pad, far in zip(image, steps.padding, reach)]
    if steps.stride != (1, 1) or tuple(rows.shape[2:]) != tuple(sizes):
        wide = rows.new_zeros(*rows.shape[:2], *sizes)
        wide[:, :, :: steps.stride[0], :: steps.stride[1]] = rows
        rows = wide
    turned = weight.reshape(steps.groups, -1, *weight.shape[1:]).transpose(1, 2).flip(-1, -2)
    turned = turned.reshape(-1, weight.shape[0] // steps.groups, *kernel)
    padding = tuple(far - pad for far, pad in zip(reach, steps.padding))
    return convolve(rows, turned, (1, 1), padding, steps.dilation, steps.groups)

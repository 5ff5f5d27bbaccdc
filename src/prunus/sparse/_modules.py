"""Layers that run on packed weights. They stand where `nn.Linear` stood and hold nothing but tensors."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from prunus._torch import dispatch_modes, is_tracing, transformed
from prunus.errors import BadInput
from prunus.sparse import _integer_ops, _ops
from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._integer import Span, check_activations, check_integer
from prunus.sparse._packed import Packed, pack
from prunus.sparse._quick import QuickLinear
from prunus.sparse._weight import PackedWeight

_FIELDS = ("values", "index", "schedule", "starts", "scale")


def watched() -> bool:
    """True while torch compiles, traces or transforms what runs, or a dispatch mode is active.

    Kernels are then not called directly: torch would not record them.
    """
    return torch.compiler.is_compiling() or is_tracing() or transformed() or dispatch_modes() > 0


def uncast(x: Any) -> Any:
    """Packed layers compute in float32: what autocast narrowed before them is widened again."""
    if not isinstance(x, Tensor) or x.dtype is torch.float32:  # asked first: it takes less time
        return x
    return x.float() if torch.is_autocast_enabled("cpu") and x.is_floating_point() else x


def check_order(permutation: Tensor, columns: int) -> None:
    """Whether `permutation` names each of so many columns once."""
    order = permutation.detach().cpu()
    if order.dtype.is_floating_point or not torch.equal(order.long().sort().values, torch.arange(columns)):
        raise BadInput(f"A permutation of {columns} columns must name each of them once.")


def _addresses(packed: Packed) -> tuple[int, int, int]:
    scale = packed.scale
    return packed.values.data_ptr(), packed.index.data_ptr(), 0 if scale is None else scale.data_ptr()


def require_float32(fn: Any) -> None:
    """Refuse what `half` and `to` would do to a packed layer; asked of a whole model before any layer is changed."""
    if fn(torch.empty(1, dtype=torch.float32)).dtype != torch.float32:
        raise BadInput(
            "Packed layers run float32 and cannot be converted; compress(..., dtype=torch.bfloat16) stores their "
            "weights in half the space."
        )


class PackedModule(nn.Module):
    """A module whose weight is a `Packed`, kept as buffers so that `state_dict`, `deepcopy` and `to` see it."""

    values: Tensor
    index: Tensor
    bias: nn.Parameter | None
    activations: torch.dtype | None = None

    def __init__(
        self,
        packed: Packed,
        bias: Tensor | None,
        activations: torch.dtype | None = None,
        span: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_activations(activations, span)
        if activations is not None:
            check_integer(packed)
        self.activations = activations
        if bias is not None and tuple(bias.shape) != (packed.rows,):
            raise BadInput(f"The bias of a layer with {packed.rows} outputs cannot have shape {tuple(bias.shape)}.")
        self.rows, self.cols, self.bank = packed.rows, packed.cols, packed.bank
        tensors = packed.tensors()
        with torch.inference_mode(False):  # a tensor made in that mode can never be part of a gradient
            for field in _FIELDS:
                found = tensors.get(field)
                self.register_buffer(field, found.clone() if found is not None and found.is_inference() else found)
            parameter = None if bias is None else nn.Parameter(bias.detach().to(torch.float32).clone())
            self.register_parameter("bias", parameter)
            self.register_buffer("span", None if span is None else span.detach().clone())
        self._view: Packed | None = None
        self._where = (0, 0, 0)
        self._ends: tuple[Any, Span] | None = None
        self._quick: QuickLinear | None = None
        if span is not None and not span.is_meta:
            self.ends()

    @property
    def packed(self) -> Packed:
        """The weight as a `Packed` over the module's buffers; a new one where they were replaced or moved."""
        view, buffers = self._view, self._buffers
        values, index, scale = buffers["values"], buffers["index"], buffers["scale"]
        same = view is not None and view.values is values and view.index is index and view.scale is scale
        same = same and view.schedule is buffers["schedule"] and view.starts is buffers["starts"]  # type: ignore[union-attr]
        if same and self._where == _addresses(view):  # type: ignore[arg-type]
            return view  # type: ignore[return-value]
        view = Packed(self.rows, self.cols, self.bank, *(getattr(self, field) for field in _FIELDS))
        self._view, self._where = view, _addresses(view)
        return view

    @property
    def integer(self) -> bool:
        """Whether inputs are quantised, so that products are integers."""
        return self.activations is not None

    def ends(self) -> Span | None:
        """Between which numbers inputs are quantised; None: over the range of each token, or image."""
        span = self._buffers["span"]
        if span is None:
            return None
        known = self._ends
        if known is not None and (torch.compiler.is_compiling() or type(span) is not Tensor):
            return known[1]  # what is traced holds no numbers
        stamp = (span.data_ptr(), 0 if span.is_inference() else span._version)
        if known is None or known[0] != stamp or span.is_inference():
            low, high = span.tolist()
            self._ends = known = (stamp, (low, high))
        return known[1]

    @property
    def weight(self) -> PackedWeight:
        """The dense weight, for code that asks for its dtype, shape or device; its values are made when computed with.

        The inputs' columns stand in their own order, also where they were packed in another.
        """
        return PackedWeight(self._weight_shape(), torch.float32, self.values.device, self._dense_weight)

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.rows, self.cols)

    def _dense_weight(self) -> Tensor:
        return self.packed.dense()

    def tensors(self) -> list[Tensor]:
        """The tensors of the packed weight, in the order of the layout."""
        return [tensor for field in _FIELDS if (tensor := getattr(self, field)) is not None]

    def plain(self, x: Any) -> bool:
        """True if the kernel may be called directly: a plain Tensor, no autograd, tracing or dispatch mode.

        Args:
            x: what the layer is called with.

        Returns:
            True or False.
        """
        if type(x) is not Tensor or watched():
            return False
        if not torch.is_grad_enabled():
            return True
        bias = self._parameters["bias"]
        return not (x.requires_grad or (bias is not None and bias.requires_grad))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None, "_quick": None}  # these hold addresses of this object's tensors

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        require_float32(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch gives it no types
        self._view = None
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        found = {}
        for field in ("schedule", "starts", "index", "values", "scale"):
            mine, other = getattr(self, field), state_dict.get(prefix + field)
            found[field] = mine if mine is None or other is None else other
            if mine is not None and other is not None and (mine.shape != other.shape or mine.dtype != other.dtype):
                raise BadInput(
                    f"The state for {prefix.rstrip('.')!r} packs another mask ({field} has shape {tuple(other.shape)} "
                    f"of {other.dtype}, not {tuple(mine.shape)} of {mine.dtype}): compress the model the state came "
                    "from, or use prunus.sparse.load."
                )
        if not any(tensor is not None and tensor.is_meta for tensor in found.values()):
            plain = {name: None if tensor is None else tensor.cpu().contiguous() for name, tensor in found.items()}
            wrong = Packed(self.rows, self.cols, self.bank, **plain).problem()  # type: ignore[arg-type]
            if wrong:
                raise BadInput(f"The state for {prefix.rstrip('.')!r} does not fit this layer: {wrong}.")
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._view = None


class BalancedLinear(PackedModule):
    """A linear layer on packed weights: (..., in_features) -> (..., out_features), float32.

    The weights are frozen; gradients flow to the inputs and the bias. With a `permutation` the columns were packed in
    that order and the inputs are read in it. With `activations=torch.int8` the inputs of each token are quantised to
    seven bits and the products are integers; gradients pass through the rounding as if it were not there. The range of
    a token is its own, or for all tokens that of `span` (two numbers), beyond which inputs are clipped.

    Example:
        >>> dense = torch.nn.Linear(64, 16)
        >>> masks = prunus.prune(dense, 0.75, pattern="balanced:16")
        >>> fast = prunus.sparse.BalancedLinear.from_dense(dense)
        >>> x = torch.randn(3, 64)
        >>> torch.allclose(fast(x), dense(x), atol=1e-5)
        True
    """

    permutation: Tensor | None

    def __init__(
        self,
        packed: Packed,
        bias: Tensor | None = None,
        relu: bool = False,
        permutation: Tensor | None = None,
        activations: torch.dtype | None = None,
        span: Tensor | None = None,
    ) -> None:
        super().__init__(packed, bias, activations, span)
        self.relu = relu
        if permutation is not None:
            check_order(permutation, packed.cols)
        self.register_buffer("permutation", permutation)

    @classmethod
    def from_dense(
        cls,
        linear: nn.Linear,
        bank: int | None = None,
        dtype: torch.dtype | None = None,
        permutation: Tensor | None = None,
        activations: torch.dtype | None = None,
    ) -> BalancedLinear:
        """Pack what is not zero in `linear.weight`, its columns in the order of `permutation` where given.

        Args:
            linear: the pruned layer.
            bank: columns of one bank; None takes what needs the fewest slots.
            dtype: how kept values are stored: torch.float32 (also for None), torch.bfloat16 or torch.int8.
            permutation: an order of the columns, as `find_permutation` gives it.
            activations: torch.int8 for integer products; None for float32.

        Returns:
            The packed layer.
        """
        weight = linear.weight.detach()
        if permutation is not None:
            check_order(permutation, weight.shape[1])
        weight = weight if permutation is None else weight[:, permutation]
        return cls(pack(weight, bank, dtype), linear.bias, permutation=permutation, activations=activations)

    def _dense_weight(self) -> Tensor:
        dense = self.packed.dense()
        return dense if self.permutation is None else torch.empty_like(dense).index_copy_(1, self.permutation, dense)

    @property
    def in_features(self) -> int:
        """Number of inputs."""
        return self.cols

    @property
    def out_features(self) -> int:
        """Number of outputs."""
        return self.rows

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output.

        Args:
            input: (..., in_features).

        Returns:
            (..., out_features), float32.
        """
        quick = self._quick
        plain = type(input) is Tensor and not torch.is_grad_enabled() and not watched()
        if plain and quick is not None and quick.fits(self):
            out = quick(input)
            if out is not None:
                return out
        order, x = self._buffers["permutation"], uncast(input)
        if order is not None:
            x = x.index_select(-1, order)
        if self.plain(x):
            ends = self.ends()
            if ends is not None:
                return _integer_ops.run_linear(self.packed, x, self._parameters["bias"], self.relu, ends)
            choice = _ops.INTEGER if self.integer else _ops.AUTOMATIC
            if order is None and self.packed.layer is not None and not (quick is not None and quick.fits(self)):
                self._quick = QuickLinear(self, choice)
            return _ops.run_linear(self.packed, x, self._parameters["bias"], self.relu, choice)
        if not torch.compiler.is_compiling() and transformed():
            return _ops.dense_linear(self.packed, x, self.bias, self.relu)
        shape, ends = (self.rows, self.cols, self.bank, self.relu), self.ends()
        if ends is not None:
            return cast("Tensor", torch.ops.prunus.integer_linear(x, self.bias, self.tensors(), *shape, *ends))
        return cast("Tensor", torch.ops.prunus.sparse_linear(x, self.bias, self.tensors(), *shape, self.integer))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.cols}, out_features={self.rows}, bank={self.bank}, "
            f"values={str(self.values.dtype).removeprefix('torch.')}, slots={self.values.shape[0]}"
            + ("" if self.activations is None else ", integer products")
        )


class SparseConv2d(PackedModule):
    """A 2-D convolution on packed weights, float32: (n, in, h, w) -> (n, out, h', w').

    `forward(x, other)` adds `other` to the result before the activation: the sum of a residual block. The weights are
    frozen; gradients flow to the inputs, to `other` and to the bias. With `activations=torch.int8` the inputs of each
    image are quantised to seven bits, over the image's own range or that of `span`, and the products are integers.

    Example:
        >>> dense = torch.nn.Conv2d(16, 16, 3, padding=1)
        >>> masks = prunus.prune(dense, 0.75)
        >>> fast = prunus.sparse.SparseConv2d.from_dense(dense)
        >>> x = torch.randn(1, 16, 8, 8)
        >>> torch.allclose(fast(x), dense(x), atol=1e-5)
        True
    """

    def __init__(
        self,
        packed: Packed,
        geometry: ConvGeometry,
        bias: Tensor | None = None,
        relu: bool = False,
        activations: torch.dtype | None = None,
        span: Tensor | None = None,
    ) -> None:
        super().__init__(packed, bias, activations, span)
        self.geometry, self.relu = geometry, relu
        if packed.rows != geometry.outputs or packed.cols != geometry.columns(packed.bank):
            raise BadInput(f"A packed matrix of {packed.rows} x {packed.cols} does not fit the convolution {geometry}.")

    @classmethod
    def from_dense(
        cls,
        conv: nn.Conv2d,
        bank: int | None = None,
        dtype: torch.dtype | None = None,
        activations: torch.dtype | None = None,
    ) -> SparseConv2d:
        """Pack what is not zero in `conv.weight`; groups become zeros between them.

        Args:
            conv: the pruned layer.
            bank: columns of one bank; None takes 16, or 64 where that needs far fewer slots.
            dtype: how kept values are stored: torch.float32 (also for None), torch.bfloat16 or torch.int8.
            activations: torch.int8 for integer products; None for float32.

        Returns:
            The packed layer.
        """
        geometry = ConvGeometry.of(conv)
        packed = geometry.pack(conv.weight, conv.groups, bank, dtype)
        return cls(packed, geometry, conv.bias, activations=activations)

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.geometry.outputs, self.geometry.inputs, *self.geometry.kernel)

    def _dense_weight(self) -> Tensor:
        return self.geometry.weight(self.packed.dense(), self.bank)

    @property
    def in_channels(self) -> int:
        """Number of input channels."""
        return self.geometry.inputs

    @property
    def out_channels(self) -> int:
        """Number of output channels."""
        return self.geometry.outputs

    @property
    def kernel_size(self) -> tuple[int, int]:
        """Height and width of the kernel."""
        return self.geometry.kernel

    @property
    def stride(self) -> tuple[int, int]:
        """Steps in y and x."""
        return self.geometry.stride

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros around the image in y and x."""
        return self.geometry.padding

    @property
    def dilation(self) -> tuple[int, int]:
        """Distance of the kernel's taps in y and x."""
        return self.geometry.dilation

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:
        """The layer's output.

        Args:
            input: images (n, in, h, w), or one without n.
            other: is added before the activation.

        Returns:
            (n, out, h', w'), float32.
        """
        x, other = uncast(input), uncast(other)
        if isinstance(x, Tensor) and x.dim() == 3:  # one image without a batch; what fx traces is no tensor
            return self.forward(x.unsqueeze(0), None if other is None else other.unsqueeze(0)).squeeze(0)
        if isinstance(other, (int, float)) or (isinstance(other, Tensor) and not self._fits(x, other)):
            out = self._run(x, None, False) + other
            return out.relu() if self.relu else out
        return self._run(x, other, self.relu)

    def _fits(self, x: Tensor, other: Tensor) -> bool:
        """Whether `other` is of the result's type and shape; what is spread over it, or widens it, is added later."""
        if (
            other.dtype != torch.float32
            or x.dim() != 4
            or other.dim() != 4
            or other.shape[0] != x.shape[0]
            or other.shape[1] != self.rows
        ):
            return False
        return tuple(other.shape[2:]) == self.geometry.output(x.shape[2], x.shape[3])

    def _run(self, x: Tensor, other: Tensor | None, relu: bool) -> Tensor:
        if self.plain(x) and (other is None or self.plain(other)):
            bias = self._parameters["bias"]
            if self.activations is not None:
                return _integer_ops.run_conv2d(self.packed, self.geometry, x, bias, other, relu, self.ends())
            return _ops.run_conv2d(self.packed, self.geometry, x, bias, other, relu)
        if not torch.compiler.is_compiling() and transformed():
            return _ops.dense_conv2d(self.packed, self.geometry, x, self.bias, other, relu)
        arguments = (x, self.bias, other, self.tensors(), self.rows, self.cols, self.bank, relu)
        numbers = self.geometry.numbers()
        if self.activations is not None:
            ends = list(self.ends() or ())
            return cast("Tensor", torch.ops.prunus.integer_conv2d(*arguments, numbers, ends))
        return cast("Tensor", torch.ops.prunus.sparse_conv2d(*arguments, numbers))

    def extra_repr(self) -> str:
        kind = str(self.values.dtype).removeprefix("torch.")
        return f"{self.geometry}, bank={self.bank}, values={kind}" + (", integer products" if self.integer else "")

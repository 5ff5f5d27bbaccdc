"""LSTM and GRU layers whose two products, input to gates and state to gates, run on packed weights.

Where no gradient is needed and nothing is traced, all steps of a layer are one native call (`recur`); otherwise torch
computes the gates step by step around the packed products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.sparse._modules import BalancedLinear
from prunus.sparse._packed import kernels, pack

State = tuple[Tensor, Tensor]
_States = tuple[Tensor, ...]


class _Cell(nn.Module, ABC):
    """What LSTM and GRU cells share: two packed matrices, and steps through them."""

    kind: ClassVar[str]
    parts: ClassVar[int]  # tensors of a state

    def __init__(self, inputs: BalancedLinear, state: BalancedLinear) -> None:
        super().__init__()
        self.inputs, self.state = inputs, state
        self.input_size, self.hidden_size = inputs.in_features, state.in_features

    def run(self, x: Tensor, state: _States, backwards: bool) -> tuple[Tensor, _States]:
        """All steps of x (steps, n, inputs) from a state (each n x hidden): every h, and the last state.

        Args:
            x: inputs (steps, n, inputs).
            state: what the first step starts from, each (n, hidden).
            backwards: go from the last step to the first.

        Returns:
            Every h (steps, n, hidden), and the last state.
        """
        native = self._run_natively(x, state, backwards)
        if native is not None:
            return native
        gates, found = self.inputs(x), []
        for step in range(len(gates) - 1, -1, -1) if backwards else range(len(gates)):
            state = self.advance(gates[step], state)
            found.append(state[0])
        return torch.stack(found[::-1] if backwards else found), state

    def _run_natively(self, x: Tensor, state: _States, backwards: bool) -> tuple[Tensor, _States] | None:
        inputs, own, library = self.inputs, self.state, kernels()
        tensors = (x, *state)
        if library is None or not (inputs.plain(x) and own.plain(state[0]) and all(map(_plain, tensors))):
            return None
        if inputs.integer != own.integer or any(_special(layer) for layer in (inputs, own)):
            return None
        new = tuple(part.clone(memory_format=torch.contiguous_format) for part in state)
        out = x.new_empty(x.shape[0], x.shape[1], self.hidden_size)
        packed = (inputs.packed.layer, inputs.bias, own.packed.layer, own.bias, inputs.integer, backwards)
        c = new[1] if len(new) == 2 else None
        done = library.recur(*packed, x.contiguous(), new[0], c, out, 0, torch.get_num_threads())
        return (out, new) if done else None

    @abstractmethod
    def advance(self, gates: Tensor, state: _States) -> _States:
        """One step by torch, from the inputs' part of the gates."""

    def _one_step(self, x: Tensor, state: _States | None) -> _States:
        if x.dim() == 1:  # one sample without a batch
            both = None if state is None else tuple(part.unsqueeze(0) for part in state)
            return tuple(part.squeeze(0) for part in self._one_step(x.unsqueeze(0), both))
        if x.dim() != 2:
            raise BadInput(
                f"A sparse {self.kind} cell takes inputs (n, {self.inputs.cols}), but got shape {tuple(x.shape)}."
            )
        if state is None:
            state = (x.new_zeros(x.shape[0], self.hidden_size),) * self.parts
        _check_state(self, state, (x.shape[0], self.hidden_size))
        return self.run(x.unsqueeze(0), state, False)[1]


def _plain(x: Tensor) -> bool:
    """Whether the kernels can read it, and no gradient to it is wanted."""
    wanted = torch.is_grad_enabled() and x.requires_grad
    return type(x) is Tensor and x.dtype == torch.float32 and x.is_cpu and not wanted and not x.is_neg()


def _special(layer: BalancedLinear) -> bool:
    hooked = bool(layer._forward_hooks or layer._forward_pre_hooks)
    return hooked or layer.permutation is not None or layer.relu or layer.packed.layer is None


def _check_state(layer: Any, state: _States, shape: tuple[int, ...]) -> None:
    """Torch refuses states of another shape; the kernels would read too little or too much of them."""
    for part in state:
        if tuple(part.shape) != shape:
            raise BadInput(
                f"A sparse {layer.kind} with this input takes states of shape {shape}, but got {tuple(part.shape)}."
            )


class SparseLSTMCell(_Cell):
    """As `nn.LSTMCell`: (n, inputs) and the state (h, c), each (n, hidden), to the next state.

    Example:
        >>> dense = torch.nn.LSTMCell(16, 32)
        >>> masks = prunus.prune(dense, 0.75)
        >>> fast = prunus.sparse.SparseLSTMCell.from_dense(dense)
        >>> x = torch.randn(2, 16)
        >>> torch.allclose(fast(x)[0], dense(x)[0], atol=1e-5)
        True
    """

    kind, parts = "LSTM", 2

    @classmethod
    def from_dense(cls, cell: nn.LSTMCell, dtype: torch.dtype | None = None) -> SparseLSTMCell:
        """Pack what is not zero in the cell's two matrices.

        Args:
            cell: the pruned cell.
            dtype: how kept values are stored: torch.float32 (also for None), torch.bfloat16 or torch.int8.

        Returns:
            The packed cell.
        """
        return cls(*_pair(cell, dtype))

    def forward(self, input: Tensor, hx: State | None = None) -> State:
        """As `nn.LSTMCell`.

        Args:
            input: (n, inputs).
            hx: h and c, each (n, hidden); zeros unless given.

        Returns:
            The next h and c.
        """
        h, c = self._one_step(input, hx)
        return h, c

    def advance(self, gates: Tensor, state: _States) -> _States:
        """One step, given the inputs' share of the gates.

        Args:
            gates: the inputs' share of the gates, (n, 4 hidden).
            state: h and c, each (n, hidden).

        Returns:
            The next h and c.
        """
        h, c = state
        i, f, g, o = (gates + self.state(h)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class SparseGRUCell(_Cell):
    """As `nn.GRUCell`: (n, inputs) and the state (n, hidden) to the next state."""

    kind, parts = "GRU", 1

    @classmethod
    def from_dense(cls, cell: nn.GRUCell, dtype: torch.dtype | None = None) -> SparseGRUCell:
        """Pack what is not zero in the cell's two matrices."""
        return cls(*_pair(cell, dtype))

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._one_step(input, None if hx is None else (hx,))[0]

    def advance(self, gates: Tensor, state: _States) -> _States:
        """One step, given the inputs' share of the gates."""
        (h,) = state
        r, z, new = gates.chunk(3, 1)
        r_state, z_state, new_state = self.state(h).chunk(3, 1)
        new = (new + (r + r_state).sigmoid() * new_state).tanh()
        z = (z + z_state).sigmoid()
        return (cast("Tensor", new + z * (h - new)),)


class _Layers(nn.Module):
    """Any number of layers of cells, one or both directions."""

    kind: ClassVar[str]
    parts: ClassVar[int]

    def __init__(self, cells: list[Any], batch_first: bool, bidirectional: bool) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)
        self.batch_first, self.bidirectional = batch_first, bidirectional
        self.input_size, self.hidden_size = cells[0].input_size, cells[0].hidden_size
        self.num_layers = len(cells) // (2 if bidirectional else 1)

    def flatten_parameters(self) -> None:
        """There is nothing to flatten; models written for torch's layers call it."""

    def _run(self, x: Tensor, state: _States | None) -> tuple[Tensor, _States]:
        if not isinstance(x, Tensor) or x.dim() not in (2, 3):
            raise BadInput(
                f"A sparse {self.kind} takes a tensor (steps, n, inputs) or (steps, inputs), not a packed sequence."
            )
        single = x.dim() == 2
        if single:
            x = x.unsqueeze(1)
            state = None if state is None else tuple(part.unsqueeze(1) for part in state)
        elif self.batch_first:
            x = x.transpose(0, 1)
        if state is None:
            state = (x.new_zeros(len(self.cells), x.shape[1], self.hidden_size),) * self.parts
        _check_state(self, state, (len(self.cells), x.shape[1], self.hidden_size))
        ends = []
        directions = 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                number = layer * directions + direction
                cell: Any = self.cells[number]
                out, end = cell.run(x, tuple(part[number] for part in state), direction == 1)
                outputs.append(out)
                ends.append(end)
            x = torch.cat(outputs, 2) if directions == 2 else outputs[0]
        last = tuple(torch.stack(parts) for parts in zip(*ends))
        if single:
            return x.squeeze(1), tuple(part.squeeze(1) for part in last)
        return x.transpose(0, 1) if self.batch_first else x, last


class SparseLSTM(_Layers):
    """As `nn.LSTM` on tensors (not packed sequences), any number of layers, one or both directions.

    The inputs' share of the gates is one product over all steps; the state's is one for each step.

    Example:
        >>> dense = torch.nn.LSTM(16, 32)
        >>> masks = prunus.prune(dense, 0.75)
        >>> fast = prunus.sparse.SparseLSTM.from_dense(dense)
        >>> x = torch.randn(5, 2, 16)
        >>> torch.allclose(fast(x)[0], dense(x)[0], atol=1e-5)
        True
    """

    kind, parts = "LSTM", 2

    @classmethod
    def from_dense(cls, lstm: nn.LSTM, dtype: torch.dtype | None = None) -> SparseLSTM:
        """Pack what is not zero in the layer's matrices; projections are not supported.

        Args:
            lstm: the pruned layer.
            dtype: how kept values are stored: torch.float32 (also for None), torch.bfloat16 or torch.int8.

        Returns:
            The packed layer.

        Raises:
            BadInput: if the layer has projections.
        """
        if lstm.proj_size:
            raise BadInput("LSTMs with projections cannot be packed; leave this layer dense.")
        cells = [SparseLSTMCell(*pair) for pair in _matrices(lstm, dtype)]
        return cls(cells, lstm.batch_first, lstm.bidirectional)

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """As `nn.LSTM`.

        Args:
            input: (steps, n, inputs), or (n, steps, inputs) with `batch_first`.
            hx: h and c to start from; zeros unless given.

        Returns:
            Every h of the last layer, and the last h and c of all layers.
        """
        out, (h, c) = self._run(input, hx)
        return out, (h, c)


class SparseGRU(_Layers):
    """As `nn.GRU` on tensors (not packed sequences), any number of layers, one or both directions."""

    kind, parts = "GRU", 1

    @classmethod
    def from_dense(cls, gru: nn.GRU, dtype: torch.dtype | None = None) -> SparseGRU:
        """Pack what is not zero in the layer's matrices."""
        pairs = _matrices(gru, dtype)
        return cls([SparseGRUCell(*pair) for pair in pairs], gru.batch_first, gru.bidirectional)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, (h,) = self._run(input, None if hx is None else (hx,))
        return out, h


def _pair(cell: nn.LSTMCell | nn.GRUCell, dtype: torch.dtype | None) -> tuple[BalancedLinear, BalancedLinear]:
    return (
        BalancedLinear(pack(cell.weight_ih, None, dtype), cell.bias_ih),
        BalancedLinear(pack(cell.weight_hh, None, dtype), cell.bias_hh),
    )


def _matrices(layer: nn.LSTM | nn.GRU, dtype: torch.dtype | None) -> list[tuple[BalancedLinear, BalancedLinear]]:
    """The packed matrices (inputs, state) of every cell, layer by layer and direction by direction."""
    found = []
    for number in range(layer.num_layers):
        for end in ("", "_reverse") if layer.bidirectional else ("",):
            pair = []
            for kind in ("ih", "hh"):
                bias = getattr(layer, f"bias_{kind}_l{number}{end}") if layer.bias else None
                pair.append(BalancedLinear(pack(getattr(layer, f"weight_{kind}_l{number}{end}"), None, dtype), bias))
            found.append((pair[0], pair[1]))
    return found

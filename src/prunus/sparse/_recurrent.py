"""LSTM and GRU layers whose two products, input to gates and state to gates, run on packed weights."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.sparse._modules import BalancedLinear
from prunus.sparse._packed import pack

State = tuple[Tensor, Tensor]


class SparseLSTMCell(nn.Module):
    """As `nn.LSTMCell`: (n, inputs) and the state (h, c), each (n, hidden), to the next state.

    Example:
        >>> dense = torch.nn.LSTMCell(16, 32)
        >>> masks = prunus.prune(dense, 0.75)
        >>> fast = prunus.sparse.SparseLSTMCell.from_dense(dense)
        >>> x = torch.randn(2, 16)
        >>> torch.allclose(fast(x)[0], dense(x)[0], atol=1e-5)
        True
    """

    def __init__(self, inputs: BalancedLinear, state: BalancedLinear) -> None:
        super().__init__()
        self.inputs, self.state = inputs, state
        self.input_size, self.hidden_size = inputs.in_features, state.in_features

    @classmethod
    def from_dense(cls, cell: nn.LSTMCell, dtype: torch.dtype | None = None) -> SparseLSTMCell:
        """Pack what is not zero in the cell's two matrices."""
        return cls(
            BalancedLinear(pack(cell.weight_ih, None, dtype), cell.bias_ih),
            BalancedLinear(pack(cell.weight_hh, None, dtype), cell.bias_hh),
        )

    def forward(self, input: Tensor, hx: State | None = None) -> State:
        x, state = input, hx
        if x.dim() == 1:  # one sample without a batch
            both = None if state is None else (state[0].unsqueeze(0), state[1].unsqueeze(0))
            h, c = self.forward(x.unsqueeze(0), both)
            return h.squeeze(0), c.squeeze(0)
        if x.dim() != 2:
            raise BadInput(f"A sparse LSTM cell takes inputs (n, {self.inputs.cols}), but got shape {tuple(x.shape)}.")
        if state is None:
            zero = x.new_zeros(x.shape[0], self.hidden_size)
            state = (zero, zero)
        return self.step(self.inputs(x), state)

    def step(self, gates: Tensor, state: State) -> State:
        """One step, given the inputs' share of the gates."""
        h, c = state
        i, f, g, o = (gates + self.state(h)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class SparseLSTM(nn.Module):
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

    def __init__(self, cells: list[SparseLSTMCell], batch_first: bool, bidirectional: bool) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)
        self.batch_first, self.bidirectional = batch_first, bidirectional
        self.input_size, self.hidden_size = cells[0].input_size, cells[0].hidden_size
        self.num_layers = len(cells) // (2 if bidirectional else 1)

    @classmethod
    def from_dense(cls, lstm: nn.LSTM, dtype: torch.dtype | None = None) -> SparseLSTM:
        """Pack what is not zero in the layer's matrices; projections are not supported."""
        if lstm.proj_size:
            raise BadInput("LSTMs with projections cannot be packed; leave this layer dense.")
        cells = [SparseLSTMCell(*pair) for pair in _matrices(lstm, dtype)]
        return cls(cells, lstm.batch_first, lstm.bidirectional)

    def flatten_parameters(self) -> None:
        """There is nothing to flatten; models written for `nn.LSTM` call it."""

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        x, state = input, hx
        if not isinstance(x, Tensor) or x.dim() not in (2, 3):
            raise BadInput("A sparse LSTM takes a tensor (steps, n, inputs) or (steps, inputs), not a packed sequence.")
        single = x.dim() == 2
        if single:
            x = x.unsqueeze(1)
            state = None if state is None else (state[0].unsqueeze(1), state[1].unsqueeze(1))
        elif self.batch_first:
            x = x.transpose(0, 1)
        if state is None:
            zero = x.new_zeros(len(self.cells), x.shape[1], self.hidden_size)
            state = (zero, zero)
        x, hs, cs = self._layers(x, state)
        if single:
            return x.squeeze(1), (hs.squeeze(1), cs.squeeze(1))
        return x.transpose(0, 1) if self.batch_first else x, (hs, cs)

    def _layers(self, x: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        directions = 2 if self.bidirectional else 1
        hs, cs = [], []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                number = layer * directions + direction
                cell = self.cells[number]
                now = (state[0][number], state[1][number])
                gates, steps = cell.inputs(x), []  # type: ignore[operator]
                order = range(len(gates)) if direction == 0 else range(len(gates) - 1, -1, -1)
                for step in order:
                    now = cell.step(gates[step], now)  # type: ignore[operator]
                    steps.append(now[0])
                outputs.append(torch.stack(steps if direction == 0 else steps[::-1]))
                hs.append(now[0])
                cs.append(now[1])
            x = torch.cat(outputs, 2) if directions == 2 else outputs[0]
        return x, torch.stack(hs), torch.stack(cs)


class SparseGRUCell(nn.Module):
    """As `nn.GRUCell`: (n, inputs) and the state (n, hidden) to the next state."""

    def __init__(self, inputs: BalancedLinear, state: BalancedLinear) -> None:
        super().__init__()
        self.inputs, self.state = inputs, state
        self.input_size, self.hidden_size = inputs.in_features, state.in_features

    @classmethod
    def from_dense(cls, cell: nn.GRUCell, dtype: torch.dtype | None = None) -> SparseGRUCell:
        """Pack what is not zero in the cell's two matrices."""
        return cls(
            BalancedLinear(pack(cell.weight_ih, None, dtype), cell.bias_ih),
            BalancedLinear(pack(cell.weight_hh, None, dtype), cell.bias_hh),
        )

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if input.dim() == 1:  # one sample without a batch
            return self.forward(input.unsqueeze(0), None if hx is None else hx.unsqueeze(0)).squeeze(0)
        if input.dim() != 2:
            raise BadInput(
                f"A sparse GRU cell takes inputs (n, {self.inputs.cols}), but got shape {tuple(input.shape)}."
            )
        return self.step(self.inputs(input), input.new_zeros(input.shape[0], self.hidden_size) if hx is None else hx)

    def step(self, gates: Tensor, state: Tensor) -> Tensor:
        """One step, given the inputs' share of the gates."""
        r, z, new = gates.chunk(3, 1)
        r_state, z_state, new_state = self.state(state).chunk(3, 1)
        new = (new + (r + r_state).sigmoid() * new_state).tanh()
        z = (z + z_state).sigmoid()
        return cast("Tensor", new + z * (state - new))


class SparseGRU(nn.Module):
    """As `nn.GRU` on tensors (not packed sequences), any number of layers, one or both directions."""

    def __init__(self, cells: list[SparseGRUCell], batch_first: bool, bidirectional: bool) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)
        self.batch_first, self.bidirectional = batch_first, bidirectional
        self.input_size, self.hidden_size = cells[0].input_size, cells[0].hidden_size
        self.num_layers = len(cells) // (2 if bidirectional else 1)

    @classmethod
    def from_dense(cls, gru: nn.GRU, dtype: torch.dtype | None = None) -> SparseGRU:
        """Pack what is not zero in the layer's matrices."""
        pairs = _matrices(gru, dtype)
        return cls([SparseGRUCell(*pair) for pair in pairs], gru.batch_first, gru.bidirectional)

    def flatten_parameters(self) -> None:
        """There is nothing to flatten; models written for `nn.GRU` call it."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, state = input, hx
        if not isinstance(x, Tensor) or x.dim() not in (2, 3):
            raise BadInput("A sparse GRU takes a tensor (steps, n, inputs) or (steps, inputs), not a packed sequence.")
        single = x.dim() == 2
        if single:
            x = x.unsqueeze(1)
            state = None if state is None else state.unsqueeze(1)
        elif self.batch_first:
            x = x.transpose(0, 1)
        if state is None:
            state = x.new_zeros(len(self.cells), x.shape[1], self.hidden_size)
        last = []
        directions = 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                cell: Any = self.cells[layer * directions + direction]
                now, steps = state[layer * directions + direction], []
                gates = cell.inputs(x)
                order = range(len(gates)) if direction == 0 else range(len(gates) - 1, -1, -1)
                for step in order:
                    now = cell.step(gates[step], now)
                    steps.append(now)
                outputs.append(torch.stack(steps if direction == 0 else steps[::-1]))
                last.append(now)
            x = torch.cat(outputs, 2) if directions == 2 else outputs[0]
        final = torch.stack(last)
        if single:
            return x.squeeze(1), final.squeeze(1)
        return x.transpose(0, 1) if self.batch_first else x, final


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

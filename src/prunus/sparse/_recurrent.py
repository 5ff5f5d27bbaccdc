"""LSTM layers whose two products, input to gates and state to gates, run on packed weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.sparse._modules import BalancedLinear
from prunus.sparse._packed import pack

State = tuple[Tensor, Tensor]


class SparseLSTMCell(nn.Module):
    """As `nn.LSTMCell`: (n, inputs) and the state (h, c), each (n, hidden), to the next state."""

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
        cells = []
        for layer in range(lstm.num_layers):
            for end in ("", "_reverse") if lstm.bidirectional else ("",):
                parts = []
                for kind in ("ih", "hh"):
                    bias = getattr(lstm, f"bias_{kind}_l{layer}{end}") if lstm.bias else None
                    weight = getattr(lstm, f"weight_{kind}_l{layer}{end}")
                    parts.append(BalancedLinear(pack(weight, None, dtype), bias))
                cells.append(SparseLSTMCell(*parts))
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

"""How far probabilities can be apart, from bounds on how far other logits come up to one of them.

A softmax hardly moves where one logit leads, and that is a property of differences of logits: ranges of single logits
do not show it. With e_k = z_k - z_l for a label l, the label's probability is `1 / (1 + sum exp e_k)` and any other one
at most `1 / (1 + exp -e_k)`. On the way from one network's logits to the other's every e_k stays below the larger of
its two bounds, so the derivative `p_k (de_k - sum p_i de_i)` is bounded on the whole way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from prunus.certificates.bounds.floats import noise
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.reading.pair import Pair
from prunus.certificates.reading.pieces import Lipschitz

_OUT = 1 + 1e-9


def margin_rows(pair: Pair, label: Tensor) -> Tensor:
    """(boxes, outputs, *output shape): every output minus the label's (boxes,)."""
    size = math.prod(pair.output_shape)
    identity = torch.eye(size, dtype=torch.float64)
    return (identity[None] - identity[label][:, None]).reshape(len(label), size, *pair.output_shape)


def upper_margins(relaxation: Relaxation, index: int, rows: Tensor) -> Tensor:
    """(boxes, rows) upper bounds of rows in the worse network; the pruned one also as original plus difference."""
    one, two = (relaxation.upper_one(index, rows, pruned) for pruned in (False, True))
    return torch.maximum(one, torch.minimum(two, relaxation.upper(index, rows, rows)))


def blame_margin(relaxation: Relaxation, index: int, rows: Tensor, output: Tensor) -> None:
    """Note what gaps cost in the bound on the margin of one output (boxes,)."""
    relaxation.losses = {}
    upper_margins(relaxation, index, rows[torch.arange(len(output)), output][:, None])


def ends_in_softmax(pair: Pair) -> bool:
    """True where the outputs are one softmax over all of them."""
    last = pair.steps[-1].original
    if not isinstance(last, Lipschitz) or last.kind != "softmax":
        return False
    axis = int(last.settings[0])
    return pair.output_shape[axis - 1] == math.prod(pair.output_shape)


def probability_bounds(pair: Pair, relaxation: Relaxation, label: Tensor) -> Tensor:
    """(boxes, outputs) bounds on each probability's difference; label (boxes,): any will do, the top one is best."""
    step = pair.steps[-1]
    index = step.inputs[0]
    rows = margin_rows(pair, label)
    above = upper_margins(relaxation, index, rows).scatter(1, label[:, None], -math.inf)
    none = torch.zeros_like(rows)
    both = relaxation.upper(index, torch.cat([none, none], 1), torch.cat([rows, -rows], 1))
    moved = both.reshape(len(label), 2, -1).amax(1).clamp_min(0.0)
    blame_margin(relaxation, index, rows, above.argmax(1))
    most = torch.special.expit(above)
    rest = torch.minimum(most.sum(1, keepdim=True), 1 - 1 / (1 + above.exp().sum(1, keepdim=True))) * _OUT
    furthest = moved.amax(1, keepdim=True)
    other = _variance(most) * moved + most * rest * furthest
    own = torch.minimum(_variance(rest) * furthest, (most * moved).sum(1, keepdim=True))
    found = torch.fmin(most, other).scatter(1, label[:, None], torch.fmin(rest, own))
    found = found * _OUT + 1e-15
    for piece, dtype in zip((step.original, step.pruned), pair.dtypes):
        size = torch.ones_like(found).reshape(-1, *pair.output_shape)
        amount = noise(piece, [size], size, dtype)
        found = found if amount is None else found + amount.flatten(1)
    return torch.where(torch.isnan(found), math.inf, found)


def _variance(most: Tensor) -> Tensor:
    """The largest p (1 - p) for p up to `most`."""
    top = most.clamp_max(0.5)
    return top * (1 - top)

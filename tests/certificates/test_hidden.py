"""What a forward does outside of its graph, or with the size of its batch: refused in one sentence."""

from __future__ import annotations

import copy
import ctypes
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus
from prunus.certificates import CertifyOptions
from prunus.errors import BadInput, PrunusError


class Between(nn.Module):
    """Two linear layers with anything between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(6, 8), nn.Linear(8, 4), between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


def caught(read: Callable[[Tensor], bool]) -> Callable[[Tensor], Tensor]:
    """A branch on values whose failure under torch.export is swallowed: the graph has one side of it."""

    def between(h: Tensor) -> Tensor:
        try:
            factor = 20.0 if read(h) else 1.0
        except Exception:
            factor = 1.0
        return h * factor

    return between


def many(h: Tensor) -> Tensor:
    return torch.ones(h.shape[0], 1)


READS = {
    "numpy": caught(lambda h: bool(h.detach().numpy().max() > 30)),
    "numpy array": caught(lambda h: bool(np.asarray(h.detach()).max() > 30)),
    "item": caught(lambda h: h.abs().max().item() > 30),
    "list": caught(lambda h: h.max().tolist() > 30),
    "repr": caught(lambda h: float(repr(h.detach().max())[7:-1]) > 30),
    "str": caught(lambda h: float(str(h.detach().max())[7:-1]) > 30),
    "format": caught(lambda h: float(f"{h.detach().max()}") > 30),
    "memory": caught(lambda h: ctypes.c_float.from_address(h.max().data_ptr()).value > 30),
    "storage": caught(lambda h: bytes(h.max().untyped_storage())[3] > 65),
    "pickle": caught(lambda h: len(pickle.dumps(h)) > 0),
    "logged": lambda h: (str(h.mean().item()), h)[1],
}
COUNTS = {
    "chosen": caught(lambda h: h[h > 30].numel() > 0),
    "not zero": caught(lambda h: len((h > 30).nonzero()) > 0),
    "places": caught(lambda h: len(torch.where(h > 30)[0]) > 0),
}
RANDOM = {
    "uniform": lambda h: h * torch.where(torch.empty(()).uniform_() < 0.999, 1.0, 50.0),
    "cauchy": lambda h: h + 1e-9 * torch.empty(8).cauchy_(),
    "python": lambda h: h * (50 if random.random() < 0.001 else 1),
    "numpy": lambda h: h * (50 if np.random.rand() < 0.001 else 1),
    "unused": lambda h: (torch.rand(3), h)[1],
}
SIZES = {
    "sum": lambda h: h * (1 + 9 * (many(h).sum() > 100)),
    "product": lambda h: h * (1 + 9 * ((many(h).t() @ many(h)).squeeze() > 100)),
    "position": lambda h: h * (1 + 9 * (many(h).cumsum(0) > 100)),
    "mean": lambda h: h / many(h).expand(-1, 3).norm(),
}
ALONE = {
    "clamp": lambda h: h.clamp(-30, 30) if h.shape[0] == 1 else h,
    "another function": lambda h: F.hardtanh(h, -30, 30) if h.shape[0] == 1 else torch.clamp(h, -40, 40),
}
CASES = {
    **{f"reads {name}": (case, "out of its tensors") for name, case in READS.items()},
    **{f"counts {name}": (case, "values") for name, case in COUNTS.items()},
    **{f"random {name}": (case, "random") for name, case in RANDOM.items()},
    **{f"size in a {name}": (case, "batch size as a number") for name, case in SIZES.items()},
    **{f"alone: {name}": (case, "one example") for name, case in ALONE.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_what_no_graph_shows_is_refused(name: str) -> None:
    """None of these differs from its graph at the points that the guard runs."""
    torch.manual_seed(5)
    between, words = CASES[name]
    model = Between(between).eval()
    with pytest.raises(BadInput, match=words):
        prunus.certify(model, prunus.find_masks(model, 0.4), prunus.Ball(0.5, torch.zeros(6)), attack=False)


def test_a_forward_that_differs_with_gradients_on_is_refused() -> None:
    model = Between(lambda h: h * 3 if torch.is_grad_enabled() else h).eval()
    with pytest.raises(PrunusError, match="as it runs differs"):
        prunus.certify(model, prunus.find_masks(model, 0.4), prunus.Ball(0.5, torch.zeros(6)), attack=False)


def test_constants_in_the_shape_of_the_batch_are_read() -> None:
    """The start of a recurrent loop: the same for every batch."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.inner, self.b = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            state = torch.zeros(x.shape[0], 8)
            for _ in range(2):
                state = torch.tanh(self.a(x) + self.inner(state))
            return self.b(state)

    torch.manual_seed(5)
    model = Loop().eval()
    options = CertifyOptions(tune=False)
    cert = prunus.certify(model, prunus.find_masks(model, 0.4), prunus.Ball(0.5, torch.zeros(6)), options=options)
    assert cert.attained is not None
    assert 0 < cert.attained <= cert.bound


def test_places_of_maxima_are_refused_in_one_sentence() -> None:
    model = Between(lambda h: h * h.max(1, keepdim=True)[1]).eval()
    with pytest.raises(BadInput, match="where a maximum stands"):
        prunus.certify(model, prunus.find_masks(model, 0.4), prunus.Ball(0.5, torch.zeros(6)), attack=False)


def test_a_batch_that_loses_its_axis_is_refused_in_one_sentence() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Unflatten(1, (4, 1))).eval()
    model.register_forward_hook(lambda module, args, output: output.squeeze())
    with pytest.raises(PrunusError, match=r"gives \(4, 1\) outputs for 1 inputs"):
        prunus.certify(model, prunus.find_masks(model, 0.4), prunus.Ball(0.5, torch.zeros(6)), attack=False)


def test_a_lazy_model_is_named() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4)).eval()
    ball = prunus.Ball(0.5, torch.zeros(6))
    with pytest.raises(BadInput, match="no values yet"):
        prunus.certify(model, copy.deepcopy(model), ball, attack=False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__)
def test_certificates_work_where_gradients_are_off(mode: Callable[[], Any]) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    masks, ball = prunus.find_masks(model, 0.4), prunus.Ball(0.5, torch.zeros(6))
    with mode():
        cert = prunus.certify(model, masks, ball)
        assert cert.attained is not None
        assert 0 < cert.attained <= cert.bound
        assert prunus.equivalent(model, masks, ball, tolerance=10.0).status == "proved"
        assert len(prunus.certify_labels(model, masks, prunus.Samples(torch.zeros(2, 6), 0.01)).agree) == 2


def test_a_model_made_in_inference_mode_is_named() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    other, ball = copy.deepcopy(model), prunus.Ball(0.5, torch.zeros(6))
    with pytest.raises(BadInput, match=r"copy\.deepcopy"):
        prunus.certify(model, other, ball)
    assert prunus.certify(other, copy.deepcopy(other), ball).attained == 0

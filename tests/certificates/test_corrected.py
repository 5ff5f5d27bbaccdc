"""Claims that were once false, each with the networks that showed it."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import prunus
from prunus.certificates import CertifyOptions
from prunus.errors import BadInput
from support import scale


def filled(layer: nn.Linear, values: Tensor) -> nn.Linear:
    with torch.no_grad():
        layer.weight.copy_(values)
    return layer


# ------------------------------------------------------------------------------------------------- the loss bound


@pytest.mark.parametrize(("norm", "factor"), [(2, math.sqrt(2.0)), ("max", 2.0)])
def test_the_loss_moves_by_no_more_than_its_bound(norm: int | str, factor: float) -> None:
    one, two = (filled(nn.Linear(2, 2, bias=False), size * torch.eye(2)).eval() for size in (1.0, 2.0))
    x = torch.tensor([[3.0, -3.0]])
    cert = prunus.certify(one, two, prunus.Samples(x), norm=norm)
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(x), torch.tensor([1])) for model in (one, two)]
    assert cert.loss_bound is not None
    assert abs(float(losses[1] - losses[0])) <= cert.loss_bound
    assert cert.loss_bound == pytest.approx(factor * cert.bound)


# ---------------------------------------------------------------------------------------------- arguments by name


@pytest.mark.parametrize("value", [0.5, True, None, "1"])
def test_points_set_aside_are_a_whole_number(value: object) -> None:
    model = nn.Linear(4, 3).eval()
    with pytest.raises(BadInput, match="exceedances"):
        prunus.certify_statistically(model, model, torch.randn(9, 4), exceedances=value)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="exceedances"):
        prunus.plan(model, prunus.certificates.OnData(torch.randn(9, 4), exceedances=value), 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 1.5, True, "2"])
def test_comparisons_are_a_whole_number_above_0(value: object) -> None:
    model = nn.Linear(4, 3).eval()
    with pytest.raises(BadInput, match="comparisons"):
        prunus.certify_statistically(model, model, torch.randn(9, 4), comparisons=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, "1", math.nan, [1.0]])
def test_an_error_is_a_number(value: object) -> None:
    model = nn.Linear(4, 3).eval()
    with pytest.raises(BadInput, match="error is"):
        prunus.certify_statistically(model, model, torch.randn(9, 4), error=value)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ modules that hide code


def test_a_traced_module_is_refused_in_one_sentence() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    traced = torch.jit.trace(model, torch.zeros(2, 4))
    for one, two in ((traced, traced), (model, traced), (nn.Sequential(traced).eval(), model)):
        with pytest.raises(BadInput, match="TorchScript"):
            prunus.certify(one, two, prunus.Samples(torch.ones(1, 4)))


def test_a_compiled_module_is_refused_in_one_sentence() -> None:
    """A backend may compute anything: this one adds 100 to large outputs."""

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        return lambda *args: tuple(y + 100 * (y > 50) for y in graph.forward(*args))

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    in_place = copy.deepcopy(model)
    in_place[0].compile(backend=backend)  # type: ignore[operator]
    domain = prunus.Samples(torch.ones(1, 4), 0.1)
    for other in (torch.compile(model, backend=backend), in_place, nn.Sequential(torch.compile(model)).eval()):
        for pair in ((model, other), (other, model), (other, other)):
            with pytest.raises(BadInput, match=r"torch\.compile"):
                prunus.certify(*pair, domain)
            with pytest.raises(BadInput, match=r"torch\.compile"):
                prunus.certify_labels(*pair, domain)


def test_a_compiled_function_in_a_forward_is_refused() -> None:
    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        return lambda *args: tuple(y + 100 * (y > 50) for y in graph.forward(*args))

    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.twice = nn.Linear(4, 3), torch.compile(lambda h: h * 2, backend=backend)

        def forward(self, x: Tensor) -> Tensor:
            return self.twice(self.layer(x))  # type: ignore[no-any-return]

    model = Calls().eval()
    with pytest.raises(BadInput, match=r"torch\.compile"):
        prunus.certify(model, prunus.find_masks(model, 0.3), prunus.Ball(1.0, torch.zeros(4)))


# ------------------------------------------------------------------------------------- what overflows or underflows


def normed(weight: float, variance: float, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A layer with large sums, and a batch norm that makes them small again."""
    layer = filled(nn.Linear(64, 2, bias=False), weight * torch.tensor([[1.0], [0.125]]))
    norm = nn.BatchNorm1d(2)
    with torch.no_grad():
        norm.running_var.fill_(variance)  # type: ignore[union-attr]
        norm.weight.fill_(scale)
        norm.bias.copy_(torch.tensor([0.0, -1000.0 * scale * weight / 1200]))
    return nn.Sequential(layer, norm).eval().to(dtype)


@pytest.mark.parametrize("case", ["half", "single"])
def test_sums_that_a_batch_norm_makes_small_still_overflow(case: str) -> None:
    if case == "half":
        model, pruned = (normed(weight, 6e4, dtype=torch.float16) for weight in (1200.0, 900.0))
    else:
        model, pruned = (normed(weight, 1.0, scale=1e-30) for weight in (8e36, 6e36))
    x = -torch.ones(1, 64, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        assert not bool(torch.isfinite(model(x)).all())
    domain = prunus.Samples(torch.full((1, 64), -0.5), 4.0)
    options = CertifyOptions(tune=False)
    assert prunus.certify(model, pruned, domain, attack=False, options=options).bound == math.inf
    assert prunus.certify_labels(model, pruned, domain).agree == (False,)
    small = prunus.Samples(torch.full((1, 64), -0.001), 0.001)
    assert prunus.certify(model, pruned, small, attack=False, options=options).bound < math.inf


def test_a_mean_is_summed_before_it_is_divided() -> None:
    model = nn.Sequential(nn.AvgPool1d(64), nn.Flatten(), nn.Linear(1, 1)).eval()
    domain = prunus.Samples(torch.full((1, 1, 64), 1e37))
    with torch.no_grad():
        assert not bool(torch.isfinite(model(torch.full((1, 1, 64), 1e37))).all())
    assert prunus.certify(model, copy.deepcopy(model), domain, attack=False).bound == math.inf


def test_a_batch_norm_enlarges_what_underflow_lost() -> None:
    """Half precision has no numbers between 0 and 6e-8: the batch norm multiplies what is lost by 3e5."""
    layer, norm = filled(nn.Linear(1, 1, bias=False), torch.tensor([[2.0**-14]])), nn.BatchNorm1d(1)
    with torch.no_grad():
        norm.running_var.fill_(0.0)  # type: ignore[union-attr]
        norm.weight.fill_(60000.0)
    model = nn.Sequential(layer, norm).eval().half()
    twin = copy.deepcopy(model).double()
    x = torch.tensor([[1.5 * 2.0**-11]]).half()
    with torch.no_grad():
        off = float((model(x).double() - twin(x.double())).abs())
    options = CertifyOptions(tune=False)
    for method in ("recursion", "relaxation"):
        options = CertifyOptions(methods=(method,), tune=False)
        cert = prunus.certify(twin, model, prunus.Samples(x.double(), 1e-9), attack=False, options=options)
        assert 0 < off <= cert.bound


# ------------------------------------------------------------------------------------------ labels and distributions


class Rows(nn.Module):
    """One row of three outputs for each of two tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).unflatten(1, (2, 3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), "has one"),
        (lambda: nn.Linear(4, 1), "has one"),
        (Rows, r"\(2, 3\)"),
    ],
    ids=["probability", "logit", "rows"],
)
def test_outputs_without_a_label_get_no_statement_on_labels(make: Callable[[], nn.Module], words: str) -> None:
    torch.manual_seed(0)
    model, other, x = make().eval(), make().eval(), torch.randn(50, 4)
    found = prunus.certify_statistically(model, other, x)
    assert (found.agreement, found.agreement_low, found.kept_by_margin, found.median_margin) == (None,) * 4
    assert found.unlabelled is not None
    assert re.search(words, found.unlabelled)
    assert "label" not in found.statement
    with pytest.raises(BadInput, match=words):
        prunus.certify_labels(model, other, prunus.Samples(x))


def test_one_row_of_outputs_keeps_its_statement() -> None:
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (6, 1, 1))).eval(), torch.randn(50, 4)
    found = prunus.certify_statistically(model, copy.deepcopy(model), x)
    assert (found.agreement, found.unlabelled) == (1.0, None)
    assert "keep their label" in found.statement


def test_a_plan_on_data_pays_for_every_try() -> None:
    """Inputs that each meet two neighbouring weights: a try fails for some held-out point until luck lets it pass.

    The share of the distribution beyond the plan's bound may exceed its probability in one trial of five; of the plans
    that counted their tries as one, it did in more than two of three (alarm 1e-6).
    """
    size, held = 400, 700
    weights = 1 + torch.arange(size) * 1e-3
    places = torch.arange(size - 1)
    every = torch.zeros(size - 1, size)
    every[places, places], every[places, places + 1] = 1 / weights[:-1], -1 / weights[1:]
    model = nn.Sequential(filled(nn.Linear(size, 1, bias=False), weights[None])).eval()
    grid = tuple(round(0.03 * level, 2) for level in range(1, 32))
    settings = prunus.certificates.PlanSettings(grid=grid, rounds=4)
    trials, failures = scale(25, full=100), 0
    for seed in range(trials):
        drawn = torch.randint(0, size - 1, (2 * held,), generator=torch.Generator().manual_seed(seed))
        data = prunus.certificates.OnData(every[drawn], confidence=0.8)
        try:
            found = prunus.plan(model, data, 0.5, settings=settings)
        except BadInput:
            continue  # nothing is claimed
        assert found.probability is not None
        other = found.masks.apply_(copy.deepcopy(model))
        with torch.no_grad():
            distances = (other(every) - model(every)).double().abs().squeeze(1)
        failures += float((distances > found.bound).double().mean()) > found.probability
    assert stats.binom.sf(failures - 1, trials, 0.2) > 1e-6


# ------------------------------------------------------------------------------------------- inputs in another type


@pytest.mark.parametrize("kind", ["samples", "near", "ball", "box"])
@pytest.mark.parametrize("turned", [False, True], ids=["coarser second", "coarser first"])
def test_an_input_is_rounded_for_the_network_of_the_coarser_type(kind: str, turned: bool) -> None:
    x = torch.tensor([[1.0 + 0.49 * 2.0**-7]])
    domain = {
        "samples": prunus.Samples(x),
        "near": prunus.Samples(x, 1e-4),
        "ball": prunus.Ball(1e-4, x[0]),
        "box": prunus.Box(x[0] - 1e-4, x[0] + 1e-4),
    }[kind]
    torch.manual_seed(1)
    one = filled(nn.Linear(1, 1, bias=False), torch.tensor([[1.0 + 2.0**-7 * 1.49]])).eval()
    two = copy.deepcopy(one).bfloat16()
    with torch.no_grad():
        off = float((two(x.bfloat16()).double() - one(x).double()).abs())
    pair = (two, one) if turned else (one, two)
    for methods in (("recursion",), ("products",), ("intervals",), ("relaxation",)):
        options = CertifyOptions(methods=methods, tune=False)
        cert = prunus.certify(*pair, domain, options=options)
        assert off <= cert.bound < 0.04
    assert prunus.equivalent(*pair, domain, off * 0.999, seconds=5.0).status != "proved"


def test_points_that_fit_into_both_types_are_not_rounded() -> None:
    model = filled(nn.Linear(1, 1, bias=False), torch.tensor([[1.0]])).eval()
    other = copy.deepcopy(model).bfloat16()
    bounds = [prunus.certify(model, other, prunus.Samples(torch.tensor([[x]]))).bound for x in (1.0, 1.0 + 2.0**-9)]
    assert bounds[0] < 1.1 * 2.0**-8 < 1.9 * 2.0**-8 < bounds[1]


def test_points_are_rounded_to_the_type_of_both_networks() -> None:
    """A point between two numbers of half precision: both networks receive the next one."""
    one = filled(nn.Linear(1, 1, bias=False), torch.tensor([[1.0 + 2.0**-10]])).eval().half()
    two = filled(nn.Linear(1, 1, bias=False), torch.zeros(1, 1)).eval().half()
    x = torch.tensor([[1.0 + 1.51 * 2.0**-10]])
    with torch.no_grad():
        off = float((two(x.half()).double() - one(x.half()).double()).abs())
    assert off <= prunus.certify(one, two, prunus.Samples(x)).bound
    with pytest.raises(BadInput, match="does not fit"):
        prunus.certify(one, two, prunus.Samples(1e6 * x))


# ------------------------------------------------------------------- what a norm computes where its inputs are large


class Weighted(nn.Module):
    """A norm of the input times one weight."""

    def __init__(self, weight: float, norm: nn.Module, last: bool = False) -> None:
        super().__init__()
        self.weight, self.norm, self.last = nn.Parameter(torch.tensor(weight)), norm, last

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        return self.norm(y.permute(0, 3, 1, 2) if self.last else y)


def widened(weight: float) -> nn.Module:
    layer = nn.Conv2d(1, 4, 1)
    with torch.no_grad():
        layer.weight.fill_(weight)
        layer.bias.zero_()  # type: ignore[union-attr]
    return nn.Sequential(layer, nn.InstanceNorm2d(4, eps=1e-12))


NORMS: dict[str, tuple[Callable[[float], nn.Module], tuple[int, ...], float, float]] = {
    "instance": (lambda weight: Weighted(weight, nn.InstanceNorm2d(1)), (1, 4, 4), 1e6, 200.0),
    "small eps": (widened, (1, 4, 4), 100.0, 0.7),
    "instance of channels": (lambda weight: Weighted(weight, nn.InstanceNorm2d(2), True), (4, 4, 2), 1e5, 100.0),
    "group": (lambda weight: Weighted(weight, nn.GroupNorm(1, 2)), (2, 4, 4), 1e6, 200.0),
    "group of channels": (lambda weight: Weighted(weight, nn.GroupNorm(1, 2), True), (4, 4, 2), 1e4, 200.0),
    "layer": (lambda weight: Weighted(weight, nn.LayerNorm(8)), (8,), 1e6, 200.0),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_of_large_inputs_is_covered(name: str) -> None:
    make, shape, centre, spread = NORMS[name]
    torch.manual_seed(0)
    one, two = make(1.0).eval(), make(1.37).eval()
    axes = [1] * len(shape)
    even = (centre + spread * (torch.rand(20000, *axes) - 0.5)).expand(-1, *shape)
    mixed = even[:2000] + 0.1 * spread * torch.randn(2000, *shape) / math.sqrt(math.prod(shape))
    points = torch.cat([even, mixed])
    radius = float((points.double() - centre).flatten(1).norm(dim=1).max()) * 1.001
    with torch.no_grad():
        off = float((two(points) - one(points)).double().flatten(1).norm(dim=1).max())
    domain = prunus.Ball(radius, torch.full(shape, centre))
    options = CertifyOptions(tune=False, seconds=5.0)
    assert 0 < off <= prunus.certify(one, two, domain, attack=False, options=options).bound
    box = prunus.Box(torch.full(shape, centre - spread), torch.full(shape, centre + spread))
    assert prunus.equivalent(one, two, box, tolerance=0.9 * off, norm=2, boxes=8).status != "proved"

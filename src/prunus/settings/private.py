"""Options of the experiments with private sparsification: the flags of `prunus private simulate` and `train`."""

from __future__ import annotations

from dataclasses import dataclass, field

from prunus.errors import BadInput, UnknownName

METHODS = ("dense", "random", "noisy-top-k", "two-level")
MODELS = {"digits": "fc:64-100-10", "mnist": "fc:784-100-10", "fashion-mnist": "fc:784-100-10"}
"""The network of each data set, where none is named."""


@dataclass(frozen=True)
class _Experiment:
    """What all experiments share: digits, mnist or fashion-mnist, their folder, a network, and the seed."""

    data: str = "digits"
    folder: str | None = None
    model: str | None = field(default=None, metadata={"help": "Zoo name; a small fully connected network otherwise."})
    seed: int = 0

    @property
    def model_name(self) -> str:
        """The network that is named, or that of the data set."""
        if self.model is None and self.data not in MODELS:
            raise BadInput(f"Name a model for {self.data!r}, as in --model fc:64-100-10.")
        return self.model or MODELS[self.data]


@dataclass(frozen=True)
class SimulationOptions(_Experiment):
    """A federated run on one machine.

    Attributes:
        clients: Clients that take part.
        rounds: Rounds of training.
        k: Fraction of the coordinates that is kept.
        theta: Concentration around the true top set; 0 is a random set.
        clip: Largest 2-norm of an update.
        noise_multiplier: Central noise over the clip.
        dropout: Share of clients that do not reply, up to 0.9.
        lr: Learning rate of the clients.
        steps: Steps of a client in each round.
        batch: Examples in a step.
        delta: Delta of the epsilon that is reported.
        processes: Processes the clients train in; 0 trains them here.
    """

    clients: int = 10
    rounds: int = 20
    k: float = 0.05
    theta: float = 2.64
    clip: float = 1.0
    noise_multiplier: float = 0.5
    dropout: float = 0.0
    lr: float = 0.1
    steps: int = 10
    batch: int = 32
    delta: float = 1e-5
    processes: int = 0

    def __post_init__(self) -> None:
        if self.clients < 1 or self.rounds < 1 or self.steps < 1 or self.batch < 1:
            raise BadInput("A simulation needs at least one client, round, step and example in a batch.")
        if not 0.0 <= self.dropout <= 0.9:
            raise BadInput(f"dropout must lie in [0, 0.9], got {self.dropout}.")


@dataclass(frozen=True)
class ComparisonOptions(_Experiment):
    """DP-SGD at a total (epsilon, delta), by several methods.

    Attributes:
        epsilon: Total epsilon of each run.
        delta: Delta of that epsilon.
        epochs: Epochs of training.
        batch: Mean size of a Poisson-sampled batch.
        lr: Learning rate of SGD.
        clip: Largest 2-norm of a masked per-example gradient.
        k: Fraction of the coordinates that the sparse methods keep.
        seeds: Runs of each method.
        methods: Which methods: dense, random, noisy-top-k, two-level.
    """

    epsilon: float = 3.0
    delta: float = 1e-5
    epochs: int = 10
    batch: int = 128
    lr: float = 1.0
    clip: float = 1.0
    k: float = 0.3
    seeds: int = 3
    methods: tuple[str, ...] = METHODS

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise UnknownName("method", name, METHODS)
        if self.epochs < 1 or self.batch < 1 or self.seeds < 1 or not 0.0 < self.k < 1.0:
            raise BadInput("A comparison needs at least one epoch, example and seed, and k between 0 and 1.")
        _ = self.model_name  # refuses data without a network

"""What all cells of a study share."""

from __future__ import annotations

from dataclasses import dataclass

from prunus._by_path import import_object, is_import_path
from prunus.duration import Duration
from prunus.errors import BadInput, UnknownName
from prunus.settings.training import OPTIMIZERS

METRICS = ("accuracy", "perplexity", "spearman")


@dataclass(frozen=True)
class Settings:
    """What all cells of a study share.

    The flags of `prunus study` are made from this class: a field that is added here, with its line below, is a flag.

    Attributes:
        weights: File with trained weights; without one each network is trained.
        length: Training of the dense network, as in 10ep or 5000it.
        lr: Learning rate of that training.
        batch_size: Samples in a step of any training.
        augment: none, crop-flip or resized-crop-flip, in any training.
        recalibrate: Batches from which batch-norm statistics are taken anew after pruning; 0 leaves them.
        finetune: Training after pruning, zeros held; 0ep leaves it out.
        finetune_lr: Learning rate of the fine-tune, and of the methods distil and gradual.
        allocation: How the zeros are shared between layers: uniform, global, erk, lamp or damage. Only reconstruct
            measures damage; with it, prune, distil, gradual and imp take uniform.
        exclude: Names or globs of layers that are never pruned.
        look: Training points given to a score that needs data.
        samples: Training points that the method reconstruct adjusts the weights on, without their labels.
        distil: Length of the distillation in methods that end with distil.
        gradual: Length of the training in the method gradual.
        certify: Test points that are certified with their neighbourhoods; 0 leaves it out.
        labels: Test points whose label is proved the same in that neighbourhood; 0 leaves it out. Networks that are
            large or have convolutions take it only with certify_seconds.
        certify_seconds: Seconds for the linear relaxation of large networks, for all points together (small ones take
            what they need); those networks are certified in float64, where rounding does not exceed the bound.
        radius: 2-norm radius of these neighbourhoods.
        held_out: Test points, drawn at random, behind the statistical certificate; 0 leaves it out.
        sensitivity: Test points on which the loss of each layer alone is measured; 0 leaves it out.
        kernel: Test points that the tangent kernel is computed on; 0 leaves it out.
        compress: Pack the pruned network and time it against the dense one.
        batch: Examples in the batch that is timed.
        metric: What the networks are judged by: accuracy, perplexity, spearman, or `package.module:function` of
            (model, data).
        second_batch: A second batch size that is timed; 0 leaves it out.
        integers: Also time and judge the packed network with integer products (int8 weights, inputs and embeddings).
        peers: Also time the dense network in ONNX Runtime, in float32 and int8, and judge the int8 one.
        examples: Examples before and after pruning that are kept for the page: images that changed their label,
            generated text, nearest sentences.
        data_dir: Folder of the public data sets; PRUNUS_DATA is used otherwise. Where it lies does not change a cell's
            key.
        keep: Keep each pruned network too, as networks/KEY.safetensors in the study's folder; one that is there is
            measured as it is and not made again. It does not change a cell's key.
        optimizer: sgd, adam or adamw, in any training; language models and encoders want adamw and a small rate.

    Example:
        >>> quick = prunus.study.Settings(length="1ep", certify=0, kernel=0)
        >>> quick.batch_size, quick.finetune
        (64, '0ep')
    """

    weights: str = ""
    length: str = "10ep"
    lr: float = 0.05
    batch_size: int = 64
    augment: str = "none"
    recalibrate: int = 0
    finetune: str = "0ep"
    finetune_lr: float = 0.01
    allocation: str = "uniform"
    exclude: tuple[str, ...] = ()
    look: int = 2048
    samples: int = 512
    distil: str = "1ep"
    gradual: str = "4ep"
    certify: int = 8
    labels: int = 100
    certify_seconds: float = 0.0
    radius: float = 0.1
    held_out: int = 500
    sensitivity: int = 512
    kernel: int = 24
    compress: bool = True
    batch: int = 1
    metric: str = "accuracy"
    second_batch: int = 0
    integers: bool = False
    peers: bool = False
    examples: int = 0
    data_dir: str = ""
    keep: bool = False
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        for text in (self.length, self.finetune, self.distil, self.gradual):
            Duration.parse(text)
        counts = ("certify", "labels", "kernel", "recalibrate", "held_out", "sensitivity", "second_batch", "examples")
        for name in (*counts, "certify_seconds"):
            if getattr(self, name) < 0:
                raise BadInput(f"The setting {name} is {getattr(self, name)}: it must be 0 or more.")
        for name in ("batch", "batch_size", "look", "samples"):
            if getattr(self, name) < 1:
                raise BadInput(f"The setting {name} is {getattr(self, name)}: it counts examples, at least 1.")
        if self.metric not in METRICS:
            if not is_import_path(self.metric):
                raise UnknownName("metric", self.metric, METRICS)
            import_object(self.metric, "metric")
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName("optimizer", self.optimizer, OPTIMIZERS)
        if not self.radius > 0:
            raise BadInput(f"The setting radius is {self.radius}: it must be a positive length.")

"""`reconstruct`: prune a network layer after layer and adjust what stays, so that its outputs stay."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import Batch
from prunus.contract import Allocation, Masks, Pattern
from prunus.errors import BadInput, PrunusWarning
from prunus.graph import unwrapped
from prunus.layers import Weight, all_weights, as_globs, listing, require_changeable, require_module
from prunus.pruning import patterns
from prunus.recovery._calibration import calibrate_on, head
from prunus.recovery._copies import refuse_computed, require_finite, take_over, working_copy
from prunus.recovery._descent import Descent
from prunus.recovery._layer import LayerResult, rebuild
from prunus.recovery._lookback import looks_back
from prunus.recovery._moments import Moments, Stage, measure, settle, trace
from prunus.recovery._plan import PruningPlan, checked, plan_for
from prunus.recovery._progress import LayerProgress, progress
from prunus.recovery._record import plain_layers
from prunus.recovery._saved import Saved, saved
from prunus.recovery._shelf import trim
from prunus.recovery._units import UnitWalk, divide, evaluating, runs
from prunus.settings.recovery import ReconstructOptions
from prunus.storage import digest, locked

Sparsity = float | Mapping[str, float]


def reconstruct(
    model: nn.Module,
    sparsity: Sparsity | None,
    data: Any,
    pattern: str | Pattern = "balanced:16",
    allocation: str | Allocation = "uniform",
    exclude: Iterable[str] = (),
    masks: Masks | None = None,
    samples: int = 512,
    seed: int = 0,
    *,
    misfits: str = "error",
    options: ReconstructOptions | None = None,
) -> Masks:
    """Prune a trained model without training it, in place: choose what stays and adjust it so that the outputs stay.

    Layer after layer, with the inputs that the pruned network really produces, the weights whose loss can best be made
    up for go, and those that stay become the least-squares fit to the dense network's outputs; biases and batch-norm
    statistics follow. A few hundred unlabelled samples are enough.

    Args:
        model: a trained network; it is changed only if everything succeeds.
        sparsity: fraction of zeros, or {layer: fraction}, as in `find_masks`. Not used with `masks`.
        data: samples like those the model will meet: anything that `prunus.adapters.batches` reads. Labels are ignored.
        pattern: which sets of zeros are allowed.
        allocation: how many zeros each layer gets: "uniform", "global", "erk", "lamp", "damage", or a function.
        exclude: names and globs that are left as they are.
        masks: take these zeros and adjust only what stays.
        samples: how many samples to use, drawn at random where the data can be drawn from.
        seed: of the draw. The same seed and number of threads give the same bytes.
        misfits: "error", or "skip" for layers that the pattern does not fit.
        options: how thoroughly to work.

    Returns:
        The masks. `masks.notes["layers"]` holds the relative squared error of every layer's output: `before` as
        magnitude pruning would leave it, `masked` with these masks and the old values, `after` with the new ones;
        `masks.notes["sparsity"]` is what was asked for, `masks.notes["reached"]` what came out. Layers that the data
        never reach stay dense, with a warning and in `masks.notes["unreached"]`; with `masks` they get their zeros and
        no fit, and stand in `masks.notes["unfitted"]`.

    Raises:
        BadInput: if the data are missing, hold NaN or never reach a layer that `sparsity` names, or the masks belong
            to another model; the model is then unchanged.

    Example:
        >>> import prunus, torch
        >>> model = prunus.models.make("fc:64-32-10", seed=0)
        >>> masks = prunus.reconstruct(model, 0.5, torch.randn(256, 64, generator=torch.Generator().manual_seed(0)))
        >>> notes = masks.notes["layers"]["layers.0.weight"]
        >>> notes["after"] < notes["masked"] < 1
        True
    """
    options = checked(options)
    require_module(model)
    inner = unwrapped(model)
    if masks is not None and (not isinstance(masks, Masks) or not masks):
        raise BadInput("masks must be prunus.Masks with at least one mask.")
    refuse_computed(inner, as_globs(exclude))
    require_changeable(inner)
    with torch.inference_mode(False):  # there a `Recorder` would see nothing
        calibration = calibrate_on(inner, data, samples, options.batch_size, seed)
        shape = patterns.parse(pattern)
        exclude = as_globs(exclude)
        said = allocation if isinstance(allocation, str) else getattr(allocation, "__qualname__", "function")
        asked = (sparsity, shape, said, exclude, misfits, None if masks is None else digest(masks))
        kept = saved(inner, calibration, options, *asked)
        with nullcontext() if kept is None else locked(kept.folder, "reconstruction"):
            plan = plan_for(inner, sparsity, shape, allocation, exclude, masks, misfits, calibration, options, kept)
            work = working_copy(inner, plan.names, whole=options.descent > 0)
            with (
                evaluating(inner),
                evaluating(work),
                plain_layers(inner),
                torch.no_grad(),
                progress(len(plan.names), options.progress) as line,
            ):
                job = _Reconstruction(inner, work, plan, calibration, options, line, kept)
                job.run()
        if job.remarks:
            warnings.warn(" ".join(job.remarks), PrunusWarning, stacklevel=2)
        chosen = {name: job.done[name].mask for name in plan.names}
        whole = chosen if masks is None else {name: chosen.get(name, mask) for name, mask in masks.items()}
        found = Masks.adopt(whole, _notes(job, shape, seed))
        found.notes["reached"] = found.sparsity
        require_finite(work)
        take_over(inner, work)
        found.apply_(inner)
        return found


def _notes(job: _Reconstruction, shape: Pattern, seed: int) -> dict[str, Any]:
    """How the masks were made, for their `notes`."""
    plan = job.plan
    asked: dict[str, Any] = {"pattern": str(shape), "sparsity": plan.asked, "allocation": plan.allocation}
    return {
        "from": "reconstruct",
        **(asked if plan.given is None else {"masks": dict(plan.given.notes)}),
        "samples": sum(batch.size for batch in job.calibration),
        "seed": seed,
        "layers": {name: result.errors() for name, result in job.done.items()},
        **plan.dense,
        **({"remarks": job.remarks} if job.remarks else {}),
    }


# ----------------------------------------------------------------------------------------------------------------- job


@dataclass(eq=False)
class _Reconstruction:
    """One run: `dense` gives the outputs to keep, `work` is its copy that is pruned unit by unit."""

    dense: nn.Module
    work: nn.Module
    plan: PruningPlan
    calibration: list[Batch]
    options: ReconstructOptions
    line: LayerProgress
    kept: Saved | None = None
    done: dict[str, LayerResult] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    few: list[tuple[str, int, int]] = field(default_factory=list)
    between: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)

    def run(self) -> None:
        new, old = all_weights(self.work), all_weights(self.dense)
        self.weights = {name: new[name] for name in self.plan.names}
        self.originals = {name: old[name] for name in self.plan.names}
        batch = self.calibration[0]
        self.keeps = [each.real_positions() for each in self.calibration]
        trim()  # what the plan was made with
        counts = runs(self.dense, batch)
        trim()
        units, stages = self._divide(self._few(batch, counts))
        memory = self.options.memory / 2
        self.old = UnitWalk(self.dense, units, self.calibration, memory, fixed=True)
        self.new = UnitWalk(self.work, units, self.calibration, memory)
        self.old.keep_all = self.new.keep_all = looks_back(self.dense, units, batch)
        self.new.counts = self.old.counts = counts
        self.moving: dict[Tensor, Tensor] = {}
        self.descent = Descent(self.old, self.new, self.moving, self.keeps, self.options)
        for number, unit in enumerate(units):
            inside = [stage for stage in stages if _belongs(self.weights[stage.names[0]], self.work, unit)]
            if not self._restore(number, unit, inside):
                self._unit(unit, inside)
                self._keep(number, unit, inside)
            self.new.advance()
        self._remark()

    def _few(self, batch: Batch, counts: dict[str, int]) -> Batch:
        """Two samples, if the model runs on them as on the batch: the logits of a language model are large."""
        few = head(batch, 2)
        try:
            alike = runs(self.dense, few) == counts
        except Exception:  # a model may ask for whole batches
            alike = False
        return few if alike else batch

    def _divide(self, batch: Batch) -> tuple[list[str], list[Stage]]:
        """The units and the stages of the dense network, found by running it on a batch."""
        units = divide(self.dense, self.originals, batch)
        trim()
        stages = trace(self.dense, self.originals, batch, batch.real_positions(), units)
        trim()
        return units, stages

    def _keep(self, number: int, unit: str, stages: list[Stage]) -> None:
        """Write what this unit became: its tensors and those of the norms behind it, its masks and errors."""
        if self.kept is None:
            return
        norms = (norm for stage in stages for norm in stage.norms.values())
        places = dict.fromkeys([unit, *norms, *self.settled])
        state = {
            f"{place}.{name}" if place else name: value
            for place in places
            for name, value in self.work.get_submodule(place).state_dict().items()
            if isinstance(value, Tensor)
        }
        names = [name for stage in stages for name in stage.names]
        tensors = {f"state/{name}": value for name, value in state.items()}
        tensors |= {f"mask/{name}": self.done[name].mask for name in names}
        few = [entry for entry in self.few if entry[0] in names]
        self.kept.keep(number, tensors, {"errors": {n: self.done[n].errors() for n in names}, "few": few})

    def _restore(self, number: int, unit: str, stages: list[Stage]) -> bool:
        """Take back what `_keep` wrote in a run that was broken off."""
        found = None if self.kept is None else self.kept.block(number)
        if found is None:
            return False
        tensors, record = found
        own = self.work.state_dict()
        for name, value in tensors.items():
            if name.startswith("state/"):
                own[name.removeprefix("state/")].copy_(value)
        for name, errors in record["errors"].items():
            device = self.weights[name].parameter.device
            self.done[name] = LayerResult(mask=tensors[f"mask/{name}"].to(device), **errors)
            self.line.update(f"{name}  done before")
        self.between = _outside(unit, stages)
        self.few += [(str(name), int(count), int(columns)) for name, count, columns in record["few"]]
        self.old.advance()
        return True

    def _settle(self, names: Iterable[str]) -> None:
        for name in names:
            settle(self.old, self.new, name, len(self.calibration))

    def _unit(self, unit: str, stages: list[Stage]) -> None:
        self._settle(self.between)
        self.settled, self.between = self.between, _outside(unit, stages)
        self.descent.begin(self.weights[n].parameter for stage in stages for n in stage.names)
        for number, stage in enumerate(stages):
            # Where batch norms follow, the dense unit is needed once more to settle them.
            last = stage is stages[-1] and not stage.after and not stage.norms
            done, waiting = (
                [n for each in part for n in each.names] for part in (stages[: number + 1], stages[number + 1 :])
            )
            old, new = (
                [[weights[n].parameter for n in names] for names in (done, waiting)]
                for weights in (self.originals, self.weights)
            )
            if not last:
                self.old.settle(*old)  # the dense network never changes
            if stage.summed:
                self.new.close(self.weights[stage.names[0]].module, *new)
            trim()
            hold = self.options.aside
            moments = measure(self.old, self.new, stage, self.weights, self.originals, self.keeps, last, hold)
            trim()
            for name in stage.names:
                self._layer(name, stage, moments)
            self.new.finish()
            self.descent.after(new[1])
            self.new.settle(*new)
            self._settle(name for name in stage.after if name not in self.between)
        if not stages or not last:
            self.old.advance()
        self.descent.end()

    def _layer(self, name: str, stage: Stage, moments: Moments) -> None:
        norm = self.work.get_submodule(stage.norms[name]) if name in stage.norms else None
        if moments.count < moments.own.shape[-1]:
            self.few.append((name, moments.count, moments.own.shape[-1]))
        self.done[name] = rebuild(
            self.weights[name],
            self.originals[name].parameter.detach(),
            moments,
            pattern=self.plan.patterns[name],
            sparsity=self.plan.levels.get(name, 0.0),
            given=None if self.plan.given is None else self.plan.given[name].to(moments.own.device),
            norm=norm,
            settings=self.options,
        )
        self.moving[self.weights[name].parameter] = self.done[name].mask
        self.line.update(f"{name}  error {self.done[name].after:.3g}")

    def _remark(self) -> None:
        for key, left in (("unreached", "Left dense"), ("unfitted", "Zeros set and nothing fitted")):
            if key in self.plan.dense:
                self.remarks.append(f"{left}, as the data never reach them: {listing(self.plan.dense[key], 20)}.")
        if self.few:
            name, count, columns = self.few[0]
            others = len(self.few) - 1
            more = f" (and {others} more layer{'s' if others > 1 else ''})" if others else ""
            self.remarks.append(
                f"The data give {count} input{'s' if count > 1 else ''} for the {columns} columns of {name}{more}: "
                "the fit rests on damping; more samples make it better."
            )


def _outside(unit: str, stages: Sequence[Stage]) -> list[str]:
    """Batch norms that run after layers of a unit but lie outside of it."""
    return [name for stage in stages for name in stage.after if unit and not name.startswith(f"{unit}.")]


def _belongs(weight: Weight, model: nn.Module, unit: str) -> bool:
    return any(module is weight.module for module in model.get_submodule(unit).modules())

"""What a training looks at besides its loss (:mod:`espalier.core.objectives`): features, outputs, mixtures.

Other models do not change during a training, so their features or outputs of the device's samples are computed once,
before the first step, without dropout and with the running statistics of normalisations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier.core.errors import TrainingError
from espalier.core.objectives import Contrast, Distillation, Mixture, NearPrototypes
from espalier.core.params import Entry, ParamSpec
from espalier.training.losses import distillation_loss, label_counts
from espalier.training.work import Result, TrainerJob

_ROWS = 512
"""Samples whose features are computed at once."""


# -- equations ---------------------------------------------------------------------------------------------------


def contrast(features: Tensor, anchor: Tensor, beside: Tensor, temperature: float) -> Tensor:
    """Return MOON's term ``-log(e^(a/T) / (e^(a/T) + e^(b/T)))`` of features ``[n, d]``, per sample ``[n]``.

    ``a`` and ``b`` are their cosines with the features ``[n, d]`` of the anchor and of the model beside.
    """
    cosines = torch.stack([F.cosine_similarity(features, other, dim=1) for other in (anchor, beside)], 1)
    return F.cross_entropy(cosines / temperature, cosines.new_zeros(len(cosines), dtype=torch.int64), reduction="none")


def class_sums(features: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return each label's sum of features ``[C, d]`` and number of samples ``[C]``, both over all n samples' number."""
    counts = label_counts(labels, n_classes).to(features)
    sums = features.new_zeros(n_classes, features.shape[1]).index_add_(0, labels, features)
    return sums / len(labels), counts / len(labels)


def prototypes(sums: Tensor, counts: Tensor) -> Tensor:
    """Return each label's mean features ``[C, d]`` from :func:`class_sums`; zeros for a label without samples."""
    held = counts.unsqueeze(1) > 0
    return torch.where(held, sums / torch.where(held, counts.unsqueeze(1), 1.0), 0.0)


def far_from(features: Tensor, wanted: Tensor, known: Tensor) -> Tensor:
    """Return FedProto's term: the mean square of ``features - wanted [n, d]``, ``[n]``; 0 where it is not known."""
    return (features - wanted).square().mean(1) * known


def mixed(own: Tensor, other: Tensor, alpha: float | Tensor) -> Tensor:
    """Return APFL's mixture ``alpha v + (1 - alpha) w``."""
    return alpha * own + (1.0 - alpha) * other


# -- features ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LastLayer:
    """A model's last layer: its name, and where its weights ``[C, d]`` and biases ``[C]`` lie."""

    name: str
    weight: Entry | None
    bias: Entry | None

    @staticmethod
    def of(spec: ParamSpec) -> LastLayer:
        """Find it: the layer of the last parameter."""
        name = list(spec.parameters)[-1].name.rpartition(".")[0]
        found = {e.name: e for e in spec.parameters}
        return LastLayer(name, found.get(f"{name}.weight"), found.get(f"{name}.bias"))

    def linear(self) -> tuple[Entry, Entry]:
        """Return the places of its weights and biases; refuse a layer that cannot hold prototypes."""
        if self.weight is None or self.bias is None or len(self.weight.shape) != 2:
            raise TrainingError(
                f"Prototypes need a linear last layer with biases, for they travel in its place; the model's last "
                f"layer is {self.name!r}."
            )
        return self.weight, self.bias


class Caught:
    """What a module's last layer was given in the last forward pass."""

    features: Tensor | None = None

    def take(self, samples: int) -> Tensor:
        """Return the features ``[samples, d]``."""
        found, self.features = self.features, None
        if found is None or found.shape[0] != samples:
            raise TrainingError(
                "The method looks at what the model's last layer gets, but this model does not call its last layer "
                "with one row per sample: let it end in a layer of its own, called once."
            )
        return found.flatten(1)


@contextmanager
def catching(module: nn.Module, spec: ParamSpec, *, wanted: bool = True) -> Iterator[Caught]:
    """Catch the features of every forward pass inside."""
    caught = Caught()

    def note(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        caught.features = args[0]

    name = LastLayer.of(spec).name if wanted else ""
    hook = module.get_submodule(name).register_forward_pre_hook(note) if name else None
    try:
        yield caught
    finally:
        if hook is not None:
            hook.remove()


class Features:
    """Computes features of models with a module of its own."""

    def __init__(self, module: nn.Module, spec: ParamSpec) -> None:
        self._given, self._spec = module, spec

    @cached_property
    def _module(self) -> nn.Module:
        return copy.deepcopy(self._given).eval()

    @cached_property
    def _head(self) -> LastLayer:
        return LastLayer.of(self._spec)

    def of(
        self, job: TrainerJob, vector: Tensor, rows: NDArray[np.int64], *, outputs: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return a model's features ``[n, d]``, or outputs, of rows of a job's pool, and their targets ``[n]``."""
        self._module.to(vector.dtype)
        self._spec.load(self._module, vector)
        found, targets = [], []
        with torch.no_grad(), catching(self._module, self._spec, wanted=not outputs) as caught:
            for first in range(0, len(rows), _ROWS):
                x, y = job.pool.gather(torch.from_numpy(rows[first : first + _ROWS].copy()))
                answers = self._module(x.to(vector.dtype) if x.is_floating_point() else x)
                found.append(answers if outputs else caught.take(len(x)))
                targets.append(y)
        return torch.cat(found), torch.cat(targets)

    def class_sums(self, job: TrainerJob) -> Result:
        """Do what :class:`~espalier.core.objectives.ClassSums` says."""
        weight, bias = self._head.linear()
        features, labels = self.of(job, job.start, job.rows)
        if features.shape[1] != weight.shape[1] or labels.dim() != 1:
            raise TrainingError("Prototypes need one label and one row of features per sample.")
        sums, counts = class_sums(features, labels, weight.shape[0])
        vector = job.start.clone()
        vector[weight.start : weight.stop], vector[bias.start : bias.stop] = sums.reshape(-1), counts
        return Result(vector, float("nan"), len(labels), job.n_steps)

    def beside(self, job: TrainerJob, rows: NDArray[np.int64]) -> Tensor:
        """Return what a job's term compares features of rows with ``[n, …]``."""
        assert job.beside is not None
        if isinstance(job.objective, Contrast):
            assert job.anchor is not None
            return torch.stack([self.of(job, vector.to(job.start), rows)[0] for vector in (job.anchor, job.beside)], 1)
        if isinstance(job.objective, Distillation):
            logits, targets = self.of(job, job.beside.to(job.start), rows, outputs=True)
            if targets.is_floating_point():
                raise TrainingError("Distillation needs labels; the targets are numbers: use the plain loss.")
            return F.softmax(logits / job.objective.temperature, dim=1)
        weight, bias = self._head.linear()
        sums, counts = (job.beside[e.start : e.stop].view(e.shape).to(job.start) for e in (weight, bias))
        _, labels = job.pool.gather(torch.from_numpy(rows.copy()))
        known = (counts > 0).to(job.start).unsqueeze(1)
        return torch.cat([prototypes(sums, counts), known], 1)[labels]


class Terms:
    """The terms of K clients that share an objective, for any of their mini-batches."""

    def __init__(self, jobs: Sequence[TrainerJob], features: Features) -> None:
        objective = jobs[0].objective
        assert isinstance(objective, Contrast | Distillation | NearPrototypes)
        self._objective = objective
        #: whether the terms are of features; else of outputs
        self.of_features = not isinstance(objective, Distillation)
        self._rows = [np.unique(job.rows) for job in jobs]
        self._first = np.cumsum([0, *(len(rows) for rows in self._rows[:-1])])
        self._beside = torch.cat([features.beside(job, rows) for job, rows in zip(jobs, self._rows, strict=True)])

    def of(self, seen: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Return the terms ``[k·B]`` of what is seen ``[k·B, …]`` of the first k clients' pool rows ``[k, B]``."""
        places = [at + np.searchsorted(own, r) for at, own, r in zip(self._first, self._rows, rows, strict=False)]
        beside = self._beside[torch.from_numpy(np.concatenate(places))]
        if isinstance(self._objective, Contrast):
            return self._objective.mu * contrast(seen, beside[:, 0], beside[:, 1], self._objective.temperature)
        if isinstance(self._objective, Distillation):
            return self._objective.weight * distillation_loss(self._objective.temperature)(seen, beside)
        return self._objective.lam * far_from(seen, beside[:, :-1], beside[:, -1])


# -- mixtures ----------------------------------------------------------------------------------------------------


def alone(job: TrainerJob) -> TrainerJob:
    """Return the training of w beside a mixture: from ``beside``, on the same mini-batches."""
    assert job.beside is not None
    return replace(job, start=job.beside, objective=None, beside=None, optimizer_state=None)


def mixed_start(job: TrainerJob, n_params: int) -> Tensor:
    """Return the mixture that a training begins with; buffers are v's."""
    assert isinstance(job.objective, Mixture) and job.beside is not None
    found = job.start.clone()
    found[:n_params] = mixed(job.start[:n_params], job.beside[:n_params], job.objective.alpha)
    return found

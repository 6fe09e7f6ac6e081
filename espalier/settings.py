"""The sections of an experiment file, one typed table each: task, fleet, training, record.

They say what is wanted and do nothing themselves; whoever runs an experiment may import them. The sections ``stop`` and
``evaluate`` are `espalier.core.limits`, ``world`` is `espalier.world`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier.core import code
from espalier.core.bounds import NonNegativeFloat, PositiveInt, Share
from espalier.core.errors import ConfigError, nearest
from espalier.core.learning import TrainingFacts
from espalier.core.messages import LocalWork
from espalier.core.spec import Spec
from espalier.training.models import name_of
from espalier.training.work import Optimizer, Pool, TrainerJob

#: what ``record.log`` may name (`espalier.callbacks.loggers` makes them)
LOGGERS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class TaskSpec(Spec, family="task"):
    """What is learnt: a dataset and a model by name, with their options.

    A dataset of your own is a table: ``{ kind = "csv", path = "mine.csv", label = "ill", owner = "clinic" }``.
    From Python the model may also be an object: an `nn.Module`, a class, or a function that returns a module. Runs
    start from weights drawn by the seed, or (``start = "given"``, as an `nn.Module` does) from those that it has.
    ``loss`` is ``cross_entropy``, ``mse``, ``pixel_cross_entropy`` (by default, the one of the data's kind) or your own
    (``package.module:function``, from Python the function): outputs and targets in, one loss per sample out.
    ``metrics`` are measured of the global model on the whole test set: ``f1``, ``auc``, ``ece``, ``mae``, or your own
    functions, outputs and targets in, a number out. Simulated, ``f1`` and ``ece`` are also measured of every edge's and
    device's model on its own test distribution (the others need the samples themselves). ``sample_metrics`` are means
    over samples: ``mae``, or your own functions, one number per sample out; simulated, they are measured of every
    edge's and device's model (the worst is the highest, as of errors). Where models are used with label priors, and
    where edges have test samples of their own, edges and devices have accuracy and loss alone.
    ``target`` is the score (of ``score``) whose first reaching is measured as time to target. For choosing settings,
    ``judged_on = "validation"`` puts a fifth of the training data in the place of the test data.
    """

    dataset: str = "digits"
    model: str = "mlp"
    dataset_options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    loss: str | None = None
    metrics: tuple[str, ...] = ()
    sample_metrics: tuple[str, ...] = ()
    target: float | None = None
    score: str = "acc_device"
    start: Literal["drawn", "given"] = "drawn"
    judged_on: Literal["test", "validation"] = "test"

    def __post_init__(self) -> None:
        if isinstance(self.model, nn.Module) and self.start == "drawn":
            object.__setattr__(self, "start", "given")
        if isinstance(self.dataset, Mapping):  # { kind = "csv", path = "mine.csv", label = "ill" }
            options = {**self.dataset_options, **self.dataset}
            if "path" not in options:
                raise ConfigError(f"task.dataset = {dict(self.dataset)!r}: a table has a kind and a path.")
            object.__setattr__(self, "dataset", str(options.pop("path")))
            object.__setattr__(self, "dataset_options", options)
        if not isinstance(self.model, str):
            object.__setattr__(self, "model", name_of(self.model))
        if not isinstance(self.loss, str | None):
            object.__setattr__(self, "loss", code.name_of(self.loss, "task.loss", "a name, or a function"))
        for key in ("metrics", "sample_metrics"):
            if isinstance(given := getattr(self, key), list | tuple):
                names = [m if isinstance(m, str) else code.name_of(m, f"task.{key}", "names, functions") for m in given]
                object.__setattr__(self, key, tuple(names))
        super().__post_init__()

    def check(self) -> None:
        """Refuse a target that no accuracy reaches."""
        share = not self.score.startswith("acc") or self.target is None or self.target <= 1
        self.require(share, "target", "at most 1: accuracies are shares, 0.8 is 80 %")


@dataclass(frozen=True)
class FleetSpec(Spec, family="fleet"):
    """How many devices and edges; servers between edges and cloud (``tiers``); the share that works.

    ``tiers = [10, 2]`` puts 10 servers above the edges and 2 above those.
    """

    devices: PositiveInt = 60
    edges: int = 6
    tiers: tuple[int, ...] = ()
    fraction: Share = 1.0

    def check(self) -> None:
        """Refuse impossible fleets."""
        self.require(1 <= self.edges <= self.devices, "edges", "between 1 and the number of devices")
        below = self.edges
        for width in self.tiers:
            self.require(1 <= width <= below, "tiers", "ever fewer servers, each at least 1")
            below = width


@dataclass(frozen=True)
class Training(TrainingFacts):
    """How a device trains: what methods see of it, and what makes a trainer's job of it.

    ``precision = "bfloat16"`` lets wide convolutions multiply in bfloat16, where the processor has units for that;
    weights, and everything else, stay in float32. ``"float64"`` is for checking arithmetic, not for speed.
    """

    precision: Literal["float32", "bfloat16", "float64"] = "float32"

    @property
    def dtype(self) -> torch.dtype:
        """The type of models' numbers."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def half(self) -> bool:
        """Whether products may be in bfloat16."""
        return self.precision == "bfloat16"

    def at(self, clock: int) -> Optimizer:
        """Return the optimiser of the root's round ``clock``."""
        return Optimizer(
            self.optimizer, lr=self.lr_at(clock), momentum=self.momentum, weight_decay=self.weight_decay,
            options=self.optimizer_options,
        )  # fmt: skip

    def job(
        self,
        work: LocalWork[Tensor],
        pool: Pool,
        rows: NDArray[np.int64],
        seed: int,
        unit: Literal["epoch", "step"] | None = None,
    ) -> TrainerJob:
        """Return the trainer's job of local work on rows of a pool (``unit``: if not the run's own)."""
        return TrainerJob(
            **work.fields(),
            pool=pool,
            rows=rows,
            batch_size=self.batch_size,
            unit=unit or self.unit,
            optimizer=self.at(work.clock),
            seed=seed,
        )


@dataclass(frozen=True)
class RecordSpec(Spec, family="record"):
    """What is written: spans of every node's work, final models, and a checkpoint every so many rounds or seconds.

    ``models`` says whose: the root's for all, each cluster's, each edge's, each device's where it has one of its own
    (as long as those take no more than ``devices_bytes`` in all). ``log`` names loggers that are told every evaluation:
    ``tensorboard``, ``wandb`` (offline unless ``$WANDB_MODE`` says otherwise) or ``mlflow``, each with where it writes
    after a colon: ``tensorboard:FOLDER``, ``wandb:PROJECT``, ``mlflow:STORE``.
    """

    spans: bool = True
    models: tuple[Literal["global", "clusters", "edges", "devices"], ...] = ("global", "clusters", "edges", "devices")
    devices_bytes: float = 1e9
    checkpoint_rounds: PositiveInt | None = None
    checkpoint_seconds: NonNegativeFloat | None = 60.0
    log: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse unknown loggers."""
        for name in self.log:
            kind = name.partition(":")[0]
            if kind not in LOGGERS:
                raise ConfigError(f"record.log: {name!r}; known: {', '.join(LOGGERS)}.{nearest(kind, LOGGERS)}")

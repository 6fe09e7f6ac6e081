"""The sections of an experiment file, one typed table each: task, fleet, training, record.

They say what is wanted and do nothing themselves; whoever runs an experiment may import them. The sections ``stop`` and
``evaluate`` are `espalier.core.run_rounds`, ``world`` is `espalier.world`.
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

    From Python, ``model``, ``loss`` and metrics may be objects: an `nn.Module`, a class, a function. Where models are
    used with label priors, and where edges have test samples of their own, edges and devices have accuracy and loss
    alone.

    Attributes:
        dataset: A name (``espalier data list``), or a table for data of your own: ``{ kind = "csv", path = "mine.csv",
            label = "ill", owner = "clinic" }``.
        model: ``bag_of_words``, ``d2d_cnn``, ``fedavg_cnn``, ``lenet``, ``logistic``, ``lstm``, ``mlp``, ``mlp_d2d``,
            ``mlp_easf``, ``resnet18``, ``resnet_small``, ``squeezenet``, ``transformer``, ``unet``, or
            ``package.module:Class`` of your own, also from the current directory.
        dataset_options: What the dataset's loader takes besides its path.
        model_options: What the model's class or function takes, such as ``{ hidden = [32] }``.
        loss: ``cross_entropy``, ``mse``, ``pixel_cross_entropy`` (by default, the one of the data's kind) or your own
            ``package.module:function``: outputs and targets in, one loss per sample out.
        metrics: Measured of the global model on the whole test set: ``f1``, ``auc``, ``ece``, ``mae``, or your own
            functions, outputs and targets in, a number out. Simulated, ``f1``, ``auc`` and ``ece`` are also measured
            of every edge's and device's model on its own test distribution, exactly (your own functions need the
            samples themselves).
        sample_metrics: Means over samples: ``mae``, or your own functions, one number per sample out; simulated, they
            are measured of every edge's and device's model (the worst is the highest, as of errors).
        target: The ``score`` whose first reaching is measured as time to target.
        score: What ``target`` is of, and what methods are ranked by unless another measure is asked for.
        start: From which weights runs start: drawn by the seed, or those that the model has (as an `nn.Module` does).
        judged_on: For choosing settings, ``validation`` puts a fifth of the training data in the place of the test
            data.
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
        elif not isinstance(self.dataset, str):
            raise ConfigError(
                "task.dataset is a name or a table; data of your own stand beside: simulate(…, dataset=…)."
            )
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
    """How many devices and edges there are, and the share of them that works.

    Attributes:
        devices: Devices. With the partition ``owner`` each is one owner: fewer than there are owners are drawn by the
            seed.
        edges: Edge servers; devices are dealt to them evenly, unless the partition says where they are.
        tiers: Servers between edges and cloud: ``[10, 2]`` puts 10 above the edges and 2 above those.
        fraction: The share of an aggregator's children that works in a round.
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

    Attributes:
        precision: ``bfloat16`` lets wide convolutions multiply in it, where the processor has units for that; weights,
            and everything else, stay in float32. ``float64`` is for checking arithmetic, not for speed.
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
    """What is written of a run, and how often.

    Attributes:
        spans: Whether every node's training, sending and waiting is kept, for the timeline.
        models: Whose final models are kept: the root's for all, each cluster's, each edge's, each device's where it has
            one of its own.
        devices_bytes: Devices' own models are kept as long as they take no more than this in all.
        checkpoint_rounds: A checkpoint after every so many rounds.
        checkpoint_seconds: A checkpoint after every so many seconds of the host's clock.
        log: Loggers that get every evaluation: ``tensorboard``, ``wandb`` (offline unless ``$WANDB_MODE`` says
            otherwise) or ``mlflow``, each with where it writes after a colon: ``tensorboard:FOLDER``,
            ``wandb:PROJECT``, ``mlflow:STORE``.
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

"""What a device is asked to train, and what it hands back.

A `TrainerJob` is plain data: a start vector, the device's rows in a pool, an optimizer, a seed. Its result is
a function of the job alone; which other jobs are computed beside it, and where, does not change it.

Which rows it sees at which step is drawn from its seed alone. An epoch is one permutation of the job's rows cut into
mini-batches; the last may be smaller. All batches of a job are padded to one width, because kernels of equal shape are
what lets many clients run as one. A padded place repeats a row of its own batch and weighs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.code import is_own
from espalier.core.errors import ConfigError, nearest
from espalier.core.messages import LocalWork
from espalier.core.objectives import Contrast, Distillation, NearPrototypes
from espalier.core.seeds import stream
from espalier.core.statistics import Pool as Pool
from espalier.training.losses import adjustment

_NAMES = ("sgd", "adam")


@dataclass(frozen=True)
class Optimizer:
    """How a device steps: PyTorch's SGD or Adam, with PyTorch's meaning of every field.

    Any other is a subclass of `torch.optim.Optimizer` by its import path, made with ``lr`` and ``options``.
    """

    name: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def own(self) -> bool:
        """Whether it is given by its import path, and steps one client at a time."""
        return is_own(self.name)

    def __post_init__(self) -> None:
        """Refuse what PyTorch's optimizers would refuse, and what they would quietly ignore."""
        if not self.own and self.name not in _NAMES:
            raise ConfigError(
                f"optimizer.name is {self.name!r}; accepted: 'sgd', 'adam', 'package.module:Class'."
                f"{nearest(str(self.name), _NAMES)}"
            )
        if not 0.0 < self.lr < float("inf"):
            raise ConfigError(f"optimizer.lr is {self.lr!r}; a positive finite number is accepted.")
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"optimizer.momentum is {self.momentum!r}; a number in [0, 1) is accepted.")
        if not 0.0 <= self.weight_decay < float("inf"):
            raise ConfigError(f"optimizer.weight_decay is {self.weight_decay!r}; a finite number >= 0 is accepted.")
        if len(self.betas) != 2 or not all(0.0 <= b < 1.0 for b in self.betas):
            raise ConfigError(f"optimizer.betas is {self.betas!r}; two numbers in [0, 1) are accepted.")
        if not 0.0 < self.eps < float("inf"):
            raise ConfigError(f"optimizer.eps is {self.eps!r}; a positive finite number is accepted.")
        if self.name == "adam" and (self.momentum or self.nesterov):
            raise ConfigError("optimizer.momentum and optimizer.nesterov belong to 'sgd'; with 'adam' set betas.")
        if self.nesterov and not self.momentum:
            raise ConfigError("optimizer.nesterov is true but optimizer.momentum is 0; set a momentum above 0.")


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainerJob(LocalWork[Tensor]):
    """One device's local work, with its data: everything that the result depends on.

    ``start``, ``anchor``, ``correction`` and ``beside`` are flat vectors ``[spec.size]``, float32 (or float64, as
    ``start`` is). The anchor's term is over parameters; its gradient and the correction join the loss's before
    momentum, and weight decay does not touch them. ``optimizer_state`` is that of an earlier `Result`.

    Attributes:
        pool: Where the rows come from.
        rows: The device's rows in the pool, int64 ``[n]``.
        batch_size: Samples of a mini-batch; an epoch's last batch may be smaller and counts as a step.
        optimizer: May differ from job to job.
        seed: Key from `espalier.core.seeds.key`; batch order and dropout derive from it alone.
        unit: What an update is: a whole pass over ``rows``, or one mini-batch (the rows reshuffled and cycled).
    """

    pool: Pool
    rows: NDArray[np.int64]
    batch_size: int
    optimizer: Optimizer
    seed: int
    unit: Literal["epoch", "step"] = "epoch"

    @property
    def n_steps(self) -> int:
        """Mini-batch steps of this job."""
        if self.unit == "step":
            return self.updates
        return self.updates * -(-len(self.rows) // self.batch_size)

    def adjustment(self, n_classes: int) -> Tensor:
        """What a calibrated loss makes of outputs: factors, offsets ``[2, n_classes]``, in the start's arithmetic."""
        assert self.calibration is not None
        _, labels = self.pool.gather(torch.from_numpy(np.ascontiguousarray(self.rows)))
        return adjustment(labels, n_classes, self.calibration).to(self.start)

    @property
    def proximal(self) -> bool:
        """Whether the anchor takes part."""
        return self.anchor is not None and self.mu != 0.0

    @property
    def moves_unused(self) -> bool:
        """Whether also those parameters move that take no part in the loss."""
        return self.proximal or self.correction is not None

    @property
    def has_term(self) -> bool:
        """Whether the objective adds a term to the loss, of features or outputs."""
        return isinstance(self.objective, Contrast | Distillation | NearPrototypes)

    def moves(self, parameter: str) -> bool:
        """Tell whether a parameter is one of those that are trained."""
        return not self.trains or any(fnmatchcase(parameter, pattern) for pattern in self.trains)


@dataclass(frozen=True, eq=False)
class Result:
    """What a job gives: the trained vector and what was seen on the way.

    Attributes:
        vector: Flat model vector ``[spec.size]``; it may hold NaN or inf, the receiver judges.
        loss: Mean training loss over all samples seen (without the anchor's term).
        samples: Samples seen, repeats counted.
        steps: Mini-batch steps made.
        optimizer_state: Optimizer state where the job asked for it: SGD's momentum ``[n_params]``, Adam's
            ``[m | v | t]`` of size ``2·n_params + 1``, any other's tensors one after another.
    """

    vector: Tensor
    loss: float
    samples: int
    steps: int
    optimizer_state: Tensor | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class BatchSchedule:
    """The steps of one job.

    Attributes:
        rows: Pool rows of every step, int64 ``[steps, width]``, padded.
        sizes: Samples that count in every step, int64 ``[steps]``, at most ``width``.
    """

    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def samples(self) -> int:
        """Samples seen over all steps."""
        return int(self.sizes.sum())


def width(job: TrainerJob) -> int:
    """Padded mini-batch width: a function of the job alone, so that its chunk cannot change its bits.

    A device with fewer rows than a batch gets a width from a coarse ladder (at most a third wasted
    from eight samples up), so that devices of slightly different sizes can still run together.
    """
    n = len(job.rows)
    if n >= job.batch_size:
        return job.batch_size
    step = 4 if n <= 16 else 1 << (n.bit_length() - 2)
    return min(job.batch_size, -(-n // step) * step)


def schedule(job: TrainerJob) -> BatchSchedule:
    """Draw a job's mini-batches."""
    n, size, steps = len(job.rows), job.batch_size, job.n_steps
    per_epoch = -(-n // size)
    epochs = -(-steps // per_epoch)
    rng = stream(job.seed, "batches")
    order = np.stack([rng.permutation(job.rows) for _ in range(epochs)])
    wide = width(job)
    sizes = np.full(per_epoch, min(size, n), dtype=np.int64)
    sizes[-1] = n - (per_epoch - 1) * min(size, n)
    missing = per_epoch * wide - n
    if missing:
        last = order[:, n - int(sizes[-1]) :]
        order = np.concatenate([order, np.resize(last.T, (missing, epochs)).T], axis=1)
    rows = order.reshape(epochs * per_epoch, wide)[:steps]
    return BatchSchedule(rows, np.tile(sizes, epochs)[:steps])

"""Which rows a job sees at which step: drawn from the job's seed alone.

An epoch is one permutation of the job's rows cut into mini-batches; the last may be smaller. All
batches of a job are padded to one width, because kernels of equal shape are what lets many clients
run as one. A padded place repeats a row of its own batch and weighs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.core.seeds import stream
from espalier.training.work import TrainerJob


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

"""The training of chains of layers: one native call makes all steps of a client.

Under softmax cross-entropy and SGD (momentum, weight decay, an anchor, a correction, calibrated by offsets or not).
Each client is trained by itself, so its bits cannot depend on its neighbours, and a small model's weights stay in the
cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from espalier.core.params import Entry, ParamSpec
from espalier.training import native
from espalier.training.host import ROOM
from espalier.training.losses import PerSample, cross_entropy
from espalier.training.merged.chain import ChainLayer
from espalier.training.sequential import cast
from espalier.training.work import BatchSchedule, Result, TrainerJob, schedule, width

_BLOCK_BYTES = 16 << 20
"""Inputs gathered at once; more steps than that are more than one call."""


class ChainEngine:
    """Trains jobs of a chain, one client after the other, each by one native call."""

    def __init__(self, spec: ParamSpec, layers: tuple[ChainLayer, ...], trainable: Sequence[int]) -> None:
        """Prepare to train a chain.

        Args:
            spec: The model's tensors.
            layers: The chain.
            trainable: Indices of the entries that may change.
        """
        self._spec, self._layers = spec, layers
        self._trainable = [spec.entries[i] for i in trainable]
        self._used = {e for layer in layers for e in (layer.weight, layer.bias) if e is not None}

    @staticmethod
    def accepts(job: TrainerJob, loss: PerSample) -> bool:
        """Whether jobs like this one can be trained natively (the model being a chain)."""
        kernels = native.kernels()
        return (
            kernels is not None
            and loss is cross_entropy
            and job.optimizer.name == "sgd"
            and job.objective is None
            and (job.calibration is None or job.calibration.form != "restricted")
            and width(job) <= kernels.linear_rows
            and native.usable(job.start)
        )

    def run(self, job: TrainerJob) -> Result | None:
        """Train a job; None if its samples are not what the kernels take."""
        plan, vector = schedule(job), ROOM.vector(len(job.start)).copy_(job.start)
        trained = [e for e in self._trainable if job.moves(e.name) and (e in self._used or job.moves_unused)]
        momentum = self._recalled(job, trained) if job.optimizer.momentum else None
        offset = job.adjustment(self._layers[-1].weight.shape[0])[1] if job.calibration is not None else None
        spans = np.array([(e.start, e.stop) for e in trained], dtype=np.int64)
        links = (native.ChainLink * len(self._layers))(*(layer.link(frozenset(trained)) for layer in self._layers))
        anchor = job.anchor if job.proximal else None
        kept = [None if t is None else t.to(vector).contiguous() for t in (anchor, job.correction, offset)]
        training = native.ChainTraining(
            vector.data_ptr(), _at(momentum), *map(_at, kept), links=links, spans=spans.ctypes.data,
            n_links=len(links), n_spans=len(spans), size=self._spec.size, width=plan.rows.shape[1],
            lr=job.optimizer.lr, mu=job.mu, decay=job.optimizer.weight_decay,
            momentum_rate=job.optimizer.momentum, nesterov=job.optimizer.nesterov,
        )  # fmt: skip
        loss = self._steps(job, plan, training)
        if loss is None:
            return None
        memory = None
        if job.keep_optimizer_state and momentum is not None:
            memory = momentum[: self._spec.n_params].clone()
        return Result(vector, loss / plan.samples, plan.samples, len(plan.sizes), memory)

    def _steps(self, job: TrainerJob, plan: BatchSchedule, training: native.ChainTraining) -> float | None:
        """Make all steps; return the summed loss."""
        kernels = native.kernels()
        assert kernels is not None
        loss, first, steps = 0.0, 0, len(plan.sizes)
        block = max(1, _BLOCK_BYTES // (4 * training.width * torch.Size(self._layers[0].inputs).numel()))
        while first < steps:
            count = min(block, steps - first)
            x, y = job.pool.gather(torch.from_numpy(plan.rows[first : first + count].reshape(-1)))
            x = cast(x, torch.float32)
            if x[0].numel() != torch.Size(self._layers[0].inputs).numel() or x.dtype != torch.float32:
                return None
            if y.dtype != torch.int64 or y.dim() != 1:
                return None
            x, y, sizes = x.contiguous(), y.contiguous(), np.ascontiguousarray(plan.sizes[first : first + count])
            training.x, training.labels, training.sizes = x.data_ptr(), y.data_ptr(), sizes.ctypes.data
            training.steps = count
            if not kernels.train(training):
                return None
            loss += training.loss
            first += count
        return loss

    def _recalled(self, job: TrainerJob, trained: Sequence[Entry]) -> Tensor:
        """Return the momentum with which a job begins, ``[spec.size]``, zero for what is not trained."""
        momentum = torch.zeros_like(job.start)
        if job.optimizer_state is not None:
            for e in trained:
                momentum[e.start : e.stop] = job.optimizer_state[e.start : e.stop]
        return momentum


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

"""Models that are chains of layers: the bundled MLPs, LeNet, the FedAvg CNN.

Linear layers and convolutions of stride 1, with ReLU (and 2×2 max-pooling behind a convolution) between them. While the
forward pass is recorded, `ChainTracker` sees whether it is nothing else; how the module is written does not matter.

Under softmax cross-entropy and SGD (momentum, weight decay, an anchor, a correction, calibrated by offsets or not) one
native call makes all steps of a client (`ChainEngine`). Each client is trained by itself, so its bits cannot depend on
its neighbours, and a small model's weights stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.core.params import Entry, ParamSpec
from espalier.training import native
from espalier.training.host import ROOM
from espalier.training.losses import PerSample, cross_entropy
from espalier.training.merged import conv
from espalier.training.merged.fusion import layer_step
from espalier.training.merged.plan import leaves
from espalier.training.merged.stacked import Stacked
from espalier.training.sequential import cast
from espalier.training.work import BatchSchedule, Result, TrainerJob, schedule, width

_FLATTEN: frozenset[Any] = frozenset(
    [torch.flatten, torch.reshape, torch.Tensor.flatten, torch.Tensor.reshape, torch.Tensor.view]
)


@dataclass(frozen=True)
class ChainLayer:
    """One layer of a chain.

    Attributes:
        weight: The weights' place in the flat vector.
        bias: The biases'; None if there are none.
        inputs: Shape of one input, ``(features,)`` or ``(channels, height, width)``.
        padding: Of a convolution.
        relu: ReLU follows, without pooling.
        pooled: ReLU and 2×2 max-pooling follow.
    """

    weight: Entry
    bias: Entry | None
    inputs: tuple[int, ...]
    padding: tuple[int, int] = (0, 0)
    relu: bool = False
    pooled: bool = False

    @property
    def wide(self) -> bool:
        """Whether it is a convolution of so many channels that bfloat16 pays."""
        return len(self.inputs) == 3 and conv.prefer_channels_last([self.weight.shape], torch.float32)

    def link(self, trained: frozenset[Entry]) -> native.ChainLink:
        """Return it as the kernels read it."""
        image = self.inputs if len(self.inputs) == 3 else (self.inputs[0], 1, 1)
        window = self.weight.shape[2:] or (1, 1)
        place = -1 if self.bias is None else self.bias.start
        moves = self.weight in trained, self.bias in trained
        return native.ChainLink(
            len(self.inputs) == 3, self.weight.start, place, *moves, self.relu, self.pooled,
            *image, self.weight.shape[0], *window, *self.padding,
        )  # fmt: skip


class ChainTracker:
    """Whether a recorded forward pass is a chain, and of which layers."""

    def __init__(self, x: Tensor) -> None:
        self._now: Tensor | None = x  # None: it is no chain
        self._layers: list[ChainLayer] = []
        self._left: set[str] = set()  # what has followed the last layer

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take note of a call."""
        if self._now is None or (result is not None and not any(isinstance(r, Tensor) for r in leaves(result))):
            return  # asking for a shape changes nothing
        known = isinstance(result, Tensor) and bool(args) and args[0] is self._now
        self._now = result if known and self._takes(func, args, kwargs, result) else None

    def layers(self, out: Tensor) -> tuple[ChainLayer, ...] | None:
        """Return the layers of a forward pass that gave ``out``; None: it is no chain."""
        if self._now is not out or out.dim() != 2 or not self._layers or "pool" in self._left:
            return None
        return (*self._layers[:-1], self._closed())

    def _takes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> bool:
        x: Tensor = args[0]
        if func in _FLATTEN:
            return result.shape == (x.shape[0], x[0].numel())
        if func in (F.linear, F.conv2d):
            return self._opens(func, x, *args[1:], **kwargs)
        step = layer_step(func, args, kwargs)
        if step is None or not self._layers or step in self._left:
            return False
        if step == "pool" and len(self._layers[-1].inputs) == 1:
            return False
        self._left.add(step)
        return True

    def _opens(self, func: Any, x: Tensor, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> bool:
        """Take the next layer, if it and what followed the last one can be computed."""
        given = [t for t in (weight, bias) if t is not None]
        if not all(isinstance(t, Stacked) and t.slot is not None for t in given) or not x.is_contiguous():
            return False
        padding = (0, 0)
        if func is F.conv2d:
            found = conv.chain_padding(weight, *args, **kwargs)
            if found is None or x.dim() != 4:
                return False
            padding = found
        elif x.dim() != 2:
            return False
        if self._layers:
            if self._left == {"pool"}:
                return False
            self._layers[-1] = self._closed()
        self._left = set()
        entries = [t.slot.entry for t in given]
        self._layers.append(
            ChainLayer(entries[0], entries[1] if bias is not None else None, tuple(x.shape[1:]), padding)
        )
        return True

    def _closed(self) -> ChainLayer:
        return replace(self._layers[-1], relu=self._left == {"relu"}, pooled=self._left == {"relu", "pool"})


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

"""Optimizer steps on K clients' stacked parameters, each client with its own learning rate.

An update owns the *sinks*, one tensor ``[K, n]`` per parameter, into which a backward pass adds
gradients. What belongs to the gradient but not to the loss (momentum, weight decay, the anchor's pull, a
correction) is put there before the backward pass, so that nothing is added twice over memory. Plain SGD needs no
gradient at all: its sinks are the parameters, and the loss is weighted by minus the learning rate.

The arithmetic for one client never depends on K or on the other clients' rates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from espalier.training.work import TrainerJob

Span = tuple[int, int]
"""A parameter's place in the flat vector."""


class Update(ABC):
    """One optimizer over parameters ``values[i] [K, n_i]``, changed in place.

    Attributes:
        sinks: Where gradients are added, shaped like ``values``.
        stale: The sinks hold nothing of use when a backward pass begins: gradients may overwrite.
        scale: Factor ``[K]`` of every client's loss in the backward pass.
    """

    def __init__(self, jobs: Sequence[TrainerJob], values: list[Tensor], spans: Sequence[Span]) -> None:
        dtype = values[0].dtype
        self.values = values
        self.spans = spans
        self.lr = torch.tensor([[j.optimizer.lr] for j in jobs], dtype=dtype)
        self.scale = torch.ones(len(jobs), dtype=dtype)
        self.sinks = values
        self.stale = False
        self._decay = jobs[0].optimizer.weight_decay
        self._anchors: list[Tensor] | None = None
        if jobs[0].proximal:
            self.mu = torch.tensor([[j.mu] for j in jobs], dtype=dtype)
            self._anchors = _stacked([j.anchor for j in jobs], spans, dtype)
        self._corrections: list[Tensor] | None = None
        if jobs[0].correction is not None:
            self._corrections = _stacked([j.correction for j in jobs], spans, dtype)

    @abstractmethod
    def before(self) -> None:
        """Prepare the sinks for a backward pass."""

    @abstractmethod
    def after(self) -> None:
        """Step, the gradients being in the sinks."""

    def shrink(self, clients: int) -> None:
        """Go on with the first ``clients`` clients only."""
        self.values = _first(self.values, clients)
        self.sinks = _first(self.sinks, clients)
        self.lr, self.scale = self.lr[:clients], self.scale[:clients]
        if self._anchors is not None:
            self._anchors, self.mu = _first(self._anchors, clients), self.mu[:clients]
        if self._corrections is not None:
            self._corrections = _first(self._corrections, clients)

    def state(self, client: int, n_params: int) -> Tensor | None:
        """What a client (also one cut off) needs to go on later, packed; None if there is nothing."""
        return None

    def _fill(self) -> None:
        """Put weight decay, the anchor's pull and the correction into the sinks, replacing what they hold."""
        for i, (sink, value) in enumerate(zip(self.sinks, self.values, strict=True)):
            if self._decay:
                torch.mul(value, self._decay, out=sink)
            if self._anchors is not None:
                pull = torch.sub(value, self._anchors[i]).mul_(self.mu)
                sink.add_(pull) if self._decay else sink.copy_(pull)
            if self._corrections is not None:
                fresh = not self._decay and self._anchors is None
                sink.copy_(self._corrections[i]) if fresh else sink.add_(self._corrections[i])

    @property
    def _filled(self) -> bool:
        return bool(self._decay) or self._anchors is not None or self._corrections is not None


class Plain(Update):
    """SGD without momentum, decay or anchor: the backward pass itself is the step, up to a correction."""

    def __init__(self, jobs: Sequence[TrainerJob], values: list[Tensor], spans: Sequence[Span]) -> None:
        super().__init__(jobs, values, spans)
        self.scale = -self.lr.squeeze(1)

    def before(self) -> None:
        """Nothing to prepare."""

    def after(self) -> None:
        """Step by the correction, the loss's gradient being in the parameters."""
        for value, correction in zip(self.values, self._corrections or (), strict=False):
            value.addcmul_(correction, self.lr, value=-1.0)


class Sgd(Update):
    """SGD with any of momentum, Nesterov's variant, weight decay and an anchor."""

    def __init__(self, jobs: Sequence[TrainerJob], values: list[Tensor], spans: Sequence[Span]) -> None:
        super().__init__(jobs, values, spans)
        self._momentum, self._nesterov = jobs[0].optimizer.momentum, jobs[0].optimizer.nesterov
        self._buffers: list[Tensor] | None = None
        if self._momentum:
            self._buffers = [_recall(jobs, span, 0, values[0].dtype) for span in spans]
        self._kept = self._buffers
        if self._buffers is not None and not self._nesterov:
            self.sinks = self._buffers
        else:
            self.sinks = [torch.empty_like(v) for v in values]
            self.stale = not self._filled

    def before(self) -> None:
        """Let the momentum decay, or fill the gradients with decay and pull."""
        if self.sinks is not self._buffers:
            self._fill()
            return
        for i, (buffer, value) in enumerate(zip(self._buffers, self.values, strict=True)):
            buffer.mul_(self._momentum)
            if self._decay:
                buffer.add_(value, alpha=self._decay)
            if self._anchors is not None:
                buffer.add_(torch.sub(value, self._anchors[i]).mul_(self.mu))
            if self._corrections is not None:
                buffer.add_(self._corrections[i])

    def after(self) -> None:
        """``w ← w − lr·d`` with ``d`` the gradient, the momentum, or Nesterov's mixture."""
        for i, (sink, value) in enumerate(zip(self.sinks, self.values, strict=True)):
            if self._nesterov and self._buffers is not None:
                buffer = self._buffers[i].mul_(self._momentum).add_(sink)
                sink.add_(buffer, alpha=self._momentum)
            value.addcmul_(sink, self.lr, value=-1.0)

    def shrink(self, clients: int) -> None:
        """Go on with the first ``clients`` clients only."""
        merged = self.sinks is self._buffers
        super().shrink(clients)
        if self._buffers is not None:
            self._buffers = self.sinks if merged else _first(self._buffers, clients)

    def state(self, client: int, n_params: int) -> Tensor | None:
        """The momentum ``[n_params]``."""
        return None if self._kept is None else _pack(self._kept, self.spans, client, n_params)


class Adam(Update):
    """PyTorch's Adam (weight decay as an L2 term), every client with its own step count."""

    def __init__(self, jobs: Sequence[TrainerJob], values: list[Tensor], spans: Sequence[Span], n_params: int) -> None:
        super().__init__(jobs, values, spans)
        self._betas, self._eps = jobs[0].optimizer.betas, jobs[0].optimizer.eps
        dtype = values[0].dtype
        self._mean = [_recall(jobs, span, 0, dtype) for span in spans]
        self._square = [_recall(jobs, span, n_params, dtype) for span in spans]
        self._steps = torch.tensor(
            [[0.0 if j.optimizer_state is None else float(j.optimizer_state[2 * n_params])] for j in jobs],
            dtype=torch.float64,
        )
        self._kept = (self._mean, self._square, self._steps)
        self.sinks = [torch.empty_like(v) for v in values]
        self.stale = not self._filled

    def before(self) -> None:
        """Fill the gradients with decay and pull."""
        self._fill()

    def after(self) -> None:
        """``w ← w − lr·m̂/(√v̂ + eps)``."""
        b1, b2 = self._betas
        self._steps += 1
        rate = (self.lr / (1 - b1**self._steps)).to(self.lr.dtype)
        root = (1 - b2**self._steps).sqrt().to(self.lr.dtype)
        for sink, value, mean, square in zip(self.sinks, self.values, self._mean, self._square, strict=True):
            mean.lerp_(sink, 1 - b1)
            square.mul_(b2).addcmul_(sink, sink, value=1 - b2)
            below = square.sqrt().div_(root).add_(self._eps)
            value.addcdiv_(mean * rate, below, value=-1.0)

    def shrink(self, clients: int) -> None:
        """Go on with the first ``clients`` clients only."""
        super().shrink(clients)
        self._mean, self._square = _first(self._mean, clients), _first(self._square, clients)
        self._steps = self._steps[:clients]

    def state(self, client: int, n_params: int) -> Tensor | None:
        """Mean, mean square and step count, ``[2·n_params + 1]``."""
        means, squares, steps = self._kept
        mean, square = (_pack(t, self.spans, client, n_params) for t in (means, squares))
        return torch.cat([mean, square, steps[client].to(mean.dtype)])


class Mixed(Update):
    """Steps pairs of clients ``v, w`` by an update of their own, and lets ``alpha v + (1 - alpha) w, w`` be run."""

    def __init__(self, inner: Update, run: list[Tensor], alphas: Sequence[float]) -> None:
        self._inner, self._run, self.kept = inner, run, inner.values
        self._alpha = torch.tensor(alphas, dtype=run[0].dtype).unsqueeze(1)
        self._follow()

    def before(self) -> None:
        """Prepare the sinks."""
        self._inner.before()

    def after(self) -> None:
        """Step both, then mix them again."""
        self._inner.after()
        for run, value in zip(self._run, self._inner.values, strict=True):
            run[0::2] = self._alpha * value[0::2] + (1.0 - self._alpha) * value[1::2]
            run[1::2] = value[1::2]

    def shrink(self, clients: int) -> None:
        """Go on with the first ``clients`` clients only: whole pairs, which are equally long."""
        self._inner.shrink(clients)
        self._run, self._alpha = _first(self._run, clients), self._alpha[: clients // 2]
        self._follow()

    def state(self, client: int, n_params: int) -> Tensor | None:
        """That of the update inside."""
        return self._inner.state(client, n_params)

    def _follow(self) -> None:
        inner = self._inner
        self.values, self.sinks, self.stale = inner.values, inner.sinks, inner.stale
        self.scale = inner.scale * torch.cat([self._alpha, torch.ones_like(self._alpha)], 1).view(-1)


def update_for(
    jobs: Sequence[TrainerJob], values: list[Tensor], spans: Sequence[Span], n_params: int, *, inside: bool
) -> Update:
    """Choose the update of jobs that share an optimizer up to the learning rate.

    Args:
        jobs: K jobs; all proximal or none, all with a correction or none.
        values: Parameters ``[K, n]``, stepped in place.
        spans: Their places in the flat vector.
        n_params: Size of the flat vector's trainable part.
        inside: Whether the step may happen inside the backward pass (every parameter is used once).
    """
    optimizer = jobs[0].optimizer
    if optimizer.name == "adam":
        return Adam(jobs, values, spans, n_params)
    if inside and not (optimizer.momentum or optimizer.weight_decay or jobs[0].proximal):
        return Plain(jobs, values, spans)
    return Sgd(jobs, values, spans)


def state_size(job: TrainerJob, n_params: int) -> int:
    """Elements of the memory that a job's optimizer keeps."""
    if job.optimizer.name == "adam":
        return 2 * n_params + 1
    return n_params if job.optimizer.momentum else 0


def _stacked(vectors: Sequence[Tensor | None], spans: Sequence[Span], dtype: torch.dtype) -> list[Tensor]:
    """Stack the parameters of K flat vectors, ``[K, n]`` each."""
    return [torch.stack([v[a:b] for v in vectors if v is not None]).to(dtype) for a, b in spans]


def _first(tensors: list[Tensor], clients: int) -> list[Tensor]:
    return [t[:clients] for t in tensors]


def _recall(jobs: Sequence[TrainerJob], span: Span, offset: int, dtype: torch.dtype) -> Tensor:
    """Stack a part of the jobs' memories ``[K, n]``; a fresh one is zeros."""
    a, b = span[0] + offset, span[1] + offset
    fresh = torch.zeros(b - a, dtype=dtype)
    return torch.stack([fresh if j.optimizer_state is None else j.optimizer_state[a:b].to(dtype) for j in jobs])


def _pack(tensors: list[Tensor], spans: Sequence[Span], client: int, size: int) -> Tensor:
    packed = tensors[0].new_zeros(size)
    for tensor, (a, b) in zip(tensors, spans, strict=True):
        packed[a:b] = tensor[client]
    return packed

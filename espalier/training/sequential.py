"""One client at a time: the path of models that cannot be merged, and the plainest statement of training."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from espalier.core.objectives import Mixture
from espalier.core.params import Entry, ParamSpec
from espalier.core.seeds import torch_seed
from espalier.training.losses import PerSample, adjusted, checked
from espalier.training.merged import dropout
from espalier.training.merged.dropout import DropoutNoise
from espalier.training.objectives import Features, Terms, alone, catching, mixed, mixed_start
from espalier.training.torch_optimizer import TorchOptimizer
from espalier.training.updates import Update, update_for
from espalier.training.work import BatchSchedule, Result, TrainerJob, schedule, width

_GLOBAL_GENERATOR = threading.Lock()


def tensors(module: nn.Module, spec: ParamSpec) -> Iterator[tuple[Entry, Tensor]]:
    """Yield entries and the module's tensors."""
    state = module.state_dict(keep_vars=True)
    for entry in spec.entries:
        yield entry, state[entry.name]


def put(module: nn.Module, spec: ParamSpec, vector: Tensor) -> None:
    """Copy a flat vector ``[spec.size]`` into a module of the same floating type."""
    with torch.no_grad():
        for entry, tensor in tensors(module, spec):
            tensor.copy_(vector[entry.start : entry.stop].view(entry.shape))


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a floating tensor in another floating type, anything else as it is."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class Seeded(TorchFunctionMode):
    """Answers dropout calls from a job's own stream while one client's samples run; without one, drops nothing.

    A batch of one value per channel, such as a device's last sample, has no variance: batch norm takes the running one.
    """

    def __init__(self, noise: DropoutNoise | None, samples: int) -> None:
        super().__init__()
        self._noise = noise
        self.samples = samples

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer one call."""
        kwargs = kwargs or {}
        if func is functional.batch_norm and args[0].numel() == args[0].shape[1] and kwargs.get("training"):
            kwargs = {**kwargs, "training": args[1] is None}
        if func not in dropout.FUNCTIONS:
            return func(*args, **kwargs)
        return self._dropout(func, *args, **kwargs)

    def _dropout(
        self, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0 or self._noise is None:
            return input
        axis = next((a for a, size in enumerate(input.shape) if size % self.samples == 0), None)
        if axis is None:
            dropped: Tensor = func(input, p, training, inplace)
            return dropped
        x = input.movedim(axis, 0)
        rest = x.shape[1:] if func in dropout.ELEMENTWISE else (x.shape[1], *(1 for _ in x.shape[2:]))
        return (x * self._noise.keep_first(self.samples, x.shape[0], rest, p, x)).movedim(0, axis)


@dataclass(slots=True)
class _Descent:
    """A training under way: the module runs ``run``, steps move ``own`` (the same vector, unless it is mixed)."""

    job: TrainerJob
    run: Tensor
    own: Tensor
    factor: float = 1.0
    total: float = 0.0
    update: Update | None = None
    plan: BatchSchedule = field(init=False)

    def __post_init__(self) -> None:
        self.plan = schedule(self.job)

    @property
    def mixes(self) -> bool:
        """Whether what is run is not what is stepped."""
        return self.run is not self.own

    def result(self, n_params: int) -> Result:
        """Return what came of it."""
        assert self.update is not None
        memory = self.update.state(0, n_params) if self.job.keep_optimizer_state else None
        samples = self.plan.samples
        return Result(self.own, self.total / samples, samples, len(self.plan.sizes), memory)


class Sequential:
    """Trains jobs one by one with a module of its own."""

    def __init__(self, module: nn.Module, spec: ParamSpec, loss: PerSample) -> None:
        self._module = copy.deepcopy(module).train()
        self._spec = spec
        self._loss = loss
        self._draws: bool | None = None
        self._twin: Sequential | None = None
        self._features = Features(module, spec)

    def run(self, job: TrainerJob) -> Result:
        """Train one job."""
        if self._draws is False:
            return self._train(job)
        # A model with random operations of its own draws from torch's global generator: one at a time.
        with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(job.seed, "torch"))
            before = torch.get_rng_state()
            result = self._train(job)
            self._draws = bool(self._draws) or not torch.equal(before, torch.get_rng_state())
            return result

    def _train(self, job: TrainerJob) -> Result:
        if isinstance(job.objective, Mixture):
            return self._mixed(job, job.objective.alpha)
        vector = job.start.clone()
        descent = _Descent(job, vector, vector)
        for _ in self._steps(descent):
            pass
        return descent.result(self._spec.n_params)

    def _mixed(self, job: TrainerJob, alpha: float) -> Result:
        """Train v where it is mixed with w, and w beside it on the same mini-batches."""
        assert job.beside is not None
        self._twin = self._twin or Sequential(self._module, self._spec, self._loss)
        n = self._spec.n_params
        mine = _Descent(job, mixed_start(job, n), job.start.clone(), alpha)
        other = job.beside.clone()
        for _ in zip(self._steps(mine), self._twin._steps(_Descent(alone(job), other, other)), strict=True):
            mine.run[:n] = mixed(mine.own[:n], other[:n], alpha)
        mine.own[n:] = mine.run[n:]
        return mine.result(n)

    def _steps(self, descent: _Descent) -> Iterator[None]:
        """Make a training's steps, one after each yield."""
        job, vector = descent.job, descent.run
        terms: Tensor | None = None
        mode = Seeded(DropoutNoise([job.seed], width(job)), 1)
        extra = Terms([job], self._features) if job.has_term else None
        self._attach(vector)
        with catching(self._module, self._spec, wanted=extra is not None and extra.of_features) as caught:
            for rows, size in zip(descent.plan.rows, descent.plan.sizes.tolist(), strict=True):
                x, y = job.pool.gather(torch.from_numpy(rows[:size].copy()))
                if descent.update is not None:
                    descent.update.before()
                    if descent.update.stale:
                        torch._foreach_zero_(descent.update.sinks)
                mode.samples = size
                with mode:
                    answers = outputs = self._module(cast(x, vector.dtype))
                if job.calibration is not None:
                    terms = job.adjustment(outputs.shape[1]).unsqueeze(0) if terms is None else terms
                    outputs = adjusted(outputs, terms)
                losses = checked(self._loss(outputs, cast(y, vector.dtype)), size)
                learnt = losses
                if extra is not None:
                    seen = caught.take(size) if extra.of_features else answers
                    learnt = losses + extra.of(seen, rows[None, :size])
                torch.autograd.backward(
                    [learnt.sum() * (descent.factor / size) if descent.mixes else learnt.sum() / size]
                )
                descent.total += float(losses.detach().sum())
                if descent.update is None:
                    descent.update = self._update(job, descent.own)
                descent.update.after()
                yield
        self._detach(vector)

    def class_sums(self, job: TrainerJob) -> Result:
        """Train nothing: return what prototypes are made of."""
        return self._features.class_sums(job)

    def _attach(self, vector: Tensor) -> None:
        """Let the module's parameters be views of the vector, and copy its buffers."""
        if next((p.dtype for p in self._module.parameters()), vector.dtype) != vector.dtype:
            self._module.to(vector.dtype)
        for entry, tensor in tensors(self._module, self._spec):
            piece = vector[entry.start : entry.stop].view(entry.shape)
            if entry.stop <= self._spec.n_params:
                tensor.data, tensor.grad = piece, None
            else:
                tensor.copy_(piece)

    def _update(self, job: TrainerJob, vector: Tensor) -> Update:
        """Build the update after the first backward pass, which shows what takes part in the loss."""
        state = self._module.state_dict(keep_vars=True)
        entries = [
            e
            for e in self._spec.parameters
            if job.moves(e.name)
            and (state[e.name].grad is not None or (job.moves_unused and state[e.name].requires_grad))
        ]
        spans = [(e.start, e.stop) for e in entries]
        values = [vector[a:b].unsqueeze(0) for a, b in spans]
        update: Update
        if job.optimizer.own:
            update = TorchOptimizer(job, values, spans, [state[e.name] for e in entries])
        else:
            update = update_for([job], values, spans, self._spec.n_params, inside=False)
        update.before()
        for e, sink in zip(entries, update.sinks, strict=True):
            first, tensor = state[e.name].grad, state[e.name]
            if update.stale:
                sink.zero_()
            if first is not None:
                sink.add_(first.reshape(1, -1))
            tensor.grad = sink.view(e.shape)
        return update

    def _detach(self, vector: Tensor) -> None:
        """Copy the buffers back into the vector and let go of it."""
        for entry, tensor in tensors(self._module, self._spec):
            if entry.stop > self._spec.n_params:
                vector[entry.start : entry.stop] = tensor.detach().reshape(-1)
        for parameter in self._module.parameters():
            parameter.data, parameter.grad = parameter.data.clone(), None

"""Small training problems, and training as a textbook writes it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from espalier.core.params import ParamSpec
from espalier.core.seeds import key
from espalier.training.losses import Loss, resolve
from espalier.training.models import build
from espalier.training.work import Optimizer, TrainerJob, schedule


class Memory:
    """A pool of two tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.x.index_select(0, rows), self.y.index_select(0, rows)


@dataclass(frozen=True)
class Case:
    """A bundled model at a size that a test can afford."""

    name: str
    shape: tuple[int, ...]
    outputs: int
    kind: str = "classification"
    options: dict[str, Any] = field(default_factory=dict)
    heavy: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def loss(self) -> str:
        return {"classification": "cross_entropy", "regression": "mse", "segmentation": "pixel_cross_entropy"}[
            self.kind
        ]

    def module(self) -> nn.Module:
        return build(self.name, input_shape=self.shape, n_classes=self.outputs, **self.options)

    def pool(self, samples: int) -> Memory:
        g = torch.Generator().manual_seed(5)
        if "vocabulary" in self.options:
            x = torch.randint(0, self.options["vocabulary"], (samples, *self.shape), generator=g)
        else:
            x = torch.randn(samples, *self.shape, generator=g)
        if self.kind == "regression":
            return Memory(x, torch.randn(samples, self.outputs, generator=g))
        tail = self.shape[1:] if self.kind == "segmentation" else ()
        return Memory(x, torch.randint(0, self.outputs, (samples, *tail), generator=g))


CASES = [
    Case("logistic", (1, 4, 4), 5),
    Case("mlp", (1, 5, 5), 5, options={"hidden": (12, 7)}),
    Case("mlp_easf", (1, 4, 4), 5, heavy=True),
    Case("mlp_d2d", (9,), 6, "regression", {"width": 13}),
    Case("lenet", (1, 8, 8), 5),
    Case("fedavg_cnn", (1, 4, 4), 5, heavy=True),
    Case("d2d_cnn", (3, 16, 16), 5),
    Case("bag_of_words", (6,), 5, options={"vocabulary": 11, "embedding": 5}),
    Case("lstm", (6,), 5, options={"vocabulary": 11, "embedding": 5, "hidden": 7}),
    Case("transformer", (6,), 5, options={"vocabulary": 11, "size": 12, "heads": 3, "dropout": 0.0}),
    Case("resnet_small", (3, 8, 8), 5, options={"width": 4}),
    Case("resnet_small", (3, 16, 16), 5, options={"width": 4, "stride": 2}),
    Case("resnet18", (1, 4, 4), 5, heavy=True),
    Case("squeezenet", (1, 16, 16), 5, options={"dropout": 0.0}, heavy=True),
    Case("unet", (1, 8, 8), 3, "segmentation", {"width": 4, "depth": 2}),
]


def starts(module: nn.Module, count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Different models near a module's own."""
    spec = ParamSpec.of(module)
    own = spec.flatten(module.state_dict(), dtype)
    found = []
    for i in range(count):
        noise = torch.randn(spec.n_params, generator=torch.Generator().manual_seed(i), dtype=dtype)
        vector = own.clone()
        vector[: spec.n_params] += 0.05 * noise
        found.append(vector)
    return found


def make(
    module: nn.Module,
    pool: Memory,
    sizes: list[int],
    batch: int = 4,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> list[TrainerJob]:
    """One job per size: own rows, own start, own seed; ``options`` may be functions of the job's number."""
    at = np.cumsum([0, *sizes])
    vectors = starts(module, len(sizes), dtype)
    jobs = []
    for i in range(len(sizes)):
        given = {k: v(i) if callable(v) else v for k, v in options.items()}
        given.setdefault("optimizer", Optimizer(lr=0.05 * (1 + 0.2 * i)))
        rows = np.arange(at[i], at[i + 1], dtype=np.int64)
        jobs.append(
            TrainerJob(start=vectors[i], pool=pool, rows=rows, batch_size=batch, seed=key(7, "job", i), **given)
        )
    return jobs


def calibrated(job: TrainerJob, outputs: Tensor) -> Tensor:
    """Logits as a loss sees them that knows the job's labels, label by label."""
    assert job.calibration is not None
    labels, tau = job.pool.gather(torch.from_numpy(job.rows))[1], job.calibration.tau
    made = []
    for c in range(outputs.shape[1]):
        n, share = int((labels == c).sum()), float((labels == c).double().mean())
        if job.calibration.form == "restricted":
            made.append(outputs[:, c] * (1.0 if n else tau))
        elif job.calibration.form == "margins":
            made.append(outputs[:, c] - tau * max(n, 1e-8) ** -0.25)
        else:
            mixed = (1 - job.calibration.smoothing) * share + job.calibration.smoothing / outputs.shape[1]
            made.append(outputs[:, c] + tau * math.log(mixed))
    return torch.stack(made, 1)


@dataclass
class Textbook:
    """Training with nn.Module, autograd and torch.optim; the only thing shared is the order of the batches."""

    module: nn.Module
    loss: Loss

    def run(self, job: TrainerJob) -> tuple[Tensor, float]:
        dtype = job.start.dtype
        spec = ParamSpec.of(self.module)
        model = copy.deepcopy(self.module).to(dtype).train()
        state = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for e in spec.entries:
                if e.stop > spec.n_params and isinstance(state[e.name], nn.Parameter):
                    continue  # a second name of a parameter
                state[e.name].copy_(job.start[e.start : e.stop].view(e.shape))
        optimizer = self.optimizer(job, model)
        per_sample = resolve(self.loss)
        plan = schedule(job)
        total = 0.0
        for rows, size in zip(plan.rows, plan.sizes, strict=True):
            x, y = job.pool.gather(torch.from_numpy(rows[:size].copy()))
            x, y = (t.to(dtype) if t.is_floating_point() else t for t in (x, y))
            optimizer.zero_grad()
            outputs = model(x)
            if job.calibration is not None:
                outputs = calibrated(job, outputs)
            losses = per_sample(outputs, y)
            objective = losses.mean()
            if job.anchor is not None:
                flat = torch.cat([p.reshape(-1) for p in model.parameters()])
                objective = objective + job.mu / 2 * (flat - job.anchor[: spec.n_params]).square().sum()
            if job.correction is not None:
                flat = torch.cat([p.reshape(-1) for p in model.parameters()])
                objective = objective + flat @ job.correction[: spec.n_params]
            objective.backward()
            for name, parameter in model.named_parameters():
                if not any(fnmatchcase(name, pattern) for pattern in job.trains or ["*"]):
                    parameter.grad = None
            optimizer.step()
            total += float(losses.detach().sum())
        return spec.flatten(model.state_dict(), dtype), total / plan.samples

    def optimizer(self, job: TrainerJob, model: nn.Module) -> torch.optim.Optimizer:
        o = job.optimizer
        if o.own:
            kind = getattr(torch.optim, o.name.partition(":")[2])
            made: torch.optim.Optimizer = kind(model.parameters(), lr=o.lr, **o.options)
            return made
        if o.name == "adam":
            return torch.optim.Adam(model.parameters(), o.lr, o.betas, o.eps, o.weight_decay)
        return torch.optim.SGD(
            model.parameters(), o.lr, momentum=o.momentum, weight_decay=o.weight_decay, nesterov=o.nesterov
        )


def distance(found: Tensor, expected: Tensor, start: Tensor) -> float:
    """Error relative to how far training went."""
    return float((found - expected).norm() / (expected - start).norm())

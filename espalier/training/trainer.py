"""The trainer: jobs in, results out, in order, many clients at once."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from espalier.core.errors import ConfigError, TrainingError
from espalier.core.params import ParamSpec
from espalier.core.seeds import torch_seed
from espalier.training.allocator import keep_pages
from espalier.training.losses import Loss, resolve
from espalier.training.merged.engine import Engine
from espalier.training.merged.probe import Plan, example, probe, rows_of
from espalier.training.merged.standin import Unsupported
from espalier.training.schedule import width
from espalier.training.sequential import Sequential
from espalier.training.updates import memory_size
from espalier.training.work import Job, Result


class FallbackWarning(UserWarning):
    """A model is trained one client at a time, because it cannot be merged."""


class Trainer:
    def __init__(self, module: nn.Module, loss: Loss, *, workers: int = 1, chunk: int | None = None, batched: bool = True) -> None:
        self.module = copy.deepcopy(module)
        self.spec = ParamSpec.of(self.module)
        self._loss = resolve(loss)
        self.batched = batched
        self.why_not = None if batched else "batched=False"
        self.chunk = chunk
        self._engines = {}
        self._seq = Sequential(self.module, self.spec, self._loss)
        keep_pages()

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        for at in range(0, len(jobs), self.chunk or 10):
            part = jobs[at: at + (self.chunk or 10)]
            n = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                yield from self._run(part)
            finally:
                torch.set_num_threads(n)

    def _run(self, jobs):
        if self.batched:
            d = jobs[0].start.dtype
            if d not in self._engines:
                x, y = example(*jobs[0].pool.gather(rows_of(jobs[0].rows)), d)
                try:
                    plan = probe(self.module, self.spec, self._loss, x, y, d)
                except Unsupported as e:
                    self.batched = False; self.why_not = str(e)
                    warnings.warn(str(e), FallbackWarning)
                    return [self._seq.run(j) for j in jobs]
                self._engines[d] = Engine(self.module, self.spec, self._loss, plan, d)
            return self._engines[d].run(jobs)
        return [self._seq.run(j) for j in jobs]

    def initial(self, seed: int) -> Tensor:
        """Fresh parameters drawn from the seed, as a flat vector ``[spec.size]``."""
        fresh = copy.deepcopy(self.module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "initial"))
            for part in fresh.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
        return self.spec.flatten(fresh.state_dict())

    def close(self): pass

"""The training of one chunk of jobs, all clients at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from espalier.core.params import ParamSpec
from espalier.training.losses import PerSample, checked
from espalier.training.merged.batches import Batches, gather
from espalier.training.merged.dropout import Noise
from espalier.training.merged.probe import Plan
from espalier.training.merged.replica import Replica
from espalier.training.merged.slots import Stack
from espalier.training.schedule import Schedule, schedule
from espalier.training.updates import Update, update_for
from espalier.training.work import Result, TrainerJob

_BLOCK_BYTES = 4 << 20
"""Inputs gathered at once: several steps' worth, few enough to be in the cache still when they are used."""


class Engine:
    """Trains chunks of jobs that share a batch width, an arithmetic and an optimizer up to its rate."""

    def __init__(self, module: nn.Module, spec: ParamSpec, loss: PerSample, plan: Plan, dtype: torch.dtype) -> None:
        self._spec = spec
        self._loss = loss
        self._plan = plan
        self._replica = Replica(module, spec, dtype, training=True, plan=plan.calls)

    def run(self, jobs: Sequence[TrainerJob]) -> list[Result]:
        """Train K jobs; the result of each does not depend on the others."""
        # The longest first: when a client has made its last step, the stack is cut behind it.
        order = sorted(range(len(jobs)), key=lambda i: -jobs[i].n_steps)
        chunk = [jobs[i] for i in order]
        plans = [schedule(j) for j in chunk]
        stack = Stack(self._spec, [j.start for j in chunk])
        places = [i for i in self._replica.trained if i in self._plan.used or chunk[0].proximal]
        spans = [(self._spec.entries[i].start, self._spec.entries[i].stop) for i in places]
        values = [stack.blocks[i] for i in places]
        update = update_for(chunk, values, spans, self._spec.n_params, inside=self._plan.once)
        sums = self._train(chunk, plans, stack, update, places)
        self._unify(stack)
        results = {}
        for place, (job, plan) in enumerate(zip(chunk, plans, strict=True)):
            memory = update.state(place, self._spec.n_params) if job.keep_optimizer_state else None
            loss = float(sums[place]) / plan.samples
            results[order[place]] = Result(stack.vector(place), loss, plan.samples, len(plan.sizes), memory)
        return [results[i] for i in range(len(jobs))]

    def _train(
        self, jobs: Sequence[TrainerJob], plans: Sequence[Schedule], stack: Stack, update: Update, places: Sequence[int]
    ) -> Tensor:
        """Make all steps; return the clients' summed losses ``[K]``."""
        self._replica.merge.noise = Noise([j.seed for j in jobs], plans[0].rows.shape[1])
        sums = torch.zeros(len(jobs), dtype=torch.float64)
        lengths = [len(p.sizes) for p in plans]
        step, block = 0, 1
        while step < lengths[0]:
            clients = sum(n > step for n in lengths)
            update.shrink(clients)
            self._replica.bind(stack.views(clients), dict(zip(places, update.sinks, strict=True)))
            while step < lengths[clients - 1]:
                count = min(block, lengths[clients - 1] - step)
                batches = gather(jobs[:clients], plans[:clients], step, count, update.scale)
                for at in range(count):
                    sums[:clients] += self._step(batches, at, update)
                step += count
                block = max(1, _BLOCK_BYTES * count // max(1, batches.x.nbytes))
        return sums

    def _step(self, batches: Batches, at: int, update: Update) -> Tensor:
        """Make one step; return the clients' summed losses ``[k]``."""
        valid = batches.valid[at]
        update.before()
        if update.stale:
            self._replica.refresh()
        outputs = self._replica.forward(batches.x[at], len(valid))
        losses = checked(self._loss(outputs, batches.y[at]), valid.numel())
        # A scalar: torch imports a computer algebra system (a second) to check the shapes of gradients it is given.
        torch.autograd.backward([(losses * batches.share[at]).sum()])
        self._replica.collect()
        update.after()
        return (losses.detach().view(valid.shape) * valid).sum(1)

    def _unify(self, stack: Stack) -> None:
        """Copy a shared parameter to the entries that name it a second time."""
        owners: dict[int, int] = {}
        for index, slot in enumerate(self._replica.slots):
            stack.blocks[index] = stack.blocks[owners.setdefault(id(slot), index)]

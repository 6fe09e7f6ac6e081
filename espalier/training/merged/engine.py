"""The training of one chunk of jobs, all clients at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier.core.params import ParamSpec
from espalier.training.losses import PerSample, checked
from espalier.training.merged.dropout import Noise
from espalier.training.merged.probe import Plan
from espalier.training.merged.replica import Replica
from espalier.training.merged.slots import Stack
from espalier.training.modules import cast
from espalier.training.schedule import Schedule, schedule
from espalier.training.updates import update_for
from espalier.training.work import Job, Result

_BLOCK_BYTES = 4 << 20
"""Inputs gathered at once: several steps' worth, small enough to stay in the cache until used."""


class Engine:
    """Trains chunks of jobs that share a batch width, an arithmetic and an optimizer up to its rate."""

    def __init__(self, module: nn.Module, spec: ParamSpec, loss: PerSample, plan: Plan, dtype: torch.dtype) -> None:
        self._spec = spec
        self._loss = loss
        self._plan = plan
        self._dtype = dtype
        self._replica = Replica(module, spec, dtype, training=True, plan=plan.calls)

    def run(self, jobs: Sequence[Job]) -> list[Result]:
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
        width = plans[0].rows.shape[1]
        self._replica.merge.noise = Noise([j.seed for j in chunk], width)
        sums = torch.zeros(len(chunk), dtype=torch.float64)
        lengths = np.array([len(p.sizes) for p in plans])
        first, row_bytes = 0, 0
        while first < lengths[0]:
            clients = int((lengths > first).sum())
            update.shrink(clients)
            self._replica.bind(stack.views(clients), dict(zip(places, update.sinks, strict=True)))
            last = int(lengths[clients - 1])
            while first < last:
                steps = min(last - first, max(1, _BLOCK_BYTES // (clients * width * row_bytes)) if row_bytes else 1)
                rows = np.stack([p.rows[first : first + steps] for p in plans[:clients]], axis=1)
                x, y = self._gather(chunk[:clients], rows)
                valid, share = _weights(plans[:clients], first, steps, width, update.scale)
                for step in range(steps):
                    update.before()
                    if update.stale:
                        self._replica.refresh()
                    losses = checked(self._loss(self._replica.forward(x[step], clients), y[step]), clients * width)
                    torch.autograd.backward([losses], [share[step]])
                    self._replica.collect()
                    update.after()
                    sums[:clients] += (losses.detach().view(clients, width) * valid[step]).sum(1)
                first += steps
                row_bytes = max(1, x.nbytes // (steps * clients * width))
        self._unify(stack)
        results: list[Result | None] = [None] * len(jobs)
        for place, (job, plan) in enumerate(zip(chunk, plans, strict=True)):
            memory = update.memory(place, self._spec.n_params) if job.keep_memory else None
            loss = float(sums[place]) / plan.samples
            results[order[place]] = Result(stack.vector(place), loss, plan.samples, len(plan.sizes), memory)
        return [r for r in results if r is not None]

    def _gather(self, jobs: Sequence[Job], rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets ``[steps, K·B, ...]`` of pool rows ``[steps, K, B]``."""
        steps, clients, width = rows.shape
        pools = {id(j.pool): j.pool for j in jobs}
        if len(pools) == 1:
            x, y = jobs[0].pool.gather(torch.from_numpy(rows.reshape(-1)))
            x, y = cast(x, self._dtype), cast(y, self._dtype)
        else:
            x, y = self._gather_mixed(jobs, rows)
        return x.reshape(steps, clients * width, *x.shape[1:]), y.reshape(steps, clients * width, *y.shape[1:])

    def _gather_mixed(self, jobs: Sequence[Job], rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        x: Tensor | None = None
        y: Tensor | None = None
        owner = np.array([id(j.pool) for j in jobs])
        for pool in {id(j.pool): j.pool for j in jobs}.values():
            mine = np.broadcast_to((owner == id(pool))[None, :, None], rows.shape)
            some_x, some_y = (cast(t, self._dtype) for t in pool.gather(torch.from_numpy(rows[mine])))
            places = torch.from_numpy(np.flatnonzero(mine))
            if x is None or y is None:
                x, y = some_x.new_empty(rows.size, *some_x.shape[1:]), some_y.new_empty(rows.size, *some_y.shape[1:])
            x.index_copy_(0, places, some_x)
            y.index_copy_(0, places, some_y)
        assert x is not None and y is not None
        return x, y

    def _unify(self, stack: Stack) -> None:
        """Copy a shared parameter to the entries that name it a second time."""
        first = {
            id(s): i
            for i, (s, e) in enumerate(zip(self._replica.slots, self._spec.entries, strict=True))
            if s.entry is e
        }
        for index, slot in enumerate(self._replica.slots):
            if first[id(slot)] != index:
                stack.blocks[index] = stack.blocks[first[id(slot)]]


def _weights(plans: Sequence[Schedule], first: int, steps: int, width: int, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Which samples count, 1 or 0 ``[steps, K, B]``, and their weights in the backward pass ``[steps, K·B]``."""
    sizes = torch.from_numpy(np.stack([p.sizes[first : first + steps] for p in plans], axis=1)).unsqueeze(2)
    valid = (torch.arange(width) < sizes).to(scale.dtype)
    return valid, (valid / sizes * scale.view(1, -1, 1)).view(steps, -1)

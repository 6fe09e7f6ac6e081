"""The training of one chunk of jobs, all clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier.core.objectives import Mixture
from espalier.core.params import ParamSpec
from espalier.training.losses import PerSample, adjusted, checked
from espalier.training.merged.chain import ChainEngine
from espalier.training.merged.dropout import DropoutNoise
from espalier.training.merged.probe import MergePlan
from espalier.training.merged.replica import Replica
from espalier.training.merged.stacked import Stack
from espalier.training.objectives import Features, Terms, alone, catching, mixed_start
from espalier.training.sequential import cast
from espalier.training.updates import Mixed, Span, Update, update_for
from espalier.training.work import BatchSchedule, Pool, Result, TrainerJob, schedule

_BLOCK_BYTES = 4 << 20
"""Inputs gathered at once: several steps' worth, few enough to be in the cache still when they are used."""


@dataclass(frozen=True, eq=False)
class Batches:
    """Some steps of K clients, each client's batch padded to B.

    Attributes:
        x: Inputs ``[steps, K·B, ...]``.
        y: Targets ``[steps, K·B, ...]``.
        valid: 1 for samples, 0 for padding, ``[steps, K, B]``.
        share: A sample's weight in the backward pass, ``[steps, K·B]``: its client's scale over its batch's size.
        rows: Where the samples lie in their clients' pools, ``[steps, K, B]``.
    """

    x: Tensor
    y: Tensor
    valid: Tensor
    share: Tensor
    rows: NDArray[np.int64]


def gather(
    jobs: Sequence[TrainerJob], plans: Sequence[BatchSchedule], first: int, steps: int, scale: Tensor
) -> Batches:
    """Gather the steps from ``first`` on; ``scale [K]`` also decides the arithmetic."""
    rows = np.stack([p.rows[first : first + steps] for p in plans], axis=1)
    x, y = (cast(t, scale.dtype) for t in _fetch([j.pool for j in jobs], rows))
    sizes = torch.from_numpy(np.stack([p.sizes[first : first + steps] for p in plans], axis=1)).unsqueeze(2)
    sizes = sizes.to(scale.device)
    valid = (torch.arange(rows.shape[2], device=scale.device) < sizes).to(scale.dtype)
    share = valid / sizes * scale.view(1, -1, 1)
    x, y = (t.reshape(steps, -1, *t.shape[1:]) for t in (x, y))
    return Batches(x, y, valid, share.view(steps, -1), rows)


def _fetch(pools: Sequence[Pool], rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Inputs and targets ``[steps·K·B, ...]`` of rows ``[steps, K, B]``, client k's from pool k."""
    distinct = {id(p): p for p in pools}
    if len(distinct) == 1:
        return pools[0].gather(torch.from_numpy(rows.reshape(-1)))
    owner = np.array([id(p) for p in pools])
    found, places = [], []
    for key, pool in distinct.items():
        mine = np.broadcast_to((owner == key)[None, :, None], rows.shape)
        found.append(pool.gather(torch.from_numpy(rows[mine])))
        places.append(np.flatnonzero(mine))
    back = torch.from_numpy(np.argsort(np.concatenate(places)))
    return torch.cat([x for x, _ in found])[back], torch.cat([y for _, y in found])[back]


class ChunkEngine:
    """Trains chunks of jobs that share a batch width, an arithmetic and an optimizer up to its rate."""

    def __init__(
        self,
        module: nn.Module,
        spec: ParamSpec,
        loss: PerSample,
        plan: MergePlan,
        dtype: torch.dtype,
        *,
        half: bool = False,
    ) -> None:
        """Prepare to train a module; ``half`` lets products be in bfloat16 where that is faster."""
        self._spec = spec
        self._loss = loss
        self._plan = plan
        self._calibrated: Sequence[TrainerJob] = ()
        self._terms: Tensor | None = None
        self._aside: Terms | None = None
        self._features = Features(module, spec)
        self._replica = Replica(module, spec, dtype, training=True, plan=plan.calls, half=half)
        chain = None if half and any(layer.wide for layer in plan.chain or ()) else plan.chain
        self._chain = ChainEngine(spec, chain, self._replica.trained) if chain is not None else None

    def run(self, jobs: Sequence[TrainerJob]) -> list[Result]:
        """Train K jobs; the result of each does not depend on the others."""
        if self._chain is not None and ChainEngine.accepts(jobs[0], self._loss):
            return [self._chain.run(job) or self._merged([job])[0] for job in jobs]
        return self._merged(jobs)

    def _merged(self, jobs: Sequence[TrainerJob]) -> list[Result]:
        # The longest first: when a client has made its last step, the stack is cut behind it.
        order = sorted(range(len(jobs)), key=lambda i: -jobs[i].n_steps)
        chunk = [jobs[i] for i in order]
        found = self._mixed(chunk) if isinstance(chunk[0].objective, Mixture) else self._apart(chunk)
        results = dict(zip(order, found, strict=True))
        return [results[i] for i in range(len(jobs))]

    def _apart(self, chunk: Sequence[TrainerJob]) -> list[Result]:
        """Train jobs, the longest first, each for itself."""
        plans = [schedule(j) for j in chunk]
        stack = Stack(self._spec, [j.start for j in chunk])
        places, spans = self._trained(chunk[0])
        values = [stack.blocks[i] for i in places]
        update = update_for(chunk, values, spans, self._spec.n_params, inside=self._plan.once)
        sums = self._train(chunk, plans, stack, update, places)
        self._unify(stack)
        return [
            self._result(job, plan, stack.vector(k), float(sums[k]), update.state(k, self._spec.n_params))
            for k, (job, plan) in enumerate(zip(chunk, plans, strict=True))
        ]

    def _mixed(self, chunk: Sequence[TrainerJob]) -> list[Result]:
        """Train mixtures, the longest first: two clients of the stack for each, one behind the other."""
        n = self._spec.n_params
        pairs = [one for job in chunk for one in (job, alone(job))]
        plans = [plan for plan in map(schedule, chunk) for _ in range(2)]
        stack = Stack(self._spec, [v for job in chunk for v in (mixed_start(job, n), alone(job).start)])
        places, spans = self._trained(chunk[0])
        own = [torch.stack([job.start[a:b] for job in pairs]) for a, b in spans]
        inner = update_for(pairs, own, spans, n, inside=False)
        alphas = [job.objective.alpha for job in chunk if isinstance(job.objective, Mixture)]
        update = Mixed(inner, [stack.blocks[i] for i in places], alphas)
        sums = self._train(pairs, plans, stack, update, places)
        self._unify(stack)
        found = []
        for k, job in enumerate(chunk):
            vector = torch.cat([job.start[:n], stack.vector(2 * k)[n:]])
            for (a, b), kept in zip(spans, update.kept, strict=True):
                vector[a:b] = kept[2 * k]
            found.append(self._result(job, plans[2 * k], vector, float(sums[2 * k]), update.state(2 * k, n)))
        return found

    def _trained(self, job: TrainerJob) -> tuple[list[int], list[Span]]:
        """Return the entries that jobs like this one move, and where they lie."""
        moved = [i for i in self._replica.trained if job.moves(self._spec.entries[i].name)]
        places = [i for i in moved if i in self._plan.used or job.moves_unused]
        return places, [(self._spec.entries[i].start, self._spec.entries[i].stop) for i in places]

    @staticmethod
    def _result(job: TrainerJob, plan: BatchSchedule, vector: Tensor, loss: float, memory: Tensor | None) -> Result:
        kept = memory if job.keep_optimizer_state else None
        return Result(vector, loss / plan.samples, plan.samples, len(plan.sizes), kept)

    def _train(
        self,
        jobs: Sequence[TrainerJob],
        plans: Sequence[BatchSchedule],
        stack: Stack,
        update: Update,
        places: Sequence[int],
    ) -> Tensor:
        """Make all steps; return the clients' summed losses ``[K]``."""
        self._replica.merge.noise = DropoutNoise([j.seed for j in jobs], plans[0].rows.shape[1])
        self._calibrated, self._terms = (jobs if jobs[0].calibration is not None else ()), None
        self._aside = Terms(jobs, self._features) if jobs[0].has_term else None
        sums = torch.zeros(len(jobs), dtype=torch.float64)
        lengths = [len(p.sizes) for p in plans]
        step, block = 0, 1
        wanted = self._aside is not None and self._aside.of_features
        with catching(self._replica.module, self._spec, wanted=wanted) as self._caught:
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
        answers = outputs = self._replica.forward(batches.x[at], len(valid)).to(valid.dtype)
        if self._calibrated:
            outputs = adjusted(outputs, self._terms_of(outputs)[: len(valid)])
        losses = checked(self._loss(outputs, batches.y[at]), valid.numel())
        # A scalar: torch imports a computer algebra system (a second) to check the shapes of gradients it is given.
        learnt = losses
        if self._aside is not None:
            seen = self._caught.take(valid.numel()).to(valid.dtype) if self._aside.of_features else answers
            learnt = losses + self._aside.of(seen, batches.rows[at])
        torch.autograd.backward([(learnt * batches.share[at]).sum()])
        self._replica.collect()
        update.after()
        return (losses.detach().view(valid.shape) * valid).sum(1)

    def _terms_of(self, outputs: Tensor) -> Tensor:
        """Return the factors and offsets of calibrated losses for the clients' outputs ``[·, C, …]``, ``[K, 2, C]``."""
        if self._terms is None:
            self._terms = torch.stack([j.adjustment(outputs.shape[1]) for j in self._calibrated])
        return self._terms

    def _unify(self, stack: Stack) -> None:
        """Copy a shared parameter to the entries that name it a second time."""
        owners: dict[int, int] = {}
        for index, slot in enumerate(self._replica.slots):
            stack.blocks[index] = stack.blocks[owners.setdefault(id(slot), index)]

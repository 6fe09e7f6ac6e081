"""What hostile devices do, done to a simulation: false labels, false models, false reports.

Everything else about them is as usual: they take part, take time and send bytes like any other device. A false
model is made when the true one is computed, so attacks are as lazy as training and cost a run no batches. It is made of
the change ``update − start``: flipping or scaling a whole model would be an attack on its initial weights.
``a_little_is_enough`` follows Baruch et al., NeurIPS 2019.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from torch import Tensor

from espalier.core.address import host_of
from espalier.core.errors import ConfigError
from espalier.core.messages import Message, Report
from espalier.core.seeds import stream
from espalier.core.store import Ref
from espalier.simulator.dataviews import Views
from espalier.simulator.jobs import Compute, Job, Outcome
from espalier.simulator.task import Task
from espalier.world import BoundWorld
from espalier.world.attackers import (
    Broken,
    FalseHistogram,
    FalseLinks,
    FalseTimes,
    LabelFlip,
    Little,
    Noise,
    SignFlip,
)

Claim = Literal["reversed", "uniform", "single"]
#: coordinates worked on at a time
_BLOCK = 1 << 20


def sign_flip(update: Tensor, start: Tensor, scale: float = 1.0) -> Tensor:
    """Go ``scale`` times as far in the opposite direction: ``start − scale·(update − start)``."""
    return start - scale * (update - start)


def scaled_noise(update: Tensor, start: Tensor, rng: np.random.Generator, scale: float = 1.0) -> Tensor:
    """Replace the change by noise of ``scale`` times its length, in a random direction."""
    noise = torch.from_numpy(rng.standard_normal(update.numel())).reshape(update.shape)
    change = (update - start).to(torch.float64)
    noise *= scale * change.norm() / noise.norm()
    return (start.to(torch.float64) + noise).to(update.dtype)


def little_is_enough_z(n_updates: int, n_attackers: int) -> float:
    """Largest z at which colluders still hide among the honest updates.

    They need ⌊n/2⌋ + 1 − m honest updates to be further out than they are; z is the standard normal
    quantile that leaves that many outside, 0 where even the mean would not.
    """
    honest, supporters = n_updates - n_attackers, n_updates // 2 + 1 - n_attackers
    return max(0.0, float(norm.ppf((honest - supporters) / honest)))


def a_little_is_enough(honest: Tensor, z: float) -> Tensor:
    """The update that all colluders send: the honest mean less z standard deviations per coordinate.

    Args:
        honest: ``[H, P]`` updates the colluders know: all honest ones, or their own.
        z: Standard deviations.

    Returns:
        ``[P]``.
    """
    result = torch.empty_like(honest[0])
    for at in range(0, honest.shape[1], _BLOCK):
        part = honest[:, at : at + _BLOCK].to(torch.float64)
        result[at : at + _BLOCK] = part.mean(dim=0) - z * part.std(dim=0, correction=0)
    return result


def label_flip(n_classes: int, swaps: Mapping[int, int] | None = None) -> NDArray[np.int64]:
    """Map ``[C]`` from true to false label: ``y → C − 1 − y``, or only the given ones.

    Args:
        n_classes: Number of labels.
        swaps: False label for each label to falsify, e.g. ``{7: 1}``; None reverses all labels.
    """
    if swaps is None:
        return np.arange(n_classes - 1, -1, -1, dtype=np.int64)
    wrong = [y for pair in swaps.items() for y in pair if not 0 <= y < n_classes]
    if wrong:
        raise ConfigError(f"swaps names label {wrong[0]}; accepted are 0 to {n_classes - 1}.")
    table = np.arange(n_classes, dtype=np.int64)
    table[list(swaps)] = list(swaps.values())
    return table


def false_histogram(counts: ArrayLike, claim: Claim = "reversed", inflate: float = 1.0) -> NDArray[np.int64]:
    """A label histogram that is not the device's.

    Args:
        counts: ``[…, C]`` true samples per label.
        claim: "reversed" mirrors the labels, "uniform" pretends a balanced set, "single" pretends that
            everything is the label the device has least of.
        inflate: Factor on the number of samples, for more weight in a merge.

    Returns:
        ``[…, C]`` counts that sum to the true total times ``inflate``, rounded.
    """
    true = np.asarray(counts, dtype=np.float64)
    if claim == "reversed":
        mix = true[..., ::-1]
    elif claim == "uniform":
        mix = np.broadcast_to(true.sum(axis=-1, keepdims=True) / true.shape[-1], true.shape)
    else:
        least = np.arange(true.shape[-1]) == true.argmin(axis=-1, keepdims=True)
        mix = np.where(least, true.sum(axis=-1, keepdims=True), 0.0)
    # Rounding running totals keeps the sum whole: single counts rounded one by one would drift from it.
    running = np.rint(np.cumsum(mix * inflate, axis=-1))
    return np.diff(running, axis=-1, prepend=0.0).astype(np.int64)


#: colluders whose honest updates are taken to estimate everybody's
COLLUDERS = 8
#: the trainings for that have numbers from here on
FIRST_COLLUSION = 1 << 40
#: what a claim of samples is multiplied by
SAMPLES_FACTOR = 100
#: how many times as long as the true change a "huge" one is
HUGE_FACTOR = 1e12


class Attacks:
    """The hostile devices of one simulation.

    Args:
        world: Who they are and what they do.
        task: Data and model.
        views: What devices' data look like.
        edges: The edge at whose merge each device's update counts, [N] (-1: at the cloud's, with all others).
        seed: The run's.
    """

    def __init__(self, world: BoundWorld, task: Task, views: Views, edges: NDArray[np.int64], seed: int) -> None:
        self._data, self._spec, self._views, self._edges, self._seed = task.dataset, task.spec, views, edges, seed
        self.attack, self._hostile, self.any = world.attack, world.hostile, bool(world.hostile.any())
        self._forged: OrderedDict[tuple[int, int, int], Tensor] = OrderedDict()
        self._most_forged = 4 * (len(np.unique(edges)) + 1)
        if self.any and isinstance(self.attack, LabelFlip):
            data = self._data
            if data.kind != "classification":
                raise ConfigError(f"attackers.kind = 'label_flip': {data.name} has no labels to flip.")
            views.flip = label_flip(data.n_classes, dict(self.attack.swaps) or None)

    def look(self, device: int, number: int) -> int:
        """Return how a device's data look to itself when it trains or counts: a hostile one's may be false."""
        if not (self.any and isinstance(self.attack, LabelFlip) and self.hostile(device)):
            return number
        return self._views.number(replace(self._views.looks[number], false=True))

    def hostile(self, host: int) -> bool:
        """Tell whether a host attacks."""
        return host < len(self._hostile) and bool(self._hostile[host])

    # -- false models --------------------------------------------------------------------------------------

    def computing(self, honest: Compute) -> Compute:
        """Return what computes jobs, with hostile devices' results in the place of true ones."""
        if not self.any or not isinstance(self.attack, SignFlip | Noise | Little | Broken):
            return honest

        def compute(
            jobs: Sequence[Job], vector: Callable[[Ref], Tensor], memory: Callable[[Ref], Tensor | None]
        ) -> Iterator[Outcome]:
            if isinstance(self.attack, Little):
                self._collude(jobs, honest, vector)
            for job, outcome in zip(jobs, honest(jobs, vector, memory), strict=True):
                if self.hostile(job.device):
                    outcome.vector = self._false(job, outcome.vector, vector(job.work.start))
                yield outcome

        return compute

    def _false(self, job: Job, update: Tensor, start: Tensor) -> Tensor:
        floats = self._spec.n_float
        true, base = update[:floats], start[:floats]
        match self.attack:
            case SignFlip(scale=scale):
                changed = sign_flip(true, base, scale)
            case Noise(scale=scale):
                changed = scaled_noise(true, base, stream(self._seed, "attack", job.device, job.number), scale)
            case Broken(what="nan"):
                changed = torch.full_like(true, float("nan"))
            case Broken(what="huge"):
                changed = base + HUGE_FACTOR * (true - base)
            case Little():
                changed = self._forged.get(self._collusion(job), true)
            case _:
                changed = true
        return torch.cat([changed.to(update.dtype), update[floats:]])

    def _collusion(self, job: Job) -> tuple[int, int, int]:
        """Return what colluders have in common: where they start, how far they go, and their edge."""
        return int(job.work.start), job.work.updates, int(self._edges[job.device])

    def _collude(self, jobs: Sequence[Job], honest: Compute, vector: Callable[[Ref], Tensor]) -> None:
        """Let colluders work out what all of them send, from honest updates of their own."""
        for job in jobs:
            collusion = self._collusion(job)
            if not self.hostile(job.device) or collusion in self._forged:
                continue
            side = np.flatnonzero(self._edges == collusion[2]).tolist()
            ours = [d for d in side if self.hostile(d)]
            number = FIRST_COLLUSION + int(job.work.start)
            work = replace(job.work, optimizer_state=None, keep_optimizer_state=False)
            own = [replace(job, device=d, number=number, work=work) for d in ours[:COLLUDERS]]
            known = torch.stack([o.vector for o in honest(own, vector, lambda ref: None)])
            z = self.attack.z if isinstance(self.attack, Little) else None
            if z is None:  # a majority need not hide
                z = little_is_enough_z(len(side), len(ours)) if 2 * len(ours) <= len(side) else 1.0
            forged = a_little_is_enough(known[:, : self._spec.n_float], z)
            self._forged[collusion] = forged
            while len(self._forged) > self._most_forged:
                self._forged.popitem(last=False)

    # -- false reports -------------------------------------------------------------------------------------

    def outgoing(self, message: Message) -> Message:
        """Return a message as a hostile device sends it."""
        if not self.any or not isinstance(message, Report) or not self.hostile(host_of(message.sender)):
            return message
        stats: dict[str, Any] = dict(message.stats)
        match self.attack:
            case FalseHistogram(claim=claim, inflate=inflate):
                if "histogram" in stats:
                    stats["histogram"] = false_histogram(stats["histogram"], claim, inflate).astype(np.float32)
                claims = {g: round(n * inflate) for g, n in message.samples.items()}
                return replace(message, samples=claims, stats=stats)
            case Broken(what="samples"):
                return replace(message, samples={g: n * SAMPLES_FACTOR for g, n in message.samples.items()})
            case FalseTimes(factor=factor):
                if "seconds" in stats:
                    stats["seconds"] = factor * stats["seconds"]
                compute, download = factor * message.compute, factor * message.download
                return replace(message, stats=stats, compute=compute, download=download)
            case FalseLinks(factor=factor):
                if "links" in stats:
                    stats["links"] = factor * np.asarray(stats["links"])
                return replace(message, stats=stats)
        return message

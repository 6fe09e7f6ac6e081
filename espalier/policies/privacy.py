"""Differential privacy: clipped changes with Gaussian noise, at the device or at an aggregator; noisy statistics.

At the device, its parent never sees a true model::

    { name = "hierfavg", local = { kind = "private", clip = 1.0, noise = 2.0 } }

At an aggregator, its merged models alone say little of any one child::

    { name = "hierfavg", edge = { merge = { kind = "private", clip = 1.0, noise = 0.5 } } }

``noise`` is the standard deviation as a multiple of ``clip``. What a run has spent is written into its record as
``meta.privacy``. The guarantee is about devices for models and about samples for statistics. In a simulation the
noise comes from the run's seed, so that runs can be repeated; a deployed device must draw it from its system.

Principal vectors follow Dwork et al., Analyze Gauss, STOC 2014: noise goes into the second moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.bounds import NonNegativeFloat, PositiveFloat
from espalier.core.errors import ConfigError
from espalier.core.messages import Order, Train
from espalier.core.policies import Local, LocalView, Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View, with_auxiliary
from espalier.policies.local_policies import LocalWrapper

#: statistics that have a private form, and those that tell nothing of the data
PRIVATE, HARMLESS = ("label_histogram", "subspace"), ("probe", "d2d_presence")


# -- mechanisms --------------------------------------------------------------------------------------------


def clipped(change: Tensor, longest: float) -> Tensor:
    """Shorten a change ``[P]`` (float64) to at most ``longest``."""
    length = float(change.norm())
    return change if length <= longest else change * (longest / length)


def privatise(update: Tensor, start: Tensor, clip: float, noise: float, rng: np.random.Generator) -> Tensor:
    """Return ``start`` plus the clipped change plus Gaussian noise of standard deviation ``noise · clip``.

    A change that is not finite counts as none: nobody must be able to tell that it was not.
    """
    change = (update - start).to(torch.float64)
    if not bool(torch.isfinite(change).all()):
        change = torch.zeros_like(change)
    drawn = torch.from_numpy(rng.standard_normal(change.numel())) * (noise * clip)
    return (start.to(torch.float64) + clipped(change, clip) + drawn).to(update.dtype)


def noisy_counts(counts: NDArray[Any], noise: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return counts ``[C]`` with Gaussian noise; negative ones become 0 (one sample moves two counts by 1)."""
    return np.maximum(0, np.asarray(counts) + noise * rng.standard_normal(len(counts))).astype(np.float32)


def noisy_second_moments(samples: NDArray[Any], noise: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return ``XᵀX`` [d, d] of samples scaled to length at most 1, with symmetric Gaussian noise."""
    x = np.asarray(samples, dtype=np.float64)
    x = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    drawn = np.triu(rng.standard_normal((x.shape[1], x.shape[1]))) * noise
    return np.asarray(x.T @ x + drawn + np.triu(drawn, 1).T)


# -- policies ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrivateLocal(LocalWrapper, kind="private"):
    """Puts clipping and noise around a method's own local policy.

    Attributes:
        clip: The longest change that a device reports; None: models go out as they are.
        noise: Standard deviation of the noise on a change, as a multiple of ``clip``.
        statistics: Standard deviation of the noise on histograms and second moments; None: as they are.
    """

    clip: PositiveFloat | None = None
    noise: NonNegativeFloat = 0.0
    statistics: NonNegativeFloat | None = None

    def check(self) -> None:
        """Refuse noise for changes of any length."""
        self.require(self.noise == 0 or self.clip is not None, "clip", "given where there is noise")

    def around(self, own: Local) -> Self:
        """Return this policy around a method's own, if every statistic that is reported has a private form."""
        found = super().around(own)
        for part in found.parts() if self.statistics is not None else ():
            reported = part.reported_statistics if isinstance(part, Local) else ()
            plain = [name for name in reported if name not in PRIVATE and name not in HARMLESS]
            if plain:
                raise ConfigError(
                    f"local.statistics = {self.statistics}: local {part.kind!r} reports {', '.join(plain)}, which has "
                    "no private form. Leave local.statistics out, or change the method."
                )
        return found

    def changed(self, train: Train) -> Train:
        """Return a training to be clipped and noised where it is computed: a report may be made of any of them."""
        if self.clip is None:
            return train
        return replace(train, args={**train.args, "private": [self.clip, self.noise]})

    def arguments(self, view: LocalView, order: Order) -> dict[str, Any]:
        """Ask for principal vectors of noisy second moments."""
        args = self.inner.arguments(view, order)
        if self.statistics is None or order.ask is None or order.ask in HARMLESS:
            return args
        if order.ask not in PRIVATE:
            raise ConfigError(
                f"local.statistics = {self.statistics}: the statistic {order.ask!r} has no private form; accepted "
                f"are methods that ask for {', '.join(PRIVATE)} only. Leave local.statistics out, or change the method."
            )
        return {**args, "noise": self.statistics} if order.ask == "subspace" else args

    def reply(self, view: LocalView, order: Order, values: dict[str, Any]) -> dict[str, Any]:
        """Put noise on a histogram that goes out."""
        if self.statistics is not None and "histogram" in values:
            rng = view.env.rng("private", view.me, order.sender, order.id)
            values = {**values, "histogram": noisy_counts(values["histogram"], self.statistics, rng)}
        return self.inner.reply(view, order, values)


@dataclass(frozen=True)
class PrivateMerge(Merge, kind="private"):
    """The mean of the children's changes, each clipped, with noise on the sum. Samples do not weigh.

    An auxiliary vector (a control variate) is a release of its own, of the same clip and noise.

    Attributes:
        clip: The longest change that counts.
        noise: Standard deviation of the noise on the sum of the changes, as a multiple of ``clip``.
    """

    clip: PositiveFloat = 1.0
    noise: NonNegativeFloat = 1.0

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new models per group; a group that the aggregator had no model of takes none."""
        merged = {}
        for group, terms in self.claims(view, arrivals).items():
            base = view.models.get(group)
            if base is not None:  # without a base there is no change that could be bounded
                merged[group] = self._noisy_mean(view, group, [ref for _, ref in terms], base)
        senders = sorted({a.report.sender for a in arrivals})
        children = sorted({*view.children, *senders})
        view.note("privacy", noise=self.noise, clip=self.clip, reports=len(senders), children=children)
        return merged

    def auxiliary(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return auxiliary vectors, clipped and noised as models are: they are releases of their own."""
        own, found = view.of_auxiliary(), with_auxiliary(arrivals)
        first = {name: ref for a in found for name, ref in a.report.models.items()}
        own.models = {**{name: view.store.combine([(0.0, ref)]) for name, ref in first.items()}, **own.models}
        own.cohort += " beside"  # noise of its own
        return self.merge(own, found) if found else {}

    def _noisy_mean(self, view: View, group: str, refs: list[Ref], base: Ref) -> Ref:
        vectors, floats = view.store.vectors([*refs, base]), view.store.spec.n_float
        start = vectors[-1, :floats].to(torch.float64)
        total = torch.zeros_like(start)
        for row in vectors[: len(refs), :floats]:
            change = row.to(torch.float64) - start
            if bool(torch.isfinite(change).all()):
                total += clipped(change, self.clip)
        rng = view.env.rng("privacy", view.me, group, view.cohort, view.round, view.clock)
        total += torch.from_numpy(rng.standard_normal(floats)) * (self.noise * self.clip)
        result = (start + total / len(refs)).to(vectors.dtype)
        return view.store.put(torch.cat([result, vectors[-1, floats:]]))

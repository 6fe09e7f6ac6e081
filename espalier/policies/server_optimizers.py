"""Server optimisers: a round's average is taken as a gradient step, at any tier, around any merge.

    { name = "hierfavg", root = { merge = { kind = "momentum", beta = 0.5 } } }
    { name = "hierfavg", edge = { merge = { kind = "adam", lr = 0.01 } } }

The aggregator has a model ``x``, the method's own merge makes ``y`` of the reports, and ``y - x`` is the direction
that an optimiser steps along: with momentum (FedAvgM: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification, 2019), or by Adagrad, Adam, Yogi (Reddi et al., Adaptive Federated
Optimization, ICLR 2021, Algorithm 2).

*Missing and discounted reports.* A merge may leave part of the weight with ``x`` (late reports count less); then
``y - x`` is short although the reports are not. Of such a round only the share ``a`` is present
(:meth:`~espalier.core.policies.Merge.present`), and it counts as ``a`` of a step: moments decay by ``beta ** a``, the
mean change ``(y - x) / a`` enters them with the rest, and what is carried over moves the model by ``a``. With ``a = 1``
these are the published rules. A group without reports makes no step.

Optimisers step parameters. Running statistics and counters of normalisation layers are those of ``y``.

*Averages.* Where labels are skewed the model swings from round to round, around something better than itself. With
``average = a`` the aggregator serves the running mean of its models, the newest with a weight of ``1 - a`` (Polyak and
Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992); training goes on from the newest, so nothing
else changes, and nothing more is sent.

    { name = "hierfavg", root = { merge = { kind = "momentum", beta = 0.0, average = 0.5 } } }

*Looking ahead.* Plain momentum hands down, and serves, a point that has been carried past the average of the reports.
With ``look_ahead`` the average ``y`` itself is the model, served as it is (or its running mean), and training goes on
from where momentum points to, ``y + beta m``: Nesterov's rule, in federated form by Kim, Kim, Han,
Communication-Efficient Federated Learning with Accelerated Client Gradient, CVPR 2024. Nothing more is sent.

*Warming up.* The first rounds' changes are the largest and point the same way: full momentum multiplies them, and a
network with rectifiers may be thrown to where nothing activates any more. With ``warm_up`` the momentum after ``t``
steps is at most ``t / (t + 3)``: none in the first round, ``beta`` itself soon (Nesterov's schedule, as in Sutskever,
Martens, Dahl, Hinton, On the Importance of Initialization and Momentum in Deep Learning, ICML 2013).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from espalier.core.bounds import Decay, PositiveFloat
from espalier.core.policies import Merge
from espalier.core.store import ModelStore, Ref
from espalier.core.view import Arrival, View


@dataclass(frozen=True)
class ServerOptimizer(Merge, ABC):
    """The base: lets a merge make its average, and steps towards it.

    Attributes:
        of: The merge that makes the average (the method's own, if it is put into a method).
        average: The weight that the models before the newest have in the running mean that is served; 0: none.
    """

    @dataclass(slots=True)
    class State:
        """By group: both moments, the steps made (shares of steps counted as such), the mean and its models' number."""

        first: dict[str, Ref] = field(default_factory=dict)
        second: dict[str, Ref] = field(default_factory=dict)
        steps: dict[str, float] = field(default_factory=dict)
        mean: dict[str, Ref] = field(default_factory=dict)
        averaged: dict[str, int] = field(default_factory=dict)

    of: Merge | None = field(default=None, kw_only=True)
    average: Decay = field(default=0.0, kw_only=True)

    def check(self) -> None:
        """Refuse merges that hide the reports from the optimiser."""
        hidden = self.of is not None and self.of.kind in ("secure", "private")
        self.require(not hidden, "of", "a merge other than 'secure' and 'private'")

    def around(self, own: Merge) -> Self:
        """Return this optimiser around a method's own merge; it replaces an optimiser that is there."""
        return self if self.of is not None else replace(self, of=own.inner if isinstance(own, ServerOptimizer) else own)

    @property
    def inner(self) -> Merge:
        """The merge that makes the average."""
        return self.of if self.of is not None else Merge()

    @abstractmethod
    def step(self, view: View, group: str, x: Ref, y: Ref, share: float) -> Ref:
        """Return the model after a step from ``x`` towards ``y``, of which ``share`` is present."""

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new models per group; a group that is new here begins with its average."""
        merged = self.inner.merge(view, arrivals)
        for group, average in merged.items():
            if group in view.models:
                share = self.inner.present(view, arrivals, group)
                merged[group] = self.step(view, group, view.models[group], average, share)
            if self._serves_another:
                self._take(view, group, average if self.ahead else merged[group])
        return merged

    @property
    def ahead(self) -> bool:
        """Whether training goes on from a point ahead of the model, which is the average itself."""
        return False

    @property
    def _serves_another(self) -> bool:
        """Whether what is served is another model than the one that training goes on from."""
        return self.average > 0 or self.ahead

    def _take(self, view: View, group: str, model: Ref) -> None:
        """Take a new model into the mean."""
        state = view.state(self)
        many = state.averaged[group] = state.averaged.get(group, 0) + 1
        newest = newest_share(self.average, many)
        past = [(1.0 - newest, state.mean[group])] if newest < 1.0 else []
        state.mean[group] = view.store.combine([*past, (newest, model)], fallback=model)

    def served(self, view: View) -> dict[str, Ref]:
        """Return the running means; of a group without one, its model."""
        current = self.inner.served(view)
        means = view.state(self).mean if self._serves_another else {}
        return {group: means.get(group, model) for group, model in current.items()}

    def weights(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, list[tuple[float, Ref]]]:
        """Return the coefficients of the average."""
        return self.inner.weights(view, arrivals)

    def weight(self, view: View, arrival: Arrival, group: str) -> float:
        """Return one report's weight in the average, before normalisation."""
        return self.inner.weight(view, arrival, group)

    def samples(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, int]:
        """Return how many samples each merged model stands for."""
        return self.inner.samples(view, arrivals)


@dataclass(frozen=True)
class Momentum(ServerOptimizer, kind="momentum"):
    """FedAvgM: ``m <- beta^a m + (y - x)``, ``x <- x + lr (y - x + a (m - (y - x)))``; with a = 1, ``x + lr m``.

    With ``look_ahead`` (and a rate of 1) ``x <- y + a beta^a m`` of the new ``m``, and ``y`` is served. With
    ``beta = 0`` and ``lr = 1`` the average is left as it is. Models without running statistics are not looked at: a
    simulation stays lazy. With ``warm_up`` the first steps have less momentum (:func:`warmed`).
    """

    beta: Decay = 0.9
    lr: PositiveFloat = 1.0
    look_ahead: bool = False
    warm_up: bool = False

    def check(self) -> None:
        """Refuse a look ahead at another rate than 1."""
        super().check()
        self.require(self.lr == 1 or not self.look_ahead, "lr", "1 where momentum looks ahead")

    @property
    def ahead(self) -> bool:
        """Whether training goes on from a point ahead of the model."""
        return self.look_ahead and self.beta > 0

    def step(self, view: View, group: str, x: Ref, y: Ref, share: float) -> Ref:
        """Return ``(1 - lr) x + lr y + lr a beta^a m``, where ``m`` is the moment before, or (looking ahead) after."""
        if self.beta == 0.0 and self.lr == 1.0:
            return y
        store, state = view.store, view.state(self)
        past, beta = state.first.get(group), self.beta
        if self.warm_up:
            steps = state.steps.get(group, 0.0)
            beta, state.steps[group] = warmed(beta, steps), steps + share
        decay = beta**share
        moved = [] if past is None else [(decay, past)]
        new = store.combine([(1.0, y), (-1.0, x), *moved])
        state.first[group] = new
        carried = new if self.look_ahead else past
        step = [] if carried is None or decay == 0.0 else [(self.lr * share * decay, carried)]
        kept = [] if self.lr == 1.0 else [(1.0 - self.lr, x)]
        stepped = store.combine([*kept, (self.lr, y), *step], fallback=y)
        if store.spec.size == store.spec.n_params:
            return stepped
        return parameters_of(store, stepped, y)


@dataclass(frozen=True)
class AdaptiveServer(ServerOptimizer, ABC):
    """The base of optimisers with a rate for every parameter: ``x <- x + lr a m / (sqrt(v) + tau)``.

    The first moment is ``m <- beta1^a m + (1 - beta1^a) d``, where ``d = (y - x) / a``. As published, ``v`` begins
    at ``tau ** 2`` and nothing is corrected; ``corrected`` begins at 0 and divides moments that are running means by
    ``1 - beta ** steps``.

    Attributes:
        lr: The server's rate.
        beta1: Decay of the first moment.
        tau: How far rates adapt; less is more.
        corrected: Whether the moments' bias towards their beginning is corrected.
    """

    lr: PositiveFloat = 0.01
    beta1: Decay = 0.9
    tau: PositiveFloat = 1e-3
    corrected: bool = False

    @abstractmethod
    def second(self, past: Tensor, square: Tensor, share: float) -> Tensor:
        """Return the second moment after a change whose square is given."""

    def unbiased(self, moment: Tensor, steps: float) -> Tensor:
        """Return a second moment that began at 0 without its bias."""
        return moment

    def step(self, view: View, group: str, x: Ref, y: Ref, share: float) -> Ref:
        """Return the model after one adaptive step."""
        store, state, size = view.store, view.state(self), view.store.spec.n_params
        if share <= 0.0:
            return y
        past = [state.first.get(group), state.second.get(group)]
        rows = store.vectors([x, y, *(ref for ref in past if ref is not None)])
        params = rows[:, :size].double()
        change = (params[1] - params[0]) / share
        begin = torch.full_like(change, 0.0 if self.corrected else self.tau**2)
        m, v = (params[2], params[3]) if len(params) == 4 else (torch.zeros_like(change), begin)
        decay, steps = self.beta1**share, state.steps.get(group, 0.0) + share
        m, v = decay * m + (1.0 - decay) * change, self.second(v, change.square(), share)
        state.first[group], state.second[group] = (store.put(_padded(t, rows[1])) for t in (m, v))
        state.steps[group] = steps
        if self.corrected:
            m, v = m / (1.0 - self.beta1**steps), self.unbiased(v, steps)
        stepped = params[0] + self.lr * share * m / (v.sqrt() + self.tau)
        return store.put(torch.cat([stepped.to(rows.dtype), rows[1, size:]]))


@dataclass(frozen=True)
class ServerAdagrad(AdaptiveServer, kind="adagrad"):
    """FedAdagrad: ``v <- v + a d^2``."""

    beta1: Decay = 0.0

    def second(self, past: Tensor, square: Tensor, share: float) -> Tensor:
        """Return the sum of squares."""
        return past + share * square


@dataclass(frozen=True)
class ServerAdam(AdaptiveServer, kind="adam"):
    """FedAdam: ``v <- beta2^a v + (1 - beta2^a) d^2``."""

    beta2: Decay = 0.99

    def second(self, past: Tensor, square: Tensor, share: float) -> Tensor:
        """Return the running mean of squares."""
        decay: float = self.beta2**share
        return decay * past + (1.0 - decay) * square

    def unbiased(self, moment: Tensor, steps: float) -> Tensor:
        """Divide by the weight of all squares so far."""
        weight: float = 1.0 - self.beta2**steps
        return moment / weight


@dataclass(frozen=True)
class ServerYogi(ServerAdam, kind="yogi"):
    """FedYogi: ``v <- v - (1 - beta2^a) d^2 sign(v - d^2)``: it falls no faster than squares come."""

    def second(self, past: Tensor, square: Tensor, share: float) -> Tensor:
        """Return the second moment."""
        rate: float = 1.0 - self.beta2**share
        return past - rate * square * torch.sign(past - square)

    def unbiased(self, moment: Tensor, steps: float) -> Tensor:
        """It is no mean of squares: there is nothing to divide by."""
        return moment


def warmed(beta: float, steps: float) -> float:
    """Return the momentum after some steps: ``min(beta, t / (t + 3))``."""
    return min(beta, steps / (steps + 3.0))


def newest_share(average: float, many: int) -> float:
    """Return the newest model's share of a running mean of ``many``: ``(1 - a) / (1 - a^n)``, without bias to a start.

    Of n models the i-th newest, counted from 0, has a weight in proportion to ``a^i``.
    """
    share: float = (1.0 - average) / (1.0 - average**many)
    return share


def parameters_of(store: ModelStore, model: Ref, other: Ref) -> Ref:
    """Return the parameters of a model with the running statistics and counters of another."""
    rows, size = store.vectors([model, other]), store.spec.n_params
    return store.put(torch.cat([rows[0, :size], rows[1, size:]]))


def _padded(moment: Tensor, like: Tensor) -> Tensor:
    """Return a moment of the parameters as long as a model, so that a store can keep it."""
    return torch.cat([moment.to(like.dtype), torch.zeros_like(like[len(moment) :])])

"""Selections that look at losses and times: power-of-choice, Oort, TiFL.

At any tier of any method::

    { name = "hierfavg", edge = { selection = { kind = "power_of_choice", fraction = 0.3 } } }

Cho, Wang, Joshi. Towards Understanding Biased Client Selection in Federated Learning. AISTATS 2022.
Lai, Zhu, Madhyastha, Chowdhury. Oort: Efficient Federated Learning via Guided Participant Selection. OSDI 2021.
Chai, Ali, Zawad, Truex, Anwar, Baracaldo, Zhou, Ludwig, Yan, Cheng. TiFL: A Tier-based Federated Learning System.
HPDC 2020.

All three know of a child what its last report said: its mean training loss (an aggregator's is the average of what it
merged) and the seconds from the order to the report. Nothing else is asked or sent. So power-of-choice is the paper's
variant *rpow-d*, which compares these losses instead of asking candidates for theirs at the current model; Oort's
utility has a child's mean loss in the place of the root of its mean square, new children are drawn uniformly (the
paper: by their speed; here nobody knows it before they report), and the utility is that of its Algorithm 1 (the
authors' code scales gains to 0 … 1 by their range before the bonus is added, and cuts off at 0.7 where the paper says
0.95); TiFL's adaptive policy orders tiers by loss, not by accuracy, and profiles children by their first reports. A
child that leaves is forgotten. Where losses are not told (a private run on a fleet), everybody's is unknown, and draws
are those of children not yet heard of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from espalier.core.address import Address
from espalier.core.bounds import Bound, NonNegativeFloat, PositiveInt, UnitFloat
from espalier.core.memory import Memory
from espalier.core.policies import Selection
from espalier.core.view import Arrival, View


def losses_and_seconds(view: View, arrivals: Sequence[Arrival]) -> Iterator[tuple[Address, float, float]]:
    """Yield who has reported, with its mean training loss and its seconds; not those whose loss is unknown."""
    for arrival in arrivals:
        loss = view.loss(arrival)
        if math.isfinite(loss):
            yield arrival.report.sender, loss, arrival.seconds


def _drawn(
    rng: np.random.Generator, children: Sequence[Address], number: int, weights: Sequence[float] | None = None
) -> list[Address]:
    """Draw so many children without replacement, uniformly or by positive weights."""
    number = min(number, len(children))
    if not number:
        return []
    shares = None if weights is None else np.asarray(weights) / np.sum(weights)
    return [children[i] for i in rng.choice(len(children), size=number, replace=False, p=shares).tolist()]


# -- power-of-choice -------------------------------------------------------------------------------------


def highest(losses: Mapping[Address, float], candidates: Sequence[Address], number: int) -> list[Address]:
    """Return the candidates with the highest losses; those whose loss is unknown come first, in the order given."""
    return sorted(candidates, key=lambda c: -losses.get(c, math.inf))[:number]


@dataclass(frozen=True)
class HighestLosses(Selection, kind="power_of_choice"):
    """Draws candidates by their samples; those whose last losses were highest work.

    Attributes:
        fraction: Share of the children that work in a round.
        count: Their number instead.
        candidates: How many candidates there are for each place, d / m: 1 is drawing by samples alone.
    """

    @dataclass(slots=True)
    class State:
        """The children's last losses."""

        losses: dict[Address, float] = field(default_factory=dict)

    candidates: Annotated[float, Bound(ge=1)] = 2.0

    def pick(self, view: View) -> list[Address]:
        """Return the candidates with the highest losses."""
        wanted = self.wanted(view, len(view.children))
        if wanted >= len(view.children):
            return list(view.children)
        rng = view.env.rng("select", view.me, view.cohort, view.round)
        weights = [max(1, view.env.samples(c)) for c in view.children]
        candidates = _drawn(rng, view.children, math.ceil(self.candidates * wanted), weights)
        return sorted(highest(view.state(self).losses, candidates, wanted))

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Remember losses."""
        view.state(self).losses |= {child: loss for child, loss, _ in losses_and_seconds(view, arrivals)}

    def forget(self, memory: Memory, child: Address) -> None:
        """Forget a child's loss."""
        memory.state(self).losses.pop(child, None)


# -- Oort ------------------------------------------------------------------------------------------------


def utility(gain: float, now: int, last: int, seconds: float, preferred: float, alpha: float) -> float:
    """Return Oort's utility of a child, Algorithm 1: ``gain + sqrt(0.1 log R / L)``, less if it is slow.

    Args:
        gain: Its statistical utility, ``|B| * loss``, clipped.
        now: The round, R, from 1 on.
        last: The round of its last report, L, from 1 on.
        seconds: How long it took, t.
        preferred: How long rounds should take, T: a child that takes longer counts ``(T / t)^alpha``.
        alpha: How much slowness matters.
    """
    hoped = gain + math.sqrt(0.1 * math.log(now) / last)
    return hoped * (preferred / seconds) ** alpha if seconds > preferred else hoped


def patience(gains: Sequence[float], window: int, first: float, step: float) -> float:
    """Return the share of children that rounds should wait for, the pacer of Algorithm 1.

    It begins at ``first`` and grows by ``step`` for each window of rounds whose gains are less than those of the one
    before it.
    """
    sums = [sum(gains[i : i + window]) for i in range(0, len(gains) - window + 1, window)]
    fell = sum(one > two for one, two in itertools.pairwise(sums))
    return min(1.0, first + step * fell)


@dataclass(frozen=True)
class ByUtility(Selection, kind="oort"):
    """Draws by what a child's last report says it has to teach, slow ones less; keeps a share for the unknown ones.

    Attributes:
        fraction: Share of the children that work in a round.
        count: Their number instead.
        explore: Share of the places for children that have never reported, in the first round.
        explore_decay: By what it is multiplied each round.
        explore_least: What it does not fall below.
        alpha: How much slowness matters; 0: not at all.
        cutoff: Who has this share of the utility that would just do may be drawn, too.
        clip: Quantile of the gains at which they are clipped.
        pace: Quantile of the children's times that rounds should take, in the beginning.
        pace_step: By what it grows when gains fall.
        window: Rounds that are compared for that.
    """

    @dataclass(slots=True)
    class State:
        """By child: gain, seconds and the round of its last report; and each round's gain."""

        heard: dict[Address, tuple[float, float, int]] = field(default_factory=dict)
        gains: list[float] = field(default_factory=list)

    explore: UnitFloat = 0.9
    explore_decay: UnitFloat = 0.98
    explore_least: UnitFloat = 0.2
    alpha: NonNegativeFloat = 2.0
    cutoff: UnitFloat = 0.95
    clip: UnitFloat = 0.95
    pace: UnitFloat = 0.3
    pace_step: UnitFloat = 0.05
    window: PositiveInt = 20

    def pick(self, view: View) -> list[Address]:
        """Return children that promise much, and some that nobody knows."""
        wanted = self.wanted(view, len(view.children))
        if wanted >= len(view.children):
            return list(view.children)
        rng = view.env.rng("select", view.me, view.cohort, view.round)
        heard = view.state(self).heard
        known, unknown = ([c for c in view.children if (c in heard) == k] for k in (True, False))
        share = max(self.explore_least, self.explore * self.explore_decay**view.round)
        new = max(wanted - len(known), min(len(unknown), round(share * wanted)))
        return sorted([*self._exploited(view, rng, known, wanted - new), *_drawn(rng, unknown, new)])

    def _exploited(self, view: View, rng: np.random.Generator, known: Sequence[Address], number: int) -> list[Address]:
        """Draw known children by utility, among those that are near enough to the best."""
        if number <= 0:
            return []
        state = view.state(self)
        gains = np.asarray([state.heard[c][0] for c in known])
        clipped = np.minimum(gains, np.quantile(gains, self.clip)).tolist()
        wait = patience(state.gains, self.window, self.pace, self.pace_step)
        preferred = float(np.quantile([state.heard[c][1] for c in known], wait))
        found = {}
        for child, gain in zip(known, clipped, strict=True):
            _, seconds, last = state.heard[child]
            found[child] = utility(gain, view.round + 1, last + 1, seconds, preferred, self.alpha) + 1e-12
        bar = self.cutoff * sorted(found.values(), reverse=True)[number - 1]
        near = [c for c in known if found[c] >= bar]
        return _drawn(rng, near, number, [found[c] for c in near])

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Remember gains, times and rounds."""
        state = view.state(self)
        heard = {
            child: (view.env.samples(child) * loss, seconds, view.round)
            for child, loss, seconds in losses_and_seconds(view, arrivals)
        }
        state.heard |= heard
        state.gains.append(sum(gain for gain, _, _ in heard.values()))

    def forget(self, memory: Memory, child: Address) -> None:
        """Forget what a child reported."""
        memory.state(self).heard.pop(child, None)


# -- TiFL ------------------------------------------------------------------------------------------------


def tiers_by_time(seconds: Mapping[Address, float], tiers: int) -> list[list[Address]]:
    """Split children into at most so many tiers of equal size, the fastest first."""
    order = sorted(seconds, key=lambda c: (seconds[c], c))
    return [part.tolist() for part in np.array_split(np.asarray(order, dtype=np.int64), tiers) if len(part)]


def tier_shares(losses: Sequence[float]) -> list[float]:
    """Return the tiers' new probabilities: ``(n - i) / (n (n - 1) / 2)`` for the i-th highest loss."""
    n = len(losses)
    if n == 1:
        return [1.0]
    found = [0.0] * n
    for i, tier in enumerate(sorted(range(n), key=lambda t: -losses[t]), start=1):
        found[tier] = (n - i) / (n * (n - 1) / 2)
    return found


@dataclass(frozen=True)
class ByTier(Selection, kind="tifl"):
    """Draws a tier of children that are equally fast, then uniformly among them.

    Attributes:
        fraction: Share of the children that work in a round.
        count: Their number instead.
        tiers: Number of tiers.
        interval: Every so many rounds the tiers' probabilities follow their losses, if the drawn tier's did not fall.
        credits: How often a tier may be drawn (default: any number); when all are used up, none counts any more.
    """

    @dataclass(slots=True)
    class State:
        """By child: seconds and losses; the tiers' probabilities, credits used and losses an interval ago."""

        seconds: dict[Address, float] = field(default_factory=dict)
        losses: dict[Address, float] = field(default_factory=dict)
        shares: list[float] = field(default_factory=list)
        used: list[int] = field(default_factory=list)
        before: list[float] = field(default_factory=list)
        drawn: int = 0

    tiers: PositiveInt = 5
    interval: PositiveInt = 10
    credits: PositiveInt | None = None

    def pick(self, view: View) -> list[Address]:
        """Return children that have not been profiled, as long as there are any; then some of one tier."""
        wanted, state = self.wanted(view, len(view.children)), view.state(self)
        rng = view.env.rng("select", view.me, view.cohort, view.round)
        unknown = [c for c in view.children if c not in state.seconds]
        if unknown:
            return sorted(_drawn(rng, unknown, wanted))
        tiers = tiers_by_time({c: state.seconds[c] for c in view.children}, self.tiers)
        if len(tiers) != len(state.shares):
            state.shares, state.before = [1.0 / len(tiers)] * len(tiers), []
            state.used, state.drawn = [0] * len(tiers), 0
        if view.round % self.interval == 0:
            self._adapt(state, tiers)
        left = [self.credits is None or used < self.credits for used in state.used]
        weights = [share if ok else 0.0 for share, ok in zip(state.shares, left, strict=True)]
        if not sum(weights):  # the tiers with credits have no probability, or there are none
            weights = [float(ok) for ok in left] if any(left) else state.shares
        state.drawn = int(rng.choice(len(tiers), p=np.asarray(weights) / sum(weights)))
        state.used[state.drawn] += 1
        return sorted(_drawn(rng, tiers[state.drawn], wanted))

    def _adapt(self, state: State, tiers: Sequence[Sequence[Address]]) -> None:
        """Follow the losses where the tier that was drawn last has not become better."""
        losses = [float(np.mean([state.losses[c] for c in tier])) for tier in tiers]
        if state.before and losses[state.drawn] >= state.before[state.drawn]:
            state.shares = tier_shares(losses)
        state.before = losses

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Remember losses and times."""
        state = view.state(self)
        for child, loss, seconds in losses_and_seconds(view, arrivals):
            state.losses[child], state.seconds[child] = loss, seconds

    def forget(self, memory: Memory, child: Address) -> None:
        """Forget what a child reported."""
        state = memory.state(self)
        state.losses.pop(child, None)
        state.seconds.pop(child, None)

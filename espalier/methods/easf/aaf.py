"""AAF: parents recommend how often a child updates, children decide (EASF, Eq. 10-13, Algorithms 3 and 4).

AAF-R, at the parent: from each child's measured times it predicts computation per update, download and upload;
from its own last round it predicts how long the next should take; a child gets as many updates as fit. AAF-D, at the
child: after each update it predicts the next one and stops when that would not fit. Both hold at every level: an
update is a local epoch at a device, a round of its own at an aggregator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from espalier.core.address import Address
from espalier.core.bounds import Bound, PositiveInt, Share
from espalier.core.memory import Memory
from espalier.core.policies import Assignment, Progress
from espalier.core.spec import Spec
from espalier.core.view import Arrival, View
from espalier.methods.easf.paces import PREDICTED_ROUND, TimedPace, total_time

#: the mean number of updates that a parent recommends to its children, in the run's record
FREQUENCY_EVENT = "frequency"


def next_time(predicted: float | None, real: float, growth: float) -> float:
    """Return the predicted time of the next round, Algorithm 3, lines 1-5.

    The real time of the last one if that was shorter than predicted (or nothing was predicted), else ``growth``
    times the prediction: time is given back slowly. The printed lines are garbled (line 2 assigns a value that may
    be None, the other branch is lost); this is the reading that uses the growth rate and "ensures a gradual
    increase".
    """
    return real if predicted is None or real < predicted else growth * predicted


def recommended(round_time: float, transfer: float, update: float, most: int) -> tuple[int, float]:
    """Return how many updates a child should do, and within which time: Algorithm 3, lines 7-8.

    ``rt = t_pred - t_tran``, ``rf = floor(rt / t_avgcomp)``, at least 1 and at most ``most``. Where neither takes any
    time (a world in which all is free) there is no time to fill: one update.
    """
    time = max(0.0, round_time - transfer)  # never a negative budget, be it by rounding alone
    if update <= 0:
        return (most if time > 0 else 1), time
    return max(1, min(most, math.floor(time / update + 1e-9))), time


def stops(done: int, expected: float, wanted: int, time: float, slack: float, caution: float, most: int) -> bool:
    """Tell whether a child reports now: Algorithm 4, line 9.

    Args:
        done: Updates done.
        expected: Predicted seconds in all after one more.
        wanted: Recommended updates rf.
        time: Recommended seconds rt.
        slack: rho_a > 1: while short of rf, rt may be exceeded so far.
        caution: rho_p < 1: from rf on, one more must fit well within rt.
        most: The upper bound of the frequency.
    """
    if expected <= 0 and time <= 0:
        return done >= wanted  # nothing takes any time: every update would fit
    return done >= most or expected > time * (slack if done < wanted else caution)


# -- prediction of times ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predictor(Spec, family="predictor", kind="smoothing"):
    """Exponential smoothing (EASF, Eq. 12): ``next = beta * measured + (1 - beta) * predicted``.

    As printed the equation has ``t_{m+1}`` on both sides; this is the one reading that uses what was measured. The
    first prediction is the first measurement. What a predictor remembers is a list of numbers, empty at first.
    """

    beta: Share = 0.5

    def after(self, memory: list[float], measured: float) -> list[float]:
        """Return the memory after one more measurement; its last number is the prediction."""
        return [self.beta * measured + (1 - self.beta) * memory[-1]] if memory else [measured]


@dataclass(frozen=True)
class Window(Predictor, kind="window"):
    """The mean of the last ``size`` measurements."""

    size: PositiveInt = 5

    def after(self, memory: list[float], measured: float) -> list[float]:
        """Return the measurements kept, and their mean."""
        kept = [*memory[:-1], measured][-self.size :]
        return [*kept, sum(kept) / len(kept)]


# -- the pace -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AAF(TimedPace, kind="aaf"):
    """AAF-R and AAF-D.

    Attributes:
        predictor: Of times; exponential smoothing by default.
        rho_g: How fast a round's time grows back.
        rho_a: How far a child may exceed its time while it is short of the recommended updates.
        rho_p: The share of its time within which it may do more than recommended.
        f_max: The most updates before a report.
    """

    provides = (PREDICTED_ROUND,)

    @dataclass(slots=True)
    class State:
        """At a parent: the predictors' numbers for each child, by what they predict; at a child: for its updates."""

        children: dict[Address, dict[str, list[float]]] = field(default_factory=dict)
        updates: list[float] = field(default_factory=list)

    child_decides: bool = True
    predictor: Predictor = field(default_factory=Predictor)
    rho_g: Annotated[float, Bound(gt=1)] = 1.1
    rho_a: Annotated[float, Bound(gt=1)] = 1.1
    rho_p: Annotated[float, Bound(gt=0, lt=1)] = 0.9
    f_max: PositiveInt = 20

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Recommend updates and time; a child of which no times are known does one update."""
        predicted, known = view.product(PREDICTED_ROUND), view.state(self).children
        work = {}
        for child in chosen:
            times = known.get(child)
            if predicted is None or times is None:
                work[child] = Assignment(1)
                continue
            transfer = times["download"][-1] + times["upload"][-1]
            work[child] = Assignment(*recommended(predicted, transfer, times["update"][-1], self.f_max))
        if predicted is not None and work:
            mean = sum(one.updates for one in work.values()) / len(work)
            view.note(FREQUENCY_EVENT, round=view.clock, updates=mean)
        return work

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Predict every child's times (Eq. 10, 12, 13) and the next round's (Eq. 11, Algorithm 3).

        Eq. (11) is about all children: those that were abandoned, or still work on what came too late, count with
        their predicted times. Else the round's time would shrink to that of the quick ones, and who has become slower
        than the timeout would be abandoned for ever.
        """
        super().learn(view, arrivals)
        known = view.state(self).children
        for arrival in arrivals:
            self._measure(known, arrival)
        reported = {a.report.sender for a in arrivals}
        missing = [known[c] for c in view.children if c in known and c not in reported]
        real = max(total_time(a) for a in arrivals)
        real = max([real, *(sum(times[-1] for times in child.values()) for child in missing)])
        view.provide(PREDICTED_ROUND, next_time(view.product(PREDICTED_ROUND), real, self.rho_g))

    def overdue(self, memory: Memory, arrival: Arrival) -> None:
        """Learn from a report that came too late how long its child takes."""
        self._measure(memory.state(self).children, arrival)

    def _measure(self, known: dict[Address, dict[str, list[float]]], arrival: Arrival) -> None:
        report = arrival.report
        measured = {
            "update": report.compute / max(1, report.updates),
            "download": report.download,
            "upload": arrival.upload,
        }
        times = known.setdefault(report.sender, {name: [] for name in measured})
        for name, value in measured.items():
            times[name] = self.predictor.after(times[name], value)

    def forget(self, memory: Memory, child: Address) -> None:
        """A new pair starts over: without times, with one update."""
        memory.state(self).children.pop(child, None)

    def enough(self, progress: Progress) -> bool:
        """Decide, at the child, after an update: Algorithm 4."""
        state = progress.state(self)
        state.updates = expected = self.predictor.after(state.updates, progress.last)
        order = progress.order
        if order.budget is None:
            return progress.done >= order.updates
        return stops(
            progress.done, progress.spent + expected[-1], order.updates, order.budget,
            self.rho_a, self.rho_p, self.f_max,
        )  # fmt: skip

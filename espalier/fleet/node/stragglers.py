"""Rounds on a real fleet end: a child that takes much longer than the others is left out of the round, and told.

In a simulation every order is answered or its device is known to be gone. A real device may hang and keep its link. So
a round whose method sets no deadline has one here: ten times what three quarters of the children took for their last
reports, and not less than the manifest's `round_deadline` (twice that over edges, whose own rounds must end first). The
clock begins to count when somebody has reported: as long as nobody has, nobody is late. Who has never reported counts
as one that takes as long as `round_deadline`: so one fast child does not end the first round of all others. Nor does a
single slow child set the time that the others wait for it. The straggler keeps its order; its late report frees it for
the next round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from espalier.core.address import Address, host_of
from espalier.core.aggregator import Aggregator
from espalier.core.messages import Action, Alarm, CloseCohort, Deadline, Order, Report, Send
from espalier.fleet.node.environment import TIMES_SLOWER
from espalier.fleet.node.outbox import Outbox
from espalier.fleet.node.state import HostState

#: what the reminder of this file is called
OVERDUE = Alarm("@overdue")
#: seconds between two looks at a round, at least
LOOK_SECONDS = 1.0


class Stragglers:
    """Looks after the rounds of one host's aggregators. All is called in the engine's thread."""

    def __init__(self, state: HostState, outbox: Outbox, least_seconds: float | None) -> None:
        """Wait at least so many seconds for a child (None: for ever); go on with what an earlier incarnation knew."""
        self._state, self._outbox, self._least = state, outbox, least_seconds
        #: when orders went out: (child, order) -> time
        known = state.journal.get("stragglers") or {}
        self._sent: dict[tuple[Address, int], float] = known.get("sent", {})
        #: what each child took for its last report: aggregator -> child -> seconds
        self._took: dict[Address, dict[Address, float]] = known.get("took", {})
        #: when each child last reported
        self.last_report: dict[Address, float] = known.get("last", {})

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        self._state.journal.put("stragglers", {"sent": self._sent, "took": self._took, "last": self.last_report})

    def ordered(self, node: Address, actions: Sequence[Action]) -> None:
        """An aggregator gives orders: see to it that its round ends."""
        if not isinstance(self._state.nodes.get(node), Aggregator):
            return
        orders = [a.message for a in actions if isinstance(a, Send) and isinstance(a.message, Order)]
        for order in orders:
            self._sent[order.to, order.id] = self._state.now()
        if self._least is not None and orders and not self._state.timers.has(node, OVERDUE):
            self._state.timers.set(node, self._least, Deadline(OVERDUE))

    def reported(self, report: Report) -> float:
        """A child has reported: note when, and return how long it took, at most (since the run began)."""
        now = self.last_report[report.sender] = self._state.now()
        sent = self._sent.pop((report.sender, report.order), None)
        if sent is None:
            return now
        for key in [k for k in self._sent if k[0] == report.sender and k[1] < report.order]:
            del self._sent[key]  # superseded, and never answered
        self._took.setdefault(report.to, {})[report.sender] = now - sent
        return now - sent

    def left(self, node: Address, child: Address) -> None:
        """A child left: what it took is of no account any more."""
        self._took.get(node, {}).pop(child, None)
        for key in [k for k in self._sent if k[0] == child]:
            del self._sent[key]

    def _limit(self, node: Address, waiting: Collection[Address] = ()) -> float | None:
        """Return the seconds that an aggregator may wait for children; None if nobody has reported yet."""
        assert self._least is not None
        if not self._took.get(node):
            return None
        took, directory = self._took[node], self._state.directory
        below = max(_tiers(child, directory.n_devices, directory.n_edges) for child in {*took, *waiting})
        return (1 + below) * patience(took, waiting, self._least)

    def due(self, node: Address) -> None:
        """Look at an aggregator's rounds: end those that have waited too long, look again at the others."""
        state, aggregator = self._state, self._state.nodes.get(node)
        if state.frozen or self._least is None or not isinstance(aggregator, Aggregator):
            return
        again: list[float] = []
        for key, cohort in list(aggregator.state.cohorts.items()):
            close = CloseCohort(key, cohort.round)
            own = state.timers.has(node, close)
            if not cohort.open or cohort.overdue or not cohort.waiting or own:
                continue
            limit = self._limit(node, cohort.waiting)
            left = self._least if limit is None else limit - (state.now() - cohort.opened)
            if limit is None or left > 0:
                again.append(left)
                continue
            late = sorted(cohort.waiting)
            data = {"node": node, "children": late, "round": cohort.round, "seconds": round(limit, 3)}
            state.conduct.record(node, "overdue", data)
            for child in late:
                if host_of(child) != state.me:
                    self._outbox.say(host_of(child), "overdue", node=child, round=cohort.round)
            state.begin(node, Deadline(close))
        if again:
            state.timers.set(node, max(LOOK_SECONDS, min(again)), Deadline(OVERDUE))


def patience(took: Mapping[Address, float], waiting: Collection[Address], least: float) -> float:
    """Return how long is waited for some of those of whom others took so many seconds, per tier."""
    seconds = [*took.values(), *(least for node in waiting if node not in took)]
    return max(least, TIMES_SLOWER * float(np.quantile(seconds, 0.75, method="lower")))


def _tiers(child: Address, devices: int, edges: int) -> int:
    """Return how many tiers of aggregators are below a child's parent, the child's own included."""
    if child < devices:
        return 0
    return 1 if host_of(child) < devices + edges else 2

"""The agent of a device: it finds its place in the tree by talking with others.

It knows its neighbours, what a probe tells (delay and hops to a host whose address it has, whether that answers),
and what messages say. Nobody sees the whole. A cluster of level h holds devices (h = 0) or the aggregators of
level h; its central node runs the aggregator of level h + 1 for it::

    greet neighbours ── someone has a cluster ──> ask central nodes ──> join one          (a newcomer)
       └─ nobody has ─> elect by two-hop probability ─> heralds ─> choose, join           (the beginning)
                            └─ central nodes: exchange nodes ─> hold a vote ─> the new central node leads
    central nodes: who adjoins whom ─> the oldest tree known ─> its first central node holds the vote for the root
    a host is gone: its central node strikes it off; if it was the central node, the next in line holds a vote
    whatever goes wrong: greet again (a device), ask the others or scout again (a central node)

An agent lives as long as one event: what it remembers is its state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from espalier.core.address import role
from espalier.core.environment import Environment
from espalier.core.messages import Action, Alarm, Arrange, Lost, Record, Send, SetDeadline, Word
from espalier.methods.easf.dsf.state import NONE, AgentState, Bounds

Handler = Callable[["Agent", Word], None]
Timer = Callable[["Agent", int], None]

_WORDS: dict[str, Handler] = {}
_TIMERS: dict[str, Timer] = {}
_LOSSES: list[Timer] = []


def on_word(kind: str) -> Callable[[Handler], Handler]:
    """Let a function take the words of a kind."""

    def add(function: Handler) -> Handler:
        _WORDS[kind] = function
        return function

    return add


def on_timer(key: str) -> Callable[[Timer], Timer]:
    """Let a function take a timer; it gets the level that the timer was set for."""

    def add(function: Timer) -> Timer:
        _TIMERS[key] = function
        return function

    return add


def on_loss(function: Timer) -> Timer:
    """Let a function know when a watched host is gone."""
    _LOSSES.append(function)
    return function


class Agent:
    """One event's worth of an agent: takes the event, changes the state, collects actions in ``out``."""

    __slots__ = ("bounds", "env", "me", "now", "out", "state")

    def __init__(self, me: int, bounds: Bounds, env: Environment, state: AgentState, now: float) -> None:
        self.me, self.bounds, self.env, self.state, self.now = me, bounds, env, state, now
        self.out: list[Action] = []

    # -- taking ------------------------------------------------------------------------------------------

    def hear(self, word: Word) -> None:
        """Take a word of another agent, unless it was to this one before it was away: it knows nothing of that."""
        if word.sent < self.state.born:
            return
        since = self.state.lost.get(word.sender)
        if since is not None and word.sent >= since:
            del self.state.lost[word.sender]
        _WORDS[word.kind](self, word)

    def ring(self, alarm: Alarm) -> None:
        """Take a timer, unless it was set anew or stopped since."""
        if self.state.timers.get(alarm.key) == alarm.number:
            key, _, level = alarm.key.partition(" ")
            _TIMERS[key](self, int(level or 0))

    def miss(self, event: Lost) -> None:
        """A host is gone."""
        for function in _LOSSES:
            function(self, event.host)

    def watches(self, host: int) -> bool:
        """Tell whether it matters to this agent that a host is gone."""
        state = self.state
        return (
            host in state.wooing.values()
            or any(host == organiser for organiser, _ in state.polled.values())
            or host in state.asked
            or host in state.trades.near
            or (state.top is not None and state.top[1] == host)
            or any(host in seat.roster or host == seat.centre for seat in state.seats.values())
            or any(host in court.members for court in state.courts.values())
            or any(host in ballot.members for ballot in state.ballots.values())
            or any(host in members for members in state.pending.values())
        )

    # -- doing -------------------------------------------------------------------------------------------

    def send(self, kind: str, to: int, **data: Any) -> None:
        """Send a word to another agent."""
        self.state.sent += 1
        self.out.append(Send(Word(kind, self.me, to, self.now, data)))

    def tell_head(self, level: int, kind: str, **data: Any) -> None:
        """Tell the aggregator that this device runs at a level (on the same host: it costs nothing)."""
        self.out.append(Send(Word(kind, self.me, role(self.me, level), self.now, data)))

    def timer(self, key: str, waits: float, level: int | None = None, seconds: float = 0.0) -> None:
        """Set (or set anew) a timer to so many times the agent's patience, plus some seconds."""
        key = key if level is None else f"{key} {level}"
        number = self.state.timers[key] = self.state.timers.get(key, 0) + 1
        self.out.append(SetDeadline(waits * self.bounds.patience + seconds, Alarm(key, number)))

    def stop(self, key: str, level: int | None = None) -> None:
        """Make a timer void."""
        key = key if level is None else f"{key} {level}"
        self.state.timers[key] = self.state.timers.get(key, 0) + 1

    def attach(self, level: int, centre: int) -> None:
        """Let this device's node of a level report to the aggregator that leads its cluster."""
        self.out.append(Arrange({role(self.me, level): role(centre, level + 1)}, {}))

    def record(self, kind: str, **data: Any) -> None:
        """Write something into the run's record."""
        self.out.append(Record(kind, data))

    # -- what it can find out ------------------------------------------------------------------------------

    @property
    def able(self) -> bool:
        """Whether this device may aggregate."""
        return self.env.may_aggregate(self.me)

    @property
    def accuracy(self) -> float:
        """The device's accuracy, 0 where it is of no account."""
        return 0.0 if math.isnan(self.state.accuracy) else self.state.accuracy

    def neighbours(self) -> list[int]:
        """Return the devices with a direct link to this one, ascending."""
        found: list[int] = self.env.places.neighbours(self.me)
        return found

    def delay(self, other: int) -> float:
        """Return the seconds that a model takes between this device and another."""
        return self.env.links.delay(self.me, other, self.now) if other != self.me else 0.0

    def hops(self, other: int) -> float:
        """Return the hops between this device and another."""
        return self.env.links.hop_count(self.me, other) if other != self.me else 0.0

    def answers(self, other: int) -> bool:
        """Tell whether a host answers a probe."""
        return other == self.me or self.env.places.answers(other)

    def gone(self, host: int) -> bool:
        """Tell whether a host is known to be gone (nobody is, too). It may have come back unheard: a probe tells."""
        if host in self.state.lost and self.answers(host):
            del self.state.lost[host]
        return host == NONE or host in self.state.lost

    def name(self) -> int:
        """Return a name for a cluster that is founded now: older ones are smaller."""
        return (int(self.now * 1000) << 32) | self.me

"""Messages on their way: how long they take, what they cost, what the world does to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from espalier.core.address import Address, host_of
from espalier.core.messages import Arrived, ChildLeft, Message, Order, Part, Report
from espalier.core.params import ParamSpec, Spans
from espalier.core.policies import Local
from espalier.simulator.checkpoint import Saved
from espalier.simulator.clock import NODE, WORLD, ToNode, ToWorld
from espalier.simulator.environment import SimulationContext
from espalier.world import BoundLinks, Hop, Tier, Uplink

#: seconds after which a message without acknowledgement is sent again
RESEND_SECONDS = 2.0


def payload_bytes(value: Any) -> int:
    """Bytes of control data on a link: 4 for a number, a name's letters, arrays at 4 per number."""
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, int | float | np.generic):
        return 4
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, np.ndarray):
        return 4 * value.size
    if isinstance(value, Part):
        return 4 * value.size
    if isinstance(value, Mapping):
        return sum(payload_bytes(v) for v in value.values())
    return sum(payload_bytes(v) for v in value)


class Uplinks(Saved):
    """Edges' uplinks that their devices share; edges are host numbers.

    Where the world's links say ``time_shared``, uploads at one edge go one after another at the full rate, the earliest
    ready first. Where they say ``equal_share``, an edge splits its uplink evenly among the devices of the round that
    was opened there last, and each keeps its part however many of them are sending.
    """

    SAVED = ("_free", "_round")

    def __init__(self) -> None:
        #: when an edge's uplink is free again
        self._free: dict[int, float] = {}
        #: the round that shares an edge's uplink: who opened it, its number, its devices through this edge
        self._round: dict[int, tuple[Address, int, int]] = {}

    def ordered(self, edge: int, sender: Address, number: int) -> None:
        """A device behind an edge got an order of round ``number`` of ``sender``."""
        who, which, count = self._round.get(edge, (sender, number, 0))
        count = count + 1 if (who, which) == (sender, number) else 1
        self._round[edge] = (sender, number, count)

    def delay(self, kind: Uplink, edge: int, at: float, seconds: float) -> float:
        """Let an upload begin that takes ``seconds`` alone; return how many seconds later it ends than alone."""
        if kind == "time_shared":
            start = max(at, self._free.get(edge, at))
            self._free[edge] = start + seconds
            return start - at
        if kind == "equal_share":
            return (max(1, self._round[edge][2] if edge in self._round else 1) - 1) * seconds
        return 0.0


class Transport(Saved):
    """Carries messages between hosts.

    Args:
        context: What the parts of the simulation share.
        spec: The models' size.
        local: The devices' policy: how they code the models of their reports.
        shares: Which places of a model go between a host and those above it.
        inform: Lets an aggregator know that a child cannot be reached.
    """

    SAVED = ("_messages", "_uplinks")

    def __init__(
        self,
        context: SimulationContext,
        spec: ParamSpec,
        local: Local,
        shares: Callable[[Address, ParamSpec], Spans | None],
        inform: Callable[[Address, ChildLeft], None],
    ) -> None:
        self._world, self._conditions, self._presence = context.world, context.conditions, context.presence
        self._clock, self._recorder, self._usage = context.clock, context.recorder, context.usage
        self._spans, self._n_devices = context.spans, context.fleet.n_devices
        self._spec, self._local, self._inform = spec, local, inform
        #: the bytes of a model between a host and those above it
        self._model_bytes = cache(lambda child: spec.link_bytes(shares(child, spec)))
        self._messages = 0
        self._uplinks = Uplinks()

    def sizes(self, message: Message) -> tuple[int, int]:
        """Return a message's bytes: (models, control data)."""
        child = min(host_of(message.sender), host_of(message.to))
        whole = self._model_bytes(child if child >= self._n_devices else 0)  # all devices' is the same
        if isinstance(message, Order):
            extra = 0 if message.anchor is None or message.anchor in message.models.values() else 1
            count = len(message.models) + len(message.auxiliary) + extra
            return whole * count, payload_bytes(message.args) if message.args else 0
        if isinstance(message, Report):
            spec, coded = self._spec, message.sender < self._n_devices
            # Whoever did not give the order lacks the model that a coded one differs from: it gets the whole.
            coded = coded and message.to == message.dispatcher
            each = self._local.model_bytes(spec) if coded else whole
            beside = whole * len(message.auxiliary)
            return each * len(message.models) + beside, payload_bytes(message.stats) if message.stats else 0
        return 0, payload_bytes(message.data)

    def send(self, message: Message, since: float | None = None) -> None:
        """Let a message arrive where it should, when the links say.

        Args:
            message: The message.
            since: When it was first tried in vain.
        """
        conditions, now = self._conditions, self._clock.now
        src, dst = host_of(message.sender), host_of(message.to)
        model, control = self.sizes(message)
        number = self._messages
        self._messages += 1
        if src == dst:
            self._arrive(message, now)
            return
        device = min(src, dst)
        via = conditions.via(device) if device < self._n_devices else None
        links = conditions.links()
        hops = links.hops(src, dst, via)
        at = self._way_back(src, dst, hops)
        seconds = links.time(src, dst, model + control, at, via) if math.isfinite(at) else math.inf
        if seconds == math.inf:
            self._try_again(message, now if since is None else since)
            return
        if links.broadcast == "free" and isinstance(message, Order) and max(src, dst) < self._n_devices:
            seconds = 0.0
        copies = [1] * len(hops)
        if not self._world.faults.still:
            for i, (tier, _, _) in enumerate(hops):
                copies[i], at = self._fate(tier, number, at)
        if links.uplink != "private":
            at += self._shared(message, links, via, model + control, at)
        for i, (tier, a, b) in enumerate(hops):
            direction = "peer" if tier == Tier.DEV_DEV else ("up" if a < b else "down")
            self._usage.carried(tier, direction, model * copies[i], control * copies[i])
        if model:
            arrival = at + seconds
            self._usage.spent(src, "send", arrival - now)
            self._usage.spent(dst, "receive", arrival - now)
            if self._spans:
                self._recorder.span(src, "send", now, arrival, dst)
        self._arrive(message, at + seconds)

    def _fate(self, tier: Tier, number: int, at: float) -> tuple[int, float]:
        """Return how often a message that is at a hop crosses it, and when it does so at last."""
        attempt, faults = 0, self._world.faults
        fate = faults.fate(tier, number)
        while fate.lost or fate.corrupted:
            attempt += 1
            at += RESEND_SECONDS
            fate = faults.fate(tier, number + (attempt << 40))
        return 1 + attempt + int(fate.duplicated), at + fate.delay_extra

    def _way_back(self, src: int, dst: int, hops: Sequence[Hop]) -> float:
        """Return when all links of a way are there: now, or when they are back (inf: nobody knows)."""
        if len(hops) > 1 and any(not self._presence.alive(b) for _, _, b in hops[:-1]):
            return math.inf  # a relay is down
        at, before = self._clock.now, -math.inf
        if self._world.faults.still:
            return at
        parts = [(src, dst), *((a, b) for _, a, b in hops)]
        while before < at < math.inf:
            before = at
            for a, b in parts:
                at = self._world.faults.back(a, b, at)
        return at

    def _try_again(self, message: Message, since: float) -> None:
        """Try a message without a way again and again; give it up when silence would be noticed."""
        now = self._clock.now
        src, dst = host_of(message.sender), host_of(message.to)
        if since == now:
            self._recorder.event(now, "unreachable", src, {"to": dst})
        if now - since < max(self._world.notice, RESEND_SECONDS):
            what = {"message": message, "since": since, "incarnation": self._presence.incarnation(src)}
            self._clock.push(now + RESEND_SECONDS, WORLD, ToWorld("resend", what))
            return
        self._recorder.event(now, "undelivered", src, {"to": dst})
        # The receiver of an answer is told that none will come; else its round would never close.
        if isinstance(message, Order):
            self._inform(message.sender, ChildLeft(message.to))
        elif isinstance(message, Report):
            self._inform(message.to, ChildLeft(message.sender))

    def _shared(self, message: Message, links: BoundLinks, via: int | None, nbytes: int, at: float) -> float:
        """Return how much longer an upload takes because others use its edge's uplink."""
        src, dst = host_of(message.sender), host_of(message.to)
        devices = self._n_devices
        if src >= devices > dst and isinstance(message, Order) and message.models:
            self._uplinks.ordered(links.hops(src, dst, via)[-1][1], message.sender, message.round)
        if src < devices <= dst and nbytes:
            edge = links.hops(src, dst, via)[0][2]
            return self._uplinks.delay(links.uplink, edge, at, links.time(src, edge, nbytes, at, via))
        return 0.0

    def _arrive(self, message: Message, at: float) -> None:
        incarnation = self._presence.incarnation(host_of(message.to))
        self._clock.push(at, NODE, ToNode(message.to, Arrived(message), incarnation))

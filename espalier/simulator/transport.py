"""Messages on their way: how long they take, what they cost, what the world does to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.core.address import host_of
from espalier.core.messages import Arrived, ChildLeft, Message, Order, Part, Report
from espalier.simulator.queue import NODE, WORLD, ToNode, ToWorld
from espalier.simulator.uplinks import Uplinks
from espalier.world.protocols import BoundLinks, Tier

if TYPE_CHECKING:
    from espalier.simulator.simulation import Simulation

#: seconds after which a message without acknowledgement is sent again
RESEND = 2.0


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


class Transport:
    """Carries messages between hosts."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.uplinks = Uplinks()

    def sizes(self, message: Message) -> tuple[int, int]:
        """Return a message's bytes: (models, control data)."""
        if isinstance(message, Order):
            extra = 0 if message.anchor is None or message.anchor in message.models.values() else 1
            return self.sim.task.spec.model_bytes * (len(message.models) + extra), payload_bytes(message.args)
        if isinstance(message, Report):
            spec, coded = self.sim.task.spec, message.sender < self.sim.fleet.n_devices
            # Whoever did not give the order lacks the model that a coded one differs from: it gets the whole.
            coded = coded and message.to == message.dispatcher
            each = self.sim.plan.local.model_bytes(spec) if coded else spec.model_bytes
            return each * len(message.models), payload_bytes(message.stats)
        return 0, payload_bytes(message.data)

    def send(self, message: Message, since: float | None = None) -> None:
        """Let a message arrive where it should, when the links say.

        Args:
            message: The message.
            since: When it was first tried in vain.
        """
        sim = self.sim
        src, dst = host_of(message.sender), host_of(message.to)
        model, control = self.sizes(message)
        number = sim.messages
        sim.messages += 1
        if src == dst:
            self._arrive(message, sim.now)
            return
        device = min(src, dst)
        via = sim.weather.via(device) if device < sim.fleet.n_devices else None
        links, faults = sim.weather.links(), sim.world.faults
        hops = links.hops(src, dst, via)
        at = self._way_back([(src, dst), *((a, b) for _, a, b in hops)])
        seconds = links.time(src, dst, model + control, at, via) if math.isfinite(at) else math.inf
        if seconds == math.inf:
            self._try_again(message, sim.now if since is None else since)
            return
        if links.broadcast == "free" and isinstance(message, Order) and max(src, dst) < sim.fleet.n_devices:
            seconds = 0.0
        copies = dict.fromkeys(range(len(hops)), 1)
        if faults is not None:
            for i, (tier, _, _) in enumerate(hops):
                attempt = 0
                fate = faults.fate(tier, number)
                while fate.lost or fate.corrupted:
                    attempt += 1
                    copies[i] += 1
                    at += RESEND
                    fate = faults.fate(tier, number + (attempt << 40))
                copies[i] += int(fate.duplicated)
                at += fate.delay_extra
        if links.uplink != "private":
            at += self._shared(message, links, via, model + control, at)
        for i, (tier, a, b) in enumerate(hops):
            direction = "peer" if tier == Tier.DEV_DEV else ("up" if a < b else "down")
            sim.meter.carried(tier, direction, model * copies[i], control * copies[i])
        if model:
            arrival = at + seconds
            sim.meter.spent(src, "send", arrival - sim.now)
            sim.meter.spent(dst, "receive", arrival - sim.now)
            if sim.spans:
                sim.recorder.span(src, "send", sim.now, arrival, dst)
        self._arrive(message, at + seconds)

    def _way_back(self, parts: list[tuple[int, int]]) -> float:
        """Return when all of these links are there: now, or when they are back (inf: nobody knows)."""
        sim = self.sim
        if len(parts) > 2 and any(not sim.weather.alive(b) for _, b in parts[1:-1]):
            return math.inf  # a relay is down
        at, before = sim.now, -math.inf
        while before < at < math.inf:
            before = at
            for a, b in parts:
                at = sim.world.faults.back(a, b, at)
        return at

    def _try_again(self, message: Message, since: float) -> None:
        """Try a message without a way again and again; give it up when silence would be noticed."""
        sim = self.sim
        src, dst = host_of(message.sender), host_of(message.to)
        if since == sim.now:
            sim.recorder.event(sim.now, "unreachable", src, {"to": dst})
        if sim.now - since < max(sim.world.notice, RESEND):
            what = {"message": message, "since": since, "life": sim.weather.life(src)}
            sim.queue.push(sim.now + RESEND, WORLD, ToWorld("resend", what))
            return
        sim.recorder.event(sim.now, "undelivered", src, {"to": dst})
        # Whoever waits for an answer must not wait for ever.
        if isinstance(message, Order):
            sim.inform(message.sender, ChildLeft(message.to))
        elif isinstance(message, Report):
            sim.inform(message.to, ChildLeft(message.sender))

    def _shared(self, message: Message, links: BoundLinks, via: int | None, nbytes: int, at: float) -> float:
        """Return how much longer an upload takes because others use its edge's uplink."""
        src, dst = host_of(message.sender), host_of(message.to)
        devices = self.sim.fleet.n_devices
        if src >= devices > dst and isinstance(message, Order) and message.models:
            self.uplinks.ordered(links.hops(src, dst, via)[-1][1], message.sender, message.round)
        if src < devices <= dst and nbytes:
            edge = links.hops(src, dst, via)[0][2]
            return self.uplinks.delay(links.uplink, edge, at, links.time(src, edge, nbytes, at, via))
        return 0.0

    def _arrive(self, message: Message, at: float) -> None:
        sim = self.sim
        life = sim.weather.life(host_of(message.to))
        sim.queue.push(at, NODE, ToNode(message.to, Arrived(message), life))

"""Links between devices: kept while an arrangement wants them, and made for a moment to measure them."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial

from espalier.fleet.coordinator.member import Participant
from espalier.fleet.links.hub import Hub
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.transport import dial
from espalier.fleet.node.events import Call

#: peers that are measured at one time
TOGETHER = 4
#: seconds that a measurement may take
MEASURE_SECONDS = 10.0


class PeerLinks:
    """The links of one device to others."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._kept: dict[int, asyncio.Task[None]] = {}
        self._measured: set[int] = set()
        self._few = asyncio.Semaphore(TOGETHER)

    def look(self) -> None:
        """Make the links that are wanted, and measure those to peers that are new."""
        hub = self._hub
        conduct = hub.conduct
        if not isinstance(conduct, Participant) or hub.identity.role != "device":
            return
        for address in conduct.peers:
            if address not in self._kept or self._kept[address].done():
                self._kept[address] = hub.spawn(self._keep(address))
        assert hub.manifest is not None
        if hub.manifest.script is not None or conduct.measured_peers == len(conduct.engine.directory.others):
            return
        others = dict(conduct.engine.directory.others)
        conduct.measured_peers = len(others)
        for address, member in others.items():
            if member.endpoint and address != hub.me and address not in self._measured:
                self._measured.add(address)
                hub.spawn(self._measure(address, member.endpoint, member.name))

    def invited(self) -> dict[str, int]:
        """Return the names of peers that may link here."""
        conduct = self._hub.conduct
        if not isinstance(conduct, Participant):
            return {}
        return {m.name: m.address for m in list(conduct.engine.directory.others.values())} | conduct.invited

    def add(self, address: int, link: Link) -> None:
        """A peer has a link of its own to this hub."""
        hub = self._hub
        old = hub.routes.peers.get(address)
        hub.routes.peers[address] = link
        if old is not None:
            old.close()
        hub.resend([address])

    def _hello(self, probe: bool = False) -> pb.Hello:
        hello = self._hub.hello()
        hello.peer, hello.probe = True, probe
        return hello

    async def _keep(self, address: int) -> None:
        """Keep a link to a peer while an arrangement wants it; without it, letters go by way of the parents."""
        hub = self._hub
        while isinstance(hub.conduct, Participant) and address in hub.conduct.peers and not hub.stopping:
            endpoint, name = hub.conduct.peers[address]
            made: list[Link] = []

            async def take(link: Link, frame: pb.Frame) -> None:
                if frame.HasField("welcome"):
                    link.version = frame.welcome.version
                    self.add(address, link)
                elif hub.relay is not None and hub.relay.take(link, frame):
                    await hub.keep_pace(link, frame)

            await dial(hub.bundle, endpoint, name, self._hello(), take, connected=made.append)
            for link in made:
                if hub.routes.peers.get(address) is link:  # it may have made a link of its own meanwhile
                    del hub.routes.peers[address]
                if hub.relay is not None:
                    hub.relay.drop(link)
            await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _measure(self, address: int, endpoint: str, name: str) -> None:
        """Find out how long a model would take to a peer, over a link that is made for that alone."""
        hub = self._hub
        size = hub.model_bytes
        ballasts = [0, 0, min(size, 64 << 10)]
        trips: list[float] = []

        async def take(link: Link, frame: pb.Frame) -> None:
            if frame.HasField("pong"):
                trips.append(time.monotonic() - frame.pong.sent)
            elif not frame.HasField("welcome"):
                link.close()
                return
            if len(trips) == len(ballasts):
                link.close()
            else:
                ballast = bytes(ballasts[len(trips)])
                link.post(pb.Frame(ping=pb.Ping(sent=time.monotonic(), ballast=ballast)))

        async with self._few:
            call = dial(hub.bundle, endpoint, name, self._hello(True), take, connected=lambda link: None)
            try:
                async with asyncio.timeout(MEASURE_SECONDS):
                    await call
            except TimeoutError:
                return
        if len(trips) == len(ballasts):
            short = min(trips[:2])
            seconds = short / 2 + max(0.0, trips[2] - short) * size / max(1, ballasts[2])
            hub.put(Call(partial(self._note, address, seconds)))

    def _note(self, address: int, seconds: float) -> None:
        engine = self._hub.engine
        assert engine is not None
        engine.directory.measured[engine.me, address] = seconds
        engine.directory.measured[address, engine.me] = seconds

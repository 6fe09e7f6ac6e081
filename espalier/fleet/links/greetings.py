"""Greetings at a node's door: who joins the run under which number, who waits for one, who is a peer's link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from espalier.core.errors import ConfigError, EspalierError, ProtocolError
from espalier.fleet.certs import is_name
from espalier.fleet.coordinator.enrolment import RunFull
from espalier.fleet.links import wire
from espalier.fleet.links.door import NAME_LETTERS, in_few_words
from espalier.fleet.links.hub import Hub
from espalier.fleet.links.link import Link
from espalier.fleet.links.peers import PeerLinks
from espalier.fleet.links.protocol import espalier_pb2 as pb

#: seconds that an edge waits for the cloud's answer about a newcomer
ENROL_SECONDS = 10.0
#: seconds that a peer which this node has not heard of yet may wait
UNKNOWN_PEER_SECONDS = 3.0


class Greetings:
    """Receives children and peers at one hub.

    Attributes:
        probes: Links of peers that only measure how far it is.
    """

    def __init__(self, hub: Hub, peers: PeerLinks, refuse: Callable[..., None]) -> None:
        """Greet for a hub; ``refuse(link, why, final=…)`` tells a link why it ends, and ends it."""
        self._hub, self._peers, self._refuse = hub, peers, refuse
        self.probes: set[Link] = set()
        self._enrolling: dict[str, asyncio.Future[pb.Enrolled]] = {}
        #: who asked for somebody further down: name -> links
        self._asked: dict[str, set[Link]] = {}

    async def greet(self, link: Link, hello: pb.Hello) -> None:
        """Take the first frame of a link: let it in, let it wait, or refuse it."""
        hub, peer = self._hub, link.peer
        assert peer is not None
        theirs = wire.WireVersions(hello.version, max(hello.version, hello.newest))
        version = hub.settings.versions.common(theirs)
        if version is None:
            why = f"it speaks {theirs} of the protocol, this node {hub.settings.versions}: upgrade the older one"
            self._refuse(link, why, final=True)
            return
        link.version = version
        if peer.role not in ("edge", "device"):
            self._refuse(link, f"a {peer.role} has no parent", final=True)
            return
        waits = self._has_no_run(hello)
        if waits or (hub.idle and not hello.peer):
            self._let_wait(link, hello, version, waits or "")
            return
        if hub.engine is None or hub.manifest is None:
            self._not_now(link, "not ready yet")
            return
        if hello.peer:
            await self._greet_peer(link, hello, version)
            return
        if hub.identity.role == "device":
            # its own parent would have to be asked who this is, which no device may ask
            self._refuse(link, "devices have no children", final=True)
            return
        if len(hub.routes.children) >= hub.manifest.limits.children:
            self._refuse(link, f"{len(hub.routes.children)} children are linked already")
            return
        try:
            address = await self._enrol(peer.name, peer.role, hello.wish)
        except ConfigError as error:
            if isinstance(error, RunFull) and hub.manifest.standing:
                self._let_wait(link, hello, version, str(error))
            else:
                self._refuse(link, str(error), final=True)
            return
        except (TimeoutError, EspalierError):
            self._not_now(link, "the cloud cannot be asked now")
            return
        if not link.open:
            return
        before = hub.routes.add(address, peer.name, peer.role, link, hello.member.stamp)
        if before is not None:
            before.close()
        link.post(pb.Frame(welcome=hub.welcome(address, version)))

    def _not_now(self, link: Link, why: str) -> None:
        """Let somebody try again soon."""
        link.post(pb.Frame(refusal=pb.Refusal(why=why, final=False)))
        link.close()

    # -- who waits -------------------------------------------------------------------------------------------

    def _has_no_run(self, hello: pb.Hello) -> str | None:
        """Say why the run that goes on here is none for somebody; None if it is."""
        hub = self._hub
        if hub.engine is None or hub.manifest is None or hello.peer:
            return None
        run = hub.manifest.run
        if hello.declined == run:
            return in_few_words(hello.why) or "it cannot take part"
        if hello.run not in ("", run):
            return f"it comes from another run, {hello.run[:NAME_LETTERS]}"
        if not hello.run and hub.conduct is not None and hub.conduct.finished and hub.manifest.standing:
            return "the run is over"
        return None

    def _let_wait(self, link: Link, hello: pb.Hello, version: int, why: str) -> None:
        """Let somebody wait on its link until there is a run for it."""
        hub, peer = self._hub, link.peer
        assert peer is not None
        if len(hub.door.room) >= hub.admission.limits.children:
            self._refuse(link, f"{len(hub.door.room)} wait already")
            return
        name, software = hub.identity.name, in_few_words(hello.member.version[:NAME_LETTERS])
        waiter = pb.Waiter(name=peer.name, role=peer.role, parent=name, version=software, why=why)
        hub.door.room.enter(link, waiter)
        parent = hub.myself().to_wire()
        link.post(pb.Frame(welcome=pb.Welcome(version=version, parent=parent, crl=hub.admission.crl, standing=True)))

    def waits(self, link: Link, frame: pb.Frame) -> None:
        """Take a frame of somebody who waits."""
        kind, room = frame.WhichOneof("kind"), self._hub.door.room
        if kind == "waiting" and link.peer is not None and link.peer.role == "edge":
            room.told(link, frame.waiting)
        elif kind == "bye":
            room.leave(link)
            link.close()
        else:
            raise ProtocolError(f"Somebody who waits for a run sends {kind!r}.")

    async def _greet_peer(self, link: Link, hello: pb.Hello, version: int) -> None:
        hub = self._hub
        assert link.peer is not None
        for _ in range(round(UNKNOWN_PEER_SECONDS / 0.1)):
            # it may have heard of the arrangement before this node has
            if link.peer.name in self._peers.invited():
                break
            await asyncio.sleep(0.1)
        address = self._peers.invited().get(link.peer.name)
        if address is None:
            self._refuse(link, f"{link.peer.name} is no peer of this node")
            return
        if not hello.run:
            raise ProtocolError("A peer that takes part in no run.")
        if hello.probe:
            self.probes.add(link)
        else:
            self._peers.add(address, link)
        link.post(pb.Frame(welcome=pb.Welcome(version=version, address=address, now=hub.clock.now())))

    async def _enrol(self, name: str, role: str, wish: int) -> int:
        """Return a name's number: known, or from the cloud.

        Raises:
            ConfigError: The cloud refuses it.
        """
        hub = self._hub
        if hub.registry is not None:
            registry = hub.registry
            return await hub.call(lambda: registry.enrol(name, role, wish))
        known = hub.names.get(name)
        if known is not None:
            return known
        if hub.routes.parent is None:
            raise EspalierError("no way to the cloud")
        answer: asyncio.Future[pb.Enrolled] = asyncio.get_running_loop().create_future()
        self._enrolling[name] = answer
        try:
            hub.routes.parent.post(pb.Frame(enrol=pb.Enrol(name=name, role=role, wish=wish)))
            async with asyncio.timeout(ENROL_SECONDS):
                found = await answer
        finally:
            self._enrolling.pop(name, None)
        if found.refused:
            raise RunFull(found.refused) if found.full else ConfigError(found.refused)
        await hub.learn_name(name, found.address)
        return found.address

    async def enrol_for(self, link: Link, ask: pb.Enrol) -> None:
        """Answer an edge that asks for somebody at its door, or ask further up.

        Raises:
            ProtocolError: Nobody can be at its door who is called so.
        """
        hub = self._hub
        if not is_name(ask.name) or ask.role not in ("edge", "device"):
            raise ProtocolError(f"It asks to enrol {ask.name[:NAME_LETTERS]!r}, which no certificate can say.")
        if hub.registry is not None:
            registry = hub.registry
            try:
                address = await hub.call(lambda: registry.enrol(ask.name, ask.role, ask.wish))
                answer = pb.Enrolled(name=ask.name, address=address)
            except ConfigError as error:
                full = isinstance(error, RunFull) and hub.manifest is not None and hub.manifest.standing
                if not full:
                    hub.refused(ask.name, str(error))
                answer = pb.Enrolled(name=ask.name, refused=str(error), full=full)
            link.post(pb.Frame(enrolled=answer))
        elif hub.routes.parent is not None:
            self._asked.setdefault(ask.name, set()).add(link)
            hub.routes.parent.post(pb.Frame(enrol=ask))

    def enrolled(self, answer: pb.Enrolled) -> None:
        """The cloud's answer came from above."""
        waiting = self._enrolling.get(answer.name)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
        for asked in self._asked.pop(answer.name, ()):
            asked.post(pb.Frame(enrolled=answer))

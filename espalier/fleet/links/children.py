"""Links from below: greetings, who is reached through which child, and how long a lost one is waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from espalier.core.errors import ConfigError, EspalierError, ProtocolError
from espalier.fleet.authority.rules import SCOPES, Scope
from espalier.fleet.coordinator.enrolment import RunFull
from espalier.fleet.links import wire
from espalier.fleet.links.door import NAME_LETTERS, in_few_words
from espalier.fleet.links.hub import Hub
from espalier.fleet.links.peers import PeerLinks
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.routes import Child
from espalier.fleet.links.transport import Link, Take
from espalier.fleet.membership import Member
from espalier.fleet.node.events import Gone, Joined

#: seconds that an edge waits for the cloud's answer about a newcomer
ENROL_SECONDS = 10.0
#: seconds that a peer which this node has not heard of yet may wait at the door
UNKNOWN_PEER_SECONDS = 3.0
#: bytes of a ping at most
BALLAST_BYTES = 1 << 20


class ChildLinks:
    """Receives children and peers at one hub."""

    def __init__(self, hub: Hub, peers: PeerLinks) -> None:
        self._hub, self._peers = hub, peers
        #: links of peers that only measure how far it is
        self._probes: set[Link] = set()
        self._grace: dict[int, asyncio.TimerHandle] = {}
        self._enrolling: dict[str, asyncio.Future[pb.Enrolled]] = {}
        #: who asked for somebody further down: name -> link
        self._asked: dict[str, Link] = {}

    # -- the door --------------------------------------------------------------------------------------------

    async def accept(self, link: Link) -> Take | None:
        """Decide from its certificate whether a link is let in at all."""
        hub = self._hub
        why = hub.admission.refuses(link.peer)
        if why is None and link.peer is not None and hub.admission.hurries(link.peer):
            why = f"{link.peer.name} opens more links per minute than it may"
        if why is not None:
            self.refuse(link, why, final="revoked" in why or link.peer is None)
            return None
        if link.peer is not None and link.peer.role == "operator":
            if hub.door.operators is None:
                self.refuse(link, "operators talk to the cloud", final=True)
            return hub.door.operators
        return self._take

    def refuse(self, link: Link, why: str, *, final: bool = False) -> None:
        """Tell a link why it ends, write it down, and end it."""
        self._hub.refused(link.peer.name if link.peer is not None else link.target, why)
        link.post(pb.Frame(refusal=pb.Refusal(why=why, final=final)))
        link.close()

    def expel(self, address: int) -> bool:
        """Close the link of a host that has sent too many letters against the rules; False if it has none here."""
        hub = self._hub
        child = hub.routes.children.get(address)
        link = child.link if child is not None else hub.routes.peers.get(address)
        if link is None or link.peer is None:
            return False
        hub.admission.ban(link.peer.name)
        self.refuse(link, hub.admission.refuses(link.peer) or "")
        return True

    async def _take(self, link: Link, frame: pb.Frame) -> None:
        hub = self._hub
        if not link.open:
            return  # a newer link has taken its place: whoever sent this sends it again over that one
        if hub.stopping:
            link.close()  # the host of the next run takes it, when it comes again
            return
        kind = frame.WhichOneof("kind")
        child = hub.routes.child(link)
        if link in self._probes:
            if kind != "ping":
                raise ProtocolError(f"A link that measures the way sends {kind!r}; pings are accepted.")
            self._pong(link, frame.ping)
        elif link in hub.door.room:
            self._waits(link, frame)
        elif child is None and link not in hub.routes.peers.values():
            if kind != "hello":
                raise ProtocolError(f"The first frame is {kind!r}; a greeting is accepted.")
            await self._greet(link, frame.hello)
        elif hub.relay is not None and hub.relay.take(link, frame):
            pass
        else:
            if hub.relay is not None:
                hub.relay.rate(link, 1, frame.ByteSize())
            await self._take_hop(link, child, frame)

    async def _take_hop(self, link: Link, child: Child | None, frame: pb.Frame) -> None:
        """Take a frame that concerns this hop only."""
        hub, kind = self._hub, frame.WhichOneof("kind")
        if kind == "ping":
            self._pong(link, frame.ping)
        elif child is None:
            raise ProtocolError(f"A peer sends {kind!r}; letters are accepted.")
        elif kind == "reach":
            self._reached(child, frame.reach)
        elif kind == "bye":
            self._leaves(child, frame.bye.why)
        elif kind == "waiting" and child.role == "edge":
            hub.door.room.told(link, frame.waiting)
        elif kind == "enrol" and child.role == "edge":
            await self._enrol_for(link, frame.enrol)
        else:
            raise ProtocolError(f"A {child.role} sends {kind!r}, which is not its to send.")

    def _pong(self, link: Link, ping: pb.Ping) -> None:
        if len(ping.ballast) > BALLAST_BYTES:
            raise ProtocolError(f"A ping of {len(ping.ballast)} bytes; {BALLAST_BYTES} are accepted.")
        link.post(pb.Frame(pong=pb.Pong(sent=ping.sent, now=self._hub.clock.now())))

    # -- greetings -------------------------------------------------------------------------------------------

    async def _greet(self, link: Link, hello: pb.Hello) -> None:
        hub, peer = self._hub, link.peer
        assert peer is not None
        theirs = wire.WireVersions(hello.version, max(hello.version, hello.newest))
        version = hub.settings.versions.common(theirs)
        if version is None:
            why = f"it speaks {theirs} of the protocol, this node {hub.settings.versions}: upgrade the older one"
            self.refuse(link, why, final=True)
            return
        if peer.role not in ("edge", "device"):
            self.refuse(link, f"a {peer.role} has no parent", final=True)
            return
        waits = self._has_no_run(hello)
        if waits or (hub.idle and not hello.peer):
            self._let_wait(link, hello, version, waits or "")
            return
        if hub.engine is None or hub.manifest is None:
            self._not_now(link, "not ready yet")
            return
        if version < wire.SECURE_VERSION and SCOPES[Scope.SECURE](hub.engine.plan):
            why = f"secure sums need version {wire.SECURE_VERSION} of the protocol: upgrade it"
            self.refuse(link, why, final=not hub.manifest.standing)
            return
        if hello.peer:
            await self._greet_peer(link, hello, version)
            return
        if len(hub.routes.children) >= hub.manifest.limits.children:
            self.refuse(link, f"{len(hub.routes.children)} children are linked already")
            return
        try:
            address = await self._enrol(peer.name, peer.role, hello.wish)
        except RunFull as error:
            if hub.manifest.standing:
                self._let_wait(link, hello, version, str(error))
            else:
                self.refuse(link, str(error), final=True)
            return
        except ConfigError as error:
            self.refuse(link, str(error), final=True)
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
        if version < wire.WAITS_VERSION:
            self._not_now(link, "no run now")
            return
        if len(hub.door.room) >= hub.admission.limits.children:
            self.refuse(link, f"{len(hub.door.room)} wait already")
            return
        name, software = hub.identity.name, in_few_words(hello.member.version[:NAME_LETTERS])
        waiter = pb.Waiter(name=peer.name, role=peer.role, parent=name, version=software, why=why)
        hub.door.room.enter(link, waiter)
        parent = hub.myself().to_wire()
        link.post(pb.Frame(welcome=pb.Welcome(version=version, parent=parent, crl=hub.admission.crl, standing=True)))

    def _waits(self, link: Link, frame: pb.Frame) -> None:
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
            self.refuse(link, f"{link.peer.name} is no peer of this node")
            return
        if not hello.run:
            raise ProtocolError("A peer that takes part in no run.")
        if hello.probe:
            self._probes.add(link)
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

    async def _enrol_for(self, link: Link, ask: pb.Enrol) -> None:
        """Answer an edge that asks for somebody at its door, or ask further up."""
        hub = self._hub
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
            self._asked[ask.name] = link
            hub.routes.parent.post(pb.Frame(enrol=ask))

    def enrolled(self, answer: pb.Enrolled) -> None:
        """The cloud's answer came from above."""
        waiting = self._enrolling.get(answer.name)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
        asked = self._asked.pop(answer.name, None)
        if asked is not None:
            asked.post(pb.Frame(enrolled=answer))

    # -- who is below ----------------------------------------------------------------------------------------

    def _reached(self, child: Child, reach: pb.Reach) -> None:
        hub = self._hub
        members: list[Member] = []
        for one in reach.members:
            member = Member.of_wire(one)
            if member.address == child.address:
                # of itself it may say what it holds, not who it is
                member = replace(member, name=child.name, role=child.role, via=hub.me)
            elif child.role != "edge" or not self._plausible(member):
                raise ProtocolError(f"{child.name} says that {member.name} is reached through it, which cannot be.")
            members.append(member)
        gone = [h for h in reach.gone if hub.routes.forget(h, through=child.address)]
        if reach.full:
            named = {m.address for m in members}
            missing = [h for h in hub.routes.below(child.address) if h not in named]
            gone += [h for h in missing if hub.routes.forget(h, through=child.address)]
        news: list[Member] = []
        for member in members:
            fresh, old = hub.routes.learn(child.address, member)
            if old is not None:
                old.post(pb.Frame(moved=pb.Moved(address=member.address, stamp=member.stamp)))
            if fresh:
                news.append(member)
                self._wait_no_more(member.address)
        if gone:
            hub.put(Gone(gone))
        if news:
            hub.put(Joined(news))
            for member in news:
                if member.via == hub.me:
                    hub.log("joined", child=member.name, samples=member.samples)
        hub.announce(news, gone)
        hub.resend(sorted(hub.routes.below(child.address)))

    def _plausible(self, member: Member) -> bool:
        registry = self._hub.registry
        if member.role not in ("edge", "device") or member.address == self._hub.me:
            return False
        return registry is None or registry.known.get(member.name) == (member.address, member.role)

    def lost(self, link: Link) -> None:
        """A link is over: its child may come back within the fleet's patience."""
        hub = self._hub
        if hub.relay is not None:
            hub.relay.drop(link)
        self._probes.discard(link)
        for address in [a for a, peer in hub.routes.peers.items() if peer is link]:
            del hub.routes.peers[address]
        child = hub.routes.drop(link)
        if child is None or hub.stopping:
            return
        hub.log("link lost", child=child.name)
        self.wait_for(child.address)

    def wait_for(self, address: int) -> None:
        """Wait for a child that has no link."""
        patience = self._hub.manifest.patience if self._hub.manifest is not None else 10.0
        self._wait_no_more(address)
        loop = asyncio.get_running_loop()
        self._grace[address] = loop.call_later(patience, lambda: self._expired([address], "not heard of"))

    def _wait_no_more(self, address: int) -> None:
        handle = self._grace.pop(address, None)
        if handle is not None:
            handle.cancel()

    def _leaves(self, child: Child, why: str) -> None:
        self._hub.log("left", child=child.name, why=in_few_words(why))
        child.link.close()
        self._expired([child.address], why)

    def _expired(self, hosts: Sequence[int], why: str) -> None:
        hub = self._hub
        gone: list[int] = []
        for address in hosts:
            self._wait_no_more(address)
            for below in sorted(hub.routes.below(address) | {address}):
                if hub.routes.forget(below, through=address):
                    gone.append(below)
        if gone:
            hub.log("gone", hosts=gone, why=why)
            hub.put(Gone(gone))
            hub.announce([], gone)

    def moved(self, address: int, stamp: int) -> None:
        """Somebody above says that a host is reached elsewhere now."""
        hub = self._hub
        if stamp < hub.routes.stamp(address):
            return
        link = hub.routes.route(address)
        child = hub.routes.children.get(address)
        if not hub.routes.forget(address):
            return
        self._wait_no_more(address)
        if child is not None:
            child.link.close()
        elif link is not None and link is not hub.routes.parent:
            link.post(pb.Frame(moved=pb.Moved(address=address, stamp=stamp)))
        hub.put(Gone([address]))

    # -- from above ------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Tell everybody below that the way up is whole again."""
        for child in self._hub.routes.children.values():
            child.link.post(pb.Frame(resume=pb.Resume(crl=self._hub.admission.crl)))

    def revocations(self, crl: bytes) -> None:
        """Take over a list of revoked certificates, if it is genuine and newer; links of revoked ones end."""
        hub = self._hub
        with contextlib.suppress(ConfigError):
            if crl and hub.admission.update(crl):
                for child in list(hub.routes.children.values()):
                    why = hub.admission.refuses(child.link.peer)
                    if why is not None:
                        self.refuse(child.link, why, final=True)
                        self._expired([child.address], why)  # nobody waits for who cannot come back
                self.resume()

    def close(self) -> None:
        """Wait for nobody any more."""
        for address in list(self._grace):
            self._wait_no_more(address)

"""Links from below: greetings, who is reached through which child, and how long a lost one is waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from espalier.core.errors import ConfigError, EspalierError, ProtocolError
from espalier.fleet.links import wire
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.routes import Child
from espalier.fleet.links.transport import Link, Take
from espalier.fleet.membership import Member
from espalier.fleet.node.events import Gone, Joined

if TYPE_CHECKING:
    from espalier.fleet.node.host import Host

#: seconds that an edge waits for the cloud's answer about a newcomer
ENROL_SECONDS = 10.0
#: seconds that a peer which this node has not heard of yet may wait at the door
UNKNOWN_PEER_SECONDS = 3.0
#: bytes of a ping at most
BALLAST_BYTES = 1 << 20


class ChildLinks:
    """Receives children and peers at one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        #: links of peers that only measure how far it is
        self._probes: set[Link] = set()
        self._grace: dict[int, asyncio.TimerHandle] = {}
        self._enrolling: dict[str, asyncio.Future[pb.Enrolled]] = {}
        #: who asked for somebody further down: name -> link
        self._asked: dict[str, Link] = {}

    # -- the door --------------------------------------------------------------------------------------------

    async def accept(self, link: Link) -> Take | None:
        """Decide from its certificate whether a link is let in at all."""
        host = self._host
        why = host.admission.refuses(link.peer)
        if why is None and link.peer is not None and host.admission.hurries(link.peer):
            why = f"{link.peer.name} opens more links per minute than it may"
        if why is not None:
            self.refuse(link, why, final="revoked" in why or link.peer is None)
            return None
        return self._take

    def refuse(self, link: Link, why: str, *, final: bool = False) -> None:
        """Tell a link why it ends, write it down, and end it."""
        self._host.refused(link.peer.name if link.peer is not None else link.target, why)
        link.post(pb.Frame(refusal=pb.Refusal(why=why, final=final)))
        link.close()

    def expel(self, address: int) -> bool:
        """Close the link of a host that has sent too many letters against the rules; False if it has none here."""
        host = self._host
        child = host.routes.children.get(address)
        link = child.link if child is not None else host.routes.peers.get(address)
        if link is None or link.peer is None:
            return False
        host.admission.ban(link.peer.name)
        self.refuse(link, host.admission.refuses(link.peer) or "")
        return True

    def malformed(self, link: Link, why: str) -> None:
        """A link said what nobody may say."""
        self.refuse(link, why)

    async def _take(self, link: Link, frame: pb.Frame) -> None:
        host = self._host
        if not link.open:
            return  # a newer link has taken its place: whoever sent this sends it again over that one
        kind = frame.WhichOneof("kind")
        child = host.routes.child(link)
        if link in self._probes:
            if kind != "ping":
                raise ProtocolError(f"A link that measures the way sends {kind!r}; pings are accepted.")
            self._pong(link, frame.ping)
        elif child is None and link not in host.routes.peers.values():
            if kind != "hello":
                raise ProtocolError(f"The first frame is {kind!r}; a greeting is accepted.")
            await self._greet(link, frame.hello)
        elif host.relay is not None and host.relay.take(link, frame):
            pass
        elif kind == "ping":
            self._pong(link, frame.ping)
        elif child is None:
            raise ProtocolError(f"A peer sends {kind!r}; letters are accepted.")
        elif kind == "reach":
            self._reached(child, frame.reach)
        elif kind == "bye":
            self._leaves(child, frame.bye.why)
        elif kind == "enrol" and child.role == "edge":
            await self._enrol_for(link, frame.enrol)
        else:
            raise ProtocolError(f"A {child.role} sends {kind!r}, which is not its to send.")

    def _pong(self, link: Link, ping: pb.Ping) -> None:
        if len(ping.ballast) > BALLAST_BYTES:
            raise ProtocolError(f"A ping of {len(ping.ballast)} bytes; {BALLAST_BYTES} are accepted.")
        link.post(pb.Frame(pong=pb.Pong(sent=ping.sent, now=self._host.clock.now())))

    # -- greetings -------------------------------------------------------------------------------------------

    async def _greet(self, link: Link, hello: pb.Hello) -> None:
        host, peer = self._host, link.peer
        assert peer is not None
        if hello.version != wire.VERSION:
            self.refuse(link, f"it speaks version {hello.version}, this node version {wire.VERSION}", final=True)
            return
        if peer.role not in ("edge", "device"):
            self.refuse(link, f"a {peer.role} has no parent", final=True)
            return
        if host.engine is None or host.charter is None:
            link.post(pb.Frame(refusal=pb.Refusal(why="not ready yet", final=False)))
            link.close()
            return
        if hello.peer:
            await self._greet_peer(link, hello)
            return
        if len(host.routes.children) >= host.charter.limits.children:
            self.refuse(link, f"{len(host.routes.children)} children are linked already")
            return
        try:
            address = await self._enrol(peer.name, peer.role, hello.wish)
        except ConfigError as error:
            self.refuse(link, str(error), final=True)
            return
        except (TimeoutError, EspalierError):
            link.post(pb.Frame(refusal=pb.Refusal(why="the cloud cannot be asked now", final=False)))
            link.close()
            return
        if not link.open:
            return
        before = host.routes.add(address, peer.name, peer.role, link, hello.member.stamp)
        if before is not None:
            before.close()
        link.post(pb.Frame(welcome=host.welcome(address)))

    async def _greet_peer(self, link: Link, hello: pb.Hello) -> None:
        host = self._host
        assert link.peer is not None
        for _ in range(round(UNKNOWN_PEER_SECONDS / 0.1)):
            # it may have heard of the arrangement before this node has
            if link.peer.name in host.peer_links.kin():
                break
            await asyncio.sleep(0.1)
        address = host.peer_links.kin().get(link.peer.name)
        if address is None:
            self.refuse(link, f"{link.peer.name} is no peer of this node")
            return
        if not hello.run:
            raise ProtocolError("A peer that takes part in no run.")
        if hello.probe:
            self._probes.add(link)
        else:
            host.peer_links.add(address, link)
        link.post(pb.Frame(welcome=pb.Welcome(version=wire.VERSION, address=address, now=host.clock.now())))

    async def _enrol(self, name: str, role: str, wish: int) -> int:
        """Return a name's number: known, or from the cloud.

        Raises:
            ConfigError: The cloud refuses it.
        """
        host = self._host
        if host.registry is not None:
            registry = host.registry
            return await host.call(lambda: registry.enrol(name, role, wish))
        known = host.names.get(name)
        if known is not None:
            return known
        if host.routes.parent is None:
            raise EspalierError("no way to the cloud")
        answer: asyncio.Future[pb.Enrolled] = asyncio.get_running_loop().create_future()
        self._enrolling[name] = answer
        try:
            host.routes.parent.post(pb.Frame(enrol=pb.Enrol(name=name, role=role, wish=wish)))
            async with asyncio.timeout(ENROL_SECONDS):
                found = await answer
        finally:
            self._enrolling.pop(name, None)
        if found.refused:
            raise ConfigError(found.refused)
        await host.learn_name(name, found.address)
        return found.address

    async def _enrol_for(self, link: Link, ask: pb.Enrol) -> None:
        """Answer an edge that asks for somebody at its door, or ask further up."""
        host = self._host
        if host.registry is not None:
            registry = host.registry
            try:
                address = await host.call(lambda: registry.enrol(ask.name, ask.role, ask.wish))
                answer = pb.Enrolled(name=ask.name, address=address)
            except ConfigError as error:
                host.refused(ask.name, str(error))
                answer = pb.Enrolled(name=ask.name, refused=str(error))
            link.post(pb.Frame(enrolled=answer))
        elif host.routes.parent is not None:
            self._asked[ask.name] = link
            host.routes.parent.post(pb.Frame(enrol=ask))

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
        host = self._host
        members: list[Member] = []
        for one in reach.members:
            member = Member.of_wire(one)
            if member.address == child.address:
                # of itself it may say what it holds, not who it is
                member = replace(member, name=child.name, role=child.role, via=host.me)
            elif child.role != "edge" or not self._plausible(member):
                raise ProtocolError(f"{child.name} says that {member.name} is reached through it, which cannot be.")
            members.append(member)
        gone = [h for h in reach.gone if host.routes.forget(h, through=child.address)]
        if reach.full:
            named = {m.address for m in members}
            missing = [h for h in host.routes.below(child.address) if h not in named]
            gone += [h for h in missing if host.routes.forget(h, through=child.address)]
        news: list[Member] = []
        for member in members:
            fresh, old = host.routes.learn(child.address, member)
            if old is not None:
                old.post(pb.Frame(moved=pb.Moved(address=member.address, stamp=member.stamp)))
            if fresh:
                news.append(member)
                self._wait_no_more(member.address)
        if gone:
            host.put(Gone(gone))
        if news:
            host.put(Joined(news))
            for member in news:
                if member.via == host.me:
                    host.log("joined", child=member.name, samples=member.samples)
        host.announce(news, gone)
        host.resend(sorted(host.routes.below(child.address)))

    def _plausible(self, member: Member) -> bool:
        registry = self._host.registry
        if member.role not in ("edge", "device") or member.address == self._host.me:
            return False
        return registry is None or registry.known.get(member.name) == (member.address, member.role)

    def lost(self, link: Link) -> None:
        """A link is over: its child may come back within the fleet's patience."""
        host = self._host
        if host.relay is not None:
            host.relay.drop(link)
        self._probes.discard(link)
        for address in [a for a, peer in host.routes.peers.items() if peer is link]:
            del host.routes.peers[address]
        child = host.routes.drop(link)
        if child is None or host.stopping:
            return
        host.log("link lost", child=child.name)
        self.wait_for(child.address)

    def wait_for(self, address: int) -> None:
        """Wait for a child that has no link."""
        patience = self._host.charter.patience if self._host.charter is not None else 10.0
        self._wait_no_more(address)
        loop = asyncio.get_running_loop()
        self._grace[address] = loop.call_later(patience, lambda: self._expired([address], "not heard of"))

    def _wait_no_more(self, address: int) -> None:
        handle = self._grace.pop(address, None)
        if handle is not None:
            handle.cancel()

    def _leaves(self, child: Child, why: str) -> None:
        self._host.log("left", child=child.name, why=why)
        child.link.close()
        self._expired([child.address], why)

    def _expired(self, hosts: Sequence[int], why: str) -> None:
        host = self._host
        gone: list[int] = []
        for address in hosts:
            self._wait_no_more(address)
            for below in sorted(host.routes.below(address) | {address}):
                if host.routes.forget(below, through=address):
                    gone.append(below)
        if gone:
            host.log("gone", hosts=gone, why=why)
            host.put(Gone(gone))
            host.announce([], gone)

    def moved(self, address: int, stamp: int) -> None:
        """Somebody above says that a host is reached elsewhere now."""
        host = self._host
        if stamp < host.routes.stamp(address):
            return
        link = host.routes.route(address)
        child = host.routes.children.get(address)
        if not host.routes.forget(address):
            return
        self._wait_no_more(address)
        if child is not None:
            child.link.close()
        elif link is not None and link is not host.routes.parent:
            link.post(pb.Frame(moved=pb.Moved(address=address, stamp=stamp)))
        host.put(Gone([address]))

    # -- from above ------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Tell everybody below that the way up is whole again."""
        for child in self._host.routes.children.values():
            child.link.post(pb.Frame(resume=pb.Resume(crl=self._host.admission.crl)))

    def revocations(self, crl: bytes) -> None:
        """Take over a list of revoked certificates, if it is genuine and newer; links of revoked ones end."""
        host = self._host
        with contextlib.suppress(ConfigError):
            if crl and host.admission.update(crl):
                for child in list(host.routes.children.values()):
                    why = host.admission.refuses(child.link.peer)
                    if why is not None:
                        self.refuse(child.link, why, final=True)
                self.resume()

    def close(self) -> None:
        """Wait for nobody any more."""
        for address in list(self._grace):
            self._wait_no_more(address)

"""Links from below: who is let in, who is reached through which child, and how long a lost one is waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from espalier.core.errors import ConfigError, ProtocolError
from espalier.fleet.links.door import in_few_words
from espalier.fleet.links.greetings import Greetings
from espalier.fleet.links.hub import Hub
from espalier.fleet.links.link import Link
from espalier.fleet.links.peers import PeerLinks
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.routes import Child
from espalier.fleet.links.transport import Take
from espalier.fleet.membership import Member
from espalier.fleet.node.events import Gone, Joined

#: bytes of a ping at most
BALLAST_BYTES = 1 << 20


class ChildLinks:
    """Receives children and peers at one hub."""

    def __init__(self, hub: Hub, peers: PeerLinks) -> None:
        self._hub = hub
        self.greetings = Greetings(hub, peers, self.refuse)
        self._grace: dict[int, asyncio.TimerHandle] = {}

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
        if link in self.greetings.probes:
            if kind != "ping":
                raise ProtocolError(f"A link that measures the way sends {kind!r}; pings are accepted.")
            await self._take_hop(link, None, frame)
        elif link in hub.door.room:
            self.greetings.waits(link, frame)
        elif child is None and link not in hub.routes.peers.values():
            if kind != "hello":
                raise ProtocolError(f"The first frame is {kind!r}; a greeting is accepted.")
            await self.greetings.greet(link, frame.hello)
        elif hub.relay is not None and hub.relay.take(link, frame):
            if frame.HasField("head") and (seconds := hub.relay.owed(link, frame.head)):
                await asyncio.sleep(seconds)
        else:
            await self._take_hop(link, child, frame)

    async def _take_hop(self, link: Link, child: Child | None, frame: pb.Frame) -> None:
        """Take a frame that concerns this hop only."""
        hub, kind = self._hub, frame.WhichOneof("kind")
        if hub.relay is not None:
            hub.relay.rate(link, 1, frame.ByteSize())
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
            await self.greetings.enrol_for(link, frame.enrol)
        else:
            raise ProtocolError(f"A {child.role} sends {kind!r}, which is not its to send.")

    def _pong(self, link: Link, ping: pb.Ping) -> None:
        if len(ping.ballast) > BALLAST_BYTES:
            raise ProtocolError(f"A ping of {len(ping.ballast)} bytes; {BALLAST_BYTES} are accepted.")
        link.post(pb.Frame(pong=pb.Pong(sent=ping.sent, now=self._hub.clock.now())))

    # -- who is below ----------------------------------------------------------------------------------------

    def _reached(self, child: Child, reach: pb.Reach) -> None:
        hub, members = self._hub, self._believed(child, reach)
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
                if member.address == child.address and not child.joined:  # once over each link
                    child.joined = True
                    hub.log("joined", child=member.name, samples=member.samples)
        hub.announce(news, gone)
        hub.resend(sorted(hub.routes.below(child.address)))

    def _believed(self, child: Child, reach: pb.Reach) -> list[Member]:
        """Return those of whom a child says that they are reached through it, as far as they have said so themselves.

        Raises:
            ProtocolError: It speaks of somebody who cannot be there.
        """
        if child.role == "device" and (len(reach.members) > 1 or reach.gone):
            raise ProtocolError(f"{child.name}, a device, says of {len(reach.members)} hosts that they are below it.")
        members: list[Member] = []
        for one in reach.members:
            member = Member.of_wire(one)
            if member.address == child.address:
                # of itself it may say what it holds, not who it is
                member = replace(member, name=child.name, role=child.role, via=self._hub.me)
            elif child.role != "edge" or not self._plausible(member):
                raise ProtocolError(f"{child.name} says that {member.name} is reached through it, which cannot be.")
            if (known := self._vouched(child, one, member)) is not None:
                members.append(known)
        return members

    def _vouched(self, child: Child, one: pb.Member, member: Member) -> Member | None:
        """Return a member as far as it has signed what is said of it; None if it is not to be believed."""
        hub, said = self._hub, member.to_wire()
        said.certificate, said.signature = one.certificate, one.signature
        most = hub.admission.limits.samples
        if most is not None and member.role == "device" and member.samples > most:
            raise ProtocolError(f"{member.name} says that it has {member.samples} samples; {most} are accepted.")
        assert hub.signatures is not None
        if hub.signatures.vouched(said):
            hub.vouched[member.address] = (one.certificate, one.signature)
            return member
        if member.address == child.address:
            raise ProtocolError(f"{child.name} does not sign what it says of itself.")
        if member.address in hub.routes.below(child.address):
            return replace(member, stamp=hub.routes.stamp(member.address))  # known to be there, and no newer
        hub.refused(child.name, f"{member.name} is said to be reached through it, and has not said so itself")
        return None

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
        self.greetings.probes.discard(link)
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
                for link, why in hub.door.unwelcome():
                    child = hub.routes.child(link)
                    self.refuse(link, why, final=True)
                    if child is not None:
                        self._expired([child.address], why)  # nobody waits for who cannot come back
                self.resume()

    def close(self) -> None:
        """Wait for nobody any more."""
        for address in list(self._grace):
            self._wait_no_more(address)

"""The link to the parent: made, kept, made again, moved elsewhere."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from espalier.core.errors import ConfigError, ProtocolError
from espalier.fleet.authority.fields import SECONDS
from espalier.fleet.links import wire
from espalier.fleet.links.children import ChildLinks
from espalier.fleet.links.hub import Hub
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.transport import dial
from espalier.fleet.membership import Member

#: seconds between two tries: at first, at most
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.2, 2.0
#: tries at one parent before the next one of the list is tried
TRIES = 5
#: seconds between two looks at the parent's clock
CLOCK_SECONDS = 30.0
#: seconds that a parent may take to tell the time
PONG_SECONDS = 10.0


class ParentLink:
    """Keeps a host linked to a parent."""

    def __init__(
        self,
        hub: Hub,
        children: ChildLinks,
        follow: Callable[[pb.Welcome], Awaitable[None]],
        leave: Callable[[str], None],
        doubts: Callable[[pb.Welcome], str],
    ) -> None:
        """Prepare a link.

        Args:
            hub: This host's.
            children: Its links from below.
            follow: Takes over what a parent says the fleet does.
            leave: Ends the host's run.
            doubts: Says why a parent's welcome is not to be believed.
        """
        self._hub, self._children, self._follow, self._leave, self._doubts = hub, children, follow, leave, doubts
        self._parents: list[tuple[str | None, str]] = list(hub.settings.parents)
        self._link: Link | None = None
        self._pongs: dict[float, asyncio.Future[float]] = {}
        self._welcomed = False
        self._wake = asyncio.Event()
        #: why the parent has refused this node, if it did, and whether for good
        self._told, self._final = "", False
        #: how often a link was made
        self.made = 0

    async def run(self) -> None:
        """Keep the link until the host stops.

        Raises:
            ConfigError: Every parent refuses this node for good.
        """
        hub, failures, delay, refused = self._hub, 0, FIRST_RETRY_SECONDS, set[tuple[str | None, str]]()
        while not hub.stopping:
            name, target = self._parents[0]
            self._welcomed, self._told, self._final = False, "", False
            hello = hub.hello()
            hello.wish = hub.settings.wish
            hello.member.stamp = await hub.next_stamp()
            why = await dial(hub.bundle, target, name, hello, self._take, connected=self._connected)
            self._link, hub.idle = None, False
            hub.routes.parent = None
            if self._final:
                refused.add((name, target))
                if refused.issuperset(self._parents):
                    raise ConfigError(f"{name or target} refuses this node: {self._told}.")
                failures, self._welcomed = TRIES, False  # the next one may be of another mind
            if hub.stopping:
                return
            if self._welcomed:
                failures, delay = 0, FIRST_RETRY_SECONDS
                hub.log("link to parent lost", parent=name or target, why=why)
            else:
                failures += 1
                # who begins before its parent, or between two runs, need not be looked after
                level = "info" if failures == 1 else "warning" if failures == TRIES or failures % 100 == 0 else "debug"
                hub.log("no link to parent", level=level, parent=name or target, why=self._told or why)
            if failures >= TRIES and len(self._parents) > 1:
                failures = 0
                self._parents.append(self._parents.pop(0))
            try:
                async with asyncio.timeout(delay * random.uniform(0.8, 1.2)):
                    await self._wake.wait()
            except TimeoutError:
                delay = min(LAST_RETRY_SECONDS, 1.5 * delay)
            self._wake.clear()

    def move(self, name: str | None, target: str, why: str = "moves") -> None:
        """Go to another parent; the one of now is told, and stays the second choice."""
        if self._parents[0] == (name, target):
            return
        self._parents = [(name, target), *(p for p in self._parents if p != (name, target))]
        self.leave(why)

    def leave(self, why: str) -> None:
        """Say good-bye and end the link."""
        if self._link is not None:
            self._link.post(pb.Frame(bye=pb.Bye(why=why)))
            self._link.close()
        self._wake.set()

    def _connected(self, link: Link) -> None:
        self._link = link

    async def _take(self, link: Link, frame: pb.Frame) -> None:
        hub = self._hub
        kind = frame.WhichOneof("kind")
        if kind == "welcome" and not self._welcomed:
            self._welcomed = True
            self.made += 1
            if not self._speaks(link, frame.welcome):
                return
            if frame.welcome.run:
                hub.spawn(self._settle_in(link, frame.welcome))
            else:
                self._wait(frame.welcome)
        elif kind == "refusal":
            self._told, self._final = frame.refusal.why, frame.refusal.final
            if self._final or self._welcomed:
                hub.log("refused", level="warning", why=self._told)
        elif kind == "pong":
            waiting = self._pongs.pop(frame.pong.sent, None)
            if not 0 <= frame.pong.now <= SECONDS / 2:  # what this node says from then on must still be a time
                raise ProtocolError(f"The parent says that it is {frame.pong.now} o'clock.")
            if waiting is not None and not waiting.done():
                waiting.set_result(hub.clock.heard(frame.pong.now, frame.pong.sent))
        elif not self._welcomed:
            raise ProtocolError(f"The parent sends {kind!r} before its welcome.")
        elif hub.relay is not None and hub.relay.take(link, frame):
            await hub.keep_pace(link, frame)
        elif kind == "enrolled":
            self._children.greetings.enrolled(frame.enrolled)
        elif kind == "moved":
            self._children.moved(frame.moved.address, frame.moved.stamp)
        elif kind == "resume":
            self._children.revocations(frame.resume.crl)
            hub.resend(None)
            self._children.resume()

    def _speaks(self, link: Link, welcome: pb.Welcome) -> bool:
        """Tell whether the parent answered in a version that this node speaks; if not, the link ends."""
        mine = self._hub.settings.versions
        if mine.common(wire.WireVersions(welcome.version, welcome.version)) is not None:
            link.version = welcome.version
            return True
        self._told, self._final = f"it speaks version {welcome.version}, this node {mine}", True
        link.close()
        return False

    def _wait(self, welcome: pb.Welcome) -> None:
        """There is no run for this host: wait on this link for the next one."""
        hub = self._hub
        hub.idle = True
        self._children.revocations(welcome.crl)
        if hub.engine is not None:
            self._leave(f"{hub.run_name} is over")
            return
        hub.log("waits for a run", parent=welcome.parent.name[:64])
        hub.door.room.changed = True
        self.tell_who_waits()

    def tell_who_waits(self) -> None:
        """Tell the parent who waits here and below, if that has changed."""
        room, link = self._hub.door.room, self._link
        if not room.changed or link is None or not self._welcomed or self._hub.identity.role == "device":
            return
        link.post(pb.Frame(waiting=pb.Waiting(waiters=room.everybody())))
        room.changed = False

    async def _settle_in(self, link: Link, welcome: pb.Welcome) -> None:
        """Learn what the fleet does, tell the parent who is here, and go on where the last link ended."""
        hub = self._hub
        try:
            parent = Member.of_wire(welcome.parent)
            if why := self._doubts(welcome):
                raise ProtocolError(f"{parent.name} is not followed: {why}.")
        except ProtocolError as error:
            self._told, self._welcomed = str(error), False
            hub.log("refused", level="warning", who=welcome.parent.name[:64], why=self._told)
            link.close()
            return
        await self._ask(link)
        await self._follow(welcome)
        seconds = await self._gauge(link)
        if not link.open or hub.engine is None or hub.run_name != welcome.run:
            return  # this host takes no part in that run
        await hub.linked(parent, seconds)
        # the parent must know who is here before it hears from them
        link.post(pb.Frame(reach=pb.Reach(members=map(hub.reached, hub.everybody()), full=True)))
        hub.routes.parent = link
        hub.resend(None)
        self._children.resume()
        hub.door.room.changed = True
        hub.log("linked", parent=welcome.parent.name, target=link.target)
        while link.open:
            await asyncio.sleep(CLOCK_SECONDS)
            await self._ask(link)

    async def _ask(self, link: Link, ballast: bytes = b"") -> float:
        """Ask the parent for its time; return the seconds of the round trip."""
        sent = time.monotonic()
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._pongs[sent] = answer
        link.post(pb.Frame(ping=pb.Ping(sent=sent, ballast=ballast)))
        try:
            async with asyncio.timeout(PONG_SECONDS):
                return await answer
        except TimeoutError:
            return PONG_SECONDS
        finally:
            self._pongs.pop(sent, None)

    async def _gauge(self, link: Link) -> float:
        """Return the seconds that a model needs to the parent: half a round trip and its bytes at the measured rate."""
        size = self._hub.model_bytes
        ballast = min(size, 64 << 10)
        short = min([await self._ask(link) for _ in range(2)])
        long = await self._ask(link, bytes(ballast))
        return short / 2 + max(0.0, long - short) * size / max(1, ballast)

"""A node's door, the same over all its runs: where others link to it, who is let in, and who waits for a run.

A run's host comes and goes (`espalier.fleet.node.service`); the door stays. Whoever links while there is no run, or
none for it, is told to wait on its link. When a run begins the links of those who wait are closed: they come again, and
are told of it.
"""

from __future__ import annotations

from typing import Protocol

from espalier.core.errors import ProtocolError
from espalier.fleet.certs import Bundle
from espalier.fleet.links.admission import Admission, Refusals
from espalier.fleet.links.limits import Limits
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.transport import LinkServer, Take

#: names and reasons of somebody who waits have so many letters at most
NAME_LETTERS, REASON_LETTERS = 64, 500
#: so many may wait below one child
MOST_WAITERS = 100_000


def in_few_words(text: str) -> str:
    """Return what somebody said as a log, a record and a terminal may show it."""
    return "".join(c if c.isprintable() else "?" for c in text[:REASON_LETTERS])


class LinkReceiver(Protocol):
    """Who takes links from below: the present host's."""

    async def accept(self, link: Link) -> Take | None:
        """Return what takes a link's frames; None if it is refused."""
        ...

    def lost(self, link: Link) -> None:
        """A link that was accepted is over."""
        ...

    def refuse(self, link: Link, why: str) -> None:
        """A link said what nobody may say: tell it why, and end it."""
        ...


class WaitingRoom:
    """Those who have no run now: linked here, or below a child."""

    def __init__(self) -> None:
        self._here: dict[Link, pb.Waiter] = {}
        self._below: dict[Link, list[pb.Waiter]] = {}
        #: whether the parent is yet to be told who waits
        self.changed = False

    def __contains__(self, link: Link) -> bool:
        return link in self._here

    def __len__(self) -> int:
        return len(self._here)

    def enter(self, link: Link, waiter: pb.Waiter) -> None:
        """Somebody waits here, over this link and no other."""
        for before in [before for before, who in self._here.items() if who.name == waiter.name]:
            before.close()
        self._here[link], self.changed = waiter, True

    def told(self, link: Link, waiting: pb.Waiting) -> None:
        """A child tells who waits below it.

        Raises:
            ProtocolError: No node may say this.
        """
        found = list(waiting.waiters)
        for one in found:
            long = max(map(len, (one.name, one.parent, one.version))) > NAME_LETTERS or len(one.why) > REASON_LETTERS
            shown = all(text.isprintable() for text in (one.name, one.parent, one.version, one.why))
            if long or not shown or one.role not in ("edge", "device"):
                raise ProtocolError(f"Somebody waits who cannot be: {str(one)[:200]}.")
        if len(found) > MOST_WAITERS:
            raise ProtocolError(f"{len(found)} nodes wait below one; {MOST_WAITERS} are accepted.")
        self._below[link], self.changed = found, True

    def leave(self, link: Link) -> None:
        """A link is over."""
        here, below = self._here.pop(link, None), self._below.pop(link, None)
        self.changed = self.changed or here is not None or below is not None

    def everybody(self) -> list[pb.Waiter]:
        """Return who waits, each with the name of its parent."""
        return [*self._here.values(), *(one for below in self._below.values() for one in below)]

    def release(self) -> None:
        """Let those who wait here come again: there is a run."""
        for link in list(self._here):
            link.close()


class Door:
    """What a node's links keep from one run to the next.

    Attributes:
        admission: Who may open a link.
        refusals: What was refused.
        room: Who waits for a run.
        server: None until the node listens.
        receiver: The present host's links from below.
        operators: Takes the frames of operators; None: they are refused, for this is not the cloud.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self.admission = Admission(bundle, Limits())
        self.refusals = Refusals()
        self.room = WaitingRoom()
        self.server: LinkServer | None = None
        self.receiver: LinkReceiver | None = None
        self.operators: Take | None = None
        #: who takes the frames of each link that was let in (None: the operators', of no run)
        self._taken_by: dict[Link, LinkReceiver | None] = {}

    async def open(self, listen: str) -> None:
        """Listen at ``host:port``."""
        server = LinkServer(self._bundle, self._accept, self._lost, self._malformed)
        await server.start(listen)
        self.server = server

    async def close(self) -> None:
        """Listen no more; every link ends."""
        if self.server is not None:
            await self.server.stop()
            self.server = None

    def disconnect(self) -> None:
        """End every link of the present host; those of operators stay."""
        for link in [link for link, receiver in self._taken_by.items() if receiver is not None]:
            link.close()

    async def _accept(self, link: Link) -> Take | None:
        receiver = self.receiver
        if receiver is None:
            return None
        take = await receiver.accept(link)
        if take is not None:
            self._taken_by[link] = None if take is self.operators else receiver
        return take

    def unwelcome(self) -> list[tuple[Link, str]]:
        """Return the links that would not be let in any more, each with the reason."""
        return [(link, why) for link in self._taken_by if (why := self.admission.refuses(link.peer)) is not None]

    def _lost(self, link: Link) -> None:
        self.room.leave(link)
        receiver = self._taken_by.pop(link, None)
        if receiver is not None:
            receiver.lost(link)

    def _malformed(self, link: Link, why: str) -> None:
        if self.receiver is not None:
            self.receiver.refuse(link, why)

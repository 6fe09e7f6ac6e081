"""The relay: letters for this host are put together, letters for others passed on, what nobody may send refused."""

from __future__ import annotations

from collections.abc import Callable

from espalier.core.errors import ProtocolError
from espalier.fleet.links.delivery import Transmitter
from espalier.fleet.links.framing import CHUNK_BYTES, Assembler, check_size
from espalier.fleet.links.limits import Limits, TokenBucket
from espalier.fleet.links.link import Link, origin_of
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.routes import RoutingTable
from espalier.fleet.links.signing import LetterSignatures
from espalier.fleet.node.events import Acknowledged, Item, Restarted

#: bytes of a frame at most besides a letter's head or a chunk's data
ENVELOPE_BYTES = 256
#: chunks that are not full of which so many count as one frame: a letter has few, at the ends of its models
SHORT_CHUNKS = 16
#: bytes of letters, but for models, that are read of a child: so many a second, and as often for each below it
CONTENT_PER_SECOND = 256 << 10


class Relay:
    """Takes the frames of letters from every link."""

    def __init__(
        self,
        routes: RoutingTable,
        transmitter: Transmitter,
        limits: Limits,
        devices: int,
        deliver: Callable[[Item], None],
        signatures: LetterSignatures,
        refused: Callable[[str, str], None],
        confer: bool = True,
    ) -> None:
        """Prepare to take frames.

        Args:
            routes: Who is reached over which link.
            transmitter: Sends this host's own letters.
            limits: Of letters.
            devices: Hosts below this number are devices, whose letters are smaller.
            deliver: Takes letters and answers that are for this host.
            signatures: Tells whose a letter is.
            refused: Hears of what is wrong with a letter that somebody passed on: who, why.
            confer: Whether devices write to each other in this run; else nobody can fill another's link through here.
        """
        self._signatures, self._refused = signatures, refused
        self._routes, self._transmitter, self._limits, self._deliver = routes, transmitter, limits, deliver
        self._devices, self._confer = devices, confer
        self._assemblers: dict[Link, Assembler] = {}
        #: letters and bytes of each child and peer by name, over all its links
        self._meters: dict[str, tuple[TokenBucket, TokenBucket, TokenBucket]] = {}
        self.relayed = 0
        self.lost = 0

    def take(self, link: Link, frame: pb.Frame) -> bool:
        """Take a frame if it is of a letter.

        Raises:
            ProtocolError: No honest node sends this; the link should end.
        """
        match frame.WhichOneof("kind"):
            case "head":
                self.rate(link, 1, _size(frame, frame.head.ByteSize()))
                self._letter(link, frame, frame.head.envelope)
            case "chunk":
                data = len(frame.chunk.data)
                self.rate(link, 0 if data >= CHUNK_BYTES else 1 / SHORT_CHUNKS, _size(frame, data))
                self._letter(link, frame, frame.chunk.envelope)
            case "ack" | "restart" as kind:
                self.rate(link, 1, _size(frame, 0))
                self._answer(link, frame, getattr(frame, kind).envelope)
            case _:
                return False
        return True

    def _letter(self, link: Link, frame: pb.Frame, envelope: pb.Envelope) -> None:
        me = self._routes.me
        if not self._routes.leads(link, envelope.origin) or envelope.origin == me:
            child = self._routes.child(link)
            if (child is not None and child.role == "device") or envelope.origin == me:
                raise ProtocolError(f"A letter claims to be from host {envelope.origin}, which this link is not.")
            self.lost += 1  # its sender has moved on meanwhile: it comes again over another way
            return
        enters = self._is_own(link, envelope.origin)
        if not self._may_write(link, envelope.origin, envelope.dest, enters):
            return
        if frame.HasField("head") and (enters or envelope.dest == me) and not self._signatures.genuine(frame.head):
            why = f"A letter is not signed by host {envelope.origin}, whose it is said to be."
            if enters:
                raise ProtocolError(why)
            self._refused(self._end(link), why)
            return
        if envelope.dest != me:
            if enters and frame.HasField("head"):
                check_size(frame.head, self._limits, self._devices)
            self._relay(link, frame, envelope.dest)
            return
        assembler = self._assemblers.setdefault(link, Assembler(self._limits, self._devices))
        try:
            arrival = assembler.head(frame.head) if frame.HasField("head") else assembler.chunk(frame.chunk)
        except ProtocolError as error:
            if enters:
                raise
            # whoever has passed it on reads no letters of others: its link, and all behind it, must not suffer
            self._refused(f"host {envelope.origin}", str(error))
            return
        if arrival is not None:
            self._deliver(arrival)

    def _may_write(self, link: Link, origin: int, dest: int, enters: bool) -> bool:
        """Tell whether a host may write to another at all, whatever it writes."""
        if self._confer or not (origin < self._devices and dest < self._devices and dest != self._routes.me):
            return True
        why = f"Host {origin} writes to host {dest}: the devices of this run have nothing to say to each other."
        if enters:
            raise ProtocolError(why)
        self._refused(self._end(link), why)  # whoever is at the other end should not have passed it on
        return False

    def _is_own(self, link: Link, host: int) -> bool:
        """Tell whether a link is a host's own: of a child or of a peer."""
        child = self._routes.child(link)
        return self._routes.peers.get(host) is link or (child is not None and child.address == host)

    def _end(self, link: Link) -> str:
        """Return who is at the other end of a link."""
        return link.peer.name if link.peer is not None else f"parent {link.target}"

    def _answer(self, link: Link, frame: pb.Frame, envelope: pb.Envelope) -> None:
        if not self._routes.leads(link, envelope.dest):
            self.lost += 1
            return
        if not self._may_write(link, envelope.dest, envelope.origin, self._is_own(link, envelope.dest)):
            return
        if envelope.origin != self._routes.me:
            self._relay(link, frame, envelope.origin)
        elif frame.HasField("ack"):
            self._transmitter.acknowledged(envelope.dest, envelope.series, envelope.number)
            self._deliver(Acknowledged(envelope.dest, envelope.series, envelope.number))
        else:
            self._deliver(Restarted(envelope.dest, envelope.series, envelope.number))

    def _relay(self, link: Link, frame: pb.Frame, dest: int) -> None:
        out = self._routes.route(dest)
        limits = self._limits
        models = limits.of_device() if origin_of(frame) < self._devices else limits.letter_bytes
        of_one, most = models + limits.content_bytes, limits.letter_bytes + 8 * limits.content_bytes
        if out is None or out is link or not out.relay(frame, 2 * most, 2 * of_one):
            self.lost += 1  # its sender keeps it until it is acknowledged
        else:
            self.relayed += 1

    def rate(self, link: Link, letters: float, data: int) -> None:
        """Count what somebody sends who has a link to this host.

        Raises:
            ProtocolError: It sends more than it may.
        """
        if link.peer is None:
            return  # this host has made the link, to its parent or to a peer that it was told of
        limits = self._limits
        if link.peer.name not in self._meters:
            self._meters[link.peer.name] = (
                TokenBucket(limits.letters_per_second, 10 * limits.letters_per_second),
                TokenBucket(limits.bytes_per_second, max(10 * limits.bytes_per_second, limits.letter_bytes)),
                TokenBucket(CONTENT_PER_SECOND, limits.content_bytes),
            )
        share, meters = self._speakers(link), self._meters[link.peer.name]
        if not meters[0].take(letters / share) or not meters[1].take(data / share):
            raise ProtocolError(
                f"More than {limits.letters_per_second:g} frames or {limits.bytes_per_second:g} bytes per second."
            )

    def owed(self, link: Link, head: pb.Head) -> float:
        """Return the seconds for which nothing more is read of somebody who has sent a letter."""
        meters = None if link.peer is None else self._meters.get(link.peer.name)
        return 0.0 if meters is None else meters[2].owe(len(head.content) / self._speakers(link))

    def _speakers(self, link: Link) -> int:
        """Return for how many a link speaks: a child's for everybody below it."""
        child = self._routes.child(link)
        return 1 if child is None else max(1, len(child.below))

    def drop(self, link: Link) -> None:
        """A link is over: what was unfinished comes again."""
        self._assemblers.pop(link, None)


def _size(frame: pb.Frame, inner: int) -> int:
    """Return the bytes of a frame, of which so many are what it is for; whoever makes it could add any others."""
    size = int(frame.ByteSize())
    if size - inner > ENVELOPE_BYTES:
        raise ProtocolError(f"A frame has {size - inner} bytes besides its content; {ENVELOPE_BYTES} are accepted.")
    return size

"""Letters: a message and its models, cut into chunks and put together again.

Sizes are checked against the limits when the head arrives, before anything is allocated; every chunk has a checksum and
must follow the one before; every part has a digest.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from espalier.core.errors import ProtocolError
from espalier.fleet.links.limits import Limits
from espalier.fleet.links.protocol import espalier_pb2 as pb

#: bytes of a chunk: small enough that a word need not wait long behind a model
CHUNK_BYTES = 256 << 10

#: origins whose certificates a link remembers, and the bytes of one at most: others go with every letter
CERTIFICATES, CERTIFICATE_BYTES = 1024, 2048

#: bytes of a head beside its content and its origin's certificate: so many, and so many for each model
HEAD_BYTES, PART_BYTES = 512, 128

Buffer = bytes | memoryview


@dataclass(frozen=True, eq=False)
class LetterPart:
    """A model as it travels: bytes, how they are encoded, and the order it is a difference from (0: none)."""

    data: Buffer
    encoding: int
    digest: bytes
    base: int = 0

    @staticmethod
    def of(data: Buffer, encoding: int, base: int = 0) -> LetterPart:
        """Make a part, computing its digest."""
        return LetterPart(data, encoding, hashlib.blake2b(data, digest_size=16).digest(), base)


@dataclass(frozen=True, eq=False)
class Letter:
    """A letter to be sent: the number is of its series to its destination."""

    dest: int
    series: int
    number: int
    content: bytes
    parts: Sequence[LetterPart] = ()


@dataclass(frozen=True, eq=False)
class ReceivedLetter:
    """A letter that has arrived whole; its content is not read yet (`espalier.fleet.links.wire`)."""

    origin: int
    series: int
    number: int
    content: bytes
    parts: Sequence[LetterPart]


def frames(letter: Letter, origin: int) -> Iterator[pb.Frame]:
    """Cut a letter into frames."""
    envelope = pb.Envelope(origin=origin, dest=letter.dest, series=letter.series, number=letter.number)
    parts = [pb.Part(size=len(p.data), encoding=p.encoding, digest=p.digest, base=p.base) for p in letter.parts]
    yield pb.Frame(head=pb.Head(envelope=envelope, content=letter.content, parts=parts))
    for index, part in enumerate(letter.parts):
        view = memoryview(part.data)
        for offset in range(0, len(view), CHUNK_BYTES):
            data = bytes(view[offset : offset + CHUNK_BYTES])
            yield pb.Frame(
                chunk=pb.Chunk(envelope=envelope, part=index, offset=offset, data=data, checksum=zlib.crc32(data))
            )


def check_size(head: pb.Head, limits: Limits, devices: int) -> None:
    """Refuse a letter that is larger than the limits allow; hosts below ``devices`` are devices."""
    beside = head.ByteSize() - len(head.content) - len(head.certificate)
    if beside > HEAD_BYTES + PART_BYTES * len(head.parts):
        raise ProtocolError(f"A letter's head has {beside} bytes besides its content, for {len(head.parts)} models.")
    total = sum(p.size for p in head.parts)
    most = limits.of_device() if head.envelope.origin < devices else limits.letter_bytes
    if len(head.content) > limits.content_bytes or len(head.parts) > limits.parts or total > most:
        raise ProtocolError(
            f"A letter of {len(head.content)} bytes with {len(head.parts)} models of {total} bytes together; "
            f"{limits.content_bytes}, {limits.parts} and {most} are accepted."
        )


class Certificates:
    """Origins' certificates as they went over a link in one direction: each is sent once, and remembered at both ends.

    Both ends see the same heads in the same order, and so remember the same.
    """

    def __init__(self) -> None:
        self._of: dict[int, bytes] = {}

    def leave_out(self, head: pb.Head) -> None:
        """Take out of a head what the other end remembers."""
        if self._of.get(head.envelope.origin) == head.certificate:
            head.ClearField("certificate")
        else:
            self._remember(head)

    def put_back(self, head: pb.Head) -> None:
        """Put into a head what the other end has left out."""
        if head.certificate:
            self._remember(head)
        else:
            head.certificate = self._of.get(head.envelope.origin, b"")

    def _remember(self, head: pb.Head) -> None:
        origin, room = head.envelope.origin, len(self._of) < CERTIFICATES
        if (room or origin in self._of) and len(head.certificate) <= CERTIFICATE_BYTES:
            self._of[origin] = head.certificate


class Assembler:
    """Puts the letters of one link together. A relay's link carries those of many origins, interleaved.

    Of one origin one letter at a time is in the making: another one's beginning means that it was given up.
    """

    OPEN = 4096

    def __init__(self, limits: Limits, devices: int = 0) -> None:
        """Prepare to take letters; hosts below ``devices`` are devices, whose letters are smaller."""
        self._limits, self._devices = limits, devices
        self._open: dict[int, _Growing] = {}
        self._held = 0

    def head(self, head: pb.Head) -> ReceivedLetter | None:
        """Begin a letter; return it if it is whole already (it has no models).

        Raises:
            ProtocolError: It is larger than the limits allow, or malformed.
        """
        limits, origin = self._limits, head.envelope.origin
        check_size(head, limits, self._devices)
        self._close(origin)
        growing = _Growing(head)
        if growing.missing == 0:
            return growing.done()
        if len(self._open) >= self.OPEN or self._held > 4 * limits.letter_bytes:
            raise ProtocolError(f"{len(self._open)} letters of {self._held} bytes are begun and none is finished.")
        self._open[origin] = growing
        return None

    def chunk(self, chunk: pb.Chunk) -> ReceivedLetter | None:
        """Add a chunk; return the letter if it is whole now.

        A chunk of a letter whose beginning was lost is passed over: the letter comes again.
        """
        origin = chunk.envelope.origin
        growing = self._open.get(origin)
        if growing is None or growing.at != (chunk.envelope.series, chunk.envelope.number):
            return None
        try:
            follows = growing.add(chunk)
        except ProtocolError:
            self._close(origin)
            raise
        self._held += len(chunk.data) if follows else 0
        if not follows or growing.missing == 0:
            self._close(origin)
        return growing.done() if follows and growing.missing == 0 else None

    def _close(self, origin: int) -> None:
        growing = self._open.pop(origin, None)
        if growing is not None:
            self._held -= growing.total - growing.missing


class _Growing:
    """A letter in the making."""

    def __init__(self, head: pb.Head) -> None:
        self._head = head
        self.at = (head.envelope.series, head.envelope.number)
        self._buffers = [bytearray() for _ in head.parts]
        self.total = sum(p.size for p in head.parts)
        self.missing = self.total

    def add(self, chunk: pb.Chunk) -> bool:
        """Add a chunk; False if one before it is missing."""
        if chunk.part >= len(self._buffers):
            raise ProtocolError(f"A chunk of part {chunk.part} of a letter with {len(self._buffers)}.")
        buffer, size = self._buffers[chunk.part], self._head.parts[chunk.part].size
        if chunk.offset != len(buffer):
            return False
        if not chunk.data or len(buffer) + len(chunk.data) > size:
            raise ProtocolError(f"A chunk of {len(chunk.data)} bytes at {chunk.offset} of a part of {size} bytes.")
        if zlib.crc32(chunk.data) != chunk.checksum:
            raise ProtocolError(f"A chunk at {chunk.offset} of part {chunk.part} is damaged: its checksum is wrong.")
        buffer += chunk.data
        self.missing -= len(chunk.data)
        return True

    def done(self) -> ReceivedLetter:
        """Return the whole letter, its digests checked."""
        parts = []
        for index, (buffer, meta) in enumerate(zip(self._buffers, self._head.parts, strict=True)):
            part = LetterPart.of(memoryview(buffer), meta.encoding, meta.base)
            if part.digest != meta.digest:
                raise ProtocolError(f"Part {index} of a letter is damaged: its digest is wrong.")
            parts.append(part)
        envelope = self._head.envelope
        return ReceivedLetter(envelope.origin, envelope.series, envelope.number, self._head.content, parts)

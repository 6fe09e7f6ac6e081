"""One end of a stream of frames: what waits to go out, and what its other end has left out.

Frames go out through a bounded queue; small ones overtake letters and their models. Every byte of a frame counts, not
only a letter's content: whoever makes frames may put anything into them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from espalier.fleet.certs import Identity
from espalier.fleet.links.framing import Certificates
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.wire import CERTIFICATES_ONCE

#: bytes of letters that may wait in a link's queue before their sender waits too
WINDOW_BYTES = 4 << 20
#: frames that may wait for somebody who does not read them
UNREAD_FRAMES = 10_000


@dataclass
class Traffic:
    """Bytes that one link has sent, as serialised: models (chunks) and all else."""

    models_out: int = 0
    control_out: int = 0


@dataclass(eq=False)
class Link:
    """One end of a stream: ``peer`` is who the other end is, if known, ``version`` what both speak once welcomed.

    ``untaken``: what came over a link that this host has made, since its engine was last waited for.
    """

    target: str
    peer: Identity | None = None
    version: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    untaken: int = 0

    def __post_init__(self) -> None:
        self._urgent: deque[pb.Frame] = deque()
        #: frames of letters and files, each with the bytes that it counted for when it was queued
        self._bulk: deque[tuple[pb.Frame, int]] = deque()
        self._waiting = 0
        #: of that, by whose letters they are
        self._held: Counter[int] = Counter()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ending = False
        self._ended = asyncio.Event()
        self._sent, self._heard = Certificates(), Certificates()

    @property
    def open(self) -> bool:
        """Whether frames can still go out."""
        return not self._ending

    @property
    def unread(self) -> bool:
        """Whether the other end does not read what it is answered."""
        return len(self._urgent) > UNREAD_FRAMES

    def post(self, frame: pb.Frame) -> None:
        """Queue a frame at once, ahead of models; nothing happens on a link that has ended."""
        if not self._ending:
            self._urgent.append(frame)
            self._ready.set()

    def relay(self, frame: pb.Frame, most: int, of_one: int) -> bool:
        """Queue a frame of somebody else's letter; False (and it is lost) if too much waits already, or of this one."""
        if not frame.HasField("head") and not frame.HasField("chunk"):
            if self.unread:
                return False
            self.post(frame)
            return not self._ending
        size = frame.ByteSize()
        if self._ending or self._waiting + size > most or self._held[origin_of(frame)] + size > of_one:
            return False
        self._queue(frame, size)
        return True

    async def send(self, frame: pb.Frame) -> bool:
        """Queue a frame of a letter when there is room; False if the link ended first."""
        size = frame.ByteSize()
        while self._waiting > WINDOW_BYTES and not self._ending:
            self._room.clear()
            await self._room.wait()
        if self._ending:
            return False
        self._queue(frame, size)
        return True

    def _queue(self, frame: pb.Frame, size: int) -> None:
        self._waiting += size
        self._held[origin_of(frame)] += size
        self._bulk.append((frame, size))
        self._ready.set()

    def close(self) -> None:
        """End the link once what is urgent has gone out."""
        self._ending = True
        self._ready.set()
        self._room.set()

    async def ended(self) -> None:
        """Wait until the stream is over."""
        await self._ended.wait()

    async def pump(self, write: Callable[[pb.Frame], Awaitable[object]]) -> None:
        """Write queued frames until the link ends."""
        while True:
            while self._urgent or (self._bulk and not self._ending):
                frame, held = (self._urgent.popleft(), 0) if self._urgent else self._bulk.popleft()
                if self.version >= CERTIFICATES_ONCE and frame.HasField("head"):
                    self._sent.leave_out(frame.head)
                size = frame.ByteSize()
                self._waiting -= held
                self._held[origin_of(frame)] -= held
                if frame.HasField("chunk"):
                    self.traffic.models_out += size
                else:
                    self.traffic.control_out += size
                if self._waiting <= WINDOW_BYTES:
                    self._room.set()
                await write(frame)
            if self._ending:
                return
            self._ready.clear()
            await self._ready.wait()

    def whole(self, frame: pb.Frame) -> pb.Frame:
        """Return a frame that came with what the other end has left out."""
        if self.version >= CERTIFICATES_ONCE and frame.HasField("head"):
            self._heard.put_back(frame.head)
        return frame

    def over(self) -> None:
        """Note that the stream is over."""
        self.close()
        self._urgent.clear()
        self._bulk.clear()
        self._ended.set()


def origin_of(frame: pb.Frame) -> int:
    """Return whose letter a frame is of (0: of none)."""
    return int((frame.head if frame.HasField("head") else frame.chunk).envelope.origin)

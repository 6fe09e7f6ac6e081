"""Letters between hosts: numbered, kept until they are acknowledged, sent again, taken once and in order.

At-least-once delivery with sequence numbers; the receiver passes over what it has taken. Two halves.
:class:`DeliveryState` belongs to the engine: it numbers what goes out, remembers what came in, and keeps both in the
journal. :class:`Transmitter` belongs to the event loop: it sends what is not acknowledged over whatever link leads to
the destination, and again whenever a link on the way was made anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from espalier.fleet.links.framing import Letter, LetterPart, ReceivedLetter, frames
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.node.journal import Journal

#: seconds without an acknowledgement after which a letter is sent again though no link is known to have broken
RESEND_SECONDS = 30.0
#: letters that may wait for an earlier one
LETTERS_AHEAD = 64
#: their bytes together, if it is more than one
BYTES_AHEAD = 4 << 20
#: the largest number of a series: a destination that asks for a later one is refused
LAST_SERIES = 1 << 63

Fate = Literal["new", "old", "early", "unknown"]


class DeliveryState:
    """What was sent and not acknowledged, and how far everybody was heard."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        #: destination -> (series, last number given)
        self._sent: dict[int, tuple[int, int]] = journal.get("sent") or {}
        #: origin -> (series, last number taken)
        self._taken: dict[int, tuple[int, int]] = journal.get("taken") or {}
        #: origin -> a series whose beginning is not here: nothing of it is ever taken, its sender is asked for another
        self._void: dict[int, int] = journal.get("void") or {}
        self._early: dict[int, dict[int, ReceivedLetter]] = {}
        #: destination -> number -> (content, the parts' recipe)
        self.waiting: dict[int, dict[int, tuple[bytes, list[Any]]]] = {}
        for dest, number, content, parts in journal.letters():
            self.waiting.setdefault(dest, {})[number] = (content, parts)

    def post(self, dest: int, content: bytes, recipe: list[Any], parts: Sequence[LetterPart]) -> Letter:
        """Number a letter and keep it. ``recipe`` is plain data from which its parts can be made again."""
        series, last = self._sent.get(dest) or (_fresh(0), 0)
        self._sent[dest] = (series, last + 1)
        self.waiting.setdefault(dest, {})[last + 1] = (content, recipe)
        self._journal.post(dest, last + 1, content, recipe)
        return Letter(dest, series, last + 1, content, parts)

    def series(self, dest: int) -> int:
        """Return the series of a destination."""
        return self._sent[dest][0]

    def acknowledged(self, dest: int, series: int, number: int) -> bool:
        """Forget letters up to a number; False if it was of another series, or none has that number."""
        present, last = self._sent.get(dest, (0, 0))
        if series != present or number > last:
            return False
        for known in [n for n in self.waiting.get(dest, {}) if n <= number]:
            del self.waiting[dest][known]
        self._journal.acknowledged(dest, number)
        return True

    def renumber(self, dest: int, series: int, *, above: int = 0, forget: bool = False) -> bool:
        """Begin a new series, because the destination does not know this one.

        Args:
            dest: The destination.
            series: The one that it does not know; nothing happens if that is over already.
            above: One that it does know.
            forget: Begin with nothing instead of all that waits.
        """
        if self._sent.get(dest, (0, 0))[0] != series or above >= LAST_SERIES:
            return False
        held = [] if forget else [letter for _, letter in sorted(self.waiting.get(dest, {}).items())]
        self._journal.acknowledged(dest, 1 << 62)
        self._sent[dest] = (_fresh(max(series, above)), len(held))
        self.waiting[dest] = dict(enumerate(held, 1))
        for number, (content, recipe) in self.waiting[dest].items():
            self._journal.post(dest, number, content, recipe)
        return True

    def fate(self, arrival: ReceivedLetter) -> Fate:
        """Say what to do with a letter: take it, acknowledge it again, let it wait, or ask for a new series."""
        series, last = self._taken.get(arrival.origin, (0, 0))
        if arrival.series < series:
            return "unknown"  # a host without memory whose clock is behind: it must count on from the newer series
        if arrival.series == series and arrival.number <= last:
            return "old"
        if arrival.series > series:
            if arrival.number != 1 or arrival.series <= self._void.get(arrival.origin, -1):
                # its first letter may only be late: but once asked, the sender sends all of them under new numbers
                self._void[arrival.origin] = max(arrival.series, self._void.get(arrival.origin, -1))
                return "unknown"
            self._early.pop(arrival.origin, None)
            return "new"
        if arrival.number == last + 1:
            return "new"
        early = self._early.setdefault(arrival.origin, {})
        held = sum(_bytes_of(letter) for letter in early.values())
        if not early or (len(early) < LETTERS_AHEAD and held + _bytes_of(arrival) <= BYTES_AHEAD):
            early[arrival.number] = arrival
        return "early"

    def take(self, arrival: ReceivedLetter) -> ReceivedLetter | None:
        """Note that a letter was taken; return the next one if it is here already."""
        self._taken[arrival.origin] = (arrival.series, arrival.number)
        following = self._early.get(arrival.origin, {}).pop(arrival.number + 1, None)
        return following if following is not None and following.series == arrival.series else None

    def heard(self, origin: int) -> tuple[int, int]:
        """Return the series and number up to which a host's letters were taken."""
        return self._taken.get(origin, (0, 0))

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        self._journal.put("sent", self._sent)
        self._journal.put("taken", self._taken)
        self._journal.put("void", self._void)


def _bytes_of(letter: ReceivedLetter) -> int:
    return len(letter.content) + sum(len(part.data) for part in letter.parts)


def _fresh(series: int) -> int:
    """Return a larger series; by the clock, so that a host without memory does not begin below its earlier ones."""
    return max(series + 1, time.time_ns() // 1_000_000)


@dataclass(eq=False)
class _Box:
    """Letters on their way to one destination, in order; the first ``sent`` of them went out."""

    letters: list[Letter] = field(default_factory=list)
    sent: int = 0
    turn: int = 0
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    patience: float = RESEND_SECONDS


class Transmitter:
    """Sends letters, and sends them again."""

    def __init__(self, me: int, route: Callable[[int], Link | None], sign: Callable[[pb.Head], None]) -> None:
        """Prepare to send; ``route`` gives the link that leads to a host now, ``sign`` signs a letter."""
        self._me, self._route, self._sign = me, route, sign
        self._boxes: dict[int, _Box] = {}
        self.resent = 0

    def post(self, letters: Iterable[Letter]) -> None:
        """Send letters, each after those before it to the same destination."""
        for letter in letters:
            box = self._box(letter.dest)
            box.letters.append(letter)
            box.stirred.set()

    def replace(self, dest: int, letters: Sequence[Letter]) -> None:
        """Send other letters to a destination instead: its series began anew."""
        box = self._box(dest)
        box.letters, box.sent, box.turn = list(letters), 0, box.turn + 1
        box.stirred.set()

    def acknowledged(self, dest: int, series: int, number: int) -> None:
        """Letters up to a number have arrived."""
        box = self._boxes.get(dest)
        if box is None:
            return
        done = [x for x in box.letters if x.series == series and x.number <= number]
        if done:
            # in order, so these are the first ones
            del box.letters[: len(done)]
            box.sent = max(0, box.sent - len(done))
            box.patience = RESEND_SECONDS
            box.stirred.set()

    def again(self, hosts: Iterable[int] | None = None) -> None:
        """A link on the way to these hosts (None: to all) was made anew: what was under way may be lost."""
        for host in list(self._boxes) if hosts is None else hosts:
            box = self._boxes.get(host)
            if box is not None and box.letters:
                self.resent += box.sent
                box.sent, box.turn = 0, box.turn + 1
                box.stirred.set()

    def pending(self) -> int:
        """Return how many letters are not acknowledged."""
        return sum(len(b.letters) for b in self._boxes.values())

    def reachable(self) -> bool:
        """Whether a letter waits for somebody who is linked now."""
        return any(b.letters and self._route(dest) is not None for dest, b in self._boxes.items())

    async def close(self) -> None:
        """Stop sending."""
        tasks = [b.task for b in self._boxes.values() if b.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _box(self, dest: int) -> _Box:
        box = self._boxes.setdefault(dest, _Box())
        if box.task is None or box.task.done():
            box.task = asyncio.create_task(self._serve(dest, box))
        return box

    async def _serve(self, dest: int, box: _Box) -> None:
        while True:
            link = self._route(dest)
            if box.sent < len(box.letters) and link is not None and link.open:
                await self._send(link, box)
                continue
            box.stirred.clear()
            try:
                # not asyncio.wait_for: up to Python 3.11 that may swallow a cancellation
                async with asyncio.timeout(box.patience):
                    await box.stirred.wait()
            except TimeoutError:
                if box.letters and box.sent:
                    box.patience = min(600.0, 2 * box.patience)
                    self.again([dest])

    async def _send(self, link: Link, box: _Box) -> None:
        letter, turn = box.letters[box.sent], box.turn
        for frame in frames(letter, self._me):
            if frame.HasField("head"):
                self._sign(frame.head)
            if not await link.send(frame):
                return  # when a link is made anew, everything is sent again
            if box.turn != turn or letter not in box.letters[: box.sent + 1]:
                return
        if box.sent < len(box.letters) and box.letters[box.sent] is letter:
            box.sent += 1

    def ack(self, arrival_origin: int, series: int, number: int) -> pb.Frame:
        """Make the acknowledgement of another host's letters up to a number."""
        return pb.Frame(ack=pb.Ack(envelope=self._envelope(arrival_origin, series, number)))

    def restart(self, origin: int, series: int, known: int) -> pb.Frame:
        """Make the request to begin a new series, larger than the one that is known here."""
        return pb.Frame(restart=pb.Restart(envelope=self._envelope(origin, series, known)))

    def _envelope(self, origin: int, series: int, number: int) -> pb.Envelope:
        return pb.Envelope(origin=origin, dest=self._me, series=series, number=number)

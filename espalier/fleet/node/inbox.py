"""The inbox: letters that came to a host are checked, opened, and given to the node or the runtime that they are for.

Every letter is opened here and nowhere else. Whether its sender may say this is checked first
(`espalier.fleet.authority`); only then are its models read and stored. Whatever goes wrong with one letter is refused
and recorded: no letter may end the process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from espalier.core.address import host_of
from espalier.core.errors import ConfigError, ProtocolError, RunError, TrainingError
from espalier.core.messages import Message, Order, Report, Word
from espalier.core.params import Spans
from espalier.core.store import Ref
from espalier.fleet.authority.check import Authority, Outdated
from espalier.fleet.authority.fields import COUNT, is_address
from espalier.fleet.authority.rules import IN_USE, SERVED, SUM, SUMMAND
from espalier.fleet.links import wire
from espalier.fleet.links.encoding import Encoding, decode
from espalier.fleet.links.framing import LetterPart, ReceivedLetter
from espalier.fleet.node.outbox import Outbox
from espalier.fleet.node.state import HostState
from espalier.fleet.secure.aggregator import Sums
from espalier.fleet.secure.child import Masking

#: errors that no letter is to blame for: the disk, the memory, the operator's configuration
NOT_A_LETTERS_FAULT = (ConfigError, RunError, sqlite3.Error, OSError, MemoryError)

#: by how much a report's times may exceed what it took: clocks of two hosts agree only so far
CLOCK_SECONDS = 1.0


class Inbox:
    """Opens the letters of one host. All is called in the engine's thread."""

    def __init__(
        self,
        state: HostState,
        outbox: Outbox,
        authority: Authority,
        sums: Sums,
        masking: Masking,
        reported: Callable[[Report], float],
        drain: Callable[[], None],
    ) -> None:
        """Open letters.

        ``reported`` hears of every report and tells how long it took; ``drain`` lets nodes take what waits for them.
        """
        self._state, self._outbox, self._authority, self._sums, self._masking = state, outbox, authority, sums, masking
        self._on_report, self._drain = reported, drain

    def take(self, arrival: ReceivedLetter) -> None:
        """Take a letter, and those that waited for it; a letter that was taken before is only acknowledged again."""
        effects, delivery = self._state.effects, self._outbox.delivery
        following: ReceivedLetter | None = arrival
        while following is not None:
            fate = delivery.fate(following)
            if fate == "unknown":
                effects.restarts[following.origin] = (following.series, delivery.heard(following.origin)[0])
                return
            if fate == "early":
                return
            after: ReceivedLetter | None = None
            if fate == "new":
                self._open_safely(following)
                after = delivery.take(following)
            effects.acks[following.origin] = delivery.heard(following.origin)
            following = after

    def _open_safely(self, arrival: ReceivedLetter) -> None:
        """Open a letter; one that is refused is acknowledged all the same: it would be no better the next time."""
        refused = self._state.effects.refused
        try:
            self._open(arrival)
            self._drain()
        except Outdated:
            pass
        except (ProtocolError, TrainingError) as error:
            refused.append((arrival.origin, str(error)))
        except NOT_A_LETTERS_FAULT:
            raise
        except Exception as error:
            refused.append((arrival.origin, f"A letter of host {arrival.origin} is malformed: {error!r}."))

    def _open(self, arrival: ReceivedLetter) -> None:
        """Read a letter, check that its sender may say this, and only then let it have consequences."""
        origin = arrival.origin
        said = wire.unpack(arrival.content, COUNT if origin == self._state.directory.cloud else wire.VALUES)
        if not isinstance(said, wire.ControlLetter):
            try:
                self._authority.check(origin, said)
            except ProtocolError:
                if isinstance(said, Report) and is_address(said.sender) and host_of(said.sender) == origin:
                    self._state.gave_up(said.sender)  # nobody waits for another one
                raise
            self._deliver(said, arrival)
            return
        self._authority.check_control(origin, said.kind, said.data)
        if said.kind == SUM:
            self._masking.control(origin, said.data)
        elif said.kind == SUMMAND:
            self._sums.control(said.data)
        else:
            self._state.conduct.control(origin, said.kind, said.data)

    def _deliver(self, said: Message, arrival: ReceivedLetter) -> None:
        """Store a letter's models and give its message to the node that it is for."""
        state = self._state
        masked = said if isinstance(said, Report) and self._sums.concerns(said.to) else None
        keep = partial(self._kept_masked, said=masked) if masked else self._kept
        refs = [keep(part, arrival.origin) for part in arrival.parts]
        message = self._clocked(wire.enclosed(said, refs, self._restored, state.manifest.limits.device_parts))
        if isinstance(message, Word) and message.kind in (SERVED, IN_USE):
            state.conduct.handed(message)
            return
        if isinstance(message, Report):
            for ref in message.models.values():
                state.store.told_by(ref, message.sender)
            message = self._reported(message)
            if masked:
                self._sums.arrived(message)
        elif isinstance(message, Order) and state.directory.is_device(message.to):
            self._outbox.obeys(message)
            state.conduct.ordered(message)
        state.arrive(message)

    def _clocked(self, message: Message) -> Message:
        """Return a message that was not sent after it arrived: clocks of two hosts agree only so far."""
        now = self._state.now()
        return message if message.sent <= now else replace(message, sent=now)

    # -- models -----------------------------------------------------------------------------------------------

    def _restored(self, spans: tuple[tuple[int, int], ...], numbers: Any) -> Ref:
        """Keep a model of which only some numbers came; the others are zero."""
        store = self._state.store
        if spans and max(stop for _, stop in spans) > store.spec.size:
            raise ProtocolError(f"A cut of a model ends at {spans[-1][1]}; the model has {store.spec.size} numbers.")
        return store.put(_filled(torch.zeros(store.spec.size), spans, torch.from_numpy(numbers.copy())))

    def _whole(self, part: LetterPart, origin: int) -> Tensor:
        """Return a model; where only a part of it travels, the rest is the initial one's (zero where nobody has it)."""
        state = self._state
        spans = state.runtime.shares(min(state.me, origin), state.store.spec)
        size = state.store.spec.size if spans is None else sum(b - a for a, b in spans)
        numbers = decode(part, size, state.manifest.experiment.training.dtype)
        if spans is None:
            return numbers
        knows = state.directory.is_device(state.me) or state.me == state.directory.cloud
        vector = (
            state.store.vector(state.store.initial()).clone() if knows else numbers.new_zeros(state.store.spec.size)
        )
        return _filled(vector, spans, numbers)

    def _kept(self, part: LetterPart, origin: int) -> Ref:
        """Keep a model."""
        if part.encoding != Encoding.Q8:
            return self._state.store.put(self._whole(part, origin))
        found = self._outbox.feedback.decoded(part, origin)
        if found is None:
            # Its sender waits for nothing: it takes part again from the next order on.
            self._state.gave_up(origin)
            raise ProtocolError(f"Host {origin} sends a difference from a model that is not here any more.")
        return self._state.store.put(found)

    def _kept_masked(self, part: LetterPart, origin: int, said: Report) -> Ref:
        """Keep a masked model, and what is beside it; one that is not masked is not even looked at."""
        spec = self._state.store.spec
        size = 8 * (spec.size + 1 + spec.n_float * len(said.auxiliary))
        if part.encoding == Encoding.MASKED and len(part.data) in (0, size):
            return self._state.store.seal(np.frombuffer(part.data, dtype="<u8").astype(np.uint64))
        self._sums.strike(said.to, origin)
        what = f"{len(part.data)} bytes" if part.encoding == Encoding.MASKED else "a model that is not masked"
        raise ProtocolError(f"Host {origin} sends {what} to a secure sum of masked models of {size} bytes.")

    # -- what a report tells besides ------------------------------------------------------------------------------

    def _reported(self, report: Report) -> Report:
        """Learn from a report how fast its sender and the way to it are; return it with times that can be true."""
        state, sender = self._state, report.sender
        directory = state.directory
        directory.at_work.discard(sender)
        took = self._on_report(report)
        if state.manifest.script is None:
            report = plausible(report, state.now(), took)
        self._outbox.feedback.answered(report)
        if report.loss is not None:
            for ref in report.models.values():
                state.store.told_loss(ref, report.loss)
        member = directory.members.get(sender)
        if member is None or not report.models or state.manifest.script is not None:
            return report
        way = max(0.0, (report.download + state.now() - report.sent) / 2)
        batches = state.manifest.experiment.training.batches(member.samples, report.updates)
        speed = report.compute / batches if batches and directory.is_device(sender) else member.seconds_per_batch
        directory.members[sender] = replace(member, seconds_per_batch=speed, model_seconds=way)
        return report


def _filled(vector: Tensor, spans: Spans, numbers: Tensor) -> Tensor:
    """Put numbers into some places of a vector, and return it."""
    at = 0
    for start, stop in spans:
        vector[start:stop] = numbers[at : at + stop - start]
        at += stop - start
    return vector


def plausible(report: Report, now: float, took: float) -> Report:
    """Return a report whose times add up to no more than it took from order to answer, by this host's own clock.

    A child says how long the model was on its way and how long it computed; rounds are planned by that. It may lie, and
    its clock may be ahead.
    """
    compute = min(report.compute, took + CLOCK_SECONDS)
    excess = report.download + compute + now - report.sent - took
    if excess <= CLOCK_SECONDS:
        return replace(report, compute=compute)
    # Never below nothing: where a child's clock lags, its report's way seems long, not its order's.
    download = max(0.0, report.download - excess)
    sent = min(now, report.sent + excess - (report.download - download))
    return replace(report, compute=compute, download=download, sent=sent)

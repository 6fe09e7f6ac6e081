"""The desk: what a host's nodes say to others becomes letters, and letters become what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from espalier.core import quantise
from espalier.core.address import host_of
from espalier.core.codec import refs_in
from espalier.core.errors import ConfigError, ProtocolError
from espalier.core.messages import Arrived, Message, Order, Report, Word
from espalier.core.messages import Part as ModelPart
from espalier.core.store import Ref
from espalier.fleet.links import wire
from espalier.fleet.links.delivery import Mailbox
from espalier.fleet.links.encoding import Encoder, Encoding, decode
from espalier.fleet.links.framing import Arrival, Letter, Part
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.node.store import EagerStore
from espalier.fleet.secure.child import SUM, SUMMAND

if TYPE_CHECKING:
    from espalier.fleet.node.engine import Engine

#: a word between runtimes that carries the models a root on a device serves
SERVED = "@served"
#: orders to one child whose models are kept, because a difference from them may still arrive
KEPT = 4


class Desk:
    """Writes and reads the letters of one host. All is called in the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.mail = Mailbox(engine.journal)
        self._q8 = engine.charter.compress == "q8"
        self._encoder = Encoder(
            "zstd" if engine.charter.compress == "zstd" else "none", lambda name: engine.store.vector(Ref(name))
        )
        plain = engine.journal.get("desk") or {}
        #: models that went out with orders: child -> order -> model
        self._handed: dict[int, dict[int, Ref]] = plain.get("handed", {})
        #: the model that a device of this host was given last: device -> (dispatcher, order, model)
        self._given: dict[int, tuple[int, int, Ref]] = plain.get("given", {})
        #: what rounding took away from a device's models so far
        self._errors: dict[int, Ref] = plain.get("errors", {})

    # -- letters that came ---------------------------------------------------------------------------------

    def take(self, arrival: Arrival) -> None:
        """Take a letter, and those that waited for it; a letter that was taken before is only acknowledged again."""
        effects = self._engine.effects
        following: Arrival | None = arrival
        while following is not None:
            fate = self.mail.fate(following)
            if fate == "unknown":
                effects.restarts[following.origin] = (following.series, self.mail.heard(following.origin)[0])
                return
            if fate == "early":
                return
            after: Arrival | None = None
            if fate == "new":
                try:
                    self._open(following)
                except ProtocolError as error:
                    # acknowledged all the same: it would be no better the next time
                    effects.refused.append((following.origin, str(error)))
                self._engine.drain()
                after = self.mail.take(following)
            effects.acks[following.origin] = self.mail.heard(following.origin)
            following = after

    def _open(self, arrival: Arrival) -> None:
        engine = self._engine
        if arrival.content.WhichOneof("kind") == "control":
            kind, data = wire.unpack_control(arrival.content)
            try:
                if kind == SUM:
                    engine.hiding.control(arrival.origin, data)
                elif kind == SUMMAND:
                    engine.sums.control(arrival.origin, data)
                else:
                    engine.steward.control(arrival.origin, kind, data)
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                raise ProtocolError(f"{kind!r} of host {arrival.origin} is malformed: {error!r}.") from error
            return
        to = arrival.content.report.to
        hidden = arrival.content.WhichOneof("kind") == "report" and engine.sums.concerns(to)
        keep = partial(self._sealed, node=to) if hidden else self._kept
        refs = [keep(part, arrival.origin) for part in arrival.parts]
        message = self._clocked(wire.unpack(arrival.content, refs, self._restored))
        if host_of(message.sender) != arrival.origin or host_of(message.to) != engine.me:
            raise ProtocolError(
                f"A letter of host {arrival.origin} to {engine.me} holds a message of {message.sender} to "
                f"{message.to}: nobody speaks for another."
            )
        if isinstance(message, Word) and message.kind == SERVED:
            engine.steward.handed(message)
            return
        if isinstance(message, Report):
            self._reported(message)
            if hidden:
                engine.sums.arrived(message)
        elif isinstance(message, Order) and engine.directory.is_device(message.to):
            if self._q8 and message.models:
                self._given[message.to] = (message.sender, message.id, next(iter(message.models.values())))
            engine.steward.ordered(message)
        engine.begin(message.to, Arrived(message))

    def _clocked(self, message: Message) -> Message:
        """Return a message that was not sent after it arrived: clocks of two hosts agree only so far."""
        now = self._engine.now()
        return message if message.sent <= now else replace(message, sent=now)

    def _restored(self, spans: tuple[tuple[int, int], ...], numbers: Any) -> Ref:
        """Keep a model of which only some numbers came; the others are zero."""
        store = self._engine.store
        if spans and max(stop for _, stop in spans) > store.spec.size:
            raise ProtocolError(f"A cut of a model ends at {spans[-1][1]}; the model has {store.spec.size} numbers.")
        vector = torch.zeros(store.spec.size)
        at = 0
        for start, stop in spans:
            vector[start:stop] = torch.from_numpy(numbers[at : at + stop - start].copy())
            at += stop - start
        return store.put(vector)

    def _decoded(self, part: Part, origin: int) -> Tensor:
        spec = self._engine.store.spec
        if part.encoding != Encoding.Q8:
            return decode(part, spec.size)
        base = self._handed.get(origin, {}).get(part.base)
        if base is None:
            # Its sender waits for nothing: it takes part again from the next order on.
            self._engine.stumbled(origin)
            raise ProtocolError(f"Host {origin} sends a difference from a model that is not here any more.")
        return quantise.decode(part.data, self._engine.store.vector(base), spec)

    def _kept(self, part: Part, origin: int) -> Ref:
        return self._engine.store.put(self._decoded(part, origin))

    def _sealed(self, part: Part, origin: int, node: int) -> Ref:
        """Keep a masked model; one that is not masked is not even looked at."""
        size = 8 * (self._engine.store.spec.size + 1)
        if part.encoding == Encoding.MASKED and len(part.data) in (0, size):
            return self._engine.store.seal(np.frombuffer(part.data, dtype="<u8").astype(np.uint64))
        self._engine.sums.strike(node, origin)
        what = f"{len(part.data)} bytes" if part.encoding == Encoding.MASKED else "a model that is not masked"
        raise ProtocolError(f"Host {origin} sends {what} to a secure sum of masked models of {size} bytes.")

    def _reported(self, report: Report) -> None:
        """Learn from a report how fast its sender and the way to it are."""
        engine, sender = self._engine, report.sender
        directory = engine.directory
        directory.at_work.discard(sender)
        self._handed.get(sender, {}).pop(report.order, None)
        member = directory.members.get(sender)
        if member is None or not report.models or engine.charter.script is not None:
            return
        way = max(0.0, (report.download + engine.now() - report.sent) / 2)
        batches = engine.charter.experiment.training.batches(member.samples, report.updates)
        speed = report.compute / batches if batches and directory.is_device(sender) else member.seconds_per_batch
        directory.members[sender] = replace(member, seconds_per_batch=speed, model_seconds=way)

    # -- letters that go -----------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message to a node, of this host or another."""
        engine, dest = self._engine, host_of(message.to)
        device = engine.directory.is_device(message.to)
        if isinstance(message, Order) and device:
            engine.directory.at_work.add(message.to)
        if dest == engine.me:
            engine.begin(message.to, Arrived(message))
            return
        if isinstance(message, Report) and message.models and engine.sums.concerns(message.to):
            engine.hiding.send(message)
            return
        engine.hiding.inspect(message)
        if isinstance(message, Order) and device and self._q8 and message.models:
            kept = self._handed.setdefault(message.to, {})
            kept[message.id] = next(iter(message.models.values()))
            for old in sorted(kept)[:-KEPT]:
                del kept[old]
        enclosed = _Enclosed(engine.store)
        content = wire.pack(message, enclosed)
        recipe: list[Any] = list(enclosed.refs)
        if isinstance(message, Report) and self._q8:
            recipe = self._differences(message, recipe)
        self._post(dest, content, recipe)

    def send_hidden(self, report: Report, words: bytes) -> None:
        """Send a report whose model is masked."""
        content = wire.pack(report, _Enclosed(self._engine.store))
        self._post(host_of(report.to), content, [(int(Encoding.MASKED), 0, words)])

    def _differences(self, report: Report, recipe: list[Any]) -> list[Any]:
        """Put differences in place of a device's models, where the receiver has what they differ from."""
        engine = self._engine
        given = self._given.get(report.sender)
        if given is None or given[:2] != (report.dispatcher, report.order) or report.to != report.dispatcher:
            return recipe
        store, coded = engine.store, []
        for ref in recipe:
            error = self._errors.get(report.sender)
            before = None if error is None else store.vector(error)[: store.spec.n_float]
            found = quantise.code(store.vector(ref), store.vector(given[2]), before, store.spec)
            self._errors[report.sender] = store.put(_padded(found.error, store.spec.size))
            coded.append((int(Encoding.Q8), report.order, found.data))
        return coded

    def say(self, dest: int, kind: str, **data: Any) -> int:
        """Say something to another host's runtime (to this one's own steward, if it is this host)."""
        if dest == self._engine.me:
            self._engine.steward.control(dest, kind, data)
            return 0
        return self._post(dest, wire.control(kind, data), [])

    def _post(self, dest: int, content: pb.Content, recipe: list[Any]) -> int:
        limits, effects = self._engine.charter.limits, self._engine.effects
        data, parts = content.SerializeToString(), self._parts(recipe)
        size = sum(len(p.data) for p in parts)
        if len(data) > limits.content_bytes or len(parts) > limits.parts or size > limits.letter_bytes:
            raise ConfigError(
                f"A message to node {dest} has {len(data)} bytes and {len(parts)} models of {size} bytes; the limits "
                f"are {limits.content_bytes} (content_bytes), {limits.parts} (parts) and {limits.letter_bytes} "
                "(letter_bytes): raise them at the cloud."
            )
        letter = self.mail.post(dest, data, recipe, parts)
        if dest in effects.replaced:
            effects.replaced[dest].append(letter)
        else:
            effects.letters.append(letter)
        return letter.number

    def _parts(self, recipe: Sequence[Any]) -> list[Part]:
        return [self._encoder.part(int(r)) if isinstance(r, Ref) else Part.of(r[2], r[0], r[1]) for r in recipe]

    def letters_to(self, dest: int) -> list[Letter]:
        """Return all letters to a destination that are not acknowledged."""
        return [
            Letter(dest, self.mail.series(dest), number, content, self._parts(recipe))
            for number, (content, recipe) in sorted(self.mail.waiting[dest].items())
        ]

    def renumber(self, dest: int, series: int | None = None, *, above: int = 0, forget: bool = False) -> None:
        """Begin a new series of letters to a host (``forget``: without those that wait)."""
        if dest in self.mail.waiting and self.mail.renumber(
            dest, self.mail.series(dest) if series is None else series, above=above, forget=forget
        ):
            self._engine.effects.replaced[dest] = self.letters_to(dest)

    # -- saving --------------------------------------------------------------------------------------------

    def held(self, found: set[int]) -> None:
        """Add the models that letters, or differences to come, need."""
        for letters in self.mail.waiting.values():
            for _, recipe in letters.values():
                refs_in(recipe, found)
        self._encoder.keep_only(found)
        refs_in([self._handed, self._given, self._errors], found)

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        self.mail.save()
        if self._q8:
            self._engine.journal.put("desk", {"handed": self._handed, "given": self._given, "errors": self._errors})


class _Enclosed:
    """The models that go with a letter, each once."""

    def __init__(self, store: EagerStore) -> None:
        self._store = store
        self.refs: list[Ref] = []

    def place(self, ref: Ref) -> int:
        """Return the number of a model's part."""
        if ref not in self.refs:
            self.refs.append(ref)
        return self.refs.index(ref)

    def numbers(self, part: ModelPart) -> bytes:
        """Return some numbers of a model."""
        vector = self._store.vector(part.model)
        pieces = [vector[start:stop].float().numpy().astype("<f4").tobytes() for start, stop in part.spans]
        return b"".join(pieces)


def _padded(vector: Tensor, size: int) -> Tensor:
    found = vector.new_zeros(size)
    found[: len(vector)] = vector
    return found

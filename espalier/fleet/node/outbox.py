"""The outbox: what a host's nodes and runtime say to other hosts becomes letters, kept until they are acknowledged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from espalier.core.address import host_of
from espalier.core.codec import refs_in
from espalier.core.errors import ConfigError
from espalier.core.messages import Message, Order, Part, Report
from espalier.core.policies import Selection
from espalier.core.store import Ref
from espalier.fleet.links import wire
from espalier.fleet.links.delivery import DeliveryState
from espalier.fleet.links.encoding import Encoder, Encoding
from espalier.fleet.links.framing import Letter, LetterPart
from espalier.fleet.node.error_feedback import ErrorFeedback
from espalier.fleet.node.state import HostState
from espalier.fleet.node.store import EagerStore
from espalier.privacy import is_private

#: letters, and those with models, that a host below may leave unacknowledged: who is there acknowledges each at once
LETTERS_OWED, MODELS_OWED = 1000, 64


class Outbox:
    """Writes the letters of one host. All is called in the engine's thread."""

    def __init__(self, state: HostState) -> None:
        self._state = state
        self.delivery = DeliveryState(state.journal)
        self._limits = state.manifest.bounds
        self._q8 = state.manifest.compress == "q8"
        #: a loss tells something of a device's data: it goes out only where a selection looks at it
        self._tells_losses = not is_private(state.plan) and any(
            type(rules.selection).learn is not Selection.learn
            for rules in (state.plan.root, state.plan.middle, state.plan.edge)
        )
        self.feedback = ErrorFeedback(state.store, state.journal.get("feedback"))
        self._encoder = Encoder(
            "zstd" if state.manifest.compress == "zstd" else "none",
            lambda name: state.store.vector(Ref(name)),
        )

    # -- messages ------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message to a node of another host."""
        state = self._state
        if isinstance(message, Order) and state.directory.is_device(message.to) and self._q8 and message.models:
            self.feedback.sent(message)
        if isinstance(message, Report) and self._tells_losses and message.loss is None and message.models:
            loss = state.store.loss(next(iter(message.models.values())))
            message = replace(message, loss=loss if math.isfinite(loss) else None)
        enclosed = _Enclosed(state.store)
        content = wire.pack(message, enclosed)
        recipe: list[Any] = list(enclosed.refs)
        if isinstance(message, Report) and self._q8:
            recipe = self.feedback.differences(message, enclosed.refs)
        self._post(host_of(message.to), content, recipe)

    def obeys(self, order: Order) -> None:
        """A device of this host was given an order: its report may be a difference from the order's model."""
        if self._q8 and order.models:
            self.feedback.given(order)

    def send_masked(self, report: Report, words: bytes) -> None:
        """Send a report whose model is masked."""
        content = wire.pack(report, _Enclosed(self._state.store))
        self._post(host_of(report.to), content, [(int(Encoding.MASKED), 0, words)])

    def say(self, dest: int, kind: str, **data: Any) -> int:
        """Send a control letter to another host's runtime (to this one's own conduct, if it is this host)."""
        if dest == self._state.me:
            self._state.conduct.control(dest, kind, data)
            return 0
        return self._post(dest, wire.control(kind, data), [])

    # -- letters -------------------------------------------------------------------------------------------

    def _post(self, dest: int, data: bytes, recipe: list[Any]) -> int:
        limits, effects = self._limits, self._state.effects
        parts = self._parts(dest, recipe)
        size = sum(len(p.data) for p in parts)
        device = self._state.directory.is_device(self._state.me)
        most = limits.of_device() if device else limits.letter_bytes
        if len(data) > limits.content_bytes or len(parts) > limits.parts or size > most:
            raise ConfigError(
                f"A message to node {dest} has {len(data)} bytes and {len(parts)} models of {size} bytes; the limits "
                f"are {limits.content_bytes} (content_bytes), {limits.parts} (parts) and {most} "
                f"({'device_parts' if device else 'letter_bytes'}): raise them at the cloud."
            )
        if self._owes_too_much(dest):
            # it is told what is current, from here on, and nothing of what was
            self.renumber(dest, forget=True)
            self._state.conduct.record(self._state.me, "unacknowledged", {"child": dest})
        letter = self.delivery.post(dest, data, recipe, parts)
        if dest in effects.replaced:
            effects.replaced[dest].append(letter)
        else:
            effects.letters.append(letter)
        return letter.number

    def _owes_too_much(self, dest: int) -> bool:
        """Tell whether a host below has left too many letters, or models, unacknowledged."""
        directory, waiting = self._state.directory, self.delivery.waiting.get(dest, {})
        below = directory.is_device(dest) or self._state.me == directory.cloud
        with_models = sum(1 for _, recipe in waiting.values() if recipe)
        return below and (len(waiting) >= LETTERS_OWED or with_models >= MODELS_OWED)

    def _parts(self, dest: int, recipe: Sequence[Any]) -> list[LetterPart]:
        state, part = self._state, self._encoder.part
        spans = state.runtime.shares(min(state.me, dest), state.store.spec) if recipe else None
        return [part(int(r), spans) if isinstance(r, Ref) else LetterPart.of(r[2], r[0], r[1]) for r in recipe]

    def letters_to(self, dest: int) -> list[Letter]:
        """Return all letters to a destination that are not acknowledged."""
        return [
            Letter(dest, self.delivery.series(dest), number, content, self._parts(dest, recipe))
            for number, (content, recipe) in sorted(self.delivery.waiting[dest].items())
        ]

    def renumber(self, dest: int, series: int | None = None, *, above: int = 0, forget: bool = False) -> None:
        """Begin a new series of letters to a host (``forget``: without those that wait)."""
        if dest in self.delivery.waiting and self.delivery.renumber(
            dest, self.delivery.series(dest) if series is None else series, above=above, forget=forget
        ):
            effects = self._state.effects
            effects.replaced[dest] = self.letters_to(dest)
            effects.letters = [letter for letter in effects.letters if letter.dest != dest]  # of the series before

    # -- saving --------------------------------------------------------------------------------------------

    def held(self, found: set[int]) -> None:
        """Add the models that letters, or differences to come, need."""
        for letters in self.delivery.waiting.values():
            for _, recipe in letters.values():
                refs_in(recipe, found)
        self._encoder.keep_only(found)
        self.feedback.held(found)

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        self.delivery.save()
        if self._q8:
            self._state.journal.put("feedback", self.feedback.to_plain())


class _Enclosed:
    """The models of a letter that is written."""

    def __init__(self, store: EagerStore) -> None:
        self._store = store
        self.refs: list[Ref] = []

    def place(self, ref: Ref) -> int:
        """Return the number of a model's part."""
        if ref not in self.refs:
            self.refs.append(ref)
        return self.refs.index(ref)

    def numbers(self, part: Part) -> bytes:
        """Return some numbers of a model."""
        vector = self._store.vector(part.model)
        pieces = [vector[start:stop].float().numpy().astype("<f4").tobytes() for start, stop in part.spans]
        return b"".join(pieces)

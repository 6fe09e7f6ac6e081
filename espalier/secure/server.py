"""The server of secure aggregation: passes messages on, and in the end gets one sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from espalier.core.errors import ProtocolError
from espalier.secure import shamir
from espalier.secure.client import Keys, Unmasking, pair_key, plain_sum
from espalier.secure.masks import Words, decode, mask


class Server:
    """One sum over many clients. Whoever does not answer in time is left out of the next step."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.keys: dict[int, Keys] = {}
        self.shared: set[int] = set()
        self.masked: dict[int, Words] = {}

    def collect_keys(self, keys: Mapping[int, Keys]) -> dict[int, Keys]:
        """Take messages 0; return the list that every client gets."""
        self._enough(len(keys), "sent keys")
        self.keys = dict(keys)
        return dict(keys)

    def route(self, boxes: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Take messages 1 by sender; return what each client gets, by receiver (sealed: the server cannot look)."""
        self._enough(len(boxes), "sent shares")
        self.shared = set(boxes)
        return {to: {sender: sent[to] for sender, sent in boxes.items()} for to in boxes}

    def collect(self, masked: Mapping[int, Words]) -> set[int]:
        """Take messages 2; return who is still there."""
        known = {c: words for c, words in masked.items() if c in self.shared}
        self._enough(len(known), "sent numbers")
        if len({len(words) for words in known.values()}) != 1:
            raise ProtocolError("The clients sent different amounts of numbers.")
        self.masked = known
        return set(known)

    def short(self, answers: Mapping[int, Unmasking]) -> set[int]:
        """Return the clients of whose secrets there are too few shares: they dealt out what nobody could open."""
        held = {c: sum(c in (a.there if c in self.masked else a.lost) for a in answers.values()) for c in self.shared}
        return {c for c, count in held.items() if count < self.threshold}

    def sum(self, answers: Mapping[int, Unmasking]) -> NDArray[np.float64]:
        """Take messages 3; return the sum of the numbers of all who are there."""
        self._enough(len(answers), "helped to unmask")
        there, lost = set(self.masked), self.shared - set(self.masked)
        if short := self.short(answers):
            raise ProtocolError(f"The shares that clients {sorted(short)} dealt out could not be opened.")
        total = plain_sum(list(self.masked.values()))
        count = len(total)
        for client in there:
            seed = shamir.join({h: a.there[client] for h, a in answers.items() if client in a.there}, self.threshold)
            total = total - mask(seed, count)
        for client in lost:
            raw = shamir.join({h: a.lost[client] for h, a in answers.items() if client in a.lost}, self.threshold)
            private = X25519PrivateKey.from_private_bytes(raw)
            if private.public_key().public_bytes_raw() != self.keys[client].masks:
                raise ProtocolError(f"The shares of client {client}'s key do not fit its public key.")
            for other in there:
                shared = mask(pair_key(private, self.keys[other].masks), count)
                # Take off what ``other`` put on for the pair.
                total = total - shared if other < client else total + shared
        return decode(total)

    def _enough(self, count: int, what: str) -> None:
        if count < self.threshold:
            raise ProtocolError(f"Only {count} clients {what}; the sum needs {self.threshold}. Begin anew.")

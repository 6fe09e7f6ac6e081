"""A client of secure aggregation: hides its numbers, and helps to take masks off sums, never off one client."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import ArrayLike

from espalier.core.errors import ProtocolError
from espalier.secure import shamir
from espalier.secure.masks import Words, encode, mask

#: bytes of the sealed shares that one client sends to another: nonce, a share of each secret, and the seal
BOX = 12 + 2 * shamir.SHARE + 16


@dataclass(frozen=True)
class Keys:
    """A client's public keys: for shares on their way, and for masks."""

    shares: bytes
    masks: bytes

    def check(self) -> None:
        """Refuse what is no key, or one that gives everybody the same secret."""
        for key in (self.shares, self.masks):
            try:
                X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
            except (ValueError, TypeError) as error:
                raise ProtocolError("A public key is not one of X25519.") from error


@dataclass(frozen=True)
class Unmasking:
    """Shares that a client gives away: of the mask keys of those who are lost, of the seeds of those who are not."""

    lost: dict[int, bytes]
    there: dict[int, bytes]


class Client:
    """One client, for one sum. Its methods are called in order, once each."""

    def __init__(self, me: int, threshold: int) -> None:
        """Make the client's keys.

        Args:
            me: Its number, from 0 on.
            threshold: How many clients must answer last; more than half, or a server could ask two halves.
        """
        self.me, self.threshold = me, threshold
        self._share_key, self._mask_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(shamir.SECRET)
        self._keys: dict[int, Keys] = {}
        self._boxes: dict[int, bytes] = {}
        self._masked = self._unmasked = False

    def advertise(self) -> Keys:
        """Message 0: the public keys."""
        return Keys(self._share_key.public_key().public_bytes_raw(), self._mask_key.public_key().public_bytes_raw())

    def share(self, keys: Mapping[int, Keys]) -> dict[int, bytes]:
        """Message 1: shares of the mask key and of the seed, encrypted for each client."""
        if keys.get(self.me) != self.advertise():
            raise ProtocolError(f"Client {self.me} is not in the server's list with its own keys.")
        if not len(keys) // 2 < self.threshold <= len(keys):
            raise ProtocolError(
                f"threshold = {self.threshold} with {len(keys)} clients: must be more than half of them and not more "
                "than there are."
            )
        if len({k.masks for k in keys.values()} | {k.shares for k in keys.values()}) != 2 * len(keys):
            raise ProtocolError("Two clients have the same key.")
        self._keys = dict(keys)
        parts = shamir.split(self._mask_key.private_bytes_raw(), keys, self.threshold)
        seeds = shamir.split(self._seed, keys, self.threshold)
        boxes = {}
        for other in keys:
            box = ChaCha20Poly1305(self._box_key(other))
            nonce = secrets.token_bytes(12)
            boxes[other] = nonce + box.encrypt(nonce, parts[other] + seeds[other], self._label(self.me, other))
        return boxes

    def hide(self, values: ArrayLike, boxes: Mapping[int, bytes]) -> Words:
        """Message 2: the numbers under the client's own mask and one mask shared with each other client.

        Args:
            values: Finite numbers ``[n]``.
            boxes: Message 1 of the others (and of this client) for this client, by sender.
        """
        if self._masked:
            raise ProtocolError(f"Client {self.me} has hidden numbers already: the same masks twice would show them.")
        if len(boxes) < self.threshold or not boxes.keys() <= self._keys.keys() or self.me not in boxes:
            raise ProtocolError(f"{len(boxes)} clients sent shares; {self.threshold} known ones are needed.")
        self._masked = True
        self._boxes = dict(boxes)
        words = encode(values)
        total = words + mask(self._seed, len(words))
        for other in boxes:
            if other != self.me:
                shared = mask(self._pair_key(other), len(words))
                # The two of a pair add and subtract the same mask.
                total = total + shared if self.me < other else total - shared
        return total

    def unmask(self, there: set[int]) -> Unmasking:
        """Message 3: what takes the masks off the sum of those who are there."""
        if self._unmasked or not self._masked:
            raise ProtocolError(f"Client {self.me} helps to unmask one sum, once, after it has hidden its numbers.")
        if len(there) < self.threshold or not there <= self._boxes.keys():
            raise ProtocolError(f"{len(there)} clients are there; the sum needs {self.threshold} that shared keys.")
        self._unmasked = True
        # Shares that were altered are left out: those of the others may still suffice.
        opened = {other: parts for other in self._boxes if (parts := self._open(other)) is not None}
        # Of any one client either the mask key or the seed is given away: both would show its numbers.
        return Unmasking(
            {c: parts[0] for c, parts in opened.items() if c not in there},
            {c: parts[1] for c, parts in opened.items() if c in there},
        )

    def _open(self, other: int) -> tuple[bytes, bytes] | None:
        box = self._boxes[other]
        try:
            text = ChaCha20Poly1305(self._box_key(other)).decrypt(box[:12], box[12:], self._label(other, self.me))
        except InvalidTag:
            return None
        return text[: shamir.SHARE], text[shamir.SHARE :]

    def _box_key(self, other: int) -> bytes:
        public = X25519PublicKey.from_public_bytes(self._keys[other].shares)
        return derived(self._share_key.exchange(public), b"shares")

    def _pair_key(self, other: int) -> bytes:
        return pair_key(self._mask_key, self._keys[other].masks)

    # -- saving: a client that is killed goes on with its masks, and knows what it has hidden with them ------------

    def to_plain(self) -> dict[str, Any]:
        """Return all that the client knows, its secrets too, as plain data."""
        return {
            "me": self.me, "threshold": self.threshold, "seed": self._seed, "boxes": self._boxes,
            "share_key": self._share_key.private_bytes_raw(), "mask_key": self._mask_key.private_bytes_raw(),
            "keys": {c: (k.shares, k.masks) for c, k in self._keys.items()},
            "masked": self._masked, "unmasked": self._unmasked,
        }  # fmt: skip

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Client:
        """Return the client that :meth:`to_plain` described."""
        found = Client(plain["me"], plain["threshold"])
        found._share_key = X25519PrivateKey.from_private_bytes(plain["share_key"])
        found._mask_key = X25519PrivateKey.from_private_bytes(plain["mask_key"])
        found._seed, found._boxes = plain["seed"], dict(plain["boxes"])
        found._keys = {c: Keys(*pair) for c, pair in plain["keys"].items()}
        found._masked, found._unmasked = plain["masked"], plain["unmasked"]
        return found

    @staticmethod
    def _label(sender: int, receiver: int) -> bytes:
        return f"{sender}>{receiver}".encode()


def derived(secret: bytes, what: bytes) -> bytes:
    """Derive a 32-byte key from an exchanged secret."""
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"espalier secure aggregation " + what).derive(secret)


def pair_key(own: X25519PrivateKey, other: bytes) -> bytes:
    """Return the key of the mask that two clients share."""
    return derived(own.exchange(X25519PublicKey.from_public_bytes(other)), b"mask")


def plain_sum(values: list[Words]) -> Words:
    """Add words modulo 2^64."""
    total: Words = np.sum(np.stack(values), axis=0, dtype=np.uint64)
    return total

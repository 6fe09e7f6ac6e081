"""A client of secure aggregation: hides its numbers, and helps to take masks off sums, never off one client."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import ArrayLike

from espalier.core.codec import register
from espalier.core.errors import ProtocolError
from espalier.secure import shamir
from espalier.secure.identity import Context, Credentials, PublicKeys, statement
from espalier.secure.masks import Words, encode, mask
from espalier.secure.sealing import MASK, SEED, derived, exchanged, private_key, public_key, seal, unseal


class TooFew(ProtocolError):
    """A client cannot go on: of its neighbours too few are left."""


class Introduction(NamedTuple):
    """A neighbour's keys, as its certificate has signed them for one client."""

    keys: PublicKeys
    signature: bytes
    certificate: bytes


@register
@dataclass(frozen=True, slots=True)
class Advertisement:
    """Message 0: public keys of masks and seals, and for each neighbour two keys and the signature under all four."""

    masks: bytes
    seals: bytes
    opens: dict[int, tuple[bytes, bytes, bytes]]
    certificate: bytes = b""

    def to(self, neighbour: int) -> Introduction:
        """Return what is sent to one neighbour."""
        opens_mask, opens_seed, signature = self.opens[neighbour]
        keys = PublicKeys(self.masks, self.seals, opens_mask, opens_seed)
        return Introduction(keys, signature, self.certificate)


@register
@dataclass(frozen=True, slots=True)
class Dealt:
    """Message 1: shares, sealed, and what binds their dealer to them.

    Attributes:
        boxes: Sealed shares of the mask key and of the seed, by neighbour.
        commitments: To each holder's two shares.
        seed: To the seed. (The mask key is bound by its public half.)
        accused: Neighbours whose keys are not properly signed: they got nothing.
    """

    boxes: dict[int, tuple[bytes, bytes]]
    commitments: dict[int, tuple[bytes, bytes]]
    seed: bytes
    accused: tuple[int, ...] = ()


class Parcel(NamedTuple):
    """What a client gets of a neighbour: two sealed shares, and the dealer's commitments to them."""

    mask_box: bytes
    seed_box: bytes
    mask_commitment: bytes
    seed_commitment: bytes


@register
@dataclass(frozen=True, slots=True)
class Unmasking:
    """Message 3: shares that a client gives away.

    Attributes:
        lost: Of the mask keys of those who are lost.
        there: Of the seeds of those who are not.
        accused: Whose share cannot be used, and the key that opens its box, which shows it.
    """

    lost: dict[int, bytes]
    there: dict[int, bytes]
    accused: dict[int, bytes] = field(default_factory=dict)


class Client:
    """One client, for one sum. Its methods are called in order, once each."""

    def __init__(
        self,
        me: int,
        neighbours: Iterable[int],
        threshold: int,
        context: Context | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Make the client's keys.

        Args:
            me: Its number, from 0 on.
            neighbours: With whom it shares masks.
            threshold: How many of them and itself must help; more than half, or a server could ask two halves.
            context: The sum that this is for.
            credentials: Its own; without, all parts are played in one process and nothing is signed.
        """
        self.me, self.neighbours, self.threshold = me, frozenset(neighbours), threshold
        holders = len(self.neighbours) + 1
        if me in self.neighbours or not holders // 2 < threshold <= holders:
            raise ProtocolError(
                f"threshold = {threshold} with {holders} holders of shares: must be more than half of them and not "
                "more than there are."
            )
        self._context, self._credentials = context or Context("", 0, 0, 0), credentials
        self._secret, self._seed = secrets.token_bytes(32), secrets.token_bytes(shamir.SECRET_BYTES)
        self._mask_key, self._seal_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._keys: dict[int, PublicKeys] = {}
        self._shares: dict[int, tuple[bytes | None, bytes | None]] = {}
        self._masked = self._unmasked = False

    def advertise(self) -> Advertisement:
        """Message 0: the public keys."""
        masks, seals = public_key(self._mask_key), public_key(self._seal_key)
        opens = {}
        for other in sorted(self.neighbours):
            keys = PublicKeys(masks, seals, *(public_key(self._opener(kind, other)) for kind in (MASK, SEED)))
            signature = b""
            if self._credentials is not None:
                signature = self._credentials.sign(statement(self._context, self.me, other, keys))
            opens[other] = (keys.opens_mask, keys.opens_seed, signature)
        return Advertisement(masks, seals, opens, self._credentials.certificate if self._credentials else b"")

    def share(self, introduced: Mapping[int, Introduction]) -> Dealt:
        """Message 1: shares of the mask key and of the seed, sealed for each neighbour that is who it says it is."""
        if self._shares:
            raise ProtocolError(f"Client {self.me} has dealt out its shares already.")
        if not introduced.keys() <= self.neighbours:
            raise ProtocolError(f"Client {self.me} is introduced to clients that are not its neighbours.")
        names = {c: self._name(c, found) for c, found in introduced.items()}
        self._keys = {c: found.keys for c, found in introduced.items() if names[c] is not None}
        holders = [self.me, *self._keys]
        if len(holders) < self.threshold:
            raise TooFew(f"{len(holders)} clients have proper keys; {self.threshold} are needed.")
        self._distinct([names[c] for c in self._keys])
        parts = shamir.split(self._mask_key.private_bytes_raw(), holders, self.threshold)
        seeds = shamir.split(self._seed, holders, self.threshold)
        self._shares = {self.me: (parts[self.me], seeds[self.me])}
        boxes = {
            c: (
                seal(parts[c], MASK, self.me, c, self._seal_key, keys.opens_mask),
                seal(seeds[c], SEED, self.me, c, self._seal_key, keys.opens_seed),
            )
            for c, keys in self._keys.items()
        }
        bound = {c: (shamir.commitment(MASK, parts[c]), shamir.commitment(SEED, seeds[c])) for c in holders}
        accused = tuple(sorted(introduced.keys() - self._keys.keys()))
        return Dealt(boxes, bound, shamir.commitment("secret", self._seed), accused)

    def _name(self, other: int, found: Introduction) -> str | None:
        """Return a neighbour's name; None if its keys are none, or not signed by somebody of this client's kind."""
        try:
            for key in found.keys:
                exchanged(self._seal_key, key, "check")
            if self._credentials is None:
                return str(other)
            said = statement(self._context, other, self.me, found.keys)
            author = self._credentials.verify(found.certificate, said, found.signature)
        except ProtocolError:
            return None
        return author.name if author.role == self._credentials.author.role else None

    def _distinct(self, names: list[str | None]) -> None:
        """Refuse a server that lets one play several parts."""
        mine = self._credentials.author.name if self._credentials is not None else str(self.me)
        if len({mine, *names}) != len(names) + 1:
            raise ProtocolError("Two clients have the same name.")
        keys = [key for found in self._keys.values() for key in found[:2]]
        if len({*keys, public_key(self._mask_key), public_key(self._seal_key)}) != len(keys) + 2:
            raise ProtocolError("Two clients have the same key.")

    def receive(self, parcels: Mapping[int, Parcel]) -> None:
        """Open what the neighbours have dealt out; what cannot be used is remembered, and named in message 3."""
        if len(self._shares) != 1:
            raise ProtocolError(f"Client {self.me} takes others' shares once, after it has dealt out its own.")
        if not parcels.keys() <= self._keys.keys():
            raise ProtocolError(f"Client {self.me} gets shares of clients that it does not know.")
        for other, parcel in parcels.items():
            self._shares[other] = (
                self._opened(MASK, other, parcel.mask_box, parcel.mask_commitment),
                self._opened(SEED, other, parcel.seed_box, parcel.seed_commitment),
            )
        if len(self._usable()) < self.threshold:
            raise TooFew(
                f"{len(self._usable())} clients dealt out shares that can be used; {self.threshold} are needed."
            )

    def _usable(self) -> set[int]:
        return {c for c, pair in self._shares.items() if None not in pair}

    def _opened(self, kind: str, other: int, box: bytes, bound: bytes) -> bytes | None:
        share = unseal(box, kind, other, self.me, self._opener(kind, other), self._keys[other].seals)
        return share if share is not None and shamir.commitment(kind, share) == bound else None

    def hide(self, values: ArrayLike) -> Words:
        """Message 2: finite numbers ``[n]`` under the client's own mask and one mask shared with each neighbour."""
        if self._masked:
            raise ProtocolError(f"Client {self.me} has hidden numbers already: the same masks twice would show them.")
        if len(self._usable()) < self.threshold:
            raise TooFew(f"Client {self.me} has too few shares of others yet to hide anything.")
        words = encode(values)
        self._masked = True
        total = words + mask(self._seed, len(words))
        for other in self._shares.keys() - {self.me}:
            shared = mask(exchanged(self._mask_key, self._keys[other].masks, "pair"), len(words))
            # The two of a pair add and subtract the same mask.
            total = total + shared if self.me < other else total - shared
        return total

    def unmask(self, there: set[int]) -> Unmasking:
        """Message 3: what takes the masks off the sum of those neighbours (and of itself) who are there."""
        if self._unmasked or not self._masked:
            raise ProtocolError(f"Client {self.me} helps to unmask one sum, once, after it has hidden its numbers.")
        if not there <= self._shares.keys():
            raise ProtocolError("Clients are there that have shared no keys.")
        if len(there & self._usable()) < self.threshold:
            raise TooFew(f"{len(there & self._usable())} clients are there; the sum needs {self.threshold}.")
        self._unmasked = True
        # Of any one client either the mask key or the seed is given away: both would show its numbers.
        found = Unmasking({}, {})
        for other, (part, seed) in self._shares.items():
            kind, share, given = (SEED, seed, found.there) if other in there else (MASK, part, found.lost)
            if share is None:
                found.accused[other] = self._opener(kind, other).private_bytes_raw()
            else:
                given[other] = share
        return found

    def _opener(self, kind: str, other: int) -> X25519PrivateKey:
        """Return the key that opens one neighbour's share of a kind."""
        return private_key(derived(self._secret, f"open {kind} {other}"))

    # -- saving: a client that is killed goes on with its masks, and knows what it has hidden with them ------------

    def to_plain(self) -> dict[str, Any]:
        """Return all that the client knows, its secrets too, as plain data."""
        return {
            "me": self.me, "neighbours": set(self.neighbours), "threshold": self.threshold, "seed": self._seed,
            "secret": self._secret, "shares": self._shares, "context": [*self._context],
            "mask_key": self._mask_key.private_bytes_raw(), "seal_key": self._seal_key.private_bytes_raw(),
            "keys": {c: [*k] for c, k in self._keys.items()}, "masked": self._masked, "unmasked": self._unmasked,
        }  # fmt: skip

    @staticmethod
    def of_plain(plain: Mapping[str, Any], credentials: Credentials | None = None) -> Client:
        """Return the client that :meth:`to_plain` described."""
        context = Context(*plain["context"])
        found = Client(plain["me"], plain["neighbours"], plain["threshold"], context, credentials)
        found._mask_key, found._seal_key = private_key(plain["mask_key"]), private_key(plain["seal_key"])
        found._seed, found._secret, found._shares = plain["seed"], plain["secret"], dict(plain["shares"])
        found._keys = {c: PublicKeys(*keys) for c, keys in plain["keys"].items()}
        found._masked, found._unmasked = plain["masked"], plain["unmasked"]
        return found

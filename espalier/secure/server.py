"""The server of secure aggregation: passes messages on, judges who lied about a share, and in the end gets one sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import ProtocolError
from espalier.secure import shamir
from espalier.secure.client import Advertisement, Dealt, Introduction, Parcel, Unmasking
from espalier.secure.identity import Author, Context, Credentials, statement
from espalier.secure.masks import Words, decode, mask
from espalier.secure.sealing import MASK, SEED, exchanged, private_key, public_key, unseal


class Server:
    """One sum over many clients. Whoever does not answer in time is left out of the next step.

    A message that makes no sense is refused (ProtocolError). One that makes sense and is a lie is told by
    :attr:`lies`: what was proven, by client. What is good of it is kept.
    """

    def __init__(
        self,
        graph: Mapping[int, set[int]],
        threshold: int,
        context: Context | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Begin a sum.

        Args:
            graph: The clients, and the neighbours of each.
            threshold: Shares that give a secret.
            context: The sum, as it is in what clients sign.
            credentials: What signatures are checked with; without, nothing is signed.
        """
        self.graph, self.threshold = {c: set(found) for c, found in graph.items()}, threshold
        self._context, self._credentials = context or Context("", 0, 0, 0), credentials
        self.advertised: dict[int, Advertisement] = {}
        self.dealt: dict[int, Dealt] = {}
        #: neighbours with whom each client shares a mask
        self.pairs: dict[int, set[int]] = {}
        self.there: set[int] = set()
        self.helped: dict[int, Unmasking] = {}
        self._held: Counter[int] = Counter()
        self.lies: dict[int, str] = {}

    # -- message 0 -------------------------------------------------------------------------------------------

    def advertise(self, client: int, said: Advertisement) -> Author | None:
        """Take a client's keys; return who signed them (that all are, its neighbours check)."""
        if said.opens.keys() != self.graph[client]:
            raise ProtocolError(f"keys for {len(said.opens)} of {len(self.graph[client])} neighbours")
        for key in (said.masks, said.seals):
            exchanged(private_key(bytes(32)), key, "check")
        known = {key for other in self.advertised.values() for key in (other.masks, other.seals)}
        if said.masks in known or said.seals in known or said.masks == said.seals:
            raise ProtocolError("a key that another client has")
        self.advertised[client] = said
        author = self._author(client, min(said.opens)) if said.opens else None
        if said.opens and author is None:
            del self.advertised[client]
            raise ProtocolError("keys that are not signed with a certificate of this fleet")
        return author

    def _author(self, client: int, neighbour: int) -> Author | None:
        """Return who signed a client's keys for a neighbour; None if nobody did, or they are no keys."""
        keys, signature, certificate = self.advertised[client].to(neighbour)
        try:
            for key in keys:
                exchanged(private_key(bytes(32)), key, "check")
            if self._credentials is not None:
                said = statement(self._context, client, neighbour, keys)
                return self._credentials.verify(certificate, said, signature)
        except ProtocolError:
            return None
        return Author(str(client), "")

    def introduce(self, without: Collection[int] = ()) -> set[int]:
        """End message 0; return who goes on: those who told their keys and have enough neighbours that did."""
        said = self._tied({c: self.graph[c] for c in self.advertised.keys() - set(without)})
        self.advertised = {c: self.advertised[c] for c in said}
        return set(said)

    def _tied(self, neighbours: Mapping[int, set[int]]) -> dict[int, set[int]]:
        """Return the clients that have enough neighbours among each other, with these."""
        found = {c: others & neighbours.keys() for c, others in neighbours.items()}
        while few := {c for c, others in found.items() if len(others) + 1 < self.threshold}:
            found = {c: others - few for c, others in found.items() if c not in few}
        return found

    def introductions(self, client: int) -> dict[int, Introduction]:
        """Return the keys that a client gets: of its neighbours that go on."""
        return {c: self.advertised[c].to(client) for c in sorted(self.graph[client]) if c in self.advertised}

    # -- message 1 -------------------------------------------------------------------------------------------

    def deal(self, client: int, said: Dealt) -> None:
        """Take a client's sealed shares."""
        known = self.graph[client] & self.advertised.keys()
        if said.boxes.keys() | set(said.accused) != known or said.boxes.keys() & set(said.accused):
            raise ProtocolError(f"shares for {len(said.boxes)} of {len(known)} neighbours")
        if said.commitments.keys() != said.boxes.keys() | {client}:
            raise ProtocolError("commitments to other shares than those")
        for neighbour in said.accused:
            author, mine = self._author(neighbour, client), self._author(client, neighbour)
            if author is None or (mine is not None and author.role != mine.role):
                self._lied(neighbour, f"did not sign its keys for client {client}")
            else:
                self._lied(client, f"said that the keys of client {neighbour} are not properly signed: they are")
        self.dealt[client] = said

    def route(self, without: Collection[int] = ()) -> set[int]:
        """End message 1: say who shares masks with whom; return who goes on."""
        dealt = {c: self.dealt[c].boxes for c in self.dealt.keys() - set(without)}
        self.pairs = self._tied({c: {o for o in to if c in dealt.get(o, ())} for c, to in dealt.items()})
        return set(self.pairs)

    def parcels(self, client: int) -> dict[int, Parcel]:
        """Return the sealed shares that a client gets (the server cannot look)."""
        dealt = ((c, self.dealt[c]) for c in sorted(self.pairs[client]))
        return {c: Parcel(*said.boxes[client], *said.commitments[client]) for c, said in dealt}

    # -- message 3 -------------------------------------------------------------------------------------------

    def present(self, client: int) -> set[int]:
        """Return which of a client's neighbours (and itself) are there: it helps to unmask no others."""
        return self.there & (self.pairs[client] | {client})

    def help(self, client: int, said: Unmasking) -> None:
        """Take a client's shares; false ones are left out, and whoever lied about one is told by :attr:`lies`."""
        asked = self.pairs[client] | {client}
        seeds, keys = asked & self.there, asked - self.there
        if (said.there.keys() | said.lost.keys() | said.accused.keys()) - asked:
            raise ProtocolError("shares of clients that are not known")
        if said.there.keys() - seeds or said.lost.keys() - keys:
            raise ProtocolError("shares of another kind than was asked for")
        good = Unmasking(
            {c: s for c, s in said.lost.items() if self._true(client, c, MASK, s)},
            {c: s for c, s in said.there.items() if self._true(client, c, SEED, s)},
        )
        for dealer, shown in said.accused.items():
            self._judge(client, dealer, SEED if dealer in self.there else MASK, shown)
        if len(said.there) + len(said.lost) + len(said.accused) < len(asked):
            self._lied(client, "kept shares back")
        self.recall(client, good)

    def recall(self, client: int, good: Unmasking) -> None:
        """Take again what was found good before."""
        self.helped[client] = good
        self._held.update([*good.there, *good.lost])

    def _commitment(self, holder: int, dealer: int, kind: str) -> bytes:
        return self.dealt[dealer].commitments[holder][(MASK, SEED).index(kind)]

    def _true(self, holder: int, dealer: int, kind: str, share: bytes) -> bool:
        """Tell whether a share is the one that its dealer has committed itself to; the holder has not complained."""
        if shamir.commitment(kind, share) == self._commitment(holder, dealer, kind):
            return True
        self._lied(holder, f"told a false share of client {dealer}'s {kind}")
        return False

    def _judge(self, holder: int, dealer: int, kind: str, shown: bytes) -> None:
        """Open the box that a client says it cannot use, with the key that it shows: one of the two is lying."""
        at = (MASK, SEED).index(kind)
        try:
            key = private_key(shown)
            shows = public_key(key) == self.advertised[holder].opens[dealer][at] if dealer != holder else False
        except ValueError:
            shows = False
        if shows:
            box, seals = self.dealt[dealer].boxes[holder][at], self.advertised[dealer].seals
            share = unseal(box, kind, dealer, holder, key, seals)
            if share is None or shamir.commitment(kind, share) != self._commitment(holder, dealer, kind):
                self._lied(dealer, f"dealt out a share of its {kind} that client {holder} cannot use")
                return
        self._lied(holder, f"said that a share of client {dealer}'s {kind} cannot be used: it can")

    def _lied(self, client: int, what: str) -> None:
        self.lies.setdefault(client, what)

    # -- the sum ---------------------------------------------------------------------------------------------

    def short(self) -> set[int]:
        """Return the clients of whose secrets there are too few good shares (as yet)."""
        few = {c for c in self.pairs if self._held[c] < self.threshold}
        return {c for c in few if c in self.there or self.pairs[c] & self.there}

    def sum(self, masked: Mapping[int, Words]) -> NDArray[np.float64]:
        """Return the sum of the numbers of all who are there.

        Raises:
            ProtocolError: There are too few shares, or a client dealt out such as do not belong together.
        """
        if len({len(masked[c]) for c in self.there}) != 1:
            raise ProtocolError("The clients sent different amounts of numbers.")
        if short := self.short():
            raise ProtocolError(f"Too few good shares of the secrets of clients {sorted(short)} are there.")
        count = len(masked[min(self.there)])
        total: Words = np.zeros(count, dtype=np.uint64)
        for client in self.there:
            total += masked[client]
        for client, secret in self._secrets().items():
            if client in self.there:
                total = total - mask(secret, count)
                continue
            for other in self.pairs[client] & self.there:
                shared = mask(exchanged(private_key(secret), self.advertised[other].masks, "pair"), count)
                # Take off what ``other`` put on for the pair.
                total = total - shared if other < client else total + shared
        return decode(total)

    def _secrets(self) -> dict[int, bytes]:
        """Return the seeds of all who are there, and the mask keys of the others."""
        shares: dict[int, dict[int, bytes]] = {c: {} for c in self.pairs}
        for holder, said in self.helped.items():
            for dealer, share in [*said.there.items(), *said.lost.items()]:
                shares[dealer][holder] = share
        found, false = {}, []
        for client, held in shares.items():
            if client not in self.there and not self.pairs[client] & self.there:
                continue
            try:
                secret = found[client] = shamir.join(held, self.threshold)
                if client in self.there:
                    true = shamir.commitment("secret", secret) == self.dealt[client].seed
                else:
                    true = public_key(private_key(secret)) == self.advertised[client].masks
            except ProtocolError:
                true = False
            if not true:
                self._lied(client, "dealt out shares that do not belong together")
                false.append(client)
        if false:
            raise ProtocolError(f"The shares that clients {sorted(false)} dealt out do not belong together.")
        return found

"""Who a client is: its public keys are signed with the key of its certificate, so nobody can put keys of his own in."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgpack

#: what a signature is for: it is of no use anywhere else
DOMAIN = "espalier secure aggregation: keys of one client for another, 1"


class Context(NamedTuple):
    """The sum that keys are for: they are of no use in another."""

    run: str
    aggregator: int
    sum: int
    round: int


class PublicKeys(NamedTuple):
    """X25519 keys of a client for one neighbour.

    The first two are the same for all neighbours: of masks, and of what it seals. The others open what this neighbour
    seals for it: a share of a mask key, and one of a seed. Either may be told without the other.
    """

    masks: bytes
    seals: bytes
    opens_mask: bytes
    opens_seed: bytes


class Author(NamedTuple):
    """Who has signed something."""

    name: str
    role: str


class Credentials(Protocol):
    """A client's certificate, its key, and the authority that others are checked against."""

    certificate: bytes
    author: Author

    def sign(self, statement: bytes) -> bytes:
        """Sign with the certificate's key."""
        ...

    def verify(self, certificate: bytes, statement: bytes, signature: bytes) -> Author:
        """Return who signed a statement.

        Raises:
            ProtocolError: The certificate is not the authority's or not valid now, or the signature is not its owner's.
        """
        ...


def statement(context: Context, client: int, neighbour: int, keys: PublicKeys) -> bytes:
    """Return what a client signs."""
    packed: bytes = msgpack.packb([DOMAIN, [*context], client, neighbour, [*keys]], use_bin_type=True)
    return packed

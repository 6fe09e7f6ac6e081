"""What travels about a secure sum: the protocol's messages as plain data, and read from what came over the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from espalier.core.errors import ProtocolError
from espalier.secure import shamir
from espalier.secure.client import Advertisement, Dealt, Introduction, Parcel, Unmasking
from espalier.secure.identity import PublicKeys
from espalier.secure.sealing import BOX_BYTES

T = TypeVar("T")

#: bytes of an X25519 key, of a signature and of a certificate at most
KEY_BYTES, SIGNATURE_BYTES, CERTIFICATE_BYTES = 32, 96, 8192


def by_client(value: Any, read: Callable[[Any], T]) -> dict[int, T]:
    """Return a table by client.

    Raises:
        ProtocolError: It is none, or a value is not what it should be.
    """
    if not isinstance(value, Mapping) or not all(type(c) is int for c in value):
        raise ProtocolError("no table of clients")
    return {c: read(found) for c, found in value.items()}


def numbers(value: Any) -> set[int]:
    """Return clients' numbers."""
    if not isinstance(value, list | tuple | set) or not all(type(c) is int and c >= 0 for c in value):
        raise ProtocolError("no list of clients")
    return set(value)


def _octets(value: Any, least: int, most: int) -> bytes:
    if type(value) is not bytes or not least <= len(value) <= most:
        raise ProtocolError(f"something that is not {most} bytes: of another length, or no bytes at all")
    return value


def _row(*sizes: tuple[int, int]) -> Callable[[Any], tuple[bytes, ...]]:
    def read(value: Any) -> tuple[bytes, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(sizes):
            raise ProtocolError(f"no row of {len(sizes)}")
        return tuple(_octets(cell, *size) for cell, size in zip(value, sizes, strict=True))

    return read


_KEY, _BOX, _BOUND, _SHARE = ((n, n) for n in (KEY_BYTES, BOX_BYTES, shamir.COMMITMENT_BYTES, shamir.SHARE_BYTES))
_SIGNED = (0, SIGNATURE_BYTES)
_CERTIFICATE = (0, CERTIFICATE_BYTES)


def share(value: Any) -> bytes:
    """Return a share."""
    return _octets(value, *_SHARE)


def key(value: Any) -> bytes:
    """Return a key."""
    return _octets(value, *_KEY)


def advertised(said: Advertisement) -> dict[str, Any]:
    """Return message 0 as plain data."""
    return {"masks": said.masks, "seals": said.seals, "opens": said.opens, "certificate": said.certificate}


def advertisement(data: Mapping[str, Any]) -> Advertisement:
    """Read message 0."""
    opens = by_client(data["opens"], _row(_KEY, _KEY, _SIGNED))
    masks, seals, certificate = _row(_KEY, _KEY, _CERTIFICATE)((data["masks"], data["seals"], data["certificate"]))
    return Advertisement(masks, seals, {c: (a, b, s) for c, (a, b, s) in opens.items()}, certificate)


def introduced(found: Mapping[int, Introduction]) -> dict[int, tuple[bytes, ...]]:
    """Return neighbours' keys as plain data."""
    return {c: (*i.keys, i.signature, i.certificate) for c, i in found.items()}


def introductions(value: Any) -> dict[int, Introduction]:
    """Read neighbours' keys."""
    rows = by_client(value, _row(_KEY, _KEY, _KEY, _KEY, _SIGNED, _CERTIFICATE))
    return {c: Introduction(PublicKeys(*row[:4]), row[4], row[5]) for c, row in rows.items()}


def dealt(data: Mapping[str, Any]) -> Dealt:
    """Read message 1."""
    boxes = by_client(data["boxes"], _row(_BOX, _BOX))
    bound = by_client(data["commitments"], _row(_BOUND, _BOUND))
    (seed,) = _row(_BOUND)((data["seed"],))
    accused = tuple(sorted(numbers(data["accused"])))
    return Dealt({c: (a, b) for c, (a, b) in boxes.items()}, {c: (a, b) for c, (a, b) in bound.items()}, seed, accused)


def parcels(value: Any) -> dict[int, Parcel]:
    """Read the shares that are for one client."""
    return {c: Parcel(*row) for c, row in by_client(value, _row(_BOX, _BOX, _BOUND, _BOUND)).items()}


def unmasking(data: Mapping[str, Any]) -> Unmasking:
    """Read message 3."""
    lost, there = by_client(data["lost"], share), by_client(data["there"], share)
    return Unmasking(lost, there, by_client(data["accused"], key))

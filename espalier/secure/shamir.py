"""Shamir's secret sharing of 32-byte secrets: any ``threshold`` shares give the secret, fewer give nothing.

Over the field of integers modulo the Mersenne prime 2^521 − 1, which is larger than any 32-byte secret. Who splits a
secret commits himself to each share and to the secret by hashes: they have 256 bits of chance at least, so a hash tells
nothing of them, and a false share, or shares that do not belong together, show.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable, Mapping

from espalier.core.errors import ProtocolError

PRIME = 2**521 - 1
SECRET_BYTES = 32
SHARE_BYTES = 66
COMMITMENT_BYTES = 32


def split(secret: bytes, holders: Iterable[int], threshold: int) -> dict[int, bytes]:
    """Split a secret into one share per holder (holders are distinct numbers from 0 on)."""
    names = list(holders)
    if len(secret) != SECRET_BYTES:
        raise ProtocolError(f"A secret has {SECRET_BYTES} bytes; got {len(secret)}.")
    if not 1 <= threshold <= len(names) or len(set(names)) != len(names) or min(names, default=0) < 0:
        raise ProtocolError(
            f"threshold = {threshold} with {len(names)} holders: must be between 1 and the number of distinct holders."
        )
    line = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    # The secret is the polynomial's value at 0, so holder n gets the value at n + 1.
    return {name: _value(line, name + 1).to_bytes(SHARE_BYTES, "big") for name in names}


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of at least ``threshold`` shares by holder."""
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares are there; the secret needs {threshold}.")
    points = {name + 1: int.from_bytes(share, "big") for name, share in sorted(shares.items())[:threshold]}
    # Lagrange's weight of x at 0 is ∏ others / ∏ (other − x)
    total, above = 0, math.prod(points) % PRIME
    for x, y in points.items():
        below = x * math.prod(other - x for other in points if other != x)
        total = (total + y * above * pow(below, -1, PRIME)) % PRIME
    if total >= 1 << 8 * SECRET_BYTES:
        raise ProtocolError("The shares do not belong together: somebody sent a false one.")
    return total.to_bytes(SECRET_BYTES, "big")


def commitment(what: str, value: bytes) -> bytes:
    """Return a hash that binds to a share or a secret and tells nothing of it; ``what`` says which one it is."""
    return hashlib.sha256(f"espalier secure aggregation {what}\0".encode() + value).digest()


def _value(line: list[int], x: int) -> int:
    found = 0
    for coefficient in reversed(line):
        found = (found * x + coefficient) % PRIME
    return found

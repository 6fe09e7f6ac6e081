"""Masks: numbers modulo 2^64 that look random to everybody without the key, and fixed-point numbers to hide in them."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import ArrayLike, NDArray

from espalier.core.errors import ProtocolError

Words = NDArray[np.uint64]

#: a number x travels as round(x · 2^FRACTION_BITS): steps of 6·10^-8, sums up to ±5·10^11
FRACTION_BITS = 24
LARGEST = 2.0 ** (62 - FRACTION_BITS)


def mask(key: bytes, count: int) -> Words:
    """Return ``count`` pseudo-random words of a 32-byte key (the ChaCha20 key stream)."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)


def encode(values: ArrayLike) -> Words:
    """Turn finite numbers into words; negative ones wrap around."""
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all() or (np.abs(array) >= LARGEST).any():
        raise ProtocolError(f"Numbers to be summed must be finite and smaller than {LARGEST:.3g}.")
    return np.rint(array * 2.0**FRACTION_BITS).astype(np.int64).view(np.uint64)


def decode(words: Words) -> NDArray[np.float64]:
    """Turn a sum of words back into numbers."""
    return words.view(np.int64).astype(np.float64) / 2.0**FRACTION_BITS

"""The seed tree: every random draw has an address, so no generator's state is ever kept.

``stream(seed, "batches", device, round)`` names a generator. Two calls with one address give the same
numbers, whatever else was drawn before: the order of computation, the number of workers, a resume
and the method under test cannot change what the world or a partition draws.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Part = str | int


def key(seed: int, *path: Part) -> int:
    """Return the 128-bit key of an address in the seed tree."""
    text = "\x1f".join([str(int(seed)), *(f"s{p}" if isinstance(p, str) else f"i{int(p)}" for p in path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


class _Key(ISeedSequence):
    """A key as the source of a generator's state: given as ``Philox(key=…)``, it asks the system for entropy too."""

    def __init__(self, number: int) -> None:
        self._words = np.frombuffer(number.to_bytes(16, "little"), dtype="<u8")

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        """Return the key."""
        return self._words


def stream(seed: int, *path: Part) -> np.random.Generator:
    """Return the generator at an address in the seed tree."""
    source: Any = _Key(key(seed, *path))  # numpy's types know its own kind of source alone
    return np.random.Generator(np.random.Philox(source))


def torch_seed(seed: int, *path: Part) -> int:
    """Return a 63-bit seed for ``torch.Generator.manual_seed`` at an address in the seed tree."""
    return key(seed, *path) >> 65

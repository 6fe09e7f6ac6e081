"""The seed tree: every random draw has an address, so no generator's state is ever kept.

``stream(seed, "batches", device, round)`` names a generator. Two calls with one address give the same
numbers, whatever else was drawn before: the order of computation, the number of workers, a resume
and the method under test cannot change what the world or a partition draws.
"""

from __future__ import annotations

import hashlib

import numpy as np

Part = str | int


def key(seed: int, *path: Part) -> int:
    """Return the 128-bit key of an address in the seed tree."""
    text = "\x1f".join([str(int(seed)), *(f"s{p}" if isinstance(p, str) else f"i{int(p)}" for p in path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(seed: int, *path: Part) -> np.random.Generator:
    """Return the generator at an address in the seed tree."""
    return np.random.Generator(np.random.Philox(key=key(seed, *path)))


def torch_seed(seed: int, *path: Part) -> int:
    """Return a 63-bit seed for ``torch.Generator.manual_seed`` at an address in the seed tree."""
    return key(seed, *path) >> 65

"""What a node may ask of another: sizes, rates, numbers. Checked before anything is allocated."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from espalier.core.spec import Spec


@dataclass(frozen=True)
class Limits(Spec, family="limits"):
    """Bounds of one node; the cloud hands its own down.

    Attributes:
        letter_bytes: Models of one letter together, as they travel; less, if the model's size says so.
        content_bytes: A letter's message without its models.
        parts: Models in one letter.
        device_parts: Models in one letter of a device.
        letters_per_second: Letters and other frames but models' chunks, of one child, on average; bursts of ten
            seconds' worth are let through.
        bytes_per_second: Of one child, on average.
        greetings_per_minute: Links that one name may open.
        children: Links at one time.
        samples: Samples that a device may say it has, and so its weight in merges (None: any number).
    """

    letter_bytes: int = 1 << 30
    content_bytes: int = 4 << 20
    parts: int = 256
    device_parts: int = 8
    letters_per_second: float = 200.0
    bytes_per_second: float = float(1 << 30)
    greetings_per_minute: float = 120.0
    children: int = 10_000
    samples: int | None = None

    def check(self) -> None:
        """Refuse what would let nothing through."""
        for name in self._fields():
            self.require(getattr(self, name) is None or getattr(self, name) > 0, name, "more than 0")

    def fitted(self, numbers: int) -> Limits:
        """Return these limits for models of so many numbers: no letter is larger than its models may be."""
        # masked ones have one word more, compressed ones may grow
        return replace(self, letter_bytes=min(self.letter_bytes, self.parts * (8 * (numbers + 1) + 1024)))

    def of_device(self) -> int:
        """Return the bytes of a device's letter."""
        return max(1, self.letter_bytes * min(self.device_parts, self.parts) // self.parts)


class TokenBucket:
    """A token bucket: ``rate`` per second on average, ``burst`` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, time.monotonic()

    def take(self, amount: float = 1.0) -> bool:
        """Take tokens; False if there are not enough."""
        self._fill()
        there = self._left >= amount
        self._left -= amount if there else 0.0
        return there

    def owe(self, amount: float) -> float:
        """Take tokens, also those that are not there yet; return the seconds until they are."""
        self._fill()
        self._left -= amount
        return max(0.0, -self._left / self._rate)

    def _fill(self) -> None:
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now

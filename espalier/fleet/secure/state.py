"""What an aggregator's host knows of one secure sum: plain data, written down with every transaction."""

from __future__ import annotations

from dataclasses import dataclass, field

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.store import Ref


@register
@dataclass(slots=True)
class Gathering:
    """One sum.

    Attributes:
        id: Its number.
        node: The aggregator.
        orders: Who was ordered to work, and the orders' numbers.
        threshold: How many of them must be there.
        stage: ``keys`` and ``shares`` are collected, ``numbers`` come, ``help`` is asked for, it is ``over``; or
            ``void``: too few have shared their keys.
        keys: Public keys.
        boxes: Sealed shares by sender and receiver, until they are passed on.
        shared: Who has sealed shares.
        reports: What came masked, and the samples it stands for.
        there: Whose numbers are summed.
        answers: What takes the masks off: shares of the keys of those who are lost, of the seeds of the others.
        out: Who has left, was silent, or was refused.
        why: Why there is no sum, at the end.
    """

    id: int
    node: Address
    orders: dict[Address, int]
    threshold: int
    stage: str = "keys"
    keys: dict[Address, tuple[bytes, bytes]] = field(default_factory=dict)
    boxes: dict[Address, dict[Address, bytes]] = field(default_factory=dict)
    shared: set[Address] = field(default_factory=set)
    reports: dict[Address, tuple[Ref, int]] = field(default_factory=dict)
    there: set[Address] = field(default_factory=set)
    answers: dict[Address, tuple[dict[Address, bytes], dict[Address, bytes]]] = field(default_factory=dict)
    out: set[Address] = field(default_factory=set)
    why: str = ""

    def silent(self) -> set[Address]:
        """Return whose message of this stage is missing."""
        match self.stage:
            case "keys":
                return self.orders.keys() - self.keys.keys() - self.out
            case "shares":
                return self.keys.keys() - self.boxes.keys() - self.out
            case "help":
                return self.there - self.answers.keys() - self.out
        return set()

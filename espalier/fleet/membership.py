"""Who is in the fleet, as it travels up the tree and is kept on disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from espalier.core.errors import ProtocolError
from espalier.fleet.links.protocol import espalier_pb2 as pb

#: ``host:port``, and nothing else that gRPC would take for a place (a file's path, another resolver)
_PLACE = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Za-z:.%_-]+\]):[0-9]{1,5}")
#: seconds that a mini-batch, or a model's way, may be measured as
SLOWEST_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Member:
    """One host.

    Attributes:
        address: Its number.
        name: What its certificate says.
        role: ``"device"``, ``"edge"`` or ``"cloud"``.
        incarnation: Of its state on disk: another one has forgotten everything.
        stamp: Grows with every link it makes; the newest says where it is.
        via: The address of its parent on the network (its own, while it has none).
        samples: Training samples it holds.
        aggregates: Whether it may run an aggregator besides training.
        endpoint: ``host:port`` where it listens, or empty.
        seconds_per_batch: As measured by itself (0: not yet).
        busy: Whether it was at work when it greeted.
        model_seconds: A model's way to its parent, as measured (0: not yet).
        version: Of the software that it runs, as it says (empty: too old to say).
    """

    address: int
    name: str
    role: str
    incarnation: int = 0
    stamp: int = 0
    via: int = 0
    samples: int = 0
    aggregates: bool = False
    endpoint: str = ""
    seconds_per_batch: float = 0.0
    busy: bool = False
    model_seconds: float = 0.0
    version: str = ""

    def to_plain(self) -> tuple[Any, ...]:
        """Return it as plain data; ``Member(*plain)`` is equal to it."""
        return tuple(getattr(self, name) for name in Member.__slots__)

    def to_wire(self) -> pb.Member:
        """Return it as protobuf."""
        return pb.Member(**{name: getattr(self, name) for name in Member.__slots__})

    @staticmethod
    def of_wire(member: pb.Member) -> Member:
        """Read it from protobuf.

        Raises:
            ProtocolError: A value that no node may send.
        """
        found = Member(**{name: getattr(member, name) for name in Member.__slots__})
        times = (found.seconds_per_batch, found.model_seconds)
        long = max(map(len, (found.name, found.role, found.version))) > 64 or len(found.endpoint) > 300
        shown = all(text.isprintable() for text in (found.name, found.role, found.version))
        place = not found.endpoint or _PLACE.fullmatch(found.endpoint) is not None
        if long or not shown or not place or not all(0 <= t <= SLOWEST_SECONDS for t in times):
            raise ProtocolError(f"A greeting with impossible values: {str(found)[:500]!r}.")
        return found

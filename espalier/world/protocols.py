"""What the rest of the system sees of a world: hosts, tiers and the bound parts.

A *config* object (``Compute``, ``Links``, …) describes; ``bind(shape)`` gives the *bound* part that
answers for one fleet and one seed. Bound parts are pure functions of the seed and the address asked
for: they keep no state that a checkpoint would have to keep, and answer in any order.

Hosts are whole numbers: devices ``0 … N-1``, edges ``N … N+E-1``, then servers between edges and cloud if
there are any, the cloud last: who is lower in the tree has the smaller number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import WorldError

#: How uploads at one edge share its uplink: each has its own (private), one after another at full rate
#: (time_shared), or all at once with an equal part each (equal_share).
Uplink = Literal["private", "time_shared", "equal_share"]
Broadcast = Literal["free", "paid"]


#: When devices move: never, between edge rounds, between training and upload, or at given times.
When = Literal["never", "boundary", "mid_round", "time"]


class Tier(StrEnum):
    """The kind of a link, by what it joins."""

    DEV_EDGE = "dev-edge"
    EDGE_CLOUD = "edge-cloud"
    DEV_DEV = "dev-dev"


#: One hop of a message's path: the tier, from, to.
Hop = tuple[Tier, int, int]


@dataclass(frozen=True, eq=False)
class Shape:
    """The fleet that a world is bound to.

    Attributes:
        n_devices: Number of devices, N.
        n_edges: Number of edges, E (0: devices reach the cloud over their access link).
        seed: The run's seed.
        batches: Mini-batches per epoch of each device, [N]; for models whose delay covers a whole
            training or epoch.
        model_bytes: Bytes of one model; for models that measure messages in models.
        n_servers: Servers between the edges and the cloud.
        home: The number (0 … E-1) of the edge at which each device starts, [N]; default: device mod E.
    """

    n_devices: int
    n_edges: int
    seed: int
    batches: NDArray[np.int64] | None = None
    model_bytes: int | None = None
    home: NDArray[np.int32] | NDArray[np.int64] | None = None
    n_servers: int = 0

    def __post_init__(self) -> None:
        if self.n_devices < 1 or self.n_edges < 0:
            raise WorldError(
                f"n_devices = {self.n_devices}, n_edges = {self.n_edges}: a fleet has at least one device "
                "and no negative number of edges."
            )
        for name in ("batches", "home"):
            array = getattr(self, name)
            if array is not None and array.shape != (self.n_devices,):
                raise WorldError(f"{name} has shape {array.shape}: expected one entry per device, ({self.n_devices},).")

    @property
    def cloud(self) -> int:
        """The cloud's host number."""
        return self.n_devices + self.n_edges + self.n_servers

    @property
    def n_hosts(self) -> int:
        """Devices, edges, servers and the cloud."""
        return self.cloud + 1

    def is_device(self, host: int) -> bool:
        """Tell whether a host is a device."""
        return host < self.n_devices

    def is_edge(self, host: int) -> bool:
        """Tell whether a host is an edge."""
        return self.n_devices <= host < self.n_devices + self.n_edges

    def home_host(self, device: int) -> int:
        """Return the host number of the edge at which a device starts (the cloud if there is no edge)."""
        if self.n_edges == 0:
            return self.cloud
        number = device % self.n_edges if self.home is None else int(self.home[device])
        return self.n_devices + number


class BoundCompute(Protocol):
    """How long training takes. Time in seconds, work in mini-batches."""

    def nominal(self, device: int, batches: float, now: float) -> float:
        """Return what the device itself would estimate now: no noise, no busy spells."""
        ...

    def duration(self, device: int, batches: float, start: float, job: int) -> float:
        """Return what it really takes from ``start`` on; ``job`` is the number of the device's job."""
        ...

    def pace(self, device: int, now: float) -> tuple[float, float]:
        """Return the seconds per batch now (inf: paused) and until when that holds."""
        ...

    def load(self, device: int, job: int) -> float:
        """Return the factor on a job's work (run-time noise); 1 without noise."""
        ...

    def at(self, epoch: int) -> BoundCompute:
        """Return the compute of a global round, where it is redrawn per round; else itself."""
        ...


class BoundLinks(Protocol):
    """How long messages take, and which way they go.

    ``relays`` says that devices pass on messages for each other, so that :meth:`without` matters. ``broadcast`` says
    whether orders from device to device take time, as reports do, or go out to all at once ("free").
    """

    uplink: Uplink
    relays: bool
    broadcast: Broadcast

    def time(self, src: int, dst: int, nbytes: int, now: float, via: int | None = None) -> float:
        """Return the seconds of a message over its whole path, latency included; inf without a path.

        ``via`` is the edge's host number that a message between a device and the cloud passes
        (default: the edge at which the device started).
        """
        ...

    def hops(self, src: int, dst: int, via: int | None = None) -> tuple[Hop, ...]:
        """Return the hops that a message pays, in order; empty to itself and where there is no path."""
        ...

    def at(self, epoch: int) -> BoundLinks:
        """Return the links of a global round, where they are redrawn per round; else itself."""
        ...

    def without(self, absent: frozenset[int]) -> BoundLinks:
        """Return the links when these devices are gone; itself unless devices relay."""
        ...

    def matrix(self, devices: NDArray[np.int64], nbytes: int) -> NDArray[np.float64]:
        """Return the seconds between each pair of the devices, [n, n]; 0 on the diagonal, inf if absent."""
        ...

    def neighbours(self, device: int) -> NDArray[np.int64]:
        """Return the devices with a direct link to a device, ascending."""
        ...

    def claims(self, device: int, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what a device says of its links, given what they truly take: the same, unless it lies."""
        ...


class BoundMobility(Protocol):
    """Where devices go. Edges are numbers 0 … E-1 here, not hosts.

    ``when`` says who drives it: ``boundary`` and ``mid_round`` moves are decided once per edge round
    (:meth:`moves`), ``time`` moves happen at given times (:meth:`window`).
    """

    when: When

    def start(self, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the edge of each device at time 0, given the partition's."""
        ...

    def moves(
        self, devices: NDArray[np.int64], steps: NDArray[np.int64], edges: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the new edges after decision number ``steps[i]`` of ``devices[i]``, now at ``edges[i]``."""
        ...

    def window(self, t0: float, t1: float) -> Moves:
        """Return the moves at given times in [t0, t1), by time."""
        ...


class Moves(NamedTuple):
    """Moves at given times, by time: arrays of one length."""

    time: NDArray[np.float64]
    device: NDArray[np.int64]
    edge: NDArray[np.int64]


class Transitions(NamedTuple):
    """Hosts that go and come back, by time: arrays of one length. ``device`` holds host numbers.

    ``silent``: nobody is told. ``forgets``: the outage costs the host its state; said when it goes and when it comes
    back.
    """

    time: NDArray[np.float64]
    device: NDArray[np.int64]
    alive: NDArray[np.bool_]
    silent: NDArray[np.bool_]
    forgets: NDArray[np.bool_]

    def rows(self, which: NDArray[np.int64] | slice) -> Transitions:
        """Return some of the rows."""
        return Transitions(
            self.time[which], self.device[which], self.alive[which], self.silent[which], self.forgets[which]
        )


class BoundChurn(Protocol):
    """Who is there. Edges and the cloud are there at the start.

    ``still`` says that nobody ever comes or goes.
    """

    still: bool

    def initial(self) -> NDArray[np.bool_]:
        """Tell which devices are there at time 0, [N]."""
        ...

    def window(self, t0: float, t1: float) -> Transitions:
        """Return all transitions in [t0, t1), by time."""
        ...


class Fate(NamedTuple):
    """What happens to one message on one hop; ``delay_extra`` in seconds."""

    lost: bool
    duplicated: bool
    delay_extra: float
    corrupted: bool


class BoundFaults(Protocol):
    """What goes wrong on the way; ``still``: nothing ever does."""

    still: bool

    def fate(self, tier: Tier, message_no: int) -> Fate:
        """Return what happens to message number ``message_no`` on a hop of a tier."""
        ...

    def back(self, src: int, dst: int, now: float) -> float:
        """Return when the link between two hosts is there: ``now``, or the end of its outage."""
        ...

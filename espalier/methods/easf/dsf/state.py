"""What a device's agent goes by, and what it remembers: plain data, saved with the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from espalier.core.codec import register
from espalier.core.store import Ref
from espalier.methods.easf.dsf.balance import Tally

#: nobody
NONE = -1


@dataclass(frozen=True)
class Bounds:
    """The numbers of the protocol.

    Attributes:
        balance: Whether accuracy counts; else only delay does (the structure of the Syn and HFL baselines).
        hops: Hops within which a device looks for a central node; central nodes look twice as far.
        excess: The rate rho_e: clusters larger than this many times the usual size must let nodes go.
        sweeps: How often a central node offers nodes at most.
        width: The most children that the root has before further levels are put in.
        epochs: Epochs of the trial training that gives a device's accuracy.
        patience: Seconds that an agent waits for messages that may still come.
        delay: The longest delay in seconds (of one model) at which a newcomer looks for a cluster.
    """

    balance: bool = True
    hops: int = 3
    excess: float = 1.2
    sweeps: int = 10
    width: int = 32
    epochs: int = 1
    patience: float = 0.2
    delay: float = math.inf


@register
@dataclass(slots=True)
class Member:
    """What is known of a member of a cluster.

    ``size`` and ``total`` are 1 and its accuracy at level 0, its cluster's size and sum of accuracies above.
    ``hops`` is the distance from the central node; ``near`` holds other central nodes and their distance from it.
    """

    size: int = 1
    total: float = 0.0
    able: bool = True
    hops: float = 0.0
    near: dict[int, float] = field(default_factory=dict)


@register
@dataclass(slots=True)
class Seat:
    """A device's place in a cluster of one level, as its central node last described it.

    ``term``, ``organiser`` and ``version`` order such descriptions; ``roster`` is in the order of succession;
    ``up`` is the central node's own central node; ``will`` has the rosters of higher clusters that the same
    central node leads, so that whoever succeeds it finds the others there. It is ``vacant`` once the central node is
    gone, even if the host comes back: it has lost what it knew.
    """

    cluster: int
    term: int
    organiser: int
    version: int
    centre: int
    roster: list[int]
    up: int = NONE
    will: dict[int, list[int]] = field(default_factory=dict)
    top: bool = False
    tree: int = NONE
    vacant: bool = False


@register
@dataclass(slots=True)
class Court:
    """A cluster that this device leads; ``formed`` once ``voters`` have made it the central node."""

    cluster: int
    members: dict[int, Member] = field(default_factory=dict)
    formed: bool = False
    voters: set[int] = field(default_factory=set)

    @property
    def tally(self) -> Tally:
        """Devices below, and the sum of their accuracies."""
        members = self.members.values()
        return Tally(sum(m.size for m in members), sum(m.total for m in members))


@register
@dataclass(slots=True)
class Ballot:
    """A vote on a cluster's central node that this device holds: each member's delays to the roster."""

    cluster: int
    term: int
    top: bool
    tree: int
    members: dict[int, Member]
    roster: list[int]
    delays: dict[int, dict[int, float]] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)


@register
@dataclass(slots=True)
class Trades:
    """The exchange of nodes between the clusters of nearby central nodes."""

    near: dict[int, float] = field(default_factory=dict)
    sizes: dict[int, list[float]] = field(default_factory=dict)
    listed: list[int] = field(default_factory=list)
    forced: set[int] = field(default_factory=set)
    pending: int = NONE
    sweep: int = 0
    changed: bool = False


@register
@dataclass(slots=True)
class AgentState:
    """All that an agent remembers. The first four fields outlive a spell of absence.

    Attributes:
        accuracy: Of the trial training (NaN: not known, or of no account).
        clock: The root's round of the newest global model that this device has seen; ``model`` is that model.
        sent: Control messages sent so far.
        phase: What the agent does at level 0: greet, elect, choose, gather, adjust, assemble, ask, join, member, rest.
        attempt: How often it has greeted in vain; ``tries`` counts all greetings since it last had a seat.
        mean: Mean accuracy of all devices, as far as known.
        greeted: When each neighbour was last greeted; ``degrees`` and ``here`` are their answers: (degree, may
            aggregate) of those that look for a cluster too, the central node of those that have one.
        thp: The two-hop return probability; ``told`` who knows it, ``rivals`` those of others (NaN: may not lead).
        heard: Central nodes within the hop limit: hops and delay.
        asked: What central nodes answered a newcomer: size, sum of accuracies (None: not yet).
        wooing: By level, the host whose cluster it wants to join; ``welcomed`` where that host knows it.
        seats: By level, the place in a cluster. ``courts``: clusters that it leads. ``ballots``: votes it holds.
        polled: By level, whose vote of which term it has taken part in. ``pending``: who joined while a vote was due.
        climb: By level, hosts that it may still ask for a place.
        parted: By level, who dissolved a cluster before this device heard that it leads it, and whom to join instead.
        tree: The name of the tree that this central node would found. ``top``: the oldest tree it has heard of while
            it is in none, by name and host to join.
        borders: Adjoining clusters: their central nodes. ``badges``: neighbours' clusters (name, central node, tree);
            ``badged``: which central node neighbours were told of.
        trades: The exchange of nodes with the clusters nearby.
        beat: How many pulses there were.
        born: When it began (again): words sent before are to one who has forgotten what they are about.
        lost: Hosts known to be gone, and since when.
        timers: The number of the latest timer by key; older ones are void.
    """

    accuracy: float = math.nan
    clock: int = -1
    model: Ref | None = None
    sent: int = 0
    phase: str = "rest"
    attempt: int = 0
    tries: int = 0
    mean: float = math.nan
    greeted: dict[int, float] = field(default_factory=dict)
    degrees: dict[int, tuple[int, bool]] = field(default_factory=dict)
    here: dict[int, int] = field(default_factory=dict)
    thp: float = math.nan
    told: set[int] = field(default_factory=set)
    rivals: dict[int, float] = field(default_factory=dict)
    heard: dict[int, tuple[float, float]] = field(default_factory=dict)
    asked: dict[int, tuple[int, float] | None] = field(default_factory=dict)
    wooing: dict[int, int] = field(default_factory=dict)
    welcomed: set[int] = field(default_factory=set)
    seats: dict[int, Seat] = field(default_factory=dict)
    courts: dict[int, Court] = field(default_factory=dict)
    ballots: dict[int, Ballot] = field(default_factory=dict)
    polled: dict[int, tuple[int, int]] = field(default_factory=dict)
    pending: dict[int, dict[int, Member]] = field(default_factory=dict)
    climb: dict[int, list[int]] = field(default_factory=dict)
    parted: dict[int, tuple[int, int]] = field(default_factory=dict)
    tree: int = NONE
    top: tuple[int, int] | None = None
    borders: dict[int, int] = field(default_factory=dict)
    badges: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    badged: dict[int, int] = field(default_factory=dict)
    trades: Trades = field(default_factory=Trades)
    beat: int = 0
    born: float = 0.0
    lost: dict[int, float] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)

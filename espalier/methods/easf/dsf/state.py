"""What a device's agent goes by, and what it remembers: plain data, saved with the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from espalier.core.codec import register
from espalier.core.store import Ref
from espalier.methods.easf.dsf.formulas import Statistic, Tally, pooled
from espalier.methods.easf.dsf.messages import Phase

#: what stands for a device's data: its pre-training accuracy (the paper's), the classes that the pre-trained model
#: answers with, or (an oracle, for no device may tell) its label shares
Balance = Literal["accuracy", "answers", "labels"]

#: in the place of a host, a cluster or a tree: none
NOBODY = -1


@dataclass(frozen=True)
class ProtocolLimits:
    """The numbers of the protocol.

    Attributes:
        balance: What stands for a device's data; None: only delay counts (the structure of the Syn and HFL baselines).
        hops: Hops within which a device looks for a central node; central nodes look twice as far.
        excess: The rate rho_e: clusters larger than this many times the usual size must let nodes go.
        sweeps: How often a central node offers nodes at most.
        width: The most children that the root has before further levels are put in.
        pretrain_epochs: Epochs of the trial training behind a device's statistic; None: until it is above chance.
        patience_seconds: How long an agent waits for messages that may still come: the unit of all its timers.
        delay_seconds: The longest delay (of one model) at which a newcomer looks for a cluster.
    """

    balance: Balance | None = "accuracy"
    hops: int = 3
    excess: float = 1.2
    sweeps: int = 10
    width: int = 32
    pretrain_epochs: int | None = 1
    patience_seconds: float = 0.2
    delay_seconds: float = math.inf


# -- clusters ------------------------------------------------------------------------------------------------------


@register
@dataclass(slots=True)
class MemberInfo:
    """What a central node knows of a member of its cluster.

    ``devices`` and ``statistic_sum`` are 1 and its statistic at level 0, those of its own cluster above. ``hops`` is
    the distance from the central node; ``near`` holds other central nodes and their distance from the member.
    """

    devices: int = 1
    statistic_sum: Statistic = ()
    able: bool = True
    hops: float = 0.0
    near: dict[int, float] = field(default_factory=dict)


@register
@dataclass(slots=True)
class ClusterView:
    """A member's view of its cluster of one level, as the central node last described it.

    Attributes:
        cluster: The cluster's name.
        term: Of the election that made the central node; with ``initiator`` and ``version`` it orders views.
        initiator: Who held that election; of two in one term the smaller number counts.
        version: Counts what the central node has told since.
        centre: The central node.
        successors: All members in the order of succession, the central node first.
        parent: The central node's own central node.
        successors_above: By level, those of higher clusters with the same central node: whoever succeeds it in this
            one finds the others there.
        is_root: Whether the central node is the tree's root.
        tree: The tree's name.
        leaderless: The central node is gone. It stays so if the host comes back: it has lost what it knew.
    """

    cluster: int
    term: int
    initiator: int
    version: int
    centre: int
    successors: list[int]
    parent: int = NOBODY
    successors_above: dict[int, list[int]] = field(default_factory=dict)
    is_root: bool = False
    tree: int = NOBODY
    leaderless: bool = False

    @property
    def elected(self) -> tuple[int, int]:
        """The election behind the view: of two, the one that compares greater counts."""
        return self.term, -self.initiator


@register
@dataclass(slots=True)
class LedCluster:
    """A cluster that this device leads; ``formed`` once ``voters`` have made it the central node."""

    cluster: int
    members: dict[int, MemberInfo] = field(default_factory=dict)
    formed: bool = False
    voters: set[int] = field(default_factory=set)

    @property
    def tally(self) -> Tally:
        """Devices below, and the sum of their statistics."""
        return tally_of(self.members)


def tally_of(members: dict[int, MemberInfo]) -> Tally:
    """Return how many devices some members stand for, and the sum of their statistics."""
    return pooled(Tally(m.devices, m.statistic_sum) for m in members.values())


@register
@dataclass(slots=True)
class HeldElection:
    """An election of a cluster's central node that this device holds.

    Attributes:
        cluster: The cluster, with its new ``term``, whether its central node will be the root, and its ``tree``.
        members: Who will be in the cluster.
        electorate: Who was asked for a vote.
        delays: By voter, the delays to the electorate.
        model_rounds: By voter, the root's round of the newest global model that it has.
    """

    cluster: int
    term: int
    is_root: bool
    tree: int
    members: dict[int, MemberInfo]
    electorate: list[int]
    delays: dict[int, dict[int, float]] = field(default_factory=dict)
    model_rounds: dict[int, int] = field(default_factory=dict)


# -- an agent ------------------------------------------------------------------------------------------------------


@register
@dataclass(slots=True)
class OwnRecord:
    """What outlives a device's absence.

    Attributes:
        statistic: What stands for its data (nothing: not known, or of no account).
        model: The newest global model that this device has seen; ``model_round`` is the root's round of it.
        messages: Control messages sent so far.
    """

    statistic: Statistic = ()
    model_round: int = -1
    model: Ref | None = None
    messages: int = 0


@register
@dataclass(slots=True)
class Discovery:
    """A device's search for a cluster.

    Attributes:
        phase: What it does at level 0.
        attempt: How often it has said hello in vain; ``hellos`` counts all since it was last a member.
        greeted: When each neighbour was last said hello to.
        degrees: Neighbours that look for a cluster too: degree, and whether it may aggregate.
        clustered: Neighbours that have a cluster: its central node.
        probability: The two-hop return probability; ``told`` who knows it.
        rivals: Those of neighbours.
        centres: Central nodes within the hop limit: hops and delay.
        queried: What central nodes answered a newcomer: size, sum of statistics (None: nothing yet).
        asked: Central nodes that a newcomer has asked.
    """

    phase: str = Phase.REST
    attempt: int = 0
    hellos: int = 0
    greeted: dict[int, float] = field(default_factory=dict)
    degrees: dict[int, tuple[int, bool]] = field(default_factory=dict)
    clustered: dict[int, int] = field(default_factory=dict)
    probability: float = math.nan
    told: set[int] = field(default_factory=set)
    rivals: dict[int, float] = field(default_factory=dict)
    centres: dict[int, tuple[float, float]] = field(default_factory=dict)
    queried: dict[int, tuple[int, Statistic] | None] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)


@register
@dataclass(slots=True)
class Exchange:
    """The exchange of members with the clusters of nearby central nodes.

    Attributes:
        near: Central nodes nearby: hops.
        sizes: Their clusters.
        offered: Members that this one would let go; ``forced`` those of them that go only because there are too many.
        requested: The central node whose reply is awaited.
        sweep: Sweeps so far; ``changed`` whether sizes have changed since the last.
    """

    near: dict[int, float] = field(default_factory=dict)
    sizes: dict[int, tuple[int, Statistic]] = field(default_factory=dict)
    offered: list[int] = field(default_factory=list)
    forced: set[int] = field(default_factory=set)
    requested: int = NOBODY
    sweep: int = 0
    changed: bool = False


@register
@dataclass(slots=True)
class Memberships:
    """A device's places in clusters, all by level.

    Attributes:
        views: Of the clusters that it is a member of.
        led: Memberships that it leads.
        joining: The host that it has asked to take it in; ``accepted`` the levels at which that host has answered.
        elections: Elections that it holds.
        voted: The last vote cast in an election whose outcome is not known: initiator and term.
        applicants: Who has joined while an election was due.
        parent_candidates: Hosts that it may still ask to take it in.
        dissolved: Who has given a cluster up before this device heard that it leads it, and whom to join instead.
    """

    views: dict[int, ClusterView] = field(default_factory=dict)
    led: dict[int, LedCluster] = field(default_factory=dict)
    joining: dict[int, int] = field(default_factory=dict)
    accepted: set[int] = field(default_factory=set)
    elections: dict[int, HeldElection] = field(default_factory=dict)
    voted: dict[int, tuple[int, int]] = field(default_factory=dict)
    applicants: dict[int, dict[int, MemberInfo]] = field(default_factory=dict)
    parent_candidates: dict[int, list[int]] = field(default_factory=dict)
    dissolved: dict[int, tuple[int, int]] = field(default_factory=dict)


@register
@dataclass(slots=True)
class Neighbourhood:
    """What a device knows of other clusters and trees.

    Attributes:
        own_tree: The name of the tree that this central node would found.
        oldest: The oldest tree it has heard of while it is in none: name, and host to join.
        adjacent: Adjacent clusters: their central nodes.
        beacons: Neighbours' clusters as last heard: name, central node, tree.
        beaconed: Which central node neighbours were told of.
    """

    own_tree: int = NOBODY
    oldest: tuple[int, int] | None = None
    adjacent: dict[int, int] = field(default_factory=dict)
    beacons: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    beaconed: dict[int, int] = field(default_factory=dict)


@register
@dataclass(slots=True)
class AgentState:
    """All that an agent remembers.

    Attributes:
        own: What outlives an absence.
        started: When it began (again): messages sent before are to one who has forgotten what they are about.
        mean_statistic: Of all devices, as far as known.
        heartbeats: How many there were.
        lost: Hosts known to be gone, and since when.
        timers: The number of the latest timer by key; older ones are void.
    """

    own: OwnRecord = field(default_factory=OwnRecord)
    discovery: Discovery = field(default_factory=Discovery)
    exchange: Exchange = field(default_factory=Exchange)
    memberships: Memberships = field(default_factory=Memberships)
    around: Neighbourhood = field(default_factory=Neighbourhood)
    started: float = 0.0
    mean_statistic: Statistic = ()
    heartbeats: int = 0
    lost: dict[int, float] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)

    def restart(self, now: float) -> None:
        """Forget all but what outlives an absence; timers that are set are void."""
        self.discovery, self.exchange = Discovery(), Exchange()
        self.memberships, self.around = Memberships(), Neighbourhood()
        self.started, self.mean_statistic, self.heartbeats, self.lost = now, (), 0, {}
        self.timers = {key: number + 1 for key, number in self.timers.items()}

"""What the parts of an agent share: its state, how it sends, sets timers and probes, and what parts ask of each other.

An agent is made of `Formation`, `Membership`, `Election`, `ViewChange` and `TreeMaintenance`, which know only this
class: what one of them needs of another is declared here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from espalier.core.address import role
from espalier.core.environment import Environment
from espalier.core.messages import Action, Alarm, Arrange, Record, Send, SetDeadline, Word
from espalier.methods.easf.dsf.formulas import Statistic
from espalier.methods.easf.dsf.messages import CLUSTER_VIEW
from espalier.methods.easf.dsf.state import NOBODY, AgentState, ClusterView, MemberInfo, ProtocolLimits


class AgentBase(ABC):
    """One event's worth of an agent: takes the event, changes the state, collects actions in ``out``."""

    __slots__ = (
        "around", "discovery", "elections", "env", "exchange", "joining", "led", "limits", "me", "memberships", "now",
        "out", "own", "state", "views",
    )  # fmt: skip

    def __init__(self, me: int, limits: ProtocolLimits, env: Environment, state: AgentState, now: float) -> None:
        self.me, self.limits, self.env, self.state, self.now = me, limits, env, state, now
        self.out: list[Action] = []
        self._bind()

    def _bind(self) -> None:
        """Name the parts of the state."""
        state = self.state
        self.own, self.discovery, self.exchange, self.around = state.own, state.discovery, state.exchange, state.around
        self.memberships = memberships = state.memberships
        self.views, self.led = memberships.views, memberships.led
        self.elections, self.joining = memberships.elections, memberships.joining

    # -- doing -----------------------------------------------------------------------------------------------------

    def send(self, kind: str, to: int, **data: Any) -> None:
        """Send a message to another agent."""
        self.own.messages += 1
        self.out.append(Send(Word(kind, self.me, to, self.now, data)))

    def tell_head(self, level: int, kind: str, **data: Any) -> None:
        """Tell the aggregator that this device runs at a level (on the same host: it costs nothing)."""
        self.out.append(Send(Word(kind, self.me, role(self.me, level), self.now, data)))

    def set_timer(self, key: str, patiences: float, level: int | None = None, extra_seconds: float = 0.0) -> None:
        """Set (or reset) a timer to so many times the agent's patience, plus some seconds."""
        key = key if level is None else f"{key} {level}"
        number = self.state.timers[key] = self.state.timers.get(key, 0) + 1
        self.out.append(SetDeadline(patiences * self.limits.patience_seconds + extra_seconds, Alarm(key, number)))

    def stop_timer(self, key: str, level: int) -> None:
        """Make a timer void."""
        key = f"{key} {level}"
        self.state.timers[key] = self.state.timers.get(key, 0) + 1

    def attach(self, level: int, centre: int) -> None:
        """Let this device's node of a level report to the aggregator that leads its cluster."""
        self.out.append(Arrange({role(self.me, level): role(centre, level + 1)}, {}))

    def record(self, kind: str, **data: Any) -> None:
        """Write something into the run's record."""
        self.out.append(Record(kind, data))

    # -- finding out -----------------------------------------------------------------------------------------------

    @property
    def able(self) -> bool:
        """Whether this device may aggregate."""
        return self.env.may_aggregate(self.me)

    @property
    def statistic(self) -> Statistic:
        """What stands for the device's data; nothing where that is of no account."""
        return self.own.statistic

    def neighbours(self) -> list[int]:
        """Return the devices with a direct link to this one, ascending."""
        return self.env.places.neighbours(self.me)

    def delay(self, other: int) -> float:
        """Return the seconds that a model takes between this device and another."""
        return self.env.links.delay(self.me, other, self.now) if other != self.me else 0.0

    def hops(self, other: int) -> float:
        """Return the hops between this device and another."""
        return self.env.links.hop_count(self.me, other) if other != self.me else 0.0

    def answers(self, other: int) -> bool:
        """Tell whether a host answers a probe."""
        return other == self.me or self.env.places.answers(other)

    def is_gone(self, host: int) -> bool:
        """Tell whether a host is known to be gone (nobody is, too). It may have come back unheard: a probe tells."""
        if host in self.state.lost and self.answers(host):
            del self.state.lost[host]
        return host == NOBODY or host in self.state.lost

    def new_name(self) -> int:
        """Return a name for a cluster or tree that is founded now: older ones are smaller."""
        return (int(self.now * 1000) << 32) | self.me

    def leader(self, level: int) -> int:
        """Return who leads (or is about to lead) this device's cluster of a level, as far as it knows."""
        if level in self.led or level in self.elections:
            return self.me
        view = self.views.get(level)
        if view is None:
            host = self.joining.get(level, NOBODY)
            return NOBODY if self.is_gone(host) else host
        if not view.leaderless:
            return view.centre
        return next((h for h in view.successors if not self.is_gone(h)), NOBODY)

    # -- what members are told of each other -----------------------------------------------------------------------

    def describe_self(self, level: int) -> dict[str, Any]:
        """Return what this device tells of itself as a member at a level."""
        if level == 0:
            near = {centre: hops for centre, (hops, _) in self.discovery.centres.items()}
            return described(MemberInfo(1, self.statistic, self.able, near=near))
        below = self.led.get(level - 1)
        devices, total = (below.tally.size, below.tally.total) if below is not None else (0, ())
        return described(MemberInfo(devices, total, near=dict.fromkeys(self.around.adjacent.values(), 1.0)))

    def member_info(self, host: int, data: dict[str, Any]) -> MemberInfo:
        """Return what is known of a member that a message describes, with its distance from this device."""
        statistic = tuple(data["statistic_sum"])
        return MemberInfo(data["devices"], statistic, data["able"], self.hops(host), dict(data["near"]))

    def describe_view(self, level: int, view: ClusterView) -> dict[str, Any]:
        """Return what a message says of a cluster."""
        return {
            "level": level, "cluster": view.cluster, "term": view.term, "initiator": view.initiator,
            "version": view.version, "centre": view.centre, "successors": list(view.successors), "parent": view.parent,
            "successors_above": {at: list(hosts) for at, hosts in view.successors_above.items()},
            "is_root": view.is_root, "tree": view.tree, "mean_statistic": self.state.mean_statistic,
        }  # fmt: skip

    def send_view(self, level: int, host: int) -> None:
        """Send a host this device's view of its cluster."""
        self.send(CLUSTER_VIEW, host, **self.describe_view(level, self.views[level]))

    def correct(self, level: int, host: int) -> None:
        """Tell a host that goes by another election who leads this device's cluster by the one that counts."""
        if not self.views[level].leaderless:
            self.send_view(level, host)

    # -- what the parts ask of each other --------------------------------------------------------------------------

    @abstractmethod
    def discover(self, attempt: int) -> None:
        """`Formation`: look for a cluster among the neighbours."""

    @abstractmethod
    def query_clusters(self) -> None:
        """`Membership`: ask the neighbours' central nodes how they are."""

    @abstractmethod
    def join(self, level: int, host: int) -> None:
        """`Membership`: ask a host to take this device in."""

    @abstractmethod
    def admit(self, level: int, host: int, data: dict[str, Any]) -> None:
        """`Membership`: take a member in."""

    @abstractmethod
    def enrol(self, level: int, host: int, data: dict[str, Any]) -> bool:
        """`Membership`: take in who takes this device for its central node."""

    @abstractmethod
    def remove(self, level: int, host: int) -> None:
        """`Membership`: strike a member off."""

    @abstractmethod
    def announce(self, level: int) -> None:
        """`Membership`: send the members a new view soon."""

    @abstractmethod
    def find_place(self, level: int) -> None:
        """`Membership`: this device has no place at a level after all, look for one."""

    @abstractmethod
    def start_heartbeat(self) -> None:
        """`Membership`: report to central nodes every so often."""

    @abstractmethod
    def hold_election(
        self, level: int, cluster: int, term: int, members: dict[int, MemberInfo], is_root: bool, tree: int
    ) -> None:
        """`Election`: let the members vote."""

    @abstractmethod
    def count_votes(self, level: int) -> None:
        """`Election`: decide if all have voted."""

    @abstractmethod
    def succeed(self, level: int) -> None:
        """`Election`: see to the succession of a central node that is gone."""

    @abstractmethod
    def host_lost(self, host: int) -> None:
        """`Agent`: a host is gone."""

    @abstractmethod
    def install_view(self, sender: int, data: dict[str, Any]) -> None:
        """`ViewChange`: take a cluster's view."""

    @abstractmethod
    def step_down(self, level: int, members: dict[int, MemberInfo], centre: int) -> None:
        """`ViewChange`: lead a cluster no more."""

    @abstractmethod
    def beacon(self, again: bool = False) -> None:
        """`TreeMaintenance`: tell neighbours of this device's cluster."""

    @abstractmethod
    def beacon_tree(self) -> None:
        """`TreeMaintenance`: tell neighbours of this device's tree."""

    @abstractmethod
    def beacon_one(self, neighbour: int) -> None:
        """`TreeMaintenance`: tell one neighbour, and see its own beacon."""

    @abstractmethod
    def await_tree(self) -> None:
        """`TreeMaintenance`: wait for news of other clusters."""

    @abstractmethod
    def founds_tree(self, level: int) -> bool:
        """`TreeMaintenance`: whether this central node holds the election of a new tree's root."""

    @abstractmethod
    def seek_parent(self, level: int, candidates: list[int]) -> None:
        """`TreeMaintenance`: ask for a place above."""

    @abstractmethod
    def seek_next_parent(self, level: int) -> None:
        """`TreeMaintenance`: ask the next candidate for a place above."""

    @abstractmethod
    def seek_missing_parents(self) -> None:
        """`TreeMaintenance`: see that every cluster led has a parent."""

    @abstractmethod
    def join_older_tree(self) -> None:
        """`TreeMaintenance`: two trees have met, the younger dissolves."""

    @abstractmethod
    def leave_dissolved(self, level: int, host: int) -> None:
        """`TreeMaintenance`: leave a cluster that was given up."""


def described(member: MemberInfo) -> dict[str, Any]:
    """Return what a message says of a member."""
    return {
        "devices": member.devices, "statistic_sum": member.statistic_sum, "able": member.able,
        "near": dict(member.near),
    }  # fmt: skip

"""The device with its agent: it trains as any device does, and finds its place in the tree by talking with others.

An agent knows its neighbours, what a probe tells (delay and hops to a host whose address it has, whether that answers),
and what messages say. Nobody sees the whole. A cluster of level h holds devices (h = 0) or the aggregators of level h;
its central node runs the aggregator of level h + 1 for it::

    say hello ── somebody has a cluster ──> query central nodes ──> join one                   (a newcomer)
       └─ nobody has ─> elect by two-hop probability ─> adverts ─> choose, join                (the beginning)
                            └─ central nodes: exchange members ─> hold an election ─> the winner leads
    central nodes: beacons, adjacent clusters ─> the oldest tree known ─> its founder holds the election of the root
    a host is gone: its central node strikes it off; if it was the central node, the first successor holds an election
    whatever goes wrong: say hello again (a device), ask other parents or look around again (a central node)

An agent lives as long as one event: what it remembers is its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.device import Device, DeviceState
from espalier.core.environment import Environment
from espalier.core.messages import Action, Alarm, Arrived, Deadline, Event, Lost, Order, Started, Word
from espalier.core.method import Speaker
from espalier.core.policies import Local, Pace
from espalier.core.store import Ref
from espalier.methods.easf.dsf import messages as kinds
from espalier.methods.easf.dsf.election import Election
from espalier.methods.easf.dsf.formation import Formation
from espalier.methods.easf.dsf.formulas import Statistic
from espalier.methods.easf.dsf.membership import Membership
from espalier.methods.easf.dsf.messages import RESET, STATISTIC_EVENT, Phase, TimerKey
from espalier.methods.easf.dsf.state import NOBODY, AgentState, Balance, ProtocolLimits
from espalier.methods.easf.dsf.tree import TreeMaintenance
from espalier.methods.easf.dsf.views import ViewChange


class Agent(Formation, Membership, Election, ViewChange, TreeMaintenance):
    """The whole agent: hands each event to the part that takes it."""

    __slots__ = ()

    def start(self) -> None:
        """Begin (again): all but the statistic and the newest model is forgotten."""
        for level in self.led:
            self.tell_head(level + 1, RESET)
        self.state.restart(self.now)
        self._bind()
        if self.limits.balance is not None and not self.own.statistic:
            self.own.statistic = self._statistic(self.limits.balance, self.limits.pretrain_epochs)
            self.record(STATISTIC_EVENT, values=list(self.own.statistic))
        self.discover(0)

    def _statistic(self, balance: Balance, epochs: int | None) -> Statistic:
        trials = self.env.trials
        if balance == "labels":
            return tuple(trials.label_shares(self.me))
        if epochs is None:
            epochs = trials.epochs_above_chance()
        if balance == "answers":
            return tuple(trials.pretraining_answers(self.me, epochs))
        return (trials.pretraining_accuracy(self.me, epochs),)

    def hear(self, word: Word) -> None:
        """Take a message of another agent, unless it was sent before this one was away: it knows nothing of that."""
        if word.sent < self.state.started:
            return
        since = self.state.lost.get(word.sender)
        if since is not None and word.sent >= since:
            del self.state.lost[word.sender]
        HANDLERS[word.kind](self, word)

    def ring(self, alarm: Alarm) -> None:
        """Take a timer, unless it was reset or stopped since."""
        if self.state.timers.get(alarm.key) == alarm.number:
            key, _, level = alarm.key.partition(" ")
            TIMERS[key](self, int(level or 0))

    def watches(self, host: int) -> bool:
        """Tell whether it matters to this agent that a host is gone."""
        memberships, oldest = self.memberships, self.around.oldest
        return (
            host in self.joining.values()
            or any(host == initiator for initiator, _ in memberships.voted.values())
            or host in self.discovery.queried
            or host in self.exchange.near
            or (oldest is not None and oldest[1] == host)
            or any(host in view.successors or host == view.centre for view in self.views.values())
            or any(host in cluster.members for cluster in self.led.values())
            or any(host in election.members for election in self.elections.values())
            or any(host in members for members in memberships.applicants.values())
        )

    # -- a host is gone --------------------------------------------------------------------------------------------

    def host_lost(self, host: int) -> None:
        """Strike a host off everywhere; where it led, see to its succession; where it was asked for a place, ask on."""
        if host in self.state.lost:
            return
        self.state.lost[host] = self.now
        self._forget(host)
        for level in sorted({*self.led, *self.elections, *self.memberships.applicants}):
            self.remove(level, host)
        for level, view in sorted(self.views.items()):
            if host in view.successors:
                view.successors.remove(host)
            initiator = self.memberships.voted.get(level, (NOBODY, 0))[0] == host
            if initiator:
                del self.memberships.voted[level]
            if view.centre == host or (initiator and view.leaderless):
                self.succeed(level)
        self._ask_on(host)
        if self.discovery.phase == Phase.DISCOVER:
            self.check_hellos()

    def _forget(self, host: int) -> None:
        found, around, exchange = self.discovery, self.around, self.exchange
        for table in (found.degrees, found.clustered, found.rivals, found.centres, found.queried):
            table.pop(host, None)
        around.beacons.pop(host, None)
        around.beaconed.pop(host, None)
        around.adjacent = {cluster: centre for cluster, centre in around.adjacent.items() if centre != host}
        exchange.near.pop(host, None)
        exchange.sizes.pop(host, None)
        exchange.changed = True
        if exchange.requested == host:
            exchange.requested = NOBODY

    def _ask_on(self, host: int) -> None:
        for level, asked in sorted(self.joining.items()):
            if asked == host and level in self.joining:
                self.find_place(level)
                if self.discovery.phase == Phase.DISCOVER and self.discovery.attempt:
                    # The others who would have joined it may have nobody else either: elect again.
                    self.discover(0)


#: which part takes a message
HANDLERS: dict[str, Callable[[Agent, Word], None]] = {
    kinds.HELLO: Formation.on_hello,
    kinds.CLUSTERED: Formation.on_clustered,
    kinds.PROBABILITY: Formation.on_probability,
    kinds.ADVERT: Formation.on_advert,
    kinds.SIZE: Formation.on_size,
    kinds.OFFER: Formation.on_offer,
    kinds.REQUEST: Formation.on_request,
    kinds.REPLY: Formation.on_reply,
    kinds.TRANSFER: Formation.on_transfer,
    kinds.CLUSTER_QUERY: Membership.on_cluster_query,
    kinds.CLUSTER_INFO: Membership.on_cluster_info,
    kinds.JOIN: Membership.on_join,
    kinds.JOIN_ACCEPTED: Membership.on_join_accepted,
    kinds.JOIN_REDIRECT: Membership.on_join_redirect,
    kinds.REDIRECT: Membership.on_redirect,
    kinds.LEAVE: Membership.on_leave,
    kinds.HEARTBEAT: Membership.on_heartbeat,
    kinds.CLUSTER_VIEW: ViewChange.on_cluster_view,
    kinds.MODEL_REQUEST: ViewChange.on_model_request,
    kinds.VOTE_REQUEST: Election.on_vote_request,
    kinds.VOTE: Election.on_vote,
    kinds.SUCCEED: Election.on_succeed,
    kinds.NOT_A_MEMBER: Election.on_not_a_member,
    kinds.BEACON: TreeMaintenance.on_beacon,
    kinds.ADJACENT: TreeMaintenance.on_adjacent,
    kinds.SEND_BEACONS: TreeMaintenance.on_send_beacons,
    kinds.OLDEST_TREE: TreeMaintenance.on_oldest_tree,
    kinds.TREE_QUERY: TreeMaintenance.on_tree_query,
    kinds.DISSOLVED: TreeMaintenance.on_dissolved,
}
#: which part takes a timer, with the level that it was set for
TIMERS: dict[str, Callable[[Agent, int], None]] = {
    TimerKey.HELLO: Formation.hellos_over,
    TimerKey.PROBABILITY: Formation.probabilities_over,
    TimerKey.CHOOSE: Formation.choose_centre,
    TimerKey.GATHER: Formation.begin_exchange,
    TimerKey.SWEEP: Formation.sweep,
    TimerKey.QUERY: Membership.pick_cluster,
    TimerKey.JOIN: Membership.join_unanswered,
    TimerKey.ANNOUNCE: Membership.send_views,
    TimerKey.HEARTBEAT: Membership.beat,
    TimerKey.VOTE: Election.decide,
    TimerKey.SUCCESSION: Election.succession_due,
    TimerKey.ROOT: ViewChange.begin_root,
    TimerKey.TREE: TreeMaintenance.tree_settled,
    TimerKey.ORPHAN: TreeMaintenance.orphan_due,
}


@register
@dataclass(slots=True)
class PeerState(DeviceState):
    """A device's state and its agent's."""

    agent: AgentState = field(default_factory=AgentState)


class Peer(Device):
    """A device that takes part in DSF."""

    state: PeerState

    def __init__(self, me: Address, local: Local, pace: Pace, env: Environment, limits: ProtocolLimits) -> None:
        super().__init__(me, local, pace, env, PeerState())
        self.limits = limits

    @property
    def idle(self) -> bool:
        """Never: its place in the tree must be remembered."""
        return False

    @property
    def hears(self) -> Mapping[str, Speaker]:
        """Words of other agents, and of the aggregators that this device runs."""
        return {**dict.fromkeys(HANDLERS, "device"), kinds.NEW_MODEL: "own"}

    def watches(self, host: int) -> bool:
        """Tell whether it matters that a host is gone."""
        return self._agent(0.0).watches(host)

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        agent = self._agent(now)
        match event:
            case Started():
                agent.start()
            case Arrived(message=Word(kind=kinds.NEW_MODEL, data=data)):
                self._seen(data["round"], data["model"])
            case Arrived(message=Word() as word):
                agent.hear(word)
            case Deadline(wake=Alarm() as alarm):
                agent.ring(alarm)
            case Lost():
                agent.host_lost(event.host)
            case Arrived(message=Order() as order):
                if order.sender != self.env.parent(self.me):
                    return []  # of a parent that it had before: the message was slow
                self._seen(order.clock, next(iter(order.models.values())))
                return super().on(event, now)
            case _:
                return super().on(event, now)
        return agent.out

    def _seen(self, root_round: int, model: Ref) -> None:
        """Remember the newest global model: the first one handed down in each of the root's rounds."""
        own = self.state.agent.own
        if root_round > own.model_round:
            own.model_round, own.model = root_round, model

    def _agent(self, now: float) -> Agent:
        return Agent(self.me, self.limits, self.env, self.state.agent, now)

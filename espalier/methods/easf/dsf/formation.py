"""The first clusters: discovery, election by two-hop probability, adverts, choice, exchange of members.

Nobody has a cluster yet: neighbours exchange degrees, then two-hop return probabilities (Eq. 9), and whoever has the
largest around is a central node. Its adverts pass from neighbour to neighbour up to the hop limit; the others join the
central node with the least delay among those they heard of. Who hears of none says hello again until a neighbour has a
cluster, and so joins the nearest there is. Later a neighbour does have a cluster: then the device is a newcomer.

Central nodes exchange members until each cluster's mean statistic is as near to everybody's as it gets. Each tells
those nearby how large its cluster is. Who has more than they have on average offers members (Algorithm 1); who is
offered some requests the one that helps it most, and no other until it has a reply; who is asked lets the member go if
its own cluster allows. Changed sizes start another sweep, up to a limit. Then the cluster elects its central node
(Eq. 1).
"""

from __future__ import annotations

import math

from espalier.core.messages import Word
from espalier.methods.easf.dsf import formulas
from espalier.methods.easf.dsf.base import AgentBase, described
from espalier.methods.easf.dsf.messages import (
    ADVERT,
    CLUSTERED,
    HELLO,
    OFFER,
    PROBABILITY,
    REDIRECT,
    REPLY,
    REQUEST,
    SIZE,
    TRANSFER,
    Phase,
    TimerKey,
)
from espalier.methods.easf.dsf.state import NOBODY, LedCluster, MemberInfo

#: hellos in vain after which a device rests until a neighbour says hello
MOST_HELLOS = 200


class Formation(AgentBase):
    """How a device gets from nothing to a first cluster."""

    __slots__ = ()

    # -- discovery: neighbours and their degrees -------------------------------------------------------------------

    def discover(self, attempt: int) -> None:
        """Ask the neighbours who they are and whether they have a cluster."""
        found, neighbours = self.discovery, self.neighbours()
        found.phase, found.attempt, found.probability = Phase.DISCOVER, attempt, math.nan
        found.hellos += 1
        found.greeted = dict.fromkeys(neighbours, self.now)
        for answers in (found.degrees, found.clustered, found.rivals, found.told, found.queried):
            answers.clear()
        for other in neighbours:
            self.send(HELLO, other, degree=len(neighbours), able=self.able, ask=True)
        if found.hellos <= MOST_HELLOS:
            self.set_timer(TimerKey.HELLO, 1 + attempt)
        else:
            found.phase = Phase.REST
        if not neighbours and found.phase == Phase.DISCOVER:
            self._tell_probabilities()  # nobody will answer, and nobody can have a cluster

    def on_hello(self, word: Word) -> None:
        """Answer a neighbour that looks for a cluster."""
        found, other = self.discovery, word.sender
        self.around.beaconed.pop(other, None)  # it has forgotten what it was told
        centre = self._own_centre()
        if centre != NOBODY:
            if word.data["ask"]:
                view = self.views.get(0)
                cluster, tree = (NOBODY, NOBODY) if view is None else (view.cluster, view.tree)
                self.send(CLUSTERED, other, centre=centre, cluster=cluster, tree=tree)
            return
        found.degrees[other] = (word.data["degree"], word.data["able"])
        if word.data["ask"] and found.greeted.get(other, -1.0) < word.sent:
            # It came after this device's hello: it cannot know of it.
            found.greeted[other] = self.now
            self.send(HELLO, other, degree=len(found.greeted), able=self.able, ask=False)
        if found.phase == Phase.REST:
            found.hellos = 0
            self.discover(0)
        self.check_hellos()

    def _own_centre(self) -> int:
        """Return whom this device has joined, or knows to lead its cluster."""
        if 0 in self.led:
            return self.me
        if 0 in self.views:
            return self.views[0].centre
        return self.joining.get(0, NOBODY) if 0 in self.memberships.accepted else NOBODY

    def on_clustered(self, word: Word) -> None:
        """A neighbour has a cluster."""
        data = word.data
        self.discovery.clustered[word.sender] = data["centre"]
        self.around.beacons[word.sender] = (data["cluster"], data["centre"], data["tree"])
        self.check_hellos()

    def check_hellos(self) -> None:
        """Go on once every neighbour has answered."""
        found = self.discovery
        if found.phase != Phase.DISCOVER:
            return
        if any(n not in found.degrees and n not in found.clustered for n in found.greeted):
            return
        if found.clustered:
            self.query_clusters()
        elif found.attempt == 0:
            self._tell_probabilities()

    def hellos_over(self, _: int) -> None:
        """Go on with the neighbours that have answered."""
        found = self.discovery
        if found.phase != Phase.DISCOVER:
            return
        if found.clustered:
            self.query_clusters()
        elif found.attempt == 0:
            self._tell_probabilities()
        else:
            # The nearest cluster may be some neighbours away: it gets nearer with every hello. Past the hop limit there
            # may be none at all: elect again.
            self.discover(found.attempt + 1 if found.attempt < self.limits.hops else 0)

    # -- the first central nodes: two-hop probabilities and adverts -------------------------------------------------

    def _tell_probabilities(self) -> None:
        found = self.discovery
        degrees = [degree for degree, _ in found.degrees.values()]
        found.phase = Phase.ELECT
        found.probability = formulas.two_hop_probability(len(found.greeted), degrees) if degrees else 0.0
        for other in sorted(found.degrees):
            self._tell_probability(other)
        self.set_timer(TimerKey.PROBABILITY, 1)
        self._check_probabilities()

    def _tell_probability(self, other: int) -> None:
        self.discovery.told.add(other)
        self.send(PROBABILITY, other, value=self.discovery.probability)

    def on_probability(self, word: Word) -> None:
        """Take a neighbour's two-hop probability."""
        found = self.discovery
        found.rivals[word.sender] = word.data["value"]
        if not math.isnan(found.probability) and word.sender not in found.told:
            self._tell_probability(word.sender)
        self._check_probabilities()

    def _check_probabilities(self) -> None:
        found = self.discovery
        if found.phase == Phase.ELECT and all(n in found.rivals for n in found.degrees):
            self.probabilities_over(0)

    def probabilities_over(self, _: int) -> None:
        """Be a central node if no neighbour has a larger probability; else wait for adverts."""
        found = self.discovery
        if found.phase != Phase.ELECT:
            return
        rivals = {n: value for n, value in found.rivals.items() if self.answers(n)}
        if formulas.is_first_centre(self.me, found.probability, rivals):
            found.phase = Phase.GATHER
            self.led[0] = LedCluster(self.new_name(), {self.me: MemberInfo(1, self.statistic)})
            for other in self.neighbours():
                self.send(ADVERT, other, centre=self.me, hops=0, delay=0.0)
            self.set_timer(TimerKey.GATHER, 2)
        else:
            found.phase = Phase.CHOOSE
            self.set_timer(TimerKey.CHOOSE, 1)

    def on_advert(self, word: Word) -> None:
        """Hear of a central node; pass it on if this is the quickest way so far."""
        centres, centre = self.discovery.centres, word.data["centre"]
        if centre == self.me or 0 in self.views:
            return
        hops, delay = word.data["hops"] + 1, word.data["delay"] + self.delay(word.sender)
        if centre in centres and centres[centre][1] <= delay:
            return
        centres[centre] = (hops, delay)
        if hops < self.limits.hops:
            for other in self.neighbours():
                if other not in (word.sender, centre):
                    self.send(ADVERT, other, centre=centre, hops=hops, delay=delay)

    def choose_centre(self, _: int) -> None:
        """Join the central node with the least delay."""
        if self.discovery.phase != Phase.CHOOSE:
            return
        delays = {c: delay for c, (_, delay) in self.discovery.centres.items() if not self.is_gone(c)}
        if delays:
            self.join(0, min(delays, key=lambda c: (delays[c], c)))
        else:
            self.discover(1)

    # -- the exchange of members -----------------------------------------------------------------------------------

    def begin_exchange(self, _: int) -> None:
        """Devices have joined: tell the central nodes nearby; without balance, or without any, elect at once."""
        if self.discovery.phase != Phase.GATHER:
            return
        exchange, reach = self.exchange, 2 * self.limits.hops
        found = {c: hops for c, (hops, _) in self.discovery.centres.items()}
        for member in self.led[0].members.values():
            for centre, hops in member.near.items():
                found[centre] = min(found.get(centre, reach + 1), member.hops + hops)
        exchange.near = {c: h for c, h in found.items() if h <= reach and c != self.me and not self.is_gone(c)}
        if self.limits.balance is None or not exchange.near:
            self._end_exchange()
            return
        self.discovery.phase = Phase.TRANSFER
        exchange.changed = True
        self._tell_size()
        self.set_timer(TimerKey.SWEEP, 1)

    def _end_exchange(self) -> None:
        self.discovery.phase = Phase.VOTE
        cluster = self.led[0]
        self.hold_election(0, cluster.cluster, 1, dict(cluster.members), is_root=False, tree=NOBODY)

    def _tell_size(self) -> None:
        tally = self.led[0].tally
        for centre in sorted(self.exchange.near):
            self.send(SIZE, centre, devices=tally.size, statistic_sum=tally.total)

    def on_size(self, word: Word) -> None:
        """Take the size of a cluster nearby."""
        self.exchange.sizes[word.sender] = (word.data["devices"], tuple(word.data["statistic_sum"]))
        self.exchange.changed = True

    def _usual_size(self) -> float | None:
        """Return the mean size of the clusters nearby."""
        return formulas.mean_nearby_size({c: size for c, (size, _) in self.exchange.sizes.items()})

    def _target(self) -> formulas.Statistic:
        """Return the mean statistic of all devices that this central node knows of."""
        return formulas.pooled(
            [self.led[0].tally, *(formulas.Tally(*told) for told in self.exchange.sizes.values())]
        ).mean

    def sweep(self, _: int) -> None:
        """Offer members if this cluster is larger than those nearby (Algorithm 1); elect once nothing changes."""
        if self.discovery.phase != Phase.TRANSFER:
            return
        exchange = self.exchange
        exchange.sweep += 1
        if exchange.sweep > self.limits.sweeps or not exchange.changed:
            self._end_exchange()
            return
        exchange.changed, exchange.requested = False, NOBODY
        self.state.mean_statistic = target = self._target()
        usual, members = self._usual_size(), self.led[0].members
        if usual is not None and len(members) > usual:
            statistics = {m: member.statistic_sum for m, member in members.items()}
            hops = {m: member.hops for m, member in members.items()}
            found = formulas.nodes_to_offer(statistics, hops, self.me, target, usual, self.limits.excess)
            exchange.offered, exchange.forced = found
            for centre in sorted(exchange.sizes) if exchange.offered else ():
                self.send(OFFER, centre, nodes={m: statistics[m] for m in exchange.offered})
        self.set_timer(TimerKey.SWEEP, 1)

    def on_offer(self, word: Word) -> None:
        """Request the offered member that helps this cluster most, if any does."""
        exchange, usual = self.exchange, self._usual_size()
        if self.discovery.phase != Phase.TRANSFER or exchange.requested != NOBODY or usual is None:
            return
        own = self.led[0].tally
        offered = {n: (tuple(statistic), self.hops(n)) for n, statistic in word.data["nodes"].items()}
        small = formulas.is_far_too_small(own.size, usual, self.limits.excess)
        node = formulas.node_to_request(offered, own, self._target(), self.limits.hops, small)
        if node is not None:
            exchange.requested = word.sender
            self.send(REQUEST, word.sender, node=node)

    def on_request(self, word: Word) -> None:
        """Let an offered member go, if this cluster still allows it."""
        exchange, node = self.exchange, word.data["node"]
        if not self._releases(node, word.sender):
            self.send(REPLY, word.sender, node=node, member=None)
            return
        member = self.led[0].members.pop(node)
        exchange.offered.remove(node)
        exchange.changed = True
        self.send(REPLY, word.sender, node=node, member=described(member))
        self.send(TRANSFER, node, centre=word.sender)
        self._tell_size()

    def _releases(self, node: int, receiver: int) -> bool:
        exchange, usual = self.exchange, self._usual_size()
        if self.discovery.phase != Phase.TRANSFER or usual is None:
            return False
        member = self.led[0].members.get(node)
        if receiver not in exchange.sizes or node not in exchange.offered or member is None:
            return False
        return formulas.may_release(
            self.led[0].tally, member.statistic_sum, self._target(), node in exchange.forced, usual, self.limits.excess,
            exchange.sizes[receiver][0],
        )  # fmt: skip

    def on_reply(self, word: Word) -> None:
        """Take in the requested member, if it was let go."""
        exchange, node = self.exchange, word.data["node"]
        exchange.requested = NOBODY
        if word.data["member"] is None:
            return
        if 0 not in self.led:
            # The election is over: whoever leads now takes the member in.
            self.send(REDIRECT, node, level=0, centre=self.leader(0))
            return
        self.admit(0, node, word.data["member"])
        exchange.changed = True
        if self.discovery.phase == Phase.TRANSFER:
            self._tell_size()

    def on_transfer(self, word: Word) -> None:
        """The central node has let this device go to another."""
        centre = word.data["centre"]
        if self.joining.get(0) == word.sender and not self.is_gone(centre):
            self.joining[0] = centre

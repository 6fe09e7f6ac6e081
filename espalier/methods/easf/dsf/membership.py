"""Members come and go: a newcomer picks a cluster, joins, is told of the cluster, says that it is still there, leaves.

A newcomer asks its neighbours' central nodes. Those answer with the other central nodes that they know: of adjacent
clusters, and of their own cluster one level up. So it asks every one within the hop limit. Of those within the limits
of hops and delay it picks one by Algorithm 2; without balance the one with the least delay; if there is none, the one
with the fewest hops. Joining itself is the same at every level, and at the beginning.

A central node sends its cluster's view to all members whenever it changes: who leads, the successors, the central
node's own parent, and the successors in higher clusters that it leads. So every member knows what to do when the
central node is gone.

Messages may be late by far more than an agent's patience, and several hosts may go at once. So heartbeats find what
went wrong unnoticed, whatever it was: every so often a device sends one of its neighbours a beacon (two trees that do
not know of each other do have neighbours somewhere) and a heartbeat to its central nodes (one may have struck off a
member that is there), and a central node without a parent looks for one again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from espalier.core.messages import Word
from espalier.methods.easf.dsf.base import AgentBase
from espalier.methods.easf.dsf.formulas import Tally, choose_cluster, pooled
from espalier.methods.easf.dsf.messages import (
    CLUSTER_INFO,
    CLUSTER_QUERY,
    HEARTBEAT,
    JOIN,
    JOIN_ACCEPTED,
    JOIN_REDIRECT,
    LEAVE,
    REDIRECT,
    Phase,
    TimerKey,
)
from espalier.methods.easf.dsf.state import NOBODY, ClusterView

#: patiences between two heartbeats
HEARTBEAT_PATIENCES = 50


class Membership(AgentBase):
    """How members find, join and leave clusters, and what central nodes tell them."""

    __slots__ = ()

    # -- a newcomer ------------------------------------------------------------------------------------------------

    def query_clusters(self) -> None:
        """Ask the neighbours' central nodes how large their clusters are, and what data they have."""
        self.discovery.phase = Phase.QUERY
        self.discovery.asked.clear()
        self._query(sorted(set(self.discovery.clustered.values())))
        self.set_timer(TimerKey.QUERY, 1 + self.discovery.attempt)

    def _query(self, centres: Iterable[int]) -> None:
        """Ask central nodes, unless they were asked before."""
        found = self.discovery
        for centre in centres:
            if centre != self.me and centre not in found.asked and not self.is_gone(centre):
                found.asked.add(centre)
                found.queried[centre] = None
                self.send(CLUSTER_QUERY, centre)

    def on_cluster_query(self, word: Word) -> None:
        """Tell a newcomer of the cluster that this device leads, or who leads it."""
        cluster = self.led.get(0)
        if cluster is not None:
            tally, mean = cluster.tally, self.state.mean_statistic
            above = self.views.get(1)
            others = {*self.around.adjacent.values(), *([] if above is None else above.successors)}
            self.send(
                CLUSTER_INFO, word.sender, devices=tally.size, statistic_sum=tally.total, mean_statistic=mean,
                others=sorted(others),
            )  # fmt: skip
        else:
            self.send(JOIN_REDIRECT, word.sender, level=0, centre=self.leader(0))

    def on_cluster_info(self, word: Word) -> None:
        """Note what a central node answered; pick once all have."""
        found = self.discovery
        if found.phase != Phase.QUERY or word.sender not in found.queried:
            return
        found.queried[word.sender] = (word.data["devices"], tuple(word.data["statistic_sum"]))
        if word.data["mean_statistic"]:
            self.state.mean_statistic = tuple(word.data["mean_statistic"])
        self._query(c for c in word.data["others"] if self.hops(c) <= self.limits.hops)
        if None not in found.queried.values():
            self.pick_cluster(0)

    def pick_cluster(self, _: int) -> None:
        """Join by Algorithm 2 within the limits of hops and delay (without balance: the nearest); else fewest hops."""
        found, limits = self.discovery, self.limits
        if found.phase != Phase.QUERY:
            return
        known = {c: Tally(*told) for c, told in found.queried.items() if told is not None and not self.is_gone(c)}
        far = {c: (self.hops(c), self.delay(c), c) for c in known}
        near = {c: known[c] for c in known if far[c][0] <= limits.hops and far[c][1] <= limits.delay_seconds}
        if not known:
            self.discover(found.attempt + 1)
        elif not near:
            self.join(0, min(known, key=lambda c: far[c]))
        elif limits.balance is not None:
            mean = self.state.mean_statistic or pooled(known.values()).mean
            self.join(0, choose_cluster(near, self.statistic, mean))
        else:
            self.join(0, min(near, key=lambda c: (far[c][1], c)))

    # -- joining ---------------------------------------------------------------------------------------------------

    def join(self, level: int, host: int) -> None:
        """Ask a host for a place in the cluster of a level that it leads."""
        self.joining[level] = host
        self.memberships.accepted.discard(level)
        if level == 0:
            self.discovery.phase = Phase.JOIN
            self.discovery.queried.clear()
        self.send(JOIN, host, level=level, member=self.describe_self(level))
        self.set_timer(TimerKey.JOIN, 4, level)

    def on_join(self, word: Word) -> None:
        """Take a host in, or name who leads the cluster."""
        level, host = word.data["level"], word.sender
        if not self.answers(host):
            return
        cluster = self.led.get(level)
        if self.joining.get(level) == host and self.me < host:
            # Each has asked the other: one of them must stop.
            del self.joining[level]
            self.stop_timer(TimerKey.JOIN, level)
        if cluster is not None or level in self.elections:
            if cluster is None or not cluster.formed:
                self.send(JOIN_ACCEPTED, host, level=level)
            self.admit(level, host, word.data["member"])
        elif self.leader(level) == self.me or (level not in self.views and self.founds_tree(level)):
            # The election is still to come: either this device is the first successor, or nobody leads the tree yet.
            self.memberships.applicants.setdefault(level, {})[host] = self.member_info(host, word.data["member"])
            self.send(JOIN_ACCEPTED, host, level=level)
            if level not in self.views:
                self.set_timer(TimerKey.TREE, 3)
        else:
            self.send(JOIN_REDIRECT, host, level=level, centre=self.leader(level))

    def on_join_accepted(self, word: Word) -> None:
        """Wait for the cluster's view; or leave, if this device has joined another meanwhile."""
        level = word.data["level"]
        if self.joining.get(level) == word.sender:
            self.memberships.accepted.add(level)
            self.stop_timer(TimerKey.JOIN, level)
        elif level not in self.views or self.views[level].centre != word.sender:
            self.send(LEAVE, word.sender, level=level)

    def on_join_redirect(self, word: Word) -> None:
        """Whoever was asked (to take this device in, or how its cluster is) names somebody else."""
        level, centre = word.data["level"], word.data["centre"]
        fit, queried = centre != self.me and not self.is_gone(centre), self.discovery.queried
        if level == 0 and self.discovery.phase == Phase.QUERY and word.sender in queried:
            del queried[word.sender]
            if fit:
                self._query([centre])
            return
        if level in self.views or self.joining.get(level) != word.sender:
            return
        if fit:
            self.join(level, centre)
        else:
            self.set_timer(TimerKey.JOIN, 1, level)

    def on_redirect(self, word: Word) -> None:
        """Whoever led this device so far sends it to somebody else, or away."""
        level, centre = word.data["level"], word.data["centre"]
        view = self.views.get(level)
        led_by = NOBODY if view is None else view.centre
        initiator, _ = self.memberships.voted.get(level, (NOBODY, 0))
        orphan = view is not None and view.leaderless and word.sender in view.successors and not self.is_gone(centre)
        known = orphan or word.sender in (led_by, self.joining.get(level), initiator)
        if not known or (view is not None and centre == self.me):
            return  # not of its cluster; or it is to lead, and will be told how
        self.views.pop(level, None)
        if centre != self.me and not self.is_gone(centre):
            self.join(level, centre)
        else:
            self.find_place(level)

    def join_unanswered(self, level: int) -> None:
        """Look further if nobody has answered."""
        if level in self.joining and level not in self.views:
            self.find_place(level)

    def find_place(self, level: int) -> None:
        """This device has no place at a level after all: look for one."""
        self.views.pop(level, None)
        self.joining.pop(level, None)
        self.memberships.accepted.discard(level)
        self.stop_timer(TimerKey.JOIN, level)
        if level == 0:
            cluster = self.led.pop(0, None)
            if cluster is not None and cluster.formed:
                self.step_down(0, cluster.members, NOBODY)
            self.discover(1)
        else:
            self.around.oldest = None
            self.seek_next_parent(level)

    # -- at the central node ---------------------------------------------------------------------------------------

    def admit(self, level: int, host: int, data: dict[str, Any]) -> None:
        """Take a member in; a formed cluster's members learn it."""
        member = self.member_info(host, data)
        if level in self.elections:
            self.elections[level].members[host] = member
        cluster = self.led.get(level)
        if cluster is not None:
            cluster.members[host] = member
            if cluster.formed:
                self.announce(level)
                self._renew_view(level)
                self.send_view(level, host)

    def enrol(self, level: int, host: int, data: dict[str, Any]) -> bool:
        """Take in who takes this device for its central node, or for the first successor; False if it is neither."""
        led, view = self.led.get(level) or self.elections.get(level), self.views.get(level)
        if led is not None:
            if host not in led.members:
                self.admit(level, host, data)
        elif view is not None and view.leaderless:
            self.memberships.applicants.setdefault(level, {})[host] = self.member_info(host, data)
        else:
            return host in self.memberships.applicants.get(level, {})
        return True

    def on_leave(self, word: Word) -> None:
        """A node that was thought a member belongs elsewhere."""
        self.remove(word.data["level"], word.sender)

    def remove(self, level: int, host: int) -> None:
        """Strike a member off; a formed cluster's others learn it."""
        if level in self.elections:
            self.elections[level].members.pop(host, None)
            self.count_votes(level)
        self.memberships.applicants.get(level, {}).pop(host, None)
        cluster = self.led.get(level)
        if cluster is not None and cluster.members.pop(host, None) is not None and cluster.formed:
            self.announce(level)

    def announce(self, level: int) -> None:
        """Send the members a new view soon; those of lower clusters learn of the higher ones' successors."""
        for below, cluster in sorted(self.led.items()):
            if below <= level and cluster.formed:
                self.set_timer(TimerKey.ANNOUNCE, 0.5, below)

    def send_views(self, level: int) -> None:
        """Send all members the cluster's view."""
        cluster = self.led.get(level)
        if cluster is not None and cluster.formed:
            tree = self.views[level].tree
            view = self._renew_view(level)
            for host in view.successors[1:]:
                self.send_view(level, host)
            if level == 0 and view.tree != tree:
                self.beacon_tree()

    def _renew_view(self, level: int) -> ClusterView:
        """Bring the view of a cluster that this device leads up to date."""
        view, above = self.views[level], self.views.get(level + 1)
        others = (m for m in self.led[level].members if m != self.me)
        view.version += 1
        view.successors = [self.me, *sorted(others, key=lambda m: (self.delay(m), m))]
        view.parent = NOBODY if above is None else above.centre
        view.tree = view.tree if above is None else above.tree
        view.successors_above = {
            at: list(self.views[at].successors) for at in sorted(self.led) if at > level and at in self.views
        }
        return view

    # -- heartbeats ------------------------------------------------------------------------------------------------

    def start_heartbeat(self) -> None:
        """Set the timer of the next heartbeat."""
        self.set_timer(TimerKey.HEARTBEAT, HEARTBEAT_PATIENCES)

    def beat(self, _: int) -> None:
        """Tell a neighbour and all central nodes that this device is here."""
        if 0 not in self.views:
            return
        self.start_heartbeat()
        self.state.heartbeats += 1
        neighbours = self.neighbours()
        if neighbours:
            self.beacon_one(neighbours[self.state.heartbeats % len(neighbours)])
        for level, view in sorted(self.views.items()):
            if view.centre != self.me and not view.leaderless:
                self.send(HEARTBEAT, view.centre, level=level, member=self.describe_self(level))
        for level, host in sorted(self.joining.items()):
            self.send(HEARTBEAT, host, level=level, member=self.describe_self(level))
        self.seek_missing_parents()

    def on_heartbeat(self, word: Word) -> None:
        """Somebody takes this device for its central node."""
        level, host = word.data["level"], word.sender
        if not self.enrol(level, host, word.data["member"]):
            self.send(REDIRECT, host, level=level, centre=self.leader(level))

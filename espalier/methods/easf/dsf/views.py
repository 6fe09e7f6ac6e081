"""A device installs a view of its cluster: it follows the central node, or leads as such.

Two elections may be held at once when messages are slow. Views of a cluster are ordered by term, then by the smaller
number of the initiator, then by version: everybody ends with the same one, and a node that led by another steps down.
"""

from __future__ import annotations

from typing import Any

from espalier.core.address import role
from espalier.core.messages import ALL, Arrange, Report, Send, Word
from espalier.methods.easf.dsf.base import AgentBase
from espalier.methods.easf.dsf.messages import (
    BECOME_ROOT,
    ELECTED_EVENT,
    HEARTBEAT,
    JOINED_EVENT,
    LEAVE,
    MODEL_REQUEST,
    REDIRECT,
    RESET,
    Phase,
    TimerKey,
)
from espalier.methods.easf.dsf.state import NOBODY, ClusterView, LedCluster, MemberInfo

#: the most elections of the first root: then the training begins with whoever is there
MOST_ROOT_TERMS = 5


class ViewChange(AgentBase):
    """What follows from an election: views are installed, central nodes lead and step down, the root begins."""

    __slots__ = ()

    # -- installing a view -----------------------------------------------------------------------------------------

    def on_cluster_view(self, word: Word) -> None:
        """Take the view that a central node, an initiator or another member sends."""
        self.install_view(word.sender, word.data)

    def install_view(self, sender: int, data: dict[str, Any]) -> None:
        """Accept a view of a cluster, unless a newer one is known or this device belongs elsewhere."""
        level, centre = data["level"], data["centre"]
        if centre == self.me and "members" not in data and level not in self.led:
            return  # it is to lead: the initiator tells it how, and this message of another has overtaken that
        old = self.views.get(level)
        if old is not None and old.cluster == data["cluster"]:
            if not self._is_newer(sender, old, data):
                return
        elif self._is_foreign(sender, old, data):
            if centre != self.me:
                self.send(LEAVE, centre, level=level)
            return
        view = self._adopt(level, old, data)
        self._follow_up(sender, level, old, view, data)

    def _is_newer(self, sender: int, old: ClusterView, data: dict[str, Any]) -> bool:
        """Compare two views of one cluster; whoever goes by an older election is corrected."""
        elected, centre = (data["term"], -data["initiator"]), data["centre"]
        if (*elected, data["version"]) > (*old.elected, old.version):
            return True
        for host in sorted({centre, sender}) if elected < old.elected else [centre]:
            if host not in (old.centre, self.me):
                self.correct(data["level"], host)
        return False

    def _is_foreign(self, sender: int, old: ClusterView | None, data: dict[str, Any]) -> bool:
        """Tell whether a view is of a cluster that this device has neither joined nor voted in."""
        level, asked = data["level"], self.joining.get(data["level"])
        initiator, _ = self.memberships.voted.get(level, (NOBODY, 0))
        if sender in (self.me, asked, initiator) or data["centre"] == asked:
            return False
        return old is not None or asked is not None

    def _adopt(self, level: int, old: ClusterView | None, data: dict[str, Any]) -> ClusterView:
        """Make a view this device's own; elections, votes and requests that it settles are over."""
        successors = [h for h in data["successors"] if not self.is_gone(h)]
        view = self.views[level] = ClusterView(
            data["cluster"], data["term"], data["initiator"], data["version"], data["centre"], successors,
            data["parent"], dict(data["successors_above"]), data["is_root"], data["tree"], _still_leaderless(old, data),
        )  # fmt: skip
        self.state.mean_statistic = tuple(data["mean_statistic"])
        self.joining.pop(level, None)
        if view.term >= self.memberships.voted.get(level, (NOBODY, 0))[1]:
            self.memberships.voted.pop(level, None)
        self.memberships.accepted.discard(level)
        self.stop_timer(TimerKey.JOIN, level)
        self.stop_timer(TimerKey.SUCCESSION, level)
        if level in self.elections and self.elections[level].term <= view.term:
            del self.elections[level]
        if level == 0:
            self.discovery.phase, self.discovery.attempt, self.discovery.hellos = Phase.MEMBER, 0, 0
        return view

    def _follow_up(
        self, sender: int, level: int, old: ClusterView | None, view: ClusterView, data: dict[str, Any]
    ) -> None:
        """Lead or follow, and tell those whom the new view concerns."""
        centre, successors = view.centre, view.successors
        changed = old is None or old.centre != centre
        if old is not None and changed:
            self._correct_rival(sender, level, old, view.cluster)
        if centre != self.me:
            self._follow(level, centre, changed)
        elif "members" in data:
            self._lead(level, old, data)
        for host in sorted(self.memberships.applicants.pop(level, {})):
            if host not in successors and centre != self.me:
                self.send(REDIRECT, host, level=level, centre=centre)
        if level == 0 and data["tree"] not in (NOBODY, NOBODY if old is None else old.tree):
            self.beacon_tree()
        if changed:
            self._tell_change(level, data)
        dissolver, host = self.memberships.dissolved.pop(level, (NOBODY, NOBODY))
        if dissolver == centre != self.me:
            self.leave_dissolved(level, host)

    def _correct_rival(self, sender: int, level: int, old: ClusterView, cluster: int) -> None:
        """Who led the same cluster by another election may not know of this one."""
        if old.cluster == cluster and not old.leaderless and old.centre not in (self.me, sender):
            self.correct(level, old.centre)

    def _tell_change(self, level: int, data: dict[str, Any]) -> None:
        """This device has another central node: neighbours, the cluster below and other trees are to know."""
        self.record(JOINED_EVENT, level=level, centre=data["centre"], term=data["term"], messages=self.own.messages)
        if level == 0:
            self.start_heartbeat()
            if data["parent"] == NOBODY:
                self.beacon()
        if level - 1 in self.led and self.led[level - 1].formed:
            self.announce(level - 1)
        if level == 1:
            self.join_older_tree()

    # -- following and leading -------------------------------------------------------------------------------------

    def _follow(self, level: int, centre: int, changed: bool) -> None:
        cluster = self.led.pop(level, None)
        if cluster is not None and cluster.formed:
            self.step_down(level, cluster.members, centre)
        if changed:
            self.attach(level, centre)
        if centre not in self.state.lost and not self.answers(centre):
            self.host_lost(centre)
        elif self.views[level].leaderless or self.is_gone(centre):
            self.succeed(level)
        elif self.me not in self.views[level].successors:
            self.send(HEARTBEAT, centre, level=level, member=self.describe_self(level))

    def _lead(self, level: int, old: ClusterView | None, data: dict[str, Any]) -> None:
        """This device is the central node now: run the aggregator, find a parent for it, or be the root."""
        view = self.views[level]
        members = {m: self.member_info(m, about) for m, about in data["members"].items() if self.answers(m)}
        members.update({m: a for m, a in self.memberships.applicants.pop(level, {}).items() if self.answers(m)})
        self.led[level] = LedCluster(view.cluster, members, True, set(data["members"]))
        self.attach(level, self.me)
        self.record(ELECTED_EVENT, level=level, members=sorted(members), top=view.is_root, term=view.term)
        if set(members) != set(data["members"]):
            self.announce(level)
        if view.is_root:
            self._fetch_newest_model(level, data["newest_model"])
        elif level + 1 in self.views:
            return
        elif view.parent == self.me and level:
            # It is to lead there, too, and will be told how; or led there before it was away.
            self.set_timer(TimerKey.ORPHAN, 2)
        elif old is None and view.parent == NOBODY:
            self.await_tree()
        else:
            others = [] if old is None else old.successors_above.get(level + 1, [])
            self.seek_parent(level + 1, [view.parent, *others])

    def step_down(self, level: int, members: dict[int, MemberInfo], centre: int) -> None:
        """Another leads this cluster: send the members there, and leave the level above."""
        self.tell_head(level + 1, RESET)
        self.out.append(Arrange({role(self.me, level + 1): None}, {}))
        for host in sorted(members):
            if host != self.me:
                self.send(REDIRECT, host, level=level, centre=centre)
        self.joining.pop(level + 1, None)
        self.memberships.accepted.discard(level + 1)
        if level + 1 in self.led:
            self.remove(level + 1, self.me)  # it may go on to lead there
        elif level + 1 in self.views:
            self.send(LEAVE, self.views.pop(level + 1).centre, level=level + 1)

    # -- the root --------------------------------------------------------------------------------------------------

    def _fetch_newest_model(self, level: int, newest_model: tuple[int, int]) -> None:
        """Before this device's aggregator is the root: get the newest global model that any voter has seen."""
        model_round, holder = newest_model[0], -newest_model[1]
        if model_round > self.own.model_round and self.answers(holder):
            self.send(MODEL_REQUEST, holder, head=role(self.me, level + 1))
            self.set_timer(TimerKey.ROOT, 2, level, extra_seconds=2 * self.delay(holder))
        else:
            self.set_timer(TimerKey.ROOT, 2 if model_round >= 0 else 4, level)

    def on_model_request(self, word: Word) -> None:
        """Send the newest global model to a new root's aggregator."""
        own, to = self.own, word.data["head"]
        if own.model is not None:
            models, stats = {ALL: own.model}, {"root_round": own.model_round}
            self.out.append(
                Send(Report(0, to, self.me, to, models, {ALL: 0}, 0, own.model_round, self.now, stats=stats))
            )

    def begin_root(self, level: int) -> None:
        """Let this device's aggregator begin as the root."""
        if level not in self.led or not self.views[level].is_root:
            return
        cluster, view = self.led[level], self.views[level]
        if not set(cluster.members) <= cluster.voters and view.term < MOST_ROOT_TERMS:
            # Others have come before the training begins: they have a say, too.
            self.hold_election(level, view.cluster, view.term + 1, dict(cluster.members), True, view.tree)
        else:
            self.tell_head(level + 1, BECOME_ROOT, round=max(0, self.own.model_round), model=self.own.model)


def _still_leaderless(old: ClusterView | None, data: dict[str, Any]) -> bool:
    """Tell whether a view is the last message of a central node that is known to be gone."""
    if old is None or not old.leaderless:
        return False
    new = (data["cluster"], data["term"], data["initiator"], data["centre"])
    return new == (old.cluster, old.term, old.initiator, old.centre)

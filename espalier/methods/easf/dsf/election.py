"""A cluster elects its central node (Eq. 1): at first, and again whenever its central node is gone.

Somebody holds the election, the initiator: at first the node that gathered the cluster, later the first successor that
is still there. It asks the members for their votes, which are their delays to each other; the smallest sum wins among
those that may aggregate. All members get the cluster's view, and from then on the winner leads.

Succession: when a central node is gone the other members see to it, each after a while of its own, that the first
successor holds an election. They let it know of them: it may not have heard of the latest members, or it may have been
away and no longer know the cluster; then it is passed over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from espalier.core.messages import Word
from espalier.methods.easf.dsf.base import AgentBase, described
from espalier.methods.easf.dsf.formulas import Delays, central_node, cluster_levels
from espalier.methods.easf.dsf.messages import (
    CLUSTER_VIEW,
    LEAVE,
    NOT_A_MEMBER,
    REDIRECT,
    SUCCEED,
    VOTE,
    VOTE_REQUEST,
    TimerKey,
)
from espalier.methods.easf.dsf.state import NOBODY, ClusterView, HeldElection, MemberInfo, tally_of

#: in the place of the delay to a host that cannot be reached
UNREACHABLE_SECONDS = 1e9


class Election(AgentBase):
    """Elections, and the succession of central nodes that are gone."""

    __slots__ = ()

    # -- voting ----------------------------------------------------------------------------------------------------

    def hold_election(
        self, level: int, cluster: int, term: int, members: dict[int, MemberInfo], is_root: bool, tree: int
    ) -> None:
        """Ask every member for its delays to the others."""
        electorate = sorted(members)
        election = self.elections[level] = HeldElection(cluster, term, is_root, tree, members, electorate)
        for host in electorate:
            if host != self.me:
                self.send(VOTE_REQUEST, host, level=level, cluster=cluster, term=term, electorate=electorate)
        election.delays[self.me] = self._delays(electorate)
        election.model_rounds[self.me] = self.own.model_round
        members[self.me] = self.member_info(self.me, self.describe_self(level))
        self.set_timer(TimerKey.VOTE, 4, level)
        self.count_votes(level)

    def _delays(self, electorate: list[int]) -> dict[int, float]:
        return {host: min(self.delay(host), UNREACHABLE_SECONDS) for host in electorate}

    def on_vote_request(self, word: Word) -> None:
        """Vote, unless the election is over, of another cluster, or comes after this device's own."""
        level, initiator, term = word.data["level"], word.sender, word.data["term"]
        view = self.views.get(level)
        if view is not None and view.cluster == word.data["cluster"] and term <= view.term:
            if initiator != view.initiator:
                self.correct(level, initiator)  # it does not know that the election is over
            return
        if self._belongs_elsewhere(level, word):
            self.send(LEAVE, initiator, level=level)
            return
        if self._holds_prior_election(level, word):
            return
        self.elections.pop(level, None)
        self.memberships.voted[level] = (initiator, term)
        self.send(
            VOTE, initiator, level=level, term=term, delays=self._delays(word.data["electorate"]),
            member=self.describe_self(level), model_round=self.own.model_round,
        )  # fmt: skip
        self.set_timer(TimerKey.SUCCESSION, 8, level)

    def _belongs_elsewhere(self, level: int, request: Word) -> bool:
        view = self.views.get(level)
        if view is not None:
            return bool(view.cluster != request.data["cluster"])
        return self.joining.get(level, request.sender) != request.sender

    def _holds_prior_election(self, level: int, request: Word) -> bool:
        """Tell whether this device holds an election that comes first; the other initiator hears of it."""
        own, initiator = self.elections.get(level), request.sender
        if own is None or (own.term, -self.me) <= (request.data["term"], -initiator):
            return False
        if initiator not in own.members:
            own.members[initiator] = MemberInfo(0)
            own.electorate = [*own.electorate, initiator]
            asked = {"cluster": request.data["cluster"], "term": own.term, "electorate": own.electorate}
            self.send(VOTE_REQUEST, initiator, level=level, **asked)
        return True

    def on_vote(self, word: Word) -> None:
        """Take a member's vote."""
        level = word.data["level"]
        election = self.elections.get(level)
        if election is None or election.term != word.data["term"] or word.sender not in election.members:
            return
        election.members[word.sender] = self.member_info(word.sender, word.data["member"])
        election.delays[word.sender] = word.data["delays"]
        election.model_rounds[word.sender] = word.data["model_round"]
        self.count_votes(level)

    def count_votes(self, level: int) -> None:
        """Decide once every member that was asked has voted or is gone."""
        election = self.elections[level]
        if all(m in election.delays for m in election.members if m in election.electorate):
            self.decide(level)

    # -- the outcome -----------------------------------------------------------------------------------------------

    def decide(self, level: int) -> None:
        """Pick the central node among those that voted; who did not stays a member."""
        election = self.elections.pop(level, None)
        if election is None:
            return
        self.stop_timer(TimerKey.VOTE, level)
        voters = sorted(m for m in election.members if m in election.delays)
        # A vote may be for an earlier election of this device in the same term, with other members.
        delays = np.array([[election.delays[m].get(o, UNREACHABLE_SECONDS) for o in voters] for m in voters])
        if election.is_root and len(voters) > self.limits.width:
            self._decide_levels(election, voters, delays)
            return
        winner = central_node(voters, delays, [election.members[m].able for m in voters])
        if winner is None:
            self._send_away(level, election)
            return
        absent = sorted(m for m in election.members if m not in election.delays)
        parent = self.views[level].parent if level in self.views else NOBODY
        self._publish(level, election, winner, [*_by_delay(voters, winner, voters, delays), *absent], parent)

    def _send_away(self, level: int, election: HeldElection) -> None:
        """Nobody may lead: everybody looks for another cluster."""
        for host in sorted(election.members):
            if host != self.me:
                self.send(REDIRECT, host, level=level, centre=NOBODY)
        self.find_place(level)

    def _decide_levels(self, election: HeldElection, voters: list[int], delays: Delays) -> None:
        """Many central nodes: cluster them, and their central nodes again, until few enough are left for one root."""
        near = {m: set(election.members[m].near) for m in voters}
        found = cluster_levels(voters, delays, near, self.limits.width)
        centre_of = [{m: centre for centre, cluster in level.items() for m in cluster} for level in found]
        members = [election.members]
        for level in found:
            members.append({c: _sum({m: members[-1][m] for m in cluster}) for c, cluster in level.items()})
        # From the root down: whoever leads a cluster has its own place above it by then.
        for number, level in reversed(list(enumerate(found))):
            is_root = number == len(found) - 1
            for centre, cluster in level.items():
                name = election.tree if is_root else self.new_name() - self.me + centre
                part = HeldElection(
                    name, election.term, is_root, election.tree, {m: members[number][m] for m in cluster}, cluster,
                    model_rounds=election.model_rounds,
                )  # fmt: skip
                successors = _by_delay(cluster, centre, voters, delays)
                parent = NOBODY if is_root else centre_of[number + 1][centre]
                self._publish(number + 1, part, centre, successors, parent)

    def _publish(self, level: int, election: HeldElection, winner: int, successors: list[int], parent: int) -> None:
        """Send all members the cluster's view; the winner also gets what it needs to lead."""
        if level > 0 and election.is_root:
            self.state.mean_statistic = tally_of(election.members).mean
        view = ClusterView(
            election.cluster, election.term, self.me, 1, winner, successors, parent, {}, election.is_root, election.tree
        )  # fmt: skip
        sent = self.describe_view(level, view)
        rounds = ((number, -m) for m, number in election.model_rounds.items() if m in election.members)
        to_winner: dict[str, Any] = {
            "members": {m: described(member) for m, member in election.members.items()},
            "newest_model": max(rounds, default=(-1, 0)),
        }
        for host in successors:
            if host != self.me:
                self.send(CLUSTER_VIEW, host, **sent, **(to_winner if host == winner else {}))
        if self.me in successors:
            self.install_view(self.me, {**sent, **(to_winner if self.me == winner else {})})

    # -- succession ------------------------------------------------------------------------------------------------

    def succeed(self, level: int) -> None:
        """The central node is gone: hold an election if this is the first successor, else see that somebody does."""
        view = self.views[level]
        view.leaderless = True
        if level in self.elections:
            return
        line = [h for h in view.successors if self.answers(h)]
        rank = line.index(self.me) if self.me in line else len(line)
        if rank == 0 and level == 0:
            self._elect_successor(level)
            return
        if rank and line:
            # It may have come so late that the first successor has not heard of it; or that one has been away.
            self.send(SUCCEED, line[0], level=level, cluster=view.cluster, member=self.describe_self(level))
        # Above level 0 the gone node's own cluster sends its successor first, to be voted on too.
        self.set_timer(TimerKey.SUCCESSION, 4 * rank + (2 if level else 0), level)

    def on_succeed(self, word: Word) -> None:
        """A member of a cluster whose central node is gone takes this device for the first successor."""
        level, host = word.data["level"], word.sender
        view = self.views.get(level)
        if view is None or view.cluster != word.data["cluster"]:
            self.send(NOT_A_MEMBER, host, level=level)
            return
        if not view.leaderless and not self.answers(view.centre):
            self.host_lost(view.centre)
        if not self.enrol(level, host, word.data["member"]) and level in self.views:
            self.correct(level, host)

    def on_not_a_member(self, word: Word) -> None:
        """The first successor is of this cluster no more (it was away, and has forgotten it): pass it over."""
        level = word.data["level"]
        view = self.views.get(level)
        if view is not None and view.leaderless and word.sender in view.successors:
            view.successors.remove(word.sender)
            if level not in self.memberships.voted:
                self.succeed(level)

    def succession_due(self, level: int) -> None:
        """Nobody has held the election: do so, unless somebody may have and is gone."""
        view = self.views.get(level)
        if view is None or level in self.elections or not view.leaderless:
            return
        if self.memberships.voted.pop(level, None) is not None:
            self.succeed(level)  # the initiator may be gone unnoticed
            return
        self._elect_successor(level)

    def _elect_successor(self, level: int) -> None:
        view = self.views[level]
        members = {h: MemberInfo(0) for h in [*view.successors, self.me] if not self.is_gone(h)}
        members.update(self.memberships.applicants.pop(level, {}))
        self.hold_election(level, view.cluster, view.term + 1, members, view.is_root, view.tree)


def _by_delay(members: list[int], centre: int, voters: list[int], delays: Delays) -> list[int]:
    """Return members in the order of succession: the central node, then by delay from it."""
    row = delays[voters.index(centre)]
    return sorted(members, key=lambda m: (m != centre, row[voters.index(m)], m))


def _sum(members: dict[int, MemberInfo]) -> MemberInfo:
    tally = tally_of(members)
    return MemberInfo(tally.size, tally.total)

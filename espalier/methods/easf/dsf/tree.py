"""How clusters learn of each other, and how central nodes find a parent, up to the root.

Devices send their neighbours beacons: their cluster, its central node, its tree. Whoever hears of another cluster tells
its own central node; so central nodes of adjacent clusters learn of each other, and pass on the name of the oldest tree
they know (each begins as a tree of its own). Should two trees have come about, the younger dissolves into the older.

At the beginning there is no tree: once nothing new is heard of other clusters, all join the central node that the
oldest known tree is named after, and it holds the election of the root. Later a central node is replaced: its successor
asks the old one's parent for its place, or, if that was the same host, the others that it led. If all of them are gone
it lets its members look around again.
"""

from __future__ import annotations

from espalier.core.messages import Word
from espalier.methods.easf.dsf.base import AgentBase
from espalier.methods.easf.dsf.messages import (
    ADJACENT,
    BEACON,
    DISSOLVED,
    OLDEST_TREE,
    REDIRECT,
    RESET,
    SEND_BEACONS,
    TREE_QUERY,
    TimerKey,
)
from espalier.methods.easf.dsf.state import NOBODY

#: hosts that a `TREE_QUERY` passes on its way to the central node that answers it
MOST_RELAYS = 3
#: what a `BEACON` asks of its receiver: nothing; a beacon unless it has sent one before; a beacon in any case
NO_ANSWER, NEW_ANSWER, ANY_ANSWER = 0, 1, 2


class TreeMaintenance(AgentBase):
    """Beacons, adjacent clusters, the oldest tree, parents."""

    __slots__ = ()

    # -- beacons between neighbours --------------------------------------------------------------------------------

    def beacon(self, again: bool = False) -> None:
        """Tell the neighbours of this device's cluster, and its central node of other clusters it has heard of."""
        view, around = self.views.get(0), self.around
        if view is None:
            return
        if again:
            around.beaconed.clear()
            around.beacons.clear()
        for other in self.neighbours():
            if around.beaconed.get(other) != view.centre:
                self._beacon(other, ANY_ANSWER if again else NEW_ANSWER)
        heard = around.beacons.values()
        self._tell_adjacent({cluster: centre for cluster, centre, _ in heard if cluster not in (NOBODY, view.cluster)})

    def beacon_tree(self) -> None:
        """This device's cluster is in a tree now: tell neighbours that are not known to be in the same one."""
        beacons, tree = self.around.beacons, self.views[0].tree
        for other in self.neighbours():
            if other not in beacons or beacons[other][2] != tree:
                self._beacon(other, NO_ANSWER)

    def beacon_one(self, neighbour: int) -> None:
        """Tell one neighbour, and see its own beacon."""
        self._beacon(neighbour, ANY_ANSWER)

    def _beacon(self, other: int, ask: int) -> None:
        view = self.views[0]
        self.around.beaconed[other] = view.centre
        self.send(BEACON, other, cluster=view.cluster, centre=view.centre, tree=view.tree, ask=ask)

    def on_beacon(self, word: Word) -> None:
        """Hear of a neighbour's cluster and tree."""
        cluster, centre, ask = word.data["cluster"], word.data["centre"], word.data["ask"]
        self.around.beacons[word.sender] = (cluster, centre, word.data["tree"])
        view = self.views.get(0)
        if view is not None and view.cluster == cluster and centre not in (view.centre, self.me):
            self.correct(0, centre)
        if view is None or view.cluster == cluster:
            return
        if ask == ANY_ANSWER or (ask == NEW_ANSWER and self.around.beaconed.get(word.sender) != view.centre):
            self._beacon(word.sender, NO_ANSWER)
        if view.tree == NOBODY or view.tree != word.data["tree"]:
            self._tell_adjacent({cluster: centre})

    # -- adjacent clusters -----------------------------------------------------------------------------------------

    def _tell_adjacent(self, others: dict[int, int]) -> None:
        if not others:
            return
        if 0 in self.led:
            self._note_adjacent(others)
        elif not self.views[0].leaderless:
            self.send(ADJACENT, self.views[0].centre, others=others)

    def on_adjacent(self, word: Word) -> None:
        """A member has heard of other clusters."""
        if 0 in self.views:
            self._tell_adjacent(word.data["others"])

    def _note_adjacent(self, others: dict[int, int]) -> None:
        adjacent = self.around.adjacent
        for cluster, centre in sorted(others.items()):
            if cluster != self.led[0].cluster and centre != self.me:
                # Within a tree only another tree's clusters are told of; before, each cluster once.
                if 1 in self.views or adjacent.get(cluster) != centre:
                    self._tell_oldest_tree(centre)
                adjacent[cluster] = centre

    # -- the oldest tree -------------------------------------------------------------------------------------------

    def _oldest_tree(self) -> tuple[int, int]:
        """Return the oldest tree that this central node knows: its name, and whom to join there."""
        around = self.around
        if 1 in self.views:
            return self.views[1].tree, self.views[1].centre
        if around.own_tree == NOBODY:
            around.own_tree = self.new_name()
        own = (around.own_tree, self.me)
        return own if around.oldest is None or self.is_gone(around.oldest[1]) else min(own, around.oldest)

    def founds_tree(self, level: int) -> bool:
        """Tell whether this central node holds the election of the root of a tree that is yet to be."""
        return level == 1 and 0 in self.led and self._oldest_tree()[1] == self.me

    def _tell_oldest_tree(self, host: int) -> None:
        """Tell of the oldest tree: surely, if this central node is in it or names it; else it has only heard of it."""
        tree, centre = self._oldest_tree()
        self.send(OLDEST_TREE, host, tree=tree, centre=centre, sure=1 in self.views or centre == self.me)

    def on_oldest_tree(self, word: Word) -> None:
        """Hear of another tree: tell its teller of an older one, or go by it if it is older than the one known."""
        tree, centre = word.data["tree"], word.data["centre"]
        if 0 not in self.led:
            host = self.leader(0)
            if host not in (NOBODY, self.me, word.sender):
                self.send(OLDEST_TREE, host, tree=tree, centre=centre, sure=False)
            return
        known, _ = self._oldest_tree()
        if tree == known or self.is_gone(centre) or centre == self.me:
            return
        if tree > known:
            self._tell_oldest_tree(word.sender)
        elif not word.data["sure"]:
            # News of a tree may be older than its end: a node that is said to be in it is asked.
            self.send(TREE_QUERY, centre, asker=self.me, relays=MOST_RELAYS)
        else:
            self.around.oldest = (tree, centre)
            if 1 in self.views:
                self.join_older_tree()
            else:
                self._spread_oldest_tree(centre, word.sender)

    def _spread_oldest_tree(self, centre: int, teller: int) -> None:
        """An older tree is known: adjacent clusters, and who would have joined this device's, are to join that."""
        for host in sorted(set(self.around.adjacent.values()) - {teller}):
            self._tell_oldest_tree(host)
        for host in sorted(self.memberships.applicants.pop(1, {})):
            self.send(REDIRECT, host, level=1, centre=centre)
        self.set_timer(TimerKey.TREE, 2)

    def on_tree_query(self, word: Word) -> None:
        """Somebody asks which tree this device's cluster is in: its central node answers."""
        asker, relays = word.data["asker"], word.data["relays"]
        if 0 in self.led:
            self._tell_oldest_tree(asker)
        elif relays and (host := self.leader(0)) not in (NOBODY, self.me):
            self.send(TREE_QUERY, host, asker=asker, relays=relays - 1)

    def join_older_tree(self) -> None:
        """Being in a tree while another is known: the younger one's members learn of it, and its root dissolves it."""
        around = self.around
        if around.oldest is None or self.is_gone(around.oldest[1]) or around.oldest[0] == self.views[1].tree:
            return
        (tree, centre), around.oldest = around.oldest, None
        if tree > self.views[1].tree:
            self._tell_oldest_tree(centre)
            return
        highest = max(self.views)
        if highest in self.led:
            self._dissolve(highest, centre)
        else:
            self.send(OLDEST_TREE, self.views[highest].centre, tree=tree, centre=centre, sure=False)

    # -- giving a cluster up ---------------------------------------------------------------------------------------

    def _dissolve(self, level: int, host: int) -> None:
        """Give up a cluster of level 1 or more that this device leads: its members join another tree, or seek one."""
        cluster = self.led.pop(level, None)
        if cluster is None:
            return
        self.tell_head(level + 1, RESET)
        for member in sorted(cluster.members):
            if member != self.me:
                self.send(DISSOLVED, member, level=level, host=host)
        self.leave_dissolved(level, host)

    def on_dissolved(self, word: Word) -> None:
        """The central node has given the cluster up."""
        level, view = word.data["level"], self.views.get(word.data["level"])
        if view is not None and view.centre == word.sender:
            self.leave_dissolved(level, word.data["host"])
        elif level in self.memberships.voted:
            # The message that it leads at all is still on its way.
            self.memberships.dissolved[level] = (word.sender, word.data["host"])

    def leave_dissolved(self, level: int, host: int) -> None:
        """Give up a place in a cluster that was dissolved: join another tree, or look for one."""
        self.views.pop(level, None)
        if level > 1:
            if level - 1 in self.led:
                self._dissolve(level - 1, host)
        elif 0 in self.led:
            self.seek_parent(1, [] if host == NOBODY else [host])

    # -- finding a parent ------------------------------------------------------------------------------------------

    def orphan_due(self, _: int) -> None:
        """A cluster should have a parent by now."""
        self.seek_missing_parents()

    def seek_missing_parents(self) -> None:
        """See that every cluster this device leads has a parent, or somebody who was asked for one."""
        for level, cluster in sorted(self.led.items()):
            if not cluster.formed or self.views[level].is_root or level + 1 in self.views:
                continue
            if level + 1 not in self.joining and level + 1 not in self.elections:
                self.seek_parent(level + 1, [])
                return

    def seek_parent(self, level: int, candidates: list[int]) -> None:
        """Ask for a place at a level: the candidates one after another; else look for a tree."""
        self.memberships.parent_candidates[level] = list(candidates)
        self.seek_next_parent(level)

    def seek_next_parent(self, level: int) -> None:
        """Ask the next candidate; without any, give the cluster below up, or look around."""
        candidates = self.memberships.parent_candidates.get(level, [])
        while candidates:
            host = candidates.pop(0)
            if host != self.me and not self.is_gone(host) and self.answers(host):
                self.join(level, host)
                return
        if level > 1:
            self._dissolve(level - 1, NOBODY)
        elif 0 in self.led:
            self._look_around()

    def _look_around(self) -> None:
        """Let the members send beacons again, and wait for what they hear."""
        self.around.oldest = None
        self.around.adjacent.clear()
        self.views[0].tree = NOBODY
        self.await_tree()
        for member in sorted(self.led[0].members):
            if member != self.me:
                self.send(SEND_BEACONS, member)
        self.beacon(again=True)

    def on_send_beacons(self, word: Word) -> None:
        """The central node has no parent: see which clusters there are."""
        view = self.views.get(0)
        if view is not None and view.centre == word.sender:
            view.tree = NOBODY  # others of the tree that it was in are to tell where it is
        self.beacon(again=True)

    def await_tree(self) -> None:
        """A central node without a parent waits for what its members tell of other clusters."""
        self.around.own_tree = self.new_name()
        self.set_timer(TimerKey.TREE, 3)

    def tree_settled(self, _: int) -> None:
        """Nothing has been heard for a while: join the oldest tree known, or, being its name, elect its root."""
        if 0 not in self.led or 1 in self.views or 1 in self.joining or 1 in self.elections:
            return
        tree, host = self._oldest_tree()
        if host != self.me:
            self.join(1, host)
            return
        members = {m: a for m, a in self.memberships.applicants.pop(1, {}).items() if self.answers(m)}
        members[self.me] = self.member_info(self.me, self.describe_self(1))
        self.hold_election(1, tree, 1, members, is_root=True, tree=tree)

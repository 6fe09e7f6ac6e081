"""How clusters learn of each other, and of each other's trees.

Devices show their neighbours a badge: their cluster, its central node, its tree. Whoever sees another cluster's badge
tells its own central node; so central nodes that adjoin learn of each other, and pass on the name of the oldest tree
they know (each begins as a tree of its own). Should two trees have come about, the younger dissolves into the older.
"""

from __future__ import annotations

from espalier.core.messages import Word
from espalier.methods.easf.dsf import ascent, membership, seats
from espalier.methods.easf.dsf.agent import Agent, on_word
from espalier.methods.easf.dsf.state import NONE

#: hosts that a question passes on its way to the central node that answers it
RELAYS = 3

# -- who adjoins whom ----------------------------------------------------------------------------------------


def show_badge(agent: Agent, again: bool = False) -> None:
    """Show the neighbours this device's cluster, and tell its central node of other clusters it has seen."""
    state = agent.state
    seat = state.seats.get(0)
    if seat is None:
        return
    if again:
        state.badged.clear()
        state.badges.clear()
    for other in agent.neighbours():
        if state.badged.get(other) != seat.centre:
            _badge(agent, other, ask=2 if again else 1)
    seen = state.badges.values()
    _tell_borders(agent, {cluster: centre for cluster, centre, _ in seen if cluster not in (NONE, seat.cluster)})


def show_tree(agent: Agent) -> None:
    """This device's cluster is in a tree now: let neighbours know that are not known to be in the same one."""
    state, tree = agent.state, agent.state.seats[0].tree
    for other in agent.neighbours():
        if other not in state.badges or state.badges[other][2] != tree:
            _badge(agent, other, ask=0)


def greet_neighbour(agent: Agent, other: int) -> None:
    """Show one neighbour the badge, to see its own."""
    _badge(agent, other, ask=2)


def _badge(agent: Agent, other: int, ask: int) -> None:
    """Show a neighbour the badge: 0 wants no answer, 1 an answer unless it was given before, 2 one in any case."""
    seat = agent.state.seats[0]
    agent.state.badged[other] = seat.centre
    agent.send("badge", other, cluster=seat.cluster, centre=seat.centre, tree=seat.tree, ask=ask)


@on_word("badge")
def _see_badge(agent: Agent, word: Word) -> None:
    state, cluster, centre = agent.state, word.data["cluster"], word.data["centre"]
    state.badges[word.sender] = (cluster, centre, word.data["tree"])
    seat = state.seats.get(0)
    if seat is not None and seat.cluster == cluster and centre not in (seat.centre, agent.me):
        seats.correct(agent, 0, centre)
    if seat is None or seat.cluster == cluster:
        return
    if word.data["ask"] == 2 or (word.data["ask"] == 1 and state.badged.get(word.sender) != seat.centre):
        _badge(agent, word.sender, ask=0)
    if seat.tree == NONE or seat.tree != word.data["tree"]:
        _tell_borders(agent, {cluster: centre})


def _tell_borders(agent: Agent, others: dict[int, int]) -> None:
    if not others:
        return
    if 0 in agent.state.courts:
        _note_borders(agent, others)
    elif not agent.state.seats[0].vacant:
        agent.send("border", agent.state.seats[0].centre, others=others)


@on_word("border")
def _border(agent: Agent, word: Word) -> None:
    if 0 in agent.state.seats:
        _tell_borders(agent, word.data["others"])


def _note_borders(agent: Agent, others: dict[int, int]) -> None:
    state = agent.state
    for cluster, centre in sorted(others.items()):
        if cluster != state.courts[0].cluster and centre != agent.me:
            # Within a tree only another tree's clusters are told of; before, each cluster once.
            if 1 in state.seats or state.borders.get(cluster) != centre:
                _tell_top(agent, centre)
            state.borders[cluster] = centre


# -- the oldest tree -----------------------------------------------------------------------------------------


def oldest(agent: Agent) -> tuple[int, int]:
    """Return the oldest tree that this central node knows: its name, and whom to join there."""
    state = agent.state
    if 1 in state.seats:
        return state.seats[1].tree, state.seats[1].centre
    if state.tree == NONE:
        state.tree = agent.name()
    own = (state.tree, agent.me)
    return own if state.top is None or agent.gone(state.top[1]) else min(own, state.top)


def coordinates(agent: Agent, level: int) -> bool:
    """Tell whether this central node holds the vote for the root of a tree that is yet to be."""
    return level == 1 and 0 in agent.state.courts and oldest(agent)[1] == agent.me


def _tell_top(agent: Agent, host: int) -> None:
    """Tell of the oldest tree: surely, if this central node is in it or names it; else it has only heard of it."""
    tree, centre = oldest(agent)
    agent.send("top", host, tree=tree, centre=centre, sure=1 in agent.state.seats or centre == agent.me)


@on_word("top")
def _hear_top(agent: Agent, word: Word) -> None:
    state, tree, centre = agent.state, word.data["tree"], word.data["centre"]
    if 0 not in state.courts:
        host = membership.leader(agent, 0)
        if host not in (NONE, agent.me, word.sender):
            agent.send("top", host, tree=tree, centre=centre, sure=False)
        return
    mine = oldest(agent)
    if tree == mine[0] or agent.gone(centre) or centre == agent.me:
        return
    if tree > mine[0]:
        _tell_top(agent, word.sender)
    elif not word.data["sure"]:
        # Trees dissolve, and rumours of them outlive them: whoever is said to be in it must know.
        agent.send("who", centre, asker=agent.me, relays=RELAYS)
    elif 1 in state.seats:
        state.top = (tree, centre)
        reconsider(agent)
    else:
        state.top = (tree, centre)
        for host in sorted(set(state.borders.values()) - {word.sender}):
            _tell_top(agent, host)
        for host in sorted(state.pending.pop(1, {})):
            agent.send("follow", host, level=1, centre=centre)
        agent.timer("climb", 2)


@on_word("who")
def _who(agent: Agent, word: Word) -> None:
    """Somebody asks which tree this device's cluster is in: its central node answers."""
    asker, relays = word.data["asker"], word.data["relays"]
    if 0 in agent.state.courts:
        _tell_top(agent, asker)
    elif relays and (host := membership.leader(agent, 0)) not in (NONE, agent.me):
        agent.send("who", host, asker=asker, relays=relays - 1)


def reconsider(agent: Agent) -> None:
    """Being in a tree while another is known: a younger one's must learn of this, and dissolve; or this one's root."""
    state = agent.state
    if state.top is None or agent.gone(state.top[1]) or state.top[0] == state.seats[1].tree:
        return
    (tree, centre), state.top = state.top, None
    if tree > state.seats[1].tree:
        _tell_top(agent, centre)
        return
    highest = max(state.seats)
    if highest in state.courts:
        dissolve(agent, highest, centre)
    else:
        agent.send("top", state.seats[highest].centre, tree=tree, centre=centre, sure=False)


def dissolve(agent: Agent, level: int, host: int) -> None:
    """Give up a cluster of level 1 or more that this device leads: its members join another tree, or look for one."""
    court = agent.state.courts.pop(level, None)
    if court is None:
        return
    agent.tell_head(level + 1, "retire")
    for member in sorted(court.members):
        if member != agent.me:
            agent.send("dissolved", member, level=level, host=host)
    leave(agent, level, host)


@on_word("dissolved")
def _dissolved(agent: Agent, word: Word) -> None:
    level = word.data["level"]
    state = agent.state
    seat = state.seats.get(level)
    if seat is not None and seat.centre == word.sender:
        leave(agent, level, word.data["host"])
    elif level in state.polled:
        state.parted[level] = (word.sender, word.data["host"])  # the word that it leads at all is still on its way


def leave(agent: Agent, level: int, host: int) -> None:
    """Give up a place in a cluster that was dissolved: join another tree, or look for one."""
    state = agent.state
    state.seats.pop(level, None)
    if level > 1:
        if level - 1 in state.courts:
            dissolve(agent, level - 1, host)
    elif 0 in state.courts:
        ascent.climb(agent, 1, [] if host == NONE else [host])

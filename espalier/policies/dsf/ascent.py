"""How central nodes find a parent, up to the root.

At the beginning there is no tree. Devices show their neighbours which cluster they belong to, and tell their own
central node about others that adjoin; so central nodes learn of each other, and pass on the name of the oldest tree
they know (each begins as a tree of its own). Once that settles, all join the central node that the name stands for;
it holds the vote for the root. Should two trees have come about, the younger one dissolves into the older.

Later a central node is replaced: its successor asks the old one's parent for its place, or, if that was the same
host, the others that it led. If all of them are gone it lets its members look around again.
"""

from __future__ import annotations

from espalier.core.address import role
from espalier.core.messages import ALL, Report, Send, Word
from espalier.policies.dsf import assembly, founding
from espalier.policies.dsf.agent import Agent, on_timer, on_word
from espalier.policies.dsf.state import NONE

#: the most votes on the first root: then the training begins with whoever is there
VOTES = 5

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
        assembly.correct(agent, 0, centre)
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


def _top(agent: Agent) -> tuple[int, int]:
    """Return the oldest tree that this central node knows: its name, and whom to join there."""
    state = agent.state
    if 1 in state.seats:
        return state.seats[1].tree, state.seats[1].centre
    own = (state.tree, agent.me)
    return own if state.top is None or agent.gone(state.top[1]) else min(own, state.top)


def coordinates(agent: Agent, level: int) -> bool:
    """Tell whether this central node holds the vote for the root of a tree that is yet to be."""
    return level == 1 and 0 in agent.state.courts and _top(agent)[1] == agent.me


def _tell_top(agent: Agent, host: int) -> None:
    tree, centre = _top(agent)
    agent.send("top", host, tree=tree, centre=centre)


@on_word("top")
def _hear_top(agent: Agent, word: Word) -> None:
    state, tree, centre = agent.state, word.data["tree"], word.data["centre"]
    if 0 not in state.courts:
        host = assembly.leader(agent, 0)
        if host not in (NONE, agent.me, word.sender):
            agent.send("top", host, tree=tree, centre=centre)
        return
    mine = _top(agent)
    if tree == mine[0] or agent.gone(centre) or centre == agent.me:
        return
    if tree > mine[0]:
        _tell_top(agent, word.sender)
        return
    state.top = (tree, centre)
    if 1 in state.seats:
        reconsider(agent)
        return
    for host in sorted(set(state.borders.values()) - {word.sender}):
        _tell_top(agent, host)
    for host in sorted(state.pending.pop(1, {})):
        agent.send("follow", host, level=1, centre=centre)
    agent.timer("climb", 2)


def reconsider(agent: Agent) -> None:
    """Being in a tree while an older one is known: the root of this one must learn it, and dissolves it."""
    state = agent.state
    if state.top is None or agent.gone(state.top[1]) or state.top[0] >= state.seats[1].tree:
        return
    (tree, centre), state.top = state.top, None
    highest = max(state.seats)
    if highest in state.courts:
        dissolve(agent, highest, centre)
    else:
        agent.send("top", state.seats[highest].centre, tree=tree, centre=centre)


def dissolve(agent: Agent, level: int, host: int) -> None:
    """Give up a cluster of level 1 or more that this device leads: its members join another tree, or look for one."""
    court = agent.state.courts.pop(level)
    agent.tell_head(level + 1, "retire")
    for member in sorted(court.members):
        if member != agent.me:
            agent.send("dissolved", member, level=level, host=host)
    _leave(agent, level, host)


@on_word("dissolved")
def _dissolved(agent: Agent, word: Word) -> None:
    level = word.data["level"]
    seat = agent.state.seats.get(level)
    if seat is not None and seat.centre == word.sender:
        _leave(agent, level, word.data["host"])


def _leave(agent: Agent, level: int, host: int) -> None:
    state = agent.state
    state.seats.pop(level, None)
    if level > 1:
        if level - 1 in state.courts:
            dissolve(agent, level - 1, host)
    elif 0 in state.courts:
        climb(agent, 1, [] if host == NONE else [host])


# -- finding a parent ----------------------------------------------------------------------------------------


def headless(agent: Agent) -> None:
    """See that every cluster this device leads has a parent, or somebody who was asked for one."""
    state = agent.state
    for level, court in sorted(state.courts.items()):
        if not court.formed or state.seats[level].top or level + 1 in state.seats:
            continue
        if level + 1 not in state.wooing and level + 1 not in state.ballots:
            climb(agent, level + 1, [])
            return


def climb(agent: Agent, level: int, candidates: list[int]) -> None:
    """Ask for a place at a level: the candidates one after another; else look for a tree."""
    agent.state.climb[level] = list(candidates)
    _climb_on(agent, level)


def wait(agent: Agent) -> None:
    """A central node without a parent waits for what its members tell of other clusters."""
    agent.state.tree = agent.name()
    agent.timer("climb", 3)


def _climb_on(agent: Agent, level: int) -> None:
    state = agent.state
    candidates = state.climb.get(level, [])
    while candidates:
        host = candidates.pop(0)
        if host != agent.me and not agent.gone(host) and agent.answers(host):
            founding.join(agent, level, host)
            return
    if level > 1:
        dissolve(agent, level - 1, NONE)
    elif 0 in state.courts:
        _look_around(agent)


def _look_around(agent: Agent) -> None:
    """Let the members show their badges again, and wait for what they see."""
    state = agent.state
    state.top = None
    state.borders.clear()
    wait(agent)
    for member in sorted(state.courts[0].members):
        if member != agent.me:
            agent.send("scout", member)
    show_badge(agent, again=True)


@on_word("scout")
def _scout(agent: Agent, word: Word) -> None:
    show_badge(agent, again=True)


@on_timer("climb")
def _settled(agent: Agent, _: int) -> None:
    """Nothing has been heard for a while: join the oldest tree known, or, being its name, hold the vote."""
    state = agent.state
    if 0 not in state.courts or 1 in state.seats or 1 in state.wooing or 1 in state.ballots:
        return
    tree, host = _top(agent)
    if host != agent.me:
        founding.join(agent, 1, host)
        return
    members = {m: p for m, p in state.pending.pop(1, {}).items() if agent.answers(m)}
    members[agent.me] = assembly.myself(agent, 1)
    assembly.convene(agent, 1, tree, 1, members, top=True, tree=tree)


@on_word("moved")
def _moved(agent: Agent, word: Word) -> None:
    """Whoever was asked for a place names somebody else."""
    state, level, centre = agent.state, word.data["level"], word.data["centre"]
    fit = centre != agent.me and not agent.gone(centre)
    if level == 0 and state.phase == "ask" and word.sender in state.asked:
        del state.asked[word.sender]
        if fit and centre not in state.asked:
            state.asked[centre] = None
            agent.send("ask", centre)
        return
    if level in state.seats or state.wooing.get(level) != word.sender:
        return
    if fit:
        founding.join(agent, level, centre)
    else:
        agent.timer("join", 1, level)


@on_word("follow")
def _follow(agent: Agent, word: Word) -> None:
    """Whoever led this device so far sends it to somebody else, or away."""
    state, level, centre = agent.state, word.data["level"], word.data["centre"]
    seat = state.seats.get(level)
    led = NONE if seat is None else seat.centre
    organiser, _ = state.polled.get(level, (NONE, 0))
    if word.sender not in (led, state.wooing.get(level), organiser) or centre == agent.me:
        return  # not of its cluster; or it is to lead, and will be told how
    state.seats.pop(level, None)
    if not agent.gone(centre):
        founding.join(agent, level, centre)
    else:
        unseat(agent, level)


@on_timer("join")
def _unanswered(agent: Agent, level: int) -> None:
    if level not in agent.state.seats:
        unseat(agent, level)


def unseat(agent: Agent, level: int) -> None:
    """This device has no place at a level after all: look for one."""
    state = agent.state
    state.seats.pop(level, None)
    state.wooing.pop(level, None)
    state.welcomed.discard(level)
    if level == 0:
        court = state.courts.pop(0, None)
        if court is not None and court.formed:
            assembly.step_down(agent, 0, court, NONE)
        founding.greet(agent, 1)
    else:
        _climb_on(agent, level)


# -- the root ------------------------------------------------------------------------------------------------


def reign(agent: Agent, level: int, fresh: tuple[int, int]) -> None:
    """Let this device's aggregator be the root, with the newest model that any voter has seen."""
    clock, holder = fresh[0], -fresh[1]
    if clock > agent.state.clock and agent.answers(holder):
        agent.send("lend", holder, head=role(agent.me, level + 1))
        agent.timer("reign", 2, level, seconds=2 * agent.delay(holder))
    else:
        agent.timer("reign", 2 if clock >= 0 else 4, level)


@on_word("lend")
def _lend(agent: Agent, word: Word) -> None:
    state, to = agent.state, word.data["head"]
    if state.model is not None:
        report = Report(
            0, to, agent.me, to, {ALL: state.model}, {ALL: 0}, 0, state.clock, agent.now, stats={"clock": state.clock}
        )
        agent.out.append(Send(report))


@on_timer("reign")
def _begin(agent: Agent, level: int) -> None:
    state = agent.state
    if level not in state.courts or not state.seats[level].top:
        return
    court, seat = state.courts[level], state.seats[level]
    if not set(court.members) <= court.voters and seat.term < VOTES:
        # Others have come before the training begins: they have a say, too.
        assembly.convene(agent, level, seat.cluster, seat.term + 1, dict(court.members), True, seat.tree)
    else:
        agent.tell_head(level + 1, "reign", clock=max(0, state.clock), model=state.model)

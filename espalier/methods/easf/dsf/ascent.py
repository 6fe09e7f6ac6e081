"""How central nodes find a parent, up to the root.

At the beginning there is no tree: once nothing new is heard of other clusters, all join the central node that the
oldest known tree is named after, and it holds the vote for the root. Later a central node is replaced: its successor
asks the old one's parent for its place, or, if that was the same host, the others that it led. If all of them are gone
it lets its members look around again.
"""

from __future__ import annotations

from espalier.core.address import role
from espalier.core.messages import ALL, Report, Send, Word
from espalier.methods.easf.dsf import assembly, founding, joining, membership, seats, trees
from espalier.methods.easf.dsf.agent import Agent, on_timer, on_word
from espalier.methods.easf.dsf.state import NONE

#: the most votes on the first root: then the training begins with whoever is there
VOTES = 5


# -- finding a parent ----------------------------------------------------------------------------------------


@on_timer("headless")
def _still_headless(agent: Agent, _: int) -> None:
    headless(agent)


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
            joining.join(agent, level, host)
            return
    if level > 1:
        trees.dissolve(agent, level - 1, NONE)
    elif 0 in state.courts:
        _look_around(agent)


def _look_around(agent: Agent) -> None:
    """Let the members show their badges again, and wait for what they see."""
    state = agent.state
    state.top = None
    state.borders.clear()
    state.seats[0].tree = NONE
    wait(agent)
    for member in sorted(state.courts[0].members):
        if member != agent.me:
            agent.send("scout", member)
    trees.show_badge(agent, again=True)


@on_word("scout")
def _scout(agent: Agent, word: Word) -> None:
    seat = agent.state.seats.get(0)
    if seat is not None and seat.centre == word.sender:
        seat.tree = NONE  # others of the tree that it was in are to tell where it is
    trees.show_badge(agent, again=True)


@on_timer("climb")
def _settled(agent: Agent, _: int) -> None:
    """Nothing has been heard for a while: join the oldest tree known, or, being its name, hold the vote."""
    state = agent.state
    if 0 not in state.courts or 1 in state.seats or 1 in state.wooing or 1 in state.ballots:
        return
    tree, host = trees.oldest(agent)
    if host != agent.me:
        joining.join(agent, 1, host)
        return
    members = {m: p for m, p in state.pending.pop(1, {}).items() if agent.answers(m)}
    members[agent.me] = membership.myself(agent, 1)
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
        joining.join(agent, level, centre)
    else:
        agent.timer("join", 1, level)


@on_word("follow")
def _follow(agent: Agent, word: Word) -> None:
    """Whoever led this device so far sends it to somebody else, or away."""
    state, level, centre = agent.state, word.data["level"], word.data["centre"]
    seat = state.seats.get(level)
    led = NONE if seat is None else seat.centre
    organiser, _ = state.polled.get(level, (NONE, 0))
    orphan = seat is not None and seat.vacant and word.sender in seat.roster and not agent.gone(centre)
    known = orphan or word.sender in (led, state.wooing.get(level), organiser)
    if not known or (seat is not None and centre == agent.me):
        return  # not of its cluster; or it is to lead, and will be told how
    state.seats.pop(level, None)
    if centre != agent.me and not agent.gone(centre):
        joining.join(agent, level, centre)
    else:
        unseat(agent, level)


@on_timer("join")
def _unanswered(agent: Agent, level: int) -> None:
    if level in agent.state.wooing and level not in agent.state.seats:
        unseat(agent, level)


def unseat(agent: Agent, level: int) -> None:
    """This device has no place at a level after all: look for one."""
    state = agent.state
    state.seats.pop(level, None)
    state.wooing.pop(level, None)
    state.welcomed.discard(level)
    agent.stop("join", level)
    if level == 0:
        court = state.courts.pop(0, None)
        if court is not None and court.formed:
            seats.step_down(agent, 0, court, NONE)
        founding.greet(agent, 1)
    else:
        state.top = None
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

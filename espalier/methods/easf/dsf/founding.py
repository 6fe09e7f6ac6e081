"""How a device finds a cluster at the beginning: greet, elect, herald, choose, join.

Nobody has a cluster yet: neighbours exchange degrees, then two-hop return probabilities (Eq. 9), and whoever has the
largest around is a central node. Its heralds pass from neighbour to neighbour up to the hop limit; the others join the
central node with the least delay among those they heard of. Who hears of none greets its neighbours again until one of
them has a cluster, and so joins the nearest there is.

Later a neighbour does have a cluster: then the device is a newcomer.
"""

from __future__ import annotations

import math

from espalier.core.messages import Word
from espalier.methods.easf.dsf import joining, transfer
from espalier.methods.easf.dsf.agent import Agent, on_timer, on_word
from espalier.methods.easf.dsf.state import NONE, AgentState, Court, Member
from espalier.methods.easf.dsf.thp import leads, two_hop_probability

#: greetings in vain after which a device rests until a neighbour stirs
ENOUGH = 200


def start(agent: Agent) -> None:
    """Begin (again): all but the accuracy and the newest model is forgotten."""
    state = agent.state
    for level in state.courts:
        agent.tell_head(level + 1, "retire")
    fresh = AgentState(state.accuracy, state.clock, state.model, state.sent)
    fresh.born = agent.now
    fresh.timers = {key: number + 1 for key, number in state.timers.items()}
    for field in AgentState.__slots__:
        setattr(state, field, getattr(fresh, field))
    if agent.bounds.balance and math.isnan(state.accuracy):
        state.accuracy = agent.env.trials.pretraining_accuracy(agent.me, agent.bounds.epochs)
    greet(agent, 0)


# -- greeting ----------------------------------------------------------------------------------------------


def greet(agent: Agent, attempt: int) -> None:
    """Ask the neighbours who they are and whether they have a cluster."""
    state = agent.state
    neighbours = agent.neighbours()
    state.phase, state.attempt, state.thp = "greet", attempt, math.nan
    state.tries += 1
    state.greeted = dict.fromkeys(neighbours, agent.now)
    for answers in (state.degrees, state.here, state.rivals, state.told, state.asked):
        answers.clear()
    for other in neighbours:
        agent.send("hello", other, degree=len(neighbours), able=agent.able, ask=True)
    if state.tries <= ENOUGH:
        agent.timer("greet", 1 + attempt)
    else:
        state.phase = "rest"
    if not neighbours and state.phase == "greet":
        _elect(agent)  # nobody will answer, and nobody can have a cluster


@on_word("hello")
def _hello(agent: Agent, word: Word) -> None:
    state, other = agent.state, word.sender
    state.badged.pop(other, None)  # it has forgotten what it was told
    mine = _cluster_host(agent)
    if mine != NONE:
        if word.data["ask"]:
            seat = state.seats.get(0)
            cluster, tree = (NONE, NONE) if seat is None else (seat.cluster, seat.tree)
            agent.send("here", other, centre=mine, cluster=cluster, tree=tree)
        return
    state.degrees[other] = (word.data["degree"], word.data["able"])
    if word.data["ask"] and state.greeted.get(other, -1.0) < word.sent:
        # It came after our greeting: it cannot know us.
        state.greeted[other] = agent.now
        agent.send("hello", other, degree=len(state.greeted), able=agent.able, ask=False)
    if state.phase == "rest":
        state.tries = 0
        greet(agent, 0)
    greeted(agent)


@on_word("here")
def _here(agent: Agent, word: Word) -> None:
    data = word.data
    agent.state.here[word.sender] = data["centre"]
    agent.state.badges[word.sender] = (data["cluster"], data["centre"], data["tree"])
    greeted(agent)


def _cluster_host(agent: Agent) -> int:
    """Return whom this device has joined, or knows to lead its cluster."""
    state = agent.state
    if 0 in state.courts:
        return agent.me
    if 0 in state.seats:
        return state.seats[0].centre
    return state.wooing.get(0, NONE) if 0 in state.welcomed else NONE


def greeted(agent: Agent) -> None:
    """Go on once every neighbour has answered."""
    state = agent.state
    if state.phase != "greet" or any(n not in state.degrees and n not in state.here for n in state.greeted):
        return
    if state.here:
        joining.ask(agent)
    elif state.attempt == 0:
        _elect(agent)


@on_timer("greet")
def _greet_over(agent: Agent, _: int) -> None:
    state = agent.state
    if state.phase != "greet":
        return
    if state.here:
        joining.ask(agent)
    elif state.attempt == 0:
        _elect(agent)
    else:
        # The nearest cluster may be some neighbours away: it gets nearer with every greeting. Past the hop limit there
        # may be none at all: elect anew.
        greet(agent, state.attempt + 1 if state.attempt < agent.bounds.hops else 0)


# -- the election --------------------------------------------------------------------------------------------


def _elect(agent: Agent) -> None:
    state = agent.state
    degrees = [degree for degree, _ in state.degrees.values()]
    state.phase = "elect"
    state.thp = two_hop_probability(len(state.greeted), degrees) if degrees else 0.0
    for other in sorted(state.degrees):
        _tell_probability(agent, other)
    agent.timer("elect", 1)
    _elected(agent)


def _tell_probability(agent: Agent, other: int) -> None:
    agent.state.told.add(other)
    agent.send("thp", other, value=agent.state.thp if agent.able else math.nan)


@on_word("thp")
def _probability(agent: Agent, word: Word) -> None:
    state = agent.state
    state.rivals[word.sender] = word.data["value"]
    if not math.isnan(state.thp) and word.sender not in state.told:
        _tell_probability(agent, word.sender)
    _elected(agent)


def _elected(agent: Agent) -> None:
    state = agent.state
    if state.phase == "elect" and all(n in state.rivals for n in state.degrees):
        _elect_over(agent, 0)


@on_timer("elect")
def _elect_over(agent: Agent, _: int) -> None:
    state = agent.state
    if state.phase != "elect":
        return
    rivals = {n: value for n, value in state.rivals.items() if not math.isnan(value) and agent.answers(n)}
    if agent.able and leads(agent.me, state.thp, rivals):
        state.phase = "gather"
        state.courts[0] = Court(agent.name(), {agent.me: Member(1, agent.accuracy)})
        for other in agent.neighbours():
            agent.send("herald", other, centre=agent.me, hops=0, delay=0.0)
        agent.timer("gather", 2)
    else:
        state.phase = "choose"
        agent.timer("choose", 1)


@on_word("herald")
def _herald(agent: Agent, word: Word) -> None:
    state, centre = agent.state, word.data["centre"]
    if centre == agent.me or 0 in state.seats:
        return
    hops, delay = word.data["hops"] + 1, word.data["delay"] + agent.delay(word.sender)
    if centre in state.heard and state.heard[centre][1] <= delay:
        return
    state.heard[centre] = (hops, delay)
    if hops < agent.bounds.hops:
        for other in agent.neighbours():
            if other not in (word.sender, centre):
                agent.send("herald", other, centre=centre, hops=hops, delay=delay)


@on_timer("choose")
def _choose(agent: Agent, _: int) -> None:
    state = agent.state
    if state.phase != "choose":
        return
    heard = {c: delay for c, (_, delay) in state.heard.items() if not agent.gone(c)}
    if heard:
        joining.join(agent, 0, min(heard, key=lambda c: (heard[c], c)))
    else:
        greet(agent, 1)


@on_timer("gather")
def _gathered(agent: Agent, _: int) -> None:
    if agent.state.phase == "gather":
        transfer.begin(agent)

"""How a newcomer joins: it asks its neighbours' central nodes and picks a cluster by Algorithm 2.

Without regard to accuracy it picks the one with the least delay. If none is within the limits of hops and delay, the
one with the fewest hops. Joining itself is the same at every level, and at the beginning.
"""

from __future__ import annotations

import math

from espalier.core.messages import Word
from espalier.methods.easf.dsf import founding, membership
from espalier.methods.easf.dsf.agent import Agent, on_timer, on_word
from espalier.methods.easf.dsf.balance import Tally, choose_cluster

# -- a newcomer ------------------------------------------------------------------------------------------------


def ask(agent: Agent) -> None:
    """Ask the neighbours' central nodes how large their clusters are, and how accurate."""
    state = agent.state
    state.phase = "ask"
    for centre in sorted({c for c in state.here.values() if c != agent.me and not agent.gone(c)}):
        state.asked[centre] = None
        agent.send("ask", centre)
    agent.timer("ask", 1 + state.attempt)


@on_word("ask")
def _asked(agent: Agent, word: Word) -> None:
    court = agent.state.courts.get(0)
    if court is not None:
        tally = court.tally
        agent.send("info", word.sender, size=tally.size, total=tally.total, mean=agent.state.mean)
    else:
        agent.send("moved", word.sender, level=0, centre=membership.leader(agent, 0))


@on_word("info")
def _info(agent: Agent, word: Word) -> None:
    state = agent.state
    if state.phase != "ask" or word.sender not in state.asked:
        return
    state.asked[word.sender] = (word.data["size"], word.data["total"])
    if not math.isnan(word.data["mean"]):
        state.mean = word.data["mean"]
    if None not in state.asked.values():
        _pick(agent, 0)


@on_timer("ask")
def _pick(agent: Agent, _: int) -> None:
    """Join by Algorithm 2 within the limits of hops and delay (without balance: the nearest); else the fewest hops."""
    state, bounds = agent.state, agent.bounds
    if state.phase != "ask":
        return
    known = {c: Tally(*found) for c, found in state.asked.items() if found is not None and not agent.gone(c)}
    far = {c: (agent.hops(c), agent.delay(c), c) for c in known}
    near = {c: known[c] for c in known if far[c][0] <= bounds.hops and far[c][1] <= bounds.delay}
    if not known:
        founding.greet(agent, state.attempt + 1)
    elif not near:
        join(agent, 0, min(known, key=lambda c: far[c]))
    elif bounds.balance:
        target = state.mean if not math.isnan(state.mean) else _mean(known)
        join(agent, 0, choose_cluster(near, agent.accuracy, target) or min(near))
    else:
        join(agent, 0, min(near, key=lambda c: (far[c][1], c)))


def _mean(known: dict[int, Tally]) -> float:
    return sum(t.total for t in known.values()) / max(1, sum(t.size for t in known.values()))


# -- joining ---------------------------------------------------------------------------------------------------


def join(agent: Agent, level: int, host: int) -> None:
    """Ask a host for a place in the cluster of a level that it leads."""
    state = agent.state
    state.wooing[level] = host
    state.welcomed.discard(level)
    if level == 0:
        state.phase = "join"
        state.asked.clear()
    agent.send("join", host, level=level, member=membership.about_me(agent, level))
    agent.timer("join", 4, level)


@on_word("welcome")
def _welcome(agent: Agent, word: Word) -> None:
    state, level = agent.state, word.data["level"]
    if state.wooing.get(level) == word.sender:
        state.welcomed.add(level)
        agent.stop("join", level)
    elif level not in state.seats or state.seats[level].centre != word.sender:
        agent.send("quit", word.sender, level=level)

"""A device takes its seat in a cluster: it follows the central node, or leads as such.

Two votes may be held at once when messages are slow. Descriptions of a cluster are ordered by term, then by the smaller
number of whoever held the vote, then by version: everybody ends with the same one, and a node that led by another steps
down.
"""

from __future__ import annotations

from typing import Any

from espalier.core.address import role
from espalier.core.messages import Arrange, Word
from espalier.methods.easf.dsf import absence, ascent, membership, pulse, trees
from espalier.methods.easf.dsf.agent import Agent, on_word
from espalier.methods.easf.dsf.state import NONE, Court, Seat

# -- the outcome -------------------------------------------------------------------------------------------


@on_word("circle")
def _circle(agent: Agent, word: Word) -> None:
    take_seat(agent, word.sender, word.data)


def take_seat(agent: Agent, sender: int, data: dict[str, Any]) -> None:
    """Accept the description of a cluster, unless a newer one is known or this device belongs elsewhere."""
    state, level, centre = agent.state, data["level"], data["centre"]
    old, ballot = state.seats.get(level), state.ballots.get(level)
    wooed, (organiser, due) = state.wooing.get(level), state.polled.get(level, (NONE, 0))
    if centre == agent.me and "members" not in data and level not in state.courts:
        return  # it is to lead: whoever held the vote tells it how, and this word of another has overtaken that
    if old is not None and old.cluster == data["cluster"]:
        new, known = (data["term"], -data["organiser"]), (old.term, -old.organiser)
        if (*new, data["version"]) <= (*known, old.version):
            for host in sorted({centre, sender}) if new < known else [centre]:
                if host not in (old.centre, agent.me):
                    correct(agent, level, host)
            return
    elif sender not in (agent.me, wooed, organiser) and centre != wooed and not (old is None and wooed is None):
        if centre != agent.me:
            agent.send("quit", centre, level=level)
        return
    roster = [h for h in data["roster"] if not agent.gone(h)]
    state.seats[level] = Seat(
        data["cluster"], data["term"], data["organiser"], data["version"], centre, roster, data["up"],
        dict(data["will"]), data["top"], data["tree"], _still_vacant(old, data),
    )  # fmt: skip
    state.mean = data["mean"]
    state.wooing.pop(level, None)
    if data["term"] >= due:
        state.polled.pop(level, None)
    state.welcomed.discard(level)
    for key in ("join", "guard"):
        agent.stop(key, level)
    if ballot is not None and ballot.term <= data["term"]:
        del state.ballots[level]
    if level == 0:
        state.phase, state.attempt, state.tries = "member", 0, 0
    changed = old is None or old.centre != centre
    same = old is not None and old.cluster == data["cluster"] and not old.vacant
    if old is not None and changed and same and old.centre not in (agent.me, sender):
        correct(agent, level, old.centre)  # it led by another vote, and may not know of this one
    if centre == agent.me:
        if "members" in data:
            _lead(agent, level, old, data)
    else:
        _follow(agent, level, centre, changed)
    for host in sorted(state.pending.pop(level, {})):
        if host not in roster and centre != agent.me:
            agent.send("follow", host, level=level, centre=centre)
    if level == 0 and data["tree"] not in (NONE, NONE if old is None else old.tree):
        trees.show_tree(agent)
    if changed:
        agent.record("seat", level=level, centre=centre, term=data["term"], messages=state.sent)
        if level == 0:
            pulse.begin(agent)
            if data["up"] == NONE:
                trees.show_badge(agent)
        if level - 1 in state.courts and state.courts[level - 1].formed:
            membership.announce(agent, level - 1)
        if level == 1:
            trees.reconsider(agent)
    leader, host = state.parted.pop(level, (NONE, NONE))
    if leader == centre != agent.me:
        trees.leave(agent, level, host)


def _still_vacant(old: Seat | None, data: dict[str, Any]) -> bool:
    """Tell whether a description is the last word of a central node that is known to be gone."""
    if old is None or not old.vacant:
        return False
    new = (data["cluster"], data["term"], data["organiser"], data["centre"])
    return new == (old.cluster, old.term, old.organiser, old.centre)


def correct(agent: Agent, level: int, rival: int) -> None:
    """Tell a host that goes by another vote who leads this device's cluster by the one that counts."""
    seat = agent.state.seats[level]
    if not seat.vacant:
        agent.send("circle", rival, **membership.description(agent, level, seat))


def _follow(agent: Agent, level: int, centre: int, changed: bool) -> None:
    state = agent.state
    court = state.courts.pop(level, None)
    if court is not None and court.formed:
        step_down(agent, level, court, centre)
    if changed:
        agent.attach(level, centre)
    if centre not in state.lost and not agent.answers(centre):
        absence.lost(agent, centre)
    elif state.seats[level].vacant or agent.gone(centre):
        absence.succeed(agent, level)
    elif agent.me not in state.seats[level].roster:
        agent.send("present", centre, level=level, member=membership.about_me(agent, level))


def _lead(agent: Agent, level: int, old: Seat | None, data: dict[str, Any]) -> None:
    """This device is the central node now: run the aggregator, find a parent for it, or be the root."""
    state, seat = agent.state, agent.state.seats[level]
    members = {m: membership.member_of(agent, m, told) for m, told in data["members"].items() if agent.answers(m)}
    members.update({m: p for m, p in state.pending.pop(level, {}).items() if agent.answers(m)})
    state.courts[level] = Court(seat.cluster, members, True, set(data["members"]))
    agent.attach(level, agent.me)
    agent.record("leads", level=level, members=sorted(members), top=seat.top, term=seat.term)
    if set(members) != set(data["members"]):
        membership.announce(agent, level)
    if seat.top:
        ascent.reign(agent, level, data["fresh"])
        return
    if level + 1 in state.seats:
        return
    if seat.up == agent.me and level:
        agent.timer("headless", 2)  # it is to lead there, too, and will be told how; or led there before it was away
        return
    if old is None and seat.up == NONE:
        ascent.wait(agent)
        return
    will = [] if old is None else old.will.get(level + 1, [])
    ascent.climb(agent, level + 1, [seat.up, *will])


def step_down(agent: Agent, level: int, court: Court, centre: int) -> None:
    """Another leads this cluster: send the members there, and leave the level above."""
    state = agent.state
    agent.tell_head(level + 1, "retire")
    agent.out.append(Arrange({role(agent.me, level + 1): None}, {}))
    for host in sorted(court.members):
        if host != agent.me:
            agent.send("follow", host, level=level, centre=centre)
    state.wooing.pop(level + 1, None)
    state.welcomed.discard(level + 1)
    if level + 1 in state.courts:
        membership.strike(agent, level + 1, agent.me)  # it may go on to lead there
    elif level + 1 in state.seats:
        agent.send("quit", state.seats.pop(level + 1).centre, level=level + 1)

"""A cluster picks its central node (Eq. 1): at first, and again whenever its central node is gone.

Somebody holds the vote: at first the node that gathered the cluster, later the first in the line of succession that
is still there. It polls the members, each answers with its delays to the others, the smallest sum wins among those
that may aggregate. The winner and all members get the cluster's description and from then on the winner leads.

Two votes may be held at once when messages are slow. Descriptions are ordered by term, then by the smaller number of
whoever held the vote: everybody ends with the same one, and a node that led by the other steps down.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from espalier.core.address import role
from espalier.core.messages import Arrange, Word
from espalier.policies.dsf import ascent, pulse
from espalier.policies.dsf.agent import Agent, on_timer, on_word
from espalier.policies.dsf.central import central, levels
from espalier.policies.dsf.state import NONE, Ballot, Court, Member, Seat

#: a delay for hosts that cannot be reached, in seconds
FAR = 1e9


# -- what is told of members -------------------------------------------------------------------------------


def describe(member: Member) -> dict[str, Any]:
    """Return what a message says of a member."""
    return {"size": member.size, "total": member.total, "able": member.able, "near": dict(member.near)}


def about_me(agent: Agent, level: int) -> dict[str, Any]:
    """Return what this device tells of itself as a member at a level."""
    state = agent.state
    if level == 0:
        near = {c: hops for c, (hops, _) in state.heard.items()}
        return describe(Member(1, agent.accuracy, agent.able, near=near))
    below = state.courts.get(level - 1)
    tally = below.tally if below is not None else Court(NONE).tally
    return describe(Member(tally.size, tally.total, True, near=dict.fromkeys(state.borders.values(), 1.0)))


def myself(agent: Agent, level: int) -> Member:
    """Return this device as a member at a level."""
    return _member(agent, agent.me, about_me(agent, level))


def _member(agent: Agent, host: int, data: dict[str, Any]) -> Member:
    return Member(data["size"], data["total"], data["able"], agent.hops(host), dict(data["near"]))


def leader(agent: Agent, level: int) -> int:
    """Return who leads (or is about to lead) this device's cluster of a level, as far as it knows."""
    state = agent.state
    if level in state.courts or level in state.ballots:
        return agent.me
    seat = state.seats.get(level)
    if seat is None:
        host = state.wooing.get(level, NONE)
        return NONE if agent.gone(host) else host
    if not seat.vacant:
        return seat.centre
    return next((h for h in seat.roster if not agent.gone(h)), NONE)


# -- members come and go -----------------------------------------------------------------------------------


def admit(agent: Agent, level: int, host: int, data: dict[str, Any]) -> None:
    """Take a member in; a formed cluster's members learn it."""
    state, member = agent.state, _member(agent, host, data)
    if level in state.ballots:
        state.ballots[level].members[host] = member
    court = state.courts.get(level)
    if court is not None:
        court.members[host] = member
        if court.formed:
            announce(agent, level)
            agent.send("circle", host, **_description(agent, level, _refresh(agent, level)))


@on_word("join")
def _join(agent: Agent, word: Word) -> None:
    state, level, host = agent.state, word.data["level"], word.sender
    if not agent.answers(host):
        return
    court, seat = state.courts.get(level), state.seats.get(level)
    if court is not None or level in state.ballots:
        if court is None or not court.formed:
            agent.send("welcome", host, level=level)
        admit(agent, level, host, word.data["member"])
    elif leader(agent, level) == agent.me or (seat is None and ascent.coordinates(agent, level)):
        # The vote is still to come: either this device is next in line, or nobody leads the tree yet.
        state.pending.setdefault(level, {})[host] = _member(agent, host, word.data["member"])
        agent.send("welcome", host, level=level)
        if seat is None:
            agent.timer("climb", 3)
    else:
        agent.send("moved", host, level=level, centre=leader(agent, level))


@on_word("quit")
def _quit(agent: Agent, word: Word) -> None:
    """A node that was thought a member belongs elsewhere."""
    strike(agent, word.data["level"], word.sender)


def strike(agent: Agent, level: int, host: int) -> None:
    """Take a member out; a formed cluster's others learn it."""
    state = agent.state
    if level in state.ballots:
        state.ballots[level].members.pop(host, None)
        _counted(agent, level)
    state.pending.get(level, {}).pop(host, None)
    court = state.courts.get(level)
    if court is not None and court.members.pop(host, None) is not None and court.formed:
        announce(agent, level)


def announce(agent: Agent, level: int) -> None:
    """Tell all members soon how the cluster stands; those of lower clusters learn of the higher ones' rosters."""
    for below, court in sorted(agent.state.courts.items()):
        if below <= level and court.formed:
            agent.timer("announce", 0.5, below)


@on_timer("announce")
def _announce(agent: Agent, level: int) -> None:
    court = agent.state.courts.get(level)
    if court is not None and court.formed:
        tree = agent.state.seats[level].tree
        seat = _refresh(agent, level)
        for host in seat.roster[1:]:
            agent.send("circle", host, **_description(agent, level, seat))
        if level == 0 and seat.tree != tree:
            ascent.show_tree(agent)


def _refresh(agent: Agent, level: int) -> Seat:
    """Bring the description of a cluster that this device leads up to date."""
    state = agent.state
    seat, above = state.seats[level], state.seats.get(level + 1)
    others = (m for m in state.courts[level].members if m != agent.me)
    seat.version += 1
    seat.roster = [agent.me, *sorted(others, key=lambda m: (agent.delay(m), m))]
    seat.up = NONE if above is None else above.centre
    seat.tree = seat.tree if above is None else above.tree
    seat.will = {at: list(state.seats[at].roster) for at in sorted(state.courts) if at > level and at in state.seats}
    return seat


def _description(agent: Agent, level: int, seat: Seat) -> dict[str, Any]:
    return {
        "level": level, "cluster": seat.cluster, "term": seat.term, "organiser": seat.organiser,
        "version": seat.version, "centre": seat.centre, "roster": list(seat.roster), "up": seat.up,
        "will": {at: list(roster) for at, roster in seat.will.items()}, "top": seat.top, "tree": seat.tree,
        "mean": agent.state.mean,
    }  # fmt: skip


# -- the vote ----------------------------------------------------------------------------------------------


def convene(
    agent: Agent, level: int, cluster: int, term: int, members: dict[int, Member], top: bool = False, tree: int = NONE
) -> None:
    """Hold a vote: ask every member for its delays to the others."""
    state = agent.state
    roster = sorted(members)
    ballot = state.ballots[level] = Ballot(cluster, term, top, tree, members, roster)
    for host in roster:
        if host != agent.me:
            agent.send("poll", host, level=level, cluster=cluster, term=term, roster=roster)
    ballot.delays[agent.me] = _delays(agent, roster)
    ballot.clocks[agent.me] = state.clock
    members[agent.me] = myself(agent, level)
    agent.timer("poll", 4, level)
    _counted(agent, level)


def _delays(agent: Agent, roster: list[int]) -> list[float]:
    return [min(agent.delay(host), FAR) for host in roster]


@on_word("poll")
def _poll(agent: Agent, word: Word) -> None:
    state, level, organiser = agent.state, word.data["level"], word.sender
    cluster, term = word.data["cluster"], word.data["term"]
    seat, ballot = state.seats.get(level), state.ballots.get(level)
    if seat is not None and seat.cluster == cluster and term <= seat.term:
        return
    elsewhere = seat.cluster != cluster if seat is not None else state.wooing.get(level, organiser) != organiser
    if elsewhere:
        agent.send("quit", organiser, level=level)
        return
    if ballot is not None:
        if (ballot.term, -agent.me) > (term, -organiser):
            return  # this device's own vote comes first, and the other will hear of it
        del state.ballots[level]
    state.polled[level] = (organiser, term)
    agent.send(
        "delays", organiser, level=level, term=term, delays=_delays(agent, word.data["roster"]),
        member=about_me(agent, level), clock=state.clock,
    )  # fmt: skip
    agent.timer("guard", 8, level)


@on_word("delays")
def _vote(agent: Agent, word: Word) -> None:
    level = word.data["level"]
    ballot = agent.state.ballots.get(level)
    if ballot is None or ballot.term != word.data["term"] or word.sender not in ballot.members:
        return
    ballot.members[word.sender] = _member(agent, word.sender, word.data["member"])
    ballot.delays[word.sender] = word.data["delays"]
    ballot.clocks[word.sender] = word.data["clock"]
    _counted(agent, level)


def _counted(agent: Agent, level: int) -> None:
    ballot = agent.state.ballots[level]
    if all(m in ballot.delays for m in ballot.members if m in ballot.roster):
        _decide(agent, level)


@on_timer("poll")
def _decide(agent: Agent, level: int) -> None:
    """Pick the central node among those that answered; who did not stays a member."""
    state = agent.state
    ballot = state.ballots.pop(level, None)
    if ballot is None:
        return
    agent.stop("poll", level)
    voters = sorted(m for m in ballot.members if m in ballot.delays)
    rows = [ballot.roster.index(m) for m in voters]
    delays = np.array([ballot.delays[m] for m in voters])[:, rows]
    if ballot.top and len(voters) > agent.bounds.width:
        _stack(agent, ballot, voters, delays)
        return
    winner = central(voters, delays, [ballot.members[m].able for m in voters])
    if winner is None:
        for host in sorted(ballot.members):
            if host != agent.me:
                agent.send("follow", host, level=level, centre=NONE)
        ascent.unseat(agent, level)
        return
    row = voters.index(winner)
    near = sorted(voters, key=lambda m: (m != winner, delays[row, voters.index(m)], m))
    roster = [*near, *sorted(m for m in ballot.members if m not in ballot.delays)]
    seat = state.seats.get(level)
    up = seat.up if seat is not None else NONE
    _crown(agent, level, ballot, winner, roster, up)


def _stack(agent: Agent, ballot: Ballot, voters: list[int], delays: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """Many central nodes: cluster them, and their central nodes again, until few enough are left for one root."""
    near = {m: set(ballot.members[m].near) for m in voters}
    found = levels(voters, delays, near, agent.bounds.width)
    of = [{m: centre for centre, cluster in level.items() for m in cluster} for level in found]
    below = [ballot.members]
    for level in found:
        below.append({c: _sum(below[-1][m] for m in cluster) for c, cluster in level.items()})
    # From the root down: whoever leads a cluster has its own place above it by then.
    for number, level in reversed(list(enumerate(found))):
        last, members = number == len(found) - 1, below[number]
        for centre, cluster in level.items():
            part = Ballot(
                ballot.tree if last else agent.name() - agent.me + centre, ballot.term, last, ballot.tree,
                {m: members[m] for m in cluster}, cluster, clocks=ballot.clocks,
            )  # fmt: skip
            row = voters.index(centre)
            roster = sorted(cluster, key=lambda m: (m != centre, delays[row, voters.index(m)], m))
            _crown(agent, number + 1, part, centre, roster, NONE if last else of[number + 1][centre])


def _sum(members: Any) -> Member:
    total = Member(0, 0.0)
    for member in members:
        total.size, total.total = total.size + member.size, total.total + member.total
    return total


def _crown(agent: Agent, level: int, ballot: Ballot, winner: int, roster: list[int], up: int) -> None:
    state = agent.state
    if level > 0 and ballot.top:
        tally = Court(NONE, ballot.members).tally
        state.mean = tally.mean
    seat = Seat(ballot.cluster, ballot.term, agent.me, 1, winner, roster, up, {}, ballot.top, ballot.tree)
    data = _description(agent, level, seat)
    extra = {
        "members": {m: describe(member) for m, member in ballot.members.items()},
        "fresh": max(((clock, -m) for m, clock in ballot.clocks.items() if m in ballot.members), default=(-1, 0)),
    }
    for host in roster:
        if host != agent.me:
            agent.send("circle", host, **data, **(extra if host == winner else {}))
    if agent.me in roster:
        _take_seat(agent, agent.me, {**data, **(extra if agent.me == winner else {})})


# -- the outcome -------------------------------------------------------------------------------------------


@on_word("circle")
def _circle(agent: Agent, word: Word) -> None:
    _take_seat(agent, word.sender, word.data)


def _take_seat(agent: Agent, sender: int, data: dict[str, Any]) -> None:
    """Accept the description of a cluster, unless a newer one is known or this device belongs elsewhere."""
    state, level, centre = agent.state, data["level"], data["centre"]
    old, ballot = state.seats.get(level), state.ballots.get(level)
    wooed, (organiser, due) = state.wooing.get(level), state.polled.get(level, (NONE, 0))
    if old is not None and old.cluster == data["cluster"]:
        if (data["term"], -data["organiser"], data["version"]) <= (old.term, -old.organiser, old.version):
            if centre not in (old.centre, agent.me):
                correct(agent, level, centre)
            return
    elif (
        sender not in (agent.me, wooed, organiser)
        and centre != wooed
        and not (old is None and wooed is None)
    ):
        if centre != agent.me:
            agent.send("quit", centre, level=level)
        return
    roster = [h for h in data["roster"] if not agent.gone(h)]
    state.seats[level] = Seat(
        data["cluster"], data["term"], data["organiser"], data["version"], centre, roster, data["up"],
        dict(data["will"]), data["top"], data["tree"],
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
    if centre == agent.me:
        if "members" in data:
            _lead(agent, level, old, data)
    else:
        _follow(agent, level, centre, changed)
    for host in sorted(state.pending.pop(level, {})):
        if host not in roster and centre != agent.me:
            agent.send("follow", host, level=level, centre=centre)
    if level == 0 and data["tree"] not in (NONE, NONE if old is None else old.tree):
        ascent.show_tree(agent)
    if changed:
        agent.record("seat", level=level, centre=centre, term=data["term"], messages=state.sent)
        if level == 0:
            pulse.begin(agent)
            if data["up"] == NONE:
                ascent.show_badge(agent)
        if level - 1 in state.courts and state.courts[level - 1].formed:
            announce(agent, level - 1)
        if level == 1:
            ascent.reconsider(agent)


def correct(agent: Agent, level: int, rival: int) -> None:
    """Tell a host that leads this device's cluster by another vote who does by the one that counts."""
    seat = agent.state.seats[level]
    if not seat.vacant:
        agent.send("circle", rival, **_description(agent, level, seat))


def _follow(agent: Agent, level: int, centre: int, changed: bool) -> None:
    state = agent.state
    court = state.courts.pop(level, None)
    if court is not None and court.formed:
        step_down(agent, level, court, centre)
    if changed:
        agent.attach(level, centre)
    if not agent.answers(centre):
        state.lost[centre] = agent.now
        succeed(agent, level)
    elif agent.me not in state.seats[level].roster:
        agent.send("present", centre, level=level, member=about_me(agent, level))


def _lead(agent: Agent, level: int, old: Seat | None, data: dict[str, Any]) -> None:
    """This device is the central node now: run the aggregator, find a parent for it, or be the root."""
    state, seat = agent.state, agent.state.seats[level]
    members = {m: _member(agent, m, told) for m, told in data["members"].items() if agent.answers(m)}
    members.update({m: p for m, p in state.pending.pop(level, {}).items() if agent.answers(m)})
    state.courts[level] = Court(seat.cluster, members, True, set(data["members"]))
    agent.attach(level, agent.me)
    agent.record("leads", level=level, members=sorted(members), top=seat.top, term=seat.term)
    if set(members) != set(data["members"]):
        announce(agent, level)
    if seat.top:
        ascent.reign(agent, level, data["fresh"])
        return
    if level + 1 in state.seats:
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
        strike(agent, level + 1, agent.me)  # it may go on to lead there
    elif level + 1 in state.seats:
        agent.send("quit", state.seats.pop(level + 1).centre, level=level + 1)


# -- succession --------------------------------------------------------------------------------------------


def succeed(agent: Agent, level: int) -> None:
    """The central node is gone: hold a vote if this device is next in line, else see to it that somebody does."""
    seat = agent.state.seats[level]
    seat.vacant = True
    line = [h for h in seat.roster if not agent.gone(h)]
    rank = line.index(agent.me) if agent.me in line else len(line)
    if rank == 0 and level == 0:
        _hold_vote(agent, level)
    else:
        # Above level 0 the gone node's own cluster sends its successor first, to be voted on too.
        agent.timer("guard", 4 * rank + (2 if level else 0), level)


@on_timer("guard")
def _guard(agent: Agent, level: int) -> None:
    state, seat = agent.state, agent.state.seats.get(level)
    if seat is None or level in state.ballots or not seat.vacant:
        return
    if state.polled.pop(level, None) is not None:
        agent.timer("guard", 4, level)
        return
    _hold_vote(agent, level)


def _hold_vote(agent: Agent, level: int) -> None:
    state = agent.state
    seat = state.seats[level]
    members = {h: Member(0) for h in [*seat.roster, agent.me] if not agent.gone(h)}
    members.update(state.pending.pop(level, {}))
    convene(agent, level, seat.cluster, seat.term + 1, members, seat.top, seat.tree)

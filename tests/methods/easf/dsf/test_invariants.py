"""Whatever happens: one tree over the devices that work, whose parents may aggregate, soon after it happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from espalier.core.address import host_of
from espalier.simulator.simulation import Simulation
from tests.methods.easf.dsf.fleet import agent, rounds, run, runner, working, wrong

NOTICE = 2.0
#: seconds in which a tree heals once a loss is noticed: a few times the agents' patience, at every level
HEALS = 4.0
ODDS = {"loss": 0.05, "duplicate": 0.05, "reorder": 0.05, "corrupt": 0.02}


@dataclass(frozen=True)
class Script:
    devices: int
    seed: int
    events: list[dict[str, Any]]
    able: float = 1.0
    width: int = 32

    @property
    def end(self) -> float:
        return max((e["time"] for e in self.events), default=0.0)

    def play(self, **world: Any) -> Simulation:
        churn = {"kind": "scheduled", "events": self.events} if self.events else {"kind": "none"}
        world = {"churn": churn, "notice": NOTICE, **world}
        if self.able < 1:
            world["capability"] = {"kind": "fraction", "fraction": self.able}
        sim = runner({"name": "syn", "width": self.width}, self.devices, self.seed, world=world).simulation
        sim.start()
        return sim


def told(*events: str) -> list[dict[str, Any]]:
    """Return the events of a script told as "time host event"."""
    parts = [event.split() for event in events]
    return [{"time": float(time), "host": int(host), "event": what} for time, host, what in parts]


@st.composite
def scripts(draw: st.DrawFn, most: int = 8, span: float = 20.0) -> Script:
    """Devices that leave, die, come back or come late, at any moment, also while the first tree is built."""
    n = draw(st.integers(2, 30))
    moments = st.floats(0.01, span, allow_nan=False)
    events = []
    for device in draw(st.sets(st.integers(0, n - 1), max_size=min(most, n - 1))):
        when = draw(moments)
        match draw(st.sampled_from(["late", "leave", "die", "leave and back", "die and back"])):
            case "late":
                events.append({"time": when, "host": device, "event": "join"})
            case ("leave" | "die") as what:
                events.append({"time": when, "host": device, "event": what})
            case both:
                events.append({"time": when, "host": device, "event": both.split()[0]})
                back = when + draw(st.floats(0.05, 10.0))
                events.append({"time": back, "host": device, "event": "join"})
    able = draw(st.sampled_from([1.0, 1.0, 0.6]))
    return Script(n, draw(st.integers(0, 10**6)), events, able, draw(st.sampled_from([2, 4, 32])))


def somebody_may_lead(sim: Simulation) -> bool:
    return any(sim.fleet.capable[d] for d in working(sim))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts())
@example(Script(2, 0, told("0.25 0 leave"), width=2))  # the only other one, just elected
@example(Script(3, 0, told("0.25 0 leave"), width=2))  # the same, and two are left
# the root goes; who is elected below it gives the cluster up before all have heard that it leads it
@example(Script(26, 60184, told("6.16 1 join", "19.2 20 leave"), width=2))
# the central node goes before the next in line has heard of the latest member
@example(Script(14, 2, told("14.24 10 join", "14.38 11 leave"), width=2))
# who would have been elected goes before the election is over
@example(Script(6, 0, told("0.01 0 leave", "0.01 4 join"), width=4))
# nobody is left who has a cluster: elect anew, and soon
@example(Script(5, 1414, told("2 0 leave", "12 4 die", "15 2 die", "16 3 leave", "16.6 3 join"), able=0.6, width=2))
# the gone central node's last word comes while its succession is voted on: two votes on one term, other members
@example(Script(27, 833857, told("0.9 5 leave", "0.937 5 join", "1.077 9 leave", "2 1 join"), able=0.6))
# the latest member is next in line, and the second, who has not heard of it, holds a vote too
@example(
    Script(11, 895471, told("1 5 join", "2 2 join", "2 1 leave", "3 7 join", "3.66 10 join", "3.7 3 die"), able=0.6)
)
# who was away gets words, sent to it before, about a cluster whose central node has died meanwhile
@example(Script(18, 388753, told("12 12 leave", "12.4 11 die", "13 12 join")))
# a tree without its root and two of its clusters: what a central node hears of trees before it has a place again
@example(Script(29, 813509, told("5 1 join", "8 28 leave", "8 25 leave"), width=4))
# whom one has asked is gone, one is elected oneself, and the question's time runs out
@example(Script(8, 445382, told("0.1 2 die", "0.2 3 leave", "0.6 2 join", "1 3 join"), able=0.6, width=4))
# the former root, back, leads a cluster that still takes it for its parent
@example(Script(5, 200608, told("5 3 leave", "5.4 3 join", "5.46 0 leave", "5.5 1 leave", "5.5 2 join")))
def test_a_tree_heals(script: Script) -> None:
    sim = script.play()
    run(sim, script.end + NOTICE + HEALS)
    if not somebody_may_lead(sim):
        return
    assert not wrong(sim)
    done = rounds(sim)
    run(sim, sim.now + 40.0)
    assert not wrong(sim) and rounds(sim) > done


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts(most=4))
@example(  # a correction by another member overtakes the word to the elected that says how to lead
    Script(
        28,
        40860,
        told(
            "0.08185138139709322 16 leave",
            "4.870380132044494 13 die",
            "10.554206411779177 17 leave",
            "13.164936745370486 19 leave",
        ),
        able=0.6,
        width=4,
    )
)
def test_a_tree_heals_also_when_messages_are_late_by_far(script: Script) -> None:
    sim = script.play(faults={"kind": "random", "dev_dev": ODDS})
    run(sim, script.end + 60.0)
    if somebody_may_lead(sim):
        assert not wrong(sim)
        done = rounds(sim)
        run(sim, sim.now + 40.0)
        assert rounds(sim) > done


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(3, 30), st.integers(0, 10**6), st.integers(0, 29), st.sampled_from(["leave", "die"]))
def test_nobody_is_an_orphan_for_longer_than_it_takes_to_notice(n: int, seed: int, who: int, how: str) -> None:
    script = Script(n, seed, [{"time": 10.0, "host": who % n, "event": how}])
    sim = script.play()
    run(sim, 10.0 - 1e-6)
    assert not wrong(sim)
    limit = 10.0 + (NOTICE if how == "die" else 0.0) + 1.5
    for step in range(20):
        run(sim, limit + step / 2)
        assert not wrong(sim)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts())
def test_levels_rise_by_one_and_no_parent_is_incapable_at_any_moment(script: Script) -> None:
    sim = script.play()
    tree = sim.fleet.tree
    while sim.now < script.end + NOTICE and sim.step():
        for device in working(sim):
            hosts = list(tree.path(device))  # ends: there is no cycle
            assert len(hosts) <= 8
            assert all(sim.fleet.capable[host_of(p)] for p in hosts[1:] if host_of(p) < script.devices)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts(most=6))
def test_messages_per_device_are_bounded(script: Script) -> None:
    sim = script.play()
    run(sim, 30.0)
    n = script.devices
    changes = 1 + len(script.events)
    for device in range(n):
        # Every change may make a device talk to all its neighbours and, if it leads, to all its members, some times.
        assert agent(sim, device).own.messages <= 40 * changes * (10 + n)

"""Servers and devices die and come back, messages and links fail: every method goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from espalier.core.codec import pack, unpack
from espalier.core.seeds import stream
from espalier.simulator.runner import Runner
from tests.reliability.runs import runner

METHODS = ["hierfavg", "fedavg", "only_edge", "edge_cloud", "standalone"]
SPEEDS = {"compute": {"kind": "rate", "low": 1.0, "high": 8.0}}
#: 12 devices at 3 edges; the servers' addresses
EDGES, CLOUD = (12, 13, 14), 15


def script(*events: tuple[float, Any, str]) -> dict[str, Any]:
    """Return a world in which hosts go and come at given times."""
    table = [{"time": t, "host": h, "event": e} for t, h, e in events]
    return {**SPEEDS, "churn": {"kind": "scheduled", "events": table}}


def run(method: Any = "hierfavg", rounds: int = 4, **changes: Any) -> Runner:
    one = runner(None, method, stop={"rounds": rounds}, **changes)
    one.run()
    return one


def events(one: Runner, kind: str) -> list[tuple[float, int | None, dict[str, Any]]]:
    import json

    rows = one.recorder.connection.execute("SELECT time, node, data FROM events WHERE kind = ? ORDER BY rowid", (kind,))
    return [(t, n, json.loads(d)) for t, n, d in rows]


# -- whatever happens --------------------------------------------------------------------------------


def random_world(number: int) -> dict[str, Any]:
    """Return a world full of trouble: servers and devices that die and return, bad messages, vanishing links."""
    rng = stream(number, "trouble")
    happenings: list[tuple[float, Any, str]] = []
    for host in [*(f"edge:{e}" for e in range(3)), "cloud", *rng.choice(12, size=4, replace=False).tolist()]:
        at = 0.0
        for _ in range(int(rng.integers(0, 3))):
            at += float(rng.exponential(15.0)) + 0.01
            happenings.append((at, host, str(rng.choice(["die", "leave"]))))
            at += float(rng.exponential(12.0)) + 0.01  # about half of them before anybody notices
            happenings.append((at, host, str(rng.choice(["join", "restart"]))))
    odds = {"loss": 0.1, "duplicate": 0.1, "reorder": 0.2, "corrupt": 0.05, "delay": 5.0}
    faults = {
        "kind": "random", "dev_edge": odds, "edge_cloud": odds, "vanish_every": 30.0, "vanish_mean": 5.0,
        "outages": [{"a": int(rng.integers(0, 16)), "start": float(rng.uniform(0, 20)), "end": 40.0}],
    }  # fmt: skip
    tiers = {"dev_edge": {"latency": 0.2}, "edge_cloud": {"latency": 0.5}, "dev_dev": {"latency": 0.1}}
    return {
        **script(*happenings),
        "faults": faults,
        "links": {"kind": "per_tier", **tiers},
        "mobility": {"kind": "markov", "stay": 0.8},
    }


@pytest.mark.parametrize("method", METHODS)
def test_any_trouble_passes(method: str) -> None:
    for number in range(12):
        one = run(method, world=random_world(number))
        assert one.simulation.round >= 4, f"script {number} stops {method} in round {one.simulation.round}"


def test_trouble_can_be_saved_and_restored() -> None:
    whole = run("hierfavg", world=random_world(3))
    one = runner(None, "hierfavg", stop={"rounds": 4}, world=random_world(3))
    one.simulation.start()
    steps = 0
    while one.simulation.step():
        steps += 1
        if steps % 11 == 0:
            plain, tensors = one.simulation.save()
            fresh = runner(None, "hierfavg", stop={"rounds": 4}, world=random_world(3))
            one.recorder.commit()
            one.recorder.connection.backup(fresh.recorder.connection)
            fresh.simulation.restore(unpack(pack(plain)), tensors)
            one = fresh
    one.recorder.commit()
    for table in ("metrics", "moves", "events", "spans"):
        query = f"SELECT * FROM {table} ORDER BY rowid"
        expected = whole.recorder.connection.execute(query).fetchall()
        assert one.recorder.connection.execute(query).fetchall() == expected


# -- edges ---------------------------------------------------------------------------------------------


def test_dead_edge_is_taken_over_by_the_nearest() -> None:
    one = run(world=script((3.0, "edge:1", "die")))
    # Noticed after 10 s of silence. Edges 0 and 2 are equally near on the ring; the next one is taken.
    assert events(one, "taken_over") == [(13.0, 13, {"children": 4, "by": {"14": 4}})]
    assert set(one.simulation.fleet.tree.device_parent.tolist()) == {12, 14}


def test_devices_can_be_told_to_wait() -> None:
    method = {"name": "hierfavg", "root": {"structure": {"kind": "given", "orphans": "wait"}}}
    one = run(method, world=script((3.0, "edge:1", "die"), (60.0, "edge:1", "join")), rounds=12)
    assert events(one, "orphaned") == [(13.0, 13, {"children": 4, "by": {}})]
    assert events(one, "taken_over") == []
    assert one.simulation.now > 60  # it was gone on without them, and with them again
    assert one.simulation.rounds.closed[13] > 1


def test_all_edges_dead_wait_for_the_first_that_is_back() -> None:
    gone = [(2.0, f"edge:{e}", "die") for e in range(3)]
    one = run(world=script(*gone, (50.0, "edge:2", "join")), rounds=6)
    assert one.simulation.round == 6
    assert set(one.simulation.fleet.tree.device_parent.tolist()) == {14}


def test_edge_back_before_anyone_noticed() -> None:
    # Without its state it no longer knows the order: nobody may wait for ever.
    for back in ("join", "restart"):
        one = run(world=script((2.0, "edge:1", "die"), (5.0, "edge:1", back)))
        assert events(one, "taken_over") == []
        assert one.simulation.round == 4


def test_edge_without_memory_goes_on_with_the_model_it_served() -> None:
    # OnlyEdge's cloud never merges: what an edge has learnt is nowhere else.
    lost = run("only_edge", world=script((20.0, "edge:1", "die"), (24.0, "edge:1", "restart")), rounds=12)
    kept = run("only_edge", world=script((20.0, "edge:1", "die"), (24.0, "edge:1", "join")), rounds=12)
    scores = [float(one.simulation.meter.last["acc_edge"]) for one in (lost, kept)]
    assert abs(scores[0] - scores[1]) < 0.05
    assert lost.simulation.rounds.closed[13] >= 12


# -- the cloud -----------------------------------------------------------------------------------------


def test_cloud_restarts_from_the_model_it_served() -> None:
    one = runner(None, stop={"rounds": 8}, world=script((30.0, "cloud", "die"), (33.0, "cloud", "restart")))
    sim = one.simulation
    sim.start()
    before: list[tuple[int, Any]] = []
    while sim.step() and sim.now < 33.0:
        before = [(sim.round, sim.served[CLOUD])]
    # The first thing it does is to hand out what it had served, and it counts on from there.
    assert sim.round == before[0][0] > 0
    assert sim.served[CLOUD] == before[0][1]
    assert sim.nodes[CLOUD].state.progress == sim.round
    while sim.step():
        pass
    assert sim.round == 8
    accuracy = [r[0] for r in one.recorder.connection.execute("SELECT value FROM metrics WHERE name = 'acc_global'")]
    assert min(accuracy[before[0][0] :]) > accuracy[0]


def test_cloud_dead_at_the_very_beginning() -> None:
    for back in ("join", "restart"):
        assert run(world=script((0.0, "cloud", "die"), (20.0, "cloud", back))).simulation.round == 4


def test_cloud_that_never_returns_ends_the_run() -> None:
    one = run(world=script((5.0, "cloud", "die")))
    assert one.simulation.finished
    assert len(events(one, "stalled")) == 1
    # Also when it is evaluated by the clock, which alone would go on for ever.
    one = run(world=script((5.0, "cloud", "die")), evaluate={"seconds": 400.0})
    assert one.simulation.finished


def test_devices_that_never_stay_long_enough_end_the_run() -> None:
    # A batch takes twenty seconds; they stay for three on average.
    churn = {"kind": "two_state", "working": 0.7, "mean_stay": 3.0}
    one = run("fedavg", world={"compute": {"kind": "constant", "seconds": 20.0}, "churn": churn})
    assert one.simulation.finished and one.simulation.round == 0
    assert "none of them stays for as long as its work takes" in one.simulation.stalled
    assert one.recorder.read_meta("status")["stalled"] == one.simulation.stalled
    assert len(events(one, "stalled")) == 1


# -- messages and links --------------------------------------------------------------------------------


def test_lost_and_doubled_messages_cost_bytes_and_time_but_nothing_else() -> None:
    def figures(faults: dict[str, Any]) -> tuple[float, float, list[float]]:
        one = run("fedavg", world={**SPEEDS, "faults": faults})
        sent = one.recorder.connection.execute("SELECT sum(bytes) FROM traffic WHERE round = 4").fetchone()[0]
        scores = one.recorder.connection.execute("SELECT value FROM metrics WHERE name = 'acc_global'")
        return sent, one.simulation.now, [r[0] for r in scores]

    fine = figures({"kind": "none"})
    doubled = figures({"kind": "random", "dev_edge": {"duplicate": 1.0}, "edge_cloud": {"duplicate": 1.0}})
    lossy = figures({"kind": "random", "dev_edge": {"loss": 0.4, "corrupt": 0.2}})
    assert doubled == (2 * fine[0], fine[1], fine[2])
    # Of 100 tries 40 are lost and 20 % of the others damaged: 0.6 · 0.8 = 48 % arrive, 1 / 0.48 = 2.08 tries each.
    assert 1.2 < lossy[0] / fine[0] < 2.0  # only one of a message's two hops is bad
    assert lossy[1] > fine[1]
    assert lossy[2] == fine[2]


def test_link_that_never_comes_back() -> None:
    # Device 0 cannot be reached any more: the round goes on without it, every round.
    cut = {"kind": "random", "outages": [{"a": 0, "start": 0.0, "end": float("inf")}]}
    one = run(world={**SPEEDS, "faults": cut}, fleet={"devices": 12, "edges": 3})
    assert one.simulation.round == 4
    unreachable, undelivered = events(one, "unreachable"), events(one, "undelivered")
    assert unreachable[0] == (0.0, 12, {"to": 0})
    assert undelivered[0] == (10.0, 12, {"to": 0})


def test_dead_relay_is_gone_around() -> None:
    # FedAvg's messages pass through edges: with one dead they take the next, with all dead they wait.
    one = run("fedavg", world=script((0.5, "edge:0", "die")))
    assert one.simulation.round == 4
    gone = [(0.5, f"edge:{e}", "die") for e in range(3)]
    one = run("fedavg", world=script(*gone, (100.0, "edge:0", "join")))
    assert one.simulation.round == 4
    assert one.simulation.now > 100


def test_silent_devices_do_not_hold_up_a_round() -> None:
    churn = {"kind": "failures", "rate": 0.02, "restart": 5.0}  # back before the 10 s are over
    one = run(world={**SPEEDS, "churn": churn}, rounds=6)
    assert one.simulation.round == 6
    assert np.isfinite(one.simulation.now)

"""CSAHFL: who is merged when, where and with which weight; what it equals; what it costs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from espalier.core.aggregator import Aggregator
from espalier.core.messages import Arrived, ChildLeft, CloseCohort, Deadline, OpenCohorts, Order, SetDeadline
from espalier.core.policies import Rules
from espalier.core.store import Ref
from espalier.experiment import Experiment
from espalier.methods.csahfl.semi_async import REPORTERS, Discounted, GroupModels, SemiAsync
from espalier.simulator.jobs import Job
from espalier.simulator.ledger import Ledger
from espalier.simulator.runner import Runner
from espalier.testing import BASE
from tests.core.fakes import SmallFleet, answer, orders
from tests.methods.test_equivalences import final

EDGE, OTHER, CLOUD = 10, 11, 20
#: 64 inputs, 16 hidden, 10 outputs
M = 4 * 1210


class Clocked(SmallFleet):
    """Every device says that an epoch takes it 10 s; links take no time."""

    def update_time(self, device: int, now: float, epoch: int = 0) -> float:
        return 10.0

    def batch_time(self, device: int, now: float) -> float:
        return 0.5

    def model_time(self, src: int, dst: int, now: float) -> float:
        return 0.0


def edge(fleet: Clocked, me: int = EDGE) -> Aggregator:
    rules = Rules(pace=SemiAsync(1, alpha=1.5), merge=Discounted(), hand_down=GroupModels())
    return Aggregator(me, rules, fleet)


def order(to: int = EDGE, updates: int = 9) -> Arrived:
    return Arrived(Order(1, CLOUD, to, {"": Ref(0)}, updates, 0, 0, 0.0))


def next_round(node: Aggregator, actions: list[Any], now: float) -> dict[int, Order]:
    (again,) = [a for a in actions if isinstance(a, SetDeadline) and a.wake == OpenCohorts()]
    return orders(node.on(Deadline(again.wake), now))


def test_a_device_two_and_a_half_intervals_late_joins_two_rounds_later() -> None:
    """Devices 0, 1, 2 need 9 s of an interval of 10 s; device 3 needs 25 s."""
    fleet = Clocked({**dict.fromkeys(range(4), EDGE), EDGE: CLOUD})
    node, number = edge(fleet), fleet.store.number
    actions = node.on(order(), 0.0)
    (interval,) = [a for a in actions if isinstance(a, SetDeadline)]
    assert interval.seconds == pytest.approx(10.0)
    first = orders(actions)
    fleet.at_work = {3}
    for device in (0, 1, 2):
        node.on(answer(first[device], number(1.0), device + 1, 9.0), 9.0)
    # Round 0 closes at its deadline with three reports.
    actions = node.on(Deadline(CloseCohort("", 0)), 10.0)
    assert fleet.store.numbers[node.state.models[""]] == 1.0
    # Device 3 is at work: it is not drawn. Round 1 closes as soon as the others are in.
    second = next_round(node, actions, 10.0)
    assert sorted(second) == [0, 1, 2]
    for device in (0, 1, 2):
        actions = node.on(answer(second[device], number(2.0), device + 1, 19.0), 19.0)
    third = next_round(node, actions, 19.0)
    # It arrives at 25 s, in round 2: two rounds late, a third of its 4 samples.
    fleet.at_work = set()
    assert node.on(answer(first[3], number(11.0), 4, 25.0), 25.0) == []
    for device in (0, 1, 2):
        actions = node.on(answer(third[device], number(3.0), device + 1, 28.0), 28.0)
    # the other two thirds stay with the current model, 2: (6 · 3 + 4/3 · 11 + 8/3 · 2) / 10 = 38/10
    assert fleet.store.numbers[node.state.models[""]] == pytest.approx(3.8)
    # It is free again, and its report is gone: the next round merges only new ones.
    fourth = next_round(node, actions, 28.0)
    assert sorted(fourth) == [0, 1, 2, 3]
    for device in range(4):
        node.on(answer(fourth[device], number(5.0), device + 1, 30.0), 30.0)
    assert fleet.store.numbers[node.state.models[""]] == 5.0


def test_a_device_that_moved_is_merged_where_it_arrives() -> None:
    """Device 3 is ordered by one edge, moves while it trains, and reports to the other one."""
    fleet = Clocked({**dict.fromkeys((0, 3), EDGE), 1: OTHER, EDGE: CLOUD, OTHER: CLOUD})
    fleet.groups = {3: "c1"}
    here, there, number = edge(fleet), edge(fleet, OTHER), fleet.store.number
    sent = orders(here.on(order(), 0.0))
    also = orders(there.on(order(OTHER), 0.0))
    assert list(sent[3].models) == ["c1"]
    fleet.parents[3], fleet.at_work = OTHER, {3}
    here.on(ChildLeft(3), 2.0)
    # The old edge does not wait for it, and has nothing of it.
    here.on(answer(sent[0], number(1.0), 1, 9.0), 9.0)
    assert "c1" not in here.state.models
    # The new edge merges it in its second round, under its own cluster.
    actions = there.on(answer(also[1], number(7.0), 2, 9.0), 9.0)
    again = next_round(there, actions, 9.0)
    assert sorted(again) == [1]
    there.on(answer(sent[3], number(4.0), 4, 12.0, to=OTHER), 12.0)
    there.on(answer(again[1], number(8.0), 2, 15.0), 15.0)
    # it is one round late, and its cluster is new there: half of it, and half of what the edge had, 7
    assert fleet.store.numbers[there.state.models["c1"]] == 5.5
    assert fleet.store.numbers[there.state.models[""]] == 8.0
    assert there.state.memory.product(REPORTERS) == {"": {1: 2}, "c1": {3: 4}}


# -- the same, in a whole run ----------------------------------------------------------------------------


class Spied:
    """A run whose merges at the edges are written down."""

    def __init__(self, method: Any, **changes: Any) -> None:
        table = {**BASE, "record": {"checkpoint_seconds": None}, **changes}
        self.runner = Runner(Experiment.build(table).only(method, 0), None)
        self.sums: list[list[tuple[float, Ref]]] = []
        ledger = self.runner.simulation.ledger
        combine, submit = ledger.combine, ledger.submit
        self.jobs: dict[int, Job] = {}

        def spied_combine(terms: Any, fallback: Any = None) -> Ref:
            sim = self.runner.simulation
            if sim._event.node != sim.fleet.cloud:  # of a single report the merge is the report, which goes on up
                # the current model, on which a merge falls back, is no report
                self.sums.append([(c, ref) for c, ref in terms if ref != fallback])
            return combine(terms, fallback)

        def spied_submit(job: Job) -> Ref:
            ref = submit(job)
            self.jobs[int(ref)] = job
            return ref

        ledger.combine, ledger.submit = spied_combine, spied_submit  # type: ignore[method-assign]
        self.runner.run()

    def events(self, kind: str) -> list[dict[str, Any]]:
        rows = self.runner.recorder.connection.execute("SELECT node, time, data FROM events WHERE kind = ?", (kind,))
        return [{"node": n, "time": t, **json.loads(d)} for n, t, d in rows]

    def merges_of(self, device: int) -> list[list[float]]:
        """Return, per training of a device, the weights with which it was merged."""
        own = [r for r, job in self.jobs.items() if job.device == device]
        return [[c for terms in self.sums for c, ref in terms if int(ref) == r] for r in own]


def scripted(folder: Path, moves: bool) -> Spied:
    """Eight devices of 30 samples (3 batches of 1 s); device 3 becomes 2.5 times slower as it begins."""
    speed = folder / "speed.csv"
    rows = [f"{d},0,1" for d in range(8)] + ["3,0.000001,2.5", "3,8,1"]
    speed.write_text("device,time,seconds_per_batch\n" + "\n".join(rows) + "\n")
    world: dict[str, Any] = {"compute": {"kind": "trace", "file": str(speed)}}
    if moves:
        ways = folder / "ways.csv"
        ways.write_text("device,time,edge\n3,5,1\n")
        world["mobility"] = {"kind": "trace", "file": str(ways)}
    return Spied(
        {"name": "csahfl", "edge_rounds": 5, "probe": False, "clustering": False, "weighting": "samples"},
        world=world, partition={"kind": "iid", "samples_per_device": 30}, fleet={"devices": 8, "edges": 2},
        training={"batch_size": 10, "updates": 1, "lr": 0.05}, stop={"rounds": 1},
    )  # fmt: skip


@pytest.mark.parametrize("moves", [False, True])
def test_the_scripted_trace(tmp_path: Path, moves: bool) -> None:
    """Rounds close at 3, 6 and 9 s; device 3 arrives at 7.5 s: in round 2, at the edge where it is then."""
    run = scripted(tmp_path, moves)
    (late,) = run.events("late")
    assert (late["node"], late["child"], late["rounds"]) == (8 + int(moves), 3, 2)
    assert late["time"] == pytest.approx(9.0)
    # Four others in time if it moved to an edge of four, else three: a third of its samples against theirs.
    others = 4 if moves else 3
    first, *rest = run.merges_of(3)
    assert first == [pytest.approx((1 / 3) / (others + 1))]
    # Every training was merged exactly once, its own late one included.
    assert all(len(found) == 1 for found in rest)
    for device in (0, 1, 2, 4, 5, 6, 7):
        assert [len(found) for found in run.merges_of(device)] == [1] * 5


def test_nothing_counts_twice_and_nothing_is_lost_when_devices_move_as_they_train() -> None:
    world = {
        "compute": {"kind": "noise", "of": {"kind": "rate", "low": 0.5, "high": 8.0}, "sigma": 0.8},
        "mobility": {"kind": "markov", "stay": 0.5, "when": "mid_round"},
    }
    run = Spied({"name": "csahfl", "alpha": 0.2}, world=world, stop={"rounds": 6})
    uses = Counter(int(ref) for terms in run.sums for _, ref in terms if int(ref) in run.jobs)
    assert set(uses.values()) == {1}
    assert run.events("dropped") == []
    # What was not merged is still on its way, or waits at an edge for the next round.
    sim = run.runner.simulation
    pending: set[int] = set()
    for address in range(12, 15):
        for cohort in sim.nodes[address].state.cohorts.values():
            pending |= {int(r) for a in cohort.arrived for r in a.report.models.values()}
    flying = {int(m) for e in sim.clock.entries() for m in _models(e[3])}
    assert set(run.jobs) - set(uses) <= pending | flying


def _models(what: Any) -> list[Ref]:
    event = getattr(what, "event", None)
    message = getattr(event, "message", None)
    found = list(getattr(message, "models", {}).values())
    return [*found, event.model] if hasattr(event, "model") else found


# -- what it equals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fleet", [{"devices": 12, "edges": 3}, {"devices": 12, "edges": 6, "tiers": [3, 2]}])
def test_one_cluster_and_everybody_in_time_is_hierfavg(fleet: dict[str, Any]) -> None:
    """With equal speeds the interval is what everybody needs: all epochs fit, nobody is late."""
    changes = {
        "fleet": fleet,
        "world": {"compute": {"kind": "constant", "seconds": 0.1}, "links": {"kind": "uniform", "latency": 0.3}},
        "partition": {"kind": "iid", "samples_per_device": 40},
    }
    ours = final({"name": "csahfl", "beta": 90.0, "edge_rounds": 3}, **changes)
    theirs = final({"name": "hierfavg", "kappa2": 3}, **changes)
    if "tiers" in fleet:
        # the same numbers, added in another order
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    else:
        assert torch.equal(ours, theirs)


def test_without_noise_nobody_is_late_and_with_it_somebody_is() -> None:
    """Whoever keeps its promise is in time at any alpha: one epoch always fits into the median of all epochs."""
    delay = {"kind": "truncated_normal", "mean": 63, "std": 40, "low": 2, "high": 128, "per": "training", "epochs": 10}
    training = {**BASE["training"], "updates": 10}
    for sigma, late in ((0.0, False), (0.3, True)):
        world = {
            "compute": {"kind": "noise", "of": delay, "sigma": sigma},
            "links": {"kind": "uniform", "latency": 0.2},
        }
        for alpha in (0.0, 1.5):
            run = Spied({"name": "csahfl", "alpha": alpha, "edge_rounds": 2}, world=world, training=training)
            assert bool(run.events("late")) == late, (sigma, alpha)


# -- what it costs ---------------------------------------------------------------------------------------


def test_bytes() -> None:
    """Signatures and histograms once; one model down to each edge per cloud round, one per cluster there up."""
    run = Spied({"name": "csahfl", "beta": "auto", "edge_rounds": 2}, fleet={"devices": 12, "edges": 3})
    rows = run.runner.recorder.connection.execute(
        "SELECT tier, direction, kind, max(bytes) FROM traffic GROUP BY tier, direction, kind"
    )
    found = {(t, d, k): n for t, d, k, n in rows}
    rounds, sim = 4, run.runner.simulation
    # 64 features × 3 vectors and 10 labels, 4 bytes each, over both hops; each order carries the number of vectors
    survey = 12 * 4 * (64 * 3 + 10)
    assert found["dev-edge", "up", "ctrl"] == survey
    assert found["dev-edge", "down", "ctrl"] == 12 * 4
    assert found["edge-cloud", "down", "model"] == rounds * 3 * M
    # an edge sends up each cluster of which somebody reported, and who did
    clusters = sum(len({sim.fleet.group(d) for d in range(e * 4, e * 4 + 4)}) for e in range(3))
    assert found["edge-cloud", "up", "model"] <= rounds * clusters * M
    assert found["edge-cloud", "up", "ctrl"] <= survey + rounds * 12 * 4
    (arranged,) = run.events("arranged")
    assert arranged["clusters"] == len(set(sim.fleet.tree.device_group.tolist())) > 1


def test_without_similarity_only_the_vectors_leave_a_device() -> None:
    run = Spied({"name": "csahfl", "weighting": "samples"}, fleet={"devices": 12, "edges": 3})
    (total,) = run.runner.recorder.connection.execute(
        "SELECT max(bytes) FROM traffic WHERE tier = 'dev-edge' AND direction = 'up' AND kind = 'ctrl'"
    ).fetchone()
    assert total == 12 * 4 * 64 * 3


# -- clusters --------------------------------------------------------------------------------------------


def test_clusters_cut_across_edges_and_gather_devices_of_equal_labels() -> None:
    fleet, partition = {"devices": 40, "edges": 4}, {"kind": "two_level", "edge_fraction": 1.0}
    run = Spied({"name": "csahfl", "beta": "auto"}, fleet=fleet, partition=partition, stop={"rounds": 1})
    sim = run.runner.simulation
    groups, edges = sim.fleet.tree.device_group, sim.fleet.partition.edge
    assert max(len(set(edges[groups == g].tolist())) for g in set(groups.tolist())) > 1
    labels = [frozenset(np.flatnonzero(h).tolist()) for h in sim.fleet.partition.histogram]
    shared = [(len(labels[i] & labels[j]), groups[i] == groups[j]) for i in range(40) for j in range(i)]
    together = {k: np.mean([same for n, same in shared if n == k]) for k in (0, 2)}
    assert together[2] > together[0]


def test_newcomers_join_the_nearest_cluster() -> None:
    events = [{"time": 0.0, "host": d, "event": "leave"} for d in (3, 7)]
    events += [{"time": 30.0, "host": d, "event": "join"} for d in (3, 7)]
    world = {**BASE["world"], "churn": {"kind": "scheduled", "events": events}}
    run = Spied({"name": "csahfl", "beta": "auto"}, world=world, stop={"rounds": 12})
    assert run.events("arranged")[-1]["newcomers"] == 2
    tree = run.runner.simulation.fleet.tree
    assert all(tree.group(d).startswith("c") for d in range(12))


def test_the_model_that_serves() -> None:
    """A cluster's own model knows its members' labels better than the model of all."""
    training = {**BASE["training"], "updates": 4}
    scores = []
    for serve in ("global", "cluster"):
        run = Spied({"name": "csahfl", "beta": 8.0, "serve": serve}, training=training, stop={"rounds": 3})
        scores.append(run.runner.simulation.meter.last["acc_device"])
    assert scores[1] > scores[0]


def test_ablations_change_what_they_should() -> None:
    noisy = {"kind": "noise", "of": {"kind": "rate", "low": 1.0, "high": 8.0}, "sigma": 0.5}
    runs = {
        name: Spied({"name": "csahfl", "beta": "auto", **options}, world={"compute": noisy})
        for name, options in {
            "whole": {}, "without C": {"clustering": False}, "without SA": {"semi_async": False},
            "without D": {"weighting": "uniform"},
        }.items()
    }  # fmt: skip
    assert not runs["without C"].events("arranged")
    assert not runs["without SA"].events("late") and not runs["without SA"].events("interval")
    last = runs["without D"].events("weights")[-1]["values"]
    assert len(set(last.values())) == 1
    ends = [run.runner.simulation.ledger.vector(run.runner.simulation.served[15][""]) for run in runs.values()]
    assert all(not torch.equal(ends[0], other) for other in ends[1:])
    assert runs["whole"].runner.simulation.now < runs["without SA"].runner.simulation.now


def test_nothing_is_computed_before_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither clustering nor probes need the models' numbers."""
    monkeypatch.setattr(Ledger, "vectors", None)
    Spied("csahfl")


def test_it_learns_digits() -> None:
    run = Spied("csahfl", partition={"kind": "two_level", "edge_fraction": 0.5}, stop={"rounds": 15})
    assert run.runner.simulation.meter.last["acc_global"] > 0.6

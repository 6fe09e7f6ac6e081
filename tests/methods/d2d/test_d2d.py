"""D2D co-optimisation on real digits: rounds, clusters, bytes, what it equals at its ends, liars."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from espalier import simulate
from espalier.core.address import host_of, level_of, role
from espalier.core.aggregator import Aggregator
from espalier.core.errors import ConfigError
from espalier.core.messages import Report
from espalier.core.view import Arrival
from espalier.experiment import Experiment
from espalier.methods.d2d.member import GLOBAL_ROUND, Cluster, GlobalRound
from espalier.methods.d2d.method import D2D, BenchmarkB
from espalier.methods.d2d.timing import arrivals, head_and_time
from espalier.record.run import Run
from espalier.simulator.runner import Runner
from espalier.testing import CHECKS, check

TABLE: dict[str, Any] = {
    "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}},
    "partition": {"kind": "dirichlet", "alpha": 0.3, "min_samples": 12, "fraction": 0.25},
    "fleet": {"devices": 15, "edges": 1},
    "training": {"batch_size": 4, "lr": 0.05},
    "world": {"preset": "d2d"},
    "stop": {"rounds": 3},
}
PAPER = {"t_g": 120, "t_feature": 80}


@cache
def paper(name: str = "d2d", theory: bool = False, solution: str | None = None) -> Run:
    """A run under the paper's times, shared by tests that only look."""
    extra = {} if solution is None else {"solution": solution}
    return simulate({"name": name, "theory": theory, **PAPER, **extra}, TABLE)


def runner(method: str | dict[str, Any], **changes: Any) -> Runner:
    found = Runner(Experiment.build({**TABLE, **changes}).only(method, 0), None)
    found.run()
    return found


def run_of(found: Runner) -> Run:
    return Run(connection=found.recorder.connection)


def test_a_global_round_lasts_the_features_time_and_the_clusters_time() -> None:
    # "2400 steps, 120 + 80": 12 rounds; here 3 rounds are 600 steps.
    run = paper()
    assert run.frame()["time"].tolist() == pytest.approx([0, 200, 400, 600])
    assert not run.events("dropped") and not run.events("unreachable")


@pytest.mark.parametrize("experiment", ["1a", "1b", "3"])
def test_clusters_have_the_heads_times_and_rounds_of_equations_4_and_5(experiment: str) -> None:
    found = runner({"name": "d2d", **PAPER}, world={"preset": {"name": "d2d", "experiment": experiment}})
    sim = found.simulation
    batches = np.array([sim.fleet.speeds.update_batches(d) for d in range(15)])
    events = run_of(found).events("arranged")
    assert [e["round"] for e in events] == [0, 1, 2]
    for event in events:
        epoch = event["round"]
        links = sim.world.links.at(epoch).matrix(np.arange(15), sim.task.spec.model_bytes)
        compute = np.array([sim.world.compute.at(epoch).nominal(d, b, 0.0) for d, b in enumerate(batches)])
        times = arrivals(compute, links)
        assert sorted(d for c in event["clusters"] for d in c) == list(range(15))
        for members, head, seconds, rounds in zip(
            event["clusters"], event["heads"], event["seconds"], event["rounds"], strict=True
        ):
            assert 2 <= len(members) <= 10
            best, slowest = head_and_time(times, np.array(members))
            assert (head, seconds) == (best, pytest.approx(slowest))
            assert rounds == math.floor(120 / slowest + 1e-9)
    if experiment == "3":
        speeds = [sim.world.compute.at(e).nominal(0, 1, 0.0) for e in range(8)]
        assert len(set(speeds)) > 1


def test_on_a_real_fleet_messages_take_time_to_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounds of 20 ms took 100: all of a cluster's reports came after the global round, and were dropped.
    plan = D2D.plan
    monkeypatch.setattr(D2D, "plan", lambda self, setting: plan(self, replace(setting, message_seconds=0.5)))
    [event, *_] = run_of(runner("d2d", stop={"rounds": 1})).events("arranged")
    assert event["t_g"] == pytest.approx(4 * (np.median(event["seconds"]) + 2 * 0.5))
    assert event["rounds"] == [int(event["t_g"] // (seconds + 1.0) + 1e-9) for seconds in event["seconds"]]


def test_devices_report_to_heads_that_are_devices() -> None:
    found = runner({"name": "d2d", **PAPER}, stop={"rounds": 2})
    tree = found.simulation.fleet.tree
    parents = {int(tree.parent(d)) for d in range(15)}  # type: ignore[arg-type]
    assert all(level_of(p) in (1, 2) and tree.parent(p) == tree.root for p in parents)
    last = run_of(found).events("arranged")[-1]
    assert {host_of(p) for p in parents} == set(last["heads"])
    # members spend the rounds training at the head's pace: as many trainings as rounds, and one for the feature
    trained = np.zeros(15)
    for event in run_of(found).events("arranged"):
        for members, rounds in zip(event["clusters"], event["rounds"], strict=True):
            trained[members] += rounds + 1
    assert found.simulation.runtime.numbers.trainings.tolist() == trained.tolist()


@pytest.mark.parametrize(
    ("feature", "size"), [("phi", None), ("phi_crop", 4 * (16 * 10 + 10)), ("skew", 40), ("pred", 40)]
)
def test_bytes_are_those_of_the_papers_stages(feature: str, size: int | None) -> None:
    # phi_crop: the smallest layer of the MLP is its head, 16 · 10 + 10 numbers. skew: ten counts, the first time.
    found = runner({"name": "d2d", "feature": feature, **PAPER})
    model = found.simulation.task.spec.model_bytes
    events = run_of(found).events("arranged")
    # In each round: a model down to every device, one up and one down for every member and round of a cluster, one up
    # for every cluster that trained, and 4 bytes for every link that a device tells of.
    inside = sum(2 * (len(c) - 1) * r * model for e in events for c, r in zip(e["clusters"], e["rounds"], strict=True))
    heads = sum(model for e in events for r in e["rounds"] if r)
    features = len(events) * 15 * model if feature == "phi" else 0
    sent: dict[tuple[str, str, str], int] = {
        (tier, direction, kind): n
        for tier, direction, kind, n in found.recorder.connection.execute(
            "SELECT tier, direction, kind, bytes FROM traffic WHERE round = 3"
        )
    }
    assert sent["dev-dev", "peer", "model"] == inside
    assert sent["dev-edge", "down", "model"] == len(events) * 15 * model
    assert sent["dev-edge", "up", "model"] == features + heads
    # besides: 4 bytes per link and 4 for the speed from each device, and features that are no models
    told = 0 if size is None else 15 * size * (1 if feature == "skew" else 3)
    assert sent["dev-edge", "up", "ctrl"] == len(events) * 4 * 15 * 15 + 3 * 15 * 4 + told
    assert sent["edge-cloud", "up", "model"] == sent["dev-edge", "up", "model"]  # the edge relays


def test_clusters_that_cannot_finish_a_round_make_it_federated_averaging() -> None:
    # T_g = 1 s is shorter than any link (6 s and more): r_c = 0 everywhere, the global model is the average of
    # the models trained for the feature.
    changes = {"training": {"batch_size": 10, "lr": 0.1, "precision": "float64"}}
    found = runner({"name": "d2d", "t_g": 1.0}, **changes)
    assert {r for e in run_of(found).events("arranged") for r in e["rounds"]} == {0}
    plain = runner("fedavg", **changes)
    one, other = found.final_models()["global"], plain.final_models()["global"]
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    # without that training the model stays what it was
    still = runner({"name": "d2d", "feature": "skew", "t_g": 1.0}, **changes)
    assert torch.equal(still.final_models()["global"], still.simulation.task.initial(0, 0))
    cropped = runner({"name": "d2d", "feature": "phi_crop", "t_g": 1.0}, **changes)
    assert torch.equal(cropped.final_models()["global"], cropped.simulation.task.initial(0, 0))


def test_one_cluster_of_all_with_one_round_is_federated_averaging() -> None:
    # Without training for the feature, and a global round as long as one round of the only cluster.
    changes = {"training": {"batch_size": 10, "lr": 0.1, "precision": "float64"}}
    alone = {"name": "d2d", "feature": "skew", "n_clusters": 1, "rounds": 1}
    found = runner(alone, **changes)
    assert {r for e in run_of(found).events("arranged") for r in e["rounds"]} == {1}
    one, other = found.final_models()["global"], runner("fedavg", **changes).final_models()["global"]
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_the_features_training_counts_unless_it_is_discarded() -> None:
    # Two half trainings from the same start: kept, devices are one training ahead.
    kept = paper().frame()["acc_global"]
    discarded = simulate({"name": "d2d", "keep": False, **PAPER}, TABLE).frame()["acc_global"]
    assert kept.iloc[1] > discarded.iloc[1]


def test_missing_links_leave_clusters_without_rounds_but_stop_nobody() -> None:
    world = {"preset": {"name": "d2d", "experiment": "3", "intermittent": True}}
    for method in ("d2d", "d2d_b"):
        run = simulate({"name": method, "t_g": 100, "n_clusters": 2}, {**TABLE, "world": world, "stop": {"rounds": 4}})
        assert run.rounds == 4 and not run.events("unreachable")
        seconds = [s for e in run.events("arranged") for s in e["seconds"]]
        rounds = [r for e in run.events("arranged") for r in e["rounds"]]
        assert all((s is None) <= (r == 0) for s, r in zip(seconds, rounds, strict=True))
        if method == "d2d_b":
            assert None in seconds  # cliques of seven without a look at the links


def test_links_whose_broadcast_takes_time_are_counted_both_ways() -> None:
    world = {
        "compute": {"kind": "rate", "low": 10.0, "high": 10.0},
        "links": {"kind": "pairs", "throughput": [1.0, 5.0], "whole": True, "broadcast": "paid"},
    }
    run = simulate({"name": "d2d", **PAPER}, {**TABLE, "world": world})
    assert run.frame()["time"].iloc[-1] == pytest.approx(600)
    assert not run.events("dropped")


def test_only_capable_devices_become_heads() -> None:
    world = {"preset": "d2d", "capability": {"kind": "listed", "devices": [0, 3, 7, 9, 12]}}
    run = simulate({"name": "d2d", **PAPER}, {**TABLE, "world": world})
    for event in run.events("arranged"):
        for head, rounds in zip(event["heads"], event["rounds"], strict=True):
            assert rounds == 0 or head in (0, 3, 7, 9, 12)
    assert any(r > 0 for e in run.events("arranged") for r in e["rounds"])


def test_cliques_are_formed_once_and_spectral_clusters_are_further_from_the_fleet() -> None:
    cliques = paper("d2d_b").events("arranged")
    assert len({str(e["clusters"]) for e in cliques}) == 1 and len({str(e["heads"]) for e in cliques}) > 1
    angle = {
        name: np.mean([np.mean(e["angles"]) for e in paper(name, theory=True).events("arranged")])
        for name in ("d2d", "d2d_a")
    }
    assert angle["d2d"] < angle["d2d_a"]


def test_solution_two_takes_more_time_and_does_fewer_rounds() -> None:
    rounds = {s: np.mean([np.mean(e["rounds"]) for e in paper(solution=s).events("arranged")]) for s in ("1.1", "2")}
    assert rounds["2"] < rounds["1.1"]


def test_devices_that_lie_about_their_links_are_found_recorded_and_left_out() -> None:
    world = {
        "compute": {"kind": "rate", "low": 10.0, "high": 10.0},
        "links": {"kind": "pairs", "throughput": [1.0, 5.0], "whole": True, "liars": [2, 5], "lie": 0.25},
    }
    run = simulate({"name": "d2d", "defence": True, **PAPER}, {**TABLE, "world": world})
    (event,) = run.events("excluded")
    assert event["devices"] == [2, 5] and event["round"] == 0 and "links" in event["why"]
    for arranged in run.events("arranged"):
        assert not {2, 5} & {d for c in arranged["clusters"] for d in c}
    # nobody looks: the liars' clusters take longer than the server believes, and do fewer rounds than it ordered
    naive = runner({"name": "d2d", **PAPER}, world=world)
    ordered = [sum(r * len(c) for c, r in zip(e["clusters"], e["rounds"], strict=True)) + 15
               for e in run_of(naive).events("arranged")]  # fmt: skip
    assert naive.simulation.runtime.numbers.trainings.sum() < sum(ordered)


def test_devices_that_take_longer_than_they_say_are_found_recorded_and_left_out() -> None:
    slow = {"kind": "throttled", "of": {"kind": "rate", "low": 1.0, "high": 1.0}, "devices": [4], "factor": 3.0}
    links = {"kind": "pairs", "throughput": [1.0, 5.0], "whole": True}
    run = simulate({"name": "d2d", "defence": True, "t_g": 200}, {**TABLE, "world": {"compute": slow, "links": links}})
    (event,) = run.events("excluded")
    assert event["devices"] == [4] and event["round"] == 0
    assert [4 in {d for c in e["clusters"] for d in c} for e in run.events("arranged")] == [True, False, False]


def test_a_head_names_nobody_outside_of_its_cluster() -> None:
    # the word of any head left whomever it named out of the run, for good
    run = runner({"name": "d2d", "defence": True, **PAPER}, world={"preset": "d2d"})
    (root,) = (n for n in run.simulation.runtime.nodes.values() if type(n) is Aggregator and n.state.order is None)
    structure, view = root.rules.structure, root._view("", 0.0)
    clusters = [Cluster(role(0, 1), [0, 1], 1), Cluster(role(2, 1), [2, 3], 1)]
    view.provide(GLOBAL_ROUND, GlobalRound(clusters=clusters))
    for sender in (role(0, 1), 4):  # a head, and a device that leads nobody
        report = Report(1, root.me, sender, root.me, {}, {}, 1, 0, 0.0, stats={"throttled": [1, 2, 3, "x", 1 << 70]})
        structure.learn(view, [Arrival(report, 0.0, 0)])
    assert view.state(structure).excluded.keys() == {1}


def test_an_honest_fleet_loses_nobody_to_the_defence() -> None:
    run = simulate({"name": "d2d", "defence": True, **PAPER}, {**TABLE, "world": {"preset": "d2d"}})
    assert not run.events("excluded")
    assert run.frame()["acc_global"].tolist() == paper().frame()["acc_global"].tolist()


def test_mismatch_of_gradients_is_recorded_with_what_the_bound_needs() -> None:
    run, spectral = paper(theory=True), paper("d2d_a", theory=True)
    for found in (run, spectral):
        assert [e["round"] for e in found.events("mismatch")] == [0, 1, 2]
        for event in found.events("mismatch"):
            values = event["values"]
            assert values["cluster_global"] <= values["cluster_global_max"]
            assert np.mean(event["clusters"]) == pytest.approx(values["cluster_global"])
            assert len(event["devices"]) == 15 and values["h_max"] >= 1
        losses = [e["values"]["loss"] for e in found.events("mismatch")]
        assert losses[-1] < losses[0]

    def mean(found: Run, what: str) -> float:
        return float(np.mean([e["values"][what] for e in found.events("mismatch")]))

    # Table 9: unlike devices together bring clusters nearer to the fleet and devices further from their clusters
    assert mean(run, "cluster_global") < mean(spectral, "cluster_global")
    assert mean(run, "device_cluster") > mean(spectral, "device_cluster")


def test_a_head_that_dies_costs_its_clusters_round_and_nothing_else() -> None:
    first = paper().events("arranged")[0]
    victim = first["heads"][0]
    events = [{"time": 100.0, "host": victim, "event": "die"}]
    world = {"preset": "d2d", "churn": {"kind": "scheduled", "events": events}}
    run = simulate({"name": "d2d", **PAPER}, {**TABLE, "world": world})
    assert run.rounds == 3 and run.frame()["time"].iloc[-1] == pytest.approx(600)
    assert all(victim not in {d for c in e["clusters"] for d in c} for e in run.events("arranged")[1:])


@pytest.mark.parametrize("check_name", CHECKS)
@pytest.mark.parametrize(
    "options",
    [{"solution": "1.2", "feature": "phi_crop"}, {"solution": "2", "feature": "skew"},
     {"solution": "3", "feature": "pred", "start": "reverse_spectral", "defence": True, "t_g": 20, "t_feature": 12}],
)  # fmt: skip
def test_every_solution_and_feature_stands_the_conformance_suite(options: dict[str, Any], check_name: str) -> None:
    check({"name": "d2d", **options}, check_name)


@pytest.mark.parametrize(
    "options", [{"t_g": -1.0}, {"rounds": 0}, {"feature_updates": 0}, {"z": 0.9}, {"crop_layers": 0}]
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        D2D(**options)


def test_cliques_are_formed_by_labels_only() -> None:
    with pytest.raises(ConfigError, match="feature"):
        BenchmarkB(feature="phi")

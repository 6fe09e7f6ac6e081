"""Models are evaluated once, on the classes of those who use them; figures are those of a plain evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from espalier.experiment import Experiment
from espalier.simulator.metrics import stratified
from espalier.simulator.runner import Runner


def runner(method: str, **tables: Any) -> Runner:
    """Return a short run on digits, ready to go."""
    table = {"fleet": {"devices": 10, "edges": 5}, "stop": {"rounds": 2}, **tables}
    return Runner(Experiment.build(table).only(method, 0), None)


def watched(of: Runner, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, set[int]]]:
    """Note how many models are evaluated on which classes of the test set, call by call."""
    calls: list[tuple[int, set[int]]] = []
    inner = of.task.evaluator.run

    def run(vectors: Any, pool: Any, rows: Any, cells: Any, **options: Any) -> Any:
        calls.append((len(vectors), set(np.asarray(cells).tolist())))
        return inner(vectors, pool, rows, cells, **options)

    monkeypatch.setattr(of.task.evaluator, "run", run)
    return calls


def test_a_device_that_knows_two_classes_is_tested_on_these_two(monkeypatch: pytest.MonkeyPatch) -> None:
    made = runner("standalone", partition={"kind": "classes", "k": 2})
    made.run()
    calls = watched(made, monkeypatch)
    made.simulation.meter.scores._found.clear()
    made.simulation.meter.measure()
    mixes = made.simulation.fleet.partition.test_mix
    assert sum(models for models, _ in calls) == 10
    wanted = {frozenset(np.flatnonzero(mix).tolist()) for mix in mixes}
    # nobody merges: there is no common model that would need all classes
    assert {frozenset(classes) for _, classes in calls} <= wanted | {frozenset(range(10))}
    assert any(len(classes) < 10 for _, classes in calls)


def test_what_was_evaluated_is_not_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = runner("hierfavg")
    made.run()
    calls = watched(made, monkeypatch)
    made.simulation.meter.measure()
    assert calls == []


@pytest.mark.parametrize("layout", ["D1", "D2", "D3"])
def test_an_edge_is_judged_on_its_own_rows_without_a_second_evaluation(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runner(
        "phefl", fleet={"devices": 20, "edges": 10}, partition={"kind": "phefl", "layout": layout, "test": "imbalanced"}
    )
    made.run()
    sim = made.simulation
    meter, tests = sim.meter, sim.fleet.partition.edge_tests
    assert tests is not None
    models = meter._edge_models(sim.ledger.initial())
    meter.scores.prepare(meter._candidates(sim.ledger.initial()), models, None)
    calls = watched(made, monkeypatch)
    found = meter.scores.at_edges(models)
    assert calls == []
    for edge, ref in models.items():
        plain = meter.scores.on_rows([ref], {None: tests.evaluation[edge]}, "test")[0]
        assert found["acc"][edge] == pytest.approx(plain.main)
        assert found["loss"][edge] == pytest.approx(plain.loss, rel=1e-5)


@pytest.mark.parametrize(
    "drift",
    [
        {"kind": "permute_labels", "at_round": 2},
        {"kind": "label_switch", "at_round": 2, "before": [0, 1, 2, 3, 4], "after": [5, 6, 7, 8, 9]},
        {"kind": "gradual", "feature": "brightness", "amount": -0.5, "start": 1, "end": 2},
    ],
    ids=lambda drift: drift["kind"],
)
def test_an_edges_own_sets_drift_with_its_devices(drift: dict[str, Any]) -> None:
    made = runner(
        "hierfavg",
        fleet={"devices": 10, "edges": 10},
        partition={"kind": "phefl", "layout": "D4"},
        training={"updates": 5, "lr": 0.1},
        world={"preset": "ideal", "drift": drift},
        stop={"rounds": 8},
    )
    made.run()
    sim = made.simulation
    part = sim.fleet.partition
    # all edges have all classes and the same model: their own sets are parts of what the devices are tested on
    assert sim.meter.last["acc_edge"] == pytest.approx(sim.meter.last["acc_device"], abs=0.1)
    assert sim.meter.last["acc_edge"] > 0.6
    models = sim.meter._edge_models(sim.ledger.initial())
    for edge in range(part.n_edges):
        (own,) = sim.fleet.accuracy([models[edge]], "personal", sim.fleet.edge_host(edge))
        assert own > 0.4
    assert part.edge_tests is not None
    (look,) = set(sim.conditions.looks.tolist())
    rows = {look: np.concatenate([sim.views.tested(e, part.edge_tests.evaluation[e], look) for e in range(10)])}
    again = sim.meter.scores.on_rows([models[0]], rows, "test")[0]
    assert again.main == pytest.approx(sim.meter.last["acc_edge"], abs=0.02)


def test_devices_are_judged_by_each_model_that_they_could_use() -> None:
    tables = {"partition": {"kind": "classes", "k": 2}, "evaluate": {"by_source": True}}
    made, plain = runner("hierfavg", **tables), runner("hierfavg", partition=tables["partition"])
    made.run()
    plain.run()
    told = dict(made.recorder.connection.execute("SELECT name, value FROM metrics ORDER BY rowid").fetchall())
    known = dict(plain.recorder.connection.execute("SELECT name, value FROM metrics ORDER BY rowid").fetchall())
    assert told["acc_device_global"] == told["acc_device"]
    # a device that knows two classes does best, on these, with what it has trained itself
    assert told["acc_device_own"] > told["acc_device_edge"] > told["acc_device_global"]
    assert {k: v for k, v in told.items() if k in known} == known, "looking changes nothing"
    assert told.keys() - known.keys() == {"acc_device_global", "acc_device_edge", "acc_device_own"}


def test_a_training_that_moves_nothing_leaves_a_device_with_the_model_that_it_uses() -> None:
    made = runner("fedavg", evaluate={"by_source": True}, training={"lr": 1e-12})
    made.run()
    told = dict(made.recorder.connection.execute("SELECT name, value FROM metrics ORDER BY rowid").fetchall())
    assert told["acc_device_own"] == pytest.approx(told["acc_device_global"])


def test_rows_are_drawn_by_a_distribution_over_cells() -> None:
    cells = np.array([0, 1, 1, 0, 2, 1, 1, 0])
    # of 7 rows 0.5 are 3.5, 0.4 are 2.8 and 0.1 are 0.7: rounded down 3, 2 and 0, and one more for 0.8 and 0.7
    drawn = stratified(np.array([0.5, 0.4, 0.1], dtype=np.float32), cells, 7, np.random.default_rng(0))
    assert np.bincount(cells[drawn]).tolist() == [3, 3, 1]
    assert len(set(drawn.tolist())) == 7
    # cell 0 has three rows, each of which comes twice; cell 3 has none
    drawn = stratified(np.array([0.5, 0.0, 0.0, 0.5], dtype=np.float32), cells, 6, np.random.default_rng(0))
    assert sorted(drawn.tolist()) == [0, 0, 3, 3, 7, 7]
    # nobody has cell 3: each cell as often as it is there, 3, 4 and 1 of 8
    drawn = stratified(np.array([0.0, 0.0, 0.0, 1.0], dtype=np.float32), cells, 8, np.random.default_rng(0))
    assert sorted(drawn.tolist()) == list(range(8))


def test_a_model_that_an_edge_takes_over_is_evaluated_anew() -> None:
    made = runner("standalone", evaluate={"rows": 20})
    made.run()
    scores, fleet = made.simulation.meter.scores, made.simulation.fleet
    places, models = made.simulation.meter._candidates(made.simulation.ledger.initial())[0]
    scores.prepare([(places, models)], {}, None)
    ref = models[3, int(fleet.tree.device_group[3])]
    assert scores.found(ref, 0).device == 3 and len(scores.found(ref, 0).rows) == 20
    scores.prepare([(places, models)], {int(fleet.partition.edge[3]): ref}, None)
    assert scores.found(ref, 0).device is None and len(scores.found(ref, 0).rows) > 100

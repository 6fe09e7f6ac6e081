"""CFLHKD's tables and figures as studies: what is built, what was published, and that they run."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier.experiment import Experiment
from espalier.methods.cflhkd.measures import by_cluster, recovered, recovery
from espalier.record.database import Recorder
from espalier.record.run import Run
from espalier.simulator.runner import Runner
from espalier.study import tables
from espalier.study.base import SCALES, study
from espalier.study.claims import read_claims
from tests.study.made import made

NAMES = tuple(f"cflhkd/{n}" for n in (*(f"table{i}" for i in range(1, 9)), "fig4", "fig5", "fig6", "fig7", "readings"))


@pytest.mark.parametrize("name", NAMES)
def test_settings_can_be_built_at_every_scale(name: str) -> None:
    for scale in SCALES:
        cells = study(name).cells(scale)
        keys = [(c.row, c.column) for c in cells]
        assert len(keys) == len(set(keys)) > 1
    full = {(c.row, c.column) for c in study(name).cells("full")}
    assert {(r, c) for r, columns in study(name).published.items() for c in columns} <= full


def test_the_full_scale_is_the_papers_setting() -> None:
    cells = {(c.row, c.column): c.experiment for c in study("cflhkd/table1").cells("full")}
    assert len([row for row, _ in cells if row != "Trellis"]) == 9 * 5  # beside the paper's, a row of our own
    found = cells["CFLHKD", "CIFAR-10"]
    assert (found.fleet.devices, found.fleet.fraction, len(found.seeds)) == (100, 0.3, 3)
    training = found.training
    assert (training.batch_size, training.updates, training.lr, training.momentum) == (32, 5, 0.01, 0.9)
    assert (training.weight_decay, training.lr_decay, training.lr_decay_every) == (1e-4, 0.99, 20)
    assert found.partition["alpha"] == 0.5 and found.task.model == "resnet18"
    method: Any = found.methods[0].method
    assert (method.share_every, method.cluster_every, method.lam0, method.lam2) == (1, 1, 0.1, 0.005)
    ways = {c.row: c.experiment for c in study("cflhkd/readings").cells("full")}
    late: Any = ways["intervals of the appendix"].methods[0].method
    assert (late.share_every, late.tell_every, late.cluster_every) == (30, 10, 30)
    assert (method.gamma, method.delta, method.initial_clusters) == (0.5, 0.7, 4)
    # HierFAVG's cloud merges every 20 edge rounds; its learning rate decays as often as the others'.
    tree: Any = cells["HierFAVG", "MNIST"]
    assert (tree.methods[0].method.kappa2, tree.training.lr_decay_every) == (20, 1)
    drifting = {(c.row, c.column): c.experiment for c in study("cflhkd/table7").cells("full")}
    switch: Any = drifting["IFCA", "MNIST"].world.drift
    assert (switch.at_round, switch.before, switch.after) == (50, (0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
    assert drifting["IFCA", "Cityscapes"].world.drift.kind == "gradual"
    exchange: Any = drifting["IFCA", "MNIST, exchange"].world.drift
    assert (exchange.kind, exchange.at_round, exchange.turn) == ("exchange_labels", 50, 5)
    assert study("cflhkd/table2").published["IFCA"]["MNIST, exchange"] == {"drop": 8.2, "recovery": 6}


def test_sizes_that_claims_name_are_the_tables() -> None:
    table = study("cflhkd/table1").published
    claims = read_claims(resources.files("espalier.methods.cflhkd") / "claims.toml")
    for claim in (c for c in claims if c.study == "cflhkd/table1" and c.size):
        less = [
            1 - table["CFLHKD"][column][claim.measure] / table[row][column][claim.measure]
            for row in claim.than for column in claim.columns
        ]  # fmt: skip
        assert claim.size.startswith(f"{100 * min(less):.0f} to {100 * max(less):.0f} %"), claim.name


def test_published_figures_at_random_places() -> None:
    one, seven, eight = (study(f"cflhkd/table{n}").published for n in (1, 7, 8))
    assert one["ICFL"]["FEMNIST"] == {"accuracy": 92.0, "comm": 44.4, "time": 4.1}
    assert one["CFLHKD"]["Cityscapes"]["accuracy"] == 74.8
    assert seven["IFCA"]["HAM10000"] == {"drop": 10.5, "recovery": 7}
    assert seven["FedAvg"]["CIFAR-10"]["recovery"] != seven["FedAvg"]["CIFAR-10"]["recovery"]
    assert eight["w/o global fine-tuning"]["HAM10000"]["accuracy"] == 76.8
    assert study("cflhkd/table6").published["0.9"]["CIFAR-10"] == {"accuracy": 88.3, "first": 4, "final": 3}
    assert study("cflhkd/table4").published["0.5"]["Cityscapes"]["accuracy"] == 72.7


def test_drift_runs_and_is_told(tmp_path: Path) -> None:
    results = made("cflhkd/table2", tmp_path, lambda c: c.row in ("FedAvg", "CFLHKD"))
    # Nobody has seen the new labels: the fall is nearly all there was.
    assert results.mean("FedAvg", "digits", "drop") > 50
    # Where labels are only exchanged, somebody has.
    assert results.mean("FedAvg", "digits, exchange", "drop") < 20
    assert "fall (points)" in tables.markdown(results, "espalier reproduce cflhkd/table2")


def test_ablations_run_and_are_compared(tmp_path: Path) -> None:
    rows = ("CFLHKD", "w/o bi-level aggregation", "with distillation (ours)")
    results = made("cflhkd/table3", tmp_path, lambda c: c.row in rows)
    assert results.mean(rows[1], "digits", "comm") > results.mean("CFLHKD", "digits", "comm")
    assert sum("times the edge–cloud bytes" in w for w in results.words()) == 2


def test_what_decided_the_clusters_is_kept(tmp_path: Path) -> None:
    results = made("cflhkd/readings", tmp_path, lambda c: c.row in ("CFLHKD", "distances between whole rows"))
    for row in results.rows:
        (one,) = results.cells[row, "digits"].values()
        found = one.facts["clustering"]
        assert found["clusterings"] == 10 and 0 <= found["crowded"] < 12


def test_figures_run(tmp_path: Path) -> None:
    results = made("cflhkd/fig5", tmp_path, lambda c: c.row == "CFLHKD")
    assert -1 <= results.mean("CFLHKD", "digits", "likeness") <= 1


def fake_run(scores: list[float], drift: int | None = None, **meta: Any) -> Run:
    recorder = Recorder(None)
    recorder.meta("experiment", {"task": {"dataset": "digits"}})
    for name, value in meta.items():
        recorder.meta(name, value)
    for number, value in enumerate(scores):
        recorder.metric(float(number), number, "acc_device", value)
    if drift is not None:
        recorder.event(float(drift), "drift", None, {"round": drift, "devices": [0]})
    recorder.commit()
    return Run(connection=recorder.connection)


def test_a_run_that_never_recovers_counts_with_all_it_had_left() -> None:
    lost, back = fake_run([0.1, 0.9, 0.2, 0.3, 0.4], 2), fake_run([0.1, 0.9, 0.2, 0.9, 0.9], 2)
    assert (recovery(lost), recovered(lost)) == (2.0, False)
    assert (recovery(back), recovered(back)) == (1.0, True)


def test_hierfavg_is_measured_right_after_a_merge(tmp_path: Path) -> None:
    """Its cloud merges after edge round 10: what edges serve at its end is the cloud's new model, not their own."""
    cell = next(c for c in study("cflhkd/table1").cells("smoke") if c.row == "HierFAVG")
    method = {"name": "hierfavg", "kappa2": 5, "clock": "edge"}
    table = {**cell.experiment.to_plain(), "stop": {"rounds": 10}, "methods": [method]}
    one = Runner(Experiment.build(table).only(method, 0), None)
    one.run()
    models = one.final_models()
    for name in (n for n in models if n.startswith("edge-")):
        assert torch.equal(models[name], models["global"])
    rounds = one.recorder.connection.execute("SELECT DISTINCT round FROM metrics WHERE name = 'acc_global'").fetchall()
    assert rounds[-1] == (10,)


def test_clusters_by_edge_and_by_group() -> None:
    recorder = Recorder(None)
    recorder.meta("experiment", {"task": {"dataset": "digits"}})
    recorder.meta("fleet", {"devices": 3, "edges": 2, "cloud": 5})
    recorder.devices([(0, 0, 1, b""), (1, 0, 1, b""), (2, 1, 1, b"")])
    recorder.array(0.0, 1, "acc_device", [0.2, 0.4, 0.9])  # type: ignore[arg-type]
    recorder.commit()
    run = Run(connection=recorder.connection)
    assert sorted(by_cluster(run)) == pytest.approx([30.0, 90.0])
    # Device 1 moves to the other edge: 20 and (40 + 90) / 2.
    recorder.move(1.0, 0, 3, "")
    recorder.move(1.0, 1, 4, "")
    recorder.move(1.0, 2, 4, "")
    recorder.commit()
    assert sorted(by_cluster(run)) == pytest.approx([20.0, 65.0])

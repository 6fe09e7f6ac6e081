"""Runs as a whole: bytes and seconds by hand, batches that do not matter, jobs that are never computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from espalier.core.quantise import coded_bytes
from espalier.experiment import Experiment
from espalier.simulator.runner import Runner
from espalier.testing import BASE

#: 64 inputs, 16 hidden, 10 outputs: 64·16 + 16 + 16·10 + 10 = 1210 numbers
M = 4 * 1210


def run(method: str | dict[str, Any], seed: int = 0, chunk: int | None = None, **changes: Any) -> Runner:
    runner = Runner(Experiment.build({**BASE, **changes}).only(method, seed), None)
    if chunk is not None:
        runner.task.trainer._chunk = chunk
    runner.run()
    return runner


def traffic(runner: Runner) -> dict[tuple[str, str, str], int]:
    rows = runner.recorder.connection.execute(
        "SELECT tier, direction, kind, max(bytes) FROM traffic GROUP BY tier, direction, kind"
    )
    return {(t, d, k): n for t, d, k, n in rows}


def test_bytes_of_hierfavg() -> None:
    """3 cloud rounds × 2 edge rounds × 12 devices; 3 edges up and down once per cloud round."""
    fleet, stop = {"devices": 12, "edges": 3}, {"rounds": 3}
    found = traffic(run({"name": "hierfavg", "kappa2": 2}, fleet=fleet, stop=stop))
    assert found == {
        ("dev-edge", "down", "model"): 3 * 2 * 12 * M,
        ("dev-edge", "up", "model"): 3 * 2 * 12 * M,
        ("edge-cloud", "down", "model"): 3 * 3 * M,
        ("edge-cloud", "up", "model"): 3 * 3 * M,
    }


def test_steps_of_hierfavg() -> None:
    """3 cloud rounds × 2 edge rounds × every device's 4 epochs of ⌈samples / 10⌉ mini-batches."""
    training = {**BASE["training"], "batch_size": 10, "updates": 4}
    fleet, stop = {"devices": 12, "edges": 3}, {"rounds": 3}
    recorder = run({"name": "hierfavg", "kappa2": 2}, fleet=fleet, stop=stop, training=training).recorder
    samples = [n for (n,) in recorder.connection.execute("SELECT samples FROM devices")]
    (steps,) = recorder.connection.execute("SELECT max(value) FROM metrics WHERE name = 'steps'").fetchone()
    assert steps == 3 * 2 * sum(4 * -(-n // 10) for n in samples)


def test_bytes_of_rounded_reports() -> None:
    """Devices' reports are coded in 8 bits, whatever else is sent is whole."""
    fleet, stop = {"devices": 12, "edges": 3}, {"rounds": 2}
    found = traffic(run({"name": "hierfavg", "local": {"kind": "q8"}}, fleet=fleet, stop=stop))
    assert found == {
        ("dev-edge", "down", "model"): 2 * 12 * M,
        ("dev-edge", "up", "model"): 2 * 12 * coded_bytes(1210, 1210),
        ("edge-cloud", "down", "model"): 2 * 3 * M,
        ("edge-cloud", "up", "model"): 2 * 3 * M,
    }
    assert coded_bytes(1210, 1210) < 0.3 * M


def test_a_flat_method_pays_both_hops() -> None:
    """3 rounds × 6 of 12 devices, on each hop, each way."""
    fleet, stop = {"devices": 12, "edges": 3, "fraction": 0.5}, {"rounds": 3}
    found = traffic(run("fedavg", fleet=fleet, stop=stop))
    assert set(found.values()) == {3 * 6 * M}
    assert len(found) == 4


def test_seconds_of_a_barrier() -> None:
    """Every batch takes 0.5 s; links take 1 s (latency), so a device's turn is 1 + batches/2 + 1 s."""
    world = {
        "compute": {"kind": "constant", "seconds": 0.5},
        "links": {"kind": "uniform", "latency": 1.0},
    }
    runner = run("hierfavg", world=world, stop={"rounds": 2}, fleet={"devices": 6, "edges": 2})
    sizes = runner.simulation.fleet.partition.sizes
    batches = 2 * -(-sizes // 10)  # two epochs of batches of ten
    turn = 2.0 + 0.5 * batches.max()
    # and one second down and up between cloud and edges
    assert runner.simulation.now == pytest.approx(2 * (turn + 2.0))


@pytest.mark.parametrize("method", [{"name": "hierfavg", "kappa2": 3}, "only_edge"])
def test_neither_batch_size_nor_moment_of_looking_changes_a_model(method: Any) -> None:
    """Asynchronous edges (each at its own speed), evaluated every round or once, in chunks of 1, 3 or many."""
    ends = []
    for chunk, every in ((1, 1), (3, 4), (None, 2), (50, 1)):
        runner = run(method, chunk=chunk, evaluate={"every": every})
        ends.append(torch.stack(list(runner.final_models().values())))
    assert all(torch.equal(ends[0], e) for e in ends[1:])


def test_abandoned_work_is_never_computed() -> None:
    """Devices that leave while they train: their work was ordered but is not computed."""
    world = {**BASE["world"], "churn": {"kind": "two_state", "working": 0.6, "mean_stay": 5}}
    ledger = run("hierfavg", world=world).simulation.ledger
    assert 0 < ledger.computed < ledger.ordered


def test_two_methods_meet_the_same_world() -> None:
    world = {
        "compute": {"kind": "truncated_normal", "mean": 63, "std": 40, "low": 2, "high": 128},
        "mobility": {"kind": "markov", "stay": 0.5},
    }
    places = []
    for method in ("hierfavg", {"name": "hierfavg", "mu": 0.1}):
        runner = run(method, world=world)
        places.append((runner.simulation.fleet.location.tolist(), runner.simulation.now))
    assert places[0] == places[1]


def test_different_seeds_meet_different_worlds() -> None:
    first, second = (run("hierfavg", seed=s) for s in (0, 1))
    assert first.simulation.now != second.simulation.now


def test_planted_label_permutations_are_what_devices_see_and_are_tested_on() -> None:
    """With four permutations a shared model must fail on three quarters, one's own model must not."""
    partition = {"kind": "iid", "concepts": 4}
    shared = run("fedavg", partition=partition, stop={"rounds": 10})
    alone = run("standalone", partition=partition, stop={"rounds": 10})
    assert shared.simulation.meter.last["acc_device"] < 0.5
    assert alone.simulation.meter.last["acc_device"] > 0.7


def test_label_switch_changes_data_and_test() -> None:
    drift = {"kind": "label_switch", "at_round": 3, "before": [0, 1, 2, 3, 4], "after": [5, 6, 7, 8, 9]}
    runner = run("fedavg", partition={"kind": "iid"}, world={**BASE["world"], "drift": drift}, stop={"rounds": 6})
    rows = runner.recorder.connection.execute(
        "SELECT round, value FROM metrics WHERE name = 'acc_device' ORDER BY rowid"
    ).fetchall()
    acc = dict(rows)
    assert acc[2] > 0.6
    assert acc[3] < 0.3
    assert acc[6] > acc[3] + 0.2


@pytest.mark.parametrize(("stop", "parts"), [(20.0, 4), (5269.654583538976 / 300, 16)])
def test_the_end_is_evaluated_once(stop: float, parts: int) -> None:
    """Evaluations by time that meet the end, exactly or but for a rounding, are not doubled by the last one."""
    runner = run("fedat", stop={"rounds": None, "seconds": stop}, evaluate={"seconds": stop / parts})
    rows = runner.recorder.connection.execute("SELECT time FROM metrics WHERE name = 'acc_device' ORDER BY rowid")
    assert [t for (t,) in rows] == pytest.approx([i * stop / parts for i in range(parts + 1)])


def test_time_that_ends_with_a_round_ends_the_run_there() -> None:
    """A second run of as much time as the first has the same rows and bytes: nothing is sent for one more round."""
    rounds = run("hierfavg", stop={"rounds": 3})
    time = run("hierfavg", stop={"rounds": None, "seconds": rounds.simulation.now})
    for table in ("metrics", "traffic"):
        first, second = (
            r.recorder.connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall() for r in (rounds, time)
        )
        assert first == second

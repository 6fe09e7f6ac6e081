"""Drop and recovery after drift, from scores worked by hand and from a run."""

from __future__ import annotations

from typing import Any

import pytest

import espalier
from espalier.core.errors import RunError
from espalier.methods.cflhkd.measures import Shock, convergence_time, shock, shocks
from espalier.record.database import Recorder
from espalier.record.run import Run


def run_of(scores: dict[int, float], drifts: list[tuple[int, list[int]]], name: str = "acc_device") -> Run:
    """Return a run with given scores by round (one round takes ten seconds) and drifts."""
    recorder = Recorder(None)
    for round_, value in scores.items():
        recorder.metric(10.0 * round_, round_, name, value)
    for at, devices in drifts:
        recorder.event(10.0 * at, "drift", None, {"round": at, "devices": devices})
    recorder.commit()
    return Run(connection=recorder.connection)


def test_a_shock_by_hand() -> None:
    # .90 before; .60, .55, .80 in the three rounds from the drift on: a drop of .35; .90 is back in round 54.
    after = {50: 0.60, 51: 0.55, 52: 0.80, 53: 0.50, 54: 0.90, 55: 0.95}
    assert shock(0.90, after, 50) == Shock(50, 0.90, pytest.approx(0.35), 4, 0)  # type: ignore[arg-type]
    assert shock(0.96, after, 50).recovery is None
    # Never below: no drop, and back at once.
    assert shock(0.50, {50: 0.7, 51: 0.8}, 50) == Shock(50, 0.5, pytest.approx(-0.2), 0, 0)  # type: ignore[arg-type]


def test_shocks_of_a_run() -> None:
    scores = {0: 0.1, 1: 0.5, 2: 0.8, 3: 0.4, 4: 0.6, 5: 0.8, 6: 0.9, 7: 0.2, 8: 0.3}
    run = run_of(scores, [(3, [1, 2]), (7, [5])])
    first, second = shocks(run)
    assert (first.round, first.before, first.recovery, first.devices) == (3, 0.8, 2, 2)
    assert first.drop == pytest.approx(0.4)
    assert (second.round, second.before, second.recovery, second.devices) == (7, 0.9, None, 1)


def test_a_gradual_drift_is_one_shock() -> None:
    run = run_of(dict(enumerate([0.5, 0.8, 0.7, 0.6, 0.5, 0.8])), [(2, [1]), (3, [1]), (4, [1])])
    (found,) = shocks(run)
    assert (found.round, found.recovery) == (2, 3)


def test_missing_evaluations_and_scores() -> None:
    # Evaluated every second round: the last one before a drift in round 3 is that of round 2.
    run = run_of({0: 0.1, 2: 0.7, 4: 0.5, 6: 0.7}, [(3, [1])])
    assert shocks(run)[0] == Shock(3, 0.7, pytest.approx(0.2), 3, 1)  # type: ignore[arg-type]
    assert shocks(run_of({0: 0.1}, [])) == []
    with pytest.raises(RunError, match="acc_edge"):
        shocks(run, "acc_edge")


def test_convergence_by_hand() -> None:
    # Means of two: .3, .55, .75, .80, .80: the best is .80; .795 (within .01 of it) is first reached at round 5.
    run = run_of({0: 0.0, 1: 0.2, 2: 0.4, 3: 0.7, 4: 0.8, 5: 0.8, 6: 0.8}, [])
    assert convergence_time(run, over=2) == 50.0
    assert convergence_time(run, over=2, within=0.06) == 40.0
    assert convergence_time(run, over=9) != convergence_time(run, over=9)
    assert convergence_time(run, "acc_edge") != 0.0


@pytest.mark.parametrize("method", ["fedavg", "standalone", {"name": "hierfavg", "kappa2": 4, "clock": "edge"}])
def test_recovery_is_counted_in_rounds_for_every_method(method: Any) -> None:
    setting = {
        "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}},
        "partition": {"kind": "dirichlet", "alpha": 5.0, "min_samples": 30},
        "fleet": {"devices": 10, "edges": 2},
        "training": {"batch_size": 10, "updates": 2, "lr": 0.1},
        "world": {"preset": "ideal", "drift": {"kind": "label_switch", "at_round": 5}},
        "stop": {"rounds": 30},
    }
    (found,) = shocks(espalier.simulate(method, setting, seed=0))
    assert found.round == 5 and found.devices == 10
    assert found.drop > 0.5
    assert found.recovery is not None and 1 <= found.recovery <= 25

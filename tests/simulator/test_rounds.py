"""Devices that train alone train in step: a round is the same work for all, and as long as the slowest needs."""

from __future__ import annotations

from typing import Any

import pytest

from espalier.experiment import Experiment
from espalier.simulator.runner import Runner
from espalier.testing import BASE

SPEEDS = {"kind": "rate", "low": 1.0, "high": 8.0}


def run(rounds: int = 4, events: tuple[tuple[float, int, str], ...] = (), **changes: Any) -> Runner:
    world: dict[str, Any] = {"compute": SPEEDS}
    if events:
        table = [{"time": t, "host": h, "event": e} for t, h, e in events]
        world["churn"] = {"kind": "scheduled", "events": table}
    table = {**BASE, "world": world, "fleet": {"devices": 6, "edges": 2}, "stop": {"rounds": rounds}, **changes}
    runner = Runner(Experiment.build(table).only("standalone", 0), None)
    runner.run()
    return runner


def ends(runner: Runner) -> list[float]:
    rows = runner.recorder.connection.execute("SELECT time FROM metrics WHERE name = 'acc_device' ORDER BY rowid")
    return [t for (t,) in rows]


def trainings(runner: Runner) -> dict[int, float]:
    """Return how long a training takes, by device."""
    return dict(runner.recorder.connection.execute("SELECT node, max(stop - start) FROM spans GROUP BY node"))


def test_every_device_trains_as_often_and_the_slowest_decides() -> None:
    one = run()
    assert one.simulation.runtime.numbers.trainings.tolist() == [4] * 6
    seconds = trainings(one).values()
    slowest = max(seconds)
    assert min(seconds) < slowest / 2  # or the test says nothing
    assert ends(one) == pytest.approx([t * slowest for t in range(5)])


def test_nobody_waits_for_a_device_that_is_gone() -> None:
    seconds = trainings(run())
    slowest = max(seconds, key=lambda d: seconds[d])
    others = max(s for d, s in seconds.items() if d != slowest)
    at = (others + seconds[slowest]) / 2  # all others wait for it
    one = run(events=((at, slowest, "die"),))
    assert one.simulation.round == 4 and not one.simulation.stalled
    assert ends(one) == pytest.approx([0.0] + [at + t * others for t in range(4)])


@pytest.mark.parametrize("back", ["join", "restart"])
def test_a_device_that_was_away_catches_up(back: str) -> None:
    """From where it was, or from the beginning if it has lost its state."""
    length = ends(run())[1]
    one = run(6, events=((1.5 * length, 0, "leave"), (2.2 * length, 0, back)))
    sim = one.simulation
    assert sim.nodes[0].state.rounds == 6
    assert sim.round == 6 and {sim.rounds.closed[d] for d in range(6)} == {6}


def test_drift_finds_all_devices_in_the_same_round() -> None:
    drift = {"kind": "label_switch", "at_round": 2, "before": [0, 1, 2, 3, 4], "after": [5, 6, 7, 8, 9]}
    one = run(3, world={"compute": SPEEDS, "drift": drift}, partition={"kind": "iid"})
    rows = one.recorder.connection.execute("SELECT value FROM metrics WHERE name = 'acc_device' ORDER BY rowid")
    acc = [value for (value,) in rows]
    assert acc[1] > 0.5 > acc[2] < acc[3]

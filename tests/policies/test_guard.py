"""The guard: every bad report is refused with its reason, counted, and never reaches a merge."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from espalier.core.aggregator import Aggregator
from espalier.core.errors import ConfigError
from espalier.core.guard import Guard
from espalier.core.messages import Arrived, BeginRound, Deadline, Record, Report, Started
from espalier.core.policies import Rules
from espalier.policies.guard import MedianGuard
from tests.core.fakes import SmallFleet, answer, orders, reports
from tests.reliability.runs import runner

ROOT = 20


def started(guard: Guard, devices: int = 4) -> tuple[SmallFleet, Aggregator, dict[int, Any]]:
    fleet = SmallFleet(dict.fromkeys(range(devices), ROOT))
    root = Aggregator(ROOT, Rules(guard=guard), fleet)
    return fleet, root, orders(root.on(Started(), 0.0))


def why(actions: list[Any]) -> list[str]:
    return [a.data["why"] for a in actions if isinstance(a, Record) and a.kind == "refused"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"samples": {"": 3}}, "it claims 3 samples, 2 are registered"),
        ({"samples": {"": -1}}, "its samples of '' are -1"),
        ({"samples": {"": 1.5}}, "its samples of '' are 1.5"),
        ({"samples": {"": True}}, "its samples of '' are True"),
        ({"samples": {}}, "does not say how many samples"),
        ({"updates": -2}, "its updates are -2"),
        ({"compute": float("nan")}, "its time compute is nan"),
        ({"download": -1.0}, "its time download is -1.0"),
        ({"round": 7}, "round 7, which has not begun"),
    ],
)
def test_claims_are_checked_on_arrival(changes: dict[str, Any], reason: str) -> None:
    fleet, root, out = started(Guard())
    # Device 1 has 2 samples registered.
    report = answer(out[1], fleet.store.number(1e9), 2, 1.0).message
    assert isinstance(report, Report)
    actions = root.on(Arrived(replace(report, **changes)), 1.0)
    assert len(why(actions)) == 1 and reason in why(actions)[0]
    assert root.state.offences == {1: 1}
    # The round closes with the others, and what was refused is not in its model: (1·1 + 3·2 + 4·3) / 8.
    for device in (0, 2, 3):
        root.on(answer(out[device], fleet.store.number(float(max(1, device))), device + 1, 2.0), 2.0)
    assert fleet.store.numbers[root.state.models[""]] == pytest.approx((1 * 1 + 3 * 2 + 4 * 3) / 8)


def test_stale_reports() -> None:
    fleet, root, out = started(Guard(stale=0))
    root.state.rounds = 2
    assert "2 rounds old" in why(root.on(answer(out[0], fleet.store.number(1.0), 1, 1.0), 1.0))[0]


def test_offenders_are_left_out_unless_they_are_most() -> None:
    guard = Guard(patience=2)
    assert guard.left_out({1: 2}, [0, 1, 2]) == {1}
    assert guard.left_out({1: 1}, [0, 1, 2]) == set()
    assert guard.left_out({1: 2, 2: 5}, [0, 1, 2]) == set()
    assert Guard(patience=None).left_out({1: 99}, [0, 1, 2]) == set()
    fleet, root, out = started(guard)
    for now in (1.0, 2.0):
        root.on(answer(out[3], fleet.store.number(0.0), 99, now), now)
        for device in (0, 1, 2):
            actions = root.on(answer(out[device], fleet.store.number(0.0), device + 1, now), now)
        out = orders([a for _ in (1, 2) for a in root.on(Deadline(BeginRound()), now)]) or out
    assert sorted(out) == [0, 1, 2]
    assert not reports(actions)


def test_all_refused_keeps_the_model() -> None:
    class Strict(MedianGuard):
        def sift(self, view: Any, arrivals: Any) -> dict[int, str]:
            return dict.fromkeys(range(len(arrivals)), "no")

    fleet, root, out = started(Strict())
    before = dict(root.state.models)
    for device in range(4):
        root.on(answer(out[device], fleet.store.number(5.0), device + 1, 1.0), 1.0)
    assert root.state.models == before
    assert root.state.rounds == 1


def test_median_guard_by_hand() -> None:
    fleet, root, out = started(MedianGuard(factor=3.0))
    # The model was 0; changes of 1, 1, 2 and 7: the median is 1.5, the bound 4.5.
    actions: list[Any] = []
    for device, value in enumerate((1.0, 1.0, 2.0, 7.0)):
        actions += root.on(answer(out[device], fleet.store.number(value), device + 1, 1.0), 1.0)
    assert why(actions) == ["its change is 7 long, the bound is 4.5"]
    # (1·1 + 1·2 + 2·3) / 6 samples
    assert fleet.store.numbers[root.state.models[""]] == pytest.approx(9 / 6)
    assert root.state.memory.state(MedianGuard()).lengths == {"": [1.0, 1.0, 2.0]}


def test_median_guard_with_few_reports_remembers_earlier_ones() -> None:
    guard = MedianGuard(factor=2.0)
    fleet, root, out = started(guard, devices=1)
    root.state.memory.state(guard).lengths = {"": [1.0, 1.0, 1.0]}
    actions = root.on(answer(out[0], fleet.store.number(5.0), 1, 1.0), 1.0)
    assert "the bound is 2" in why(actions)[0]
    fleet, root, out = started(guard, devices=1)
    assert why(root.on(answer(out[0], fleet.store.number(5.0), 1, 1.0), 1.0)) == []


def test_median_guard_refuses_what_is_not_finite() -> None:
    fleet, root, out = started(MedianGuard())
    actions: list[Any] = []
    for device, value in enumerate((1.0, float("nan"), float("inf"), 1.0)):
        actions += root.on(answer(out[device], fleet.store.number(value), device + 1, 1.0), 1.0)
    assert why(actions) == ["its model has numbers that are not finite"] * 2
    assert fleet.store.numbers[root.state.models[""]] == 1.0


@pytest.mark.parametrize("options", [{"factor": 1.0}, {"least": 1}, {"patience": 0}, {"stale": -1}])
def test_impossible_values(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MedianGuard(**options)


def test_excluded_devices_do_not_come_back() -> None:
    world = {"preset": "ideal", "attackers": {"kind": "broken", "what": "huge", "devices": [0, 4]}}
    method = {"name": "hierfavg", "edge": {"guard": {"kind": "median", "patience": 2}}}
    one = runner(None, method, world=world, stop={"rounds": 6}, partition={"kind": "iid"})
    one.run()
    rows = one.recorder.connection.execute("SELECT data FROM events WHERE kind = 'refused'").fetchall()
    found = [json.loads(r[0]) for r in rows]
    assert {f["child"] for f in found} == {0, 4}
    assert max(f["offences"] for f in found) == 2  # then they get no more orders
    assert one.simulation.meter.last["acc_global"] > 0.5

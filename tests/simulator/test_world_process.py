"""What the world does in blocks: the same as one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from espalier.core.codec import pack, unpack
from espalier.core.messages import Started
from espalier.experiment import Experiment
from espalier.simulator.clock import NODE, WORLD, ToNode, ToWorld, VirtualClock, WorldBlock
from espalier.simulator.delivery import Delivery
from espalier.simulator.runner import Runner

SETTING: dict[str, Any] = {
    "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [8]}},
    "partition": {"kind": "two_level", "fraction": 0.3},
    "fleet": {"devices": 40, "edges": 4, "fraction": 0.3},
    "training": {"batch_size": 10, "updates": 1, "lr": 0.1},
    "world": {
        "compute": {"kind": "rate", "low": 1.0, "high": 8.0},
        "mobility": {"kind": "markov", "stay": 0.5},
        "churn": {"kind": "two_state", "working": 0.8, "mean_stay": 30},
    },
    "stop": {"rounds": 6},
}


def test_changes_in_a_block_happen_as_if_each_had_been_pushed() -> None:
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, 6, 40).astype(float))
    each, block = VirtualClock(), VirtualClock()
    for clock in (each, block):
        clock.push(2.0, WORLD, ToWorld("window"))
        if clock is each:
            for number, time in enumerate(times.tolist()):
                clock.push(time, WORLD, ToWorld("move", {"device": number}))
        else:
            clock.push_block(WorldBlock("move", times, {"device": np.arange(40)}))
        clock.push(2.0, WORLD, ToWorld("drift"))
        clock.push(3.0, NODE, ToNode(1, Started()))
    for happened in range(43):
        if happened == 20:  # a saved clock goes on where it was
            saved = unpack(pack(block.save()))
            block = VirtualClock()
            block.restore(saved)
        assert each.next_time == block.next_time
        assert each.pop() == block.pop() and each.now == block.now
    assert not len(block)


@pytest.mark.parametrize("method", ["hierfavg", "hiflash", "csahfl"])
def test_moves_in_blocks_are_the_moves_one_by_one(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = 0
    counted = Delivery.reparent_all

    def count(self: Delivery, devices: NDArray[np.int64], parents: NDArray[np.int64]) -> None:
        nonlocal together
        together += len(devices)
        counted(self, devices, parents)

    def rows() -> list[list[Any]]:
        runner = Runner(Experiment.build(SETTING).only(method, 0), None)
        runner.run()
        tables = ("metrics", "arrays", "traffic", "spans", "moves", "events")
        return [runner.recorder.connection.execute(f"SELECT * FROM {t} ORDER BY rowid").fetchall() for t in tables]

    monkeypatch.setattr(Delivery, "reparent_all", count)
    found = rows()
    assert together > 20
    monkeypatch.setattr(Delivery, "quiet_moves", lambda self, devices, parents: 0)
    assert rows() == found

"""Uploads that share their edge's uplink: by themselves, and for every method in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from espalier.core.codec import pack, unpack
from espalier.experiment import Experiment
from espalier.simulator.runner import Runner
from espalier.simulator.transport import Uplinks
from espalier.testing import BASE, check

#: 64 inputs, 16 hidden, 10 outputs
M = 4 * 1210


def test_one_after_another() -> None:
    uplinks = Uplinks()
    # ready at 1, 2 and 6, 2 s each: done at 3, 5 and 8, so 0, 1 and 0 s later than alone
    assert [uplinks.delay("time_shared", 7, at, 2.0) for at in (1.0, 2.0, 6.0)] == [0.0, 1.0, 0.0]
    # another edge's uplink is another one
    assert uplinks.delay("time_shared", 8, 2.0, 2.0) == 0.0


def test_an_equal_part_for_each_device_of_the_round() -> None:
    uplinks = Uplinks()
    for _ in range(3):
        uplinks.ordered(7, 20, 0)
    # three devices: each upload of 2 s takes 6, however many are sending
    assert [uplinks.delay("equal_share", 7, at, 2.0) for at in (1.0, 2.0, 6.0)] == [4.0, 4.0, 4.0]
    uplinks.ordered(7, 20, 1)
    assert uplinks.delay("equal_share", 7, 9.0, 2.0) == 0.0
    assert uplinks.delay("equal_share", 8, 9.0, 2.0) == 0.0


def test_they_are_saved() -> None:
    uplinks = Uplinks()
    uplinks.ordered(7, 20, 3)
    uplinks.ordered(7, 20, 3)
    uplinks.delay("time_shared", 7, 1.0, 5.0)
    again = Uplinks()
    again.restore(unpack(pack(uplinks.save())))
    assert again.save() == uplinks.save()
    assert again.delay("time_shared", 7, 2.0, 1.0) == 4.0


def seconds(folder: Path, method: Any, discipline: str) -> float:
    """Run one round of three devices that are ready after 1, 2 and 6 s and upload for 2 s alone."""
    speed = folder / "speed.csv"
    # 10 samples in one batch: the seconds per batch are when a device is ready
    speed.write_text("device,time,seconds_per_batch\n0,0,1\n1,0,2\n2,0,6\n")
    links: dict[str, Any] = {"kind": "uniform"}
    if discipline != "private":
        links = {"kind": "shared", "of": links, "rate": M / 2, "discipline": discipline}
    table = {
        **BASE,
        "world": {"compute": {"kind": "trace", "file": str(speed)}, "links": links},
        "partition": {"kind": "iid", "samples_per_device": 10},
        "fleet": {"devices": 3, "edges": 1},
        "training": {"batch_size": 10, "updates": 1},
        "stop": {"rounds": 1},
    }
    runner = Runner(Experiment.build(table).only(method, 0), None)
    runner.run()
    return runner.simulation.now


@pytest.mark.parametrize("method", ["hierfavg", "fedavg", "feduc", {"name": "feduc", "inter": "sync"}])
@pytest.mark.parametrize(("discipline", "end"), [("private", 6.0), ("time_shared", 8.0), ("equal_share", 12.0)])
def test_a_round_ends_with_the_last_upload(tmp_path: Path, method: Any, discipline: str, end: float) -> None:
    assert seconds(tmp_path, method, discipline) == pytest.approx(end)


def test_a_run_over_shared_uplinks_can_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    from espalier.testing import conformance

    links = {"kind": "shared", "of": {"kind": "uniform", "latency": 0.1}, "rate": M / 2}
    built = conformance.Experiment.build

    def shared(table: dict[str, Any]) -> Experiment:
        return built({**table, "world": {**table["world"], "links": links}})

    monkeypatch.setattr(conformance.Experiment, "build", staticmethod(shared))
    check("feduc", "resume")

"""Real fleets of processes on this machine: nothing lost or counted twice under kills."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from espalier.cli.main import main
from espalier.core.errors import RunError
from espalier.experiment import Experiment
from espalier.fleet.links.limits import Limits
from espalier.record.run import Run
from espalier.simulator.runner import resume
from tests.fleet import counting


def test_killed_nodes_go_on_where_they_were(tmp_path: Path) -> None:
    # Every device counts 1/6 per round. Devices, edges and the cloud are killed at random moments and started again
    # within the fleet's patience: after 16 rounds every number is exactly 16/6.
    rounds, devices = 16, 6
    made = counting.experiment(devices, 2, rounds)
    names = ("device-0", "edge-0", "cloud", "device-4", "edge-1", "cloud", "edge-0")
    found = counting.after_kills(made, tmp_path, names, seed=5)
    torch.testing.assert_close(found, torch.full((devices,), rounds / devices, dtype=torch.float64), atol=1e-5, rtol=0)
    times = counting.merged(Run(tmp_path / "cloud"))
    assert sum(times.values()) == rounds * devices
    assert set(times.values()) == {1}


def test_devices_move_leave_come_and_die(tmp_path: Path) -> None:
    made = counting.experiment(6, 3, 100_000)
    with counting.fleet(made, tmp_path, patience=1.5, start_with=5, limits=Limits(greetings_per_minute=6000)) as fleet:
        fleet.start(*(name for name in fleet.members if name != "device-5"))
        fleet.until("cloud", lambda s: s.get("round", 0) >= 2)
        # one joins a run that has begun
        fleet.launch("device-5")
        fleet.until("cloud", lambda s: s.get("devices") == 6)
        # one wanders
        rng, at = random.Random(1), 0
        for _ in range(25):
            at = rng.choice([e for e in range(3) if e != at])
            fleet.move("device-0", f"edge-{at}")
            fleet.until(f"edge-{at}", lambda s: "device-0" in s["children"])
            time.sleep(rng.uniform(0, 0.04))
        # while it moves the cloud may not know where it is; then it does
        fleet.until("cloud", lambda s: s["devices"] == 6)
        # one leaves in good order: it is gone at once. One dies, one freezes: they are gone when patience is over.
        for name, number, least, left in (("device-1", signal.SIGTERM, 0.0, 5), ("device-2", signal.SIGKILL, 1.4, 4),
                                          ("device-3", signal.SIGSTOP, 1.4, 3)):  # fmt: skip
            begun = time.monotonic()
            fleet.kill(name, number)
            fleet.until("cloud", lambda s, n=left: s["devices"] == n)  # type: ignore[misc]
            assert least <= time.monotonic() - begun < least + 10
        # the frozen one thaws and is there again; the dead one is started again
        fleet.kill("device-3", signal.SIGCONT)
        fleet.launch("device-2")
        fleet.until("cloud", lambda s: s["devices"] == 5)
        now = fleet.status("cloud")["round"]
        fleet.until("cloud", lambda s: s["round"] >= now + 3)
        fleet.kill("cloud", signal.SIGTERM)
        assert fleet.processes["cloud"].exitcode == 0
    run = Run(tmp_path / "cloud")
    assert run.status == {"state": "stopped"}
    times = counting.merged(run)
    assert set(times.values()) == {1}, "no report was merged twice"
    assert {device for device, _, _ in times} == set(range(6))
    # what was trained while it moved arrived somewhere: late, and this method drops it
    assert all(e["why"] in ("stranger", "late") for e in run.events("dropped"))
    assert os.path.exists(tmp_path / "cloud" / "node.sqlite")


def test_deeper_trees(tmp_path: Path) -> None:
    # two servers between four edges and the cloud; each level merges, so the counts are those of the flat average
    tables = {"fleet": {"devices": 4, "edges": 4, "tiers": [2]}, "stop": {"rounds": 2}}
    made = counting.experiment(4, 4, 2)
    made = Experiment.build({**made.to_plain(), **tables})
    with counting.fleet(made, tmp_path) as fleet:
        fleet.start()
        fleet.wait(60)
    found = counting.counts(tmp_path / "cloud", 4, counting.weights_of(made))
    torch.testing.assert_close(found, torch.full((4,), 2 / 4, dtype=torch.float64), atol=1e-6, rtol=0)


def test_a_client_that_fails_does_not_stop_the_fleet(tmp_path: Path) -> None:
    # device 0 fails in every odd round: its number grows in rounds 0 and 2 only; the others' grow in every round
    made = counting.experiment(4, 1, 4)
    with counting.fleet(made, tmp_path, lambda number: "Quitter" if number == 0 else "Counter") as fleet:
        fleet.start()
        fleet.wait(60)
    found = counting.counts(tmp_path / "cloud", 4, counting.weights_of(made))
    # rounds of four: 1/4 each; rounds of three: 1/3 each for the others
    expected = torch.tensor([2 / 4, *[2 / 4 + 2 / 3] * 3], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    # what reports on simulated runs does so on real ones
    told = CliRunner().invoke(main, ["report", str(tmp_path / "cloud"), "-o", str(tmp_path / "report.html")])
    assert told.exit_code == 0, told.output
    # but nobody simulates over the record of a real run
    with pytest.raises(RunError, match="of a real fleet"):
        resume(tmp_path / "cloud")
    failures = Run(tmp_path / "cloud").events("failed")
    assert [(e["node"], e["why"]) for e in failures] == [(0, "ValueError: out of luck")] * 2


def test_a_crash_in_native_code_is_noticed_and_explained(tmp_path: Path) -> None:
    with counting.fleet(counting.experiment(2, 1, 100_000), tmp_path) as fleet:
        fleet.start()
        fleet.until("cloud", lambda s: s.get("round", 0) >= 1)
        fleet.kill("edge-0", signal.SIGSEGV)
        with pytest.raises(RunError, match="edge-0 ended with code -11"):
            fleet.wait(30)
    assert "Fatal Python error: Segmentation fault" in (tmp_path / "edge-0" / "node.log").read_text()

"""Secure aggregation on real fleets of processes: the simulated models, also under kills."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import espalier
from espalier.record.run import Run
from tests.fleet import counting
from tests.fleet.test_agreement import BASE, agree, scripted

SECURE: dict[str, Any] = {"name": "hierfavg", "edge": {"merge": {"kind": "secure"}}}


def notes(folder: Path) -> list[tuple[int, int, str | None]]:
    """How many were asked, how many are in the sum, and why there is none."""
    return [(e["clients"], e["reports"], e.get("why")) for e in Run(folder / "cloud").events("secure")]


def test_a_real_fleet_trains_the_simulated_model(tmp_path: Path) -> None:
    base = {**BASE, "fleet": {"devices": 6, "edges": 2}}
    run = scripted(SECURE, tmp_path, base)
    simulated = espalier.simulate(SECURE, base, directory=tmp_path / "simulated")
    assert agree(run, simulated)
    assert [e["reports"] for e in run.events("secure")] == [e["reports"] for e in simulated.events("secure")]
    # the average without masks differs by the rounding to fixed point only
    assert agree(run, espalier.simulate("hierfavg", base, directory=tmp_path / "plain"))
    # numbers of 8 bytes go up, of 4 bytes come down
    sent = "SELECT bytes FROM traffic WHERE kind = 'model' AND tier = 'dev-edge' AND direction = ? ORDER BY rowid DESC"
    up, down = (run.query(f"{sent} LIMIT 1", direction)[0][0] for direction in ("up", "down"))
    assert up / down == pytest.approx(2, rel=0.02)


def test_killed_nodes_go_on_in_the_middle_of_the_protocol(tmp_path: Path) -> None:
    # As in test_fleet.py: whoever is killed is started again within the fleet's patience, and every number is exact.
    rounds, devices = 8, 6
    made = counting.experiment(devices, 2, rounds, SECURE)
    names = ("edge-0", "device-0", "edge-1", "cloud", "edge-0")
    found = counting.after_kills(made, tmp_path, names, seed=3)
    torch.testing.assert_close(found, torch.full((devices,), rounds / devices, dtype=torch.float64), atol=1e-5, rtol=0)
    assert notes(tmp_path) == [(3, 3, None)] * (2 * rounds)


def test_devices_that_die(tmp_path: Path) -> None:
    # One edge, device 0 quick, the others slow. Device 0 dies when it has reported: it is in that sum, which the others
    # unmask (3 of 4). In the next round it is asked and has not told its keys when it is given up: 3 of 4 again. In a
    # round of the three that are left, one dies after it has shared its keys: two are too few of three, and the model
    # stays as it is. Then both are back.
    made = counting.experiment(4, 1, 10, SECURE)
    with counting.fleet(made, tmp_path, lambda number: "Slow" if number else "Counter", patience=1.5) as fleet:
        fleet.start()
        fleet.until("cloud", lambda s: s.get("round", 0) >= 1)
        time.sleep(0.5)
        fleet.kill("device-0")
        fleet.until("cloud", lambda s: s["devices"] == 3)
        at = fleet.status("cloud")["round"]
        fleet.until("cloud", lambda s: s["round"] >= at + 1)
        time.sleep(0.5)
        fleet.kill("device-1")
        fleet.until("cloud", lambda s: s["devices"] == 2)
        for name in ("device-0", "device-1"):
            fleet.launch(name)
        fleet.wait(60)
    found = notes(tmp_path)
    assert found[0] == found[-1] == (4, 4, None)
    assert (4, 3, None) in found
    assert any(reports < clients == 3 for clients, reports, _ in found)
    # Whoever is in a sum, what it adds to all numbers together is one: nothing else was merged, and nothing twice.
    merged = sum("why" not in e and e["reports"] >= e["threshold"] for e in Run(tmp_path / "cloud").events("secure"))
    assert merged < len(found) == 10
    counted = counting.counts(tmp_path / "cloud", 4, counting.weights_of(made))
    assert float(counted.sum()) == pytest.approx(merged, abs=1e-5)

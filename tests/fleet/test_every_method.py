"""Every bundled method on a fleet of processes, beside the simulator: the same models and figures.

The fleet keeps a script (`espalier.fleet.coordinator.manifest.Script`): what happens to a node happens at its scripted
time, so a method that follows the clock (whose report came first, how many rounds fit into a time) decides as it does
simulated. Models agree up to the order in which float32 numbers are added. A fleet on a machine that is too busy to
keep the script says so in its record, and is run again, slower.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import espalier
from espalier.core.method import available
from tests.fleet.test_agreement import BASE, agree, saved, scripted

SMALL: dict[str, Any] = {**BASE, "fleet": {"devices": 6, "edges": 2}}
OPTIONS: dict[str, dict[str, Any]] = {
    # a patience of six messages' time: the default of 0.2 s is a long time on a fleet whose clock is slow
    **{name: {"patience": 0.03} for name in ("easf", "hfl_easf", "kma_raf", "syn")},
    **{name: {"rounds": 1} for name in ("d2d", "d2d_a", "d2d_a_plus", "d2d_b")},
}
ROUNDS = 2
SCORES = ("acc_global", "acc_edge", "acc_device", "acc_device_std", "acc_device_worst", "loss_device")
BUNDLED = [name for name, cls in available().items() if cls.__module__.startswith("espalier.")]


@pytest.mark.parametrize("name", BUNDLED)
def test_a_method_gives_on_a_fleet_what_it_gives_simulated(tmp_path: Path, name: str) -> None:
    method = {"name": name, **OPTIONS.get(name, {})}
    table = {**SMALL, "stop": {"rounds": ROUNDS}}
    simulated = espalier.simulate(method, table, directory=tmp_path / "simulated")
    kept = bool(saved(simulated))
    run = scripted(method, tmp_path, table, simulated if kept else None)
    assert run.status == {"state": "finished"}
    assert not run.events("refused"), "an honest fleet"
    assert run.rounds == simulated.rounds == ROUNDS
    real, virtual = run.frame().iloc[-1], simulated.frame().iloc[-1]
    measured = [score for score in SCORES if score in virtual and virtual[score] == virtual[score]]
    assert {"acc_device", "acc_device_std", "acc_device_worst", "loss_device"} <= set(measured)
    # a fleet scores the model that devices are meant to use: the cloud's or their edge's, not both
    unscored = [score for score in measured if score not in real]
    assert unscored in ([], ["acc_edge"], ["acc_global"])
    for score in sorted({*measured} - {*unscored}):
        assert real[score] == pytest.approx(virtual[score], abs=2e-3), score
    if kept:
        assert agree(run, simulated)

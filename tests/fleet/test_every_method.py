"""Every bundled method on a fleet of processes, beside the simulator: the same models, or the same within a tolerance.

With scripted equal speeds a synchronous method has one outcome, and a fleet must reach it: the same final models up to
the order in which float32 numbers are added. Methods whose decisions follow the clock (whose report came first, how
many rounds fit into a time) have as many outcomes as there are timings; for them rounds must agree, accuracy roughly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import espalier
from espalier.core.method import available
from espalier.fleet.coordinator.manifest import Script
from tests.fleet.test_agreement import BASE, agree, real

SMALL: dict[str, Any] = {**BASE, "fleet": {"devices": 6, "edges": 2}}
SCRIPT = Script(0.005, 0.005, slack=10.0)
#: the share of the simulated final accuracy that a method which follows the clock reaches at least: busy processes fit
#: less into the same time (a D2D cluster perhaps no round at all)
AT_LEAST = 0.6
#: how many updates EASF recommends and whom it waits for depends on measured times: no two fleets agree. A cluster of
#: the D2D paper does as many rounds as fit into a time: here the time of one
OPTIONS: dict[str, dict[str, Any]] = {
    "easf": {"frequency": "fixed", "abandon": "none"},
    **{name: {"rounds": 1} for name in ("d2d", "d2d_a", "d2d_a_plus", "d2d_b")},
}
#: methods whose outcome depends on who reports first or on how much fits into a time
BY_THE_CLOCK = {"fedat", "feduc", "hiflash", "kma_raf", "d2d", "d2d_a", "d2d_a_plus", "d2d_b"}
#: methods whose rounds take seconds of real time
SLOW = {"d2d", "d2d_a", "d2d_a_plus", "d2d_b", "easf", "hfl_easf", "syn"}
BUNDLED = [name for name, cls in available().items() if cls.__module__.startswith("espalier.")]


@pytest.mark.parametrize("name", BUNDLED)
def test_a_method_gives_on_a_fleet_what_it_gives_simulated(tmp_path: Path, name: str) -> None:
    method = {"name": name, **OPTIONS.get(name, {})}
    rounds = 2 if name in SLOW else 3
    table = {**SMALL, "stop": {"rounds": rounds}}
    run = real(method, tmp_path, table, script=SCRIPT)
    simulated = espalier.simulate(method, table, directory=tmp_path / "simulated")
    assert run.status == {"state": "finished"}
    assert run.rounds == simulated.rounds == rounds
    frame, virtual = run.frame(), simulated.frame()
    # A device scores the model that it was handed last, which is not the run's last one: of devices' figures only those
    # of models that never leave them can be compared.
    for score in ("acc_device",) if name == "standalone" else ("acc_global", "acc_edge"):
        if score in frame and score in virtual and virtual[score].iloc[-1] == virtual[score].iloc[-1]:
            found, wanted = frame[score].iloc[-1], virtual[score].iloc[-1]
            if name in BY_THE_CLOCK:
                assert found >= AT_LEAST * wanted, (score, found, wanted)
            else:
                assert found == pytest.approx(wanted, abs=2e-3), score
    if name not in BY_THE_CLOCK and list((tmp_path / "simulated" / "models").glob("*")):
        assert agree(tmp_path, simulated)

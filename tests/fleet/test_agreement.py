"""The same experiment simulated and on a real fleet of 3 edges and 12 devices: with equal speeds, the same models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import espalier
from espalier.experiment import Experiment
from espalier.fleet.coordinator.manifest import Script
from espalier.fleet.local import LocalFleet
from espalier.record.models import DEVICES, PRIORS
from espalier.record.run import Run

BASE: dict[str, Any] = {
    "fleet": {"devices": 12, "edges": 3},
    "training": {"updates": 2, "lr": 0.05},
    "stop": {"rounds": 3},
    # every edge needs a set of its own for PHE-FL
    "partition": {"kind": "iid", "val_fraction": 0.2},
    "world": {"compute": {"kind": "constant", "seconds": 0.0005}, "links": {"kind": "uniform", "latency": 0.005}},
}
#: real seconds for one of the fleet's: this machine has a quarter of a second to handle a message before it is late
SLOWDOWN = 50.0


def scripted(
    method: Any, folder: Path, base: dict[str, Any] = BASE, simulated: Run | None = None, slowdown: float = SLOWDOWN
) -> Run:
    """Run an experiment on a fleet of processes at the world's times; slower, if this machine cannot keep them.

    A fleet that was late and still has the ``simulated`` models need not be run again.
    """
    for slower in (1.0, 3.0, 9.0):
        run = real(method, folder / f"{slower:g}", base, script=Script(0.0005, 0.005, slowdown * slower))
        if not run.events("behind") or (simulated is not None and agree(run, simulated)):
            break
    return run


def real(method: Any, folder: Path, base: dict[str, Any] = BASE, **options: Any) -> Run:
    """Run an experiment on a fleet of processes."""
    made = Experiment.build({**base, "methods": [method], "seeds": [0]})
    with LocalFleet(made, folder / "real", **options) as fleet:
        fleet.start()
        fleet.wait(180)
        assert {p.exitcode for p in fleet.processes.values()} == {0}
    return Run(folder / "real" / "cloud")


def saved(simulated: Run) -> list[Path]:
    """Return the final models that a fleet has, too; models and priors of single devices stay on them."""
    assert simulated.directory is not None
    found = (simulated.directory / "models").glob("*.safetensors")
    return [path for path in found if path.stem not in (DEVICES, PRIORS)]


def agree(run: Run, simulated: Run) -> bool:
    """Whether the final models are the same: the cloud's, and those that edges serve.

    Merging in another order changes the last digit of a float32, and that may tip a ReLU: one hidden unit then differs
    by 1e-5. An update too many or too few changes every weight, by 1e-3 and more.
    """
    real = {p.name: p for p in run.directory.parent.glob("**/models/*.safetensors")}
    virtual = saved(simulated)
    assert virtual
    for path in virtual:
        one, other = load_file(real[path.name]), load_file(path)
        off = torch.cat([(one[k] - other[k]).abs().reshape(-1) for k in other])
        if float(off.max()) > 1e-4 or float(off.mean()) > 1e-6:
            return False
    return True


#: HierFAVG under edges' own last layers
KEEPS = {"name": "hierfavg", "edge": {"hand_down": {"kind": "parts"}}, "serve": {"model": "edge"}}


@pytest.mark.parametrize("method", ["hierfavg", "fedavg", "phefl", "csahfl", KEEPS])
def test_a_real_fleet_trains_the_simulated_models(tmp_path: Path, method: Any) -> None:
    run = scripted(method, tmp_path)
    simulated = espalier.simulate(method, BASE, directory=tmp_path / "simulated")
    assert agree(run, simulated)
    assert run.status == {"state": "finished"}
    frame, virtual = run.frame(), simulated.frame()
    assert list(frame["round"]) == [0, 1, 2, 3] if method != "phefl" else list(frame["round"])[-1] == 3
    score = "acc_edge" if method in ("phefl", KEEPS) else "acc_global"
    assert frame[score].iloc[-1] == pytest.approx(virtual[score].iloc[-1], abs=2e-3)
    # models are counted as they travel: the simulator's bytes and a little around them
    sent = run.query("SELECT tier, direction, bytes FROM traffic WHERE kind = 'model' ORDER BY rowid DESC LIMIT 4")
    for tier, direction, count in sent:
        rows = simulated.query(
            "SELECT bytes FROM traffic WHERE kind = 'model' AND tier = ? AND direction = ? ORDER BY rowid DESC LIMIT 1",
            tier, direction,
        )  # fmt: skip
        # PHE-FL's edges do not wait for the cloud to say that the last round is over: they have begun another
        begun = 1 / 3 if method == "phefl" else 0.0
        assert 1.0 <= count / rows[0][0] < 1.02 + begun, (tier, direction)


def test_devices_that_make_their_tree_themselves_train_the_simulated_model(tmp_path: Path) -> None:
    # With one update per report everywhere, the root's model is the average over all devices whatever tree they have
    # made, if everybody is in it once. How many updates AAF recommends depends on measured times: no two fleets agree.
    # Their protocol waits for messages by the clock, and everybody talks to everybody: a few devices must do here, and
    # a patience of ten messages' time.
    method = {"name": "easf", "frequency": "fixed", "abandon": "none", "patience": 0.05}
    base = {**BASE, "fleet": {"devices": 6, "edges": 2}}
    run = scripted(method, tmp_path, base, slowdown=SLOWDOWN / 2.5)
    simulated = espalier.simulate(method, base, directory=tmp_path / "simulated")
    assert agree(run, simulated)
    # equal links: one cluster, whose head is the root
    top = [(e["node"], e["members"]) for e in run.events("elected") if not e["level"]]
    assert top == [(e["node"], e["members"]) for e in simulated.events("elected") if not e["level"]]


def test_lone_devices_train_in_step_as_simulated(tmp_path: Path) -> None:
    """Nobody sends a model: their accuracies show what devices know at the end."""
    base = {**BASE, "fleet": {"devices": 6, "edges": 2}, "training": {**BASE["training"], "momentum": 0.9}}
    run = scripted("standalone", tmp_path, base)
    simulated = espalier.simulate("standalone", base, directory=tmp_path / "simulated")
    assert run.status == {"state": "finished"}
    # scores of a round come after it was counted; at the end everybody is waited for
    assert list(run.frame()["round"])[-1] == 3
    for name in ("acc_device", "acc_device_std", "acc_device_worst", "loss_device_worst"):
        assert run.frame()[name].iloc[-1] == pytest.approx(simulated.frame()[name].iloc[-1], abs=2e-3), name
    count = "SELECT node, count(*) FROM spans WHERE kind = 'train' GROUP BY node ORDER BY node"
    assert run.query(count) == simulated.query(count) == [(d, 3) for d in range(6)]

"""The same experiment simulated and on a real fleet of processes: final models, and curves at real speeds.

    .venv/bin/python benchmarks/fleet_agreement.py [--rounds 20] [--only easf] [--json FILE]

Digits, 3 edges, 12 devices. First with scripted equal speeds, where the models should be the same up to the order in
which float32 numbers are added; then as fast as this machine goes, where policies that look at measured times (CSAHFL's
intervals, EASF's frequencies) decide differently in every run and the curves should lie together.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import espalier
from espalier.experiment import Experiment
from espalier.fleet.coordinator.manifest import Script
from espalier.fleet.local import LocalFleet
from espalier.record.run import Run

BATCH, HOP = 0.0005, 0.005
#: real seconds per second of the scripted fleets: a message must be handled before it is due
SLOWDOWN = 50.0
#: EASF's devices wait so long for each other: sixteen processes share two cores
PATIENCE = 3.0
SCRIPT = Script(BATCH, HOP, SLOWDOWN)
METHODS: dict[str, tuple[Any, Any, Script]] = {
    # name: the method with equal speeds, the method as it is, the script
    "hierfavg": ("hierfavg", "hierfavg", SCRIPT),
    "phefl": ("phefl", "phefl", SCRIPT),
    "csahfl": ("csahfl", "csahfl", SCRIPT),
    # with one update per report the tree does not matter, if everybody is in it once
    "easf": (
        {"name": "easf", "frequency": "fixed", "abandon": "none", "patience": 6 * HOP},
        {"name": "easf", "patience": PATIENCE},
        SCRIPT,
    ),
}


def table_of(rounds: int) -> dict[str, Any]:
    return {
        "fleet": {"devices": 12, "edges": 3}, "training": {"updates": 1, "lr": 0.1}, "stop": {"rounds": rounds},
        "partition": {"kind": "iid", "val_fraction": 0.2},
        "world": {"compute": {"kind": "constant", "seconds": BATCH}, "links": {"kind": "uniform", "latency": HOP}},
    }  # fmt: skip


def real(method: Any, table: dict[str, Any], folder: Path, script: Script | None) -> Run:
    with LocalFleet(Experiment.build({**table, "methods": [method]}), folder, script=script) as fleet:
        fleet.start()
        fleet.wait(900)
    return Run(folder / "cloud")


def difference(folder: Path, simulated: Path) -> float:
    found = {p.name: p for p in folder.glob("**/models/*.safetensors")}
    worst = 0.0
    for path in (simulated / "models").glob("*.safetensors"):
        one, other = load_file(found[path.name]), load_file(path)
        worst = max(worst, *(float((one[k] - other[k]).abs().max()) for k in other))
    return worst


def parting(run: Run, simulated: Run) -> tuple[int, float] | None:
    """Return the first round after which the root's loss is not the simulated one to 1e-6, and by how much it is off.

    None where it always is, and where the root has no model of its own.
    Adding in another order may tip a ReLU for one sample: 1e-6 to 1e-5. An update that is lost shows as 1e-3.
    """
    one, other = (r.frame().set_index("round") for r in (run, simulated))
    if not all("loss_global" in frame for frame in (one, other)):
        return None
    off = (one["loss_global"] - other["loss_global"]).abs().dropna()
    found = off[off > 1e-6]
    return None if found.empty else (int(found.index[0]), float(found.iloc[0]))


def curve(run: Run, rounds: list[int]) -> list[float | None]:
    """Return the accuracy after some rounds: the edges' own models', where a method has such; None: not measured."""
    frame = run.frame()
    at = frame.dropna(subset=[score := score_of(run)]).set_index("round")[score]
    return [float(at.loc[r]) if r in at.index else None for r in rounds]


def score_of(run: Run) -> str:
    return "acc_edge" if run.label == "PHE-FL" else "acc_global"


def shown(found: list[float | None]) -> str:
    return " ".join("  –  " if value is None else f"{value:.3f}" for value in found)


def main() -> None:
    """Compare every method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=METHODS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    table = table_of(given.rounds)
    marks = sorted({1, given.rounds // 4, given.rounds // 2, 3 * given.rounds // 4, given.rounds})
    rows: list[dict[str, Any]] = []
    print(f"rounds {marks}")
    for name, (equal, as_it_is, script) in METHODS.items():
        if given.only not in (None, name):
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"espalier-{name}-"))
        # what came out of order: a machine that is too busy for the script shows here, not in the models alone
        scripted = real(equal, table, folder / "equal", script)
        late = len(scripted.events("behind"))
        alike = espalier.simulate(equal, table, directory=folder / "simulated")
        worst, parts = difference(folder / "equal", folder / "simulated"), parting(scripted, alike)
        told = f"the models differ by at most {worst:.1e}; {late} times behind"
        print(f"{name:9} equal speeds: {told}; losses part (round, by): {parts}", flush=True)
        simulated = espalier.simulate(as_it_is, table)
        there = curve(simulated, marks)
        print(f"{'':9} simulated   {shown(there)} ({score_of(simulated)})", flush=True)
        here = curve(real(as_it_is, table, folder / "real", None), marks)
        print(f"{'':9} real speeds {shown(here)}", flush=True)
        shutil.rmtree(folder)
        row = {
            "method": simulated.label,
            "score": score_of(simulated),
            "difference": worst,
            "parting": parts,
            "behind": late,
        }
        rows.append({**row, "rounds": marks, "simulated": there, "real": here})
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if any(row["parting"] is not None and row["parting"][1] > 1e-4 for row in rows) else 0)


if __name__ == "__main__":
    main()

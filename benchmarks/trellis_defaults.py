"""How Trellis's defaults were chosen: its parts on held-out training samples of two datasets.

    python benchmarks/trellis_defaults.py --out benchmarks/trellis_defaults.json
    python benchmarks/trellis_defaults.py --out benchmarks/trellis_defaults.json --table

Worlds like CSAHFL's: 50 devices of two labels at five edges, which know all labels (EIID) or three of ten (ENIID), two
of ten devices per edge and round, three edge rounds per cloud round; digits and Fashion-MNIST; and one of 25 devices at
a learning rate at which steps that are too large end a run at chance (*fast*; the table counts such runs). Models are
judged on training samples that no device holds; no test sample is looked at. Seeds are others than those of the study
(`espalier reproduce espalier/everywhere`). A run's figures are means over its last five cloud rounds: the global
model's accuracy, and devices' on their own label mix with their label prior; and the cloud rounds until the global
model was right on 80 % of digits, on half of Fashion-MNIST (one more than there were, if never). An average changes no
training, so every run is judged under several.

Of Trellis's answer to drift (``alert``) the worlds are *calm*, or after 25 edge rounds labels *exchange* places in
devices' mixes, or are *permuted*. Then a run's figures are devices' accuracy with their label priors before the drift,
in the first five rounds from it on, in the second five and in the last five; the rounds until it was back (30: never);
and the MB sent.

Each run's figures are kept as they come; runs that are kept are not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from espalier.core.serving import smoothed
from espalier.data.registry import load
from espalier.experiment import Experiment
from espalier.methods.cflhkd.measures import shock
from espalier.methods.csahfl.world import paper_world
from espalier.policies.server_optimizers import newest_share
from espalier.record.run import Run
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation

SEEDS = (10, 11, 12)
#: at a learning rate at which steps that are too large end a run at chance
FAST = ("fashion-mnist EIID fast",)
FAST_SEEDS, FAST_RATE, FAST_ROUNDS = range(10, 40), 0.2, 9
WORLDS = ("digits EIID", "digits ENIID", "fashion-mnist EIID", "fashion-mnist ENIID")
NOISY = ("digits EIID noisy", "digits ENIID noisy")
DRIFTS: dict[str, dict[str, Any]] = {
    "calm": {}, "exchange": {"kind": "exchange_labels"}, "permuted": {"kind": "permute_labels"},
}  # fmt: skip
DRIFTING = (
    *(f"digits {skew} {drift}" for skew in ("EIID", "ENIID") for drift in DRIFTS),
    "fashion-mnist EIID permuted",
    "fashion-mnist ENIID calm",
)
DRIFT_AT, DRIFT_ROUNDS, ALERTS = 25, 55, (0.0, 1.5, 2.0)
AVERAGES = (0.0, 0.5, 0.7)
LATEST = 5
#: a global model that is right on less of ten labels has not learnt
LOST_PERCENT = 15.0
HELD_OUT_SHARE, MOST_SAMPLES, SMOOTHING = 0.2, 16_000, 0.01


def variant(
    root: float, edge: float = 0.0, *, ahead: bool = True, warm_up: bool = False, **more: Any
) -> dict[str, Any]:
    """Return HierFAVG with momentum at the cloud, looking ahead or not, warmed up or not, and at the edges."""
    cloud = {"kind": "momentum", "beta": root, "look_ahead": ahead, "warm_up": warm_up}
    edges = {"kind": "momentum", "beta": edge}
    return {"name": "hierfavg", "kappa2": 3, "root": {"merge": cloud}, "edge": {"merge": edges}, **more}


def calibrated(tau: float) -> dict[str, Any]:
    """Return devices whose loss takes their label shares for granted."""
    return {"kind": "calibrated", "tau": tau, "smoothing": 0.1}


VARIANTS: dict[str, dict[str, Any]] = {
    "HierFAVG": variant(0.0),
    "cloud 0.7 behind": variant(0.7, ahead=False),
    "cloud 0.7": variant(0.7),
    "cloud 0.7, edges 0.5": variant(0.7, 0.5),
    "cloud 0.5, edges 0.5": variant(0.5, 0.5),
    "cloud 0.7, edges 0.3": variant(0.7, 0.3),
    "cloud 0.7, edges 0.5, calibrated 0.25": variant(0.7, 0.5, local=calibrated(0.25)),
    "cloud 0.7, edges 0.7": variant(0.7, 0.7),
    "cloud 0.8, edges 0.5": variant(0.8, 0.5),
    "cloud 0.7, edges 0.5, calibrated 1": variant(0.7, 0.5, local=calibrated(1.0)),
    "cloud 0.7, warmed up": variant(0.7, warm_up=True),
}


def held_out(name: str, folder: Path) -> str:
    """Write a dataset whose test set are training samples of another; return its file."""
    path = folder / f"{name}.npz"
    if not path.exists():
        found = load(name)
        rows = np.random.default_rng(7).permutation(len(found.cell_train))[:MOST_SAMPLES]
        x, y = (a.numpy() for a in found.pool("train").gather(torch.from_numpy(rows)))
        cut = round(len(rows) * (1 - HELD_OUT_SHARE))
        np.savez(path, x_train=x[:cut], y_train=y[:cut], x_test=x[cut:], y_test=y[cut:])
    return str(path)


def setting(world: str, folder: Path) -> dict[str, Any]:
    """Return the experiment of a world, without its method."""
    name, skew, *more = world.split()
    digits, noisy, fast = name == "digits", "noisy" in more, "fast" in more
    partition: dict[str, Any] = {
        "kind": "two_level", "edge_fraction": 0.3 if skew == "ENIID" else 1.0, "device_fraction": 0.2,
    }  # fmt: skip
    task: dict[str, Any] = {"dataset": held_out(name, folder), "model": "mlp" if digits else "lenet"}
    if digits:
        task["model_options"] = {"hidden": [32]}
    else:
        partition["samples_per_device"] = 80 if fast else 100
    return {
        "task": task,
        "partition": partition,
        "fleet": {"devices": 25 if fast else 50, "edges": 5, "fraction": 0.5 if noisy else 0.4 if fast else 0.2},
        "training": {"batch_size": 10, "updates": 5, "lr": FAST_RATE if fast else 0.05 if digits else 0.03},
        "world": paper_world(1.0, 0.3 if noisy else 0.0, epochs=5),
        "stop": {"rounds": FAST_ROUNDS if fast else 24 if digits else 14},
    }


def rounds(method: dict[str, Any], world: str, seed: int, folder: Path) -> tuple[Runner, list[torch.Tensor]]:
    """Run a method; return the global model after every cloud round."""
    experiment = Experiment.build({**setting(world, folder), "methods": [method], "seeds": [seed]})
    runner, models = Runner(experiment.only(method, seed), None), dict[int, torch.Tensor]()

    def look(sim: Simulation) -> None:
        if sim.round and sim.round not in models:
            models[sim.round] = sim.ledger.vector(sim.served[sim.fleet.tree.root][""]).double().clone()

    runner.run(look)
    look(runner.simulation)
    return runner, [models[r] for r in sorted(models)]


def averaged(models: Sequence[torch.Tensor], average: float) -> list[torch.Tensor]:
    """Return the running means of models."""
    found: list[torch.Tensor] = []
    for many, model in enumerate(models, 1):
        share = newest_share(average, many)
        found.append(share * model + (1.0 - share) * found[-1] if found else model)
    return found


def judged(runner: Runner, models: Sequence[torch.Tensor], target: float) -> tuple[float, float, int]:
    """Return the global accuracy and devices' with their label priors, in percent, and the rounds until a target."""
    task, partition = runner.task, runner.simulation.fleet.partition
    cells = task.dataset.cell_test
    counts = np.bincount(cells, minlength=task.dataset.n_classes)
    rows, mixes = np.arange(len(cells)), partition.test_mix / partition.test_mix.sum(1, keepdims=True)
    logits = task.evaluator.logits([m.float() for m in models], task.dataset.pool("test"), rows).double().numpy()
    curve = (logits.argmax(2) == cells).mean(1)
    reached = int(np.flatnonzero(np.append(curve, 1.0) >= target)[0]) + 1
    shares = np.unique(np.hstack([partition.histogram, mixes]), axis=0, return_counts=True)
    width, right = partition.histogram.shape[1], 0.0
    for row, devices in zip(*shares, strict=True):
        right_cells = (logits[-LATEST:] + np.log(smoothed(row[:width], SMOOTHING))).argmax(2) == cells
        by_cell = np.stack([np.bincount(cells, hits, len(counts)) for hits in right_cells]).mean(0) / counts
        right += devices * float(row[width:] @ by_cell)
    return 100 * float(curve[-LATEST:].mean()), 100 * right / len(mixes), reached


def drifted(method: dict[str, Any], world: str, seed: int, folder: Path) -> list[float]:
    """Run a method through a drift; return its accuracies before and after it, the rounds until it was back, the MB."""
    table, drift = setting(world, folder), DRIFTS[world.split()[-1]]
    if drift:
        table["world"] = {**table["world"].to_plain(), "drift": {**drift, "at_round": DRIFT_AT}}
    table |= {"stop": {"rounds": DRIFT_ROUNDS}, "evaluate": {"prior": True}, "methods": [method], "seeds": [seed]}
    runner = Runner(Experiment.build(table).only(method, seed), None)
    runner.run()
    frame = Run(connection=runner.recorder.connection).frame().drop_duplicates("round", keep="last").set_index("round")
    curve = 100 * frame["acc_device_prior"]
    after = curve.loc[DRIFT_AT:]
    back = shock(curve[DRIFT_AT - 1], dict(after), DRIFT_AT).recovery
    means = [curve[DRIFT_AT - 1], after[:5].mean(), after[5:10].mean(), after[-5:].mean()]
    return [*means, DRIFT_ROUNDS - DRIFT_AT if back is None else back, frame["bytes"].iloc[-1] / 1e6]


def figures(label: str, method: dict[str, Any], world: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run one method in one world; return its figures under every average."""
    begun = time.process_time()
    if world in DRIFTING:
        told = [round(float(v), 2) for v in drifted(method, world, seed, folder)]
        seconds = {"cpu_seconds": round(time.process_time() - begun, 1)}
        return {"variant": label, "world": world, "seed": seed, "drifted": told, **seconds}
    runner, models = rounds(method, world, seed, folder)
    target = 0.8 if world.startswith("digits") else 0.5
    found = {str(a): [round(float(v), 2) for v in judged(runner, averaged(models, a), target)] for a in AVERAGES}
    seconds = {"virtual_seconds": round(runner.simulation.now), "cpu_seconds": round(time.process_time() - begun, 1)}
    return {"variant": label, "world": world, "seed": seed, "judged": found, **seconds}


def plan() -> list[tuple[str, dict[str, Any], str, int]]:
    """Return all runs: every variant everywhere, and edges that keep late work where devices' times vary."""
    found = [(label, method, world, seed) for label, method in VARIANTS.items() for world in WORLDS for seed in SEEDS]
    for label, options in {
        "waits for all": {"semi_async": False}, "alpha 0.4": {"alpha": 0.4}, "alpha 1.5": {"alpha": 1.5},
    }.items():  # fmt: skip
        method = {"name": "trellis", "kappa2": 3, "prior": "none", "alert": 0.0, **options}
        found += [(label, method, world, seed) for world in NOISY for seed in SEEDS]
    for alert in ALERTS:
        method = {"name": "trellis", "kappa2": 3, "clock": "edge", "prior": "none", "alert": alert}
        found += [(f"alert {alert:g}", method, world, seed) for world in DRIFTING for seed in SEEDS]
    for label in ("HierFAVG", "cloud 0.7", "cloud 0.7, edges 0.5", "cloud 0.7, warmed up"):
        found += [(label, VARIANTS[label], world, seed) for world in FAST for seed in FAST_SEEDS]
    return found


def table(runs: Sequence[dict[str, Any]]) -> None:
    """Print means over the seeds."""
    at: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        at.setdefault((run["world"], run["variant"]), []).append(run)
    for (world, label), found in at.items():
        if world in DRIFTING:
            told = "  ".join(f"{v:6.2f}" for v in np.mean([f["drifted"] for f in found], axis=0))
            print(f"{world:27} {label:10} {told}  {len(found)} seeds")
            continue
        means = [np.mean([f["judged"][str(a)] for f in found], axis=0) for a in AVERAGES]
        told = "  ".join(f"{a}: {m[0]:5.1f} {m[1]:5.1f} {m[2]:4.1f}" for a, m in zip(AVERAGES, means, strict=True))
        seconds = np.mean([f["virtual_seconds"] for f in found])
        lost = sum(run["judged"]["0.0"][0] < LOST_PERCENT for run in found)
        print(f"{world:23} {label:38} {told}  {seconds:7.0f} s  {len(found)} seeds, {lost} lost")


def main() -> None:
    """Make the runs that are missing, or print those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/trellis_defaults.json"))
    parser.add_argument("--table", action="store_true", help="run nothing; print the means of what is kept")
    options = parser.parse_args()
    runs = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else []
    if options.table:
        table(runs)
        return
    done = {(r["variant"], r["world"], r["seed"]) for r in runs}
    with TemporaryDirectory() as folder:
        for label, method, world, seed in plan():
            if (label, world, seed) not in done:
                runs.append(figures(label, method, world, seed, Path(folder)))
                lines = ",\n ".join(json.dumps(run) for run in runs)
                options.out.write_text(f"[{lines}]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

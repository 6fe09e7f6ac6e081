"""Fleets of devices on given or random graphs, run without looking at the models: only the tree matters."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from espalier.core.address import host_of, level_of
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.methods.easf.dsf.state import AgentState
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation
from tests.methods.easf.dsf.deaths import flaws as wrong

Link = tuple[int, int] | tuple[int, int, float]


@cache
def digits() -> Dataset:
    return registry.load("digits")


def runner(
    method: str | dict[str, Any] = "syn", devices: int = 8, seed: int = 0, *, links: Any = None, **changes: Any
) -> Runner:
    world = {
        "compute": {"kind": "uniform", "low": 0.05, "high": 0.5},
        "links": links or {"kind": "graph", "bandwidth": [1e6, 1e7]},
        "notice": 2.0,
        **changes.pop("world", {}),
    }
    table = {
        "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [8]}},
        "partition": {"kind": "iid", "samples_per_device": [20, 30]},
        "fleet": {"devices": devices, "edges": 1},
        "training": {"batch_size": 10, "lr": 0.1},
        "world": world,
        "stop": {"seconds": 1e6},
        "evaluate": {"every": 10**9},
        "record": {"spans": False},
        "methods": [],
        **changes,
    }
    return Runner(Experiment.build(table).only(method, seed), None, dataset=digits())


def graph(folder: Path, *links: Link) -> dict[str, Any]:
    """Return links of a graph: (a, b) takes 10 ms for a model, (a, b, seconds) what it says."""
    rows = [(*link, 0.01)[:3] for link in links]
    file = folder / "graph.csv"
    file.write_text("a,b,bandwidth,latency\n" + "".join(f"{a},{b},1e12,{s}\n" for a, b, s in rows))
    return {"kind": "graph_trace", "file": str(file)}


def start(
    method: str | dict[str, Any] = "syn", devices: int = 8, seed: int = 0, *,
    accuracies: dict[int, float] | None = None, until: float = 10.0, **changes: Any,
) -> Simulation:  # fmt: skip
    """Start a fleet (with given pre-training accuracies) and run it for some seconds."""
    sim = runner(method, devices, seed, **changes).simulation
    if accuracies is not None:
        sim.fleet.trials.pretraining_accuracy = lambda device, epochs: accuracies[device]
    sim.start()
    run(sim, until)
    return sim


def run(sim: Simulation, until: float) -> None:
    """Run until a virtual time, without measuring anything at the end."""
    while sim.clock.next_time <= until and sim.step():
        pass


def clusters(sim: Simulation) -> dict[int, list[int]]:
    """Return the devices of each cluster by its central node."""
    tree = sim.fleet.tree
    heads = [a for a in tree.aggregators() if level_of(a) == 1 and tree.children(a)]
    return {host_of(a): list(tree.children(a)) for a in heads}


def root(sim: Simulation) -> int:
    """Return the root's device."""
    return host_of(sim.fleet.tree.root)


def agent(sim: Simulation, device: int) -> AgentState:
    state = sim.runtime.node(device).state.agent
    assert isinstance(state, AgentState)
    return state


def working(sim: Simulation) -> list[int]:
    return [d for d in range(sim.fleet.n_devices) if sim.fleet.alive[d]]


def parent_of(sim: Simulation, device: int) -> int:
    """Return the device that leads a device's cluster."""
    found = sim.fleet.tree.parent(device)
    assert found is not None
    return host_of(found)


def rounds(sim: Simulation) -> int:
    """Return the rounds that the root has closed."""
    progress: int = sim.runtime.node(sim.fleet.tree.root).state.progress
    return progress


__all__ = ["wrong"]

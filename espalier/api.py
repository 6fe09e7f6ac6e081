"""The Python face: simulate one run, compare several, read them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from espalier.core.method import Method
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment, MethodEntry
from espalier.record.run import Run, slug
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation
from espalier.simulator.task import Backend


def simulate(
    method: str | Method | dict[str, Any] | MethodEntry,
    experiment: Experiment | dict[str, Any] | None = None,
    *,
    seed: int = 0,
    directory: Path | str | None = None,
    dataset: Dataset | None = None,
    data_dir: Path | str | None = None,
    workers: int = 1,
    backend: Backend | None = None,
    device: str = "cpu",
    progress: Callable[[Simulation], None] | None = None,
) -> Run:
    """Run one method under one seed; return the run.

    Args:
        method: A name, a table (``{"name": "fedprox", "mu": 0.1}``) or a method object.
        experiment: The task, fleet, world …: an object, a plain table, or None for the defaults.
        seed: Decides the data split, the initial model and the world.
        directory: Where the run is kept; None keeps it in memory.
        dataset: Data of your own in place of the experiment's dataset.
        data_dir: Where dataset files are looked for first.
        workers: Threads that train.
        device: What trains: ``cpu``, or ``cuda`` where there is one.
        backend: Where jobs are computed instead, such as `espalier.scale.computer.Ray()`.
        progress: Called after every event.
    """
    base = Experiment.build(experiment) if isinstance(experiment, dict) else experiment or Experiment()
    one = base.only(method, seed)
    where = None if directory is None else Path(directory)
    files = None if data_dir is None else Path(data_dir)
    runner = Runner(one, where, dataset=dataset, data_dir=files, workers=workers, backend=backend, device=device)
    runner.run(progress)
    return Run(where) if where is not None else Run(connection=runner.recorder.connection)


def compare(
    methods: Sequence[str | Method | dict[str, Any] | MethodEntry],
    experiment: Experiment | dict[str, Any] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    directory: Path | str | None = None,
    **options: Any,
) -> list[Run]:
    """Run several methods under the same worlds; return the runs, methods outermost."""
    base = Experiment.build(experiment) if isinstance(experiment, dict) else experiment or Experiment()
    entries = [MethodEntry.build(m) for m in methods]
    runs = []
    for entry in entries:
        for seed in seeds:
            where = None if directory is None else Path(directory) / slug(entry.label) / f"seed-{seed}"
            runs.append(simulate(entry, base, seed=seed, directory=where, **options))
    return runs

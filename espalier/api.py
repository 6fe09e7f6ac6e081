"""The Python face: simulate one run, compare several, read them back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from espalier.callbacks import Bar, Callback, RunProgress, StopRun, loggers
from espalier.core.code import only_in_this_process, short_name
from espalier.core.errors import ComparisonError, ConfigError, EspalierError, raised, warn
from espalier.core.method import Method
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.experiment import (
    DEFAULT_METHOD,
    OWNERS_UNUSED,
    Experiment,
    MethodEntry,
    checked_seeds,
    experiment_of,
    method_entries,
)
from espalier.record.run import Comparison, Run, slug
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation
from espalier.simulator.task import Backend

#: how a method is given: its name, a table with options, or an object
MethodLike = str | Method | dict[str, Any] | MethodEntry
#: how an experiment is given: an object, a plain table, the path of a TOML file, or None for the defaults
ExperimentLike = Experiment | dict[str, Any] | str | Path | None


def simulate(
    method: MethodLike = DEFAULT_METHOD,
    experiment: ExperimentLike = None,
    *,
    seed: int = 0,
    directory: Path | str | None = None,
    dataset: Dataset | None = None,
    data_dir: Path | str | None = None,
    workers: int = 1,
    backend: Backend | None = None,
    device: str = "cpu",
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run one method under one seed; return the run.

    Args:
        method: A name, a table (``{"name": "fedprox", "mu": 0.1}``) or a method object; by default Trellis, the
            project's own.
        experiment: The task, fleet, world …: an object, a plain table, a TOML file, or None for the defaults.
        seed: Decides the data split, the initial model and the world.
        directory: Where the run is kept; None keeps it in memory.
        dataset: Data of your own in place of the experiment's dataset.
        data_dir: Where dataset files are looked for first.
        workers: Threads that train.
        device: What trains: ``cpu``, or ``cuda`` where there is one.
        backend: Where jobs are computed instead, such as `espalier.scale.computer.Ray()`.
        progress: Show a progress bar; by default on a terminal and in a notebook.
        callbacks: Told about rounds and evaluations; may end the run (see `espalier.callbacks`).
    """
    one = experiment_of(experiment).only(method, seed)
    _check(dataset, callbacks, experiment)
    all_callbacks = [*callbacks, *loggers(one.record.log)]
    where = None if directory is None else Path(directory)
    for name in filter(only_in_this_process, (one.task.model, str(one.task.loss)) if where else ()):
        warn(
            f"{short_name(name)} is known to this program alone: no other can load the run's models, go on with it or "
            "export them. Put it into a file of its own and import it from there."
        )
    files = None if data_dir is None else Path(data_dir)
    runner = Runner(one, where, dataset=dataset, data_dir=files, workers=workers, backend=backend, device=device)
    with contextlib.ExitStack() as stack:
        watched = list(all_callbacks)
        if Bar.wanted() if progress is None else progress:
            watched.append(bar := Bar())
            stack.callback(bar.close)
        follow = following(runner, watched)
        runner.run(follow if watched else None)
        follow(runner.simulation)  # the last event ended the run
    if runner.simulation.diverged:
        warn(f"{runner.entry.label}, seed {seed}: {runner.simulation.stalled}")
    run = Run(where) if where is not None else Run(connection=runner.recorder.connection, models=runner.kept)
    for callback in all_callbacks:
        callback.on_end(run)
    return run


def _check(dataset: object, callbacks: object, experiment: ExperimentLike) -> None:
    """Refuse data and callbacks that are none, before anything runs."""
    if dataset is not None and not isinstance(dataset, Dataset):
        kind = f"{type(dataset).__module__.partition('.')[0]}.{type(dataset).__name__}".removeprefix("builtins.")
        raise ConfigError(
            f"dataset is a {kind}; make an espalier.Dataset of it: Dataset.from_arrays, from_pandas, from_torch or "
            "from_hf. A dataset of the catalogue is named in the experiment: {'task': {'dataset': …}}."
        )
    silent = experiment is None or (isinstance(experiment, Mapping) and "partition" not in experiment)
    if silent and isinstance(dataset, Dataset) and dataset.owner_train is not None:
        warn(OWNERS_UNUSED)
    if not isinstance(callbacks, Sequence) or not all(isinstance(c, Callback) for c in callbacks):
        raise ConfigError(f"callbacks = {callbacks!r}: must be a list of objects of classes below espalier.Callback.")


def following(runner: Runner, callbacks: Sequence[Callback]) -> Callable[[Simulation], None]:
    """Return what tells callbacks after every event what is new, and ends the run where one asks for it."""
    entry, plain = runner.entry, runner.experiment.to_plain()
    seen = {"on_evaluation": 0, "on_round": 0}

    def after(sim: Simulation) -> None:
        now = {"on_evaluation": sim.meter.evaluations, "on_round": sim.round}
        if now == seen:
            return
        at = RunProgress(entry.label, runner.seed, sim.round, sim.now, runner.experiment.stop, sim.meter.last, plain)
        try:
            for name in [n for n in now if now[n] > seen[n]]:
                seen[name] = now[name]
                for callback in callbacks:
                    getattr(callback, name)(at)
        except StopRun as stop:
            if not sim.finished:
                sim.stall(f"It was stopped: {str(stop) or 'a callback asked for it'}.")

    return after


def compare(
    methods: MethodLike | Sequence[MethodLike],
    experiment: ExperimentLike = None,
    *,
    seeds: Sequence[int] = (0,),
    directory: Path | str | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods under the same worlds; return the runs, methods outermost, with their verdict.

    Unless the experiment says when to stop, the first method closes 20 rounds and the others end when it did, in
    virtual time and seed by seed (``stop.budget = "time"``); ``stop = {"rounds": 20}`` gives every method 20 rounds.

    Raises:
        ConfigError: A method, a seed or the experiment cannot be run; nothing was.
        ComparisonError: Some runs failed. The message says which and why; the others are in its ``runs``.
    """
    entries, numbers = method_entries(methods), checked_seeds(seeds)
    base = replace(experiment_of(experiment), methods=entries, planned=())
    _check(options.get("dataset"), options.get("callbacks", ()), experiment)
    if options.get("dataset") is None:
        place = None if options.get("data_dir") is None else Path(options["data_dir"])
        registry.require(base.task.dataset, place, base.task.dataset_options.get("kind"))
    runs: list[Run] = []
    failed: dict[str, list[str]] = {}
    cause: Exception | None = None
    leaders: dict[int, float] = {}
    for entry in entries:
        for seed in numbers:
            where = None if directory is None else Path(directory) / slug(entry.label) / f"seed-{seed}"
            try:
                one = base.ending_with(leaders.get(seed))
                runs.append(simulate(entry, one, seed=seed, directory=where, **options))
                if (seconds := runs[-1].seconds) is not None:
                    leaders.setdefault(seed, seconds)
            except Exception as error:  # also what a user's model raises: what the others learnt is not lost
                if not runs and len(entries) * len(numbers) == 1:
                    raise
                cause = cause or error
                why = str(error) if isinstance(error, EspalierError) else f"{raised(error)}."
                failed.setdefault(why, []).append(f"{entry.label}, seed {seed}")
    if failed:
        number = sum(map(len, failed.values()))
        raise ComparisonError(
            f"{number} of {number + len(runs)} runs failed; the others are in this error's runs. "
            + " ".join(f"{'; '.join(who)}: {why}" for why, who in failed.items()),
            runs,
        ) from cause
    return Comparison(runs)

"""Runs one method under one seed in a directory: records, checkpoints, resumes, stops cleanly.

run.toml         the resolved configuration, versions, seed, command
run.sqlite       the record
checkpoints/     the newest states
models/          the final models, safetensors
run.lock         held by the process that writes
"""

from __future__ import annotations

import os
import platform
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save as to_bytes

from espalier.core.errors import RunError
from espalier.core.messages import ALL
from espalier.core.method import Setting
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.record.database import Recorder
from espalier.simulator import checkpoint
from espalier.simulator.simulation import Simulation


class Stopped(Exception):
    """The run was asked to stop; its state is saved."""


class Runner:
    """One run directory."""

    def __init__(
        self,
        experiment: Experiment,
        directory: Path | None,
        *,
        dataset: Dataset | None = None,
        data_dir: Path | None = None,
        workers: int = 1,
    ) -> None:
        """Prepare a run of the experiment's only method and seed; no directory: all in memory."""
        torch.set_num_threads(1)
        self.experiment = experiment
        self.directory = directory
        self.entry, self.seed = experiment.methods[0], experiment.seeds[0]
        self._lock = _lock(directory) if directory is not None else None
        self.stop = False
        try:
            data = experiment.dataset(data_dir) if dataset is None else dataset
            self.task = experiment.make_task(data, workers)
            parted = experiment.split(data, self.seed)
            path = None if directory is None else directory / "run.sqlite"
            self.recorder = Recorder(path)
            fleet = experiment.fleet
            setting = Setting(
                fleet.devices, fleet.edges, data.n_classes, experiment.training.updates, fleet.fraction,
                getattr(experiment.world.mobility, "stay", 1.0),
            )  # fmt: skip
            self.simulation = Simulation(
                self.entry.plan(setting), self.task, experiment.world, parted, self.seed,
                recorder=self.recorder, limits=experiment.stop, schedule=experiment.evaluate,
                tiers=fleet.tiers, spans=experiment.record.spans,
            )  # fmt: skip
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        self._checkpoints = 0
        self._saved_round, self._saved_at = 0, time.monotonic()

    def run(self, progress: Callable[[Simulation], None] | None = None) -> None:
        """Run to the end, from the newest checkpoint if there is one."""
        try:
            if not self._resume():
                self._describe()
                self.simulation.start()
            while self.simulation.step():
                if progress is not None:
                    progress(self.simulation)
                if self.stop:
                    self.save()
                    raise Stopped
                if self._due():
                    self.save()
            self._finish()
        finally:
            self.close()

    def close(self) -> None:
        """Close the record, stop workers, give the directory free."""
        self.task.close()
        if self.directory is not None:
            self.recorder.close()
        else:
            self.recorder.commit()
        if self._lock is not None:
            self._lock.release()

    # -- saving ------------------------------------------------------------------------------------------

    def _due(self) -> bool:
        record = self.experiment.record
        if self.directory is None:
            return False
        rounds, seconds = record.checkpoint_rounds, record.checkpoint_seconds
        if rounds is not None and self.simulation.round >= self._saved_round + rounds:
            return True
        return seconds is not None and time.monotonic() - self._saved_at >= seconds

    def save(self) -> None:
        """Write a checkpoint (nothing if the run is in memory)."""
        if self.directory is None:
            return
        self.recorder.commit()
        plain, tensors = self.simulation.save()
        plain["rows"] = self.recorder.watermarks()
        self._checkpoints += 1
        checkpoint.write(self.directory / "checkpoints", self._checkpoints, plain, tensors)
        self._saved_round, self._saved_at = self.simulation.round, time.monotonic()

    def _resume(self) -> bool:
        if self.directory is None:
            return False
        found = checkpoint.newest(self.directory / "checkpoints")
        if found is None:
            self.recorder.rewind(dict.fromkeys(self.recorder.watermarks(), 0))
            return False
        path, plain, tensors = found
        self._checkpoints = int(path.stem.split("-")[1])
        self.recorder.rewind(plain.pop("rows"))
        self.simulation.restore(plain, tensors)
        self._saved_round = self.simulation.round
        return True

    def _describe(self) -> None:
        record = self.recorder
        record.meta("experiment", self.experiment.to_plain())
        record.meta("label", self.entry.label)
        record.meta("method", self.entry.method.kind)
        record.meta("reconstruction", self.entry.method.reconstruction)
        record.meta("seed", self.seed)
        record.meta("model_bytes", self.task.spec.model_bytes)
        record.meta("parameters", self.task.spec.n_params)
        record.meta("status", {"state": "running", "pid": os.getpid()})
        if self.directory is None:
            return
        facts = {"versions": versions(), "command": " ".join(sys.argv)}
        text = tomli_w.dumps(without_none({**self.experiment.to_plain(), "about": facts}))
        checkpoint.atomic_write(self.directory / "run.toml", text.encode())

    def _finish(self) -> None:
        if self.directory is not None:
            folder = self.directory / "models"
            folder.mkdir(exist_ok=True)
            for name, vector in self.final_models().items():
                views = {k: v.clone() for k, v in self.task.spec.views(vector).items()}
                checkpoint.atomic_write(folder / f"{name}.safetensors", to_bytes(views))
            self.save()
        self.recorder.meta("status", {"state": "finished"})
        self.recorder.commit()

    def final_models(self) -> dict[str, Any]:
        """Return the models in use at the end: the root's by group, and the edges' where they serve."""
        sim = self.simulation
        found: dict[str, Any] = {}
        for address, models in sim.served.items():
            root = address == sim.fleet.tree.root
            if not root and (sim.plan.serves != "edge" or sim.fleet.is_device(address)):
                continue
            for group, ref in models.items():
                name = "global" if root else f"edge-{address - sim.fleet.n_devices}"
                found[name if group == ALL else f"{name}-{group}"] = sim.ledger.vector(ref)
        return found


def _lock(directory: Path) -> FileLock:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(directory / "run.lock"))
        lock.acquire(timeout=0)
    except Timeout:
        try:
            holder = (directory / "run.pid").read_text().strip()
        except OSError:
            holder = "unknown"
        raise RunError(
            f"{directory} is in use by process {holder}. Wait until it ends, or choose another directory."
        ) from None
    except OSError as error:
        raise RunError(f"{directory} cannot be written: {error.strerror or error}.") from error
    (directory / "run.pid").write_text(str(os.getpid()))
    return lock


def versions() -> dict[str, str]:
    """Return the versions that a run's numbers may depend on."""
    try:
        own = version("espalier")
    except Exception:
        own = "unknown"
    return {"espalier": own, "torch": torch.__version__, "python": platform.python_version()}


def without_none(value: Any) -> Any:
    """Return plain data without None: TOML has none."""
    if isinstance(value, dict):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [without_none(v) for v in value]
    return value


def load_experiment(directory: Path) -> Experiment:
    """Read the experiment of a run directory."""
    path = directory / "run.toml"
    if not path.is_file():
        raise RunError(f"{directory} is not a run directory: it has no run.toml.")
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    table.pop("about", None)
    return Experiment.build(table)


def resume(directory: Path, **options: Any) -> Runner:
    """Return the runner of a run directory; its :meth:`Runner.run` goes on where it stopped."""
    experiment = load_experiment(directory)
    return Runner(replace(experiment), directory, **options)

"""Runs one method under one seed in a directory: records, checkpoints, resumes, stops cleanly.

Whatever kills the process, the directory holds the last checkpoint and every row before it; a run that goes
on drops the rows after it, writes them again, and ends with the same rows and models as if nothing had
happened. See `espalier.simulator.directory` for what lies where.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from espalier.core.errors import EspalierError, RunError
from espalier.core.messages import ALL
from espalier.core.method import Setting
from espalier.core.store import Ref
from espalier.data.dataset import Dataset
from espalier.data.partition import Partition
from espalier.experiment import Experiment
from espalier.privacy import is_private, require_library, spending
from espalier.record.database import Recorder
from espalier.record.models import KeptModels
from espalier.simulator import checkpoint
from espalier.simulator.directory import (
    DirectoryLock,
    describe,
    differences,
    load_experiment,
    read_description,
    versions,
)
from espalier.simulator.meter import MOST_DESCRIBED_DEVICES
from espalier.simulator.simulation import Simulation
from espalier.simulator.task import Backend, Task
from espalier.training.host import release_pages

__all__ = ["Runner", "Stopped", "load_experiment", "resume", "versions"]


class Stopped(Exception):
    """The run was asked to stop; its state is saved."""


@contextlib.contextmanager
def _settled_objects() -> Iterator[None]:
    """Let the garbage collector pass over what is there already: events make and drop objects by the thousand."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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
        backend: Backend | None = None,
        device: str = "cpu",
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Prepare a run of the experiment's only method and seed; no directory: all in memory.

        A directory that holds a run of the same experiment is resumed. ``backend`` computes jobs elsewhere
        than in ``workers`` threads of this process, on the ``device``. ``tell`` is given what a user should know
        besides (a damaged checkpoint that was passed over).

        Raises:
            RunError: The directory is in use, cannot be written, or holds something else.
        """
        torch.set_num_threads(1)
        self.experiment = experiment
        self.directory = directory
        self.tell = tell
        self.entry, self.seed = experiment.methods[0], experiment.seeds[0]
        #: the final models, once the run has ended
        self.kept = KeptModels({})
        #: set it to make :meth:`run` save and raise :class:`Stopped` after the event in hand
        self.stop = False
        self._checkpoints = 0
        self._saved_round, self._saved_at = 0, time.monotonic()
        self._claim = None if directory is None else DirectoryLock(directory)
        with contextlib.ExitStack() as undo:
            if directory is not None and self._claim is not None:
                undo.callback(self._claim.release, undo=True)
                if not self._claim.fresh:
                    self._check_description(directory / "run.toml")
            data = experiment.dataset(data_dir) if dataset is None else dataset
            self.task = Task.of(experiment, data, workers, backend, device)
            undo.callback(self.task.close)
            self.recorder = Recorder(None if directory is None else directory / "run.sqlite", self._facts())
            undo.callback(self.recorder.connection.close)
            parted = experiment.split(data, self.seed)
            self.simulation = self._simulation(data, parted)
            self.recorder.meta("prior", self.simulation.plan.serve.prior)
            self._data = "" if directory is None else fingerprint(data, parted)
            if directory is not None and not (directory / "run.toml").exists():
                describe(directory / "run.toml", experiment, data_dir)
            undo.pop_all()

    def _simulation(self, data: Dataset, parted: Partition) -> Simulation:
        experiment, fleet = self.experiment, self.experiment.fleet
        setting = Setting(
            fleet.devices, fleet.edges, data.n_classes, experiment.training.updates, fleet.fraction,
            experiment.world.mobility.staying, training=experiment.training,
            classifies=data.kind == "classification",
        )  # fmt: skip
        plan = self.entry.plan(setting)
        if is_private(plan):
            require_library()
        return Simulation(
            plan, self.task, experiment.world, parted, self.seed, recorder=self.recorder, limits=experiment.stop,
            schedule=experiment.evaluate, tiers=fleet.tiers, spans=experiment.record.spans,
        )  # fmt: skip

    def run(self, progress: Callable[[Simulation], None] | None = None) -> None:
        """Run to the end, from the newest checkpoint if there is one.

        Raises:
            Stopped: :attr:`stop` was set; everything is saved.
        """
        try:
            if self._finished():
                self.recorder.seal()
            else:
                # BLAS too: its threads wait by spinning, which costs most where other runs want the cores.
                with threadpool_limits(limits=1, user_api="blas"):
                    self._go(progress)
        except BaseException as error:
            self._note_end(error)
            with contextlib.suppress(EspalierError):
                self.close()
            raise
        self.close()

    def _go(self, progress: Callable[[Simulation], None] | None) -> None:
        resumed = self._resume()
        self._begun_cpu = time.process_time() - (float(self.recorder.read_meta("cpu_seconds") or 0) if resumed else 0.0)
        self.recorder.meta("status", {"state": "running", "pid": os.getpid()})
        if not resumed:
            self.simulation.start()
        release_pages()
        with _settled_objects():
            while self.simulation.step():
                if progress is not None:
                    progress(self.simulation)
                if self.stop:
                    self.save()
                    raise Stopped
                if self._due():
                    self.save()
        self._finish()

    def close(self) -> None:
        """Close the record, stop workers, give the directory free."""
        self.task.close()
        try:
            if self.directory is not None:
                self.recorder.close()
            else:
                self.recorder.commit()
        finally:
            if self._claim is not None:
                self._claim.release()

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
        sim = self.simulation
        plain, tensors = sim.save()
        self._account_for_cpu()
        # The rows must be on the disk before a checkpoint counts on them.
        plain["rows"] = self.recorder.durable({"round": sim.round, "time": sim.now})
        plain["data"] = self._data
        self._checkpoints += 1
        checkpoint.write(self.directory / "checkpoints", self._checkpoints, plain, tensors)
        self._saved_round, self._saved_at = sim.round, time.monotonic()

    def _finished(self) -> bool:
        status = self.recorder.read_meta("status") or {}
        return bool(status.get("state") == "finished")

    def _check_description(self, path: Path) -> None:
        """Refuse a directory that holds a run of something else."""
        if not path.exists():  # killed before it was described: nothing is recorded that could be lost
            return
        there, about = read_description(path)
        unlike = differences(there, self.experiment)
        if unlike:
            raise RunError(
                f"{path.parent} holds a run of another experiment: it differs in {', '.join(unlike[:5])}. Choose "
                f"another directory, or go on with the run as it is: espalier resume {path.parent}."
            )
        before, now = about.get("versions", {}), versions()
        changed = [f"{k} {before[k]} → {now[k]}" for k in now if before.get(k, now[k]) != now[k]]
        if changed:
            self.tell(f"{path.parent} was begun with other versions ({', '.join(changed)}): numbers may differ.")

    def _resume(self) -> bool:
        if self.directory is None:
            return False
        folder = self.directory / "checkpoints"
        marks = self.recorder.watermarks()

        def fits(plain: dict[str, Any]) -> str | None:
            if plain["data"] != self._data:
                return "the dataset or its partition is not the one that the run began with"
            short = [t for t, last in plain["rows"].items() if marks.get(t, 0) < last]
            return f"run.sqlite lacks rows of {', '.join(short)} that it counts on" if short else None

        found = checkpoint.newest(folder, fits)
        checkpoint.clear(folder, None if found is None else found.path)
        if found is None:
            self.recorder.rewind(dict.fromkeys(marks, 0))
            return False
        for text in found.damaged:
            self.tell(f"{text} Going on from {found.path.name}.")
        self._checkpoints = int(found.path.stem.split("-")[1])
        self.recorder.rewind(found.plain["rows"])
        self.simulation.restore(found.plain, found.tensors)
        self._saved_round = self.simulation.round
        return True

    def _facts(self) -> dict[str, Any]:
        """Return what a reader of the record must know from its first moment."""
        return {
            "experiment": self.experiment.to_plain(),
            "label": self.entry.label,
            "planned": self.experiment.planned,
            "method": self.entry.method.kind,
            "reconstruction": self.entry.method.reconstruction,
            "seed": self.seed,
            "model_bytes": self.task.spec.model_bytes,
            "parameters": self.task.spec.n_params,
            "task": {
                "kind": self.task.dataset.kind,
                "input_shape": list(self.task.dataset.input_shape),
                "n_classes": self.task.dataset.n_classes,
                "vocabulary": self.task.dataset.vocabulary,
                **{k: v for k, v in self.task.dataset.meta.items() if k in ("classes", "table")},
            },
            "status": {"state": "running", "pid": os.getpid()},
        }

    def _finish(self) -> None:
        self.kept = self._keep()
        self.recorder.meta("models", self.kept.users())
        if self.directory is not None:
            folder = self.directory / "models"
            try:
                folder.mkdir(exist_ok=True)
                for name, content in self.kept.files(self.task.spec):
                    checkpoint.atomic_write(folder / name, content)
            except OSError as error:
                raise RunError(
                    f"The models cannot be written to {folder}: {error.strerror or error}. Make room and resume."
                ) from error
            self.save()
        else:
            self._account_for_cpu()
        self.recorder.commit()
        self._account_for_privacy()
        sim = self.simulation
        how = {"stalled": sim.stalled} if sim.stalled else {}
        self.recorder.meta("status", {"state": "finished", **how, **({"diverged": True} if sim.diverged else {})})
        self.recorder.seal()

    def _account_for_cpu(self) -> None:
        """Write how long this process has computed for the run, in all its sittings up to what is saved."""
        self.recorder.meta("cpu_seconds", round(time.process_time() - self._begun_cpu, 3))

    def _account_for_privacy(self) -> None:
        """Write what the run has spent of its devices' privacy, if anything in it is private."""
        sim = self.simulation
        if is_private(sim.plan):
            numbers, devices = sim.runtime.numbers, range(sim.fleet.n_devices)
            trained, told = ([int(counts[d]) for d in devices] for counts in (numbers.trainings, numbers.revealed))
            found = spending(sim.plan, len(devices), trained, told, self.recorder.connection)
            self.recorder.meta("privacy", found)

    def _note_end(self, error: BaseException) -> None:
        """Say in the record how the run ended, if it can still be written."""
        state = "stopped" if isinstance(error, Stopped | KeyboardInterrupt) else "failed"
        with contextlib.suppress(EspalierError):
            why = {} if state == "stopped" else {"why": f"{type(error).__name__}: {error}"}
            self.recorder.meta("status", {"state": state, **why})

    def final_models(self) -> dict[str, Tensor]:
        """Return the models in use at the end: the root's by group, and the edges' where they serve."""
        return {name: self.simulation.ledger.vector(ref) for name, (ref, _) in self._served().items()}

    def _keep(self) -> KeptModels:
        """Return the final models that are to be kept, and who uses which."""
        wanted, sim = set(self.experiment.record.models), self.simulation
        served = {name: ref for name, (ref, whose) in self._served().items() if whose in wanted}
        names = {ref: name for name, ref in reversed(served.items())}
        named = {name: sim.ledger.vector(ref) for name, ref in served.items()}
        edges, devices = sim.meter.in_use()
        own: dict[int, Tensor] = {}
        if sim.plan.serves == "device" and "devices" in wanted:
            room = self.experiment.record.devices_bytes
            if len(devices) * self.task.spec.model_bytes <= room:
                own = {d: sim.ledger.vector(ref) for d, ref in enumerate(devices)}
            else:
                self.tell(f"The devices' models are not kept: they take more than record.devices_bytes ({room:g}).")
        users = [] if len(devices) > MOST_DESCRIBED_DEVICES else devices
        return KeptModels(
            named, own, {e: names[r] for e, r in edges.items() if r in names},
            [f"device-{d}" if d in own else names.get(ref, "") for d, ref in enumerate(users)],
            sim.meter.priors() if users else {},
        )  # fmt: skip

    def _served(self) -> dict[str, tuple[Ref, str]]:
        """Return the root's models by group, and the edges' where they serve: by name, and whose they are."""
        sim = self.simulation
        found: dict[str, tuple[Ref, str]] = {}
        for address, models in sim.served.items():
            root = address == sim.fleet.tree.root
            if not root and (sim.plan.serves != "edge" or sim.fleet.is_device(address)):
                continue
            for group, ref in models.items():
                name = "global" if root else f"edge-{address - sim.fleet.n_devices}"
                whose = "edges" if not root else "global" if group == ALL else "clusters"
                found[name if group == ALL else f"{name}-{group}"] = ref, whose
        return found


def fingerprint(data: Dataset, partition: Partition) -> str:
    """Return a digest of who holds which samples, and of a few hundred of the samples themselves."""
    found = hashlib.blake2b(digest_size=16)
    for array in (partition.offsets, partition.indices, partition.edge, data.cell_train, data.cell_test):
        found.update(np.ascontiguousarray(array).tobytes())
    count = len(data.cell_train)
    for tensor in data.pool("train").gather(torch.arange(0, count, max(1, count // 256))):
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def resume(directory: Path, **options: Any) -> Runner:
    """Return the runner of a run directory; its :meth:`Runner.run` goes on where it stopped."""
    experiment, about = read_description(directory / "run.toml")
    if about.get("data_dir") is not None:
        options.setdefault("data_dir", Path(about["data_dir"]))
    return Runner(experiment, directory, **options)

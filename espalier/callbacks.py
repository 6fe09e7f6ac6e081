"""Following a run: callbacks, a progress bar, loggers for TensorBoard, Weights & Biases and MLflow.

    class Enough(espalier.Callback):
        def on_evaluation(self, progress):
            if progress.figures["acc_device"] > 0.9:
                raise espalier.StopRun("0.9 is enough")

    espalier.simulate("csahfl", callbacks=[Enough(), TensorBoard("logs")])

A run that is stopped so is evaluated once more, saved, and says why it ended. Loggers import their packages when used.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from espalier.core.errors import ConfigError, EspalierError, RunError
from espalier.core.run_rounds import RunLimits


class StopRun(Exception):
    """Raised by a callback: the run is to end now."""


@dataclass(frozen=True)
class RunProgress:
    """How far a run is.

    Attributes:
        label: The method's.
        seed: The run's.
        round: Rounds closed.
        time: Virtual seconds.
        limits: When it ends.
        figures: The last evaluation's, by the names of `Run.frame()`'s columns.
        experiment: The resolved configuration.
    """

    label: str
    seed: int
    round: int
    time: float
    limits: RunLimits
    figures: Mapping[str, float]
    experiment: Mapping[str, Any]

    @property
    def done(self) -> float:
        """The share of the run that is done, 0 … 1."""
        return self.limits.done(self.round, self.time)


class Callback:
    """The base of callbacks: override what you want to hear of. Raise `StopRun` to end the run."""

    def on_round(self, progress: RunProgress) -> None:
        """A round of the run was closed."""

    def on_evaluation(self, progress: RunProgress) -> None:
        """The models in use were evaluated."""

    def on_end(self, run: Any) -> None:
        """The run has ended, also if it was stopped; ``run`` is the `Run`."""


class Bar(Callback):
    """A progress bar per run, in a terminal or a notebook."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
        self._bars = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
        self._bars.start()
        self._tasks: dict[tuple[str, int], Any] = {}

    @staticmethod
    def wanted() -> bool:
        """Tell whether a person watches: on a terminal, or in a notebook."""
        return sys.stderr.isatty() or "ipykernel" in sys.modules

    def close(self) -> None:
        """Leave the bars as they are."""
        self._bars.stop()

    def on_round(self, progress: RunProgress) -> None:
        """Move the run's bar."""
        key = (progress.label, progress.seed)
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(f"{progress.label} · seed {progress.seed}", total=1.0, text="")
        score = next((f"  {k} {v:.3f}" for k, v in progress.figures.items() if k == "acc_device"), "")
        text = f"round {progress.round}  {progress.time:,.0f} s{score}"
        self._bars.update(self._tasks[key], completed=progress.done, text=text)

    on_evaluation = on_round


class TensorBoard(Callback):
    """Writes every evaluation's figures for TensorBoard, a folder per run."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writer_class = _load("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writers: dict[str, Any] = {}

    def on_evaluation(self, progress: RunProgress) -> None:
        """Write the figures against rounds; virtual time is one of them."""
        name = f"{progress.label}-seed-{progress.seed}"
        if name not in self._writers:
            self._writers[name] = self._writer_class(str(self.folder / name))
        for key, value in {**progress.figures, "time": progress.time}.items():
            self._writers[name].add_scalar(key, value, progress.round)

    def on_end(self, run: Any) -> None:
        """Close the run's file."""
        writer = self._writers.pop(f"{run.label}-seed-{run.seed}", None)
        if writer is not None:
            writer.close()


class WandB(Callback):
    """Logs runs to Weights & Biases: on this machine unless ``mode = "online"``."""

    def __init__(self, project: str = "espalier", *, mode: str = "offline", folder: Path | str = ".") -> None:
        self._wandb = _load("wandb", "wandb")
        self.project, self.mode, self.folder = project, mode, Path(folder)
        self._run: Any = None

    def on_evaluation(self, progress: RunProgress) -> None:
        """Log the figures."""
        if self._run is None:
            self._run = self._wandb.init(
                project=self.project, name=f"{progress.label} · seed {progress.seed}", config=dict(progress.experiment),
                mode=self.mode, dir=str(self.folder), reinit="finish_previous",
            )  # fmt: skip
        self._run.log({**progress.figures, "time": progress.time, "round": progress.round})

    def on_end(self, run: Any) -> None:
        """Close the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


class MLflow(Callback):
    """Logs runs to an MLflow store: a folder or a server's address."""

    def __init__(self, store: str = "sqlite:///mlflow.db", *, experiment: str = "espalier") -> None:
        self._client = _load("mlflow.tracking", "mlflow").MlflowClient(tracking_uri=store)
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = found.experiment_id if found else self._client.create_experiment(experiment)
        self._id: str | None = None

    def on_evaluation(self, progress: RunProgress) -> None:
        """Log the figures."""
        if self._id is None:
            name = f"{progress.label} · seed {progress.seed}"
            self._id = str(self._client.create_run(self._experiment, run_name=name).info.run_id)
            for key, value in flat(progress.experiment).items():
                self._client.log_param(self._id, key, str(value)[:500])
        for key, value in {**progress.figures, "time": progress.time}.items():
            self._client.log_metric(self._id, key, value, step=progress.round)

    def on_end(self, run: Any) -> None:
        """Close the run."""
        if self._id is not None:
            self._client.set_terminated(self._id)
            self._id = None


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return a table's values by their whole keys (``training.lr``), so that runs can be compared by one of them."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = value[0] if key == "methods" and len(value) == 1 else value
        found |= flat(inner, f"{before}{key}.") if isinstance(inner, Mapping) else {f"{before}{key}": value}
    return found


def loggers(names: Sequence[str]) -> list[Callback]:
    """Return the loggers that ``record.log`` names: ``kind``, or ``kind:`` and where it writes."""
    found: list[Callback] = []
    for name in names:
        kind, _, where = name.partition(":")
        try:
            if kind == "tensorboard":
                found.append(TensorBoard(where or "tensorboard"))
            elif kind == "wandb":
                found.append(WandB(where or "espalier", mode=os.environ.get("WANDB_MODE", "offline")))
            else:
                found.append(MLflow(where or "sqlite:///mlflow.db"))
        except EspalierError:
            raise
        except Exception as error:  # a folder or a store that cannot be used
            said = " ".join(str(error).split()).rstrip(".")
            raise RunError(
                f"record.log = {name!r} cannot be used: {said}. Name another place after the colon."
            ) from error
    return found


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"This logger needs {package}, which is not installed: pip install {package}.") from error

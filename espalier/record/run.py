"""A run, read from its directory: frames, arrays, models (works while the run goes on); and runs to be compared."""

from __future__ import annotations

import importlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from espalier.core.errors import RunError, nearest
from espalier.record.database import FORMAT, connect, require_whole
from espalier.record.measures import lower_is_better

if TYPE_CHECKING:  # PyTorch takes seconds that readers of figures need not wait: what needs it imports it
    from torch import nn

    from espalier.record.models import KeptModels, SavedModels


class Run:
    """One method × one world × one task × one seed."""

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        connection: sqlite3.Connection | None = None,
        models: KeptModels | None = None,
    ):
        """Open a run directory (or the database and the models of a run in memory)."""
        self._models = models
        self.directory = None if directory is None else Path(directory)
        if connection is None:
            if self.directory is None or not (self.directory / "run.sqlite").is_file():
                raise RunError(f"{self.directory} is not a run directory: it has no run.sqlite.")
            connection = connect(self.directory / "run.sqlite", readonly=True)
        self._connection = connection
        found = self.meta("format")
        if found != FORMAT:
            raise RunError(f"{self.directory} has format {found!r}; this version reads format {FORMAT}.")
        if self.directory is not None and self.status.get("state") != "running":
            # whoever writes a run that goes on has looked before; who watches it opens it again and again
            self._look_for_damage()

    def __repr__(self) -> str:
        return f"Run({self.label!r}, seed={self.seed}, rounds={self.rounds})"

    def _look_for_damage(self) -> None:
        try:
            require_whole(self._connection)
        except sqlite3.DatabaseError as error:
            raise RunError(
                f"{self.directory}: run.sqlite is damaged: {error}. Restore it from a copy, or run again."
            ) from error

    def _repr_html_(self) -> str:
        return str(_notebook().run_html(self))

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask the database."""
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise RunError(f"{self.directory}: the database cannot be read: {error}.") from error

    def meta(self, key: str) -> Any:
        """Return a fact about the run (None if it is not known)."""
        rows = self.query("SELECT value FROM meta WHERE key = ?", key)
        return json.loads(rows[0][0]) if rows else None

    @cached_property
    def label(self) -> str:
        """The method's label."""
        return str(self.meta("label"))

    @cached_property
    def seed(self) -> int:
        """The seed."""
        return int(self.meta("seed"))

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """The resolved configuration."""
        found: dict[str, Any] = self.meta("experiment")
        return found

    @property
    def status(self) -> dict[str, Any]:
        """``{"state": "running" | "finished", …}``; ``stalled`` says why it ended early, ``diverged`` that so."""
        return self.meta("status") or {"state": "unknown"}

    @property
    def rounds(self) -> int:
        """Rounds evaluated so far."""
        return int(self.query("SELECT coalesce(max(round), 0) FROM metrics")[0][0])

    @property
    def seconds(self) -> float | None:
        """Virtual seconds until the run reached its limits; None if it has not, or could not."""
        status = self.status
        if status.get("state") != "finished" or "stalled" in status:
            return None
        return float(self.query("SELECT coalesce(max(time), 0) FROM metrics")[0][0])

    def frame(self) -> pd.DataFrame:
        """Return one row per evaluation: time, round, every metric, and bytes per tier so far."""
        long = pd.read_sql_query("SELECT time, round, name, value FROM metrics ORDER BY rowid", self._connection)
        long = long.drop_duplicates(["time", "round", "name"], keep="last")
        wide = long.set_index(["time", "round", "name"])["value"].unstack("name").reset_index()
        wide.columns.name = None
        sent = pd.read_sql_query(
            "SELECT time, round, tier, direction, kind, bytes FROM traffic ORDER BY rowid", self._connection
        )
        if len(sent):
            # bytes are counted from the beginning: of two evaluations at one moment the later one has them all
            sent = sent.drop_duplicates(["time", "round", "tier", "direction", "kind"], keep="last")
            sent["name"] = "bytes_" + sent["tier"]
            tiers = sent.pivot_table(
                index=["time", "round"], columns="name", values="bytes", aggfunc="sum"
            ).reset_index()
            tiers.columns.name = None
            wide = wide.merge(tiers, on=["time", "round"], how="left")
            names = [c for c in tiers.columns if str(c).startswith("bytes_")]
            wide[names] = wide[names].fillna(0)
            wide["bytes"] = wide[names].sum(axis=1)
        return wide.sort_values(["time", "round"], ignore_index=True)

    def array(self, name: str, round: int | None = None) -> NDArray[np.float32]:
        """Return a number per device or edge, of the last evaluation or of a given round."""
        where, values = ("AND round = ?", (name, round)) if round is not None else ("", (name,))
        rows = self.query(f"SELECT data FROM arrays WHERE name = ? {where} ORDER BY rowid DESC LIMIT 1", *values)
        if not rows:
            known = ", ".join(r[0] for r in self.query("SELECT DISTINCT name FROM arrays ORDER BY name"))
            raise RunError(f"The run has no array {name!r}; known: {known}.")
        return np.frombuffer(rows[0][0], dtype="<f4").copy()

    def arrays(self, name: str) -> list[tuple[float, int, NDArray[np.float32]]]:
        """Return (time, round, values) of every evaluation."""
        rows = self.query("SELECT time, round, data FROM arrays WHERE name = ? ORDER BY rowid", name)
        return [(t, r, np.frombuffer(d, dtype="<f4").copy()) for t, r, d in rows]

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return recorded events, oldest first."""
        where, values = ("WHERE kind = ?", (kind,)) if kind is not None else ("", ())
        rows = self.query(f"SELECT time, kind, node, data FROM events {where} ORDER BY rowid", *values)
        return [{"time": t, "kind": k, "node": n, **json.loads(d)} for t, k, n, d in rows]

    def time_to(self, target: float, score: str = "acc_device") -> float | None:
        """Return the virtual time at which a score first was as good as a target (None: never).

        Accuracies reach it from below, errors and losses from above.
        """
        names = [row[0] for row in self.query("SELECT DISTINCT name FROM metrics ORDER BY name")]
        if score not in names and names:
            raise RunError(f"The run has no score {score!r}; known: {', '.join(names)}.{nearest(score, names)}")
        reached = "<=" if lower_is_better(score) else ">="
        rows = self.query(f"SELECT min(time) FROM metrics WHERE name = ? AND value {reached} ?", score, target)
        return None if rows[0][0] is None else float(rows[0][0])

    def model(
        self, name: str | None = None, *, edge: int | str | None = None, device: int | str | None = None
    ) -> nn.Module:
        """Return a final model: the global one, the one that an edge or a device uses, or one by its name.

        Edges and devices are numbers, or the names that the data have for them. Where the method means devices to use
        a model with their label prior, a device's has the prior in it (:class:`~espalier.record.models.WithPrior`).

        Raises:
            RunError: The run has no such model, or has not ended.
        """
        from espalier.core.params import ParamSpec
        from espalier.experiment import Experiment
        from espalier.record.models import WithPrior

        if sum(given is not None for given in (name, edge, device)) > 1:
            raise RunError("Ask for one model: by name, by edge or by device.")
        # the record is JSON, which has no infinity: a world without limits could not be built from it
        experiment, task = Experiment.build({"task": self.experiment["task"]}), self.meta("task")
        if task is None:  # a run on a real fleet
            module = experiment.module(experiment.dataset())
        else:
            module = experiment.module_for(tuple(task["input_shape"]), task["n_classes"], task["vocabulary"])
        device = self._numbered("devices", device)
        used = self._used(self._numbered("edges", edge), device)
        spec = ParamSpec.of(module)
        spec.load(module, self._kept.find(name or used, spec))
        prior = None if device is None else self._kept.prior(device)
        return (module if prior is None else WithPrior(module, *prior)).eval()

    @property
    def models(self) -> list[str]:
        """The names of the final models that the run has kept."""
        return list(self._kept.known)

    @property
    def _kept(self) -> KeptModels | SavedModels:
        from espalier.record.models import KeptModels, SavedModels

        if self._models is not None:
            return self._models
        return KeptModels({}) if self.directory is None else SavedModels(self.directory / "models")

    def _numbered(self, which: str, name: int | str | None) -> int | None:
        """Return the number of a device or an edge that is called by the name that the data have for it."""
        if not isinstance(name, str):
            count = (self.meta("fleet") or {}).get(which)
            if name is not None and count is not None and not 0 <= name < count:
                raise RunError(f"There is no {which[:-1]} {name} in this run; it has {count}, numbered from 0.")
            return name
        known = (self.meta("names") or {}).get(which, ())
        if name not in known:
            there = (
                f"there are {', '.join(known[:20])}{' …' if len(known) > 20 else ''}." if known else "give a number."
            )
            raise RunError(f"There is no {which[:-1]} {name!r} in this run; {there}{nearest(name, known)}")
        return int(known.index(name))

    def _used(self, edge: int | None, device: int | None) -> str:
        """Return the name of the model that an edge or a device uses."""
        users = self.meta("models") or {"edges": {}, "names": [], "devices": []}
        if edge is not None:
            return str(users["edges"].get(str(edge), f"edge-{edge}"))
        if device is None:
            return "global"
        if 0 <= device < len(users["devices"]):
            return users["names"][users["devices"][device]] or f"device-{device}"
        return f"device-{device}"

    def predict(self, x: Any, *, edge: int | str | None = None, device: int | str | None = None) -> NDArray[Any]:
        """Return what a final model answers to inputs as the dataset's: classes, or the values of a regression.

        Rows of a table (a pandas frame with the columns that the run was trained on) are read as the training rows
        were, and classes that were text come back as text.
        """
        import torch

        from espalier.data.table import TableEncoding

        module, task = self.model(edge=edge, device=device), self.meta("task") or {"kind": "classification"}
        dtype = next((p.dtype for p in module.parameters()), torch.float32)
        rows = hasattr(x, "columns")
        if rows and "table" not in task:
            raise RunError("The run was not trained on a table: give an array of inputs, not a frame.")
        inputs = torch.as_tensor(TableEncoding.from_plain(task["table"]).encode(x) if rows else x)
        if "input_shape" in task and tuple(inputs.shape[1:]) != tuple(task["input_shape"]):
            raise RunError(
                f"The model takes inputs of shape {tuple(task['input_shape'])}, in a batch of any size; these have "
                f"shape {tuple(inputs.shape)}."
            )
        with torch.no_grad():
            outputs: torch.Tensor = module(inputs.to(dtype) if inputs.is_floating_point() else inputs)
        answer = outputs if task["kind"] == "regression" else outputs.argmax(1)
        found: NDArray[Any] = answer.numpy()
        return np.array(task["classes"])[found] if rows and "classes" in task else found

    def plot_accuracy(self, x: str = "time", measure: str | None = None) -> Any:
        """Draw a score (by default the main one) against ``time`` (virtual), ``round``, ``steps`` or ``bytes``."""
        return _notebook().accuracy(self, x, measure)

    def plot_devices(self) -> Any:
        """Draw how the score spreads over devices, evaluation by evaluation."""
        return _notebook().devices(self)

    def plot_edges(self) -> Any:
        """Draw every edge's score, evaluation by evaluation."""
        return _notebook().edges(self)

    def plot_tree(self, by: str = "label") -> Any:
        """Draw the tree with a slider over time, devices coloured by ``label``, ``cluster`` or ``home``."""
        return _notebook().tree(self, by)

    def plot_timeline(self, start: float = 0.0, stop: float | None = None) -> Any:
        """Draw who did what in a window of virtual time, seconds."""
        return _notebook().timeline(self, start, stop)

    def plot_labels(self, per: str = "edge") -> Any:
        """Draw the labels that every ``edge`` or every ``device`` holds."""
        return _notebook().labels(self, per)

    def plot_similarity(self) -> Any:
        """Draw the similarity of devices as the method measured it."""
        return _notebook().similarity(self)

    def plot_notes(self) -> dict[str, Any]:
        """Draw the numbers that the method noted (α, weights …): a figure for each, by title."""
        found: dict[str, Any] = _notebook().notes(self)
        return found


def _notebook() -> Any:
    """Return what shows runs. A reader must not depend on the report, which is built on it: loaded when asked for."""
    return importlib.import_module("espalier.report.notebook")


def find_runs(*directories: Path | str) -> Comparison:
    """Return every run at or below the given directories, by path; they can be compared as they are."""
    found: list[Run] = []
    for directory in directories:
        base = Path(directory)
        paths = sorted({p.parent for p in base.rglob("run.sqlite")})
        if not paths:
            raise RunError(f"There is no run at or below {base}.")
        found += [Run(p) for p in paths]
    return Comparison(found)


def slug(label: str) -> str:
    """Return a label as a directory name."""
    return "".join(c if c.isalnum() or c in "-_.+" else "-" for c in label.lower()).strip("-") or "run"


class Comparison(Sequence[Run]):
    """What `espalier.compare` and `find_runs` return: several runs, in order; a notebook shows their verdict."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = tuple(runs)

    def __len__(self) -> int:
        return len(self.runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Comparison: ...
    def __getitem__(self, index: int | slice) -> Run | Comparison:
        return Comparison(self.runs[index]) if isinstance(index, slice) else self.runs[index]

    def __add__(self, other: Iterable[Run]) -> Comparison:
        return Comparison((*self.runs, *other))

    def __repr__(self) -> str:
        labels = ", ".join(dict.fromkeys(run.label for run in self.runs))
        return f"Comparison({len(self)} runs: {labels})"

    def _repr_html_(self) -> str:
        return str(_notebook().comparison_html(self.runs))

    def frame(self) -> pd.DataFrame:
        """Return every evaluation of every run: ``method``, ``seed``, and the columns of :meth:`Run.frame`."""
        parts = [run.frame().assign(method=run.label, seed=run.seed) for run in self.runs]
        whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"method": [], "seed": []})
        return whole[["method", "seed", *(c for c in whole.columns if c not in ("method", "seed"))]]

    def verdict(self, measure: str | None = None, budget: str | None = None) -> str:
        """Say what leads at an equal budget, by how much, how sure that is, and what it costs.

        Args:
            measure: What is ranked by, such as ``acc_global``; by default the task's score.
            budget: What is held equal: ``time``, ``steps``, ``bytes`` or ``round``; by default virtual time.
        """
        return str(_notebook().verdict_text(self.runs, measure, budget))

    def table(self, measure: str | None = None, budget: str | None = None) -> pd.DataFrame:
        """Return the ranking that :meth:`verdict` speaks of: a row per method, means and deviations over seeds."""
        found: pd.DataFrame = _notebook().ranking(self.runs, measure, budget)
        return found

    def report(self, path: Path | str = "report.html") -> Path:
        """Write the whole report as one HTML page; return its path."""
        return Path(_notebook().write(self.runs, Path(path)))

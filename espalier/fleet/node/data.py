"""What data a node holds: a file, a function of the user's, or its share of the experiment's own dataset.

* ``mydata.npz`` with ``x`` and ``y`` (and ``x_test`` and ``y_test``, if the node can test);
* ``package.module:function`` that returns such arrays: ``(x, y)``, or a table of them by these names;
* ``share``: the node's share of the experiment's dataset, as the simulator would deal it: for trying out.

Conversions are those of `espalier.data.arrays`. An edge's or the cloud's data are test data only: ``x_test``,
``y_test``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.code import imported
from espalier.core.errors import ConfigError, DataError
from espalier.data.arrays import inputs
from espalier.data.dataset import ArrayPool, Dataset
from espalier.data.partition import Partition
from espalier.experiment import Experiment
from espalier.training.work import Pool

Rows = NDArray[np.int64]
Metric = Callable[..., Any]


def _none() -> Rows:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Test:
    """Samples to test on: rows of a pool, their cells, and (where not all count alike) the cells' shares."""

    pool: Pool
    rows: Rows
    cells: Rows
    mix: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class Holdings:
    """A node's data; what it does not have is None.

    Attributes:
        pool: Training samples.
        rows: Which of them are the node's.
        cells: Their cells, in a task that is no classification.
        held: Rows of the pool that are held out from training.
        test: What the node's own score is measured on.
        trial: What a trial training is judged on, if not on that.
        personal: What a policy may evaluate models on (the edge's own set).
        metric: A regression's metrics, where the dataset has its own.
        metric_names: Their names.
    """

    pool: Pool | None = None
    rows: Rows = field(default_factory=_none)
    cells: Rows | None = None
    held: Rows = field(default_factory=_none)
    test: Test | None = None
    personal: Test | None = None
    trial: Test | None = None
    metric: Metric | None = None
    metric_names: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Training samples."""
        return len(self.rows)


def read_arrays(source: str) -> dict[str, NDArray[Any]]:
    """Read arrays by name from an ``.npz`` file or a function of the user's."""
    if source.endswith(".npz"):
        path = Path(source).expanduser()
        try:
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (OSError, ValueError) as error:
            raise DataError(f"--data {source}: cannot be read ({error}); give an .npz file with x and y.") from error
    if ":" not in source:
        raise ConfigError(f"--data {source}: must be a file.npz, package.module:function, or share.")
    found = imported(source, "--data")()
    if isinstance(found, tuple) and len(found) == 2:
        found = {"x": found[0], "y": found[1]}
    if not isinstance(found, Mapping):
        raise DataError(f"--data {source}: gave a {type(found).__name__}; (x, y) or a table of arrays is accepted.")
    return {str(k): np.asarray(v) for k, v in found.items()}


def from_arrays(arrays: Mapping[str, NDArray[Any]], where: str, kind: str | None, n_classes: int | None) -> Holdings:
    """Make holdings of arrays ``x``, ``y``, ``x_test``, ``y_test``."""
    parts: dict[str, ArrayPool] = {}
    for part, suffix in (("train", ""), ("test", "_test")):
        x, y = arrays.get(f"x{suffix}"), arrays.get(f"y{suffix}")
        if (x is None) != (y is None):
            raise DataError(f"{where}: has only one of x{suffix} and y{suffix}; give both, or neither.")
        if x is not None and y is not None:
            if len(x) != len(y) or len(x) == 0:
                raise DataError(f"{where}: x{suffix} has {len(x)} rows and y{suffix} {len(y)}; give one y per x.")
            made = Dataset.from_arrays(x, y, x, y, kind=kind, n_classes=n_classes)  # type: ignore[arg-type]
            parts[part] = made.train_pool
    if not parts:
        raise DataError(f"{where}: has neither x and y nor x_test and y_test; found {', '.join(arrays) or 'nothing'}.")
    train, test = parts.get("train"), parts.get("test")
    rows = np.arange(0 if train is None else len(train), dtype=np.int64)
    tested = None if test is None else Test(test, np.arange(len(test)), _cells(test, kind))
    return Holdings(train, rows, None if train is None else _cells(train, kind), test=tested, personal=tested)


def _cells(pool: ArrayPool, kind: str | None) -> Rows:
    whole = kind in (None, "classification") and pool.y.ndim == 1
    return pool.y.numpy().astype(np.int64) if whole else np.zeros(len(pool), dtype=np.int64)


def shape_of(arrays: Mapping[str, NDArray[Any]]) -> tuple[int, ...]:
    """Return the shape of one input."""
    x = arrays.get("x_test", arrays.get("x"))
    if x is None:
        raise DataError("The data have neither x nor x_test.")
    return tuple(inputs(x[:1], "x").shape[1:])


# -- the experiment's own dataset ------------------------------------------------------------------------------


def share(experiment: Experiment, dataset: Dataset, parted: Partition, address: int) -> Holdings:
    """Return a node's share of the experiment's dataset: what the simulator would give it."""
    from espalier.core.seeds import stream
    from espalier.simulator.dataviews import Look, Views
    from espalier.simulator.trials import JUDGED_SAMPLES
    from espalier.world.drift import ORDINARY

    metric, names = dataset.meta.get("metric"), tuple(dataset.meta.get("metric_names", ()))
    everything = np.arange(len(dataset.cell_test))
    if address < parted.n_devices:
        views = Views(dataset, parted, experiment.seeds[0])
        look = views.number(Look(ORDINARY, int(parted.concept[address])))
        rows = views.rows(address, look)
        test = Test(dataset.pool("test"), everything, dataset.cell_test, parted.test_mix[address])
        if parted.device_tests is not None and len(own := parted.device_tests[address]):
            test = Test(dataset.pool("test"), own, dataset.cell_test[own])
        judged = np.sort(stream(experiment.seeds[0], "pretraining").permutation(len(everything))[:JUDGED_SAMPLES])
        trial = Test(dataset.pool("test"), judged, dataset.cell_test[judged])
        return Holdings(
            views.pool(look), rows, dataset.cell_train[rows], parted.validation_rows(address), test, trial=trial,
            metric=metric, metric_names=names,
        )  # fmt: skip
    edge = address - parted.n_devices
    if edge >= parted.n_edges:
        whole = Test(dataset.pool("test"), everything, dataset.cell_test)
        return Holdings(test=whole, metric=metric, metric_names=names)
    personal, test = None, Test(dataset.pool("test"), everything, dataset.cell_test, parted.edge_mix[edge])
    if parted.edge_tests is not None:
        own, judged = parted.edge_tests.personal[edge], parted.edge_tests.evaluation[edge]
        personal = Test(dataset.pool("test"), own, dataset.cell_test[own])
        test = Test(dataset.pool("test"), judged, dataset.cell_test[judged])
    elif parted.device_tests is not None:
        here = [parted.device_tests[int(d)] for d in np.flatnonzero(parted.edge == edge)]
        judged = np.concatenate(here)
        test = Test(dataset.pool("test"), judged, dataset.cell_test[judged])
    if parted.edge_tests is None and parted.validation is not None:
        held = np.concatenate([parted.validation_rows(int(d)) for d in np.flatnonzero(parted.edge == edge)])
        personal = Test(dataset.pool("train"), held, dataset.cell_train[held])
    return Holdings(test=test, personal=personal, metric=metric, metric_names=names)

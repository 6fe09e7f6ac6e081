"""UCI HAR: windows of a smartphone's motion sensors, by subject."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError
from espalier.data.dataset import Dataset, IntArray
from espalier.data.loaders.base import Layout
from espalier.data.loaders.files import reading

CHANNELS = tuple(f"{s}_{a}" for s in ("body_acc", "body_gyro", "total_acc") for a in "xyz")
CLASSES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")


def read_har(folder: Path) -> Dataset:
    """Read the published text files: windows ``[n, 9, 128]``, in g (acceleration) and rad/s (gyroscope)."""
    (x_train, y_train, s_train), (x_test, y_test, s_test) = (_part(folder, p) for p in ("train", "test"))
    return Dataset.from_arrays(
        x_train,
        y_train,
        x_test,
        y_test,
        name="har",
        n_classes=len(CLASSES),
        owner_train=s_train,
        owner_test=s_test,
        meta={"classes": CLASSES, "channels": CHANNELS},
    )


def _part(folder: Path, part: str) -> tuple[NDArray[np.float32], IntArray, IntArray]:
    signals = [_table(folder / part / "Inertial Signals" / f"{c}_{part}.txt") for c in CHANNELS]
    labels = _table(folder / part / f"y_{part}.txt").reshape(-1).astype(np.int64) - 1
    subjects = _table(folder / part / f"subject_{part}.txt").reshape(-1).astype(np.int64)
    shapes = {s.shape for s in signals}
    if len(shapes) > 1 or len(labels) != len(signals[0]) or len(subjects) != len(labels):
        raise DataError(
            f"Folder {folder / part}: the signals have shapes {sorted(shapes)}, there are {len(labels)} labels and "
            f"{len(subjects)} subjects; all must have one line per window. Extract the archive again."
        )
    return np.stack(signals, 1).astype(np.float32), labels, subjects


def _table(path: Path) -> NDArray[np.float64]:
    """Read a table of numbers, ``[lines, columns]``."""
    with reading(path), warnings.catch_warnings():
        # numpy only warns about an empty file; here it is an error.
        warnings.simplefilter("error", UserWarning)
        try:
            return np.loadtxt(str(path), dtype=np.float64, ndmin=2)
        except UserWarning as warning:
            raise ValueError(str(warning)) from None


LAYOUTS = (
    Layout(
        "text files",
        tuple(f"{p}/{n}" for p in ("train", "test") for n in (f"y_{p}.txt", "Inertial Signals/*.txt")),
        read_har,
    ),
)

"""Others' containers become arrays: datasets of PyTorch and Hugging Face, frames of pandas.

Nothing here imports them: what is handed over is asked for what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError, nearest
from espalier.core.seeds import stream
from espalier.data.rows import stratified_mask

if TYPE_CHECKING:
    import pandas as pd

TEST_FRACTION = 0.2
#: distinct texts of a column up to which it becomes one column per text
MOST_CATEGORIES = 50


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs, targets and (where there are any) owners, one entry per sample each."""

    x: NDArray[Any]
    y: NDArray[Any]
    owner: NDArray[Any] | None = None

    def __getitem__(self, rows: NDArray[np.bool_]) -> Samples:
        return Samples(self.x[rows], self.y[rows], None if self.owner is None else self.owner[rows])

    def parts(self) -> tuple[Samples, Samples]:
        """Split off a fifth of each class (of all rows, in a regression) for tests: always the same rows."""
        rng = stream(0, "dataset", "split")
        if self.y.dtype.kind == "f" or self.y.ndim > 1:
            cells = np.zeros(len(self.y), np.int64)
        else:
            cells = np.unique(self.y, return_inverse=True)[1].reshape(-1).astype(np.int64)
        test = stratified_mask(cells, TEST_FRACTION, rng)
        if test.all() or not test.any():
            raise DataError(f"{len(self.y)} samples are too few to split a test part off; give one.")
        return self[~test], self[test]


def torch_samples(dataset: Any) -> Samples:
    """Read every ``(x, y)`` of a dataset with ``__len__`` and ``__getitem__`` (torchvision's have them too).

    Inputs are tensors, arrays, or images (as pixels); all have one shape: give a transform that makes it so.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"A {type(dataset).__name__} has no length or no items; a map-style dataset is accepted.")
    inputs, targets = [], []
    for i in range(len(dataset)):
        item = dataset[i]
        if not isinstance(item, Sequence) or len(item) != 2:
            raise DataError(f"Sample {i} is a {type(item).__name__}; a pair (input, target) is accepted.")
        inputs.append(np.asarray(item[0]))
        targets.append(np.asarray(item[1]))
    return Samples(_stacked(inputs), _stacked(targets))


def hf_samples(dataset: Any, x: str | Sequence[str], label: str, owner: str | None) -> Samples:
    """Read the columns of a Hugging Face ``datasets.Dataset``; several input columns become features."""
    columns = [x] if isinstance(x, str) else list(x)
    _have(dataset.column_names, [*columns, label, *([owner] if owner else [])])

    def column(name: str) -> NDArray[Any]:
        return _stacked([np.asarray(v) for v in dataset[name]])

    inputs = column(columns[0]) if isinstance(x, str) else np.stack([column(c) for c in columns], 1)
    if inputs.ndim == 1:
        inputs = inputs[:, None]
    return Samples(inputs, column(label), column(owner) if owner else None)


def frame_samples(frame: pd.DataFrame, label: str, owner: str | None, columns: Sequence[str] | None) -> Samples:
    """Read a frame: the columns (by default all others) are features.

    Columns of text with at most 50 different values become one column of 0 and 1 per value.
    """
    import pandas as pd

    given = [label, *([owner] if owner else [])]
    _have([str(c) for c in frame.columns], [*given, *(columns or [])])
    features = frame[list(columns) if columns is not None else [c for c in frame.columns if c not in given]]
    texts = [c for c in features.columns if not pd.api.types.is_numeric_dtype(features[c])]
    for name in texts:
        if features[name].nunique() > MOST_CATEGORIES:
            raise DataError(
                f"Column {name!r} holds text with {features[name].nunique()} different values; leave it out: give the "
                "columns that are features."
            )
    if features.shape[1] == 0:
        raise DataError("There is no column besides the label and the owner; features are needed.")
    table = pd.get_dummies(features, columns=texts, dtype=np.float32)
    gone = [str(c) for c in (*table.columns, *given) if (table if c in table else frame)[c].isna().any()]
    if gone:
        raise DataError(f"Column {gone[0]!r} has empty cells; fill them or drop those rows.")
    return Samples(
        table.to_numpy(np.float32), _plain(frame[label].to_numpy()), _plain(frame[owner].to_numpy()) if owner else None
    )


def scaled(train: Samples, test: Samples) -> tuple[Samples, Samples]:
    """Shift and scale every feature so that it has mean 0 and standard deviation 1 in training."""
    mean, std = train.x.mean(0), train.x.std(0)
    std = np.where(std > 0, std, 1).astype(np.float32)
    one, other = (Samples((s.x - mean) / std, s.y, s.owner) for s in (train, test))
    return one, other


def fields(train: Samples, test: Samples) -> Mapping[str, Any]:
    """Return the arguments of `Dataset.from_arrays`."""
    return {
        "x_train": train.x, "y_train": train.y, "x_test": test.x, "y_test": test.y,
        "owner_train": train.owner, "owner_test": test.owner,
    }  # fmt: skip


def _have(known: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            raise DataError(f"There is no column {name!r}; there are {', '.join(known)}.{nearest(name, known)}")


def _stacked(values: list[NDArray[Any]]) -> NDArray[Any]:
    if not values:
        raise DataError("The dataset has no samples.")
    shapes = {v.shape for v in values}
    if len(shapes) > 1:
        raise DataError(f"Samples have different shapes ({sorted(shapes)[:3]} …); give them one shape.")
    return _plain(np.stack(values))


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Turn pandas' and Hugging Face's objects (texts) into numpy's strings."""
    return values.astype(np.str_) if values.dtype.kind == "O" else values

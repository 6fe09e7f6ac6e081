"""Others' containers become arrays: datasets of PyTorch and Hugging Face.

Nothing here imports them: what is handed over is asked for what it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError, nearest
from espalier.core.seeds import stream
from espalier.data.rows import stratified_mask

TEST_FRACTION = 0.2


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
        if inputs[-1].dtype.kind not in "iubf":
            raise DataError(
                f"Sample {i}'s input is a {type(item[0]).__name__}; a tensor, an array of numbers or an image is "
                "accepted: give the dataset a transform that makes one."
            )
        targets.append(np.asarray(item[1]))
    return Samples(_stacked(inputs), _stacked(targets))


def hf_samples(dataset: Any, x: str | Sequence[str], label: str, owner: str | None) -> Samples:
    """Read the columns of a Hugging Face ``datasets.Dataset``; several input columns become features."""
    if not hasattr(dataset, "__len__"):
        raise DataError(f"A {type(dataset).__name__} has no length; load the dataset whole, not as a stream.")
    columns = [x] if isinstance(x, str) else list(x)
    have(dataset.column_names, [*columns, label, *([owner] if owner else [])])

    def column(name: str) -> NDArray[Any]:
        return _stacked([np.asarray(v) for v in dataset[name]])

    inputs = column(columns[0]) if isinstance(x, str) else np.stack([column(c) for c in columns], 1)
    if inputs.ndim == 1:
        inputs = inputs[:, None]
    return Samples(inputs, column(label), column(owner) if owner else None)


def fields(train: Samples, test: Samples) -> Mapping[str, Any]:
    """Return the arguments of `Dataset.from_arrays`."""
    return {
        "x_train": train.x, "y_train": train.y, "x_test": test.x, "y_test": test.y,
        "owner_train": train.owner, "owner_test": test.owner,
    }  # fmt: skip


def have(names: Iterable[Any], wanted: Iterable[Any], what: str = "column") -> None:
    """Refuse what lacks a column (or another part) that is wanted."""
    known = [str(name) for name in names]
    for name in wanted:
        if str(name) not in known:
            raise DataError(f"There is no {what} {name!r}; there are {', '.join(known)}.{nearest(str(name), known)}")


def _stacked(values: list[NDArray[Any]]) -> NDArray[Any]:
    if not values:
        raise DataError("The dataset has no samples.")
    shapes = {v.shape for v in values}
    if len(shapes) > 1:
        raise DataError(f"Samples have different shapes ({sorted(shapes)[:3]} …); give them one shape.")
    return plain(np.stack(values))


def plain(values: NDArray[Any]) -> NDArray[Any]:
    """Turn pandas' and Hugging Face's objects (texts) into numpy's strings."""
    return values.astype(np.str_) if values.dtype.kind == "O" else values

"""Arrays in memory become a `Dataset`: what is converted, and what is refused.

* Inputs: ``uint8`` are pixels and are divided by 255; ``[n, h, w]`` pixels get a channel axis, and
  ``[n, h, w, c]`` with c in 1, 3, 4 becomes ``[n, c, h, w]``. Other integers are token ids (int64). Floats
  stay as they are (float32).
* Targets: whole numbers or strings of shape ``[n]`` are classes; whole numbers of shape ``[n, h, w]`` are
  label images; floats are a regression. Strings become numbers in alphabetical order (``meta["classes"]``).
* Owners: anything hashable by numpy (numbers, strings), numbered over both parts (``meta["owners"]``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.errors import DataError

if TYPE_CHECKING:  # the catalogue is listed without PyTorch, which takes seconds to import
    from torch import Tensor

Kind = Literal["classification", "regression", "segmentation"]
IntArray = NDArray[np.int64]
VOID = 255
"""The label of a pixel that counts neither in the loss nor in a metric (Cityscapes' convention)."""
CHANNELS = (1, 3, 4)
#: up to so many different numbers, all whole, floats are taken for classes
MOST_FLOAT_CLASSES = 100
#: a class number from here on is taken for a code that stands for something
MOST_CLASSES = 1_000_000
Pair = tuple[ArrayLike | None, ArrayLike | None]


def pixels(images: NDArray[np.uint8]) -> Tensor:
    """Turn ``uint8`` images of any usual layout into float32 ``[n, channels, height, width]`` in 0…1."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in CHANNELS and images.shape[1] not in CHANNELS:
        images = images.transpose(0, 3, 1, 2)
    scaled = images.astype(np.float32, order="C")
    scaled /= 255.0
    return _tensor(scaled)


def inputs(values: ArrayLike | Tensor, name: str) -> Tensor:
    """Convert one array of inputs; ``name`` is the array's name in an error.

    Arrays are copied, so that a later change of the caller's does not reach the dataset; a float32 tensor is
    taken as it is.
    """
    import torch

    if isinstance(values, torch.Tensor) and values.dtype == torch.float32 and values.ndim >= 2:
        return _finite(values, name)
    array = _numpy(values)
    if array.ndim < 2:
        raise DataError(f"{name} has shape {array.shape}; give at least two axes, [rows, features].")
    if array.dtype == np.uint8:
        return pixels(array)
    if array.dtype.kind in "iu":
        return _tensor(np.array(array, dtype=np.int64, order="C"))
    if array.dtype.kind not in "fb":
        raise DataError(f"{name} has type {array.dtype}; accepted are pixels (uint8), whole numbers and floats.")
    return _finite(_tensor(np.array(array, dtype=np.float32, order="C")), name)


def _finite(x: Tensor, name: str) -> Tensor:
    rows = x.isfinite().reshape(len(x), -1).all(1).logical_not().nonzero()
    if len(rows):
        some = "row" if len(rows) == 1 else "rows"
        raise DataError(
            f"{name} has numbers that are not finite (NaN or infinity) in {len(rows):,} {some}, the first at index "
            f"{int(rows[0])}; remove or replace them."
        )
    return x


def codes(first: ArrayLike, second: ArrayLike | None) -> tuple[IntArray, IntArray | None, tuple[str, ...]]:
    """Number the distinct values of one or two columns 0…k-1 in sorted order, and name them."""
    one = _numpy(first)
    two = one[:0] if second is None else _numpy(second)
    if (one.dtype.kind in "US") != (two.dtype.kind in "US") and len(two):
        raise DataError(f"The training column has type {one.dtype}, the test column {two.dtype}; give the same type.")
    both = np.concatenate([one, two])
    if both.dtype == object and len(kinds := sorted({type(value).__name__ for value in both})) > 1:
        raise DataError(f"A column has values of several types ({', '.join(kinds)}); give words or numbers alone.")
    names, numbers = np.unique(both, return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.int64)
    return numbers[: len(one)], None if second is None else numbers[len(one) :], tuple(map(str, names))


def fields_from_arrays(
    x_train: ArrayLike | Tensor,
    y_train: ArrayLike | Tensor,
    x_test: ArrayLike | Tensor,
    y_test: ArrayLike | Tensor,
    *,
    name: str,
    kind: Kind | None,
    n_classes: int | None,
    cells: Pair,
    owners: Pair,
    meta: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the fields of a dataset of arrays in memory (see the module's docstring)."""
    notes = dict(meta or {})
    targets = [_numpy(y_train), _numpy(y_test)]
    if targets[0].dtype.kind in "US":
        train, test, notes["classes"] = codes(targets[0], targets[1])
        targets = [train, test if test is not None else train[:0]]
    kind = kind or _guess(targets[0])
    ys = [_targets(array, kind, f"y_{part}") for array, part in zip(targets, ("train", "test"), strict=True)]
    outputs = n_classes or _outputs(ys, kind, name)
    if kind != "regression" and (highest := _highest(ys, kind)) >= outputs:
        raise DataError(f"Dataset {name!r}: class {highest} with n_classes={outputs}; accepted are 0…{outputs - 1}.")
    cell_train, cell_test, n_cells = _cells(cells, ys, kind, outputs, name)
    owner_train = owner_test = None
    if owners[0] is not None:
        owner_train, owner_test, notes["owners"] = codes(owners[0], owners[1])
    return {
        "x_train": inputs(x_train, "x_train"),
        "y_train": ys[0],
        "x_test": inputs(x_test, "x_test"),
        "y_test": ys[1],
        "kind": kind,
        "n_classes": outputs,
        "cell_train": cell_train,
        "cell_test": cell_test,
        "n_cells": n_cells,
        "owner_train": owner_train,
        "owner_test": owner_test,
        "meta": notes,
    }


def _numpy(values: ArrayLike | Tensor) -> NDArray[Any]:
    import torch

    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    words = array.dtype == object and all(isinstance(value, str) for value in array.flat)  # a column of pandas
    return array.astype(str) if words else array


def _tensor(values: NDArray[Any]) -> Tensor:
    import torch

    return torch.from_numpy(values)


def _guess(y: NDArray[Any]) -> Kind:
    if y.dtype.kind in "iub":
        return "segmentation" if y.ndim == 3 else "classification"
    if y.dtype.kind == "f" and y.ndim == 1 and len(y) > 1:
        different = np.unique(y)
        if len(different) <= min(MOST_FLOAT_CLASSES, len(y) // 2) and np.array_equal(different, np.round(different)):
            shown = ", ".join(f"{v:g}" for v in different[:3])
            raise DataError(
                f"y_train holds floats that are whole numbers ({shown} …): give whole numbers if they are classes "
                "(y.astype(int)), or kind='regression' if they are amounts."
            )
    if y.dtype.kind == "f" and y.ndim == 2 and y.shape[1] > 1 and _one_hot(y):
        raise DataError(
            f"y_train has {y.shape[1]} columns with one 1 per row, as classes in one-hot form: give their numbers "
            "(y.argmax(1)), or kind='regression' if they are amounts."
        )
    return "regression"


def _one_hot(y: NDArray[Any]) -> bool:
    return bool(np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all())


def _targets(y: NDArray[Any], kind: Kind, name: str) -> Tensor:
    if y.ndim and len(y) == 0:
        raise DataError(f"{name} has no rows.")
    if y.size == 0 or y.ndim == 0 or y.dtype.kind not in "iubf":
        raise DataError(f"{name} has type {y.dtype} and shape {y.shape}; give numbers, one entry (or row) per sample.")
    if kind == "regression":
        return _finite(_tensor(np.array(y.reshape(len(y), -1), dtype=np.float32, order="C")), name)
    axes = 1 if kind == "classification" else 3
    if y.ndim == axes + 1 and y.shape[-1] == 1:
        y = y[..., 0]
    if y.dtype.kind not in "iub" or y.ndim != axes:
        raise DataError(
            f"{name} has type {y.dtype} and shape {y.shape}; a {kind} needs whole numbers with {axes} "
            f"{'axis' if axes == 1 else 'axes'}."
        )
    out = _tensor(np.array(y, dtype=np.int64, order="C"))
    lowest = int(out.min()) if len(out) else 0
    if lowest < 0:
        raise DataError(f"{name} has the value {lowest}; classes are numbered from 0.")
    highest = int(out.max()) if len(out) else 0
    if highest >= MOST_CLASSES:
        raise DataError(
            f"{name} has the value {highest:,}; classes are numbered from 0 without gaps "
            "(numpy.unique(y, return_inverse=True)[1] numbers them)."
        )
    return out


def _outputs(ys: list[Tensor], kind: Kind, name: str) -> int:
    if kind == "regression":
        if ys[0].shape[1:] != ys[1].shape[1:]:
            raise DataError(f"Dataset {name!r}: y_train and y_test have {ys[0].shape[1]} and {ys[1].shape[1]} outputs.")
        return int(ys[0].shape[1])
    return _highest(ys, kind) + 1


def _highest(ys: list[Tensor], kind: Kind) -> int:
    """The highest class, void pixels left out."""
    if kind == "segmentation":
        ys = [y.masked_fill(y == VOID, 0) for y in ys]
    return int(max(y.max() if len(y) else 0 for y in ys))


def _cells(cells: Pair, ys: list[Tensor], kind: Kind, outputs: int, name: str) -> tuple[IntArray, IntArray, int]:
    if (cells[0] is None) != (cells[1] is None):
        raise DataError(f"Dataset {name!r}: give both cell_train and cell_test, or neither.")
    if cells[0] is not None and cells[1] is not None:
        one, two = (np.asarray(c, dtype=np.int64) for c in cells)
        return one, two, int(max(one.max(initial=0), two.max(initial=0))) + 1
    if kind == "classification":
        return ys[0].numpy().copy(), ys[1].numpy().copy(), outputs
    if kind == "segmentation":
        return pixel_majority(ys[0], outputs), pixel_majority(ys[1], outputs), outputs
    return np.zeros(len(ys[0]), np.int64), np.zeros(len(ys[1]), np.int64), 1


def pixel_majority(y: Tensor, n_classes: int) -> IntArray:
    """The most frequent class of each label image ``[n, height, width]``, void left out; int64 ``[n]``."""
    flat = y.reshape(len(y), -1)
    counts = np.stack([(flat == c).sum(1).numpy() for c in range(n_classes)], 1)
    return np.asarray(counts.argmax(1), dtype=np.int64)

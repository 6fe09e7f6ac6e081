"""A user's own data, or a prepared copy of a published dataset, in one ``.npz`` file.

Either ``x_train, y_train, x_test, y_test`` (optional ``owner_train``, ``owner_test``), or ``x, y, test`` with
``test`` true for test rows (optional ``owner``). ``classes`` may name the classes. Other arrays are ignored.
See `espalier.data.arrays` for types and shapes. Pickled objects are never loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError
from espalier.data.dataset import Dataset, Kind
from espalier.data.loaders.base import Layout, one_match
from espalier.data.loaders.files import reading

OWNER_COLUMNS = ("owner", "writer", "subject", "site", "clinic", "city")
SPLIT = ("x_train", "y_train", "x_test", "y_test")
WHOLE = ("x", "y", "test")


def read_npz(
    path: Path,
    *,
    name: str | None = None,
    kind: Kind | None = None,
    n_classes: int | None = None,
    owner: str | None = None,
) -> Dataset:
    """Read one ``.npz`` file.

    Args:
        path: The file.
        name: What to call the dataset; the file's name by default.
        kind: The task; guessed from the targets' type and shape by default.
        n_classes: Number of classes; the highest class plus one by default.
        owner: The owner column's name; by default the first there is of owner, writer, subject, site,
            clinic, city.
    """
    path = Path(path)
    with reading(path), path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        held = set(file.files)
        if held >= set(SPLIT):
            column = _owner_column(held, owner, "_train", path)
            arrays = _arrays(file, SPLIT, column, ("_train", "_test"))
        elif held >= set(WHOLE):
            column = _owner_column(held, owner, "", path)
            arrays = _arrays(file, WHOLE, column, ("",))
        else:
            raise DataError(
                f"File {path} holds {', '.join(sorted(held)) or 'nothing'}; expected {', '.join(SPLIT)}, or "
                f"{', '.join(WHOLE)}."
            )
        classes = tuple(map(str, file["classes"])) if "classes" in held else None
    if "test" in arrays:
        arrays = _split(arrays, column, path)
    return Dataset.from_arrays(
        *(arrays[n] for n in SPLIT),
        name=name or path.stem,
        kind=kind,
        n_classes=n_classes or (len(classes) if classes else None),
        owner_train=arrays.get(f"{column}_train"),
        owner_test=arrays.get(f"{column}_test"),
        meta={"classes": classes} if classes else None,
    )


def _arrays(file: Any, wanted: Sequence[str], column: str | None, ends: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read the wanted arrays, and the owners' column with each of the endings, if there is one."""
    arrays: dict[str, NDArray[Any]] = {n: file[n] for n in wanted}
    if column is not None:
        # Numbers may have a list of names beside them (site, sites).
        names = file[f"{column}s"] if f"{column}s" in file.files else None
        for owners in (f"{column}{end}" for end in ends if f"{column}{end}" in file.files):
            arrays[owners] = file[owners] if names is None else names[file[owners]]
    return arrays


def prepared(name: str, kind: Kind, n_classes: int, *, sized: bool = False) -> Layout:
    """A dataset of the catalogue as one prepared ``.npz`` file in its folder.

    With ``sized`` its reader takes the option ``size``, as the reader of the original images does, and
    refuses any but the size that the file has.
    """

    def read(folder: Path) -> Dataset:
        return read_npz(one_match(folder, "*.npz"), name=name, kind=kind, n_classes=n_classes)

    def read_sized(folder: Path, *, size: int | None = None) -> Dataset:
        dataset = read(folder)
        if size is not None and size != dataset.input_shape[-1]:
            raise DataError(
                f"The prepared file in {folder} has images of {dataset.input_shape[-1]} pixels, size={size} was "
                "asked for; leave the option out, or put the original images there."
            )
        return dataset

    return Layout("one prepared file", ("*.npz",), read_sized if sized else read)


def _owner_column(held: set[str], owner: str | None, end: str, path: Path) -> str | None:
    """Return the name of the owners' column, without its ending."""
    if owner is not None:
        if f"{owner}{end}" not in held:
            raise DataError(f"File {path} has no owner column {owner + end!r}; it holds {', '.join(sorted(held))}.")
        return owner
    return next((c for c in OWNER_COLUMNS if f"{c}{end}" in held), None)


def _split(arrays: dict[str, NDArray[Any]], column: str | None, path: Path) -> dict[str, NDArray[Any]]:
    test = arrays["test"].astype(np.bool_).reshape(-1)
    lengths = {n: len(a) for n, a in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"File {path}: the arrays have different lengths {lengths}; give one entry per row.")
    if test.all() or not test.any():
        raise DataError(f"File {path}: 'test' must be true for some rows and false for others.")
    columns = ["x", "y", *([column] if column else [])]
    return {f"{n}_{part}": arrays[n][mask] for n in columns for part, mask in (("train", ~test), ("test", test))}

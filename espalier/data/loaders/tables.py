"""A user's own tables: a CSV of features, and a CSV that maps clients to files (FedScale's)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from espalier.core.errors import DataError
from espalier.data.arrays import pixels
from espalier.data.dataset import Dataset
from espalier.data.loaders.base import at_least
from espalier.data.loaders.files import decode_all
from espalier.data.sources import Samples, fields


def read_csv(
    path: Path,
    *,
    label: str = "label",
    owner: str | None = None,
    edge: str | None = None,
    columns: tuple[str, ...] | None = None,
    ignore: tuple[str, ...] = (),
    test: str | None = None,
    missing: Literal["refuse", "drop", "mean"] = "refuse",
    scale: bool = True,
    amounts: bool | None = None,
) -> Dataset:
    """Read a CSV with a header.

    Args:
        path: The file.
        label: The column that is to be learnt: classes (whole numbers, text) or amounts (other numbers).
        owner: The column that says whose a row is.
        edge: The column that says at which edge an owner is.
        columns: The features; by default all other columns.
        ignore: Columns that are no features.
        test: A column that is true (1) for test rows; by default a fifth of each class is the test part.
        missing: What becomes of rows with empty cells: refused, dropped, or filled with the column's mean (rows
            without a label or owner are dropped then, too).
        scale: Scale features to mean 0 and standard deviation 1 (of the training rows).
        amounts: Whether the label's numbers are amounts (a regression) or classes; by default, whole numbers are
            classes.
    """
    frame = _frame(path)
    return Dataset.from_pandas(
        frame, label=label, owner=owner, edge=edge, columns=columns, ignore=ignore, test=test, missing=missing,
        scale=scale, amounts=amounts, name=Path(path).stem,
    )  # fmt: skip


def _frame(path: Path) -> pd.DataFrame:
    """Read a table with a header, whose cells are separated by commas, semicolons or tabs (as the header's are)."""
    try:
        with open(path, encoding="utf-8") as file:
            header = file.readline()
        return pd.read_csv(path, sep=max(",;\t", key=header.count), skipinitialspace=True)
    except pd.errors.EmptyDataError:
        raise DataError(f"File {path} is empty; a table with a header is accepted.") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"File {path} is not in UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8, or read it with "
            "pandas and its encoding, and use Dataset.from_pandas."
        ) from None
    except pd.errors.ParserError as error:
        said = str(error).rpartition("C error: ")[2].strip().rstrip(".")
        raise DataError(f"File {path} has rows of different lengths, or open quotes: {said}. Mend it there.") from None
    except OSError as error:
        raise DataError(f"File {path} cannot be read: {error.strerror or error}.") from error


def read_fedscale(path: Path, *, images: Path | None = None, test: Path | None = None, size: int = 32) -> Dataset:
    """Read a client mapping: a CSV of ``client_id``, ``sample_path`` and ``label_id`` (or ``label_name``).

    Args:
        path: The mapping of the training samples.
        images: Where the samples' paths begin; by default the mapping's folder.
        test: The mapping of the test samples; by default a fifth of each class.
        size: Side of the square that images are cut to, in pixels.
    """
    at_least("Option 'size'", size, 1)
    parts = [_mapped(p, images or Path(path).parent, size) for p in (path, test) if p is not None]
    train, other = parts if test is not None else parts[0].parts()
    return Dataset.from_arrays(**fields(train, other), name=Path(path).stem)


def _mapped(path: Path, images: Path, size: int) -> Samples:
    frame = _frame(path)
    label = next((c for c in ("label_id", "label_name") if c in frame), None)
    if label is None or not {"client_id", "sample_path"} <= set(frame.columns):
        raise DataError(
            f"File {path} has the columns {', '.join(map(str, frame.columns))}; a client mapping has client_id, "
            "sample_path and label_id (or label_name)."
        )
    x = pixels(decode_all([images / str(p) for p in frame["sample_path"]], (size, size), crop=True))
    labels, owners = (frame[c].to_numpy() for c in (label, "client_id"))
    y = labels.astype(np.str_) if labels.dtype.kind == "O" else labels
    return Samples(x.numpy(), y, owners.astype(np.str_))

"""HAM10000: 10,015 dermatoscopic images of seven kinds of lesions, from four clinics."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError
from espalier.core.seeds import stream
from espalier.data.arrays import pixels
from espalier.data.dataset import Dataset, IntArray
from espalier.data.loaders.base import Layout, at_least, one_match
from espalier.data.loaders.files import ENDINGS, decode_all, read_bytes, reading

CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
TEST_FRACTION = 0.2


def read_ham10000(folder: Path, *, size: int = 64) -> Dataset:
    """Read ``HAM10000_metadata*`` (comma- or tab-separated) and the ``.jpg`` files in any folder beside it.

    There is no published split: a fifth of the lesions of each clinic and class are the test part, always the
    same; all images of a lesion are in one part. The owner is the clinic (the column ``dataset``), where the
    table has it.

    Args:
        folder: The folder.
        size: Side of the square that images are scaled to, in pixels.
    """
    at_least("Option 'size' of dataset 'ham10000'", size, 1)
    table = _table(one_match(folder, "HAM10000_metadata*"))
    labels = np.array([CLASSES.index(row["dx"]) for row in table], np.int64)
    clinics = np.array([row["dataset"] for row in table]) if "dataset" in table[0] else None
    strata = labels if clinics is None else np.unique(clinics, return_inverse=True)[1] * len(CLASSES) + labels
    test = split_lesions(np.array([row["lesion_id"] for row in table]), strata)
    files = {p.stem: p for p in sorted(folder.rglob("*")) if p.suffix.lower() in ENDINGS}
    missing = [row["image_id"] for row in table if row["image_id"] not in files]
    if missing:
        raise DataError(
            f"{folder}: {len(missing)} of {len(table)} images of the table are missing, the first is "
            f"{missing[0]}.jpg; extract both image archives into the folder."
        )
    x = decode_all([files[row["image_id"]] for row in table], (size, size), crop=False)
    return Dataset.from_arrays(
        pixels(x[~test]),
        labels[~test],
        pixels(x[test]),
        labels[test],
        name="ham10000",
        n_classes=len(CLASSES),
        owner_train=None if clinics is None else clinics[~test],
        owner_test=None if clinics is None else clinics[test],
        meta={"classes": CLASSES},
    )


def split_lesions(lesions: NDArray[np.str_], strata: IntArray) -> NDArray[np.bool_]:
    """Choose a fifth of the lesions of each stratum as the test part; bool per image."""
    rng = stream(0, "ham10000", "split")
    chosen: set[str] = set()
    for stratum in np.unique(strata):
        names = np.unique(lesions[strata == stratum])
        chosen.update(rng.permutation(names)[: round(TEST_FRACTION * len(names))].tolist())
    return np.isin(lesions, sorted(chosen))


def _table(path: Path) -> list[dict[str, str]]:
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    with reading(path):
        rows = list(csv.DictReader(io.StringIO(text), delimiter="\t" if "\t" in text.partition("\n")[0] else ","))
        if not rows:
            raise ValueError("it has no rows")
        for column in ("lesion_id", "image_id", "dx"):
            if column not in rows[0]:
                raise ValueError(f"it has no column {column!r}")
        for number, row in enumerate(rows, 2):
            if None in row.values():
                raise ValueError(f"line {number} is too short")
            if row["dx"] not in CLASSES:
                raise ValueError(f"line {number} has dx={row['dx']!r}, accepted are {', '.join(CLASSES)}")
    return rows


LAYOUTS = (Layout("table and images", ("HAM10000_metadata*", "**/*.jpg"), read_ham10000),)

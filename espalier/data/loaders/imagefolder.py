"""A folder of images, one folder per class (as ImageNet and its subsets are laid out)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from espalier.core.errors import DataError
from espalier.core.seeds import stream
from espalier.data.arrays import pixels
from espalier.data.dataset import Dataset, IntArray
from espalier.data.loaders.base import Layout, at_least
from espalier.data.loaders.files import ENDINGS, decode_all
from espalier.data.rows import stratified_mask

TEST_FRACTION = 0.2


def read_imagefolder(folder: Path, *, size: int = 64, name: str | None = None) -> Dataset:
    """Read ``train/CLASS/*`` and ``val/CLASS/*`` (or ``test``), or ``CLASS/*`` alone.

    Without parts of its own, a fifth of each class is the test part, always the same. Images keep their
    proportions and are cut to a square.

    Args:
        folder: The folder.
        size: Side of the square, in pixels.
        name: What to call the dataset; the folder's name by default.
    """
    at_least("Option 'size'", size, 1)
    folder = Path(folder)
    test = next((folder / p for p in ("val", "test", "valid") if (folder / p).is_dir()), None)
    parted = (folder / "train").is_dir() and test is not None
    classes = _classes(folder / "train" if parted else folder)
    if parted and test is not None:
        if _classes(test) != classes:
            odd = sorted(set(classes) ^ set(_classes(test)))
            raise DataError(f"{folder}: the classes {', '.join(odd)} are in one part only; both need the same.")
        train_files, y_train = _files(folder / "train", classes)
        test_files, y_test = _files(test, classes)
    else:
        files, labels = _files(folder, classes)
        mask = stratified_mask(labels, TEST_FRACTION, stream(0, "imagefolder", "split"))
        train_files, y_train = [f for f, t in zip(files, mask, strict=True) if not t], labels[~mask]
        test_files, y_test = [f for f, t in zip(files, mask, strict=True) if t], labels[mask]
    return Dataset.from_arrays(
        pixels(decode_all(train_files, (size, size), crop=True)),
        y_train,
        pixels(decode_all(test_files, (size, size), crop=True)),
        y_test,
        name=name or folder.name,
        n_classes=len(classes),
        meta={"classes": classes},
    )


def _classes(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")))


def _files(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], IntArray]:
    files: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        found = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in ENDINGS)
        if not found:
            raise DataError(f"Folder {folder / name} holds no images ({', '.join(ENDINGS)}); fill or remove it.")
        files += found
        labels += [number] * len(found)
    if len(classes) < 2:
        raise DataError(f"Folder {folder} holds {len(classes)} class folders; at least two are needed.")
    return files, np.array(labels, np.int64)


def imagenet10_layout() -> Layout:
    """The catalogue's ten-class subset of ImageNet."""

    def read(folder: Path, *, size: int = 64) -> Dataset:
        return read_imagefolder(folder, size=size, name="imagenet10")

    return Layout("folders of images", ("*/*",), read)

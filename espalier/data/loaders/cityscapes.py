"""Cityscapes' folder format: street scenes and their label images, by city."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError
from espalier.data.arrays import codes, pixels
from espalier.data.dataset import VOID, Dataset, pixel_majority
from espalier.data.loaders.base import Layout, at_least
from espalier.data.loaders.files import decode_all, decode_labels

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = {
    "road": 7,
    "sidewalk": 8,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic light": 19,
    "traffic sign": 20,
    "vegetation": 21,
    "terrain": 22,
    "sky": 23,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}
"""The 19 classes that are trained on, by their number in a ``labelIds`` image; all others are void."""


def read_cityscapes(
    folder: Path, *, size: tuple[int, int] = (64, 128), cells: Literal["class", "city"] = "class"
) -> Dataset:
    """Read ``leftImg8bit/{train,val}/CITY/*`` and the ``gtFine`` label images of the same names.

    The validation part is the test part (the published test part has no labels). Cities are the owners.

    Args:
        folder: The folder with ``leftImg8bit`` and ``gtFine``.
        size: Height and width that scenes are scaled to, in pixels.
        cells: What partitions go by: the majority class of a scene, or its city. The published validation
            cities are not among the training cities, so that with ``city`` no device has a local test set
            there.
    """
    for side in size:
        at_least("Option 'size' of dataset 'cityscapes'", side, 1)
    parts = {part: _part(folder, part, size) for part in ("train", "val")}
    (x_train, y_train, city_train), (x_test, y_test, city_test) = parts["train"], parts["val"]
    if cells == "city":
        one, two, names = codes(city_train, city_test)
        cell_train, cell_test, n_cells = one, np.asarray(two), len(names)
    else:
        n_cells = len(CLASSES)
        cell_train, cell_test = pixel_majority(y_train, n_cells), pixel_majority(y_test, n_cells)
    owner_train, owner_test, cities = codes(city_train, city_test)
    return Dataset(
        name="cityscapes",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        kind="segmentation",
        n_classes=len(CLASSES),
        cell_train=cell_train,
        cell_test=cell_test,
        n_cells=n_cells,
        owner_train=owner_train,
        owner_test=owner_test,
        meta={"classes": tuple(CLASSES), "owners": cities},
    )


def train_ids(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Map ``labelIds`` to 0…18, everything else to `VOID`."""
    table = np.full(256, VOID, np.int64)
    table[list(CLASSES.values())] = np.arange(len(CLASSES))
    return np.asarray(table[labels])


def _part(folder: Path, part: str, size: tuple[int, int]) -> tuple[Tensor, Tensor, NDArray[np.str_]]:
    import torch

    scenes = sorted((folder / "leftImg8bit" / part).glob("*/*_leftImg8bit.png"))
    if not scenes:
        raise DataError(f"Folder {folder / 'leftImg8bit' / part} holds no CITY/*_leftImg8bit.png; extract it again.")
    labels = np.empty((len(scenes), *size), np.int64)
    for i, scene in enumerate(scenes):
        name = scene.name.replace("_leftImg8bit", "_gtFine_labelIds")
        path = folder / "gtFine" / part / scene.parent.name / name
        if not path.exists():
            raise DataError(f"Scene {scene} has no label image {path}; extract gtFine beside leftImg8bit.")
        labels[i] = train_ids(decode_labels(path, size))
    x = pixels(decode_all(scenes, size, crop=False))
    return x, torch.from_numpy(labels), np.array([s.parent.name for s in scenes])


LAYOUTS = (
    Layout(
        "leftImg8bit and gtFine",
        tuple(f"{top}/{p}/*/*.png" for top in ("leftImg8bit", "gtFine") for p in ("train", "val")),
        read_cityscapes,
    ),
)

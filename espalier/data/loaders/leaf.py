"""LEAF's format: json files of users, each with samples and classes. FEMNIST, and any other of numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError
from espalier.data.dataset import Dataset, IntArray
from espalier.data.loaders.base import Layout
from espalier.data.loaders.files import read_bytes, reading

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SIDE = 28


def read_femnist(folder: Path) -> Dataset:
    """Read ``train/*.json`` and ``test/*.json``: images ``[n, 1, 28, 28]`` in 0…1; writers are owners."""
    return _read(folder, (1, SIDE, SIDE), "femnist", CLASSES)


def read_leaf(folder: Path, *, shape: tuple[int, ...] = (-1,)) -> Dataset:
    """Read ``train/*.json`` and ``test/*.json`` of a user's own; ``shape`` is that of one sample, users are owners."""
    return _read(folder, shape, folder.name, None)


def _read(folder: Path, shape: tuple[int, ...], name: str, classes: tuple[str, ...] | None) -> Dataset:
    train, test = (_part(folder / part, shape) for part in ("train", "test"))
    return Dataset.from_arrays(
        *train[:2],
        *test[:2],
        name=name,
        n_classes=None if classes is None else len(classes),
        owner_train=train[2],
        owner_test=test[2],
        meta=None if classes is None else {"classes": classes},
    )


def _part(folder: Path, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], IntArray, NDArray[np.str_]]:
    images, labels, writers = [], [], []
    for path in sorted(folder.glob("*.json*")):
        data = read_bytes(path)
        with reading(path):
            content = json.loads(data)
            for user, said in zip(content["users"], content["num_samples"], strict=True):
                x = np.asarray(content["user_data"][user]["x"], np.float32)
                x = x.reshape(len(x), *shape)
                y = np.asarray(content["user_data"][user]["y"], np.int64)
                if not len(x) == len(y) == said:
                    raise ValueError(f"user {user} has {len(x)} samples, {len(y)} classes and num_samples {said}")
                images.append(x)
                labels.append(y)
                writers.extend([str(user)] * len(y))
    if not images:
        raise DataError(f"Folder {folder} holds no users; it needs LEAF's json files.")
    return np.concatenate(images), np.concatenate(labels), np.array(writers)


LAYOUTS = (Layout("LEAF json", ("train/*.json*", "test/*.json*"), read_femnist),)

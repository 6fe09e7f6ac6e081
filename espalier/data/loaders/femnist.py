"""FEMNIST as LEAF prepares it: json files of users, each a writer with images and classes."""

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
    parts = {part: _part(folder / part) for part in ("train", "test")}
    return Dataset.from_arrays(
        parts["train"][0],
        parts["train"][1],
        parts["test"][0],
        parts["test"][1],
        name="femnist",
        n_classes=len(CLASSES),
        owner_train=parts["train"][2],
        owner_test=parts["test"][2],
        meta={"classes": CLASSES},
    )


def _part(folder: Path) -> tuple[NDArray[np.float32], IntArray, NDArray[np.str_]]:
    images, labels, writers = [], [], []
    for path in sorted(folder.glob("*.json*")):
        data = read_bytes(path)
        with reading(path):
            content = json.loads(data)
            for user, said in zip(content["users"], content["num_samples"], strict=True):
                x = np.asarray(content["user_data"][user]["x"], np.float32).reshape(-1, 1, SIDE, SIDE)
                y = np.asarray(content["user_data"][user]["y"], np.int64)
                if not len(x) == len(y) == said:
                    raise ValueError(f"user {user} has {len(x)} images, {len(y)} classes and num_samples {said}")
                images.append(x)
                labels.append(y)
                writers.extend([str(user)] * len(y))
    if not images:
        raise DataError(f"Folder {folder} holds no users; it needs LEAF's json files.")
    return np.concatenate(images), np.concatenate(labels), np.array(writers)


LAYOUTS = (Layout("LEAF json", ("train/*.json*", "test/*.json*"), read_femnist),)

"""Street View House Numbers, cropped digits: the published MATLAB files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from espalier.core.errors import DataError
from espalier.data.arrays import pixels
from espalier.data.dataset import Dataset, IntArray
from espalier.data.loaders.base import Layout, one_match
from espalier.data.loaders.files import reading

if TYPE_CHECKING:
    from torch import Tensor


def read_svhn(folder: Path) -> Dataset:
    """Read ``train_32x32.mat`` and ``test_32x32.mat``: images ``[n, 3, 32, 32]`` in 0…1.

    The files hold ``X [32, 32, 3, n]`` and ``y [n, 1]`` with the digit 0 labelled 10.
    """
    (x_train, y_train), (x_test, y_test) = (_part(one_match(folder, f"{p}_32x32.mat")) for p in ("train", "test"))
    return Dataset.from_arrays(x_train, y_train, x_test, y_test, name="svhn", n_classes=10)


def _part(path: Path) -> tuple[Tensor, IntArray]:
    from scipy.io import loadmat  # takes half a second, and the catalogue is imported by every command

    with reading(path):
        try:
            content = loadmat(str(path), variable_names=["X", "y"])
        except Exception as error:
            # scipy's readers raise many kinds of errors on a damaged file, some of their own.
            raise ValueError(str(error) or type(error).__name__) from None
        images, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
        if images.ndim != 4 or images.shape[2] != 3 or images.shape[3] != len(labels):
            raise ValueError(f"X has shape {images.shape} and y {labels.shape}, expected [32, 32, 3, n] and [n]")
    digits = labels.astype(np.int64) % 10
    if labels.min() < 0 or labels.max() > 10:
        raise DataError(f"File {path}: labels reach from {labels.min()} to {labels.max()}; accepted are 1…10.")
    return pixels(images.astype(np.uint8).transpose(3, 2, 0, 1)), digits


LAYOUTS = (Layout("MATLAB files", ("train_32x32.mat", "test_32x32.mat"), read_svhn),)

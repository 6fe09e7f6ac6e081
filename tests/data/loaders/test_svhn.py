"""SVHN's MATLAB files."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from espalier.core.errors import DataError
from espalier.data.registry import load


def write(folder: Path) -> np.ndarray:
    folder.mkdir()
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    savemat(folder / "train_32x32.mat", {"X": x, "y": np.array([[1], [10], [3], [9]], np.uint8)}, do_compression=True)
    savemat(folder / "test_32x32.mat", {"X": x[..., :2], "y": np.array([[10], [2]], np.uint8)})
    return x


def test_reads_and_calls_ten_zero(tmp_path: Path) -> None:
    x = write(tmp_path / "svhn")
    data = load("svhn", tmp_path)
    assert data.y_train.tolist() == [1, 0, 3, 9]
    assert tuple(data.x_test.shape) == (2, 3, 32, 32)
    # File axes are row, column, channel, sample.
    assert data.x_train[2, 1, 5, 7].item() * 255 == pytest.approx(int(x[5, 7, 1, 2]))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "svhn")
    path = tmp_path / "svhn" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"train_32x32\.mat is truncated"):
        load("svhn", tmp_path)
    savemat(path, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((3, 1))})
    with pytest.raises(DataError, match=r"X has shape \(32, 32, 3, 4\)"):
        load("svhn", tmp_path)
    savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]])})
    with pytest.raises(DataError, match=r"accepted are 1…10"):
        load("svhn", tmp_path)
    savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(DataError, match="no 'X'"):
        load("svhn", tmp_path)

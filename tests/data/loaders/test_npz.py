"""A user's own .npz, and prepared copies of published datasets."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from espalier.core.errors import ConfigError, DataError
from espalier.data.registry import load


def test_four_arrays_with_owners(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        x_train=np.zeros((4, 2)),
        y_train=[0, 1, 0, 1],
        x_test=np.ones((2, 2)),
        y_test=[1, 0],
        owner_train=["a", "b", "a", "c"],
        owner_test=["c", "a"],
        unrelated=np.zeros(3),
    )
    data = load(str(path))
    assert data.name == "mine" and data.n_classes == 2
    assert data.owner_train is not None and data.owner_train.tolist() == [0, 1, 0, 2]
    assert data.owner_test is not None and data.owner_test.tolist() == [2, 0]


def test_one_array_with_a_test_column(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        x=np.arange(10).reshape(5, 2) / 10,
        y=[0, 1, 2, 1, 0],
        test=[0, 0, 1, 0, 1],
        site=np.array([1, 0, 1, 1, 0]),
        sites=["rome", "oslo"],
        classes=["p", "q", "r"],
    )
    data = load(str(path))
    assert data.y_train.tolist() == [0, 1, 1] and data.y_test.tolist() == [2, 0]
    # Site 0 is rome, 1 is oslo; owners are numbered by the alphabet.
    assert data.meta["owners"] == ("oslo", "rome")
    assert data.owner_train is not None and data.owner_train.tolist() == [0, 1, 0]
    assert data.owner_test is not None and data.owner_test.tolist() == [0, 1]
    assert data.meta["classes"] == ("p", "q", "r")


def test_options_name_the_owner_and_the_task(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.zeros((4, 2)), y=[0, 1, 0, 1], test=[0, 1, 0, 1], farm=[7, 7, 8, 8])
    data = load(str(path), owner="farm", n_classes=5)
    assert data.n_classes == 5 and data.meta["owners"] == ("7", "8")
    assert load(str(path)).owner_train is None
    with pytest.raises(DataError, match="no owner column 'barn'"):
        load(str(path), owner="barn")
    with pytest.raises(ConfigError, match="Did you mean 'owner'"):
        load(str(path), ownr="farm")


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with pytest.raises(DataError, match="There is no file"):
        load(str(path))
    np.savez(path, x=np.zeros((4, 2)), y=np.zeros(4, int))
    with pytest.raises(DataError, match=r"holds x, y; expected x_train, y_train, x_test, y_test, or x, y, test"):
        load(str(path))
    np.savez(path, x=np.zeros((4, 2)), y=np.zeros(4, int), test=np.zeros(4))
    with pytest.raises(DataError, match="true for some rows"):
        load(str(path))
    np.savez(path, x=np.zeros((4, 2)), y=np.zeros(3, int), test=[0, 1, 0, 1])
    with pytest.raises(DataError, match="different lengths"):
        load(str(path))
    np.savez(path, x=np.zeros((2, 2)), y=np.array([{}, {}], object), test=[0, 1])
    with pytest.raises(DataError, match="Object arrays cannot be loaded"):
        load(str(path))
    path.write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(DataError, match=r"mine\.npz is truncated"):
        load(str(path))


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.zeros((400, 2)), y=np.zeros(400, int), test=np.arange(400) % 2)
    raw = bytearray(path.read_bytes())
    raw[600] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(DataError, match=r"mine\.npz is truncated or of another format"):
        load(str(path))


def test_a_prepared_copy_stands_for_the_published_files(tmp_path: Path) -> None:
    (tmp_path / "ham10000").mkdir()
    x = np.full((6, 3, 8, 8), 255, np.uint8)
    site = np.array([0, 1, 0, 1, 0, 1], np.uint8)
    path = tmp_path / "ham10000" / "small.npz"
    np.savez_compressed(path, x=x, y=np.arange(6, dtype=np.uint8), test=[0, 0, 0, 0, 1, 1], site=site)
    data = load("ham10000", tmp_path, size=8)
    assert data.name == "ham10000" and data.n_classes == 7 and data.input_shape == (3, 8, 8)
    assert data.owner_test is not None and data.owner_test.tolist() == [0, 1]
    with pytest.raises(DataError, match="images of 8 pixels, size=28"):
        load("ham10000", tmp_path, size=28)
    np.savez(tmp_path / "ham10000" / "other.npz", x=x)
    with pytest.raises(DataError, match=r"found other\.npz, small\.npz"):
        load("ham10000", tmp_path)


def test_lzma_zips_are_read(tmp_path: Path) -> None:
    plain = tmp_path / "plain.npz"
    np.savez(plain, x=np.zeros((4, 2)), y=[0, 1, 0, 1], test=[0, 1, 0, 1])
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(tmp_path / "small.npz", "w", zipfile.ZIP_LZMA) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert load(str(tmp_path / "small.npz")).n_classes == 2

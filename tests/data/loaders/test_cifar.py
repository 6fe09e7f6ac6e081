"""CIFAR's published pickles and binary files; a pickle cannot run code here."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from espalier.core.errors import ConfigError, DataError
from espalier.data.registry import load

TEN = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def pixels(n: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def pickles(hundred: bool) -> dict[str, bytes]:
    """As published: a dictionary with byte keys, ``data`` [n, 3072] uint8, lists of labels, protocol 2."""
    files = {}
    for seed, name in enumerate(["train", "test"] if hundred else TEN):
        labels = {b"fine_labels": [97, 3, 5], b"coarse_labels": [1, 2, 19]} if hundred else {b"labels": [9, 0, 4]}
        batch = {b"batch_label": b"x", b"data": pixels(3, seed), b"filenames": [b"a.png"] * 3, **labels}
        files[name] = pickle.dumps(batch, protocol=2)
    return files


def binary(hundred: bool) -> dict[str, bytes]:
    files = {}
    for seed, name in enumerate(["train", "test"] if hundred else TEN):
        labels = np.array([[1, 97], [2, 3], [19, 5]] if hundred else [[9], [0], [4]], np.uint8)
        files[f"{name}.bin"] = np.concatenate([labels, pixels(3, seed)], 1).tobytes()
    return files


def put(folder: Path, files: dict[str, bytes], archive: str | None = None) -> None:
    folder.mkdir(parents=True)
    if archive is None:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return
    with tarfile.open(folder / archive, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("make", [pickles, binary])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("hundred", [False, True])
def test_every_published_layout_gives_the_same(tmp_path: Path, make: object, packed: bool, hundred: bool) -> None:
    name = "cifar100" if hundred else "cifar10"
    version = "python" if make is pickles else "binary"
    archive = f"cifar-{'100' if hundred else '10'}-{version}.tar.gz" if packed else None
    put(tmp_path / name, make(hundred), archive)  # type: ignore[operator]
    data = load(name, tmp_path)
    parts = 1 if hundred else 5
    assert tuple(data.x_train.shape) == (3 * parts, 3, 32, 32)
    assert data.n_classes == (100 if hundred else 10)
    assert data.y_train.tolist() == ([97, 3, 5] if hundred else [9, 0, 4] * 5)
    # 3,072 bytes are the red plane, the green plane, the blue plane, each row by row.
    assert torch.allclose(data.x_train[1].flatten() * 255, torch.from_numpy(pixels(3, 0)[1]).float())


def test_cifar100_by_its_twenty_groups(tmp_path: Path) -> None:
    put(tmp_path / "cifar100", pickles(hundred=True))
    data = load("cifar100", tmp_path, coarse=True)
    assert data.n_classes == 20 and data.y_train.tolist() == [1, 2, 19]
    with pytest.raises(ConfigError, match="Did you mean 'coarse'"):
        load("cifar100", tmp_path, corse=True)


class Evil:
    """Pickles to a call of a function."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1 + 1",)


def test_a_pickle_that_names_anything_else_is_refused_and_not_run(tmp_path: Path) -> None:
    files = pickles(hundred=False)
    files["data_batch_3"] = pickle.dumps({b"data": Evil(), b"labels": [1]}, protocol=2)
    put(tmp_path / "cifar10", files)
    with pytest.raises(DataError, match=r"data_batch_3 .*eval, which no image file needs; it was not run"):
        load("cifar10", tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    files = pickles(hundred=False)
    put(tmp_path / "a" / "cifar10", {**files, "data_batch_2": files["data_batch_2"][:-50]})
    with pytest.raises(DataError, match="data_batch_2 is truncated"):
        load("cifar10", tmp_path / "a")
    put(tmp_path / "b" / "cifar10", {**files, "test_batch": pickle.dumps({b"data": pixels(2, 0)}, protocol=2)})
    with pytest.raises(DataError, match=r"test_batch .*no b'labels'"):
        load("cifar10", tmp_path / "b")
    put(tmp_path / "c" / "cifar10", {**binary(False), "data_batch_1.bin": b"123"})
    with pytest.raises(DataError, match=r"data_batch_1\.bin is truncated: 3 bytes"):
        load("cifar10", tmp_path / "c")
    put(tmp_path / "d" / "cifar10", {k: v for k, v in files.items() if k != "data_batch_5"}, "cifar-10-python.tar.gz")
    with pytest.raises(DataError, match="holds no file 'data_batch_5'"):
        load("cifar10", tmp_path / "d")
    put(tmp_path / "e" / "cifar10", {**files, "data_batch_1": pickle.dumps({b"data": pixels(3, 0), b"labels": [1]})})
    with pytest.raises(DataError, match="15 images but 13 labels"):
        load("cifar10", tmp_path / "e")

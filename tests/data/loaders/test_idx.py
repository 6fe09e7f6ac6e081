"""IDX files as published: MNIST, Fashion-MNIST, QMNIST's writers, EMNIST."""

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from espalier.core.errors import DataError
from espalier.data.loaders.idx import parse_idx
from espalier.data.registry import load

CODES = {"uint8": 0x08, ">i4": 0x0C}


def idx(array: NDArray[np.generic]) -> bytes:
    code = 0x08 if array.dtype == np.uint8 else 0x0C
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


def images(n: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, 28, 28), dtype=np.uint8)


def write_mnist(folder: Path, *, packed: bool = True, n: int = 12) -> None:
    folder.mkdir(parents=True)
    for part, size in (("train", n), ("t10k", 5)):
        for what, array in (
            ("images-idx3", images(size)),
            ("labels-idx1", (np.arange(size) % 10).astype(np.uint8)),
        ):
            data = idx(array)
            name = f"{part}-{what}-ubyte" + (".gz" if packed else "")
            (folder / name).write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_reads_the_four_files(tmp_path: Path, name: str, packed: bool) -> None:
    write_mnist(tmp_path / name, packed=packed)
    data = load(name, tmp_path)
    assert tuple(data.x_train.shape) == (12, 1, 28, 28)
    assert data.y_train.tolist() == [*range(10), 0, 1]
    assert data.n_classes == 10 and data.owner_train is None
    assert np.allclose(data.x_train[:, 0].numpy() * 255, images(12))


def test_writers_come_from_the_table_beside(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    for part, n in (("train", 12), ("test", 9)):
        # QMNIST: column 0 is the class, column 2 the writer; its test table is longer than MNIST's test part.
        table = np.zeros((n, 8), ">i4")
        table[:, 0] = np.arange(n) % 10
        table[:, 2] = 100 + np.arange(n) // 4
        (tmp_path / "mnist" / f"qmnist-{part}-labels-idx2-int.gz").write_bytes(gzip.compress(idx(table)))
    data = load("mnist", tmp_path)
    assert data.owner_train is not None and data.owner_train.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.owner_test is not None and data.owner_test.tolist() == [0, 0, 0, 0, 1]
    assert data.meta["owners"] == ("100", "101", "102")


def test_a_table_of_other_digits_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "qmnist-train-labels-idx2-int").write_bytes(idx(np.ones((12, 8), ">i4")))
    with pytest.raises(DataError, match="its classes differ"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: d[:-100], "truncated or of another format"),
        (lambda d: gzip.compress(gzip.decompress(d)[:-1]), "the header says 9408 bytes of values, there are 9407"),
        (lambda d: gzip.compress(b"\x89PNG" + gzip.decompress(d)[4:]), "no IDX header"),
        (lambda d: b"", "truncated"),
        (lambda d: idx(np.zeros(3, np.uint8)), "it has 1 axes, expected 3"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: object, said: str) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=said) as error:
        load("mnist", tmp_path)
    assert str(path) in str(error.value)


def test_labels_of_another_length_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", packed=False)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(3, np.uint8)))
    with pytest.raises(DataError, match="12 images but 3 labels"):
        load("mnist", tmp_path)


def emnist_files() -> dict[str, bytes]:
    """EMNIST-Balanced as published: transposed images, a mapping from classes to characters."""
    files = {}
    for part, n in (("train", 8), ("test", 6)):
        files[f"emnist-balanced-{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(images(n).transpose(0, 2, 1).copy()))
        files[f"emnist-balanced-{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.arange(n, dtype=np.uint8) % 3))
    files["emnist-balanced-mapping.txt"] = b"0 48\n1 65\n2 97\n"
    return files


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    (tmp_path / "emnist").mkdir()
    for name, data in emnist_files().items():
        (tmp_path / "emnist" / name).write_bytes(data)
    found = load("emnist", tmp_path)
    assert np.allclose(found.x_train[:, 0].numpy() * 255, images(8))
    assert found.meta["classes"] == ("0", "A", "a")


def test_emnist_out_of_the_published_archive(tmp_path: Path) -> None:
    (tmp_path / "emnist").mkdir()
    with zipfile.ZipFile(tmp_path / "emnist" / "gzip.zip", "w") as archive:
        for name, data in emnist_files().items():
            archive.writestr(f"gzip/{name}", data)
        archive.writestr("gzip/emnist-letters-mapping.txt", "1 65")
    found = load("EMNIST-Balanced", tmp_path)
    assert np.allclose(found.x_test[:, 0].numpy() * 255, images(6))


def test_big_endian_values_are_read() -> None:
    assert parse_idx(idx(np.array([[1, 2], [3, 70000]], ">i4")), "x", 2).tolist() == [[1, 2], [3, 70000]]

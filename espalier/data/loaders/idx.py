"""The IDX format, and the datasets published in it: MNIST, Fashion-MNIST, EMNIST-Balanced.

An IDX file is a header (two zero bytes, a type code, the number of axes, then each axis' length as a
big-endian 32-bit number) and the values, row by row.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError
from espalier.data.arrays import pixels
from espalier.data.dataset import Dataset, IntArray
from espalier.data.loaders.base import Layout, one_match
from espalier.data.loaders.files import named_members, read_bytes, reading, unpacked

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
WRITER_COLUMN = 2


def parse_idx(data: bytes, name: str | Path, axes: int) -> NDArray[Any]:
    """Parse an IDX file's bytes into an array of ``axes`` axes."""
    with reading(name):
        zeros, code, found = struct.unpack(">HBB", data[:4])
        if zeros != 0 or code not in TYPES:
            raise ValueError(f"it starts with {data[:4].hex()}, which is no IDX header")
        if found != axes:
            raise ValueError(f"it has {found} axes, expected {axes}")
        shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
        kind = np.dtype(TYPES[code])
        size, wanted = len(data) - 4 - 4 * axes, int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if size != wanted:
            raise ValueError(f"the header says {wanted} bytes of values, there are {size}")
        return np.frombuffer(data, dtype=kind, offset=4 + 4 * axes).reshape(shape)


def read_idx(path: Path, axes: int) -> NDArray[Any]:
    """Read an IDX file, plain or gzipped."""
    return parse_idx(read_bytes(path), path, axes)


def read_mnist(folder: Path, *, name: str, classes: tuple[str, ...]) -> Dataset:
    """Read MNIST or Fashion-MNIST: images ``[n, 1, 28, 28]`` in 0…1.

    Where QMNIST's label tables lie beside MNIST's files, the writer of each digit is its owner.
    """
    parts = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(one_match(folder, f"{prefix}-images?idx3-ubyte*"), 3)
        labels = read_idx(one_match(folder, f"{prefix}-labels?idx1-ubyte*"), 1)
        _same_length(images, labels, folder, prefix)
        parts[part] = images, labels.astype(np.int64)
    return Dataset.from_arrays(
        pixels(parts["train"][0]),
        parts["train"][1],
        pixels(parts["test"][0]),
        parts["test"][1],
        name=name,
        n_classes=len(classes),
        owner_train=_writers(folder, "train", parts["train"][1]),
        owner_test=_writers(folder, "test", parts["test"][1]),
        meta={"classes": classes},
    )


def read_emnist(folder: Path) -> Dataset:
    """Read EMNIST-Balanced: 47 classes, images ``[n, 1, 28, 28]`` in 0…1, turned upright.

    The published images are transposed (rows are columns). The mapping file gives each class' character.
    """
    names = _emnist_names("*")
    files = {n: read_bytes(one_match(folder, n)) for n in names}
    return _emnist(files, names, folder)


def read_emnist_zip(folder: Path) -> Dataset:
    """Read EMNIST-Balanced out of the published ``gzip.zip``."""
    archive = one_match(folder, "gzip.zip")
    names = _emnist_names(".gz")
    return _emnist({n: unpacked(d) for n, d in named_members(archive, names).items()}, names, archive)


def _emnist_names(end: str) -> tuple[str, ...]:
    stem = "emnist-balanced"
    idx = [f"{stem}-{part}-{what}-ubyte{end}" for part in ("train", "test") for what in ("images-idx3", "labels-idx1")]
    return (*idx, f"{stem}-mapping.txt")


def _emnist(files: dict[str, bytes], names: tuple[str, ...], where: Path) -> Dataset:
    with reading(where / names[4]):
        lines = [line.split() for line in files[names[4]].decode().splitlines() if line.strip()]
        codes = {int(fields[0]): int(fields[1]) for fields in lines}
        classes = tuple(chr(codes[c]) for c in range(len(codes)))
    arrays = [parse_idx(files[n], where / n, 3 - 2 * (i % 2)) for i, n in enumerate(names[:4])]
    for images, labels, part in ((arrays[0], arrays[1], "train"), (arrays[2], arrays[3], "test")):
        _same_length(images, labels, where, part)
    return Dataset.from_arrays(
        pixels(arrays[0].transpose(0, 2, 1)),
        arrays[1].astype(np.int64),
        pixels(arrays[2].transpose(0, 2, 1)),
        arrays[3].astype(np.int64),
        name="emnist",
        n_classes=len(classes),
        meta={"classes": classes},
    )


def _same_length(images: NDArray[Any], labels: NDArray[Any], where: Path, part: str) -> None:
    if len(images) != len(labels):
        raise DataError(f"{where} ({part}): {len(images)} images but {len(labels)} labels; fetch both files again.")


def _writers(folder: Path, part: str, labels: IntArray) -> IntArray | None:
    pattern = f"qmnist-{part}-labels-idx2-int*"
    if next(folder.glob(pattern), None) is None:
        return None
    path = one_match(folder, pattern)
    # QMNIST's test table goes on after MNIST's 10,000 test digits.
    table = read_idx(path, 2)[: len(labels)]
    if len(table) < len(labels) or not np.array_equal(table[:, 0], labels):
        raise DataError(f"{path} does not belong to the labels beside it: its classes differ. Fetch both again.")
    return table[:, WRITER_COLUMN].astype(np.int64)


def mnist_layout(name: str, classes: tuple[str, ...]) -> Layout:
    """The four IDX files of MNIST or Fashion-MNIST."""
    needs = tuple(f"{p}-{w}-ubyte*" for p in ("train", "t10k") for w in ("images?idx3", "labels?idx1"))

    def read(folder: Path) -> Dataset:
        return read_mnist(folder, name=name, classes=classes)

    return Layout("IDX files, plain or .gz", needs, read)


EMNIST_LAYOUTS = (
    Layout("IDX files, plain or .gz", _emnist_names("*"), read_emnist),
    Layout("published archive", ("gzip.zip",), read_emnist_zip),
)

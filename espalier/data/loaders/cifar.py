"""CIFAR-10 and CIFAR-100: the published Python pickles and the published binary files.

A pickle can run code when it is opened. These are opened by an unpickler that knows only what a numpy array
needs and refuses everything else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError
from espalier.data.arrays import pixels
from espalier.data.dataset import Dataset, IntArray
from espalier.data.loaders.base import Layout, one_match
from espalier.data.loaders.files import named_members, read_bytes, reading

PIXELS = 3 * 32 * 32
TEN_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
Files = Callable[[str], bytes]


RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
"""What numpy pickles name to make an array; its module differs between numpy's versions."""


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler for dictionaries of lists, bytes and numpy arrays; any other class is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the few callables that a pickled numpy array names."""
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
            ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _latin1,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no image file needs; it was not run")
        return allowed[module, name]


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into old pickles."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}, which no image file needs")
    return text.encode("latin1")


def unpickle(data: bytes, name: str | Path) -> dict[bytes, Any]:
    """Open one of the published pickles; its keys are bytes."""
    with reading(name):
        content = ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, expected a dictionary")
        return {k if isinstance(k, bytes) else str(k).encode(): v for k, v in content.items()}


def read_pickles(files: Files, where: Path, *, hundred: bool, coarse: bool = False) -> Dataset:
    """Read the Python version."""
    label = (b"coarse_labels" if coarse else b"fine_labels") if hundred else b"labels"
    parts: list[tuple[NDArray[Any], IntArray]] = []
    for names in (("train",) if hundred else TEN_TRAIN, ("test",) if hundred else ("test_batch",)):
        images, labels = [], []
        for name in names:
            batch = unpickle(files(name), where / name)
            with reading(where / name):
                images.append(np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32))
                labels.append(np.asarray(batch[label], np.int64))
        parts.append((np.concatenate(images), np.concatenate(labels)))
    return _dataset(parts, where, hundred=hundred, coarse=coarse)


def read_binary(files: Files, where: Path, *, hundred: bool, coarse: bool = False) -> Dataset:
    """Read the binary version: records of one label byte (CIFAR-100: coarse, fine) and 3,072 pixel bytes."""
    head = 2 if hundred else 1
    column = 1 if hundred and not coarse else 0
    parts: list[tuple[NDArray[Any], IntArray]] = []
    for names in (("train",) if hundred else TEN_TRAIN, ("test",) if hundred else ("test_batch",)):
        data = []
        for name in names:
            raw = np.frombuffer(files(f"{name}.bin"), np.uint8)
            if not len(raw) or len(raw) % (head + PIXELS):
                raise DataError(
                    f"File {where / name}.bin is truncated: {len(raw)} bytes are not a multiple of the "
                    f"{head + PIXELS} bytes of a record. Fetch it again."
                )
            data.append(raw.reshape(-1, head + PIXELS))
        records = np.concatenate(data)
        parts.append((records[:, head:].reshape(-1, 3, 32, 32), records[:, column].astype(np.int64)))
    return _dataset(parts, where, hundred=hundred, coarse=coarse)


def _dataset(parts: list[tuple[NDArray[Any], IntArray]], where: Path, *, hundred: bool, coarse: bool) -> Dataset:
    for images, labels in parts:
        if len(images) != len(labels):
            raise DataError(f"{where}: {len(images)} images but {len(labels)} labels; fetch the files again.")
    (x_train, y_train), (x_test, y_test) = parts
    return Dataset.from_arrays(
        pixels(x_train),
        y_train,
        pixels(x_test),
        y_test,
        name="cifar100" if hundred else "cifar10",
        n_classes=(20 if coarse else 100) if hundred else 10,
    )


def layouts(*, hundred: bool) -> tuple[Layout, ...]:
    """The published layouts: folders of either version, and either archive as it was downloaded."""
    train, test = (("train",), ("test",)) if hundred else (TEN_TRAIN, ("test_batch",))
    stem = "cifar-100" if hundred else "cifar-10"
    found = []
    for title, end, archive, parse in (
        ("Python version", "", f"{stem}-python.tar.gz", read_pickles),
        ("binary version", ".bin", f"{stem}-binary.tar.gz", read_binary),
    ):
        names = tuple(f"{n}{end}" for n in (*train, *test))
        found.append(Layout(title, names, _reader(parse, _in_folder, hundred)))
        found.append(Layout(f"{title}, archive", (archive,), _reader(parse, _in_archive(archive, names), hundred)))
    return tuple(found)


def _in_folder(folder: Path) -> Files:
    return lambda name: read_bytes(folder / name)


def _in_archive(archive: str, names: tuple[str, ...]) -> Callable[[Path], Files]:
    return lambda folder: named_members(one_match(folder, archive), names).__getitem__


def _reader(parse: Callable[..., Dataset], source: Callable[[Path], Files], hundred: bool) -> Callable[..., Dataset]:
    def read_ten(folder: Path) -> Dataset:
        return parse(source(folder), folder, hundred=False)

    def read_hundred(folder: Path, *, coarse: bool = False) -> Dataset:
        return parse(source(folder), folder, hundred=True, coarse=coarse)

    return read_hundred if hundred else read_ten

"""Reading files: plain, compressed, out of an archive, images; damage becomes a `DataError` that names the file."""

from __future__ import annotations

import gzip
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from espalier.core.errors import DataError

DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    NotImplementedError,
    MemoryError,  # a damaged header that announces terabytes
    ArithmeticError,
    RecursionError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
)


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn whatever a parser raises on a damaged file into a `DataError` that names the file."""
    try:
        yield
    except DAMAGE as error:
        said = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DataError(
            f"File {path} is truncated or of another format: {said.rstrip('.')}. Fetch it again, or remove it."
        ) from None


def unpacked(data: bytes) -> bytes:
    """Decompress gzip or xz data; other data is returned as it is."""
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:6] == b"\xfd7zXZ\x00":
        return lzma.decompress(data)
    return data


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if it is gzip or xz."""
    with reading(path):
        return unpacked(path.read_bytes())


def members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield ``(path inside, content)`` of a tar or zip archive's files whose path is ``wanted``.

    Nothing is written to disk, so a path inside an archive cannot reach anywhere.
    """
    with reading(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                for name in packed.namelist():
                    if not name.endswith("/") and wanted(name):
                        yield name, packed.read(name)
            return
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                if member.isfile() and wanted(member.name):
                    file = tar.extractfile(member)
                    if file is not None:
                        yield member.name, file.read()


def named_members(archive: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The files of these names in an archive, wherever in it they lie."""
    found = {
        inside.rpartition("/")[2]: data
        for inside, data in members(archive, lambda path: path.rpartition("/")[2] in names)
    }
    for name in names:
        if name not in found:
            raise DataError(f"Archive {archive} holds no file {name!r}; fetch it again.")
    return found


ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
Size = tuple[int, int]


def decode(path: Path, size: Size, *, crop: bool) -> NDArray[np.uint8]:
    """Read one image as RGB ``[3, height, width]``.

    Args:
        path: The file.
        size: Height and width wanted, in pixels.
        crop: Keep the proportions and cut what is left over, or stretch.
    """
    height, width = size
    try:
        with Image.open(path) as image:
            # A JPEG can be decoded at a half, a quarter or an eighth of its size, which is many times faster.
            image.draft("RGB", (2 * width, 2 * height))
            colour = image.convert("RGB")
        if crop:
            fitted = ImageOps.fit(colour, (width, height), Image.Resampling.BILINEAR)
        else:
            fitted = colour.resize((width, height), Image.Resampling.BILINEAR)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError) as error:
        raise DataError(f"Image {path} cannot be decoded: {error}. Fetch it again, or remove it.") from None
    return np.asarray(fitted, np.uint8).transpose(2, 0, 1)


def decode_all(paths: Sequence[Path], size: Size, *, crop: bool) -> NDArray[np.uint8]:
    """Read many images as RGB ``[n, 3, height, width]``."""
    out = np.empty((len(paths), 3, *size), np.uint8)
    for i, path in enumerate(paths):
        out[i] = decode(path, size, crop=crop)
    return out


def decode_labels(path: Path, size: Size) -> NDArray[np.uint8]:
    """Read an image of labels ``[height, width]`` by its nearest pixels, so that no label is made up."""
    height, width = size
    try:
        with Image.open(path) as image:
            if image.mode not in ("L", "P"):
                raise DataError(f"Label image {path} has the mode {image.mode}; expected one byte per pixel.")
            small = image.resize((width, height), Image.Resampling.NEAREST)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError) as error:
        raise DataError(f"Image {path} cannot be decoded: {error}. Fetch it again, or remove it.") from None
    return np.asarray(small, np.uint8)

"""Decoding image files to arrays of one size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from espalier.core.errors import DataError

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

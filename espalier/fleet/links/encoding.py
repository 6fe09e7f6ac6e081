"""Models as bytes and back: plain little-endian numbers, or compressed.

``zstd`` is lossless and saves little on trained weights (they are nearly random); ``q8`` sends a device's model as
an 8-bit difference from the model it was given, see `espalier.core.quantise`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Literal

import numpy as np
import torch
import zstandard
from torch import Tensor

from espalier.core.errors import ProtocolError
from espalier.core.params import Spans
from espalier.fleet.links.framing import LetterPart

Compress = Literal["none", "zstd", "q8"]


class Encoding(IntEnum):
    """How a part's bytes are to be read."""

    FLOAT32 = 0
    FLOAT64 = 1
    ZSTD_FLOAT32 = 2
    ZSTD_FLOAT64 = 3
    Q8 = 4
    #: 64-bit words under masks (`espalier.secure`): no model, only a sum of them is one
    MASKED = 5


_LEVEL = 3


def encode(vector: Tensor, compress: Compress = "none") -> LetterPart:
    """Turn a model into a part of a letter (nothing is copied unless it is compressed)."""
    wide = vector.dtype == torch.float64
    plain = vector.detach().contiguous().numpy().data.cast("B")
    if compress != "zstd":
        return LetterPart.of(plain, Encoding.FLOAT64 if wide else Encoding.FLOAT32)
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(plain)
    return LetterPart.of(packed, Encoding.ZSTD_FLOAT64 if wide else Encoding.ZSTD_FLOAT32)


def decode(part: LetterPart, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn a part into a vector ``[size]`` of the run's type.

    Raises:
        ProtocolError: The bytes are not those of such a vector.
    """
    try:
        encoding = Encoding(part.encoding)
    except ValueError:
        raise ProtocolError(
            f"A model in encoding {part.encoding}; {', '.join(map(str, Encoding))} are known."
        ) from None
    if encoding is Encoding.Q8:
        raise ProtocolError("A model is a difference from one that is not here.")
    if encoding is Encoding.MASKED:
        raise ProtocolError("A model is masked, and whoever gets it merges single models.")
    wide = encoding in (Encoding.FLOAT64, Encoding.ZSTD_FLOAT64)
    if wide != (dtype == torch.float64):  # whatever it is merged with would become of its type
        raise ProtocolError(f"A model in encoding {encoding.name}; this run's are {str(dtype).removeprefix('torch.')}.")
    expected = size * (8 if wide else 4)
    data: bytes | memoryview = part.data
    if encoding in (Encoding.ZSTD_FLOAT32, Encoding.ZSTD_FLOAT64):
        try:
            # the frame's own claim of its size is checked before anything is allocated
            if zstandard.frame_content_size(bytes(data[:18])) != expected:
                raise ProtocolError(f"A compressed model is not of {expected} bytes.")
            data = zstandard.ZstdDecompressor().decompress(bytes(data), max_output_size=expected)
        except zstandard.ZstdError as error:
            raise ProtocolError(f"A compressed model cannot be read: {error}.") from error
    if len(data) != expected:
        raise ProtocolError(f"A model of {len(data)} bytes; {expected} are expected for {size} numbers.")
    return torch.from_numpy(np.frombuffer(data, dtype="<f8" if wide else "<f4").copy())


class Encoder:
    """Encodes models, each once although it goes to many children."""

    def __init__(self, compress: Compress, vector: Callable[[int], Tensor]) -> None:
        """Encode vectors by name."""
        self._compress: Compress = compress
        self._vector = vector
        self._parts: dict[tuple[int, Spans | None], LetterPart] = {}

    def part(self, name: int, spans: Spans | None = None) -> LetterPart:
        """Return a model's part: all of the vector, or some places."""
        key = name, spans
        if key not in self._parts:
            vector = self._vector(name)
            if spans is not None:
                vector = torch.cat([vector[a:b] for a, b in spans] or [vector[:0]])
            self._parts[key] = encode(vector, self._compress)
        return self._parts[key]

    def keep_only(self, names: set[int]) -> None:
        """Forget the parts of models that nobody sends any more."""
        for key in [k for k in self._parts if k[0] not in names]:
            del self._parts[key]

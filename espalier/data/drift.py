"""Changed data: a pool that shows another pool's samples differently.

Everything is a pure function of the row and the arguments: a row looks the same every time it is gathered,
alone or among others, now or after a resume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.errors import ConfigError, DataError
from espalier.core.seeds import key
from espalier.core.statistics import Pool
from espalier.data.dataset import VOID


@dataclass(frozen=True, eq=False)
class ChangedPool:
    """Another pool's samples, changed.

    Attributes:
        base: The other pool.
        labels: Class ``c`` reads ``labels[c]``, or None.
        brightness: Added to the features.
        noise: Standard deviation of the Gaussian noise added to the features.
        rotation: Degrees by which images are turned, counter-clockwise.
        noise_key: The 128-bit key of the noise.
    """

    base: Pool
    labels: Tensor | None
    brightness: float
    noise: float
    rotation: float
    noise_key: int

    @property
    def changes_features(self) -> bool:
        """Whether samples look different, not only their labels."""
        return bool(self.brightness or self.noise or self.rotation)

    def check(self) -> None:
        """Refuse samples that cannot be changed this way."""
        x, y = self.base.gather(torch.zeros(1, dtype=torch.int64))
        if self.changes_features and not x.is_floating_point():
            raise DataError("Token ids cannot be brightened, blurred by noise or turned; use a drift of labels.")
        if self.rotation and x.ndim != 4:
            raise DataError(f"Only images can be turned; a sample has shape {tuple(x.shape[1:])}.")
        if x.ndim == 4 and (self.brightness or self.noise) and bool((x < 0).any()):
            raise DataError("Brightness and noise are for pixels in 0…1; load the images without mean and std.")
        if self.labels is not None and y.is_floating_point():
            raise DataError("Only classes can be permuted; this dataset's targets are numbers of a regression.")

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the changed samples at ``rows``; images stay in 0…1."""
        x, y = self.base.gather(rows)
        if self.labels is not None:
            y = self.labels[y]
        if self.rotation:
            images = y.ndim == 3
            x = rotated(x, self.rotation)
            y = rotated_labels(y, self.rotation) if images else y
        if self.brightness:
            x = x + self.brightness
        if self.noise:
            x = x + self.noise * row_noise(self.noise_key, rows, tuple(x.shape[1:])).to(x.dtype)
        if x.ndim == 4 and (self.brightness or self.noise):
            x = x.clamp(0.0, 1.0)
        return x, y


def look_through(
    pool: Pool,
    *,
    labels: NDArray[np.int64] | None = None,
    brightness: float = 0.0,
    noise: float = 0.0,
    rotation: float = 0.0,
    seed: int = 0,
    part: str = "train",
    check: bool = True,
) -> Pool:
    """Show a pool's samples differently; without any change the pool itself is returned.

    Args:
        pool: The pool.
        labels: Class ``c`` reads ``labels[c]``, int64 ``[n_classes]``.
        brightness: Added to the features (images are then kept in 0…1).
        noise: Standard deviation of Gaussian noise added to the features, drawn per row.
        rotation: Degrees by which images (and label images) are turned, counter-clockwise.
        seed: The run's seed, for the noise.
        part: ``train`` or ``test``: the two have noise of their own.
        check: Whether to look at a sample; a part of a pool that was checked need not have one to look at.

    Raises:
        ConfigError: A negative or infinite amount.
        DataError: Features that cannot be changed this way: token ids, or rotation of what is no image.
    """
    for name, value in (("brightness", brightness), ("noise", noise), ("rotation", rotation)):
        if not math.isfinite(value) or (name == "noise" and value < 0):
            raise ConfigError(f"{name} is {value}; accepted is a finite number{' from 0' if name == 'noise' else ''}.")
    changed = ChangedPool(
        base=pool,
        labels=None if labels is None else _table(labels),
        brightness=float(brightness),
        noise=float(noise),
        rotation=float(rotation),
        noise_key=key(seed, "data", "noise", part),
    )
    if labels is None and not changed.changes_features:
        return pool
    if check:
        changed.check()
    return changed


def row_noise(noise_key: int, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise of each row, float32 ``[n, *shape]``, whatever the other rows are."""
    out = np.empty((len(rows), math.prod(shape)), np.float32)
    bits = np.random.Philox(key=noise_key)
    rng, state = np.random.Generator(bits), bits.state
    for place, row in zip(out, rows.tolist(), strict=True):
        # Each row has a counter of its own in the upper half of Philox' 256 bits, so rows share no number. Setting
        # the state is several times faster than making a generator for every row.
        state["state"]["counter"][2] = row
        bits.state = state
        rng.standard_normal(out=place, dtype=np.float32)
    return torch.from_numpy(out.reshape(len(rows), *shape))


def rotated(x: Tensor, degrees: float) -> Tensor:
    """Turn images ``[n, c, h, w]`` counter-clockwise about their centres, bilinear; what comes in is 0."""
    return F.grid_sample(x, _grid(x, degrees), mode="bilinear", padding_mode="zeros", align_corners=False)


def rotated_labels(y: Tensor, degrees: float) -> Tensor:
    """Turn label images ``[n, h, w]`` counter-clockwise by nearest pixels; what comes in is void."""
    shifted = (y - VOID).to(torch.float32)[:, None]
    sampled = F.grid_sample(shifted, _grid(shifted, degrees), mode="nearest", padding_mode="zeros", align_corners=False)
    return sampled[:, 0].round().to(torch.int64) + VOID


def _grid(x: Tensor, degrees: float) -> Tensor:
    height, width = x.shape[-2:]
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # The sampling grid runs from -1 to 1 on both sides, so a side's ratio keeps a turned image from
    # shearing. It asks where a target pixel comes from, and its y axis points down: both flips together
    # leave the sign of s.
    matrix = torch.tensor([[c, -s * height / width, 0.0], [s * width / height, c, 0.0]], dtype=x.dtype)
    return F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)


def _table(labels: NDArray[np.int64]) -> Tensor:
    # Void pixels keep their label: the table reaches up to it.
    table = torch.arange(max(VOID + 1, len(labels)))
    table[: len(labels)] = torch.from_numpy(np.ascontiguousarray(labels, np.int64))
    return table

"""Magnet tracking: where is a magnet, and where does its north pole point, from 16 three-axis sensors?

D2D co-optimisation (§5.1) synthesises 10⁶ points after Wu et al., "Using Synthetic Data in Supervised
Learning for Robust 5-DoF Magnetic Marker Localization" (IEEE Trans. Magn. 60(8), 2024): a square array of 16
sensors in the xy-plane below a working volume of 0.2 × 0.2 × 0.15 m. The papers give neither the sensors'
spacing, the magnet's strength nor the gap above the array; they are arguments here, with values of ordinary
hardware. The field is the dipole's, exact for a sphere and for a distant magnet.

Cells are the paper's virtual position labels: the four quadrants of the plane, each with the north pole
pointing up or down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from espalier.core.seeds import stream
from espalier.data.dataset import Dataset, IntArray
from espalier.data.loaders.base import DatasetEntry, at_least
from espalier.data.rows import FloatArray

if TYPE_CHECKING:
    from torch import Tensor

SENSORS_PER_SIDE = 4
MU0_OVER_4PI = 1e-7
MM_PER_UNIT = 100.0
CHUNK_POINTS = 50_000


def read(
    *,
    samples: int = 1_000_000,
    test_samples: int = 10_000,
    width: float = 0.2,
    height: float = 0.15,
    gap: float = 0.03,
    spacing: float = 0.05,
    moment: float = 1.0,
    noise: float = 0.0,
    data_seed: int = 0,
) -> Dataset:
    """Make the dataset: inputs ``[n, 48]`` in mT, targets ``[n, 6]``.

    Targets are the position in units of 100 mm (x and y from the array's centre, z from the sensors' plane),
    so that both halves of the target are of size 1, then the unit vector of the north pole.

    Args:
        samples: Training points.
        test_samples: Test points.
        width: Side of the square working area, in metres.
        height: Height of the working volume, in metres.
        gap: Least height above the sensors, in metres.
        spacing: Distance between neighbouring sensors, in metres.
        moment: Magnetic moment, in A·m² (1 is about a 10 mm neodymium cube).
        noise: Standard deviation of each sensor axis' noise, in mT.
        data_seed: Draws the points; not a run's seed, so that all runs see the same data.
    """
    for name, value in (("samples", samples), ("test_samples", test_samples)):
        at_least(f"Option {name!r} of dataset 'magnet'", value, 8)
    sizes = {"width": width, "height": height, "gap": gap, "spacing": spacing, "moment": moment}
    for name, size in sizes.items():
        at_least(f"Option {name!r} of dataset 'magnet'", size, 1e-6)
    at_least("Option 'noise' of dataset 'magnet'", noise, 0.0)
    low, high = np.array([-width / 2, -width / 2, gap]), np.array([width / 2, width / 2, gap + height])
    sensors = sensor_grid(spacing)

    def part(name: str, n: int) -> tuple[Tensor, Tensor, IntArray]:
        return _points(stream(data_seed, "magnet", name), n, (low, high), sensors, moment, noise)

    x_train, y_train, cell_train = part("train", samples)
    x_test, y_test, cell_test = part("test", test_samples)
    return Dataset(
        name="magnet",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        kind="regression",
        n_classes=6,
        cell_train=cell_train,
        cell_test=cell_test,
        n_cells=8,
        meta={
            "mm_per_unit": MM_PER_UNIT,
            "outputs": ("x", "y", "z", "north x", "north y", "north z"),
            "metric": pose_errors,
            "metric_names": ("position_mm", "angle_deg"),
        },
    )


def _points(
    rng: np.random.Generator,
    n: int,
    box: tuple[FloatArray, FloatArray],
    sensors: FloatArray,
    moment: float,
    noise: float,
) -> tuple[Tensor, Tensor, IntArray]:
    """Draw points in a box: what the sensors measure, position and pole, and the cell."""
    import torch

    low, high = box
    position = low + rng.random((n, 3)) * (high - low)
    pole = rng.standard_normal((n, 3))
    pole /= np.linalg.norm(pole, axis=1, keepdims=True)
    x = np.empty((n, 3 * len(sensors)), np.float32)
    for at in range(0, n, CHUNK_POINTS):
        rows = slice(at, at + CHUNK_POINTS)
        field = 1e3 * dipole_field(position[rows], moment * pole[rows], sensors).reshape(-1, x.shape[1])
        x[rows] = field + noise * rng.standard_normal(field.shape) if noise else field
    y = np.concatenate([position * 1e3 / MM_PER_UNIT, pole], 1).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y), region(position, pole)


def sensor_grid(spacing: float) -> FloatArray:
    """Places of the 4 × 4 sensors in the plane z = 0, centred, in metres, ``[16, 3]``."""
    line = (np.arange(SENSORS_PER_SIDE) - (SENSORS_PER_SIDE - 1) / 2) * spacing
    y, x = np.meshgrid(line, line, indexing="ij")
    return np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], 1)


def dipole_field(position: FloatArray, moment: FloatArray, sensors: FloatArray) -> FloatArray:
    """The field of dipoles at the sensors, in tesla.

    ``B = μ₀/4π · (3 r̂ (m·r̂) − m) / |r|³`` with ``r`` from the dipole to the sensor.

    Args:
        position: Places of the dipoles, in metres, ``[n, 3]``.
        moment: Their moments, in A·m², ``[n, 3]``.
        sensors: Places of the sensors, in metres, ``[s, 3]``.

    Returns:
        ``[n, s, 3]``.
    """
    r = sensors[None] - position[:, None]
    distance = np.sqrt(np.einsum("nsk,nsk->ns", r, r))
    along = np.einsum("nsk,nk->ns", r, moment) / distance**2
    return np.asarray(MU0_OVER_4PI * (3 * along[..., None] * r - moment[:, None]) / distance[..., None] ** 3)


def region(position: FloatArray, pole: FloatArray) -> IntArray:
    """The virtual position label: the quadrant of (x, y), 0…3, plus 4 if the north pole points down."""
    right, upper = position[:, 0] >= 0, position[:, 1] >= 0
    down = pole[:, 2] < 0
    return np.asarray(right + 2 * upper + 4 * down, np.int64)


def pose_errors(outputs: Tensor, y: Tensor) -> Tensor:
    """Errors of each sample, ``[n, 2]``: position in mm, and angle between the poles in degrees."""
    import torch

    position = MM_PER_UNIT * torch.linalg.vector_norm(outputs[..., :3] - y[..., :3], dim=-1)
    cosine = torch.nn.functional.cosine_similarity(outputs[..., 3:], y[..., 3:], dim=-1)
    return torch.stack([position, torch.rad2deg(torch.arccos(cosine.clamp(-1.0, 1.0)))], -1)


ENTRY = DatasetEntry(
    name="magnet",
    kind="regression",
    samples=(1_000_000, 10_000),
    classes=6,
    licence="synthesised here",
    citation="after Wu et al., IEEE Trans. Magn. 60(8), 2024",
    make=read,
)

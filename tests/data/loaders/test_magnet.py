"""The magnet-tracking set: physics by hand, regions, units."""

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.data.loaders.magnet import dipole_field, pose_errors, region, sensor_grid
from espalier.data.registry import load


def test_the_field_of_a_dipole_by_hand() -> None:
    # A moment of 2 A·m² along z, 0.1 m above a sensor: on the axis B = μ0/4π · 2m/r³ = 1e-7 · 4 / 1e-3 = 4e-4 T.
    field = dipole_field(np.array([[0, 0, 0.1]]), np.array([[0, 0, 2.0]]), np.array([[0, 0, 0], [0.1, 0, 0.1]]))
    assert field[0, 0] == pytest.approx([0, 0, 4e-4])
    # Beside it, in its equatorial plane, B = −μ0/4π · m/r³ = −2e-4 T.
    assert field[0, 1] == pytest.approx([0, 0, -2e-4])


def test_the_field_falls_with_the_cube_of_the_distance() -> None:
    at = np.array([[0.01, 0.02, 0.05], [0.02, 0.04, 0.1]])
    near, far = dipole_field(at, np.array([[1.0, 2.0, 3.0]] * 2), np.zeros((1, 3)))[:, 0]
    assert far == pytest.approx(near / 8)


def test_sixteen_sensors_in_a_centred_square() -> None:
    grid = sensor_grid(0.05)
    assert grid.shape == (16, 3)
    assert grid.mean(0) == pytest.approx([0, 0, 0])
    assert grid.min(0) == pytest.approx([-0.075, -0.075, 0]) and len(np.unique(grid, axis=0)) == 16


def test_eight_regions() -> None:
    position = np.array([[-1, -1, 1], [1, -1, 1], [-1, 1, 1], [1, 1, 1], [1, 1, 1]], float)
    pole = np.array([[0, 0, 1], [0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 1, -0.1]], float)
    # Quadrants 0…3 by the signs of x and y; the last points below the horizon: 3 + 4.
    assert region(position, pole).tolist() == [0, 1, 2, 3, 7]


def test_the_set_has_its_shapes_units_and_cells() -> None:
    data = load("magnet", samples=4000, test_samples=800)
    assert (data.kind, data.n_classes, data.n_cells, data.input_shape) == ("regression", 6, 8, (48,))
    position, pole = data.y_train[:, :3], data.y_train[:, 3:]
    # Units of 100 mm: a 0.2 m square is −1…1, heights 30…180 mm are 0.3…1.8.
    assert position.min(0).values.tolist() == pytest.approx([-1, -1, 0.3], abs=0.02)
    assert position.max(0).values.tolist() == pytest.approx([1, 1, 1.8], abs=0.02)
    assert torch.allclose(pole.norm(dim=1), torch.ones(4000), atol=1e-5)
    # Eight regions of equal volume: 500 each in the mean.
    assert np.bincount(data.cell_train).min() > 400
    # Sensor values are millitesla: the first sample again, by the formula.
    want = 1e3 * dipole_field(position[:1].double().numpy() / 10, pole[:1].double().numpy(), sensor_grid(0.05))
    assert data.x_train[0].numpy() == pytest.approx(want.reshape(-1), rel=1e-4, abs=1e-6)
    assert torch.equal(load("magnet", samples=4000, test_samples=800).x_train, data.x_train)


def test_errors_in_millimetres_and_degrees() -> None:
    y = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0, 1.0]])
    # Off by (0.03, 0.04, 0) units of 100 mm: 5 mm. A pole of length 2 turned by 90°.
    out = torch.tensor([[0.03, 0.04, 1.0, 2.0, 0.0, 0.0]])
    assert pose_errors(out, y)[0].tolist() == pytest.approx([5.0, 90.0], abs=1e-4)
    assert pose_errors(y, y)[0].tolist() == pytest.approx([0.0, 0.0], abs=0.1)


def test_noise_is_added_in_millitesla_and_bad_values_are_refused() -> None:
    calm, loud = (load("magnet", samples=2000, test_samples=8, noise=n) for n in (0.0, 0.01))
    assert float((loud.x_train - calm.x_train).std()) == pytest.approx(0.01, rel=0.02)
    with pytest.raises(ConfigError, match="'gap'"):
        load("magnet", gap=0)
    with pytest.raises(ConfigError, match="'noise'"):
        load("magnet", noise=-1)

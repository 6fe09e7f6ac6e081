"""The controlled split of D2D co-optimisation: sizes, classes, totals."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import PartitionError
from espalier.core.seeds import stream
from espalier.data.dataset import Dataset
from espalier.data.partition import partition
from espalier.methods.d2d.partition import Sized, fill, spread_sizes


def cifar_like(per_class: int = 5000, classes: int = 10) -> Dataset:
    y = np.repeat(np.arange(classes), per_class)
    return Dataset.from_arrays(np.zeros((len(y), 1), np.float32), y, np.zeros((classes, 1)), np.arange(classes))


def test_sizes_by_hand() -> None:
    # z = −1, 1 (already standard): two devices of mean 50 and deviation 20 have 30 and 70.
    assert spread_sizes(100, 20, 1, np.array([-1.0, 1.0])).tolist() == [30, 70]
    assert spread_sizes(100, 0, 1, np.array([-1.0, 1.0])).tolist() == [50, 50]
    # Three devices, the smallest held at 30 by the floor; (30, x, y) with x + y = 120 and deviation 20 about 50:
    # 400 + (x−50)² + (y−50)² = 1200 gives x = 42.7, y = 77.3 (or the other way round).
    sizes = spread_sizes(150, 20, 30, np.array([-2.0, 0.2, 1.0]))
    assert sizes[0] == 30 and sizes.sum() == 150 and float(sizes.std()) == pytest.approx(20, abs=0.5)


@settings(max_examples=80, deadline=None)
@given(st.integers(5, 80), st.floats(0.05, 0.9), st.integers(0, 1000))
def test_sizes_have_sum_floor_and_deviation(n: int, relative: float, seed: int) -> None:
    total, least = 1000 * n, 200
    sizes = spread_sizes(total, relative * 1000, least, stream(seed, "x").standard_normal(n))
    assert sizes.sum() == total and sizes.min() >= least
    assert float(sizes.std()) == pytest.approx(relative * 1000, rel=0.02)


def test_a_spread_that_cannot_be_is_refused() -> None:
    # Ten devices of mean 100 and floor 90: at most one has 190, deviation √(.1·90² + .9·10²) = 30.
    with pytest.raises(PartitionError, match="the most is 30"):
        spread_sizes(1000, 31, 90, stream(0, "x").standard_normal(10))
    assert float(spread_sizes(1000, 29, 90, stream(0, "x").standard_normal(10)).std()) == pytest.approx(29, rel=0.02)


@pytest.mark.parametrize("sigma", [750.0, 1250.0])
@pytest.mark.parametrize("classes", [4, 7])
def test_the_papers_settings(sigma: float, classes: int) -> None:
    start = time.perf_counter()
    p = partition(cifar_like(), Sized(sigma=sigma, classes=classes), n_devices=25, n_edges=5, seed=0)
    assert time.perf_counter() - start < 5
    assert p.sizes.sum() == 50_000 and (p.histogram.sum(0) == 5000).all()
    assert p.sizes.min() >= 200 and float(p.sizes.std()) == pytest.approx(sigma, rel=0.02)
    assert set((p.histogram > 0).sum(1)) == {classes}


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_any_seed_meets_sizes_totals_and_classes(seed: int) -> None:
    p = partition(cifar_like(500), Sized(sigma=75, classes=4, min_samples=20), n_devices=25, n_edges=5, seed=seed)
    assert (p.histogram.sum(0) == 500).all() and set((p.histogram > 0).sum(1)) == {4}
    assert float(p.sizes.std()) == pytest.approx(75, rel=0.02) and p.sizes.min() >= 20


def test_a_hundred_classes_and_two_hundred_devices() -> None:
    start = time.perf_counter()
    p = partition(cifar_like(500, 100), Sized(sigma=100, classes=10, min_samples=50), n_devices=200, n_edges=5, seed=0)
    assert set((p.histogram > 0).sum(1)) == {10} and (p.histogram.sum(0) == 500).all()
    assert time.perf_counter() - start < 10


def test_filling_by_hand() -> None:
    # Device 0 holds cells 0 and 1, device 1 holds cell 1: it takes 4 of cell 1's 6, so device 0 has 5 + 2.
    held = np.array([[1, 1], [0, 1]], bool)
    counts = fill(held, np.array([7, 4]), np.array([5, 6]))
    assert counts is not None and counts.tolist() == [[5, 2], [0, 4]]
    # Device 1 is to take 7 of a cell of 6: there is no way.
    assert fill(held, np.array([4, 7]), np.array([5, 6])) is None


def test_filling_is_as_even_as_it_can_be() -> None:
    counts = fill(np.ones((2, 2), bool), np.array([10, 6]), np.array([8, 8]))
    # An even split of both devices meets the totals: 5 + 3 in each cell.
    assert counts is not None and counts.tolist() == [[5, 5], [3, 3]]

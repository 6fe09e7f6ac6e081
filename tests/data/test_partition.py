"""What every partition promises, whatever its kind."""

import resource
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError, PartitionError
from espalier.data.dataset import Dataset
from espalier.data.partition import Partition, partition
from espalier.data.partitions import Dirichlet, Iid, PartitionSpec, SharedPool, TwoLevel, partition_spec
from espalier.data.registry import load

DIGITS = load("digits")
DISJOINT = ["iid", "dirichlet", "classes", "two_level"]


def split(kind: str, n_devices: int = 30, n_edges: int = 5, seed: int = 0, **options: object) -> Partition:
    return partition(DIGITS, partition_spec(kind, options), n_devices=n_devices, n_edges=n_edges, seed=seed)


def check(p: Partition, data: Dataset = DIGITS) -> None:
    """The invariants of every partition."""
    n = p.n_devices
    assert p.offsets[0] == 0 and p.offsets[-1] == len(p.indices) and (p.sizes > 0).all()
    assert p.indices.min() >= 0 and p.indices.max() < len(data.cell_train)
    assert p.edge.dtype == np.int32 and p.edge.shape == (n,) and set(p.edge) == set(range(p.n_edges))
    assert (p.histogram.sum(1) == p.sizes).all()
    for device in (0, n - 1):
        mine = p.rows(device)
        assert len(np.unique(mine)) == len(mine)
        assert np.bincount(data.cell_train[mine], minlength=data.n_cells).tolist() == p.histogram[device].tolist()
    assert np.allclose(p.test_mix.sum(1), 1, atol=1e-5) and p.test_mix.dtype == np.float32
    assert np.allclose(p.test_mix, p.histogram / p.sizes[:, None], atol=1e-6)
    assert np.allclose(p.edge_mix, p.edge_histogram / p.edge_histogram.sum(1, keepdims=True), atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(DISJOINT),
    n_edges=st.integers(2, 6),
    per_edge=st.integers(5, 12),
    seed=st.integers(0, 1000),
    imbalance=st.sampled_from([0.0, 0.4]),
    fraction=st.sampled_from([1.0, 0.6]),
)
def test_disjoint_kinds_use_every_row_once(
    kind: str, n_edges: int, per_edge: int, seed: int, imbalance: float, fraction: float
) -> None:
    p = split(kind, n_edges * per_edge, n_edges, seed, imbalance=imbalance, fraction=fraction)
    check(p)
    assert len(np.unique(p.indices)) == len(p.indices) == round(fraction * 1438) - p.left_out
    # only a split whose devices hold few classes in equal parts may leave rows out, and says so
    assert p.left_out == 0 or kind == "two_level"


@pytest.mark.parametrize("kind", [*DISJOINT, "pool"])
def test_the_same_seed_gives_the_same_and_another_gives_another(kind: str) -> None:
    a, b, c = split(kind, seed=3), split(kind, seed=3), split(kind, seed=4)
    assert np.array_equal(a.indices, b.indices) and np.array_equal(a.offsets, b.offsets)
    assert not np.array_equal(a.indices, c.indices)


def test_devices_lie_in_blocks_of_near_equal_size() -> None:
    p = split("iid", 11, 3)
    assert p.edge.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_validation_rows_are_held_out_of_training() -> None:
    whole, p = split("iid"), split("iid", val_fraction=0.1)
    check(p)
    assert p.validation is not None
    for device in range(30):
        both = np.concatenate([p.rows(device), p.validation_rows(device)])
        assert sorted(both) == sorted(whole.rows(device))
        # 1438 rows over 30 devices are 47 or 48; a tenth, rounded down, is 4.
        assert len(p.validation_rows(device)) == 4
    assert len(whole.validation_rows(0)) == 0


def test_a_small_device_still_validates_on_one_row() -> None:
    p = split("pool", samples=3, val_fraction=0.1)
    assert p.validation is not None and set(p.validation.sizes) == {1} and set(p.sizes) == {2}


def test_samples_per_device_is_a_cap_or_a_range() -> None:
    assert set(split("iid", samples_per_device=20).sizes) == {20}
    sizes = split("iid", samples_per_device=[10, 40]).sizes
    assert 10 <= sizes.min() < 16 and 34 < sizes.max() <= 40
    # A cap keeps what a small device has; a range refuses it.
    assert split("dirichlet", alpha=0.1, samples_per_device=40).sizes.min() < 40
    with pytest.raises(PartitionError, match=r"lower bound 40 \(device"):
        split("dirichlet", alpha=0.1, samples_per_device=[40, 50])


def test_imbalance_spreads_the_amounts_log_normally() -> None:
    even, uneven = split("iid", 100), split("iid", 100, imbalance=0.5)
    assert even.sizes.max() - even.sizes.min() == 1
    # Of log-normal amounts with σ = 0.5 the coefficient of variation is √(e^0.25 − 1) = 0.53.
    assert uneven.sizes.std() / uneven.sizes.mean() == pytest.approx(0.53, abs=0.12)


def test_fraction_takes_the_same_share_of_every_class() -> None:
    p = split("iid", fraction=0.2)
    whole = np.bincount(DIGITS.cell_train)
    assert (np.abs(p.histogram.sum(0) - 0.2 * whole) < 1).all()


def test_planted_concepts_are_even_and_the_first_is_the_identity() -> None:
    p = split("iid", 30, concepts=4)
    assert sorted(np.bincount(p.concept)) == [7, 7, 8, 8] and p.concept.dtype == np.int32
    assert p.permutations.shape == (4, 10) and p.permutations[0].tolist() == list(range(10))
    for table in p.permutations:
        assert sorted(table) == list(range(10))
    assert len({tuple(t) for t in p.permutations}) == 4
    assert (split("iid").concept == 0).all()


def test_concepts_need_classes() -> None:
    magnet = load("magnet", samples=400, test_samples=8)
    with pytest.raises(PartitionError, match="concepts=2 permutes classes"):
        partition(magnet, Iid(concepts=2), n_devices=4, n_edges=2, seed=0)


def test_regressions_are_split_by_region() -> None:
    magnet = load("magnet", samples=2000, test_samples=8)
    p = partition(magnet, TwoLevel(edge_fraction=0.5, device_fraction=0.25), n_devices=20, n_edges=4, seed=0)
    check(p, magnet)
    assert set((p.histogram > 0).sum(1)) == {2} and set((p.edge_histogram > 0).sum(1)) == {4}


@pytest.mark.parametrize(
    ("kind", "fleet", "options", "said"),
    [
        ("iid", (3, 4), {}, "at least as many devices as edges"),
        ("iid", (0, 0), {}, "0 devices at 0 edges"),
        ("iid", (2000, 5), {}, "need 2000 samples, the data has 1438"),
        ("dirichlet", (100, 5), {"min_samples": 20}, "need 2000 samples"),
        ("classes", (30, 5), {"k": 11}, "k=11 cells, the data has 10"),
        ("classes", (4, 2), {"k": 2}, "cannot cover 10 cells"),
        ("two_level", (30, 5), {"edge_fraction": 0.1, "device_fraction": 0.2}, "its edge knows only 1"),
        ("two_level", (30, 3), {"edge_fraction": 0.3}, "3 holders with 3 cells each cannot cover 10"),
        ("two_level", (6, 3), {"edge_fraction": 1.0}, "Edge 0 with 2 devices"),
        ("two_level", (700, 5), {"edge_fraction": 1.0}, "use fewer devices"),
        ("pool", (5, 5), {"samples": 2000}, "shall draw 2000 different samples from a pool of 1438"),
        ("owner", (5, 5), {}, "does not say who made its samples"),
        ("phefl", (100, 5), {}, "made for 10 labels at 10 edges"),
        ("phefl", (30, 10), {}, "accepted are 1, 2, 5, 10, 20"),
        ("phefl", (3000, 10), {}, "use more data or fewer devices"),
        ("sized", (30, 5), {}, "need 6000 samples"),
        ("sized", (30, 5), {"classes": 11, "min_samples": 1}, "classes=11 cells"),
        ("sized", (30, 5), {"sigma": 400, "min_samples": 10}, "cannot have a standard deviation of 400"),
        ("sized", (30, 5), {"sigma": 30, "min_samples": 5, "classes": 1}, "In 400 draws"),
    ],
)
def test_the_impossible_is_refused_with_a_reason(
    kind: str, fleet: tuple[int, int], options: dict[str, object], said: str
) -> None:
    with pytest.raises(PartitionError, match=said):
        split(kind, *fleet, **options)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("two_levels", {}, "Did you mean 'two_level'"),
        ("two_level", {"edge_fractoin": 0.5}, "Did you mean 'edge_fraction'"),
        ("iid", {"fraction": 0}, "partition.fraction = 0.0: must be in"),
        ("iid", {"fraction": "half"}, "must be a number"),
        ("iid", {"samples_per_device": [30, 20]}, "1 ≤ low ≤ high"),
        ("iid", {"samples_per_device": 0}, "1 ≤ low ≤ high"),
        ("iid", {"imbalance": -1}, "between 0 and 10"),
        ("iid", {"concepts": 0}, "between 1 and 10,000"),
        ("iid", {"val_fraction": 1.0}, "between 0 and 0.9"),
        ("dirichlet", {"alpha": 0}, "more than 0"),
        ("dirichlet", {"min_samples": 0}, "at least 1"),
        ("classes", {"k": 0}, "at least 1"),
        ("classes", {"overlap": True}, "samples_per_device says how many"),
        ("two_level", {"device_fraction": 1.1}, r"in \(0, 1\]"),
        ("phefl", {"layout": "D5"}, "must be one of 'D1'"),
        ("phefl", {"imbalance": 0.5}, "fixes the amounts itself"),
        ("phefl", {"personal": 1.0}, "between 0 and 0.9"),
        ("sized", {"sigma": -1}, "between 0 and 1e9"),
        ("owner", {"owners_per_device": 0}, "at least 1"),
        ("owner", {"level": "cloud"}, "must be one of"),
        ("pool", {"samples": 0}, "at least 1"),
        ("pool", {"edge_cells": 0}, "at least 1"),
        ("explicit", {}, "given, or else file"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(kind: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        partition_spec(kind, options)


def test_a_description_survives_a_file() -> None:
    spec = partition_spec("two_level", {"edge_fraction": 0.3, "samples_per_device": [5, 9], "concepts": 2})
    assert spec == TwoLevel(edge_fraction=0.3, samples_per_device=(5, 9), concepts=2)
    assert PartitionSpec.build(spec.to_plain()) == spec


def test_the_report_says_what_was_made() -> None:
    p = split("two_level", 20, 4, edge_fraction=0.5)
    d = p.describe()
    assert (d["devices"], d["edges"], d["samples"], d["distinct_samples"]) == (20, 4, 1176, 1176)
    assert d["left_out_samples"] == 1438 - 1176
    assert d["cells_per_device"] == {"min": 2, "median": 2.0, "max": 2}
    assert d["cells_per_edge"]["max"] == 5
    assert np.array(d["edge_histogram"]).sum() == 1176
    text = str(p)
    assert "20 devices at 4 edges, 1176 samples (1176 distinct, 262 left out)" in text and "edge 3: " in text


def test_skew_by_hand() -> None:
    # Two devices with one class each of two even classes: each mix is (1, 0) or (0, 1), the whole (½, ½): the
    # total variation is ½·(½ + ½) = ½.
    data = Dataset.from_arrays(np.zeros((4, 1)), [0, 0, 1, 1], np.zeros((2, 1)), [0, 1])
    p = partition(data, partition_spec("classes", {"k": 1}), n_devices=2, n_edges=1, seed=0)
    assert p.describe()["skew_device"] == 0.5 and p.describe()["skew_edge"] == 0.0


def test_many_edges_are_shortened_in_the_report() -> None:
    assert "… and 10 more edges" in str(split("iid", 60, 30))


def test_a_million_devices_are_two_arrays() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    p = partition(DIGITS, SharedPool(samples=10, edge_cells=4), n_devices=1_000_000, n_edges=1000, seed=0)
    assert time.process_time() - start < 20
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 1200
    assert p.sizes.min() == p.sizes.max() == 10 and len(p.indices) == 10_000_000
    assert set((p.edge_histogram > 0).sum(1)) == {4}
    # Ten different rows each: no device drew one twice.
    assert (np.diff(np.sort(p.indices.reshape(-1, 10)[::97], axis=1), axis=1) > 0).all()


def test_a_hundred_thousand_devices_of_disjoint_rows() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 400_000)
    data = Dataset.from_arrays(np.zeros((400_000, 1), np.float32), y, np.zeros((10, 1)), np.arange(10))
    start = time.process_time()
    p = partition(data, Dirichlet(alpha=0.3, min_samples=2), n_devices=100_000, n_edges=100, seed=0)
    assert p.sizes.min() == 2 and len(np.unique(p.indices)) == 400_000
    p = partition(data, TwoLevel(edge_fraction=0.5, device_fraction=0.2), n_devices=100_000, n_edges=100, seed=0)
    assert set((p.histogram > 0).sum(1)) == {2}
    assert time.process_time() - start < 30

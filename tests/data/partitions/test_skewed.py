"""Label skew: Dirichlet, k classes, two levels, the shared pool."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import PartitionError
from espalier.core.seeds import stream
from espalier.data.dataset import Dataset
from espalier.data.partition import partition
from espalier.data.partitions import Classes, Dirichlet, PartitionSpec, SharedPool, TwoLevel
from espalier.data.partitions.by_label import fill_up, take_turns
from espalier.data.partitions.fill import deal_evenly
from espalier.data.partitions.pool import draw
from espalier.data.registry import load
from espalier.data.rows import Rows

DIGITS = load("digits")


def even(per_class: int, classes: int = 10) -> Dataset:
    """Data with the same number of rows of each class."""
    y = np.repeat(np.arange(classes), per_class)
    return Dataset.from_arrays(np.zeros((len(y), 1), np.float32), y, np.zeros((classes, 1)), np.arange(classes))


def skew(spec: PartitionSpec) -> float:
    p = partition(DIGITS, spec, n_devices=20, n_edges=4, seed=0)
    return float(p.describe()["skew_device"])


# -- Dirichlet --------------------------------------------------------------------------------------------


def test_skew_falls_with_alpha() -> None:
    values = [skew(Dirichlet(alpha=a)) for a in (0.05, 0.3, 2.0, 100.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.6 and values[-1] < 0.1


def test_each_classs_proportions_follow_the_dirichlet_law() -> None:
    # Of a Dirichlet(α, …, α) over n devices, a share has mean 1/n and variance (n−1)/(n²(nα+1)): for α = 0.5 and
    # n = 10 it is 9/(100·6) = 0.015. 300 classes of 1,000 rows give 3,000 shares.
    p = partition(even(1000, 300), Dirichlet(alpha=0.5), n_devices=10, n_edges=1, seed=0)
    shares = p.histogram / 1000
    assert float(shares.mean()) == pytest.approx(0.1) and float(shares.var()) == pytest.approx(0.015, rel=0.07)


def test_small_devices_are_filled_up_from_the_largest() -> None:
    # Device 2 has 1 of at least 4 rows: 3 come from the largest device's largest cell.
    counts = np.array([[9, 2], [3, 3], [0, 1]])
    fill_up(counts, 4)
    assert counts.tolist() == [[6, 2], [3, 3], [3, 1]]
    # Device 0 can give only down to 4, and device 1 is the next largest.
    counts = np.array([[5, 0], [0, 5], [1, 0]])
    fill_up(counts, 3)
    assert counts.sum(1).tolist() == [3, 5, 3]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(0, 8), st.integers(0, 300))
def test_filling_up_always_ends_and_loses_nothing(n: int, least: int, seed: int) -> None:
    rng = stream(seed, "x")
    counts = rng.multinomial(n * least + int(rng.integers(0, 30)), rng.dirichlet(np.full(3 * n, 0.05))).reshape(n, 3)
    counts = counts.astype(np.int64)
    columns = counts.sum(0)
    fill_up(counts, least)
    assert (counts.sum(0) == columns).all() and counts.min() >= 0
    assert counts.sum(1).min() >= least


def test_an_extreme_alpha_does_not_loop() -> None:
    p = partition(DIGITS, Dirichlet(alpha=1e-6, min_samples=10), n_devices=100, n_edges=5, seed=0)
    assert p.sizes.min() >= 10 and p.sizes.sum() == 1438


def test_a_mix_per_device_gives_equal_sizes() -> None:
    # A share of a Dirichlet(α, …, α) over 10 classes has variance 9/(100·(10α + 1)): for α = 0.5 it is 0.015. A draw by
    # class leaves sizes that vary by about a half (their coefficient of variation).
    p = partition(even(4000), Dirichlet(alpha=0.5, per="device"), n_devices=200, n_edges=1, seed=0)
    assert set(p.sizes.tolist()) == {200} and (p.histogram.sum(0) == 4000).all()
    shares = p.histogram / 200
    assert float(shares.var()) == pytest.approx(0.015, rel=0.15)
    uneven = partition(even(4000), Dirichlet(alpha=0.5), n_devices=200, n_edges=1, seed=0).sizes
    assert 0.35 < uneven.std() / uneven.mean() < 0.55


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 300))
def test_turns_end_with_every_device_full_and_nothing_taken_twice(n: int, n_cells: int, seed: int) -> None:
    rng = stream(seed, "x")
    totals = rng.integers(1, 30, n_cells)
    sizes = rng.multinomial(int(rng.integers(0, totals.sum() + 1)), np.full(n, 1 / n))
    counts = take_turns(rng, rng.standard_gamma(0.1, (n, n_cells)), sizes, totals)
    assert counts.sum(1).tolist() == sizes.tolist() and (counts.sum(0) <= totals).all() and counts.min() >= 0


# -- k classes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_every_device_has_exactly_k_classes_and_near_equal_amounts(k: int) -> None:
    p = partition(even(200), Classes(k=k), n_devices=40, n_edges=4, seed=1)
    assert set((p.histogram > 0).sum(1)) == {k}
    assert (p.histogram.sum(0) == 200).all()
    if k > 1:
        assert p.sizes.std() < 0.15 * p.sizes.mean()


def test_overlapping_draws_give_easf_its_amounts() -> None:
    # 10 classes of 60 rows cannot give 50 devices 40 to 60 rows each without sharing.
    spec = Classes(k=2, overlap=True, samples_per_device=(40, 60))
    p = partition(even(60), spec, n_devices=50, n_edges=5, seed=0)
    assert 40 <= p.sizes.min() < 43 and 57 < p.sizes.max() <= 60
    assert set((p.histogram > 0).sum(1)) == {2}
    assert all(len(np.unique(p.rows(i))) == p.sizes[i] for i in range(50))
    # Evenly over a device's classes.
    held = np.sort(p.histogram, 1)[:, -2:]
    assert (held[:, 1] - held[:, 0] <= 1).all()


def test_a_class_with_too_few_rows_for_a_draw_is_named() -> None:
    with pytest.raises(PartitionError, match="different samples of cell"):
        partition(even(10), Classes(k=2, overlap=True, samples_per_device=40), n_devices=20, n_edges=2, seed=0)


# -- two levels -------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1.0, 0.5, 0.3]), st.integers(0, 10_000))
def test_csahfl_settings_cover_every_class_at_both_levels(fraction: float, seed: int) -> None:
    # The paper's fleet: 200 devices, 5 edges, two of ten classes per device.
    p = partition(even(600), TwoLevel(edge_fraction=fraction, device_fraction=0.2), n_devices=200, n_edges=5, seed=seed)
    assert set((p.histogram > 0).sum(1)) == {2}
    assert set((p.edge_histogram > 0).sum(1)) == {round(10 * fraction)}
    # Rows of a class that few devices hold are left out beyond an equal part: at most a quarter of all.
    assert (p.histogram.sum(0) <= 600).all() and p.histogram.sum() >= 0.75 * 6000


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1.0, 0.5, 0.3]), st.sampled_from([25, 100, 200]), st.sampled_from([None, 20]),
    st.integers(0, 10_000),
)  # fmt: skip
def test_a_devices_second_label_is_a_real_one(fraction: float, devices: int, cap: int | None, seed: int) -> None:
    spec = TwoLevel(edge_fraction=fraction, device_fraction=0.2, samples_per_device=cap)
    p = partition(even(600), spec, n_devices=devices, n_edges=5, seed=seed)
    second = np.sort(p.histogram, 1)[:, -2] / p.sizes
    # at least a tenth (less what rounding takes), a quarter on average
    assert (second >= 0.1 - 1 / p.sizes).all()
    assert second.mean() >= 0.25


def test_a_cap_is_met_by_equal_parts_of_the_two_labels() -> None:
    # 7,500 of 60,000 rows as 150 + 150 each: no class is short of rows.
    spec = TwoLevel(edge_fraction=0.3, device_fraction=0.2, samples_per_device=300)
    p = partition(even(6000), spec, n_devices=25, n_edges=5, seed=0)
    assert set(p.histogram[p.histogram > 0]) == {150}


def test_dealing_evenly_by_hand() -> None:
    # Cell 0 has 12 rows for devices 0, 1 and 2: 4 each. Cell 1 has 30 for 1 and 2: 15 each. Cell 2 has 5 for 0.
    held = np.array([[1, 0, 1], [1, 1, 0], [1, 1, 0]], dtype=bool)
    totals = np.array([12, 30, 5])
    free = deal_evenly(held, np.ones(3), totals, np.full(3, 1000), 0.2)
    assert free.tolist() == [[4, 0, 5], [4, 15, 0], [4, 15, 0]]
    # At most 10 rows each: device 1 keeps its 4 and gets 6 of cell 1.
    assert deal_evenly(held, np.ones(3), totals, np.full(3, 10), 0.2).tolist() == [[4, 0, 5], [4, 6, 0], [4, 6, 0]]
    # At most 7: an equal level is 3, and the one left over goes to the first.
    assert deal_evenly(held, np.ones(3), totals, np.full(3, 7), 0.2).tolist() == [[4, 0, 3], [4, 3, 0], [4, 3, 0]]
    # The rarest of two has half of an equal part, a quarter of all: 4 of cell 0 allow 12 of cell 1.
    assert deal_evenly(held, np.ones(3), totals, np.full(3, 1000), 0.5).tolist()[1] == [4, 12, 0]
    with pytest.raises(PartitionError, match="holds 2 cells but gets at most 1"):
        deal_evenly(held, np.ones(3), totals, np.full(3, 1), 0.2)


@pytest.mark.parametrize(("fraction", "spread"), [(1.0, 0.08), (0.5, 0.25), (0.3, 0.25)])
def test_devices_have_approximately_equal_amounts(fraction: float, spread: float) -> None:
    # Nobody has more than an equal part; devices whose classes many others hold have less.
    spec = TwoLevel(edge_fraction=fraction, device_fraction=0.2)
    for seed in range(5):
        p = partition(even(600), spec, n_devices=200, n_edges=5, seed=seed)
        assert p.sizes.std() < spread * p.sizes.mean() and p.sizes.max() <= 30


def test_without_coverage_the_draws_are_the_papers_plain_ones() -> None:
    data = even(100)
    spec = TwoLevel(edge_fraction=0.3, device_fraction=0.2, coverage=False)
    parts = [partition(data, spec, n_devices=20, n_edges=2, seed=s) for s in range(5)]
    # Two edges of three classes cannot cover ten; rows of classes that nobody holds stay out.
    assert all((p.histogram.sum(0) == 0).sum() >= 4 for p in parts)


def test_skew_of_edges_grows_from_eiid_to_eniid30() -> None:
    specs = [TwoLevel(edge_fraction=f, device_fraction=0.2) for f in (1.0, 0.5, 0.3)]
    parts = [partition(even(300), spec, n_devices=100, n_edges=5, seed=0) for spec in specs]
    values = [p.describe()["skew_edge"] for p in parts]
    assert values == sorted(values) and values[0] < 0.15 and values[2] > 0.6


# -- the shared pool --------------------------------------------------------------------------------------


def test_devices_share_rows_but_hold_none_twice() -> None:
    p = partition(DIGITS, SharedPool(samples=50), n_devices=200, n_edges=4, seed=0)
    assert set(p.sizes) == {50} and len(np.unique(p.indices)) < len(p.indices)
    assert all(len(np.unique(p.rows(i))) == 50 for i in range(200))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(0, 100))
def test_draws_are_different_rows_of_the_right_pool(width: int, wanted: list[int], seed: int) -> None:
    pools = Rows.of([np.arange(width) * 2, np.arange(width) * 2 + 1])
    sizes = np.minimum(np.array(wanted), width)
    which = (np.arange(len(sizes)) % 2).astype(np.int32)
    rows = draw(stream(seed, "x"), pools, which, sizes)
    assert (rows.sizes == sizes).all()
    for i in range(len(sizes)):
        assert len(np.unique(rows[i])) == sizes[i] and (rows[i] % 2 == which[i]).all()


def test_imbalance_changes_the_amounts_of_the_pool() -> None:
    p = partition(DIGITS, SharedPool(samples=20, imbalance=0.5), n_devices=300, n_edges=3, seed=0)
    assert p.sizes.min() < 10 and p.sizes.max() > 40 and p.sizes.mean() == pytest.approx(20, rel=0.03)

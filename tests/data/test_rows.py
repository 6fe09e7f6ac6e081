"""Rows of many owners in two arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.seeds import stream
from espalier.data.rows import Rows, apportion, by_cell, deal, offsets_of, stratified_mask


def test_apportion_by_hand() -> None:
    # 10 in proportion 1:1:1 is 3.33 each; the one left over goes to the first.
    assert apportion(10, np.ones(3)).tolist() == [4, 3, 3]
    # 7 in proportion 5:3:2 is 3.5, 2.1, 1.4: floors 3, 2, 1, one left, the largest remainder is .5.
    assert apportion(7, np.array([5.0, 3.0, 2.0])).tolist() == [4, 2, 1]
    assert apportion(0, np.ones(2)).tolist() == [0, 0]


@given(st.integers(0, 10_000), st.lists(st.floats(0.001, 1000), min_size=1, max_size=40))
def test_apportion_sums_and_is_near_the_exact_shares(total: int, weights: list[float]) -> None:
    w = np.array(weights)
    parts = apportion(total, w)
    assert parts.sum() == total
    assert (np.abs(parts - total * w / w.sum()) < 1 + 1e-6).all()


def test_deal_hands_out_disjoint_rows() -> None:
    pools = [np.array([10, 11, 12]), np.array([20, 21])]
    rows = deal(np.array([[1, 0], [2, 2]]), pools)
    assert rows[0].tolist() == [10]
    assert rows[1].tolist() == [11, 12, 20, 21]
    assert rows.sizes.tolist() == [1, 4]


def test_histogram_counts_cells() -> None:
    rows = Rows.of([np.array([0, 1]), np.array([], np.int64), np.array([2, 2, 3])])
    assert rows.histogram(np.array([0, 1, 1, 2]), 3).tolist() == [[1, 1, 0], [0, 0, 0], [0, 2, 1]]


def test_keep_drops_entries_of_their_owner() -> None:
    rows = Rows.of([np.array([5, 6]), np.array([7, 8, 9])])
    kept = rows.keep(np.array([False, True, True, False, True]))
    assert kept.offsets.tolist() == [0, 1, 3]
    assert kept.indices.tolist() == [6, 7, 9]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(0, 100))
def test_ranks_are_an_order_inside_each_owner(sizes: list[int], seed: int) -> None:
    rows = Rows(offsets_of(np.array(sizes)), np.arange(sum(sizes)))
    ranks = rows.ranks(stream(seed, "ranks"))
    for i, size in enumerate(sizes):
        assert sorted(ranks[rows.offsets[i] : rows.offsets[i + 1]]) == list(range(size))


def test_by_cell_sorts_every_row() -> None:
    cells = np.array([2, 0, 2, 1, 0])
    pools = by_cell(np.array([0, 2, 3, 4]), cells, 4, stream(0, "x"))
    assert [sorted(p.tolist()) for p in pools] == [[4], [3], [0, 2], []]


def test_stratified_mask_takes_the_same_share_of_every_cell() -> None:
    cells = np.repeat([0, 1, 2], [50, 30, 20])
    mask = stratified_mask(cells, 0.2, stream(0, "x"))
    assert np.bincount(cells[mask]).tolist() == [10, 6, 4]

"""Who holds which cells, and how rows are shared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import PartitionError
from espalier.core.seeds import stream
from espalier.data.partitions.fill import draw_cells, rake, share


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_drawn_cells_are_k_allowed_ones_and_cover(data: st.DataObject) -> None:
    n_cells = data.draw(st.integers(1, 20))
    allowed = np.array(sorted(data.draw(st.sets(st.integers(0, n_cells - 1), min_size=1))))
    k = data.draw(st.integers(1, len(allowed)))
    n_sets = data.draw(st.integers(-(-len(allowed) // k), 30))
    held = draw_cells(stream(data.draw(st.integers(0, 99)), "x"), n_sets, k, allowed, n_cells, cover=True)
    assert held.shape == (n_sets, n_cells) and (held.sum(1) == k).all()
    assert np.flatnonzero(held.any(0)).tolist() == allowed.tolist()


def test_drawn_cells_are_all_equally_likely() -> None:
    held = draw_cells(stream(0, "x"), 20_000, 3, np.arange(10), 10, cover=True)
    # 20,000 sets of 3 in 10: 6,000 expected for each cell, standard deviation √(20000·.3·.7) = 65.
    assert np.abs(held.sum(0) - 6000).max() < 5 * 65


def test_too_few_sets_or_cells_are_refused() -> None:
    with pytest.raises(PartitionError, match="cannot cover 10 cells"):
        draw_cells(stream(0, "x"), 3, 3, np.arange(10), 10, cover=True)
    with pytest.raises(PartitionError, match="4 of 3 cells"):
        draw_cells(stream(0, "x"), 9, 4, np.arange(3), 10, cover=False)


def test_rake_by_hand() -> None:
    # Device 0 holds cell 0, device 1 both, device 2 cell 1; cells have 6 rows each; 4 rows each are wanted.
    # Device 0 can only take 4 of cell 0, so device 1 gets the other 2, and likewise from cell 1.
    held = np.array([[1, 0], [1, 1], [0, 1]], bool)
    assert rake(held, np.ones(3), np.array([6, 6])) == pytest.approx(np.array([[4, 0], [2, 2], [0, 4]]), abs=0.02)


def test_rake_uses_every_row_even_where_equal_sizes_cannot_be() -> None:
    # Cell 0 has ten rows and one holder, who therefore has ten, whatever was wanted.
    held = np.array([[1, 0], [0, 1], [0, 1]], bool)
    table = rake(held, np.ones(3), np.array([10, 4]))
    assert table == pytest.approx(np.array([[10, 0], [0, 2], [0, 2]]))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.integers(1, 5), st.integers(0, 500))
def test_shares_use_up_every_held_cell_and_leave_no_holder_out(n: int, k: int, seed: int) -> None:
    rng = stream(seed, "x")
    held = draw_cells(rng, n, k, np.arange(5), 5, cover=False)
    totals = held.sum(0) + rng.integers(0, 50, 5)
    counts = share(held, np.ones(n), totals)
    assert (counts.sum(0) == np.where(held.any(0), totals, 0)).all()
    assert ((counts > 0) == held).all()


def test_more_holders_than_rows_are_refused() -> None:
    with pytest.raises(PartitionError, match="Cell 1 has 2 samples for 3 devices"):
        share(np.ones((3, 2), bool), np.ones(3), np.array([5, 2]))

"""By natural owner, and as the user says."""

from pathlib import Path

import numpy as np
import pytest

from espalier.core.errors import PartitionError
from espalier.data.dataset import Dataset
from espalier.data.partition import partition
from espalier.data.partitions import Explicit, Owner
from espalier.data.registry import load


def owned(sizes: list[int], *, tested: bool = True) -> Dataset:
    """Owners with these numbers of training rows; three test rows of each."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    test = np.repeat(np.arange(len(sizes)), 3)
    return Dataset.from_arrays(
        np.zeros((len(owner), 1)),
        np.arange(len(owner)) % 2,
        np.zeros((len(test), 1)),
        np.arange(len(test)) % 2,
        owner_train=owner,
        owner_test=test if tested else None,
    )


def owners_of(data: Dataset, rows: np.ndarray) -> set[int]:
    assert data.owner_train is not None
    return set(data.owner_train[rows].tolist())


def test_a_device_is_an_owner() -> None:
    data = owned([4, 6, 5, 7])
    p = partition(data, Owner(), n_devices=4, n_edges=2, seed=0)
    assert sorted(p.sizes) == [4, 5, 6, 7]
    assert all(len(owners_of(data, p.rows(i))) == 1 for i in range(4))


def test_several_owners_make_a_device_and_small_ones_stay_out() -> None:
    data = owned([2, 6, 5, 7, 1, 9])
    p = partition(data, Owner(owners_per_device=2, min_samples=3), n_devices=2, n_edges=1, seed=0)
    used = [owners_of(data, p.rows(i)) for i in range(2)]
    assert all(len(u) == 2 for u in used) and not used[0] & used[1]
    assert used[0] | used[1] == {1, 2, 3, 5}
    with pytest.raises(
        PartitionError, match=r"3 of 2 owners, but the data have 4 owners with at least 3 .* at most 2, or lower"
    ):
        partition(data, Owner(owners_per_device=2, min_samples=3), n_devices=3, n_edges=1, seed=0)


def test_fewer_devices_than_owners_draw_some_by_the_seed() -> None:
    data = owned([5] * 30)
    first, second = (
        {frozenset(owners_of(data, p.rows(i))) for i in range(10)}
        for p in (partition(data, Owner(), n_devices=10, n_edges=2, seed=s) for s in (0, 1))
    )
    assert len(first) == 10 and first != second


def test_an_edge_is_a_clinic_tested_on_its_own_rows() -> None:
    data = owned([40, 30, 20])
    p = partition(data, Owner(level="edge", personal=0.4), n_devices=6, n_edges=3, seed=0)
    # The largest owner goes to the first edge; its two devices share its 40 rows.
    assert p.sizes.tolist() == [20, 20, 15, 15, 10, 10]
    assert [owners_of(data, p.rows(i)) for i in range(6)] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert p.edge_tests is not None and p.edge_tests.primary == "own"
    # Three test rows each, 40 % of them rounded down: one personal row, two to evaluate.
    assert p.edge_tests.personal.sizes.tolist() == [1, 1, 1]
    assert sorted(np.concatenate([p.edge_tests.personal[1], p.edge_tests.evaluation[1]])) == [3, 4, 5]


def test_more_owners_than_edges_are_grouped_evenly() -> None:
    data = owned([40, 30, 20, 10], tested=False)
    p = partition(data, Owner(level="edge"), n_devices=4, n_edges=2, seed=0)
    # 40 to edge 0, 30 to edge 1, 20 to edge 1 (30 < 40), 10 to edge 0 (40 < 50): 50 and 50.
    assert p.edge_histogram.sum(1).tolist() == [50, 50]
    assert p.edge_tests is None
    with pytest.raises(PartitionError, match="Use at most 4 edges"):
        partition(data, Owner(level="edge"), n_devices=10, n_edges=5, seed=0)
    with pytest.raises(PartitionError, match="Edge 2 has 25 devices and 20 samples"):
        partition(data, Owner(level="edge"), n_devices=100, n_edges=4, seed=0)


def test_test_owners_that_no_edge_has_give_no_edge_tests() -> None:
    data = Dataset.from_arrays(
        np.zeros((4, 1)), [0, 1, 0, 1], np.zeros((2, 1)), [0, 1], owner_train=[0, 0, 1, 1], owner_test=[2, 3]
    )
    p = partition(data, Owner(level="edge"), n_devices=2, n_edges=2, seed=0)
    assert p.edge_tests is None


def test_rows_as_given() -> None:
    data = load("digits")
    p = partition(data, Explicit.of([[0, 5], [7], [5, 9, 11]], edge=[1, 0, 1]), n_devices=3, n_edges=2, seed=0)
    assert [p.rows(i).tolist() for i in range(3)] == [[0, 5], [7], [5, 9, 11]]
    assert p.edge.tolist() == [1, 0, 1]
    half = partition(data, Explicit.of([range(100), range(100)], None), n_devices=2, n_edges=1, seed=0)
    assert half.edge.tolist() == [0, 0]


def test_rows_from_a_file(tmp_path: Path) -> None:
    data = load("digits")
    path = tmp_path / "split.npz"
    np.savez(path, offsets=[0, 2, 3], indices=[4, 8, 1], edge=[0, 0])
    p = partition(data, Explicit(file=path), n_devices=2, n_edges=1, seed=0)
    assert p.rows(0).tolist() == [4, 8] and p.rows(1).tolist() == [1]
    np.savez(path, offsets=[0, 5, 3], indices=[4, 8, 1])
    with pytest.raises(PartitionError, match="must rise from 0"):
        partition(data, Explicit(file=path), n_devices=2, n_edges=1, seed=0)
    path.write_bytes(b"PK oops")
    with pytest.raises(PartitionError, match="Cannot read the partition"):
        partition(data, Explicit(file=path), n_devices=2, n_edges=1, seed=0)
    with pytest.raises(PartitionError, match="Cannot read the partition"):
        partition(data, Explicit(file=tmp_path / "none.npz"), n_devices=2, n_edges=1, seed=0)


@pytest.mark.parametrize(
    ("rows", "edge", "fleet", "said"),
    [
        ([[0], [1]], None, (3, 1), "has 2 devices, the run 3"),
        ([[0], [1438]], None, (2, 1), r"accepted are 0…1437"),
        ([[0], [-1]], None, (2, 1), "reach from -1"),
        ([[0], [1]], [0, 2], (2, 2), "values 0…2"),
        ([[0], [1]], [0], (2, 1), r"shape \(1,\)"),
        ([[0], []], None, (2, 1), "1 of 2 devices got no sample"),
    ],
)
def test_what_does_not_fit_the_fleet_is_refused(
    rows: list[list[int]], edge: list[int] | None, fleet: tuple[int, int], said: str
) -> None:
    with pytest.raises(PartitionError, match=said):
        partition(load("digits"), Explicit.of(rows, edge), n_devices=fleet[0], n_edges=fleet[1], seed=0)

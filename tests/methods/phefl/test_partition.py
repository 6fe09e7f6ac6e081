"""PHE-FL's layouts exactly as tabulated."""

import numpy as np
import pytest

from espalier.core.errors import PartitionError
from espalier.data.dataset import Dataset
from espalier.data.partition import Partition, partition
from espalier.data.registry import load
from espalier.methods.phefl.partition import PheFlLayouts

# Table III of the paper: training set and imbalanced test set of D3, in percent of a label.
TABLE_III = """
30 10 10 10 10 10 10 10 0 0
0 30 10 10 10 10 10 10 10 0
0 0 30 10 10 10 10 10 10 10
10 0 0 30 10 10 10 10 10 10
10 10 0 0 30 10 10 10 10 10
10 10 10 0 0 30 10 10 10 10
10 10 10 10 0 0 30 10 10 10
10 10 10 10 10 0 0 30 10 10
10 10 10 10 10 10 0 0 30 10
10 10 10 10 10 10 10 0 0 30
"""
D3 = np.array([[int(n) for n in line.split()] for line in TABLE_III.split("\n") if line])


def paper(per_label: int = 600) -> Dataset:
    """MNIST's proportions: ten labels, 1,000 test rows of each."""
    y, test = np.repeat(np.arange(10), per_label), np.repeat(np.arange(10), 1000)
    return Dataset.from_arrays(np.zeros((len(y), 1), np.float32), y, np.zeros((len(test), 1), np.float32), test)


def split(layout: str, n_devices: int = 100, **options: object) -> Partition:
    spec = PheFlLayouts(layout=layout, **options)  # type: ignore[arg-type]
    return partition(paper(), spec, n_devices=n_devices, n_edges=10, seed=0)


def test_d3_is_table_three() -> None:
    p = split("D3")
    assert (p.edge_histogram == D3 * 6).all()
    assert (p.histogram.sum(0) == 600).all()


@pytest.mark.parametrize(("layout", "labels", "most"), [("D1", 1, 100), ("D2", 5, 20), ("D3", 8, 30), ("D4", 10, 10)])
def test_labels_and_predominance_are_table_two(layout: str, labels: int, most: int) -> None:
    p = split(layout)
    assert set((p.edge_histogram > 0).sum(1)) == {labels}
    assert (100 * p.edge_histogram.max(1) / p.edge_histogram.sum(1)).tolist() == [most] * 10
    # Every device has one label and a tenth of its rows; ten devices hold each label.
    assert set(p.sizes) == {60} and set((p.histogram > 0).sum(1)) == {1}
    assert ((p.histogram > 0).sum(0) == 10).all()


def test_d2_is_cyclic() -> None:
    held = [np.flatnonzero(row).tolist() for row in split("D2").edge_histogram]
    assert held[0] == [0, 1, 2, 3, 4] and held[7] == [0, 1, 7, 8, 9]


@pytest.mark.parametrize("layout", ["D1", "D2", "D3", "D4"])
@pytest.mark.parametrize("per_edge", [1, 2, 5, 20])
def test_other_fleets_keep_the_edges_distribution(layout: str, per_edge: int) -> None:
    p = split(layout, 10 * per_edge)
    assert (p.edge_histogram == split(layout).edge_histogram).all()
    assert set(p.sizes) == {600 // per_edge}


def test_test_sets_have_the_papers_sizes() -> None:
    for layout, size in (("D1", 1000), ("D2", 5000), ("D4", 10_000)):
        tests = split(layout).edge_tests
        assert tests is not None
        whole = tests.personal.sizes + tests.evaluation.sizes
        assert set(whole) == {size} and set(tests.personal.sizes) == {int(0.15 * size)}
        assert tests.sets["balanced"] is tests.sets["imbalanced"]
    tests = split("D3").edge_tests
    assert tests is not None and tests.primary == "imbalanced"
    assert set(tests.personal.sizes) == {150} and set(tests.evaluation.sizes) == {850}
    balanced = split("D3", test="balanced").edge_tests
    assert balanced is not None
    assert set(balanced.personal.sizes) == {1200} and set(balanced.evaluation.sizes) == {6800}


def test_d3_imbalanced_test_sets_are_disjoint_and_proportional() -> None:
    tests = split("D3").edge_tests
    assert tests is not None
    everything = np.concatenate([tests.personal.indices, tests.evaluation.indices])
    assert sorted(everything) == list(range(10_000))
    labels = paper().cell_test
    for edge in range(10):
        mine = np.concatenate([tests.personal[edge], tests.evaluation[edge]])
        assert np.bincount(labels[mine], minlength=10).tolist() == (10 * D3[edge]).tolist()


def test_personal_rows_are_drawn_once_per_seed_and_never_evaluated() -> None:
    data = paper()
    one, two = (partition(data, PheFlLayouts(), n_devices=100, n_edges=10, seed=s).edge_tests for s in (0, 0))
    other = partition(data, PheFlLayouts(), n_devices=100, n_edges=10, seed=1).edge_tests
    assert one is not None and two is not None and other is not None
    assert np.array_equal(one.personal.indices, two.personal.indices)
    assert not np.array_equal(one.personal.indices, other.personal.indices)
    for edge in range(10):
        assert not set(one.personal[edge]) & set(one.evaluation[edge])


def test_real_digits_fit_the_layouts() -> None:
    p = partition(load("digits"), PheFlLayouts(layout="D3"), n_devices=100, n_edges=10, seed=0)
    assert p.sizes.min() >= 13 and p.sizes.max() <= 15
    assert p.edge_tests is not None and p.edge_tests.personal.sizes.min() >= 4


def test_other_numbers_of_labels_are_refused() -> None:
    data = Dataset.from_arrays(np.zeros((50, 1)), np.arange(50) % 5, np.zeros((5, 1)), np.arange(5))
    with pytest.raises(PartitionError, match="5 labels at 10 edges"):
        partition(data, PheFlLayouts(), n_devices=10, n_edges=10, seed=0)

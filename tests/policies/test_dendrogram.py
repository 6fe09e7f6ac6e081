"""Cuts of dendrograms, and the matching of clusters with places."""

from __future__ import annotations

import numpy as np

from espalier.policies.dendrogram import cut_at, dendrogram_cut, match


def test_dendrogram_cuts() -> None:
    apart = np.abs(np.subtract.outer([0.0, 1.0, 10.0, 11.0], [0.0, 1.0, 10.0, 11.0]))
    assert dendrogram_cut(apart, 2) == [[0, 1], [2, 3]]
    assert dendrogram_cut(apart, 1) == [[0, 1, 2, 3]]
    assert dendrogram_cut(apart, 9) == [[0], [1], [2], [3]]
    # Ties do not merge more than asked for: all distances are 0 and still there are three clusters.
    assert len(dendrogram_cut(np.zeros((5, 5)), 3)) == 3


def test_cut_at_a_distance() -> None:
    # Two merges, at 1 and at 9.5 (the mean of 9 and 10).
    tree = np.array([[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 9.5, 3.0]])
    assert cut_at(tree, 3.0) == [[0, 1], [2]]
    assert cut_at(tree, np.inf) == [[0, 1, 2]]


def test_matching_moves_as_few_as_possible() -> None:
    current = {1: 100, 2: 100, 3: 101, 4: 101, 5: 101}
    found = match([[3, 4], [1, 2, 5]], current, [100, 101, 102])
    assert found == {3: 101, 4: 101, 1: 100, 2: 100, 5: 100}
    assert match([["a"]], {}, ["x"]) == {"a": "x"}  # type: ignore[list-item]

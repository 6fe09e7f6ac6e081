"""EASF's analysis beside practice: Eq. (15), and what a statistic tells of labels."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from espalier.methods.easf.study import balance_correlation, mean_discrepancy
from espalier.methods.easf.theory import discrepancy, label_correlation
from espalier.record.run import Run
from tests.methods.easf.dsf.fleet import graph, runner

#: two stars, hubs 0 and 4, that meet at 3 - 5
STARS = [(0, 1), (0, 2), (0, 3), (3, 5), (4, 5), (4, 6), (4, 7)]


def test_discrepancy_by_hand() -> None:
    # ‖(1,0) - (1,1)‖² = 1, ‖(3,1) - (1,1)‖² = 4, ‖(1,1) - (1,1)‖² = 0: Δ = 5/3.
    assert discrepancy(np.array([[1.0, 0.0], [3.0, 1.0], [1.0, 1.0]]), np.array([1.0, 1.0])) == pytest.approx(5 / 3)


def test_label_shares_tell_all_of_labels_and_noise_nothing() -> None:
    rng = np.random.default_rng(0)
    labels = np.eye(5)[rng.integers(0, 5, 60)]
    assert label_correlation(labels, labels, rng) == pytest.approx(1.0)
    assert abs(label_correlation(rng.random((60, 1)), labels, rng)) < 0.15
    # accuracies that are all alike: nothing can be told
    assert math.isnan(label_correlation(np.full((60, 1), 0.1), labels, rng))


def test_a_run_tells_both(tmp_path: Path) -> None:
    links = graph(tmp_path, *STARS)  # two clusters under a root
    partition = {"kind": "classes", "k": 2, "overlap": True, "samples_per_device": 30}
    for balance, least in (("labels", 0.99), ("answers", -1.0), ("accuracy", -1.0)):
        method = {"name": "easf", "theory": True, "balance": balance}
        done = runner(method, 8, links=links, partition=partition, stop={"rounds": 2})
        done.run()
        run = Run(connection=done.recorder.connection)
        correlation, delta = balance_correlation(run), mean_discrepancy(run)
        assert correlation is not None and least <= correlation <= 1
        assert delta is not None and delta > 0

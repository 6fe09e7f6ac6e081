from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.methods.d2d.dcliques import greedy_cliques
from espalier.methods.d2d.skew import Skew
from espalier.methods.d2d.start import random_start

from .digits import digits_fleet


def test_two_cliques_by_hand():
    # Labels A,A | B,B: skew 1 + 1 = 2, and any of the four swaps brings it to 0. Start from each way the
    # random cliques may fall: if they are already mixed there is nothing to do.
    skew = Skew.from_counts(np.array([[1, 0], [1, 0], [0, 1], [0, 1]]))
    seen = set()
    for seed in range(12):
        found = greedy_cliques(skew, 2, stream(seed, "cliques"), n_swap=1)
        seen.add(float(found.skews[0]))
        assert found.skews[-1] == 0.0
        assert all(skew.of(m) == 0.0 for m in found.clusters.members)
    assert seen == {0.0, 2.0}


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(2, 14), st.integers(1, 4)), elements=st.integers(0, 5)),
    st.integers(1, 5),
    st.integers(0, 10),
)
@settings(deadline=None)
def test_skew_never_rises_and_sizes_never_change(counts, u, seed):
    counts = counts + (counts.sum(axis=1, keepdims=True) == 0)
    u = min(u, len(counts))
    skew = Skew.from_counts(counts)
    found = greedy_cliques(skew, u, stream(seed, "cliques"), n_swap=12)
    assert (np.diff(found.skews) <= 0).all()
    start = random_start(len(counts), u, stream(seed, "cliques"))
    assert found.clusters.sizes.tolist() == start.sizes.tolist()
    assert found.clusters.n_devices == len(counts)
    assert found.skews[-1] == pytest.approx(sum(skew.of(m) for m in found.clusters.members))


def test_a_plateau_is_not_walked():
    # All histograms equal: no swap is strictly better, so the cliques stay as they were drawn.
    skew = Skew.from_counts(np.full((9, 3), 7))
    found = greedy_cliques(skew, 3, stream(4, "plateau"))
    assert found.clusters.labels.tolist() == random_start(9, 3, stream(4, "plateau")).labels.tolist()


def test_digits_cliques_hold_more_labels():
    fleet = digits_fleet()
    found = greedy_cliques(Skew.from_counts(fleet.counts), None, stream(0, "digits"))
    assert len(found.clusters) == 8
    assert found.skews[-1] < 0.7 * found.skews[0]


def test_negative_trials_are_refused():
    with pytest.raises(ConfigError, match="n_swap"):
        greedy_cliques(Skew.from_counts(np.ones((4, 2))), 2, stream(0, "x"), n_swap=-1)

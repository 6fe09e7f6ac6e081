from __future__ import annotations

import pytest

from espalier.core.errors import ConfigError
from espalier.methods.d2d.clustering import SwapSearch
from espalier.methods.d2d.clusters import Clusters, Sizes


def test_labels_and_members_say_the_same():
    clusters = Clusters.of([[4, 0], [3, 1, 2]])
    assert [m.tolist() for m in clusters.members] == [[0, 4], [1, 2, 3]]
    assert clusters.labels.tolist() == [0, 1, 1, 1, 0]
    assert clusters.sizes.tolist() == [2, 3]
    again = Clusters.from_labels(clusters.labels)
    assert [m.tolist() for m in again.members] == [[0, 4], [1, 2, 3]]


def test_labels_without_a_device_are_dropped():
    assert len(Clusters.from_labels([7, 2, 7])) == 2


@pytest.mark.parametrize("groups", [[[0, 1], [1, 2]], [[0], [2]], [[0, 1], []], [[-1, 0]]])
def test_a_lost_or_doubled_device_is_refused(groups):
    with pytest.raises(ConfigError):
        Clusters.of(groups)


def test_default_sizes():
    # D6: U = round(N/5), n_min = 2, n_max = 2⌈N/U⌉. N=20: 4, 2, 10. N=24: 5, 2, 2·⌈4.8⌉=10. N=30: 6, 2, 10.
    assert SwapSearch().sizes(20) == Sizes(4, 2, 10)
    assert SwapSearch().sizes(24) == Sizes(5, 2, 10)
    assert SwapSearch().sizes(30) == Sizes(6, 2, 10)
    assert SwapSearch().sizes(1) == Sizes(1, 1, 2)

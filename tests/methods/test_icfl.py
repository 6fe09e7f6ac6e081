"""ICFL: clusters that devices join, leave, merge and split."""

from __future__ import annotations

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.method import make
from espalier.testing import check
from tests.methods.planted import planted
from tests.methods.test_equivalences import final


def test_it_finds_planted_clusters_at_the_first_iteration_and_keeps_them() -> None:
    run = planted({"name": "icfl", "threshold": 0.35}, seed=1)
    frame = run.frame()
    assert frame["ari"].tolist()[:2] == [0.0, 0.0]
    assert (frame["ari"].iloc[2:] >= 0.9).all()
    assert frame["acc_device"].iloc[-1] > 0.85


def test_without_the_rest_rule_good_clusters_fall_apart() -> None:
    run = planted({"name": "icfl", "threshold": 0.35, "restless": 0.0}, seed=1)
    assert run.frame()["ari"].iloc[2] == 1.0
    assert run.frame()["ari"].iloc[-1] < 0.9


def test_everybody_together_is_fedavg_to_the_bit() -> None:
    assert torch.equal(final({"name": "icfl", "every": 1, "threshold": -1.0}), final("fedavg"))


def test_devices_not_seen_yet_are_taken_along() -> None:
    # With one device of each group per round most have no update at the first iterations; all have a group anyway.
    run = planted({"name": "icfl", "every": 1, "threshold": 0.35, "fraction": 0.1}, stop={"rounds": 8})
    groups = run.events("arranged")[-1]["clusters"]
    assert sorted(d for inside in groups.values() for d in inside) == list(range(16))


@pytest.mark.parametrize("name", ["resume", "join_and_leave", "fixed_point"])
def test_conformance_while_clustering(name: str) -> None:
    check({"name": "icfl", "every": 1}, name)


def test_it_says_that_it_is_a_reconstruction() -> None:
    assert "formulas are ours" in make("icfl").reconstruction
    for options in ({"every": 0}, {"threshold": 2.0}, {"margin": -1.0}, {"most": 0}, {"restless": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make("icfl", **options)

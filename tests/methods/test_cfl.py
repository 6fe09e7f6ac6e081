"""CFL: splits, and FedAvg without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.method import make
from espalier.testing import check
from tests.methods.planted import planted
from tests.methods.test_equivalences import final

EAGER: dict[str, Any] = {"name": "cfl", "every": 1, "after": 0, "relative": True, "eps1": 10.0, "threshold": 1.0}


def test_it_finds_planted_clusters_split_by_split() -> None:
    run = planted({"name": "cfl", "relative": True, "after": 0}, seed=0)
    frame = run.frame()
    # One cluster, then two, then the four that were planted.
    assert frame["groups"].tolist() == [1, 1, 2, 4, 4]
    assert frame["ari"].iloc[-1] == 1.0
    assert frame["acc_device"].iloc[-1] > 0.85
    assert [e["round"] for e in run.events("arranged")] == [10, 20]
    tests = run.events("split")
    assert {"mean", "greatest", "split", "devices"} <= set(tests[0])


def test_absolute_thresholds_do_the_same() -> None:
    run = planted({"name": "cfl", "after": 0, "eps1": 0.3, "eps2": 0.55}, seed=1, stop={"rounds": 41})
    assert run.frame()["ari"].iloc[-1] >= 0.9


def test_refused_splits_leave_fedavg_to_the_bit() -> None:
    # Every test allows a split, and none holds: no cosine is below -1.
    cfl = {"name": "cfl", "every": 1, "after": 0, "relative": True, "eps1": 10.0, "eps2": 0.0, "threshold": -1.0}
    assert torch.equal(final(cfl), final("fedavg"))
    assert torch.equal(final({**cfl, "weighted": False}), final({**cfl, "weighted": False, "every": 2}))


def test_no_split_in_the_first_rounds() -> None:
    run = planted({**EAGER, "after": 3}, stop={"rounds": 6}, evaluate={"every": 1})
    assert run.events("arranged")[0]["round"] == 4


@pytest.mark.parametrize("name", ["resume", "join_and_leave", "fixed_point"])
def test_conformance_while_splitting(name: str) -> None:
    check(EAGER, name)


def test_impossible_values_are_refused() -> None:
    for options in ({"every": 0}, {"threshold": 2.0}, {"eps1": 0.0}, {"fraction": 0.0}, {"after": -1}, {"eps2": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make("cfl", **options)

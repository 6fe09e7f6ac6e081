"""Async-HFL: its equations by hand, what it is without selection and association, and what edges tell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from espalier.core.environment import estimate
from espalier.core.memory import Memory
from espalier.core.messages import ALL, Report
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.async_hfl import (
    SKETCH_LENGTH,
    ByAge,
    associated,
    fitting,
    reported_sketches,
    scaled,
    sketched,
    utilities,
)
from tests.methods.test_ditto import run
from tests.methods.test_equivalences import final

RATE = {"compute": {"kind": "rate", "low": 1.0, "high": 8.0}}


def test_utilities() -> None:
    # Updates (1, 0), (2, 0), (0, 1); by samples (1, 1, 1) their mean is (1, 1/3), of length one (3, 1) / sqrt(10).
    # u_1 = u_2 = 3 / sqrt(10) - (1 + 0) / 2;  u_3 = 1 / sqrt(10) - 0.
    found = utilities(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), np.ones(3))
    assert found.tolist() == pytest.approx([3 / math.sqrt(10) - 0.5] * 2 + [1 / math.sqrt(10)])
    # With samples (0, 0, 1) the mean is the third alone.
    found = utilities(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), np.array([0.0, 0.0, 1.0]))
    assert found.tolist() == pytest.approx([-0.5, -0.5, 1.0])
    assert utilities(np.array([[3.0, 4.0]]), np.ones(1)).tolist() == pytest.approx([1.0])


def test_scaled() -> None:
    assert scaled(np.array([-1.0, 0.0, 3.0])).tolist() == [0.0, 0.25, 1.0]
    assert scaled(np.array([2.0, 2.0])).tolist() == [1.0, 1.0]


def test_fitting() -> None:
    # Gains per size 2, 3, 1: the second (2 of 4 left), not the first (3), then the third (1).
    assert fitting([6.0, 6.0, 1.0], [3.0, 2.0, 1.0], 4.0) == [1, 2]
    # By gain per size the first alone, worth 1; the second alone is worth 10.
    assert fitting([1.0, 10.0], [0.1, 4.0], 4.0) == [1]
    assert fitting([1.0, 2.0], [2.0, 3.0], 1.0) == []


def test_association_shares_useful_devices_and_bandwidth_out() -> None:
    gains, everywhere = np.array([1.0, 1.0, 0.0, 0.0]), np.ones((4, 2), dtype=np.bool_)
    found = associated(gains, np.full((4, 2), 0.5), everywhere, 1.0)
    # Best: one useful device each (the lesser sum is 1), two devices each (the greater load is 1).
    assert found is not None
    assert sorted(found[:2].tolist()) == [0, 1] and sorted(found[2:].tolist()) == [0, 1]
    bound = everywhere.copy()
    bound[:2, 1] = False  # the useful ones may be at the first edge only: the others' load is what is left to share
    found = associated(gains, np.full((4, 2), 0.5), bound, 1.0)
    assert found is not None and found.tolist() == [0, 0, 1, 1]


def test_an_edge_is_not_left_without_devices() -> None:
    # Both would do more harm than good anywhere; an empty edge would have 0, which is more.
    found = associated(np.array([-1.0, -1.0]), np.zeros((2, 2)), np.ones((2, 2), dtype=np.bool_), 0.0)
    assert found is not None and sorted(found.tolist()) == [0, 1]
    only = np.array([[True, True]])
    assert associated(np.array([1.0]), np.zeros((1, 2)), only, 0.0) is None


def test_inner_products_of_sketches() -> None:
    rng = np.random.default_rng(3)
    one, two = rng.normal(size=(2, 20_000))
    two += one  # their cosine is 1 / sqrt(2)
    a, b = sketched(one), sketched(two)
    assert a.shape == (SKETCH_LENGTH,)
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) == pytest.approx(1 / math.sqrt(2), abs=0.1)
    assert sketched(np.zeros(7)).tolist() == [0.0] * SKETCH_LENGTH


def test_staler_reports_count_less() -> None:
    class Store:
        def combine(self, terms: Any, fallback: Any = None) -> Any:
            return terms

    view: Any = View(0.0, 10, 0, 0, "", {ALL: Ref(1)}, None, Memory(), type("Env", (), {"store": Store()})())  # type: ignore[arg-type]
    report = Report(1, 10, 0, 10, {ALL: Ref(2)}, {ALL: 5}, 1, 0, 0.0)
    # 0.9 (1 + 3)^-0.5 = 0.45
    (terms,) = ByAge().merge(view, [Arrival(report, 0.0, staleness=3)]).values()
    assert terms == [(pytest.approx(0.55), Ref(1)), (pytest.approx(0.45), Ref(2))]


def test_without_selection_and_association_it_mixes_at_every_tier() -> None:
    ends: dict[str, Any] = {"world": RATE, "stop": {"rounds": 12}}
    plain = {"kind": "barrier", "updates": 2, "buffer": 1, "admits": True}
    merge = {"kind": "async_hfl", "alpha0": 0.5}
    mixed = final(
        {
            "name": "hierfavg",
            "root": {"pace": {**plain, "updates": 5}, "merge": merge},
            "edge": {"pace": plain, "merge": merge},
        },
        **ends,
    )
    told: dict[str, Any] = {"name": "async_hfl", "alpha0": 0.5, "mu": 0.0, "fraction": 1.0}
    assert torch.equal(final({**told, "reach": "own"}, **ends), mixed)
    assert not torch.equal(final({**told, "reach": "own", "fraction": 0.5}, **ends), mixed)
    assert not torch.equal(final({**told, "every": 1}, **ends), mixed)


@pytest.mark.parametrize("rounds", [3, 6, 9])
def test_an_edges_bandwidth_is_kept(rounds: int) -> None:
    told = {"name": "async_hfl", "reach": "own"}
    sim = run(told, fleet={"devices": 12, "edges": 2, "fraction": 0.4}, world=RATE, stop={"rounds": rounds}).simulation
    for edge in (12, 13):
        node = sim.runtime.node(edge)
        takes = {c: 1 / estimate(node.env, edge, c, 2, sim.now).total for c in node.env.children(edge)}
        working = [c for c in takes if c in node.state.tickets]
        assert working and (len(working) == 1 or sum(takes[c] for c in working) <= 0.4 * sum(takes.values()) + 1e-9)


@pytest.mark.parametrize(
    "stats",
    [
        {"devices": np.array([0]), "sketches": np.zeros((1, SKETCH_LENGTH - 1))},
        {"devices": np.array([0, 1]), "sketches": np.zeros((1, SKETCH_LENGTH))},
        {"devices": np.array([0]), "sketches": np.full((1, SKETCH_LENGTH), np.nan)},
        {"devices": np.array([0])},
        {"sketches": "none"},
    ],
)
def test_sketches_of_another_shape_are_not_believed(stats: dict[str, Any]) -> None:
    class Env:
        def is_device(self, node: int) -> bool:
            return False

    view: Any = type("Looking", (), {"env": Env()})()
    assert reported_sketches(view, [Arrival(Report(1, 10, 9, 10, {}, {}, 1, 0, 0.0, stats=stats), 0.0)]) == {}

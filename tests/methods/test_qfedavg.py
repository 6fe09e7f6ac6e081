"""q-FedAvg: its step by hand; it is FedAvg for q = 0, and the same in a tree as without one."""

from __future__ import annotations

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.method import make
from espalier.core.store import Ref
from espalier.methods.qfedavg import fair_step, step_bound
from tests.methods.test_ditto import run
from tests.methods.test_equivalences import final

X, Y1, Y2 = Ref(1), Ref(2), Ref(3)


def test_a_bound_by_hand() -> None:
    # q = 2, F = 3, ||w - w_k||^2 = 0.25, L = 10: 2 · 3 · 100 · 0.25 + 10 · 9 = 150 + 90
    assert step_bound(3.0, 0.25, 2.0, 10.0) == pytest.approx(240.0)
    assert step_bound(3.0, 0.25, 0.0, 10.0) == pytest.approx(10.0)


def test_a_step_by_hand() -> None:
    # w = 0, w_1 = -1 with loss 1, w_2 = 1 with loss 3, equal weights 1/2, q = 1, L = 2.
    # D = (1 · 2 · 1, 3 · 2 · (-1)) = (2, -6); h = (1 · 4 · 1 + 2 · 1, 1 · 4 · 1 + 2 · 3) = (6, 10)
    # w - (1 - 3) / (3 + 5) = 0.25: towards the device with the higher loss
    terms, below = fair_step(X, [(0.5, 1.0, 1.0, Y1), (0.5, 3.0, 1.0, Y2)], 1.0, 2.0)
    assert below == pytest.approx(8.0)
    assert sum(c * {X: 0.0, Y1: -1.0, Y2: 1.0}[ref] for c, ref in terms) == pytest.approx(0.25)
    assert sum(c for c, _ in terms) == pytest.approx(1.0)


def test_without_fairness_it_is_hierfavg() -> None:
    torch.testing.assert_close(final({"name": "qfedavg", "q": 0.0}), final("hierfavg"), rtol=1e-12, atol=1e-13)


def test_a_tree_makes_the_step_of_one_server() -> None:
    flat = final({"name": "qfedavg", "q": 2.0}, fleet={"devices": 12, "edges": 1})
    deep = final({"name": "qfedavg", "q": 2.0}, fleet={"devices": 12, "edges": 6, "tiers": [3, 2]})
    torch.testing.assert_close(flat, deep, rtol=1e-9, atol=1e-11)


def test_fairness_changes_the_model_and_costs_the_time_of_a_look_at_the_data() -> None:
    assert not torch.allclose(final({"name": "qfedavg", "q": 1.0}), final("hierfavg"))
    fair, plain = (run(m).simulation.now for m in ("qfedavg", "hierfavg"))
    assert fair > plain


def test_a_negative_q_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 or more"):
        make("qfedavg", q=-1.0)

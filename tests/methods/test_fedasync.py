"""FedAsync and FedBuff: steps by hand; a buffer for everybody is FedAvg; staleness is counted."""

from __future__ import annotations

import pytest
import torch

from espalier.core.store import Ref
from espalier.methods.fedasync import buffered_step, discounted
from tests.methods.test_equivalences import final

W, OLD, A, B = Ref(1), Ref(2), Ref(3), Ref(4)


def test_a_buffered_step_by_hand() -> None:
    assert discounted(0) == 1.0
    assert discounted(3) == 0.5
    # w = 10; a went 8 -> 6 three versions ago (share .5), b went 10 -> 11 on the newest (share .5); lr 2:
    # 10 + 2 (.5 · .5 · (-2) + .5 · 1 · 1) = 10
    values = {W: 10.0, OLD: 8.0, A: 6.0, B: 11.0}
    terms = buffered_step(W, [(0.5, 3, OLD, A), (0.5, 0, W, B)], 2.0)
    assert sum(c * values[r] for c, r in terms) == pytest.approx(10.0)
    assert len({ref for _, ref in terms}) == len(terms)


def test_a_buffer_for_everybody_is_fedavg() -> None:
    own = final({"name": "fedbuff", "buffer": 12, "refill": "after merge"})
    torch.testing.assert_close(own, final("fedavg"), rtol=1e-12, atol=1e-13)


def test_fresh_reports_alone_are_taken_whole() -> None:
    # one device: nothing is ever stale, and alpha0 = 1 replaces the model by the report
    fleet = {"devices": 1, "edges": 1}
    changes = {"fleet": fleet, "partition": {"kind": "iid", "fraction": 0.2}}
    own = final({"name": "fedasync", "alpha0": 1.0}, **changes)
    assert torch.equal(own, final("fedavg", **changes))

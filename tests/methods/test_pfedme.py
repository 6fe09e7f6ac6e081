"""pFedMe: the envelope's step by hand; one round that goes all the way is FedProx."""

from __future__ import annotations

import pytest
import torch

from espalier.core.store import Ref
from espalier.methods.pfedme import envelope_step
from tests.methods.test_equivalences import final


def test_a_step_of_the_shared_model() -> None:
    # w = 2, theta = 1, eta lam = 0.1: 2 - 0.1 (2 - 1) = 1.9
    values = {Ref(1): 2.0, Ref(2): 1.0}
    assert sum(c * values[r] for c, r in envelope_step(Ref(1), Ref(2), 0.1)) == pytest.approx(1.9)
    assert envelope_step(Ref(1), Ref(2), 1.0) == [(1.0, Ref(2))]


def test_one_whole_step_is_fedprox_in_the_tree() -> None:
    own = final({"name": "pfedme", "lam": 0.5, "eta": 2.0, "rounds": 1})
    assert torch.equal(own, final({"name": "hierfavg", "mu": 0.5}))

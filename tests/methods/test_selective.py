"""Methods that choose devices: where everybody is chosen they are FedAvg, and they go with other methods' tiers."""

from __future__ import annotations

import pytest
import torch

from tests.methods.test_ditto import run
from tests.methods.test_equivalences import final


@pytest.mark.parametrize("method", ["power_of_choice", "oort"])
def test_with_everybody_chosen_it_is_fedavg_to_the_bit(method: str) -> None:
    assert torch.equal(final({"name": method, "fraction": 1.0}), final("fedavg"))
    assert torch.equal(final({"name": method, "fraction": 1.0, "at": "edges"}), final("hierfavg"))


def test_tifl_with_one_tier_and_everybody_is_fedavg_to_the_bit() -> None:
    assert torch.equal(final({"name": "tifl", "tiers": 1, "fraction": 1.0}), final("fedavg"))


def test_tifl_waits_less_than_fedavg() -> None:
    world = {"compute": {"kind": "rate", "low": 0.5, "high": 16.0}}
    fleet = {"devices": 12, "edges": 3, "fraction": 0.25}
    tifl, fedavg = (run(m, world=world, fleet=fleet, stop={"rounds": 20}).simulation.now for m in ("tifl", "fedavg"))
    assert tifl < fedavg


@pytest.mark.parametrize("kind", ["power_of_choice", "oort", "tifl"])
def test_it_selects_at_any_tier_of_another_method(kind: str) -> None:
    method = {
        "name": "scaffold",
        "root": {"selection": {"kind": kind, "count": 2}},
        "edge": {"selection": {"kind": kind, "count": 2}},
    }
    sim = run(method).simulation
    plain = run("scaffold").simulation
    assert sim.round == plain.round and sim.ledger.ordered < plain.ledger.ordered

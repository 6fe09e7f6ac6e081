"""Secure aggregation in a run: the average comes out, lost devices are made up for, too few are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.policies.secure_sum import SecureMerge
from tests.reliability.runs import runner


def run(method: Any, **changes: Any) -> Any:
    one = runner(None, method, **{"stop": {"rounds": 2}, **changes})
    one.run()
    return one


def notes(one: Any) -> list[dict[str, Any]]:
    rows = one.recorder.connection.execute("SELECT data FROM events WHERE kind = 'secure' ORDER BY rowid").fetchall()
    return [json.loads(r[0]) for r in rows]


def test_it_is_the_weighted_average() -> None:
    precise = {"training": {"batch_size": 10, "updates": 2, "lr": 0.1, "precision": "float64"}}
    secure = run({"name": "hierfavg", "edge": {"merge": {"kind": "secure"}}}, **precise)
    plain = run("hierfavg", **precise)
    gap = (secure.final_models()["global"] - plain.final_models()["global"]).abs().max()
    assert 0 <= float(gap) < 1e-6  # fixed point has steps of 6e-8
    assert torch.isfinite(secure.final_models()["global"]).all()
    assert all(n["clients"] == n["reports"] == 3 for n in notes(secure))  # 3 of 4 devices work in a round


def test_control_variates_are_in_the_same_sum() -> None:
    precise = {"training": {"batch_size": 10, "updates": 2, "lr": 0.1, "precision": "float64"}}
    one, two = (
        run({"name": "hierfavg", "local": {"kind": "scaffold"}, "edge": {"merge": merge}}, **precise).simulation
        for merge in ("secure", "samples")
    )
    for vectors in ("models", "auxiliary"):
        (a,), (b,) = (getattr(sim.nodes[sim.fleet.cloud].state, vectors).values() for sim in (one, two))
        assert 0 < float((one.ledger.vector(a) - two.ledger.vector(b)).abs().max()) < 1e-6


def test_lost_devices_are_made_up_for() -> None:
    # CSAHFL's edges close in time: devices that are late then are lost clients.
    world = {"compute": {"kind": "noise", "of": {"kind": "rate", "low": 0.5, "high": 8.0}, "sigma": 1.0}}
    method = {"name": "csahfl", "edge": {"merge": {"kind": "secure", "threshold": 0.51}, "hand_down": "replace"}}
    found = notes(run(method, world=world, stop={"rounds": 4}))
    assert any(n["reports"] < n["clients"] for n in found)


def test_too_few_reports_keep_the_model() -> None:
    with pytest.raises(ConfigError, match="threshold"):
        SecureMerge(threshold=0.5)
    world = {"preset": "ideal", "attackers": {"kind": "broken", "what": "nan", "fraction": 1.0}}
    one = run({"name": "hierfavg", "edge": {"merge": {"kind": "secure"}}}, world=world)
    assert all(n["reports"] == 0 for n in notes(one))
    assert torch.equal(one.final_models()["global"], one.simulation.task.initial(one.seed, 0))

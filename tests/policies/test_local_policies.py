"""Calibration around any method's own local policy: in simulation, sequentially, to the bit where it does nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import ALL, Calibration, Order
from espalier.core.method import Setting, make, override
from espalier.core.policies import Local, LocalView
from espalier.core.store import Ref
from espalier.policies.local_policies import Calibrated
from espalier.policies.privacy import PrivateLocal
from tests.core.fakes import SmallFleet
from tests.methods.test_equivalences import final

SETTING = Setting(n_devices=8, n_edges=2, n_classes=10)


def with_local(name: str, **local: Any) -> dict[str, Any]:
    return {"name": name, "local": {"kind": "calibrated", **local}}


def test_without_tau_it_is_the_plain_method_to_the_bit() -> None:
    assert torch.equal(final(with_local("hierfavg", tau=0.0)), final("hierfavg"))


def test_calibration_changes_the_model_and_a_uniform_prior_does_not() -> None:
    assert not torch.equal(final(with_local("hierfavg")), final("hierfavg"))
    # A prior that is all smoothing adds the same number to every logit: the softmax, and its gradient, stay.
    torch.testing.assert_close(final(with_local("hierfavg", smoothing=1.0)), final("hierfavg"), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["csahfl", "easf", "fedprox", "d2d"])
def test_every_method_takes_it(method: str) -> None:
    plan = override(make(method).plan(SETTING), {"local": {"kind": "calibrated"}})
    assert isinstance(plan.local, Calibrated) and plan.local.inner == make(method).plan(SETTING).local
    assert not torch.equal(final(with_local(method)), final(method))


def test_it_keeps_what_the_policy_inside_asks_for() -> None:
    fleet = SmallFleet({0: 20})
    order = Order(1, 20, 0, {ALL: Ref(0)}, 2, 0, 0, 0.0)
    view = LocalView(0.0, 0, Memory(), fleet)  # type: ignore[arg-type]
    train = Calibrated(0.0, 0.5, 0.1, of=Local(0.3)).train(view, order)
    assert (train.mu, train.anchor, train.calibration) == (0.3, 0, Calibration(0.5, 0.1))
    private = Local.build({"kind": "private", "clip": 1.0, "of": {"kind": "calibrated"}}).around(Local(0.3))
    assert isinstance(private, PrivateLocal)
    asked = private.train(view, order)
    assert (asked.mu, asked.calibration, asked.args["private"]) == (0.3, Calibration(1.0, 0.1), [1.0, 0.0])


def test_distillation_joins_any_method_but_one_with_an_objective_of_its_own() -> None:
    distilled = {"kind": "distilled", "weight": 1.0}
    assert torch.equal(final({"name": "hierfavg", "local": {**distilled, "weight": 0.0}}), final("hierfavg"))
    for method in ("hierfavg", "fedprox", "ditto", "scaffold", "trellis"):
        assert not torch.equal(final({"name": method, "local": distilled}), final(method)), method
    with pytest.raises(ConfigError, match="looks at another model already"):
        final({"name": "moon", "local": distilled})


def test_it_takes_the_place_of_its_like() -> None:
    assert Calibrated(tau=0.0).around(Calibrated(tau=1.0, of=Local(0.3))) == Calibrated(tau=0.0, of=Local(0.3))


def test_impossible_values_are_refused() -> None:
    for wrong in ({"tau": -1.0}, {"smoothing": 0.0}, {"of": {"kind": "private"}}):
        with pytest.raises(ConfigError):
            Local.build({"kind": "calibrated", **wrong})

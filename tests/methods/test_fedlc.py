"""FedLC and FedRS: HierFAVG with losses that know a device's labels (their arithmetic: tests/training/test_losses)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.messages import Calibration
from espalier.core.method import Setting, make, override
from espalier.policies.local_policies import Margins, Restricted
from tests.methods.test_equivalences import final

SETTING = Setting(n_devices=8, n_edges=2, n_classes=10)


@pytest.mark.parametrize("bare", [{"name": "fedlc", "tau": 0.0}, {"name": "fedrs", "alpha": 1.0}])
def test_without_its_strength_it_is_hierfavg_to_the_bit(bare: dict[str, Any]) -> None:
    assert torch.equal(final(bare), final("hierfavg"))
    assert not torch.equal(final(bare["name"]), final("hierfavg"))


def test_where_every_device_has_every_label_nothing_is_restricted() -> None:
    even = {"partition": {"kind": "iid", "fraction": 0.9}, "fleet": {"devices": 4, "edges": 2}}
    torch.testing.assert_close(final("fedrs", **even), final("hierfavg", **even), rtol=1e-12, atol=1e-13)


def test_both_are_policies_of_any_method() -> None:
    for table, policy in (({"kind": "margins", "tau": 0.5}, Margins), ({"kind": "restricted"}, Restricted)):
        plan = override(make("fedprox", mu=0.3).plan(SETTING), {"local": table})
        assert isinstance(plan.local, policy) and plan.local.inner.mu == 0.3
    assert Restricted(alpha=0.5).inner.mu == 0.0 and Calibration(0.5, form="restricted").smoothing == 0.0


@pytest.mark.parametrize(("name", "options"), [("fedlc", {"tau": -1.0}), ("fedrs", {"alpha": 1.5})])
def test_impossible_strengths_are_refused(name: str, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        make(name, **options).plan(SETTING)

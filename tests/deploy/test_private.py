"""Noise on a real fleet: put on by the device itself, and not to be repeated by whoever knows the run's seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError
from tests.deploy.net import Net, charter


def private(**options: Any) -> dict[str, Any]:
    return {"name": "hierfavg", "local": {"kind": "private", **options}}


def test_a_change_is_clipped_before_it_leaves_the_device(quick: Path) -> None:
    # every training adds 1 to one number; a change of length 1 becomes one of 1/2: four rounds of four devices add
    # 4 * 1/2 / 4 to each number
    net = Net(charter(4, 2, 4, private(clip=0.5)), quick)
    net.run()
    torch.testing.assert_close(net.model()[:4], torch.full((4,), 0.5))


def test_the_noise_is_the_systems(quick: Path) -> None:
    found = []
    for name in ("one", "other"):
        net = Net(charter(2, 1, 1, private(clip=1.0, noise=2.0)), quick / name)
        net.run()
        found.append(net.model())
    # the same seed, other noise; of standard deviation 2 * 1 / sqrt(2) on the mean of two devices
    assert not torch.equal(*found)
    assert 0.9 < float(torch.cat([f[2:] for f in found]).std()) < 2.0
    rng = net.engines[0].directory.rng
    assert rng("private", 0, 1, 1).random() != rng("private", 0, 1, 1).random()
    assert rng("select", 0).random() == rng("select", 0).random()


def test_noise_at_an_aggregator(quick: Path) -> None:
    merge = {"kind": "private", "clip": 10.0, "noise": 0.0}
    net = Net(charter(2, 1, 3, {"name": "hierfavg", "edge": {"merge": merge}}), quick)
    net.run()
    np.testing.assert_allclose(net.model()[:2], 3 / 2, rtol=1e-6)


def test_secure_aggregation_is_refused_where_it_would_hide_nothing(quick: Path) -> None:
    with pytest.raises(ConfigError, match="the edge would see every model"):
        charter(2, 1, 1, {"name": "hierfavg", "edge": {"merge": "secure"}}).plan()

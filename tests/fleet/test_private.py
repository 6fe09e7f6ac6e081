"""Noise on a real fleet: put on by the device itself, and not to be repeated by whoever knows the run's seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import espalier
from espalier.core.messages import Train
from espalier.core.policies import Structure, Survey
from espalier.core.view import View
from espalier.privacy import Release, epsilon
from tests.fleet.net import Net, manifest


def private(**options: Any) -> dict[str, Any]:
    return {"name": "hierfavg", "local": {"kind": "private", **options}}


def test_a_change_is_clipped_before_it_leaves_the_device(quick: Path) -> None:
    # every training adds 1 to one number; a change of length 1 becomes one of 1/2: four rounds of four devices add
    # 4 * 1/2 / 4 to each number
    net = Net(manifest(4, 2, 4, private(clip=0.5)), quick)
    net.run()
    torch.testing.assert_close(net.model()[:4], torch.full((4,), 0.5))


def test_the_noise_is_the_systems(quick: Path) -> None:
    found = []
    for name in ("one", "other"):
        net = Net(manifest(2, 1, 1, private(clip=1.0, noise=2.0)), quick / name)
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
    net = Net(manifest(2, 1, 3, {"name": "hierfavg", "edge": {"merge": merge}}), quick)
    net.run()
    np.testing.assert_allclose(net.model()[:2], 3 / 2, rtol=1e-6)


# -- what a run has spent --------------------------------------------------------------------------------------


def spent(net: Net) -> Any:
    return net.coordinator.recorder.read_meta("privacy")


@pytest.mark.parametrize("trouble", [0.0, 0.3])
def test_the_run_says_what_it_has_spent(quick: Path, trouble: float) -> None:
    # 3 rounds, everybody in each: 3 Gaussian releases whose noise is 2 clips, the sensitivity (one replaced) 2 clips:
    # a multiplier of 1. delta is the smaller of 1e-5 and 0.1 / 4. Kills and doubled letters count nothing twice.
    net = Net(manifest(4, 2, 3, private(clip=0.5, noise=2.0)), quick, 7, trouble)
    net.run()
    assert (net.kills > 0) == (trouble > 0)
    assert spent(net) == {
        "delta": 1e-5, "neighbours": "one replaced",
        "reports": {
            "unit": "device", "clip": 0.5, "noise": 2.0, "epsilon": epsilon({Release(1.0): 3}, 1e-5), "releases": 3,
        },
    }  # fmt: skip
    # 3 releases of multiplier 1 by Rényi composition: between that of one and three times it
    assert epsilon({Release(1.0): 1}, 1e-5) < spent(net)["reports"]["epsilon"] < 3 * epsilon({Release(1.0): 1}, 1e-5)


def test_it_is_what_the_simulator_says(quick: Path) -> None:
    for method in (
        private(clip=0.5, noise=2.0),
        {"name": "hierfavg", "edge": {"merge": {"kind": "private", "clip": 1.0, "noise": 1.5}}},
    ):
        made = manifest(4, 2, 3, method)
        net = Net(made, quick / str(len(list(quick.iterdir()))))
        net.run()
        table = {**made.experiment.to_plain(), "task": {"dataset": "digits", "model": "logistic"}}
        assert espalier.simulate(method, table).meta("privacy") == spent(net)


def test_who_has_lost_its_memory_is_counted_on(quick: Path) -> None:
    # Device 1 trains for the first round, loses its directory before it reports, and trains in three more rounds: 4.
    net = Net(manifest(2, 1, 4, private(clip=0.5, noise=2.0)), quick)
    while not any(host == 1 and isinstance(work.action, Train) for host, work in net.jobs):
        net.step()
    while any(origin == 1 and dest == net.cloud for dest, origin, _ in net.wire):
        net.step()
    net.jobs = [(h, w) for h, w in net.jobs if h != 1]
    net.forget(1)
    net.incarnations[1] += 1
    net.kill(1, forget=True)
    net.join(1, 2, stamp=2)
    net.run()
    trained = {host: 0 for host in range(2)}
    for (host, _), (jobs, _) in net.coordinator._told.spent.items():
        trained[host] += jobs
    assert trained == {0: 4, 1: 4}
    assert len([key for key in net.coordinator._told.spent if key[0] == 1]) == 2
    assert spent(net)["reports"]["releases"] == 4


@dataclass(frozen=True)
class Asking(Structure, kind="test_asking"):
    """Asks every device for its histogram before every round."""

    def survey(self, view: View) -> Survey | None:
        return Survey("label_histogram")


def test_statistics_are_counted_too(quick: Path) -> None:
    # One question in each of two rounds; each may tell a histogram and second moments: two releases.
    method = {**private(statistics=30.0), "root": {"structure": "test_asking"}}
    net = Net(manifest(4, 2, 2, method), quick)
    net.run()
    found = spent(net)["statistics"]
    assert (found["unit"], found["releases"]) == ("sample", 4)
    assert 0 < found["epsilon"] < 1
    assert net.coordinator.recorder.read_meta("status") == {"state": "finished"}


def test_without_noise_nothing_is_said(quick: Path) -> None:
    net = Net(manifest(2, 1, 1), quick)
    net.run()
    assert spent(net) is None

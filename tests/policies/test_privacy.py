"""Clipping and noise by hand, in runs, and what a run's record says about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import Order
from espalier.core.policies import Local, LocalView
from espalier.core.seeds import stream
from espalier.policies.privacy import (
    PrivateLocal,
    clipped,
    noisy_counts,
    noisy_second_moments,
    privatise,
)
from espalier.privacy import Release, epsilon
from tests.core.fakes import SmallFleet
from tests.reliability.runs import runner

FLEET = {"devices": 20, "edges": 2}


def run(method: Any, **changes: Any) -> Any:
    one = runner(None, method, **{"fleet": FLEET, "partition": {"kind": "iid"}, "stop": {"rounds": 3}, **changes})
    one.run()
    return one


def test_clipping_by_hand() -> None:
    change = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert clipped(change, 10.0).tolist() == [3.0, 4.0]
    assert clipped(change, 1.0).tolist() == pytest.approx([0.6, 0.8])


def test_privatise_by_hand() -> None:
    start, update = torch.tensor([1.0, 1.0]), torch.tensor([4.0, 5.0])
    found = privatise(update, start, 2.5, 0.0, stream(0, "x"))
    assert found.tolist() == pytest.approx([1 + 1.5, 1 + 2.0])  # a change of length 5 halved
    nan = privatise(torch.tensor([float("nan"), 1.0]), start, 2.5, 0.0, stream(0, "x"))
    assert nan.tolist() == [1.0, 1.0]


def test_noise_has_the_right_spread() -> None:
    start = torch.zeros(20_000)
    found = privatise(start, start, 2.0, 1.5, stream(0, "x")).numpy()
    assert kstest(found / 3.0, "norm").pvalue > 0.01  # standard deviation noise · clip = 3
    counts = noisy_counts(np.full(20_000, 100.0), 5.0, stream(1, "x"))
    assert kstest((counts - 100) / 5, "norm").pvalue > 0.01
    assert noisy_counts(np.zeros(100), 3.0, stream(1, "x")).min() == 0.0


def test_second_moments() -> None:
    samples = np.array([[3.0, 4.0], [0.3, 0.0]])
    # Samples longer than 1 are shortened to 1: (0.6, 0.8); then 0.36 + 0.09, 0.48, 0.64.
    assert noisy_second_moments(samples, 0.0, stream(0, "x")) == pytest.approx(np.array([[0.45, 0.48], [0.48, 0.64]]))
    noisy = noisy_second_moments(np.zeros((1, 300)), 2.0, stream(0, "x"))
    assert (noisy == noisy.T).all()
    assert kstest(noisy[np.triu_indices(300)] / 2, "norm").pvalue > 0.01


def test_a_private_local_policy_goes_around_the_methods_own() -> None:
    private = PrivateLocal(clip=1.0, noise=1.0)
    assert private.around(Local(0.3)).inner == Local(0.3)
    one = run({"name": "fedprox", "mu": 0.5, "local": {"kind": "private", "clip": 1e6, "noise": 0.0}})
    plain = run({"name": "fedprox", "mu": 0.5})
    # Nothing is clipped and no noise is added: only the last digits may differ.
    gap = one.simulation.meter.last["loss_global"] - plain.simulation.meter.last["loss_global"]
    assert abs(gap) < 1e-5


@pytest.mark.parametrize("inside", ["qfedavg", {"kind": "calibrated", "of": "qfedavg"}])
def test_a_statistic_without_a_private_form_is_refused_however_deep_it_stands(inside: Any) -> None:
    private = Local.build({"kind": "private", "statistics": 1.0})
    with pytest.raises(ConfigError, match="'qfedavg' reports losses, which has no private form"):
        private.around(Local.build(inside))
    given = Local.build({"kind": "private", "statistics": 1.0, "of": inside})
    with pytest.raises(ConfigError, match="'qfedavg' reports losses, which has no private form"):
        given.around(Local())
    assert Local.build({"kind": "private", "clip": 1.0, "of": inside}).around(Local())


def test_devices_report_within_the_clipping_length() -> None:
    one = run({"name": "fedavg", "local": {"kind": "private", "clip": 0.2, "noise": 0.0}}, stop={"rounds": 1})
    sim = one.simulation
    start, end = sim.task.initial(sim.seed, 0), one.final_models()["global"]
    assert 0 < float((end - start).norm()) <= 0.2 + 1e-5


def test_the_run_says_what_it_has_spent() -> None:
    one = run({"name": "fedavg", "local": {"kind": "private", "clip": 1.0, "noise": 4.0}})
    found = one.recorder.read_meta("privacy")
    most = int(one.simulation.runtime.numbers.trainings.max())
    assert found["reports"]["releases"] == most == 3
    assert found["reports"]["epsilon"] == pytest.approx(epsilon({Release(2.0): 3}, found["delta"]))
    assert run("fedavg").recorder.read_meta("privacy") is None


def test_merges_are_accounted_per_child() -> None:
    merge = {"merge": {"kind": "private", "clip": 1.0, "noise": 4.0}}
    one = run({"name": "hierfavg", "fraction": 0.5, "edge": merge})
    found = one.recorder.read_meta("privacy")["merges"]
    # Three rounds, each with 5 of an edge's 10 devices.
    assert found["releases"] == 3
    assert found["epsilon"] == pytest.approx(epsilon({Release(2.0, 5, 10): 3}, 1e-5))
    none = run({"name": "hierfavg", "edge": {"merge": {"kind": "private", "noise": 0.0}}})
    assert none.recorder.read_meta("privacy")["merges"]["epsilon"] is None  # no noise, no bound


def test_a_merge_without_noise_is_the_mean_of_clipped_changes() -> None:
    one = run({"name": "hierfavg", "edge": {"merge": {"kind": "private", "clip": 1e6, "noise": 0.0}}})
    assert one.simulation.meter.last["acc_global"] > 0.5
    tight = run({"name": "hierfavg", "edge": {"merge": {"kind": "private", "clip": 1e-6, "noise": 0.0}}})
    assert tight.simulation.meter.last["acc_global"] < 0.3


def test_vectors_beside_models_are_releases_of_their_own() -> None:
    merge = {"merge": {"kind": "private", "clip": 1e-3, "noise": 0.0}}
    one = run({"name": "hierfavg", "local": {"kind": "scaffold"}, "edge": merge})
    sim = one.simulation
    edge = sim.nodes[min(sim.fleet.tree.children(sim.fleet.cloud))].state
    (variate,) = sim.ledger.vectors(list(edge.auxiliary.values()))
    assert 0 < float(variate.norm()) <= 3.001e-3
    count = "SELECT count(*) FROM events WHERE kind = 'privacy'"
    plain = run({"name": "hierfavg", "edge": merge})
    (many,), (few,) = (r.recorder.connection.execute(count).fetchone() for r in (one, plain))
    assert many == 2 * few


def test_statistics_are_private_too() -> None:
    method = {"name": "csahfl", "local": {"kind": "private", "statistics": 0.5}}
    one = run(method, partition={"kind": "two_level", "edge_fraction": 0.5, "device_fraction": 0.3})
    found = one.recorder.read_meta("privacy")["statistics"]
    # Asked once, the answer holds a histogram and principal vectors: two releases of sensitivity √2.
    assert found["releases"] == 2
    assert found["epsilon"] == pytest.approx(epsilon({Release(0.5 / 2**0.5): 2}, 1e-5))


def test_statistics_without_a_private_form_are_refused() -> None:
    fleet = SmallFleet({0: 20})
    view, private = LocalView(0.0, 0, Memory(), fleet), PrivateLocal(statistics=1.0)
    with pytest.raises(ConfigError, match="has no private form"):
        private.arguments(view, Order(1, 20, 0, {}, 1, 0, 0, 0.0, ask="losses"))
    assert private.arguments(view, Order(1, 20, 0, {}, 1, 0, 0, 0.0, ask="subspace"))["noise"] == 1.0
    assert private.arguments(view, Order(1, 20, 0, {}, 1, 0, 0, 0.0, ask="probe")) == {}


@pytest.mark.parametrize("options", [{"clip": 0.0}, {"noise": 1.0}, {"clip": 1.0, "noise": -1.0}, {"statistics": -1.0}])
def test_impossible_values(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        PrivateLocal(**options)

"""Our merges are the real Flower's, to 1e-6: FedAvg, robust ones, server optimisers, q-FedAvg's step.

Its optimisers are given the paper's beginning and rate (`flower_optimizers`); its q-FedAvg has one loss for everybody.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from espalier.core.memory import Memory
from espalier.core.messages import ALL
from espalier.core.policies import Merge
from espalier.methods.qfedavg import fair_step
from espalier.policies.robust_merges import Krum, Median, MultiKrum, TrimmedMean
from espalier.policies.server_optimizers import Momentum, ServerAdagrad, ServerAdam, ServerYogi
from tests.fleet import flower_env
from tests.policies.fakes import FakeEnv, arrival, view

MODELS, NUMBERS, HOSTILE = 11, 40, 2
#: how many of the reports ours take for hostile
SHARE = HOSTILE / MODELS


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return the models, their samples, and what Flower makes of them."""
    folder = tmp_path_factory.mktemp("flower")
    rng = np.random.default_rng(0)
    models = rng.normal(size=(MODELS, NUMBERS))
    models[:HOSTILE] += 10.0
    given = {"models": models, "counts": rng.integers(1, 100, size=MODELS), "hostile": np.asarray(HOSTILE)}
    np.savez(folder / "models.npz", **given)
    script = Path(__file__).with_name("flower_merges.py")
    subprocess.run([flower_env.python(), script, folder / "models.npz", folder / "out.npz"], check=True)
    return {**given, **np.load(folder / "out.npz")}


@pytest.mark.parametrize(
    "merge", [Merge(), Median(), TrimmedMean(share=SHARE), Krum(share=SHARE), MultiKrum(share=SHARE, weighted=True)]
)
def test_a_merge_is_flowers(flower: dict[str, np.ndarray], merge: Merge) -> None:
    env = FakeEnv(NUMBERS)
    arrivals = [
        arrival(i, {ALL: env.store.put(model)}, int(n))
        for i, (model, n) in enumerate(zip(flower["models"], flower["counts"], strict=True))
    ]
    ours = merge.merge(view(env, {ALL: env.store.initial()}), arrivals)[ALL]
    np.testing.assert_allclose(env.store.table[int(ours)].numpy(), flower[merge.kind], rtol=0, atol=1e-6)


TAU, LOSS = 1e-2, 1.7


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return three rounds of reports, and the models that Flower's server optimisers step to."""
    folder = tmp_path_factory.mktemp("flower")
    rng = np.random.default_rng(1)
    rounds = rng.normal(scale=0.1, size=(3, MODELS, NUMBERS))
    given = {"rounds": rounds, "counts": rng.integers(1, 100, size=MODELS), "tau": TAU, "loss": LOSS}
    np.savez(folder / "models.npz", **given)
    script = Path(__file__).with_name("flower_optimizers.py")
    subprocess.run([flower_env.python(), script, folder / "models.npz", folder / "out.npz"], check=True)
    return {**given, **np.load(folder / "out.npz")}


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("fedavgm", Momentum(0.9, 0.5)),
        ("fedadagrad", ServerAdagrad(0.03, tau=TAU)),
        ("fedadam", ServerAdam(0.01, 0.9, TAU, beta2=0.99)),
        ("fedyogi", ServerYogi(0.01, 0.9, TAU, beta2=0.99)),
    ],
)
def test_a_server_optimiser_is_flowers(stepped: dict[str, np.ndarray], name: str, optimizer: Merge) -> None:
    env, memory = FakeEnv(NUMBERS), Memory()
    model = env.store.initial()
    for reports, theirs in zip(stepped["rounds"], stepped[name], strict=True):
        arrivals = [
            arrival(i, {ALL: env.store.put(report)}, int(n))
            for i, (report, n) in enumerate(zip(reports, stepped["counts"], strict=True))
        ]
        model = optimizer.merge(view(env, {ALL: model}, memory=memory), arrivals)[ALL]
        np.testing.assert_allclose(env.store.table[int(model)].numpy(), theirs, rtol=0, atol=1e-6)


def test_a_fair_step_is_flowers(stepped: dict[str, np.ndarray]) -> None:
    store = FakeEnv(NUMBERS).store
    model = store.initial()
    for reports, theirs in zip(stepped["rounds"], stepped["qfedavg"], strict=True):
        start = store.table[int(model)].numpy()
        ends = [(1.0, LOSS, float(((r - start) ** 2).sum()), store.put(r)) for r in reports]
        model = store.combine(fair_step(model, ends, 0.5, 1 / 0.1)[0])
        np.testing.assert_allclose(store.table[int(model)].numpy(), theirs, rtol=0, atol=1e-6)

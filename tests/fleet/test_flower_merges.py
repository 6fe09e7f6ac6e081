"""Our merges are the real Flower's, to 1e-6: FedAvg, median, trimmed mean, Krum, weighted multi-Krum."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from espalier.core.messages import ALL
from espalier.core.policies import Merge
from espalier.policies.robust_merges import Krum, Median, MultiKrum, TrimmedMean
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

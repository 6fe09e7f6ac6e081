"""Robust merges as policies: numbers by hand, every merge at every tier of several methods, attacks on digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import ALL, Report
from espalier.core.params import ParamSpec
from espalier.core.policies import Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.policies import robust_merges
from tests.core.fakes import NumberStore, SmallFleet
from tests.reliability.runs import runner

KINDS = ["median", "trimmed_mean", "krum", "multi_krum", "clipped", "geometric_median"]


def test_kinds() -> None:
    known = {k for k, cls in Merge.kinds.items() if issubclass(cls, robust_merges.RobustMerge)}
    assert known == set(KINDS)


class VectorStore(NumberStore):
    """Models are vectors of two floats and one counter."""

    def __init__(self) -> None:
        super().__init__()
        module = nn.Linear(2, 1, bias=False)
        module.register_buffer("seen", torch.tensor(0))
        self.spec = ParamSpec.of(module)
        self.kept: list[Tensor] = []

    def put(self, vector: Tensor) -> Ref:
        self.kept.append(vector)
        return Ref(len(self.kept) - 1)

    def vectors(self, refs: Any) -> Tensor:
        return torch.stack([self.kept[r] for r in refs])


def merge(policy: Merge, rows: list[list[float]], samples: list[int], start: list[float] | None = None) -> list[float]:
    """Merge rows (two floats and a counter each) with a policy; return the merged row."""
    fleet = SmallFleet({device: 20 for device in range(len(rows))})
    store = VectorStore()
    fleet.store = store
    models = {} if start is None else {ALL: store.put(torch.tensor(start))}
    view = View(0.0, 20, 0, 0, "", models, None, Memory(), fleet)
    arrivals = []
    for device, (row, count) in enumerate(zip(rows, samples, strict=True)):
        ref = store.put(torch.tensor(row))
        arrivals.append(Arrival(Report(0, 20, device, 20, {ALL: ref}, {ALL: count}, 1, 0, 0.0), 0.0))
    merged = policy.merge(view, arrivals)
    return store.kept[merged[ALL]].tolist()


def test_median_by_hand() -> None:
    # Column medians of (1, 10), (2, 20), (9, 0) are 2 and 10; the counter is that of the largest claim, 7.
    rows = [[1.0, 10.0, 5.0], [2.0, 20.0, 7.0], [9.0, 0.0, 6.0]]
    assert merge(Merge.build("median"), rows, [1, 3, 2]) == [2.0, 10.0, 7.0]
    # Weighted by 1, 3, 2 samples: half of 6 is 3. First column 1 (1), 2 (3) reaches 4 > 3: 2. Second column sorted
    # 0 (2), 10 (1) makes 3 = half: the mean of 10 and 20.
    assert merge(Merge.build({"kind": "median", "weighted": True}), rows, [1, 3, 2]) == [2.0, 15.0, 7.0]


def test_trimmed_mean_by_hand() -> None:
    rows = [[float(v), 0.0, 0.0] for v in (1, 2, 3, 4, 100)]
    # A share of 0.2 of five is one: without 1 and 100 the mean of 2, 3, 4.
    assert merge(Merge.build("trimmed_mean"), rows, [1] * 5)[0] == 3.0
    # 0.4 of five is two: the median.
    assert merge(Merge.build({"kind": "trimmed_mean", "share": 0.4}), rows, [1] * 5)[0] == 3.0
    # Of two nothing can be trimmed: their mean.
    assert merge(Merge.build("trimmed_mean"), rows[:2], [1] * 2)[0] == 1.5


def test_krum_by_hand() -> None:
    rows = [[v, 0.0, 0.0] for v in (0.0, 1.0, 2.0, 2.5, 50.0)]
    # f = 1 of 5: scores are sums over the two nearest. 1: 1 + 1 = 2; 2: 0.25 + 1 = 1.25; 2.5: 0.25 + 2.25 = 2.5.
    assert merge(Merge.build("krum"), rows, [1] * 5)[0] == 2.0
    # The two best are 2 (1.25) and 1 (2).
    assert merge(Merge.build("multi_krum"), rows, [1] * 5)[0] == 1.5


def test_clipped_by_hand() -> None:
    # Changes from the start (1, 0) are 1, 2 and 9 long: none counts more than the median, 2: (1 + 2 + 2) / 3.
    rows = [[2.0, 0.0, 0.0], [3.0, 0.0, 0.0], [10.0, 0.0, 0.0]]
    found = merge(Merge.build("clipped"), rows, [1] * 3, start=[1.0, 0.0, 0.0])
    assert found[0] == pytest.approx(1.0 + 5 / 3)
    found = merge(Merge.build({"kind": "clipped", "bound": 1.5}), rows, [1] * 3, start=[1.0, 0.0, 0.0])
    assert found[0] == pytest.approx(1.0 + (1 + 1.5 + 1.5) / 3)


@pytest.mark.parametrize("kind", KINDS)
def test_few_and_broken_reports(kind: str) -> None:
    policy = Merge.build(kind)
    for count in range(1, 8):
        found = merge(policy, [[1.5, -2.0, 3.0]] * count, [1] * count, start=[0.0, 0.0, 0.0])
        assert found == pytest.approx([1.5, -2.0, 3.0])
    nan = float("nan")
    found = merge(policy, [[nan, 0.0, 0.0], [2.0, 1.0, 4.0]], [5, 1], start=[0.0, 0.0, 0.0])
    assert found == pytest.approx([2.0, 1.0, 4.0])
    # Nothing usable: the model stays what it was.
    assert merge(policy, [[nan, nan, 0.0]], [1], start=[7.0, 7.0, 7.0]) == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("share", [-0.1, 0.5, 1.0])
def test_a_majority_cannot_be_outvoted(share: float) -> None:
    with pytest.raises(ConfigError, match="majority"):
        Merge.build({"kind": "krum", "share": share})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["hierfavg", "fedavg", "only_edge"])
def test_any_merge_at_any_tier(kind: str, method: str) -> None:
    policies = {"merge": {"kind": kind}}
    tiers = {"root": policies} if method == "fedavg" else {"edge": policies, "root": policies}
    one = runner(None, {"name": method, **tiers}, stop={"rounds": 2})
    one.run()
    assert one.simulation.round == 2
    assert np.isfinite(one.simulation.meter.last["acc_device"])


def test_merges_that_hold_under_attack() -> None:
    # 20 devices at 2 edges, six of them hostile, three at each edge: the mean fails, the others do not.
    world = {"preset": "ideal", "attackers": {"kind": "sign_flip", "fraction": 0.3, "scale": 3.0, "spread": "even"}}

    def accuracy(merge: dict[str, Any]) -> float:
        one = runner(
            None, {"name": "hierfavg", "edge": {"merge": merge}}, world=world, stop={"rounds": 6},
            fleet={"devices": 20, "edges": 2}, partition={"kind": "iid"},
        )  # fmt: skip
        one.run()
        return float(one.simulation.meter.last["acc_global"])

    assert accuracy({"kind": "samples"}) < 0.3
    for kind in ("median", "geometric_median"):
        assert accuracy({"kind": kind}) > 0.65
    for kind in ("krum", "multi_krum", "trimmed_mean"):
        assert accuracy({"kind": kind, "share": 0.3}) > 0.65

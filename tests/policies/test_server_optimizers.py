"""Server optimisers against steps worked by hand, with whole and with discounted rounds; and as part of any method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import ALL, Report
from espalier.core.method import Setting, make, override
from espalier.core.params import ParamSpec
from espalier.core.policies import Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.csahfl.semi_async import Discounted
from espalier.policies.server_optimizers import Momentum, ServerAdagrad, ServerAdam, ServerOptimizer, ServerYogi, warmed
from tests.core.fakes import NumberStore, SmallFleet
from tests.methods.test_equivalences import final

SETTING = Setting(n_devices=8, n_edges=2, n_classes=10)


class Rounds:
    """One aggregator over one device whose models are numbers."""

    def __init__(self, policy: ServerOptimizer, start: float = 0.0) -> None:
        self.policy, self.fleet, self.memory = policy, SmallFleet({0: 20, 1: 20}), Memory()
        self.model = self.fleet.store.number(start)

    def close(self, *reports: float, late: Sequence[int] = ()) -> float:
        """Close a round with these models, each of one sample; return the aggregator's model."""
        arrivals = []
        for device, value in enumerate(reports):
            report = Report(0, 20, device, 20, {ALL: self.fleet.store.number(value)}, {ALL: 1}, 1, 0, 0.0)
            arrivals.append(Arrival(report, 0.0, staleness=late[device] if late else 0))
        view = View(0.0, 20, 0, 0, "", {ALL: self.model}, None, self.memory, self.fleet)  # type: ignore[arg-type]
        self.model = self.policy.merge(view, arrivals).get(ALL, self.model)
        view.models = {ALL: self.model}
        self.served = self.fleet.store.numbers[self.policy.served(view)[ALL]]
        return self.fleet.store.numbers[self.model]


def test_momentum_by_hand() -> None:
    # x = 0; reports 1 and 3: y = 2. m = 2, x = 2. Reports 2 and 4: y = 3, m = 0.5 * 2 + (3 - 2) = 2, x = 4.
    # A report of 4 alone: m = 0.5 * 2 + 0 = 1, x = 5.
    rounds = Rounds(Momentum(0.5))
    assert [rounds.close(1.0, 3.0), rounds.close(2.0, 4.0), rounds.close(4.0)] == [2.0, 4.0, 5.0]


def test_looking_ahead_by_hand() -> None:
    # beta = 1/2. x = 0, y = 2: m = 2, training goes on from 2 + 1 = 3, and 2 is served. Then y = 5: m = 1/2 * 2 +
    # (5 - 3) = 3, on from 5 + 1.5 = 6.5, 5 is served. With the mean of both: (5 + 2/2)/1.5 = 4.
    rounds, mean = Rounds(Momentum(0.5, look_ahead=True)), Rounds(Momentum(0.5, look_ahead=True, average=0.5))
    for report, ahead, averaged in ((2.0, 3.0, 2.0), (5.0, 6.5, 4.0)):
        assert rounds.close(report) == ahead and rounds.served == report
        assert mean.close(report) == ahead and mean.served == pytest.approx(averaged)
    with pytest.raises(ConfigError, match=r"lr"):
        Momentum(0.5, 0.5, look_ahead=True)


def test_looking_ahead_with_a_late_report_by_hand() -> None:
    # A round as above, on from 3. A report of 5, one round late, counts 1/2: y = 4, a = 1/2, and
    # m = 2^-1/2 * 2 + (4 - 3) = 2.41421; on from 4 + 1/2 * 2^-1/2 * m = 4.85355.
    rounds = Rounds(Momentum(0.5, look_ahead=True, of=Discounted()))
    rounds.close(2.0)
    assert rounds.close(5.0, late=[1]) == pytest.approx(4.853553, abs=1e-6)
    assert rounds.served == 4.0


def test_warming_up_by_hand() -> None:
    # beta = 1/2, at most t/(t + 3) after t steps: 0, 1/4, 2/5, 1/2. x = 0, y = 2: m = 2, on from 2. y = 5:
    # m = 1/4 * 2 + 3 = 3.5, on from 5 + 1/4 * 3.5 = 5.875. y = 6: m = 2/5 * 3.5 + 0.125 = 1.525, on from 6.61.
    rounds = Rounds(Momentum(0.5, look_ahead=True, warm_up=True))
    assert [rounds.close(y) for y in (2.0, 5.0, 6.0)] == pytest.approx([2.0, 5.875, 6.61])
    assert [warmed(0.5, t) for t in (0.0, 1.0, 2.0, 3.0, 9.0)] == pytest.approx([0.0, 0.25, 0.4, 0.5, 0.5])


def test_the_mean_that_is_served_by_hand() -> None:
    # average = 1/2: of 1 model it is that model; of 2 the weights are as 1 : 1/2, (4 + 1)/1.5 = 10/3; of 3 as
    # 1 : 1/2 : 1/4, (7 + 2 + 0.5)/1.75 = 38/7. Training goes on from the newest: nothing is carried with beta = 0.
    rounds = Rounds(Momentum(0.0, average=0.5))
    for report, mean in ((2.0, 2.0), (4.0, 10 / 3), (7.0, 38 / 7)):
        assert rounds.close(report) == report
        assert rounds.served == pytest.approx(mean)


def test_a_round_without_reports_does_not_enter_the_mean() -> None:
    rounds = Rounds(Momentum(0.0, average=0.5))
    rounds.close(2.0)
    rounds.close()
    assert rounds.served == 2.0


def test_without_an_average_the_newest_is_served() -> None:
    rounds = Rounds(Momentum(0.5))
    assert [rounds.close(1.0), rounds.close(3.0)][-1] == rounds.served
    with pytest.raises(ConfigError, match=r"average"):
        Momentum(0.5, average=1.0)


def test_momentum_with_a_rate_by_hand() -> None:
    # lr = 1/2: m = 2, x = 1; y = 3: m = 0.5 * 2 + 2 = 3, x = 1 + 1.5 = 2.5.
    rounds = Rounds(Momentum(0.5, 0.5))
    assert [rounds.close(2.0), rounds.close(3.0)] == [1.0, 2.5]


def test_a_late_report_counts_as_part_of_a_step() -> None:
    # x = 0, a report of 4 in time: m = 4, x = 4. Then one of 8, one round late: it counts half, the other half is the
    # model's: y = 6, y - x = 2, a = 1/2. With beta = 1/4, beta^a = 1/2: m = 2 + 2 = 4 and
    # x = y + a beta^a m = 6 + 1/2 * 1/2 * 4 = 7. (A whole step would have carried 1/4 * 4 = 1 as well, by chance.)
    rounds = Rounds(Momentum(0.25, of=Discounted()))
    assert [rounds.close(4.0), rounds.close(8.0, late=[1])] == [4.0, 7.0]
    # Now m = 4: a report of 7 in time changes nothing, and carries 1/4 * 4.
    assert rounds.close(7.0) == 8.0


def test_a_round_without_reports_makes_no_step() -> None:
    rounds = Rounds(Momentum(0.5))
    assert [rounds.close(2.0), rounds.close(), rounds.close(2.0)] == [2.0, 2.0, 3.0]


def test_adagrad_by_hand() -> None:
    # tau = 1: v = 1 at first. y - x = 2: v = 1 + 4 = 5, x = 0 + 1 * 2 / (sqrt 5 + 1) = 0.618034.
    rounds = Rounds(ServerAdagrad(1.0, tau=1.0))
    assert rounds.close(2.0) == pytest.approx(0.618034, abs=1e-6)


def test_adam_by_hand() -> None:
    # beta1 = beta2 = 1/2, tau = 1, d = 2: m = 1, v = 1/2 * 1 + 1/2 * 4 = 2.5, x = 1 / (sqrt 2.5 + 1) = 0.387426.
    rounds = Rounds(ServerAdam(1.0, 0.5, 1.0, beta2=0.5))
    assert rounds.close(2.0) == pytest.approx(0.387426, abs=1e-6)
    # d = 0.387426 (the report is twice the model): m = 1/2 + d/2 = 0.693713, v = 1.25 + d^2/2 = 1.325049,
    # x = 0.387426 + 0.693713 / (1.151108 + 1) = 0.709918.
    assert rounds.close(2 * 0.387426) == pytest.approx(0.709918, abs=1e-5)


def test_corrected_adam_begins_with_the_whole_change() -> None:
    # From zero, m = 1/2 * 2 and v = 1/2 * 4, divided by 1 - 1/2: m = 2, v = 4, x = 2 / (2 + 1).
    assert Rounds(ServerAdam(1.0, 0.5, 1.0, corrected=True, beta2=0.5)).close(2.0) == pytest.approx(2 / 3)


def test_yogi_by_hand() -> None:
    # v = 1 < d^2 = 4: v = 1 + 1/2 * 4 = 3, m = 1, x = 1 / (sqrt 3 + 1) = 0.366025.
    rounds = Rounds(ServerYogi(1.0, 0.5, 1.0, beta2=0.5))
    assert rounds.close(2.0) == pytest.approx(0.366025, abs=1e-6)
    # A report of the model itself: d = 0, v stays 3, m = 1/2: x += 0.5 / 2.732051 = 0.183013.
    assert rounds.close(0.366025) == pytest.approx(0.549038, abs=1e-5)


def test_adaptive_steps_of_a_late_report() -> None:
    # One report of 2, a round late: y = 1, a = 1/2, d = (1 - 0) / (1/2) = 2. beta^a = sqrt(1/2) = 0.707107:
    # m = 0.292893 * 2 = 0.585786, v = 0.707107 + 0.292893 * 4 = 1.878680, x = 1/2 * 0.585786 / (1.370650 + 1).
    rounds = Rounds(ServerAdam(1.0, 0.5, 1.0, beta2=0.5, of=Discounted()))
    assert rounds.close(2.0, late=[1]) == pytest.approx(0.123550, abs=1e-6)


class Normalised(NumberStore):
    """Models are one parameter, a running mean and a counter."""

    def __init__(self) -> None:
        super().__init__()
        module = nn.Linear(1, 1, bias=False)
        module.register_buffer("mean", torch.tensor(0.0))
        module.register_buffer("seen", torch.tensor(0))
        self.spec = ParamSpec.of(module)
        self.kept: list[Tensor] = []

    def put(self, vector: Tensor) -> Ref:
        self.kept.append(vector)
        return Ref(len(self.kept) - 1)

    def vectors(self, refs: Any) -> Tensor:
        return torch.stack([self.kept[r] for r in refs])

    def combine(self, terms: Any, fallback: Ref | None = None) -> Ref:
        return self.put(torch.stack([c * self.kept[r] for c, r in terms]).sum(0))


@pytest.mark.parametrize("policy", [Momentum(0.5, 0.5), ServerAdam(1.0, 0.5, 1.0)])
def test_running_statistics_are_the_averages(policy: ServerOptimizer) -> None:
    fleet, store = SmallFleet({0: 20}), Normalised()
    fleet.store = store
    models = {ALL: store.put(torch.tensor([0.0, 5.0, 1.0]))}
    report = Report(0, 20, 0, 20, {ALL: store.put(torch.tensor([2.0, 7.0, 9.0]))}, {ALL: 1}, 1, 0, 0.0)
    view = View(0.0, 20, 0, 0, "", models, None, Memory(), fleet)  # type: ignore[arg-type]
    stepped = store.kept[policy.merge(view, [Arrival(report, 0.0)])[ALL]]
    assert stepped[1:].tolist() == [7.0, 9.0] and 0.0 < float(stepped[0]) < 2.0


def test_no_momentum_is_the_plain_method_to_the_bit() -> None:
    still = {"name": "hierfavg", "root": {"merge": {"kind": "momentum", "beta": 0.0}}}
    assert torch.equal(final(still), final("hierfavg"))
    moving = {"name": "hierfavg", "edge": {"merge": {"kind": "momentum", "beta": 0.5}}}
    assert not torch.equal(final(moving), final("hierfavg"))


def test_an_optimiser_goes_around_a_methods_own_merge() -> None:
    plan = override(make("csahfl").plan(SETTING), {"root": {"merge": {"kind": "momentum"}}})
    assert isinstance(plan.root.merge, Momentum) and plan.root.merge.of == make("csahfl").plan(SETTING).root.merge
    # An optimiser takes the place of another: there is one momentum, not two.
    assert Momentum(0.3).around(plan.root.merge) == Momentum(0.3, of=plan.root.merge.of)
    robust = Merge.build({"kind": "yogi", "of": {"kind": "median"}})
    assert isinstance(robust, ServerYogi) and robust.inner == Merge.build("median")


def test_hidden_reports_are_refused() -> None:
    with pytest.raises(ConfigError, match="other than 'secure'"):
        Merge.build({"kind": "momentum", "of": {"kind": "private"}})


@pytest.mark.parametrize("kind, key", [("momentum", "beta"), ("adam", "beta2"), ("yogi", "beta1")])
def test_impossible_decays_are_refused(kind: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Merge.build({"kind": kind, key: 1.0})

"""What devices and heads do in a global round, fed with events by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from espalier.core.address import role
from espalier.core.aggregator import Aggregator
from espalier.core.memory import Memory
from espalier.core.messages import (
    ALL,
    Arrived,
    ChildLeft,
    CloseCohort,
    Closed,
    Deadline,
    OpenCohorts,
    Order,
    Part,
    Serve,
    SetDeadline,
)
from espalier.core.policies import LocalView, Progress, Rules
from espalier.core.statistics import statistic
from espalier.core.store import Ref
from espalier.methods.d2d.member import ClusterMember, Head, HeadDown, HeadPace, nodes
from tests.core.fakes import SmallFleet, answer, orders, reports

CLOUD = 20
HEAD = role(1, 1)


class Linked(SmallFleet):
    """A fleet whose devices know their links and speeds."""

    def link_report(self, device: int, epoch: int) -> Any:
        return np.array([0.0, 5.0, 2.0])

    def update_time(self, device: int, now: float, epoch: int = 0) -> float:
        return 3.0


def view(memory: Memory | None = None) -> LocalView:
    return LocalView(0.0, 0, Memory() if memory is None else memory, Linked({0: HEAD}))


def order(**changes: Any) -> Order:
    fields: dict[str, Any] = {
        "id": 1, "sender": CLOUD, "to": 0, "models": {ALL: Ref(4)}, "updates": 2, "round": 0, "clock": 0, "sent": 0.0,
    }  # fmt: skip
    return Order(**{**fields, **changes})


def test_a_device_goes_on_from_the_surveys_training_in_its_clusters_first_round() -> None:
    member, memory = ClusterMember(updates=2), Memory()
    assert member.train(view(memory), order(back=True)).start == Ref(4)
    told = member.done(view(memory), order(back=True), {"": Ref(9)})
    assert memory.state(member).feature == Ref(9)
    assert told.stats["seconds"] == 6.0 and told.stats["links"].tolist() == [0, 5, 2]
    assert told.models == {ALL: Ref(9)}
    assert member.train(view(memory), order(args={"first": True})).start == Ref(9)
    # from the second round on it starts from the cluster's model, and tells the head nothing
    assert member.train(view(memory), order(args={})).start == Ref(4)
    assert member.done(view(memory), order(), {"": Ref(10)}).stats == {}


def test_progress_of_the_survey_may_be_discarded() -> None:
    member, memory = ClusterMember(keep=False), Memory()
    member.done(view(memory), order(back=True), {"": Ref(9)})
    assert not memory
    assert member.train(view(memory), order(args={"first": True})).start == Ref(4)


def test_a_cropped_feature_is_a_part_of_the_model() -> None:
    member = ClusterMember(feature="phi_crop")
    told = member.done(view(), order(back=True), {"": Ref(9)})
    assert told.stats["crop"] == Part(Ref(9), ((0, 1),)) and not told.models
    assert member.done(view(), order(), {"": Ref(9)}).models == {ALL: Ref(9)}


def test_links_and_speed_go_with_every_answer() -> None:
    told = ClusterMember(feature="skew").reply(view(), order(ask="label_histogram"), {"histogram": np.ones(3)})
    assert set(told) == {"histogram", "links", "seconds"}


class Twenty:
    """Twenty samples whose outputs are their numbers; batches of 16."""

    rng = np.random.default_rng(0)
    batch_size = 16

    def logits(self, vectors: Any) -> Tensor:
        return torch.arange(20.0).reshape(1, 20, 1).expand(1, 20, 2)


def test_predictions_are_averaged_over_whole_batches_in_random_order() -> None:
    found = statistic("mean_prediction")
    values = found.compute(Twenty(), [])["prediction"]
    drawn = np.random.default_rng(0).permutation(20)[:16]
    assert values == pytest.approx([drawn.mean()] * 2)
    # a forward pass over 3 batches costs one training step
    assert found.batches(3, 1) == pytest.approx(1.0)
    assert statistic("d2d_presence").compute(Twenty(), []) == {}


# -- heads ------------------------------------------------------------------------------------------------


def head() -> tuple[Head, Linked]:
    fleet = Linked({0: HEAD, 1: HEAD, HEAD: CLOUD})
    rules = Rules(pace=HeadPace(2), hand_down=HeadDown())
    return Head(HEAD, rules, fleet), fleet


def ordered(rounds: int, budget: float, **args: Any) -> Arrived:
    return Arrived(Order(7, CLOUD, HEAD, {}, rounds, 0, 0, 100.0, budget, args={"base": Ref(0), **args}))


def test_a_head_runs_its_rounds_and_reports() -> None:
    # T_g = 12, rounds of 5 s: ⌊12/5⌋ = 2.
    node, fleet = head()
    actions = node.on(ordered(2, 12.0), 100.0)
    first = orders(actions)
    assert set(first) == {0, 1} and all(o.args == {"first": True} and o.updates == 2 for o in first.values())
    assert all(o.models == {ALL: Ref(0)} for o in first.values())
    ends = [a for a in actions if isinstance(a, SetDeadline)]
    assert ends[0].seconds == pytest.approx(12.0)
    node.on(answer(first[0], fleet.store.number(1.0), 1, 103.0), 103.0)
    closing = node.on(answer(first[1], fleet.store.number(4.0), 2, 105.0), 105.0)
    assert any(isinstance(a, Closed) for a in closing) and not reports(closing)
    second = orders(node.on(Deadline(OpenCohorts()), 105.0))
    # (1 · 1 + 2 · 4) / 3 = 3 goes down; nobody starts from anything else now
    assert {fleet.store.numbers[o.models[ALL]] for o in second.values()} == {3.0}
    assert all(o.args == {} for o in second.values())
    node.on(answer(second[0], fleet.store.number(6.0), 1, 108.0), 108.0)
    (report,) = reports(node.on(answer(second[1], fleet.store.number(6.0), 2, 110.0), 110.0))
    assert fleet.store.numbers[report.models[ALL]] == 6.0 and report.to == CLOUD and report.stats == {}


def test_no_round_is_begun_that_would_end_after_the_global_round() -> None:
    pace = HeadPace(2)

    def enough(done: int, spent: float, last: float) -> bool:
        message = Order(7, CLOUD, HEAD, {}, 4, 0, 0, 0.0, 12.0)
        return pace.enough(Progress(message, done, spent, last))

    assert not enough(1, 5.0, 5.0)  # 5 + 5 fits into 12
    assert enough(2, 10.0, 5.0)  # 10 + 5 does not
    assert not enough(2, 8.0, 4.0)  # 8 + 4 fits to the second
    assert enough(4, 4.0, 1.0)  # all that was ordered


def test_a_head_closes_with_whoever_is_there_when_the_global_round_ends() -> None:
    node, fleet = head()
    first = orders(node.on(ordered(1, 12.0), 100.0))
    node.on(answer(first[0], fleet.store.number(1.0), 1, 103.0), 103.0)
    (report,) = reports(node.on(Deadline(CloseCohort("", 0)), 112.0))
    assert fleet.store.numbers[report.models[ALL]] == 1.0


def test_a_head_names_members_that_take_longer_than_they_said() -> None:
    # Device 0 said 3 s, device 1 said 5 s; device 0 takes 4 s (a third more than said), device 1 takes 5.5 s.
    node, fleet = head()
    message = ordered(1, 12.0, due={0: 3.0, 1: 5.0})
    first = orders(node.on(message, 100.0))
    node.on(answer(first[0], fleet.store.number(1.0), 1, 104.0), 104.0)
    (report,) = reports(node.on(answer(first[1], fleet.store.number(1.0), 2, 105.5), 105.5))
    assert report.stats == {"throttled": [0]}


def test_a_member_that_never_reports_is_named_and_one_that_left_is_not() -> None:
    node, fleet = head()
    fleet.parents[2] = HEAD
    first = orders(node.on(ordered(1, 12.0, due={0: 3.0, 1: 5.0, 2: 4.0}), 100.0))
    node.on(answer(first[1], fleet.store.number(1.0), 2, 105.0), 105.0)
    del fleet.parents[2]
    node.on(ChildLeft(2), 106.0)
    (report,) = reports(node.on(Deadline(CloseCohort("", 0)), 112.0))
    assert report.stats == {"throttled": [0]}


def test_a_head_that_is_no_longer_one_lets_go_of_its_models() -> None:
    node, fleet = head()
    first = orders(node.on(ordered(1, 12.0), 100.0))
    node.on(answer(first[0], fleet.store.number(1.0), 1, 103.0), 103.0)
    del fleet.parents[HEAD], fleet.parents[0]
    # a straggler's report, or a member that moves on, does not make it begin another round
    assert node.on(ChildLeft(0), 120.0) == []
    assert node.on(answer(first[1], fleet.store.number(1.0), 2, 121.0), 121.0) == []
    del fleet.parents[1]
    assert node.on(ChildLeft(1), 122.0) == [Serve({})]
    assert node.state.models == {} and node.state.order is None


def test_heads_are_made_for_aggregators_on_devices_only() -> None:
    fleet = Linked({})
    make = nodes(Rules())
    made = make(role(3, 2), fleet)
    assert isinstance(made, Aggregator) and made.me == role(3, 2)
    assert make(3, fleet) is None and make(CLOUD, fleet) is None

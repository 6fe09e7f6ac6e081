"""PHE-FL's arithmetic: leave-one-out averages, alpha, mixtures, worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import ALL, Order
from espalier.core.params import ParamSpec
from espalier.core.store import Ref
from espalier.core.view import View
from espalier.methods.phefl.personal import (
    MEANS,
    Mean,
    Personal,
    alpha_by_accuracy,
    alpha_by_loss,
    alpha_of_parts,
    head_slice,
    mixed_parts,
    others,
    with_head,
)
from tests.core.fakes import SmallFleet

EDGE, CLOUD = 10, 20


def total(terms: list[tuple[float, Ref]], numbers: dict[int, float]) -> float:
    return sum(c * numbers[int(r)] for c, r in terms)


def test_others_of_three_equal_edges() -> None:
    # Eq. (7): EAM 1, 2, 4 with equal samples: the others' average for the first edge is (2 + 4) / 2 = 3.
    reports = {10: (5, Ref(1)), 11: (5, Ref(2)), 12: (5, Ref(3))}
    numbers = {1: 1.0, 2: 2.0, 3: 4.0, 9: 7 / 3}
    assert total(others(reports, Ref(9), 10), numbers) == pytest.approx(3.0)
    assert total(others(reports, Ref(9), 11), numbers) == pytest.approx(2.5)
    assert total(others(reports, Ref(9), 12), numbers) == pytest.approx(1.5)
    assert len(others(reports, Ref(9), 10)) == 2


def test_others_weighs_by_samples() -> None:
    # Eq. (6): |D - D_1| = 2 + 3 = 5; Eq. (7): CAM_1 = 2/5 · 10 + 3/5 · 20 = 16.
    reports = {10: (4, Ref(1)), 11: (2, Ref(2)), 12: (3, Ref(3))}
    numbers = {1: 1.0, 2: 10.0, 3: 20.0, 9: (4 * 1 + 2 * 10 + 3 * 20) / 9}
    assert total(others(reports, Ref(9), 10), numbers) == pytest.approx(16.0)


def test_an_edge_with_most_of_the_data_is_left_out_without_cancellation() -> None:
    # 8 of 10 samples: the plain sum over the others, (1 · 2 + 1 · 6) / 2 = 4.
    reports = {10: (8, Ref(1)), 11: (1, Ref(2)), 12: (1, Ref(3))}
    terms = others(reports, Ref(9), 10)
    assert [int(r) for _, r in terms] == [2, 3]
    assert total(terms, {2: 2.0, 3: 6.0}) == pytest.approx(4.0)


def test_a_child_without_a_report_gets_the_average_of_all_and_an_only_child_nobody() -> None:
    reports = {10: (5, Ref(1)), 11: (5, Ref(2))}
    assert others(reports, Ref(9), 12) == [(1.0, Ref(9))]
    assert others({10: (5, Ref(1))}, Ref(1), 10) == []


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(-5, 5)), min_size=2, max_size=8),
    st.integers(0, 7),
)
def test_others_is_the_average_of_the_others(edges: list[tuple[int, float]], which: int) -> None:
    which %= len(edges)
    reports = {k: (n, Ref(k)) for k, (n, _) in enumerate(edges)}
    numbers = {k: w for k, (_, w) in enumerate(edges)}
    numbers[99] = sum(n * w for n, w in edges) / sum(n for n, _ in edges)
    rest = [(n, w) for k, (n, w) in enumerate(edges) if k != which]
    wanted = sum(n * w for n, w in rest) / sum(n for n, _ in rest)
    terms = others(reports, Ref(99), which)
    assert total(terms, numbers) == pytest.approx(wanted, abs=1e-9)
    assert sum(c for c, _ in terms) == pytest.approx(1.0)


def test_alpha_is_the_own_part_of_the_accuracies() -> None:
    # Eq. (8): .9 / (.9 + .3) = .75.
    assert alpha_by_accuracy(0.9, 0.3, 0.1) == pytest.approx(0.75)
    assert alpha_by_accuracy(0.5, 0.0, 0.1) == 1.0
    assert alpha_by_accuracy(0.0, 0.5, 0.1) == 0.0


def test_alpha_without_evidence_is_the_share_of_the_samples() -> None:
    assert alpha_by_accuracy(0.0, 0.0, 0.1) == 0.1
    assert alpha_by_accuracy(math.nan, 0.4, 0.1) == 0.1
    assert alpha_by_loss(0.0, 0.0, 0.1) == 0.1
    assert alpha_by_loss(math.inf, math.inf, 0.1) == 0.1


def test_alpha_by_loss_prefers_the_smaller_loss() -> None:
    # 1/0.5 against 1/1.5: 2 / (2 + 2/3) = .75.
    assert alpha_by_loss(0.5, 1.5, 0.1) == pytest.approx(0.75)
    assert alpha_by_loss(math.inf, 1.0, 0.1) == 0.0
    assert alpha_by_loss(1.0, math.inf, 0.1) == 1.0


def test_alpha_of_parts_judges_a_part_in_both_companies() -> None:
    # own/own .8, own body/others' head .6, others' body/own head .2, others/others .4.
    # body: own .7, others' .3 → .7; head: own .5, others' .5 → .5.
    assert alpha_of_parts([0.8, 0.6, 0.2, 0.4], "accuracy", 0.1) == (pytest.approx(0.7), pytest.approx(0.5))
    # losses: body own 1, others' 3 → .75; head own 2, others' 2 → .5.
    assert alpha_of_parts([1.0, 1.0, 3.0, 3.0], "loss", 0.1) == (pytest.approx(0.75), pytest.approx(0.5))


def test_head_is_the_last_layer() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    spec = ParamSpec.of(module)
    # 3·4 + 4 = 16 and 4 + 4 of the norm come first; the head is 4·2 + 2 = 10 parameters; buffers follow.
    assert head_slice(spec) == slice(24, 34)
    own, rest = torch.zeros(spec.size), torch.ones(spec.size)
    hybrid = with_head(own, rest, head_slice(spec))
    assert hybrid.sum() == 10 and hybrid[24:34].all()
    mixed = mixed_parts(own, rest, head_slice(spec), (0.25, 0.6), spec)
    assert torch.allclose(mixed[:24], torch.tensor(0.75)) and torch.allclose(mixed[24:34], torch.tensor(0.4))
    # floating buffers go with the body; the counter is the larger body's (the others' here)
    assert torch.allclose(mixed[34:42], torch.tensor(0.75)) and mixed[42] == 1.0


class Judged(SmallFleet):
    """A fleet whose edges score models as told."""

    def __init__(self, parents: dict[int, int], scores: list[float]) -> None:
        super().__init__(parents)
        self.scores = scores

    def accuracy(self, refs: Any, where: str, node: int) -> list[float]:
        assert where == "personal"
        return self.scores[: len(refs)]


def averaged(mean: Ref, reports: dict[int, tuple[int, Ref]]) -> Memory:
    memory = Memory()
    memory.provide(MEANS, {ALL: Mean(mean, reports)})
    return memory


def view_of(fleet: SmallFleet, me: int, model: Ref, memory: Memory | None = None) -> View:
    order = Order(1, CLOUD, me, {}, 1, 3, 3, 0.0)
    return View(0.0, me, 3, 3, "", {ALL: model}, order, Memory() if memory is None else memory, fleet)


def test_an_edge_mixes_its_own_model_with_the_others() -> None:
    # Eq. (9): EAM_1 = 1, CAM_1 = 3, alpha = .75 → PEAM_1 = .75 · 1 + .25 · 3 = 1.5.
    fleet = Judged({0: EDGE, 1: EDGE, EDGE: CLOUD}, [0.9, 0.3])
    own, cam = fleet.store.number(1.0), fleet.store.number(3.0)
    view = view_of(fleet, EDGE, own)
    order = Order(2, CLOUD, EDGE, {ALL: cam}, 1, 3, 3, 0.0)
    mixed = Personal().receive(view, order)
    assert fleet.store.numbers[mixed[ALL]] == pytest.approx(1.5)
    (note,) = view.notes
    assert note.kind == "alpha" and note.data["round"] == 3
    assert note.data["values"] == {"alpha": pytest.approx(0.75), "own": 0.9, "others": 0.3}


def test_an_edge_without_a_model_takes_what_it_gets() -> None:
    fleet = SmallFleet({0: EDGE, EDGE: CLOUD})
    view = View(0.0, EDGE, 0, 0, "", {}, None, Memory(), fleet)
    given = fleet.store.number(3.0)
    assert Personal().receive(view, Order(2, CLOUD, EDGE, {ALL: given}, 1, 0, 0, 0.0)) == {ALL: given}


def test_equal_shares_make_the_mixture_the_plain_average() -> None:
    # alpha = 1/K with EAM 1, 2, 4: 1/3 · 1 + 2/3 · 3 = 7/3, the global mean.
    fleet = SmallFleet({10: CLOUD, 11: CLOUD, 12: CLOUD, 0: 10, 1: 11, 2: 12})
    own, cam = fleet.store.number(1.0), fleet.store.number(3.0)
    mixed = Personal(alpha=1 / 3).receive(view_of(fleet, 10, own), Order(2, CLOUD, 10, {ALL: cam}, 1, 3, 3, 0.0))
    assert fleet.store.numbers[mixed[ALL]] == pytest.approx(7 / 3)


def test_a_fixed_alpha_of_one_keeps_the_own_model_itself() -> None:
    fleet = SmallFleet({0: EDGE, EDGE: CLOUD})
    own, cam = fleet.store.number(1.0), fleet.store.number(3.0)
    order = Order(2, CLOUD, EDGE, {ALL: cam}, 1, 3, 3, 0.0)
    assert fleet.store.numbers[Personal(alpha=1.0).receive(view_of(fleet, EDGE, own), order)[ALL]] == 1.0
    assert fleet.store.numbers[Personal(alpha=0.0).receive(view_of(fleet, EDGE, own), order)[ALL]] == 3.0


def server(tiers: str) -> tuple[SmallFleet, View, Personal]:
    """A server (15) over edges 10 and 11 (samples 1 and 2), beside a server (16) over edge 12 (samples 3)."""
    fleet = Judged({0: 10, 1: 11, 2: 12, 10: 15, 11: 15, 12: 16, 15: CLOUD, 16: CLOUD}, [0.8, 0.2])
    one, two = fleet.store.number(10.0), fleet.store.number(40.0)
    mean = fleet.store.number(30.0)  # (1 · 10 + 2 · 40) / 3
    memory = averaged(mean, {10: (1, one), 11: (2, two)})
    return fleet, view_of(fleet, 15, mean, memory), Personal(tiers=tiers)  # type: ignore[arg-type]


def test_servers_between_pass_on_the_average_of_all_other_edges() -> None:
    fleet, view, down = server("edge")
    outside = fleet.store.number(100.0)  # of the 3 samples elsewhere
    served = down.receive(view, Order(2, CLOUD, 15, {ALL: outside}, 1, 3, 3, 0.0))
    # the server itself stands for the average of all: (3 · 30 + 3 · 100) / 6 = 65
    assert fleet.store.numbers[served[ALL]] == pytest.approx(65.0)
    # all but edge 10: (2 · 40 + 3 · 100) / 5 = 76; all but edge 11: (1 · 10 + 3 · 100) / 4 = 77.5
    assert fleet.store.numbers[down.send(view, 10)[ALL]] == pytest.approx(76.0)
    assert fleet.store.numbers[down.send(view, 11)[ALL]] == pytest.approx(77.5)
    assert not view.notes


def test_servers_may_weigh_their_own_edges_against_the_others() -> None:
    fleet, view, down = server("all")
    outside = fleet.store.number(100.0)
    served = down.receive(view, Order(2, CLOUD, 15, {ALL: outside}, 1, 3, 3, 0.0))
    # alpha = .8 / (.8 + .2) = .8: .8 · 30 + .2 · 100 = 44; for edge 10 its sibling stands for the own part:
    # .8 · 40 + .2 · 100 = 52
    assert fleet.store.numbers[served[ALL]] == pytest.approx(44.0)
    assert fleet.store.numbers[down.send(view, 10)[ALL]] == pytest.approx(52.0)
    assert [n.kind for n in view.notes] == ["alpha"]


def test_an_only_edge_of_a_server_gets_what_comes_from_outside() -> None:
    fleet, view, down = server("all")
    del view.product(MEANS)[ALL].reports[11]
    outside = fleet.store.number(100.0)
    down.receive(view, Order(2, CLOUD, 15, {ALL: outside}, 1, 3, 3, 0.0))
    assert fleet.store.numbers[down.send(view, 10)[ALL]] == pytest.approx(100.0)


def test_the_only_edge_of_the_only_server_gets_what_comes_from_outside() -> None:
    # Nobody else has samples, here or elsewhere: there is nothing to share them out by.
    fleet = SmallFleet({0: 10, 10: 15, 15: CLOUD})
    own, outside = fleet.store.number(10.0), fleet.store.number(100.0)
    memory = averaged(own, {10: (1, own)})
    view, down = view_of(fleet, 15, own, memory), Personal()
    down.receive(view, Order(2, CLOUD, 15, {ALL: outside}, 1, 3, 3, 0.0))
    assert fleet.store.numbers[down.send(view, 10)[ALL]] == pytest.approx(100.0)


def test_an_only_edge_gets_its_own_model_back() -> None:
    fleet = SmallFleet({0: EDGE, EDGE: CLOUD})
    own = fleet.store.number(5.0)
    view = View(0.0, CLOUD, 1, 1, "", {ALL: own}, None, averaged(own, {EDGE: (1, own)}), fleet)
    assert Personal().send(view, EDGE) == {ALL: own}


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"layers": "head_body", "by": "share"}, {"by": "luck"}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Personal(**options)

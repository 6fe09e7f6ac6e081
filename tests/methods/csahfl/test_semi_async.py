"""CSAHFL's Eq. (7) to (10), by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.memory import Memory
from espalier.core.messages import Report
from espalier.core.policies import Selection
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.csahfl.semi_async import (
    REPORTERS,
    Discounted,
    FreeShare,
    discount,
    interval,
    total_time,
    workload,
)
from espalier.world.compute import TruncatedNormal
from espalier.world.shape import Shape
from tests.core.fakes import SmallFleet

EDGE = 10


def view(fleet: SmallFleet, models: dict[str, Ref] | None = None) -> View:
    return View(0.0, EDGE, 0, 0, "", models or {}, None, Memory(), fleet)


def arrival(sender: int, samples: int, model: Ref, late: int = 0, group: str = "") -> Arrival:
    return Arrival(Report(1, EDGE, sender, EDGE, {group: model}, {group: samples}, 1, 0, 0.0), 1.0, late)


def test_total_time() -> None:
    # 10 epochs × 5 batches × 0.1 s + 2 s = 7 s
    assert total_time(10, 5, 0.1, 2.0) == pytest.approx(7.0)


def test_interval() -> None:
    # median 30, quartiles 20 and 40: 30 + 1.5 · 20 = 60
    assert interval([10, 20, 30, 40, 100], 1.5) == pytest.approx(60.0)
    assert interval([10, 20, 30, 40, 100], 0.0) == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (8.0, 7),  # (60 - 2) / 8 = 7.25
        (5.8, 10),  # exactly 10
        (5.0, 10),  # 11.6, but at most 10
        (70.0, 1),  # none fits, but at least 1: it will be late
        (0.0, 10),
    ],
)
def test_workload(epoch: float, expected: int) -> None:
    assert workload(60.0, 2.0, epoch, 10) == expected


@given(st.floats(0.1, 1e3), st.floats(0, 100), st.floats(1e-3, 1e3), st.integers(1, 50))
def test_a_workload_of_more_than_one_epoch_fits(within: float, links: float, epoch: float, most: int) -> None:
    found = workload(within, links, epoch, most)
    assert 1 <= found <= most
    assert found == 1 or found * epoch + links <= within * (1 + 1e-6)


def test_discount() -> None:
    assert [discount(late) for late in (0, 1, 2)] == [1.0, 0.5, pytest.approx(1 / 3)]


def test_devices_that_are_late_do_not_make_a_round_smaller() -> None:
    fleet = SmallFleet(dict.fromkeys(range(8), EDGE))
    at = view(fleet)
    at.children = [0, 1, 5, 6, 7]
    # half of eight, drawn among the five that are free
    assert len(FreeShare(0.5).pick(at)) == 4
    assert set(FreeShare(0.5).pick(at)) <= {0, 1, 5, 6, 7}
    at.children = [3]
    assert FreeShare(0.5).pick(at) == [3]
    at.children = list(range(8))
    assert FreeShare(0.5).pick(at) == Selection(0.5).pick(at)


def test_late_reports_weigh_less_and_weights_sum_to_one() -> None:
    fleet = SmallFleet({})
    one, three = fleet.store.number(1.0), fleet.store.number(3.0)
    arrivals = [arrival(0, 2, one), arrival(1, 2, three, late=1)]
    # the other half of the late report's weight goes to the current model, 5: (2·1 + ½·2·3 + ½·2·5) / (2 + 2) = 2.5
    five = {"": fleet.store.number(5.0)}
    found = Discounted().merge(view(fleet, five), arrivals)
    assert fleet.store.numbers[found[""]] == pytest.approx(2.5)
    # scaled to sum one: (2·1 + ½·2·3) / (2 + ½·2) = 5/3
    found = Discounted("normalised").merge(view(fleet, five), arrivals)
    assert fleet.store.numbers[found[""]] == pytest.approx(5 / 3)
    # as printed: (2·1 + ½·2·3) / (2 + 2) = 1.25
    found = Discounted("literal").merge(view(fleet, five), arrivals)
    assert fleet.store.numbers[found[""]] == pytest.approx(1.25)


@pytest.mark.parametrize(("late", "expected"), [(1, 2.0), (4, 1.4)])
def test_a_late_report_alone_moves_the_model_by_its_discount(late: int, expected: float) -> None:
    # current 1, late model 3: 1 + (3 − 1)/(1 + late)
    fleet = SmallFleet({})
    current = {"": fleet.store.number(1.0)}
    found = Discounted().merge(view(fleet, current), [arrival(0, 2, fleet.store.number(3.0), late=late)])
    assert fleet.store.numbers[found[""]] == pytest.approx(expected)


def test_a_leftover_does_not_overwrite_what_the_cloud_has_merged() -> None:
    # right after the cloud's merge an edge has one model, 5; a report of before, 3, one round late: (3 + 5) / 2
    fleet = SmallFleet({})
    found = Discounted().merge(
        view(fleet, {"": fleet.store.number(5.0)}), [arrival(0, 2, fleet.store.number(3.0), late=1, group="c0")]
    )
    assert fleet.store.numbers[found["c0"]] == pytest.approx(4.0)


def test_equal_models_stay_as_they_are() -> None:
    fleet = SmallFleet({})
    one = fleet.store.number(1.0)
    found = Discounted().merge(view(fleet, {"": one}), [arrival(0, 2, one), arrival(1, 5, one, late=3)])
    assert fleet.store.numbers[found[""]] == pytest.approx(1.0)


def test_every_device_counts_once_until_the_next_order() -> None:
    fleet = SmallFleet({})
    one = fleet.store.number(1.0)
    at = view(fleet, {"": one, "c0": one})
    merge = Discounted()
    assert merge.samples(at, [arrival(3, 4, one, group="c0"), arrival(1, 2, one, group="c1")]) == {"c0": 4, "c1": 2}
    # device 3 again: still 4 samples; device 5 is new
    again = [arrival(3, 4, one, group="c0"), arrival(5, 6, one, late=1, group="c0")]
    assert merge.samples(at, again) == {"c0": 10, "c1": 2}
    assert at.product(REPORTERS) == {"c0": {3: 4, 5: 6}, "c1": {1: 2}}


def test_who_could_do_all_epochs_in_the_papers_world() -> None:
    """Delays N(63, 40) cut to [2, 128]: within median + alpha · IQR, .75, .92 and all could do everything.

    So at the paper's alpha of 1.5 the interval exceeds every delay, nobody shortens, and without run-time noise
    nobody is ever late.
    """
    shape = Shape(200_000, 0, 0, batches=np.ones(200_000, dtype=np.int64))
    delays = TruncatedNormal(63, 40, 2, 128).draw(shape)
    assert delays.min() >= 2 and delays.max() <= 128
    assert np.median(delays) == pytest.approx(63.6, abs=0.5)
    shares = [float((delays <= interval(delays, alpha)).mean()) for alpha in (0.5, 1.0, 1.5)]
    assert shares == [pytest.approx(0.75, abs=0.01), pytest.approx(0.92, abs=0.01), 1.0]

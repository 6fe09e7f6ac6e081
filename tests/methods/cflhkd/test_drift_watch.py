"""A device that watches its labels."""

from __future__ import annotations

import numpy as np
import pytest

from espalier.core.messages import ALL
from espalier.core.store import Ref
from espalier.methods.cflhkd.method import Watchful
from tests.policies.fakes import local_view, order

BEFORE, NEAR, AFTER = np.array([10.0, 10, 0, 0]), np.array([12.0, 8, 0, 0]), np.array([0.0, 0, 9, 9])


def test_it_speaks_only_when_its_labels_have_drifted_and_only_once() -> None:
    local, view, order_ = Watchful(threshold=0.3), local_view(), order({ALL: Ref(0)})
    assert local.question(view, order_) == "label_histogram"
    # What it told the cloud when it was asked is what it compares with.
    assert local.reply(view, order({}), {"histogram": BEFORE}) == {"histogram": BEFORE}
    local.answer(view, order_, {"histogram": NEAR})
    assert local.done(view, order_, {"": Ref(1)}).stats == {}
    local.answer(view, order_, {"histogram": AFTER})
    said = local.done(view, order_, {"": Ref(1)}).stats
    np.testing.assert_array_equal(said["histogram"], AFTER)
    local.answer(view, order_, {"histogram": AFTER})
    assert local.done(view, order_, {"": Ref(1)}).stats == {}


def test_slow_drift_adds_up_against_what_was_told_last() -> None:
    # Each step is small, but the comparison is with what the cloud knows: in the end it is told.
    local, view, order_ = Watchful(threshold=0.3), local_view(), order({ALL: Ref(0)})
    local.reply(view, order({}), {"histogram": np.array([10.0, 0])})
    told = []
    for step in range(1, 11):
        local.answer(view, order_, {"histogram": np.array([10.0 - step, step])})
        told.append("histogram" in local.done(view, order_, {"": Ref(1)}).stats)
    # JSD((1, 0), (1 - p, p)) is .27 at p = .45 and .311 at p = .5: step 5 is the first above .3. From (.5, .5) the
    # next is at p = 1, again .311.
    assert [i + 1 for i, t in enumerate(told) if t] == [5, 10]


def test_the_first_look_is_the_baseline_if_nobody_asked() -> None:
    local, view, order_ = Watchful(), local_view(), order({ALL: Ref(0)})
    local.answer(view, order_, {"histogram": AFTER})
    assert local.done(view, order_, {"": Ref(1)}).stats == {}


def test_it_scores_the_model_when_told_to() -> None:
    local, view, tell = Watchful(threshold=None), local_view(), order({ALL: Ref(0)}, tell=True)
    assert local.question(view, order({ALL: Ref(0)})) is None
    assert local.question(view, tell) == "checkup"
    local.answer(view, tell, {"histogram": BEFORE, "accuracy": 0.75})
    assert local.done(view, tell, {"": Ref(1)}).stats == {"accuracy": 0.75}


def test_a_pull_comes_with_the_order() -> None:
    anchored = order({ALL: Ref(0)}, pull=0.1)
    anchored = type(anchored)(**{**{f: getattr(anchored, f) for f in anchored.__slots__}, "anchor": Ref(5)})
    local = Watchful()
    assert local.question(local_view(), anchored) is None
    train = local.train(local_view(), anchored)
    assert (train.anchor, train.mu) == (Ref(5), pytest.approx(0.1))
    plain = local.train(local_view(), order({ALL: Ref(0)}))
    assert (plain.anchor, plain.mu) == (None, 0.0)

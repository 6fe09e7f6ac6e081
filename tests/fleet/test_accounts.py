"""How long the cloud waits at a run's end for those who have not told everything yet."""

from __future__ import annotations

import pytest

from espalier.fleet.coordinator.accounts import Accounts


def asked(slowdown: float = 1.0) -> Accounts:
    found = Accounts(slowdown)
    found.ask([0, 1, 2, 3], 100.0)
    return found


def test_who_has_answered_or_left_is_not_waited_for() -> None:
    accounts = asked()
    for host in (0, 1, 2):
        accounts.given(host, 100.1, 0.0)
    assert accounts.missing == {3}
    assert accounts.waits({0, 1, 2, 3}, 100.2)
    assert not accounts.waits({0, 1, 2}, 100.2)
    accounts.given(3, 100.3, 0.0)
    assert not accounts.waits({0, 1, 2, 3}, 100.3)


@pytest.mark.parametrize(
    ("took", "training", "until"),
    [
        (0.1, 0.0, 102.0),  # ten times 0.1 s is less than two seconds
        (0.5, 0.0, 105.0),  # 10 x 0.5 s
        (0.1, 4.0, 108.0),  # who is at work answers after its training: 2 x 4 s
        (0.1, 1e9, 130.0),  # whatever anybody claims
    ],
)
def test_a_silent_one_gets_as_long_as_the_others_took_many_times_over(
    took: float, training: float, until: float
) -> None:
    accounts = asked()
    accounts.given(0, 100.0 + took / 2, training)
    # one of four: nothing is known yet
    assert accounts.waits({3}, 129.9)
    accounts.given(1, 100.0 + took, training)
    assert accounts.waits({3}, until - 0.01)
    assert not accounts.waits({3}, until)


def test_nobody_is_waited_for_longer_than_half_a_minute() -> None:
    accounts = asked()
    assert not accounts.waits({0, 1, 2, 3}, 130.0)
    # a fleet whose second takes ten real ones waits as long
    slow = asked(slowdown=10.0)
    assert slow.waits({0}, 102.9)
    assert not slow.waits({0}, 103.0)

"""FedDyn: its two updates worked by hand, and its server's memory as the mean of its devices'."""

from __future__ import annotations

import pytest

from espalier.core.store import Ref
from espalier.methods.feddyn import moved

X, Y1, Y2, G = Ref(1), Ref(2), Ref(3), Ref(4)


def total(terms: list[tuple[float, Ref]], values: dict[Ref, float]) -> float:
    return sum(c * values[ref] for c, ref in terms)


def test_a_devices_gradient() -> None:
    # g - alpha (y - x) = 0.5 - 0.1 (3 - 1) = 0.3; without a past, -0.2
    values = {X: 1.0, Y1: 3.0, G: 0.5}
    assert total(moved(G, X, [(1.0, Y1)], 0.1), values) == pytest.approx(0.3)
    assert total(moved(None, X, [(1.0, Y1)], 0.1), values) == pytest.approx(-0.2)


def test_the_servers_drift_is_the_mean_of_the_devices() -> None:
    # shares .25 and .5 of all samples: -0.1 (.25 · 2 + .5 · (-1)) = 0; and .25 · (-.2) + .5 · .1 = 0
    values = {X: 1.0, Y1: 3.0, Y2: 0.0}
    server = total(moved(None, X, [(0.25, Y1), (0.5, Y2)], 0.1), values)
    devices = [total(moved(None, X, [(1.0, y)], 0.1), values) for y in (Y1, Y2)]
    assert server == pytest.approx(0.25 * devices[0] + 0.5 * devices[1]) == pytest.approx(0.0)

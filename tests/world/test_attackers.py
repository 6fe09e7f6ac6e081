"""Who attacks: the right number, the same for everybody under one seed, spread as asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.world.attackers import Attackers, SignFlip
from espalier.world.shape import Shape
from espalier.world.world import World

SHAPE = Shape(20, 4, 7, home=np.repeat(np.arange(4), 5))


def at_edges(attack: Attackers, shape: Shape = SHAPE) -> list[int]:
    assert shape.home is not None
    return np.bincount(np.asarray(shape.home)[attack.hostile(shape)], minlength=shape.n_edges).tolist()


def test_nobody_by_default() -> None:
    assert not World().bind(SHAPE).hostile.any()


@given(fraction=st.floats(0, 1), spread=st.sampled_from(["random", "even", "packed"]), seed=st.integers(0, 99))
def test_the_right_number(fraction: float, spread: str, seed: int) -> None:
    shape = Shape(20, 4, seed)
    attack = Attackers.build({"kind": "sign_flip", "fraction": fraction, "spread": spread})
    found = attack.hostile(shape)
    assert found.sum() == int(fraction * 20 + 0.5)
    assert (found == attack.hostile(shape)).all()


def test_spread() -> None:
    # 6 of 20: even is 2, 2, 1, 1 (first places first, by edge); packed fills edge 0 and begins edge 1.
    assert at_edges(SignFlip(fraction=0.3, spread="even")) == [2, 2, 1, 1]
    assert at_edges(SignFlip(fraction=0.3, spread="packed")) == [5, 1, 0, 0]


def test_named_devices() -> None:
    assert np.flatnonzero(SignFlip(devices=(3, 19)).hostile(SHAPE)).tolist() == [3, 19]
    with pytest.raises(ConfigError, match="below 20"):
        SignFlip(devices=(20,)).hostile(SHAPE)


def test_configuration() -> None:
    table = {"kind": "label_flip", "swaps": [[7, 1]], "fraction": 0.1}
    attack = World.build({"attackers": table}).attackers
    assert World.build(World.build({"attackers": table}).to_plain()).attackers == attack
    with pytest.raises(ConfigError, match=r"in \[0, 1\]"):
        SignFlip(fraction=1.5)
    with pytest.raises(ConfigError, match="sign_flip"):
        World.build({"attackers": {"kind": "sign_flop"}})

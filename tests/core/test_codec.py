from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core import codec
from espalier.core.codec import pack, refs_in, unpack
from espalier.core.errors import ConfigError, RunError
from espalier.core.messages import Arrived, Order, Report
from espalier.core.store import Ref

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(), inner)
        | st.builds(Ref, st.integers(0, 2**40))
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    again = unpack(pack(value))
    assert again == value
    assert type(again) is type(value)


def test_messages_arrays_and_sets_come_back() -> None:
    order = Order(1, 5, 2, {"a": Ref(7)}, 3, 0, 0, 1.5, args={"x": np.arange(6.0).reshape(2, 3)})
    again = unpack(pack([Arrived(order), {3, 1}]))
    assert again[1] == {1, 3}
    message = again[0].message
    assert message.models == order.models
    assert type(message.models["a"]) is Ref
    assert np.array_equal(message.args["x"], order.args["x"])


def test_what_is_not_plain_is_refused() -> None:
    @dataclass
    class Stranger:
        x: int

    with pytest.raises(RunError, match="register"):
        pack(Stranger(1))


@given(st.binary(max_size=200))
def test_rubbish_never_crashes(data: bytes) -> None:
    with contextlib.suppress(RunError):
        unpack(data)


def test_refs_are_found_anywhere() -> None:
    report = Report(1, 9, 2, 9, {"": Ref(4)}, {"": 10}, 1, 0, 0.0, stats={"deep": [(Ref(5), {"k": Ref(6)})]})
    found: set[int] = set()
    refs_in([report, 77], found)
    assert found == {4, 5, 6}


def test_a_second_class_of_a_known_name_is_refused() -> None:
    codec.register(first := made("mine", "TestMember"))
    codec.register(made("mine", "TestMember"))  # the same module, read again
    with pytest.raises(ConfigError, match=r"theirs\.TestMember cannot be registered: mine has registered"):
        codec.register(made("theirs", "TestMember"))
    del codec._REGISTRY[first.__qualname__]
    # A third party's class cannot take the place of one that the package saves.
    with pytest.raises(ConfigError, match=r"espalier\.core\.messages has registered"):
        codec.register(made("theirs", "Report"))


def made(module: str, name: str) -> type:
    return dataclass(type(name, (), {"__module__": module, "__qualname__": name}))

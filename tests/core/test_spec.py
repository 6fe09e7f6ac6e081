"""Configuration objects: from tables and from Python alike, every mistake answered with what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.bounds import Bound, Decay, Share
from espalier.core.coerce import coerce
from espalier.core.errors import ConfigError, EspalierError
from espalier.core.spec import Spec
from espalier.world import Churn, Compute, Drift, Faults, Links, Mobility, World
from espalier.world.capability import Capability
from espalier.world.compute import Constant, Noise, TruncatedNormal


def test_a_table_and_python_give_the_same_object() -> None:
    table = {"kind": "noise", "sigma": 0.2, "of": {"kind": "constant", "seconds": 1}}
    assert Compute.build(table) == Noise(Constant(1.0), 0.2)


def test_a_kind_alone_has_its_defaults() -> None:
    assert Compute.build("constant") == Constant()


def test_values_become_the_field_s_type() -> None:
    model = Constant(seconds=2)
    assert isinstance(model.seconds, float)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"kind": "constnat"}, "Did you mean 'constant'?"),
        ({"seconds": 1}, "compute.kind: must be given"),
        ({"kind": "constant", "secnds": 1}, "Did you mean 'seconds'?"),
        ({"kind": "constant", "seconds": "1"}, "compute.seconds = '1': must be a number"),
        ({"kind": "constant", "seconds": True}, "must be a number"),
        ({"kind": "constant", "seconds": math.nan}, "must be a number"),
        ({"kind": "constant", "seconds": -1}, "finite number ≥ 0"),
        ({"kind": "uniform", "low": 1}, "compute: high must be given"),
        ({"kind": "uniform", "low": 3, "high": 2}, "≥ low = 3.0"),
        ({"kind": "truncated_normal", "mean": 1, "std": 1, "low": 0, "high": 2, "per": "epohc"}, "'epoch'?"),
        ({"kind": "truncated_normal", "mean": 900, "std": 1, "low": 0, "high": 2}, "near enough"),
        ({"kind": "noise", "of": {"kind": "nosuch"}}, "compute.of.kind = 'nosuch'"),
        ({"kind": 3}, "compute.kind = 3"),
        (17, "must be a table"),
        ([], "must be a table"),
    ],
)
def test_mistakes_are_named(table: Any, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Compute.build(table)
    assert says in str(error.value)


def test_python_meets_the_same_checks() -> None:
    with pytest.raises(ConfigError, match=r"compute\.std = 0\.0"):
        TruncatedNormal(1, 0, 0, 2)


@pytest.mark.parametrize(
    ("value", "hint", "result"),
    [
        (1, float, 1.0),
        ([1, 2], tuple[float, float], (1.0, 2.0)),
        ([1, 2, 3], tuple[int, ...], (1, 2, 3)),
        ("a/b", Path, Path("a/b")),
        (None, int | None, None),
        ([0, 1], float | tuple[float, float], (0.0, 1.0)),
        ("x", Literal["x", "y"], "x"),
    ],
)
def test_coerce(value: Any, hint: Any, result: Any) -> None:
    assert coerce(value, hint, "field") == result


@pytest.mark.parametrize(
    ("value", "hint", "says"),
    [
        (1.5, int, "a whole number"),
        ([1], tuple[float, float], "[a number, a number]"),
        ("x", float | tuple[float, float], "a number or [a number, a number]"),
        (["a"], tuple[int, ...], "field[0] = 'a'"),
        (1, str, "a string"),
        (1, bool, "true or false"),
        (3, Path, "a path"),
    ],
)
def test_coerce_refuses(value: Any, hint: Any, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        coerce(value, hint, "field")
    assert says in str(error.value)


def test_a_third_party_kind_registers_itself() -> None:
    @dataclass(frozen=True)
    class Doubled(Spec, family="thing"):
        size: int = 1

    @dataclass(frozen=True)
    class Big(Doubled, kind="big"):
        pass

    assert Doubled.build({"kind": "big", "size": 3}) == Big(3)
    assert "big" not in Compute.kinds


FAMILIES = [Compute, Links, Mobility, Churn, Drift, Capability, Faults]

words = st.text("abk3.-", max_size=4)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


def test_a_known_kind_is_not_given_away() -> None:
    with pytest.raises(ConfigError, match=r"Slow cannot be the compute 'constant': that is espalier\.world\.compute"):

        @dataclass(frozen=True)
        class Slow(Compute, kind="constant"):
            pass

    assert Compute.kinds["constant"] is Constant


@settings(max_examples=300)
@given(st.data())
def test_no_table_ever_gives_another_error(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(FAMILIES))
    kind = data.draw(st.sampled_from(sorted(family.kinds)))
    known = sorted(family.kinds[kind]._fields())
    keys = st.sampled_from(known) if known else words
    table = {"kind": kind, **data.draw(st.dictionaries(keys, junk, max_size=4))}
    try:
        built = family.build(table)
    except EspalierError:
        return
    assert family.build(built.to_plain()) == built


def test_a_world_from_a_table_round_trips() -> None:
    world = World.build(
        {
            "compute": {"kind": "busy", "of": {"kind": "rate", "low": 5, "high": 15}},
            "links": {"kind": "per_tier", "dev_edge": {"bandwidth": [1e6, 1e7]}, "dev_dev": {}},
            "churn": "two_state",
        }
    )
    assert World.build(world.to_plain()) == world
    with pytest.raises(ConfigError, match="Did you mean 'churn'"):
        World.build({"chrun": "none"})


def test_a_bound_in_the_type_is_checked_and_told() -> None:
    """Every open and closed end refuses the first number outside it and takes the first inside."""

    @dataclass(frozen=True)
    class Dial(Spec, family="dial"):
        share: Share = 0.5
        decay: Decay | None = None
        width: Annotated[int, Bound(ge=2)] = 2

    assert Dial(share=1.0, decay=0.0, width=2) == Dial(1.0, 0.0, 2)
    for table, said in [
        ({"share": 0}, r"dial\.share = 0\.0: must be in \(0, 1\]\."),
        ({"decay": 1}, r"dial\.decay = 1\.0: must be in \[0, 1\)\."),
        ({"width": 1}, r"dial\.width = 1: must be at least 2\."),
        ({"width": 2.5}, r"dial\.width = 2\.5: must be a whole number\."),
    ]:
        with pytest.raises(ConfigError, match=said):
            Dial.build(table)
    assert [str(b) for b in (Bound(gt=1), Bound(ge=0), Bound(ge=0, lt=1))] == ["more than 1", "0 or more", "in [0, 1)"]
    assert not Bound(ge=0).holds(float("nan"))

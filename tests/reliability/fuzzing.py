"""Bad input of every kind: what may be wrong with a file a user gives, and what must come of it.

A target draws one case and takes it: the input is accepted, or refused with one of the project's errors. Anything
else (another exception, a hang, a directory left behind) is a failure. `run` gives a target many cases; the tests
give each a few dozen, ``benchmarks/fuzz.py`` thousands.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from espalier.core.errors import EspalierError

#: seconds that one case may take before it counts as a hang
LIMIT = 30


@dataclass(frozen=True)
class Target:
    """One kind of input: how a case is drawn, and what takes it.

    Attributes:
        name: What is fuzzed.
        cases: How a case is drawn.
        take: Takes a case: returns (accepted) or raises one of ``errors`` (refused).
        errors: With what a case may be refused.
        share: Cases of this target per thousand in a long run.
    """

    name: str
    cases: st.SearchStrategy[Any]
    take: Callable[[Any], object]
    errors: tuple[type[EspalierError], ...] = (EspalierError,)
    share: int = 100


def run(target: Target, examples: int, seed: int | None = None) -> tuple[int, int]:
    """Give a target so many cases; return how many it got and accepted.

    Raises what the smallest failing case raised.
    """
    count = accepted = 0

    def one(case: Any) -> None:
        nonlocal count, accepted
        count += 1
        with timed(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an overflow in a model that a mad learning rate blew up
            try:
                target.take(case)
                accepted += 1
            except target.errors as error:
                assert str(error), "the error says nothing"

    checked = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seed is None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )(given(target.cases)(one))
    if seed is not None:
        from hypothesis import seed as seeded

        checked = seeded(seed)(checked)
    checked()
    return count, accepted


@contextlib.contextmanager
def timed(seconds: int) -> Iterator[None]:
    """Raise :class:`TimeoutError` inside a block that takes too long."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Lend a directory for one case."""
    with tempfile.TemporaryDirectory(prefix="espalier-fuzz-") as name:
        yield Path(name)


# -- tables ------------------------------------------------------------------------------------------------

#: what a TOML file may hold where something else is expected
JUNK: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([0, 1, -1, 2, 3, 10, 1000, 2**31, -(2**63), 2**70]),
    st.integers(-5, 50),
    st.sampled_from([0.0, -0.5, 0.3, 1.0, 1.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]),
    st.booleans(),
    st.sampled_from(["", "x", "none", "iid", "median", "trace", "digits", "mlp", "../..", "é\0", "a" * 300]),
    st.text(max_size=5),
    st.just(datetime.date(2020, 2, 29)),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-2, 12), max_size=4),
    st.dictionaries(st.sampled_from(["kind", "of", "seconds", "x"]), st.integers(-2, 5), max_size=2),
)

#: one change to a table: where (fractions choose the way down), what to do, with what
CHANGE = st.tuples(
    st.lists(st.floats(0, 0.999), min_size=1, max_size=5),
    st.sampled_from(["put", "put", "put", "drop", "rename", "add"]),
    JUNK,
)


def changed(table: dict[str, Any], changes: list[tuple[list[float], str, Any]]) -> dict[str, Any]:
    """Return a table with changes made to it."""
    table = copy.deepcopy(table)
    for way, what, junk in changes:
        at: Any = table
        for fraction in way[:-1]:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            inner = at[keys[int(fraction * len(keys))]]
            if not isinstance(inner, dict | list) or not inner:
                break
            at = inner
        if isinstance(at, list):
            if at:
                at[int(way[-1] * len(at))] = junk
            continue
        keys = list(at)
        if what == "add" or not keys:
            at[str(junk)[:8]] = junk
            continue
        key = keys[int(way[-1] * len(keys))]
        if what == "drop":
            del at[key]
        elif what == "rename":
            at[str(key)[:-1] + "x"] = at.pop(key)
        else:
            at[key] = junk
    return table


# -- bytes -------------------------------------------------------------------------------------------------

#: what happens to a file on a bad day: cut off, bytes flipped, zeroed, a piece twice, something at the end
DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(["flip", "flip", "flip", "cut", "zero", "twice", "append"]),
        st.floats(0, 1),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, damage: list[tuple[str, float, int]]) -> bytes:
    """Return bytes with damage done to them."""
    found = bytearray(data)
    for what, where, value in damage:
        at = int(where * max(0, len(found) - 1))
        if what == "flip" and found:
            found[at] ^= value
        elif what == "cut":
            del found[at:]
        elif what == "zero":
            found[at : at + 16 * value] = bytes(len(found[at : at + 16 * value]))
        elif what == "twice":
            found[at:at] = found[at : at + value]
        elif what == "append":
            found += bytes([value]) * value
    return bytes(found)

"""Calls that need what others leave, with a stand-in for Ray's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from espalier.core.errors import TrainingError
from espalier.scale import cluster, dispatch
from espalier.scale.dispatch import Dispatch
from espalier.scale.pool import PooledActor

ray = cluster.ray(loopback=True)


class Pool:
    """One worker that answers at once."""

    present, again, lost = 1, 0, 0

    def __init__(self) -> None:
        self.pooled = PooledActor(None, None, there=True)

    def tend(self) -> None: ...

    def free(self) -> PooledActor | None:
        return self.pooled if len(self.pooled.calls) < 2 else None

    def listen(self, references: list[Any]) -> list[Any]:
        return references[:1]

    def dismiss(self, pooled: PooledActor) -> None:
        self.lost += 1


def lost() -> Exception:
    found: Exception = ray.exceptions.ObjectLostError("ab" * 28, None, "")
    return found


def given(monkeypatch: pytest.MonkeyPatch, answers: dict[int, list[Any]]) -> tuple[list[int], list[Callable[..., Any]]]:
    """Return what was given, and calls whose answers come from a list, the last one again and again."""
    log: list[int] = []

    def call(number: int) -> Callable[[Any], Any]:
        def give(actor: Any) -> Any:
            log.append(number)
            return number, len(log)

        return give

    def result(reference: tuple[int, int]) -> Any:
        left = answers[reference[0]]
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(dispatch, "result", result)
    return log, [call(number) for number in answers]


def test_what_a_lost_node_had_is_computed_again_before_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log, calls = given(monkeypatch, {0: ["a"], 1: ["b"], 2: ["c"], 3: [lost(), "joined"]})
    heard: list[int] = []
    pool: Any = Pool()
    work = Dispatch(pool, calls, {3: {0, 1}}, lambda number, _: heard.append(number))
    assert [work.take(n) for n in (0, 1, 3, 2)] == ["a", "b", "joined", "c"]
    assert log.count(0) == log.count(1) == log.count(3) == 2 and log.count(2) == 1
    assert log.index(3) > log.index(1) and pool.again == 2 and pool.lost == 0
    assert heard.count(0) == 2 and heard.count(3) == 1
    assert not work._calls and not work._held


def test_what_is_lost_again_and_again_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _, calls = given(monkeypatch, {0: ["a"], 1: [lost()]})
    pool: Any = Pool()
    work = Dispatch(pool, calls, {1: {0}})
    with pytest.raises(TrainingError, match="lost over the same batch"):
        work.take(1)


class TwoNodes(Pool):
    """A worker on each of two nodes, free in turn."""

    present = 2

    def __init__(self) -> None:
        self.actors = [PooledActor(None, None, there=True, node=node) for node in "ab"]
        self.turn = 0

    def free(self) -> PooledActor | None:
        if all(pooled.calls for pooled in self.actors):
            return None
        self.turn += 1
        pooled = self.actors[self.turn % 2]
        return pooled if not pooled.calls else self.actors[1 - self.turn % 2]


class Models:
    """Two models, that of even calls and that of odd ones; both are nowhere at first."""

    def __init__(self) -> None:
        self.at: dict[int, set[str]] = {0: set(), 1: set()}
        self.log: list[tuple[int, str]] = []

    def distance(self, number: int, node: str) -> int:
        at = self.at[number % 2]
        return 1 if not at else 0 if node in at else 2

    def went(self, number: int, node: str) -> None:
        self.at[number % 2].add(node)
        self.log.append((number, node))


def test_calls_go_where_their_models_are_and_answers_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    _, calls = given(monkeypatch, {number: [str(number)] for number in range(12)})
    pool: Any = TwoNodes()
    models = Models()
    work = Dispatch(pool, calls, places=models)
    assert [work.take(n) for n in range(12)] == [str(n) for n in range(12)]
    assert sorted(number for number, _ in models.log) == list(range(12))
    # Taken in turn as they stand, each model would soon be on both nodes, and half of the calls far from theirs.
    away = [number for number, node in models.log if node not in models.at[number % 2]]
    assert not away and len(models.at[0]) + len(models.at[1]) <= 3


def test_a_call_that_is_waited_for_is_given_before_nearer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    log, calls = given(monkeypatch, {number: [str(number)] for number in range(6)})
    pool: Any = Pool()
    models = Models()
    models.at[1].add("")  # the only worker's node
    work = Dispatch(pool, calls, places=models)
    assert work.take(0) == "0" and log[0] == 0
    assert [work.take(n) for n in range(1, 6)] == list("12345")

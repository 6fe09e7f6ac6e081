"""Orders that need what others leave, with a stand-in for Ray's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from espalier.core.errors import TrainingError
from espalier.scale import cluster, errands
from espalier.scale.errands import Errands
from espalier.scale.pool import Hand

ray = cluster.ray(loopback=True)


class Pool:
    """One worker that answers at once."""

    present, again, lost = 1, 0, 0

    def __init__(self) -> None:
        self.hand = Hand(None, None, there=True)

    def tend(self) -> None: ...

    def free(self) -> Hand | None:
        return self.hand if len(self.hand.orders) < 2 else None

    def listen(self, references: list[Any]) -> list[Any]:
        return references[:1]

    def dismiss(self, hand: Hand) -> None:
        self.lost += 1


def lost() -> Exception:
    found: Exception = ray.exceptions.ObjectLostError("ab" * 28, None, "")
    return found


def given(monkeypatch: pytest.MonkeyPatch, answers: dict[int, list[Any]]) -> tuple[list[int], list[Callable[..., Any]]]:
    """Return what was given, and orders whose answers come from a list, the last one again and again."""
    log: list[int] = []

    def order(number: int) -> Callable[[Any], Any]:
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

    monkeypatch.setattr(errands, "result", result)
    return log, [order(number) for number in answers]


def test_what_a_lost_node_had_is_computed_again_before_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log, orders = given(monkeypatch, {0: ["a"], 1: ["b"], 2: ["c"], 3: [lost(), "joined"]})
    heard: list[int] = []
    pool: Any = Pool()
    work = Errands(pool, orders, {3: {0, 1}}, lambda number, _: heard.append(number))
    assert [work.take(n) for n in (0, 1, 3, 2)] == ["a", "b", "joined", "c"]
    assert log.count(0) == log.count(1) == log.count(3) == 2 and log.count(2) == 1
    assert log.index(3) > log.index(1) and pool.again == 2 and pool.lost == 0
    assert heard.count(0) == 2 and heard.count(3) == 1
    assert not work._orders and not work._held


def test_what_is_lost_again_and_again_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _, orders = given(monkeypatch, {0: ["a"], 1: [lost()]})
    pool: Any = Pool()
    work = Errands(pool, orders, {1: {0}})
    with pytest.raises(TrainingError, match="lost over the same batch"):
        work.take(1)

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import RunError, TrainingError
from espalier.core.params import Entry, ParamSpec
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.store import EagerStore
from espalier.simulator.ledger import Ledger

# three parameters, one floating buffer, one counter
SPEC = ParamSpec(
    (Entry("w", (3,), 0, 3, "float32"), Entry("m", (1,), 3, 4, "float32"), Entry("n", (1,), 4, 5, "int64")), 3, 4, 5
)


def store(journal: Journal | None = None) -> EagerStore:
    return EagerStore(SPEC, lambda index: torch.full((5,), float(index)), journal or Journal(None))


def test_a_weighted_sum_by_hand() -> None:
    # 1/4 of (1, 2, 3, 4 | 7) and 3/4 of (5, 6, 7, 8 | 9): (4, 5, 6, 7 | 9), the counter of the larger share
    one = store()
    a, b = one.put(torch.tensor([1.0, 2, 3, 4, 7])), one.put(torch.tensor([5.0, 6, 7, 8, 9]))
    assert one.vector(one.combine([(0.25, a), (0.75, b)])).tolist() == [4, 5, 6, 7, 9]
    assert one.combine([(1.0, a)]) == a


def test_what_is_not_finite_is_left_out() -> None:
    # 0.2 * nan is dropped, the others are scaled up by (0.3 + 0.5 + 0.2) / (0.3 + 0.5) = 1.25
    told: list[int] = []
    one = EagerStore(SPEC, lambda index: torch.zeros(5), Journal(None), told.append)
    a, b, c = (one.put(torch.full((5,), x)) for x in (1.0, 2.0, math.nan))
    assert one.vector(one.combine([(0.3, a), (0.5, b), (0.2, c)]))[:4].tolist() == pytest.approx([1.3 * 1.25] * 4)
    assert told == [int(c)]
    assert one.combine([(1.0, c), (0.0, c)], fallback=a) == a
    with pytest.raises(TrainingError, match=r"nothing|fall back"):
        one.combine([(0.5, c), (0.5, c)])
    with pytest.raises(TrainingError, match="at least one model"):
        one.combine([])
    with pytest.raises(TrainingError, match="has 5 numbers"):
        one.put(torch.zeros(4))


@settings(deadline=None)
@given(
    terms=st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 5)), min_size=1, max_size=8),
    values=st.lists(st.floats(-1e3, 1e3, width=32) | st.just(math.nan), min_size=6, max_size=6),
)
def test_it_is_the_simulators_arithmetic(terms: list[tuple[float, int]], values: list[float]) -> None:
    ledger = Ledger(SPEC, lambda jobs, vector, memory: iter(()), lambda i: torch.zeros(5), lambda found: None)
    eager = store()
    spread = torch.tensor([1.0, 0.1, -3.0, 0.7, 2.0])
    pairs = [(ledger.put(v * spread), eager.put(v * spread)) for v in values]
    one = ledger.combine([(c, pairs[i][0]) for c, i in terms], fallback=pairs[0][0])
    two = eager.combine([(c, pairs[i][1]) for c, i in terms], fallback=pairs[0][1])
    torch.testing.assert_close(ledger.vector(one), eager.vector(two), rtol=0, atol=0, equal_nan=True)


def test_it_keeps_what_is_held_and_forgets_the_rest(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    one = store(journal)
    kept, dropped = one.put(torch.ones(5)), one.put(torch.zeros(5))
    learnt = one.learnt(torch.full((5,), 3.0), 0.5, torch.full((3,), 0.25))
    start = one.initial(2)
    one.keep_only({int(kept), int(learnt)})
    journal.commit()
    with pytest.raises(TrainingError, match="no node held it"):
        one.vector(dropped)
    journal.close()
    again = store(Journal(tmp_path))
    assert again.vector(kept).tolist() == [1] * 5
    assert again.vector(start).tolist() == [2] * 5
    assert again.initial(2) == start
    assert again.loss(learnt) == 0.5
    memory = again.memory(learnt)
    assert memory is not None
    assert memory.tolist() == [0.25] * 3
    assert math.isnan(again.loss(kept))
    assert again.put(torch.zeros(5)) > start, "a name is never given twice"


def test_what_is_not_committed_is_not_there(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put("a", {"x": (1, 2)})
    journal.commit()
    journal.put("a", "other")
    journal.post(3, 1, b"letter", [])
    journal._db.close()  # as a kill would
    assert journal._lock is not None
    import os

    os.close(journal._lock)
    again = Journal(tmp_path)
    assert again.get("a") == {"x": (1, 2)}
    assert again.letters() == []
    assert again.get("nothing") is None


def test_a_journal_belongs_to_one_process(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    with pytest.raises(RunError, match=r"is in use by process \d+"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()
    (tmp_path / "node.sqlite").write_bytes(b"this is not a database at all, it is far too short")
    with pytest.raises(RunError, match="cannot be used"):
        Journal(tmp_path)


def test_letters_are_kept_until_they_are_acknowledged() -> None:
    journal = Journal(None)
    for number in (1, 2, 3):
        journal.post(7, number, b"c%d" % number, [number])
    journal.acknowledged(7, 2)
    assert journal.letters() == [(7, 3, b"c3", [3])]


def test_a_journal_is_its_owners_alone(tmp_path: Path) -> None:
    # M6: models and the secrets of secure aggregation were world-readable
    mask = os.umask(0o022)
    try:
        journal = Journal(tmp_path / "state")
        journal.put("x", 1)
        journal.commit()
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "state").iterdir()}
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        assert set(modes.values()) == {0o600}, modes
        journal.close()
    finally:
        os.umask(mask)

"""Links of pairs, as in the D2D paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from espalier.core.errors import WorldError
from espalier.methods.d2d.world import paper_world as d2d
from espalier.world import Shape
from espalier.world.links import Pairs, PerTier, TierLink

MODEL = 248_024
SHAPE = Shape(24, 0, seed=2, model_bytes=MODEL)


def test_a_model_takes_30_units_over_the_throughput() -> None:
    # D11: m = 30 units, λ in 1 … 5 whole units per step, so 30, 15, 10, 7.5 or 6 steps.
    bound = Pairs((1, 5), whole=True).bind(SHAPE)
    times = bound.matrix(np.arange(24), MODEL)
    off = times[~np.eye(24, dtype=bool)]
    assert set(off.round(9)) == {30.0, 15.0, 10.0, 7.5, 6.0}
    assert (times == times.T).all() and (np.diag(times) == 0).all()
    assert bound.time(3, 9, MODEL, 0.0) == times[3, 9]
    # A message of a tenth of the model takes a tenth of the time.
    assert bound.time(3, 9, MODEL // 8, 0.0) == pytest.approx(times[3, 9] / 8)


def test_uniform_links_of_set_1a() -> None:
    times = d2d("1a").links.bind(SHAPE).matrix(np.arange(24), MODEL)
    # a model is 10 units long, and a link carries 3 of them per step
    assert set(times[~np.eye(24, dtype=bool)].round(9)) == {round(10 / 3, 9)}


def test_redrawn_per_global_round_and_the_same_when_asked_again() -> None:
    bound = Pairs((1, 5)).bind(SHAPE)
    rounds = [bound.at(epoch).matrix(np.arange(24), MODEL) for epoch in (0, 1, 2)]
    assert (rounds[0] == bound.matrix(np.arange(24), MODEL)).all()
    assert not np.isclose(rounds[1], rounds[2])[~np.eye(24, dtype=bool)].any()
    assert (bound.at(2).at(1).matrix(np.arange(24), MODEL) == rounds[1]).all()
    fixed = Pairs((1, 5), redraw=False).bind(SHAPE)
    assert fixed.at(9) is fixed


def test_absent_links() -> None:
    shape = Shape(300, 0, 0, model_bytes=MODEL)
    sixth = d2d("3", intermittent=True).links.bind(shape).matrix(np.arange(300), MODEL)
    # λ is one of 0 … 5: a sixth of the links are absent. 44,850 pairs scatter by .0018.
    assert np.isinf(sixth[np.triu_indices(300, 1)]).mean() == pytest.approx(1 / 6, abs=0.006)
    fifth = Pairs(3.0, absent=0.2).bind(shape)
    times = fifth.matrix(np.arange(300), MODEL)
    assert np.isinf(times[np.triu_indices(300, 1)]).mean() == pytest.approx(0.2, abs=0.007)
    assert fifth.neighbours(4).tolist() == [j for j in range(300) if j != 4 and np.isfinite(times[4, j])]


def test_a_subset_s_matrix_is_the_whole_s_part() -> None:
    bound = Pairs((1, 5)).bind(SHAPE)
    some = np.array([17, 3, 20, 8])
    assert (bound.matrix(some, MODEL) == bound.matrix(np.arange(24), MODEL)[np.ix_(some, some)]).all()


def test_the_server_s_links_are_its_own() -> None:
    bound = Pairs((1, 5), access=PerTier(TierLink(1e3, 2.0))).bind(SHAPE)
    assert bound.time(0, 24, 1000, 0.0) == 3.0


def test_the_model_s_size_must_be_known() -> None:
    with pytest.raises(WorldError, match="model_bytes"):
        Pairs((1, 5)).bind(Shape(3, 0, 0))
    assert Pairs(3.0, model_bytes=10).bind(Shape(3, 0, 0)).time(0, 1, 10, 0.0) == 10.0


class TestFile:
    def test_rounds_and_absent_pairs(self, tmp_path: Path) -> None:
        file = tmp_path / "pairs.csv"
        file.write_text("round,a,b,throughput\n0,0,1,3\n1,1,0,5\n1,0,2,1\n")
        bound = Pairs(file=file).bind(Shape(3, 0, 0, model_bytes=100))
        inf = np.inf
        assert bound.matrix(np.arange(3), 100).tolist() == [[0, 10, inf], [10, 0, inf], [inf, inf, 0]]
        assert bound.at(1).matrix(np.arange(3), 100).tolist() == [[0, 6, 30], [6, 0, inf], [30, inf, 0]]
        # After its last round the file begins again.
        assert bound.at(2).time(0, 1, 100, 0.0) == 10.0

    @pytest.mark.parametrize(
        ("rows", "says"),
        [("0,0,1,3\n0,1,0,4", "twice"), ("0,0,1,3\n2,0,1,3", "round 1 has no rows"), ("0,0,7,3", "0 … 2")],
    )
    def test_bad_files(self, tmp_path: Path, rows: str, says: str) -> None:
        file = tmp_path / "pairs.csv"
        file.write_text("round,a,b,throughput\n" + rows + "\n")
        with pytest.raises(WorldError, match=says):
            Pairs(file=file).bind(Shape(3, 0, 0, model_bytes=100))

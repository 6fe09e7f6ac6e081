from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.report.reading import opened
from espalier.report.spans import AWAY, RECEIVES, SENDS, TRAINS, WAITS, Spans, raster
from espalier.report.timeline import MARKS, OVERVIEW_BINS, end_of, material, timeline
from tests.report.made import write_run


def spans(*rows: tuple[int, int, float, float, int]) -> Spans:
    table = np.array(rows, dtype=float).reshape(-1, 5)
    return Spans(
        table[:, 0].astype(np.int32),
        table[:, 1].astype(np.uint8),
        table[:, 2],
        table[:, 3],
        table[:, 4].astype(np.int32),
    )


def test_picture_by_hand() -> None:
    # bins of 1 s. Row 0 trains 0–1.4 s (of the second bin only .4: it waits most of it) and sends 2.5–4 s to row 1
    # (half of the third bin, no more than it waits: the work is shown). Row 1 is away from 4 s on.
    found = raster(spans((0, TRAINS, 0.0, 1.4, -1), (0, SENDS, 2.5, 4.0, 1)), [(1, 4.0, 9.0)], 2, 0.0, 5.0, 5)
    assert found.tolist() == [
        [TRAINS, WAITS, SENDS, SENDS, WAITS],
        [WAITS, WAITS, RECEIVES, RECEIVES, AWAY],
    ]


def test_work_at_once_counts_once() -> None:
    # three sends at once, and one that overlaps them, fill .4 of the bin, not 1.5; waiting has .6
    rows = [(0, SENDS, 0.0, 0.4, -1)] * 3 + [(0, SENDS, 0.1, 0.4, -1)]
    assert raster(spans(*rows), [], 1, 0.0, 1.0, 1).tolist() == [[WAITS]]
    assert raster(spans(*rows, (0, SENDS, 0.35, 0.6, -1)), [], 1, 0.0, 1.0, 1).tolist() == [[SENDS]]
    # training while receiving: .45 + .45 of the same time leaves .55 to wait
    both = spans((0, TRAINS, 0.0, 0.45, -1), (1, SENDS, 0.0, 0.45, 0))
    assert raster(both, [], 2, 0.0, 1.0, 1).tolist() == [[WAITS], [WAITS]]


one_row = st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 5), st.sampled_from([TRAINS, SENDS])), max_size=12)


@settings(max_examples=60)
@given(one_row, st.floats(0, 5), st.floats(0.5, 8))
def test_pictures_agree_with_a_fine_ruler(rows: list[tuple[float, float, int]], start: float, width: float) -> None:
    """What a bin shows is what a thousand moments in it show most often, unless two are nearly equal."""
    found = raster(spans(*((0, state, a, a + d, -1) for a, d, state in rows)), [], 1, start, start + width, 4)[0]
    moments = start + width * (np.arange(4000) + 0.5) / 4000
    busy = {s: np.zeros(4000) for s in (TRAINS, SENDS)}
    for a, d, state in rows:
        busy[state] = np.maximum(busy[state], (moments >= a) & (moments < a + d))
    busy[WAITS] = (busy[TRAINS] + busy[SENDS] == 0).astype(float)
    share = {s: b.reshape(4, 1000).mean(1) for s, b in busy.items()}
    for bin in range(4):
        best = max(share, key=lambda s: share[s][bin])
        assert share[int(found[bin])][bin] >= share[best][bin] - 0.02


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def test_material_holds_every_span_to_a_millionth(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, notes=True, churn=True)) as run:
        found = material(run, 10**6)
        wanted = run.query("SELECT node, start, stop, other FROM spans WHERE stop > start ORDER BY start")
        end = end_of(run)
    assert found is not None
    assert found["window"] == [0.0, end] and found["tick"] <= end / 1e6
    start = unpacked(found["spans"]["start"], "<i4").cumsum() * found["tick"]
    stop = start + unpacked(found["spans"]["length"], "<i4") * found["tick"]
    rows = unpacked(found["spans"]["row"], "<i2")
    assert np.abs(start - [w[1] for w in wanted]).max() <= end / 1e6
    assert np.abs(stop - [w[2] for w in wanted]).max() <= 2 * end / 1e6
    names = {f"device {d}": d for d in range(20)} | {f"edge {e}": 20 + e for e in range(4)}
    assert [names[found["rows"][r]] for r in rows] == [w[0] for w in wanted]
    assert unpacked(found["overview"]["data"], "u1").shape == (len(found["rows"]) * OVERVIEW_BINS,)
    assert found["hidden"] == 0 and set(found["marks"]) <= set(MARKS)
    assert len(found["marks"]["dropped"]["time"]) == 10


def test_material_keeps_a_window_where_there_is_too_much(tmp_path: Path) -> None:
    with opened(write_run(tmp_path)) as run:
        found = material(run, 100)
        later = material(run, 100, (100.0, 200.0))
        times = [t for (t,) in run.query("SELECT start FROM spans ORDER BY start")]
    assert found is not None and later is not None
    # complete up to the start of the first span that is not there
    assert found["window"] == [0.0, times[100]]
    assert len(unpacked(found["spans"]["row"], "<i2")) == 100
    assert later["window"][0] == 100.0 and later["window"][1] <= 200.0


def test_runs_without_spans_have_no_timeline(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, rounds=0)) as run:
        assert material(run, 100) is None


def test_windows_must_have_a_length(tmp_path: Path) -> None:
    with opened(write_run(tmp_path)) as run, pytest.raises(ConfigError, match="start = 5, stop = 5: a window must end"):
        timeline(run, 5.0, 5.0)


def test_large_fleets_show_some_devices_of_every_edge(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, devices=1000, edges=5, rounds=1)) as run:
        found = material(run, 100)
    assert found is not None
    assert len(found["rows"]) == 420 and found["hidden"] == 1000 - 414
    assert sum(name.startswith("edge") for name in found["rows"]) == 5

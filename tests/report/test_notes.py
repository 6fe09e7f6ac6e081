"""Numbers that methods note, similarities, labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from espalier.record.database import Recorder
from espalier.report.heatmaps import labels_per_device, labels_per_edge, samples_per_device, similarity
from espalier.report.notes import MOST_LINES, noted
from espalier.report.reading import opened
from tests.report.made import write_run


def noting(where: Path, *events: tuple[float, str, int | None, dict[str, object]]) -> Path:
    write_run(where, rounds=4, moving=0.0)
    recorder = Recorder(where / "run.sqlite")
    for event in events:
        recorder.event(*event)
    recorder.close()
    return where


def test_any_number_becomes_a_series(tmp_path: Path) -> None:
    where = noting(
        tmp_path,
        (1.0, "alpha", 20, {"round": 1, "values": {"20": 0.5, "21": 0.25}}),
        (2.0, "alpha", 20, {"round": 2, "values": {"20": 0.6, "21": 0.35}}),
        (1.0, "limit", 24, {"round": 1, "limit": 3, "accuracy": 0.5, "why": "words are no numbers"}),
        (2.0, "limit", 24, {"round": 2, "limit": 4, "accuracy": 0.75, "open": True}),
        (2.0, "gone", 3, {"silent": False}),
        (2.0, "excluded", 24, {"round": 2, "devices": [1, 2, 3]}),
    )
    with opened(where) as run:
        found = noted(run)
    assert list(found) == ["alpha", "limit", "limit: accuracy"]
    alpha = found["alpha"]["data"]
    assert [t["name"] for t in alpha] == ["edge 0", "edge 1"]
    assert alpha[1]["x"] == [1.0, 2.0] and alpha[1]["y"] == [0.25, 0.35]
    assert found["limit"]["data"][0]["y"] == [3.0, 4.0]


def test_events_without_a_round_are_drawn_over_time(tmp_path: Path) -> None:
    where = noting(tmp_path, (0.0, "pull", 20, {"value": 1.0}), (600.0, "pull", 20, {"value": 0.5, "round": 3}))
    with opened(where) as run:
        found = noted(run)["pull"]
    assert found["data"][0]["x"] == [0.0, 10.0] and found["layout"]["xaxis"]["title"]["text"] == "virtual time (min)"


def test_a_number_that_never_changes_is_not_drawn(tmp_path: Path) -> None:
    events = [(float(r), "term", 20, {"round": r, "value": 1}) for r in (1, 2, 3)]
    with opened(noting(tmp_path, *events)) as run:
        assert noted(run) == {}


def test_many_series_become_a_heatmap(tmp_path: Path) -> None:
    events = [
        (float(r), "weights", 24, {"round": r, "values": {f"device {d}": d / 10 for d in range(MOST_LINES + 1)}})
        for r in (1, 2, 3)
    ]
    with opened(noting(tmp_path, *events)) as run:
        trace = noted(run)["weights"]["data"][0]
    assert trace["type"] == "heatmap" and np.shape(trace["z"]) == (MOST_LINES + 1, 3)
    assert trace["z"][3] == [0.3, 0.3, 0.3]


def test_similarities_are_sorted_by_cluster(tmp_path: Path) -> None:
    write_run(tmp_path, devices=4, edges=2, rounds=0)
    recorder = Recorder(tmp_path / "run.sqlite")
    for device, group in enumerate("xyxy"):
        recorder.move(1.0, device, 4, group)
    matrix = [[1, 0, 0.9, 0.1], [0, 1, 0.2, 0.8], [0.9, 0.2, 1, 0], [0.1, 0.8, 0, 1]]
    recorder.event(1.0, "similarity", 6, {"matrix": matrix, "devices": [0, 1, 2, 3]})
    recorder.close()
    with opened(tmp_path) as run:
        found = similarity(run)
    assert found is not None and "frames" not in found
    assert found["data"][0]["x"] == [f"device {d} (cluster {g})" for d, g in ((0, "x"), (2, "x"), (1, "y"), (3, "y"))]
    # clusters show as squares: devices 0 and 2 (.9), 1 and 3 (.8)
    assert found["data"][0]["z"] == [[1, 0.9, 0, 0.1], [0.9, 1, 0.2, 0], [0, 0.2, 1, 0.8], [0.1, 0, 0.8, 1]]


def test_a_member_draws_nothing_in_the_clouds_name(tmp_path: Path) -> None:
    # `espalier report` and the live page ended with a KeyError for a device's note of this kind
    write_run(tmp_path, devices=4, edges=2, rounds=0)
    recorder = Recorder(tmp_path / "run.sqlite")
    for node in (2, None):
        for junk in ({}, {"matrix": 1}, {"matrix": [["a"]]}, {"matrix": [[1.0]], "devices": [99]}):
            recorder.event(1.0, "similarity", node, junk)
    recorder.close()
    with opened(tmp_path) as run:
        assert similarity(run) is None


def test_several_similarities_get_a_slider(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, similarity=True)) as run:
        found = similarity(run)
    assert found is not None and len(found["frames"]) == 2 and len(found["data"][0]["z"]) == 20


def test_labels_by_hand(tmp_path: Path) -> None:
    write_run(tmp_path, devices=3, edges=2, rounds=0, classes=2)
    recorder = Recorder(tmp_path / "run.sqlite")
    counts = ([6, 2], [0, 4], [5, 0])
    recorder.devices(
        (d, e, sum(c), np.array(c, dtype="<i4").tobytes())
        for d, (e, c) in enumerate(zip((0, 0, 1), counts, strict=True))
    )
    recorder.close()
    with opened(tmp_path) as run:
        edges, devices, sizes = labels_per_edge(run), labels_per_device(run), samples_per_device(run)
    assert edges is not None and devices is not None
    # edge 0 holds 6 + 0 and 2 + 4 of 12
    assert edges["data"][0]["z"] == [[0.5, 0.5], [1.0, 0.0]] and edges["data"][0]["customdata"] == [[6, 6], [5, 0]]
    assert devices["data"][0]["z"] == [[0.75, 0.25], [0.0, 1.0], [1.0, 0.0]]
    assert sizes["data"][0]["y"] == [8.0, 5.0, 4.0]


def test_data_without_labels_show_their_amount(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, classes=1, rounds=0)) as run:
        assert labels_per_edge(run) is None and labels_per_device(run) is None
        assert samples_per_device(run)["data"][0]["y"] == [60.0] * 20

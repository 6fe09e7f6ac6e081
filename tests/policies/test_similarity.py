"""Methods that cluster by likeness put what they measured into the record, for reports to draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import espalier
from espalier.core.view import View
from espalier.policies.dendrogram import MOST_RECORDED_DEVICES, note_similarity

FLEET = {"fleet": {"devices": 12, "edges": 3}, "stop": {"rounds": 3}}


@pytest.mark.parametrize(
    ("method", "unit"),
    [
        ({"name": "csahfl"}, "principal angle (°)"),
        ({"name": "cflhkd"}, "affinity"),
        ({"name": "cflhkd", "bilevel": False}, "affinity"),
        ({"name": "flhc", "after": 1, "every": 1}, "l1 distance of updates"),
        ({"name": "cfl", "after": 1, "every": 1}, "cosine of updates"),
        ({"name": "icfl", "every": 1}, "cosine of updates"),
        ({"name": "d2d"}, "cosine of features"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else None,
)
def test_what_devices_were_clustered_by_can_be_looked_at(method: dict[str, Any], unit: str) -> None:
    run = espalier.simulate(method, FLEET)
    events = run.events("similarity")
    assert events
    for event in events:
        matrix = np.array(event["matrix"], dtype=float)
        assert matrix.shape == (len(event["devices"]),) * 2
        assert np.allclose(matrix, matrix.T, equal_nan=True)
        assert event["what"] == unit
    assert run.plot_similarity().data[0].type == "heatmap"


def test_nothing_is_recorded_of_nobody() -> None:
    view = View(0.0, 0, 0, 0, "", {}, None, {}, None)  # type: ignore[arg-type]
    note_similarity(view, [], np.empty((0, 0)), "affinity")
    note_similarity(view, [3], np.ones((1, 1)), "affinity")
    assert view.notes == []


def test_of_many_devices_some_are_recorded() -> None:
    view = View(0.0, 0, 0, 0, "", {}, None, {}, None)  # type: ignore[arg-type]
    n = 1000
    note_similarity(view, list(range(n)), np.arange(n)[:, None] - np.arange(n)[None], "difference")
    (note,) = view.notes
    kept = note.data["devices"]
    assert len(kept) == MOST_RECORDED_DEVICES and kept[0] == 0 and kept[-1] == n - 1
    assert note.data["matrix"][3, 7] == kept[3] - kept[7]

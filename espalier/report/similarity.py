"""Similarity of devices as a method measured it. Devices are sorted by the cluster that they end in.

Clusters show as squares along the diagonal. Methods record it by `espalier.policies.dendrogram.note_similarity`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from espalier.record.run import Run
from espalier.report.figures import Figure, figure, numbers, thin
from espalier.report.names import Names
from espalier.report.palette import SCALE
from espalier.report.tree_history import moments

#: matrices shown (the slider's steps), and devices in one of them
MOST_MATRICES, MOST_DEVICES = 6, 250


def similarity(run: Run) -> Figure | None:
    """Draw the matrices that the run recorded (events ``similarity``); None if it has none."""
    rows = run.query("SELECT time, data FROM events WHERE kind = 'similarity' ORDER BY rowid")
    rows = [(time, facts) for time, text in rows if len((facts := json.loads(text))["matrix"])]
    if not rows:
        return None
    homes = dict(run.query("SELECT node, edge FROM devices"))
    called = Names.of(run)
    groups = moments(run, 2)[-1].groups
    frames: list[dict[str, Any]] = []
    what = "similarity"
    for time, facts in [rows[i] for i in thin(len(rows), MOST_MATRICES).tolist()]:
        matrix = np.array(facts["matrix"], dtype=float)
        devices, what = facts.get("devices") or list(range(len(matrix))), facts.get("what", what)
        order = sorted(range(len(devices)), key=lambda i: (groups.get(devices[i], ""), homes.get(devices[i], 0), i))
        kept = [order[i] for i in thin(len(order), MOST_DEVICES).tolist()]
        names = [_name(devices[i], groups, homes, called) for i in kept]
        trace = {
            "type": "heatmap",
            "x": names,
            "y": names,
            "z": [numbers(row, 3) for row in matrix[np.ix_(kept, kept)]],
        }
        frames.append({"name": f"{time:.6g} s", "caption": f"measured at {time:.6g} s", "data": [trace], "traces": [0]})
    first: dict[str, Any] = {
        "type": "heatmap", "colorscale": SCALE, "hovertemplate": "%{x} and %{y}: %{z}<extra></extra>",
        "colorbar": {"title": {"text": what}, "thickness": 12},
    }  # fmt: skip
    side = {
        "type": "category",
        "showticklabels": False,
        "showgrid": False,
        "ticks": "",
        "constrain": "domain",
        "title": {"text": "device, by cluster"},
    }
    data = [{**first, **frames[-1]["data"][0]}]
    return figure(
        data, side, {**side, "autorange": "reversed", "scaleanchor": "x"}, height=560,
        frames=frames if len(frames) > 1 else None,
    )  # fmt: skip


def _name(device: int, groups: dict[int, str], homes: dict[int, int], called: Names) -> str:
    cluster = f"cluster {groups[device]}" if device in groups else called.edge(homes[device])
    return f"{called.device(device)} ({cluster})"

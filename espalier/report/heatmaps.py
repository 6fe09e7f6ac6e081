"""Heatmaps: which labels edges and devices hold, and how alike devices are as a method measured it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from espalier.record.run import Run
from espalier.report.figures import LIGHT, SCALE, Figure, axis, figure, numbers, thin
from espalier.report.reading import Names
from espalier.report.tree_history import moments

#: devices drawn one by one; of more, every k-th
MOST_DEVICES = 400
#: devices whose rows have room for their names
MOST_NAMED = 30


def labels_per_edge(run: Run) -> Figure | None:
    """Draw each edge's share of every label, by the devices that start there; None if data have no labels."""
    table, edges = _histograms(run)
    if table.shape[1] < 2:
        return None
    sums = np.stack([table[edges == e].sum(0) for e in range(int(edges.max()) + 1)])
    names = Names.of(run)
    return _heatmap(sums, [names.edge(e) for e in range(len(sums))], names, "edge", 16)


def labels_per_device(run: Run) -> Figure | None:
    """Draw each device's share of every label, devices sorted by edge; None if data have no labels."""
    table, edges = _histograms(run)
    if table.shape[1] < 2:
        return None
    order = np.lexsort((np.arange(len(edges)), edges))
    order = order[thin(len(order), MOST_DEVICES)]
    names = Names.of(run)
    rows = [f"{names.device(d)} ({names.edge(int(edges[d]))})" for d in order.tolist()]
    return _heatmap(table[order], rows, names, "device, by edge", 20 if len(rows) <= MOST_NAMED else 3)


def samples_per_device(run: Run) -> Figure:
    """Draw how many samples devices have, from the largest to the smallest."""
    table, _ = _histograms(run)
    sizes = np.sort(table.sum(1))[::-1]
    kept = thin(len(sizes), MOST_DEVICES)
    data = [{
        "type": "scatter", "mode": "lines", "x": (kept + 1).tolist(), "y": numbers(sizes[kept], 9), "fill": "tozeroy",
        "line": {"color": LIGHT[0], "shape": "hv"}, "hovertemplate": "%{x}. largest: %{y} samples<extra></extra>",
    }]  # fmt: skip
    return figure(
        data,
        axis("rank of the device, largest first", None),
        axis("training data", "samples", rangemode="tozero"),
        height=300,
    )


def _histograms(run: Run) -> tuple[np.ndarray, np.ndarray]:
    rows = run.query("SELECT edge, histogram FROM devices ORDER BY node")
    return np.stack([np.frombuffer(h, dtype="<i4") for _, h in rows]).astype(float), np.array([e for e, _ in rows])


def _heatmap(counts: np.ndarray, rows: list[str], names: Names, title: str, thickness: int) -> Figure:
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    labels: list[str] | list[int] = list(names.classes) if names.classes else list(range(counts.shape[1]))
    data = [{
        "type": "heatmap", "x": labels, "y": rows, "z": [numbers(r, 3) for r in shares],
        "customdata": counts.astype(int).tolist(), "colorscale": SCALE, "zmin": 0,
        "colorbar": {"title": {"text": "share of samples"}, "thickness": 12},
        "hovertemplate": "%{y}, label %{x}: %{customdata} samples (%{z:.1%})<extra></extra>",
    }]  # fmt: skip
    vertical = {
        "automargin": True, "type": "category", "autorange": "reversed", "title": {"text": title},
        "showticklabels": thickness > 8,
    }  # fmt: skip
    few = counts.shape[1] <= 30
    horizontal = axis("label", None, **({"dtick": 1} if few else {}), **({"type": "category"} if names.classes else {}))
    return figure(data, horizontal, vertical, height=int(min(900, max(260, 130 + thickness * len(rows)))))


#: matrices shown (the slider's steps), and devices in one of them
MOST_MATRICES, MOST_COMPARED = 6, 250


def similarity(run: Run) -> Figure | None:
    """Draw the matrices that the run recorded (events ``similarity``); None if it has none.

    Devices are sorted by the cluster that they end in: clusters show as squares along the diagonal. Methods record
    matrices by `espalier.policies.dendrogram.note_similarity`.
    """
    called = Names.of(run)
    # others of a real fleet may write into the record whatever they like, about themselves
    its = "SELECT time, data FROM events WHERE kind = 'similarity' AND node = ? ORDER BY rowid"
    rows = [(time, facts) for time, text in run.query(its, called.cloud) if len((facts := json.loads(text))["matrix"])]
    if not rows:
        return None
    homes = dict(run.query("SELECT node, edge FROM devices"))
    groups = moments(run, 2)[-1].groups
    frames: list[dict[str, Any]] = []
    what = "similarity"
    for time, facts in [rows[i] for i in thin(len(rows), MOST_MATRICES).tolist()]:
        matrix = np.array(facts["matrix"], dtype=float)
        devices, what = facts.get("devices") or list(range(len(matrix))), facts.get("what", what)
        order = sorted(range(len(devices)), key=lambda i: (groups.get(devices[i], ""), homes.get(devices[i], 0), i))
        kept = [order[i] for i in thin(len(order), MOST_COMPARED).tolist()]
        names = [_name(devices[i], groups, homes, called) for i in kept]
        z = [numbers(row, 3) for row in matrix[np.ix_(kept, kept)]]
        trace = {"type": "heatmap", "x": names, "y": names, "z": z}
        frames.append({"name": f"{time:.6g} s", "caption": f"measured at {time:.6g} s", "data": [trace], "traces": [0]})
    first: dict[str, Any] = {
        "type": "heatmap", "colorscale": SCALE, "hovertemplate": "%{x} and %{y}: %{z}<extra></extra>",
        "colorbar": {"title": {"text": what}, "thickness": 12},
    }  # fmt: skip
    side = {
        "type": "category", "showticklabels": False, "showgrid": False, "ticks": "", "constrain": "domain",
        "title": {"text": "device, by cluster"},
    }  # fmt: skip
    data = [{**first, **frames[-1]["data"][0]}]
    return figure(
        data, side, {**side, "autorange": "reversed", "scaleanchor": "x"}, height=560,
        frames=frames if len(frames) > 1 else None,
    )  # fmt: skip


def _name(device: int, groups: dict[int, str], homes: dict[int, int], called: Names) -> str:
    cluster = f"cluster {groups[device]}" if device in groups else called.edge(homes[device])
    return f"{called.device(device)} ({cluster})"

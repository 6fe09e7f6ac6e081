"""What data whoever holds: labels per edge and per device."""

from __future__ import annotations

import numpy as np

from espalier.record.run import Run
from espalier.report.figures import Figure, axis, figure, numbers, thin
from espalier.report.names import Names
from espalier.report.palette import LIGHT, SCALE

#: devices drawn one by one; of more, every so many-th
MOST_DEVICES = 400


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
    return _heatmap(table[order], rows, names, "device, by edge", 3)


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

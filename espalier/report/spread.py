"""How the score spreads over devices and edges: at the end for all methods, over time for one run."""

from __future__ import annotations

from html import escape
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.record.measures import lower_is_better, spoken
from espalier.record.run import Run
from espalier.report.budget import called
from espalier.report.figures import LIGHT, MUTED, SCALE, Figure, axis, colour, faded, figure, numbers, thin, time_unit
from espalier.report.groups import Groups
from espalier.report.reading import Names

Floats = NDArray[np.float64]
Series = list[tuple[float, int, NDArray[np.float32]]]


def final_array(run: Run, name: str) -> Floats:
    """Return a number per device or edge at the last evaluation; empty if there is none."""
    rows = run.query("SELECT data FROM arrays WHERE name = ? ORDER BY rowid DESC LIMIT 1", name)
    values: Floats = np.frombuffer(rows[0][0], dtype="<f4").astype(np.float64) if rows else np.zeros(0)
    known: Floats = values[np.isfinite(values)]
    return known


def at_the_end(comparison: Groups, finals: dict[str, Floats], scope: str = "device") -> Figure:
    """Draw one box per method: the score of its devices (or edges) at the end, all seeds together.

    Args:
        comparison: What is shown.
        finals: The scores by run (:attr:`espalier.report.reading.Reading.key`).
        scope: ``device`` or ``edge``.
    """
    data: list[dict[str, Any]] = []
    for group in reversed(comparison.groups):
        parts = [finals[r.key] for r in group.readings if len(finals.get(r.key, ()))]
        if not parts:
            continue
        values = np.concatenate(parts)
        low, q1, median, q3, high = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
        tone, label = colour(group.number), "<br>".join(map(escape, wrap(group.label, 22)))
        data.append({
            "type": "box", "orientation": "h", "y": [label], "name": label, "q1": numbers([q1]),
            "median": numbers([median]), "q3": numbers([q3]), "lowerfence": numbers([low]),
            "upperfence": numbers([high]), "mean": numbers([values.mean()]), "line": {"color": tone},
            "fillcolor": faded(tone, 0.18), "boxmean": True, "showlegend": False, "hoverinfo": "x+name",
            "meta": {"group": group.number},
        })  # fmt: skip
    rows = axis("", None, type="category")
    return figure(data, axis(spoken(f"{comparison.score}_{scope}"), None), rows, height=110 + 40 * max(1, len(data)))


def over_time(run: Run, score: str) -> Figure | None:
    """Draw the devices' scores of one run: median, middle half, and all but the outer twentieths."""
    series = _thinned(run.arrays(f"{score}_device"))
    if not series:
        return None
    series, x, title, unit = _steps(series, run)
    levels = np.array([np.nanquantile(v.astype(float), [0.05, 0.25, 0.5, 0.75, 0.95]) for _, _, v in series])
    tone = LIGHT[0]
    data: list[dict[str, Any]] = []
    for low, high, alpha, label in ((0, 4, 0.15, "5 % … 95 % of devices"), (1, 3, 0.3, "25 % … 75 %")):
        edge = {"mode": "lines", "line": {"width": 0, "color": tone}, "hoverinfo": "skip", "legendgroup": label}
        data.append({"type": "scatter", "x": x, "y": numbers(levels[:, low]), "showlegend": False, **edge})
        fill = {"fill": "tonexty", "fillcolor": faded(tone, alpha)}
        data.append({"type": "scatter", "x": x, "y": numbers(levels[:, high]), "name": label, **edge, **fill})
    data.append({
        "type": "scatter", "x": x, "y": numbers(levels[:, 2]), "mode": "lines", "name": "median",
        "line": {"color": tone, "width": 2},
        "customdata": [numbers(row) for row in levels[:, [0, 1, 3, 4]]],
        "hovertemplate": "median %{y:.3f}<br>5 %: %{customdata[0]}, 25 %: %{customdata[1]}, "
        "75 %: %{customdata[2]}, 95 %: %{customdata[3]}<extra></extra>",
    })  # fmt: skip
    if not lower_is_better(score):
        known = [np.sort(v[np.isfinite(v)]) for _, _, v in series]
        tail = [float(v[: max(1, len(v) // 10)].mean()) if len(v) else float("nan") for v in known]
        line = {"color": MUTED[0], "dash": "dot", "width": 1.5}
        data.append(
            {"type": "scatter", "x": x, "y": numbers(tail), "mode": "lines", "name": "worst tenth", "line": line}
        )
    return figure(data, axis(title, unit), axis(spoken(f"{score}_device"), None))


def edges_over_time(run: Run, score: str) -> Figure | None:
    """Draw every edge's score of one run as a heatmap: edges × evaluations."""
    series = _thinned(run.arrays(f"{score}_edge"))
    if not series:
        return None
    series, x, title, unit = _steps(series, run)
    table = np.stack([v for _, _, v in series]).T.astype(float)
    names = Names.of(run)
    rows = [names.edge(e) for e in range(len(table))]
    data = [{
        "type": "heatmap", "x": x, "y": rows, "z": [numbers(row, 4) for row in table], "colorscale": SCALE,
        "colorbar": {"title": {"text": spoken(f"{score}_edge")}, "thickness": 12},
        "hovertemplate": "%{y}, %{x}: %{z:.3f}<extra></extra>",
    }]  # fmt: skip
    vertical = axis("edge", None, type="category", autorange="reversed")
    return figure(data, axis(title, unit), vertical, height=min(900, 140 + 22 * len(rows)))


def _thinned(series: Series, most: int = 150) -> Series:
    return [series[i] for i in thin(len(series), most).tolist()]


def _steps(series: Series, run: Run) -> tuple[Series, list[float | None], str, str | None]:
    """Return what is drawn against what: time, or rounds in a world that costs none."""
    times = np.array([t for t, _, _ in series])
    if times[-1] > 0:
        unit, size = time_unit(float(times[-1]))
        return series, numbers(times / size, 6), called("time", bool(run.meta("deployed"))), unit
    return series, numbers(np.array([r for _, r, _ in series], dtype=float), 9), "global rounds", None

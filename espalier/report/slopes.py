"""A paper's figures and ours as slopes: per column from the published value (left) to ours (right), a line per method.

Lines that cross are methods that changed places.
"""

from __future__ import annotations

from typing import Any

from espalier.report.figures import Figure, figure
from espalier.report.palette import MUTED, colour, dash, symbol
from espalier.study.base import Results

#: where published and measured values stand around a column's place
LEFT, RIGHT = -0.28, 0.28


def slopes(results: Results, name: str) -> Figure:
    """Draw one measure of a study's results; hollow marks are published, filled ones ours."""
    measure = results.study.measures[name]
    data: list[dict[str, Any]] = []
    for number, row in enumerate(results.rows):
        x: list[float | None] = []
        y: list[float | None] = []
        for place, column in enumerate(results.columns):
            pair = (results.published(row, column, name), results.mean(row, column, name))
            x += [place + LEFT, place + RIGHT, None]
            y += [*(None if value != value else round(value, 6) for value in pair), None]
        data.append(
            {
                "type": "scatter", "x": x, "y": y, "mode": "lines+markers", "name": row,
                "line": {"color": colour(number), "dash": dash(number), "width": 1.5},
                "marker": {
                    "color": colour(number), "size": 8, "line": {"color": colour(number), "width": 1.5},
                    "symbol": [f"{symbol(number)}{end}" for end in ("-open", "", "")] * len(results.columns),
                },
            }
        )  # fmt: skip
    places = list(range(len(results.columns)))
    x_axis = {
        "tickvals": places, "ticktext": [c.replace(" ", "<br>") for c in results.columns],
        "range": [-0.6, len(places) - 0.4], "showgrid": False, "zeroline": False,
        "title": {"text": "○ published → ● ours"}, "automargin": True,
    }  # fmt: skip
    y_axis = {"title": {"text": measure.title}, "zeroline": False, "automargin": True}
    between = [
        {"type": "line", "x0": p + 0.5, "x1": p + 0.5, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": MUTED[0], "width": 0.5}}
        for p in places[:-1]
    ]  # fmt: skip
    return figure(data, x_axis, y_axis, height=460, shapes=between)

"""A paper's figures beside ours, for the report of a study: cell by cell, and as slopes."""

from __future__ import annotations

from html import escape
from typing import Any

from espalier.report.figures import Figure, figure
from espalier.report.palette import MUTED, colour, dash, symbol
from espalier.study.results import Results

#: where published and measured values stand around a column's place
LEFT, RIGHT = -0.28, 0.28


def to_html(results: Results) -> str:
    """Return a table with ours, the published figure and the difference in every cell, and the orders' agreement."""
    study = results.study
    heads = [(c, m) for c in results.columns for m in study.measures]
    titles = "".join(
        f'<th scope="colgroup" colspan="3">{escape(c)}<br>{escape(study.measures[m].title)}</th>' for c, m in heads
    )
    under = '<th scope="col">ours</th><th scope="col">paper</th><th scope="col">difference</th>' * len(heads)
    body = []
    for row in results.rows:
        cells = "".join(_cells(results, row, c, m) for c, m in heads)
        body.append(f'<tr><th scope="row">{escape(row)}</th>{cells}</tr>')
    taus = [results.agreement(c, m) for c, m in heads]
    if any(tau == tau for tau in taus):
        agreed = "".join(f'<td colspan="3">{_number(tau, 2, sign=True)}</td>' for tau in taus)
        body.append(f'<tr><th scope="row">order, Kendall τ</th>{agreed}</tr>')
    lines = "".join(f"<p>{escape(line)}</p>" for line in (*results.words(), *study.notes))
    return (
        f"<p>{escape(study.name)} at scale {escape(results.scale)}: {escape(study.title)}. Bold: best of ours. "
        "Difference: ours minus the paper's. τ: 1 where ours puts the methods in the paper's order, −1 where in the "
        f'reverse.</p><div class="wide"><table><thead><tr><th rowspan="2"></th>{titles}</tr><tr>{under}</tr></thead>'
        f'<tbody>{"".join(body)}</tbody></table></div><div class="lines">{lines}</div>'
    )


def _cells(results: Results, row: str, column: str, measure: str) -> str:
    digits = results.study.measures[measure].digits
    mean, paper = results.mean(row, column, measure), results.published(row, column, measure)
    ours = _number(mean, digits)
    if mean == mean and len(results.values(row, column, measure)) > 1:
        ours += f" ± {results.std(row, column, measure):.{digits}f}"
    ours = f"<b>{ours}</b>" if results.best(column, measure) == row else ours
    return f"<td>{ours}</td><td>{_number(paper, digits)}</td><td>{_number(mean - paper, digits, sign=True)}</td>"


def _number(value: float, digits: int, *, sign: bool = False) -> str:
    if value != value:
        return "–"
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"


def slopes(results: Results, name: str) -> Figure:
    """Draw one measure: per column from the published value (left, hollow) to ours (right, filled), a line per method.

    Lines that cross are methods that changed places.
    """
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

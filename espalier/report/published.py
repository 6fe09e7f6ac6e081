"""A paper's figures beside ours: cell by cell and as slopes for a study's report, and the slopes as a still picture.

The still picture is SVG text that depends on the figures alone, byte for byte.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

from espalier.report.figures import MUTED, PAPER, Figure, colour, dash, figure, symbol
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


#: pixels: a column's width, the drawing's height, what the scale, the legend, the title and the columns' names take
COLUMN, HEIGHT, SCALE, LEGEND, TITLE, NAMES = 110, 320, 60, 190, 34, 66
LINE_HEIGHT = 15
STROKES = {"solid": "", "dash": ' stroke-dasharray="7 4"', "dot": ' stroke-dasharray="2 3"',
           "dashdot": ' stroke-dasharray="7 3 2 3"'}  # fmt: skip


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Return round numbers that span a range: steps of 1, 2 or 5 times a power of ten.

    >>> ticks(36.1, 92.8)
    [30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0]
    """
    rough = (high - low) / about if high > low else max(abs(high), 1.0) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * k, 12) for k in range(first, max(last, first + 1) + 1)]


def slopes_svg(results: Results, name: str) -> str:
    """Draw one measure: per column from the published value (left, hollow) to ours (right, filled, with its spread).

    A line per method; lines that cross are methods that changed places.
    """
    pairs = {
        (row, column): (results.published(row, column, name), results.mean(row, column, name))
        for row in results.rows for column in results.columns
    }  # fmt: skip
    known = [v for pair in pairs.values() for v in pair if math.isfinite(v)]
    marks = ticks(min(known), max(known))
    width = SCALE + COLUMN * len(results.columns) + LEGEND
    height = TITLE + HEIGHT + NAMES

    def y(value: float) -> float:
        return TITLE + HEIGHT * (marks[-1] - value) / (marks[-1] - marks[0])

    title = f"{results.study.name} at {results.scale}: {results.study.measures[name].title}; ○ published, ● ours"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="{PAPER[0]}"/>',
        f'<text x="8" y="20" font-size="13">{escape(title)}</text>',
    ]
    end = SCALE + COLUMN * len(results.columns)
    for mark in marks:
        out.append(f'<path d="M{SCALE} {y(mark):.1f}H{end}" stroke="{MUTED[1]}" stroke-width="0.4"/>')
        out.append(f'<text x="{SCALE - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for place, column in enumerate(results.columns):
        middle = SCALE + COLUMN * (place + 0.5)
        for line, word in enumerate(_lines(column)):
            at = TITLE + HEIGHT + LINE_HEIGHT * (line + 1)
            out.append(f'<text x="{middle:.1f}" y="{at}" text-anchor="middle">{escape(word)}</text>')
    for number, row in enumerate(results.rows):
        stroke = f'stroke="{colour(number)}"{STROKES[dash(number)]}'
        for place, column in enumerate(results.columns):
            middle = SCALE + COLUMN * (place + 0.5)
            paper, ours = pairs[row, column]
            left, right = middle + COLUMN * LEFT, middle + COLUMN * RIGHT
            if math.isfinite(paper) and math.isfinite(ours):
                out.append(f'<path d="M{left:.1f} {y(paper):.1f}L{right:.1f} {y(ours):.1f}" {stroke}/>')
            if math.isfinite(ours):
                spread = results.std(row, column, name)
                top, low = (y(min(max(ours + s, marks[0]), marks[-1])) for s in (spread, -spread))
                out.append(f'<path d="M{right:.1f} {top:.1f}V{low:.1f}" stroke="{colour(number)}"/>')
                out.append(f'<circle cx="{right:.1f}" cy="{y(ours):.1f}" r="3.5" fill="{colour(number)}"/>')
            if math.isfinite(paper):
                hollow = f'fill="{PAPER[0]}" stroke="{colour(number)}"'
                out.append(f'<circle cx="{left:.1f}" cy="{y(paper):.1f}" r="3.5" {hollow}/>')
        at = TITLE + 8 + 18 * number
        out.append(f'<path d="M{end + 12} {at}h26" {stroke} stroke-width="2"/>')
        out.append(f'<text x="{end + 44}" y="{at + 4}">{escape(row)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _lines(name: str, width: int = 14) -> list[str]:
    """Break a column's name into lines of up to so many characters, at spaces."""
    lines: list[str] = []
    for word in name.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines

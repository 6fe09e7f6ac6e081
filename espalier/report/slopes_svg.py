"""The slopes of `report.published` as a still picture: SVG text that depends on the figures alone, byte for byte."""

from __future__ import annotations

import math
from html import escape

from espalier.report.palette import MUTED, PAPER, colour, dash
from espalier.report.published import LEFT, RIGHT
from espalier.study.results import Results

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

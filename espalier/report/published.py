"""A paper's figures beside ours, cell by cell, for the report of a study."""

from __future__ import annotations

from html import escape

from espalier.study.base import Results


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

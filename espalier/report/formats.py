"""A verdict as text: HTML for the page and notebooks, Markdown and LaTeX for papers, CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from html import escape

from espalier.report.standings import Column, Difference, Place, Values
from espalier.report.verdict import Verdict

_LATEX = str.maketrans({
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "≈": r"$^{\approx}$", "°": r"$^{\circ}$",
    "–": "--", "−": "$-$", "·": r"$\cdot$", "×": r"$\times$", "…": r"\ldots{}", "α": r"$\alpha$", "κ": r"$\kappa$",
    "μ": r"$\mu$", "λ": r"$\lambda$", "<": r"$<$", ">": r"$>$",
})  # fmt: skip


#: the heading of the differences to the leader
BEHIND = "behind the leader"


def gap_text(gap: Difference | None) -> str:
    """Write a difference to the leader with its interval; nothing for the leader."""
    if gap is None:
        return ""
    if gap.low is None or gap.high is None:
        return f"{gap.mean:.3f}"
    return f"{gap.mean:.3f} [{gap.low:.3f}, {gap.high:.3f}]".replace("-", "−")


def to_html(verdict: Verdict) -> str:
    """Return the ranking, the other measures folded, and how they were made, as HTML."""
    first, more = verdict.columns[: verdict.main], verdict.columns[verdict.main :]
    warnings = "".join(f'<p class="warning">{escape(line)}</p>' for line in verdict.warnings)
    lines = "".join(f"<p>{escape(line)}</p>" for line in verdict.lines)
    others = ""
    if more:
        body = "".join(
            f'<tr data-group="{p.group.number}">{_method(p)}{_cells(more, p.cells[verdict.main :])}</tr>'
            for p in verdict.places
        )
        table = f"<table><thead><tr><th>method</th>{_heads(more)}</tr></thead><tbody>{body}</tbody></table>"
        others = f'<details class="more"><summary>More measures</summary><div class="wide">{table}</div></details>'
    return (
        f'<div class="wide">{_ranking(verdict, first)}</div>{warnings}{others}'
        f'<details class="lines"><summary>How this was compared</summary>{lines}</details>'
    )


def _ranking(verdict: Verdict, columns: Sequence[Column]) -> str:
    heads = f"{_heads(columns[:1])}<th>{BEHIND}</th>{_heads(columns[1:])}"
    rows = []
    for place in verdict.places:
        rank = "–" if place.rank is None else str(place.rank)
        mark = f' <span class="mark">{place.mark}</span>' if place.mark else ""
        p = "" if place.p is None else f' title="p = {place.p:.3g}, adjusted"'
        gap = f"<td{p}>{escape(gap_text(place.gap))}{mark}</td>"
        cells = _cells(columns[:1], place.cells[:1]) + gap + _cells(columns[1:], place.cells[1 : verdict.main])
        rows.append(f'<tr data-group="{place.group.number}"><td class="rank">{rank}</td>{_method(place)}{cells}</tr>')
    return (
        f'<table class="ranking"><thead><tr><th></th><th>method</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _heads(columns: Sequence[Column]) -> str:
    return "".join(f'<th scope="col">{escape(c.title)}</th>' for c in columns)


def _method(place: Place) -> str:
    group, note = place.group, ""
    if group.reconstruction:
        note = f' <abbr class="mark" title="{escape(group.reconstruction)}">reconstruction</abbr>'
    if place.ended:
        note += f' <abbr class="mark ended" title="{escape(" ".join(place.ended))}">ended early</abbr>'
    return f'<th scope="row"><i class="swatch" data-colour="{group.number}"></i>{escape(group.label)}{note}</th>'


def _cells(columns: Sequence[Column], cells: Sequence[Values]) -> str:
    out = []
    for column, cell in zip(columns, cells, strict=True):
        seeds = "\n".join(f"seed {s}: {column.text(v)}" for s, v in cell.by_seed.items())
        text = escape(cell.text(column))
        out.append(f'<td title="{escape(seeds)}">{f"<b>{text}</b>" if cell.best else text}</td>')
    return "".join(out)


def to_markdown(verdict: Verdict) -> str:
    """Return the sentence, the ranking with all columns, and what must be said with it, as Markdown."""
    titles = [verdict.columns[0].title, BEHIND, *(c.title for c in verdict.columns[1:])]
    rows = ["| | method | " + " | ".join(map(_pipe, titles)) + " |", "| --- | --- |" + " ---: |" * len(titles)]
    for place in verdict.places:
        texts = [
            f"**{cell.text(column)}**" if cell.best else cell.text(column)
            for column, cell in zip(verdict.columns, place.cells, strict=True)
        ]
        texts.insert(1, f"{gap_text(place.gap)} {place.mark}".strip())
        star = " (reconstruction)" if place.group.reconstruction else ""
        rows.append(f"| {place.rank or '–'} | {_pipe(place.group.label)}{star} | " + " | ".join(texts) + " |")
    notes = (*verdict.warnings, *verdict.lines)
    return "\n".join([verdict.sentence, "", *rows, "", *(f"{line}\n" for line in notes)]).rstrip("\n") + "\n"


def _pipe(text: str) -> str:
    return text.replace("|", "\\|")


def to_latex(verdict: Verdict) -> str:
    """Return the ranking as LaTeX (package ``booktabs``), what must be said with it as comments."""
    columns = verdict.columns[: verdict.main]
    titles = ["method", columns[0].title, BEHIND, *(c.title for c in columns[1:])]
    lines = [r"\begin{tabular}{l" + "r" * (len(titles) - 1) + "}", r"\toprule"]
    lines += [" & ".join(latex(t) for t in titles) + r" \\", r"\midrule"]
    for place in verdict.places:
        texts = [latex(place.group.label) + (r"\textsuperscript{r}" if place.group.reconstruction else "")]
        for column, cell in zip(columns, place.cells[: verdict.main], strict=True):
            text = latex(cell.text(column))
            texts.append(rf"\textbf{{{text}}}" if cell.best else text)
        texts.insert(2, latex(gap_text(place.gap) + place.mark))
        lines.append(" & ".join(texts) + r" \\")
    notes = (verdict.sentence, *verdict.warnings, *verdict.lines)
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {line}" for line in notes)]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """Return text with everything that LaTeX would take as a command written out."""
    return text.translate(_LATEX)


#: columns of the table for programs
CSV_HEADINGS = (
    "setting", "rank", "method", "measure", "budget", "budget_amount", "unit", "mean", "std", "known", "seeds", "best",
    "behind", "behind_low", "behind_high", "p",
)  # fmt: skip


def to_csv(verdict: Verdict, *, headings: bool = True) -> str:
    """Return one line per method and measure, with full numbers; the first measure's has the gap to the leader."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if headings:
        writer.writerow(CSV_HEADINGS)
    for place in verdict.places:
        for number, (column, cell) in enumerate(zip(verdict.columns, place.cells, strict=True)):
            gap = place.gap if number == 0 else None
            row = [
                verdict.setting.name, place.rank, place.group.label, column.key, verdict.budget.kind,
                verdict.budget.amount, column.unit, cell.mean if cell.known else None,
                cell.std if len(cell.known) > 1 else None, len(cell.known), len(cell.by_seed), int(cell.best),
                *((gap.mean, gap.low, gap.high, place.p) if gap is not None else (None,) * 4),
            ]  # fmt: skip
            writer.writerow("" if v is None else v for v in row)
    return out.getvalue()

"""The verdict as text: HTML for the page, Markdown and LaTeX for papers, CSV for programs."""

from __future__ import annotations

import csv
import io
from html import escape

from espalier.report.verdict import Column, Standing, Verdict

_LATEX = str.maketrans({
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "≈": r"$^{\approx}$", "°": r"$^{\circ}$",
    "–": "--", "·": r"$\cdot$", "×": r"$\times$", "…": r"\ldots{}", "α": r"$\alpha$", "κ": r"$\kappa$",
    "μ": r"$\mu$", "λ": r"$\lambda$", "<": r"$<$", ">": r"$>$",
})  # fmt: skip


def to_html(verdict: Verdict) -> str:
    """Return the table and its lines as HTML."""
    heads = "".join(f'<th scope="col">{escape(m.title)}</th>' for m in verdict.measures)
    body = []
    for group, cells in verdict.rows:
        note = ""
        if group.reconstruction:
            note = f' <abbr class="mark" title="{escape(group.reconstruction)}">reconstruction</abbr>'
        row = f'<th scope="row"><i class="swatch" data-colour="{group.number}"></i>{escape(group.label)}{note}</th>'
        body.append(f"<tr>{row}{''.join(_td(m, c) for m, c in zip(verdict.measures, cells, strict=True))}</tr>")
    lines = "".join(f"<p>{escape(line)}</p>" for line in verdict.lines)
    table = f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="wide">{table}</div><div class="lines">{lines}</div>'


def _td(measure: Column, cell: Standing) -> str:
    seeds = "\n".join(f"seed {s}: {measure.text(v)}" for s, v in cell.values.items())
    test = "" if cell.p is None else f"\np = {cell.p:.3g} against the best"
    text = escape(cell.text(measure))
    text = f"<b>{text}</b>" if cell.best else text
    mark = f' <span class="mark">{cell.mark}</span>' if cell.mark else ""
    return f'<td title="{escape(seeds + test)}">{text}{mark}</td>'


def to_markdown(verdict: Verdict) -> str:
    """Return the table and its lines as Markdown."""
    rows = ["| | " + " | ".join(_pipe(m.title) for m in verdict.measures) + " |"]
    rows.append("| --- |" + " ---: |" * len(verdict.measures))
    for group, cells in verdict.rows:
        texts = []
        for measure, cell in zip(verdict.measures, cells, strict=True):
            text = cell.text(measure)
            texts.append((f"**{text}**" if cell.best else text) + (f" {cell.mark}" if cell.mark else ""))
        star = " (reconstruction)" if group.reconstruction else ""
        rows.append(f"| {_pipe(group.label)}{star} | " + " | ".join(texts) + " |")
    return "\n".join([*rows, "", *(f"{line}\n" for line in verdict.lines)]).rstrip("\n") + "\n"


def _pipe(text: str) -> str:
    return text.replace("|", "\\|")


def to_latex(verdict: Verdict) -> str:
    """Return the table as LaTeX (package ``booktabs``), its lines as the caption's notes."""
    lines = [r"\begin{tabular}{l" + "r" * len(verdict.measures) + "}", r"\toprule"]
    lines += [" & ".join(["method", *(latex(m.title) for m in verdict.measures)]) + r" \\", r"\midrule"]
    for group, cells in verdict.rows:
        texts = [latex(group.label) + (r"\textsuperscript{r}" if group.reconstruction else "")]
        for measure, cell in zip(verdict.measures, cells, strict=True):
            text = latex(cell.text(measure))
            texts.append((rf"\textbf{{{text}}}" if cell.best else text) + latex(cell.mark))
        lines.append(" & ".join(texts) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {line}" for line in verdict.lines)]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """Return text with everything that LaTeX would take as a command written out."""
    return text.translate(_LATEX)


def to_csv(verdict: Verdict) -> str:
    """Return one line per method and measure: mean, std, seeds with a value, all seeds, best, adjusted p-value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "setting", "measure", "unit", "mean", "std", "known", "seeds", "best", "p"])
    for group, cells in verdict.rows:
        for measure, cell in zip(verdict.measures, cells, strict=True):
            mean = "" if not cell.known else repr(cell.mean)
            std = repr(cell.std) if len(cell.known) > 1 else ""
            counts = [len(cell.known), len(cell.values)]
            p = "" if cell.p is None else repr(cell.p)
            row = [group.label, group.setting, measure.key, measure.unit, mean, std, *counts, int(cell.best), p]
            writer.writerow(row)
    return out.getvalue()

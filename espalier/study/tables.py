"""A study's results as text: for the terminal, for Markdown documents, for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from espalier.study.results import SOURCES, Results

MOST_COLUMNS = 8
"""Columns up to which a Markdown table is upright."""
ONE_SEED = "One seed shows neither an order nor a spread."
MOST_SIZES = 6
"""Clusters up to which each one's size is given."""


def ours(results: Results, row: str, column: str, measure: str) -> str:
    """Return our figure: the mean over the seeds that have one, its spread, and how many those are if not all."""
    digits = results.study.measures[measure].digits
    mean = results.mean(row, column, measure)
    if mean != mean:
        return "–"
    seeds, known = len(results.values(row, column, measure)), len(results.known(row, column, measure))
    spread = f" ± {results.std(row, column, measure):.{digits}f}" if known > 1 else ""
    return f"{mean:.{digits}f}{spread}" + (f" [{known} of {seeds} seeds]" if known < seeds else "")


def _theirs(results: Results, row: str, column: str, measure: str) -> str:
    """Return the published figure in brackets; nothing where there is none of this measure at all."""
    if not any(measure in figures for columns in results.study.published.values() for figures in columns.values()):
        return ""
    value = results.published(row, column, measure)
    return " (–)" if value != value else f" ({value:.{results.study.measures[measure].digits}f})"


def _heads(results: Results) -> list[tuple[str, str]]:
    return [(c, m) for c in results.columns for m in results.study.measures]


def _seeds(results: Results) -> str:
    counts = {len(r) for r in results.cells.values()}
    return f"{min(counts)}" if len(counts) == 1 else f"{min(counts)}–{max(counts)}"


def terminal(results: Results) -> Group:
    """Return ours beside the published figures, a table per measure, best of ours in bold, and what methods did."""
    study = results.study
    out = []
    for name, measure in study.measures.items():
        whose = "; ours (published)" if study.published else ""
        title = f"{study.name} at scale {results.scale}: {measure.title}{whose}, {_seeds(results)} seed(s)"
        table = Table(title=title)
        table.add_column("")
        for column in results.columns:
            table.add_column(column, justify="right")
        for row in results.rows:
            cells = [row]
            for column in results.columns:
                text = ours(results, row, column, name) + _theirs(results, row, column, name)
                cells.append(f"[bold]{text}[/bold]" if results.best(column, name) == row else text)
            table.add_row(*cells)
        out.append(table)
    for title, (heads, *lines) in (
        ("What the methods did", activity(results)),
        ("Devices' accuracy at the end by whose model they use (%)", by_source(results)),
    ):
        table = Table(*heads, title=title)
        for line in lines:
            table.add_row(*map(escape, line))
        out += [table] if lines else []
    return Group(*out)


def markdown(results: Results, command: str) -> str:
    """Return the result as a section of a Markdown document, with the study's notes."""
    study = results.study
    lines = [f"### {study.name}: {study.title}", "", *body(results, [command])]
    if study.notes:
        lines += ["", "Notes:", "", *(f"- {n}" for n in study.notes)]
    return "\n".join(lines) + "\n"


def body(results: Results, commands: Sequence[str], did: bool = True) -> list[str]:
    """Return the commands, a table per measure (or one where there is one column), and (``did``) what methods did."""
    study = results.study
    whose = " · ours, published in brackets" if study.published else ""
    lines = [*(f"`{c}`  " for c in commands[:-1]), f"`{commands[-1]}`"] if commands else []
    lines += ["", f"Scale `{results.scale}`, {_seeds(results)} seed(s){whose}.", ""]
    if len(results.columns) == 1:
        column = results.columns[0]
        titles = [f"{column}: {m.title}" for m in study.measures.values()]
        lines += [*_table(results, titles, _heads(results)), ""]
    else:
        for name, measure in study.measures.items():
            lines += [f"{measure.title}:", ""]
            lines += [*_table(results, results.columns, [(c, name) for c in results.columns]), ""]
    one = max((len(runs) for runs in results.cells.values()), default=0) < 2
    lines += [f"- {w}" for w in ([ONE_SEED, *study.comment(results)] if one else results.words())]
    lines += [""]
    if not did:
        return lines[:-1]
    grid = activity(results)
    if len(grid) > 1:
        lines += ["What the methods did:", "", *_upright(grid), ""]
    grid = by_source(results)
    if len(grid) > 1:
        lines += ["Devices' accuracy at the end, on their own label mix, by whose model they use (%):", ""]
        lines += [*_upright(grid), ""]
    return lines[:-1]


def activity(results: Results) -> list[list[str]]:
    """Return heads, and a line for each row: what its runs did, over all columns and seeds, from least to most."""
    shown = results.study.shown_facts
    grid = [["", "rounds", "virtual time (s)", "trainings", "late (%)", "clusters", *shown.values(), "events of a run"]]
    for row in results.rows:
        cells = [by_seed.values() for (name, _), by_seed in results.cells.items() if name == row]
        facts = [run.facts for runs in cells for run in runs if run.facts]
        grid += [[row, *_did(facts, list(shown))]] if facts else []
    # a column that says nothing of any row goes
    said = [i for i in range(len(grid[0])) if i == 0 or any(line[i] not in ("–", "0.0") for line in grid[1:])]
    return [[line[i] for i in said] for line in grid]


def _did(facts: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> list[str]:
    """Return a line of that table: rounds, time, trainings, late ones, clusters, the study's own facts, events."""
    counts = [f.get("deeds", {}) for f in facts]
    late = [100 * d.get("late", 0) / f["trainings"] for f, d in zip(facts, counts, strict=True) if f.get("trainings")]
    kinds = sorted({kind for d in counts for kind in d})
    return [
        *(_range([f[name] for f in facts if name in f]) for name in ("rounds", "seconds", "trainings")),
        _range(late, digits=1),
        "; ".join(dict.fromkeys(filter(None, map(_clusters, facts)))) or "–",
        *(_fact([f[name] for f in facts if f.get(name) is not None]) for name in shown),
        ", ".join(f"{kind} {_range([d.get(kind, 0) for d in counts])}" for kind in kinds) or "–",
    ]


def by_source(results: Results) -> list[list[str]]:
    """Return heads, and a line for each row and column: devices' accuracy with each source's model, in percent."""
    grid = [["", *SOURCES.values()]]
    for (row, column), by_seed in results.cells.items():
        runs = [run.facts["by_source"] for run in by_seed.values() if run.facts.get("by_source")]
        known = [[100 * found[source] for found in runs if source in found] for source in SOURCES]
        cells = [f"{sum(values) / len(values):.1f}" if values else "–" for values in known]
        grid += [[f"{row}, {column}", *cells]] if runs else []
    return grid


def _fact(values: Sequence[float | Mapping[str, float]]) -> str:
    """Return a study's own fact over runs, from least to most: a number, or several by name."""
    tables = [v for v in values if isinstance(v, Mapping)]
    names = dict.fromkeys(name for table in tables for name in table)
    if not names:
        return _range([v for v in values if not isinstance(v, Mapping)], digits=2)
    return ", ".join(f"{name} {_range([t[name] for t in tables if name in t], digits=1)}" for name in names)


def _range(values: Sequence[float], digits: int = 0) -> str:
    if not values:
        return "–"
    low, high = (f"{v:,.{digits}f}" for v in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def _clusters(facts: Mapping[str, Any]) -> str:
    """Say how a run's devices were last arranged: how many clusters of which sizes, the cut, and why there."""
    found = facts.get("clusters", {})
    if "clusters" not in found:  # devices that chose among models by themselves
        return f"{facts['groups']} models in use" if facts.get("groups", 0) > 1 else ""
    count = found["clusters"]
    sizes = found.get("sizes", [])
    many = f" of {min(sizes)} to {max(sizes)}" if len(sizes) > MOST_SIZES else f" ({'+'.join(map(str, sizes))})"
    cut = f", cut at {found['beta']:.1f}°" if "beta" in found else ""
    why = f": {found['why']}" if found.get("why") else ""
    return f"{count}{many if sizes else ''}{cut}{why}"


def _table(results: Results, titles: Sequence[str], heads: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of one table: a column for each of ``heads`` (column of the study, measure).

    A table with many columns lies on its side.
    """
    grid = [["", *titles]]
    for row in results.rows:
        cells = []
        for column, measure in heads:
            mine = ours(results, row, column, measure)
            mine = f"**{mine}**" if results.best(column, measure) == row else mine
            cells.append(mine + _theirs(results, row, column, measure))
        grid.append([row, *cells])
    agreement = [results.agreement(c, m) for c, m in heads]
    if any(a == a for a in agreement):
        grid.append(["*order, Kendall τ*", *("–" if a != a else f"{a:+.2f}" for a in agreement)])
    if len(titles) > MOST_COLUMNS:
        grid = [list(line) for line in zip(*grid, strict=True)]
    return _upright(grid)


def _upright(grid: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table whose first line has the heads."""
    lines = ["| " + " | ".join(line) + " |" for line in grid]
    return [lines[0], "| --- |" + " ---: |" * (len(grid[0]) - 1), *lines[1:]]


def plain(results: Results) -> dict[str, Any]:
    """Return the result as plain data."""
    return {
        "study": results.study.name,
        "scale": results.scale,
        "cells": [
            {
                "row": row,
                "column": column,
                "measure": measure,
                "values": [None if v != v else float(v) for v in results.values(row, column, measure)],
                "published": None if (p := results.published(row, column, measure)) != p else p,
            }
            for row in results.rows
            for column, measure in _heads(results)
        ],
        "words": results.words(),
    }


def as_json(results: Results) -> str:
    """Return the result as JSON."""
    return json.dumps(plain(results), indent=2)


def curves_csv(results: Results) -> str:
    """Return every run's curves as CSV: row, column, seed, time, round, and the study's metrics."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["row", "column", "seed", "time", "round", *results.study.curves])
    for (row, column), runs in results.runs.items():
        for run in runs:
            frame = run.frame()
            for _, line in frame.iterrows():
                figures = [line.get(name, float("nan")) for name in results.study.curves]
                writer.writerow([row, column, run.seed, line["time"], int(line["round"]), *figures])
    return out.getvalue()

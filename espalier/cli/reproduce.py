"""``espalier reproduce``: run a paper's table and put it beside the published one.

What runs studies is imported when one is run, so that help and the list are quick.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from espalier.cli import cards
from espalier.cli.plugins import PLUGINS

if TYPE_CHECKING:
    from espalier.study.base import Scale
    from espalier.study.results import Results

#: how much of a paper's setting is run (`espalier.study.base.Scale`)
SCALES = ("smoke", "small", "full")


@click.command()
@click.argument("name", required=False)
@click.option(
    "--scale", type=click.Choice(SCALES), default="smoke", show_default=True, help="How much of the paper's setting."
)
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), help="Where runs are kept and reused [default: runs/NAME-SCALE]."
)
@click.option("--seed", "seeds", type=int, multiple=True, help="Only this one of the scale's seeds (repeatable).")
@click.option("--column", "columns", multiple=True, help="Only this column of the table (repeatable).")
@click.option("--row", "rows", multiple=True, help="Only this row of the table (repeatable).")
@click.option(
    "--with", "methods", multiple=True, metavar="METHOD",
    help="Put this method beside the table's rows: a name, or a table such as '{ name = \"fedprox\", mu = 0.1 }'.",
)  # fmt: skip
@click.option("--on", "lender", metavar="ROW", default="", help="Whose setting it gets [default: HierFAVG's].")
@PLUGINS
@click.option("--jobs", "-j", type=int, default=1, show_default=True, help="Runs side by side.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where dataset files are looked for first.")
@click.option("--finished", is_flag=True, help="Run nothing: read the runs that have ended.")
@click.option(
    "--keep", type=click.Path(path_type=Path),
    help="Write the figures as data into this folder, for pages (of all studies that share the runs).",
)  # fmt: skip
@click.option("--claims", is_flag=True, help="Say of every claim of the papers what the kept figures tell.")
@click.option("--pages", type=click.Path(path_type=Path), help="Render the results pages in this folder from its data.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the result as Markdown here.")
@click.option("--report", "report_path", type=click.Path(path_type=Path), help="Write an HTML report here.")
@click.option(
    "--figure", type=click.Path(path_type=Path),
    help="Draw the first measure beside the published one: a .png, .svg or .pdf file (needs Chromium).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def reproduce(
    name: str | None,
    scale: Scale,
    out: Path | None,
    seeds: tuple[int, ...],
    columns: tuple[str, ...],
    rows: tuple[str, ...],
    methods: tuple[str, ...],
    lender: str,
    plugins: tuple[str, ...],
    jobs: int,
    data_dir: Path | None,
    finished: bool,
    keep: Path | None,
    claims: bool,
    pages: Path | None,
    markdown: Path | None,
    report_path: Path | None,
    figure: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run study NAME (such as csahfl/table1) and print our figures beside the published ones.

    Without a name, list the studies, with what was run of them and their cost; or judge the papers' claims (--claims)
    or render pages (--pages) by the figures that --keep has left in docs/results/data. Runs that are already there are
    reused; unfinished ones go on.
    """
    if name is None:
        _without_name(claims, pages)
        return
    from espalier.cli.studies import check_study, keep_figures, run_study, wanted_part
    from espalier.study import tables
    from espalier.study.results import read_results

    wanted = wanted_part(name, scale, seeds, columns, rows, methods, lender)
    where = out or Path("runs") / f"{(wanted.runs_of or name).replace('/', '-')}-{scale}"
    if finished:
        check_study(wanted, scale, where)
    else:
        run_study(wanted, scale, where, jobs, data_dir, plugins, quiet=quiet or as_json)
    some = {"seed": map(str, seeds), "column": columns, "row": rows, "with": methods, "on": [lender] if lender else []}
    options = [word for option, values in some.items() for value in values for word in (f"--{option}", value)]
    command = shlex.join(["espalier", "reproduce", name, "--scale", scale, *options])
    results = read_results(wanted, scale, where, command, unfinished=finished)
    if keep is not None:
        keep_figures(results, where, keep)
    _write(results, where, markdown, command, report_path, figure)
    if as_json:
        click.echo(tables.as_json(results))
    elif not quiet:
        console = Console(width=None if sys.stdout.isatty() else 200)
        console.print(tables.terminal(results))
        for line in [*results.words(), *wanted.notes]:
            click.echo(f"- {line}")


def _write(
    results: Results, where: Path, markdown: Path | None, command: str, page: Path | None, figure: Path | None
) -> None:
    """Write the curves, and the table, report and picture that were asked for."""
    from espalier.study import tables

    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(tables.markdown(results, command), encoding="utf-8")
    if results.study.curves:
        (where / "curves.csv").write_text(tables.curves_csv(results), encoding="utf-8")
    if page is not None:
        from espalier.report.page import write_report

        write_report([where], page, results)
    if figure is not None:
        from espalier.report.pictures import write_picture
        from espalier.report.published import slopes

        write_picture(slopes(results, next(iter(results.study.measures))), figure)


def _without_name(claims: bool, pages: Path | None) -> None:
    """Render pages, or print the claims' verdicts, or the list of studies."""
    if pages is not None or claims:
        from espalier.cli import studies

        if pages is not None:
            studies.write_pages(pages)
        else:
            studies.print_claims()
        return
    listed = cards.lists()
    for name, title in listed["studies"].items():
        click.echo(f"{name:24} {title}")
        for study, scale, state, cost in listed["states"]:
            if study == name:
                click.echo(f"{'':24}   {scale:6} {state}; {cost}")
    click.echo(
        "Run one: espalier reproduce NAME --scale SCALE (smoke takes seconds). What was run is what this version's "
        "results pages show."
    )

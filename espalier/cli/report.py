"""``espalier report`` and ``espalier watch``: look at runs, finished or going on."""

from __future__ import annotations

import multiprocessing
import signal
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import click

from espalier.core.errors import ConfigError, RunError
from espalier.report.endpoint import Endpoint, listen

FORMATS = ("html", "md", "latex", "csv")
#: what a comparison can hold equal (`espalier.report.budget`; named here so that help needs no pandas)
BUDGETS = ("time", "steps", "bytes", "round")

_DIRECTORY = click.Path(path_type=Path)


@click.command()
@click.argument("directories", nargs=-1, required=True, type=_DIRECTORY)
@click.option(
    "--out", "-o", type=_DIRECTORY, help="Where to write [default: report.html; other formats: standard output]."
)
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), default="html", show_default=True,
    help="A page with every figure, or the verdict's table for a paper or a program.",
)  # fmt: skip
@click.option("--measure", help="What the table ranks by, such as acc_global [default: the task's score].")
@click.option(
    "--budget", type=click.Choice(BUDGETS), help="What the table holds equal [default: virtual time, if it passes]."
)
@click.option("--method", "-m", "methods", multiple=True, help="Report only these methods, by label (repeatable).")
@click.option("--seed", "-s", "seeds", multiple=True, type=int, help="Report only these seeds (repeatable).")
@click.option(
    "--figures", type=_DIRECTORY, help="Also write every figure as PNG, SVG and PDF into this folder (needs Chromium)."
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors (and the table, if it goes there).")
def report(
    directories: tuple[Path, ...],
    out: Path | None,
    kind: str,
    measure: str | None,
    budget: str | None,
    methods: tuple[str, ...],
    seeds: tuple[int, ...],
    figures: Path | None,
    quiet: bool,
) -> None:
    """Report on every run at or below DIRECTORIES: methods side by side, over their seeds."""
    from espalier.report.page import report as page
    from espalier.report.page import save
    from espalier.report.reading import only, read_all

    if kind == "html" and (measure or budget):
        raise ConfigError("--measure and --budget are for tables (--format md); the page has its own switches.")
    found = only(read_all(list(directories)), methods, seeds)
    if kind == "html":
        where = out or Path("report.html")
        save(page(found), where)
        if not quiet:
            click.echo(f"report: {where}")
    else:
        from espalier.report import formats
        from espalier.report.groups import compare
        from espalier.report.verdict import judged

        shown = judged(compare(found), measure, budget)
        if kind == "csv":
            text = "".join(formats.to_csv(v, headings=not i) for i, v in enumerate(shown))
        else:
            text = "\n".join((formats.to_markdown if kind == "md" else formats.to_latex)(v) for v in shown)
        if out is None:
            click.echo(text, nl=False)
        else:
            save(text, out)
    if figures is not None:
        from espalier.report.pictures import write_pictures

        written = write_pictures(found, figures)
        if not quiet:
            click.echo(f"figures: {figures} ({len(written)} files)", err=kind != "html" and out is None)


@click.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--host", default="127.0.0.1", show_default=True, help="Serve at this address; others get a token.")
@click.option("--port", type=click.IntRange(0, 65535), help="Serve at this port [default: 8642, or any free one].")
def watch(directory: Path, host: str, port: int | None) -> None:
    """Show the runs at or below DIRECTORY in a browser, live, until interrupted."""
    from espalier.report.server import LivePage

    if directory.exists() and not directory.is_dir():
        raise RunError(f"{directory} is not a directory. Runs are kept where `espalier run --out` says.")
    endpoint = listen(host, port)
    page = LivePage([directory], endpoint)
    waits = "" if directory.exists() else "; it is not there yet: waiting for the first run"
    click.echo(f"watching {directory} at {endpoint.url} (Ctrl-C ends){waits}")
    try:
        page.wait()
    except KeyboardInterrupt:
        page.close()


class LivePageProcess:
    """Serves a live page while the ``with`` block lasts; at its end viewers still get what was written last.

    In a process of its own, beside the runs that it shows: watching takes no time from training.
    """

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int | None = None) -> None:
        """Start to serve the runs at or below ``root``, which need not be there yet."""
        endpoint = listen(host, port)
        self.url = endpoint.url
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (root, endpoint.socket, endpoint.url, endpoint.token, theirs)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        endpoint.socket.close()

    def __enter__(self) -> LivePageProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._pipe.send("the runs have ended")
        except OSError:
            return  # it has died; there is nobody to tell
        self._process.join(15.0)
        if self._process.is_alive():
            self._process.terminate()


def _serve(root: Path, listening: socket.socket, url: str, token: str | None, pipe: Connection) -> None:
    """Serve until the command says that its runs have ended, or is gone itself."""
    # Ctrl-C reaches the whole group; the runs are saved first, and the page shows it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from espalier.report.server import LivePage

    page = LivePage([root], Endpoint(listening, url, token))
    try:
        pipe.recv()
    except EOFError:
        page.close()
    else:
        page.close(show_the_end=True)


def shown_live(where: Path) -> LivePageProcess:
    """Start a live page of the runs that are going to be made in a directory, and say where it is."""
    page = LivePageProcess(where)
    click.echo(f"live page: {page.url}", err=True)
    return page

"""The report: one HTML file with everything in it. It opens without a network and asks for none."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espalier._version import __version__
from espalier.core.errors import RunError
from espalier.report import figures
from espalier.report.groups import Groups, compare
from espalier.report.reading import Reading, read_all, run_of
from espalier.report.sections import Room, curve_section, detail, overview, spread_section
from espalier.report.spread import Floats, final_array

if TYPE_CHECKING:
    from espalier.study.results import Results

_SCRIPTS = ("page.js", "figures.js", "export.js", "pdf.js", "timeline.js", "live.js")


def write_report(directories: list[Path], output: Path, results: Results | None = None) -> None:
    """Write the report of all runs at or below the given directories.

    ``results`` are those of a study: its published figures are put beside ours.
    """
    save(report(read_all(directories), results), output)


def save(text: str, output: Path) -> None:
    """Write a text file, making its folder."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{output} cannot be written: {error.strerror or error}.") from error


def report(readings: Sequence[Reading], results: Results | None = None) -> str:
    """Return the report of some runs as HTML; with a study's published figures beside ours if it is one."""
    comparison = compare(readings)
    parts = {"overview": overview(comparison), "curves": curve_section(comparison)}
    if results is not None:
        from espalier.report.published import to_html

        parts["overview"]["published"] = to_html(results)
    parts["spread"] = spread_section(comparison, *finals(comparison))
    faces = [g.face for g in comparison.groups if len(g.face.frame)]
    room = Room.shared(len(faces), max((f.experiment.get("fleet", {}).get("devices", 0) for f in faces), default=0))
    for face in faces:
        parts[f"detail/{face.key}"] = details_of(face, room)
    return html({name: packed(part) for name, part in parts.items()}, parts["overview"]["title"])


def details_of(reading: Reading, room: Room) -> dict[str, Any]:
    """Return what is shown of a single run."""
    with run_of(reading) as run:
        return detail(run, reading.score, room)


def finals(comparison: Groups) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the scores of every run's devices and of its edges at its last evaluation."""
    devices, edges = {}, {}
    for reading in comparison.readings:
        with run_of(reading) as run:
            devices[reading.key] = final_array(run, f"{comparison.score}_device")
            edges[reading.key] = final_array(run, f"{comparison.score}_edge")
    return devices, edges


def html(parts: dict[str, str], title: str, *, live: bool = False) -> str:
    """Return the page: with its parts inside, or one that asks the server it came from for them."""
    from plotly.offline import get_plotlyjs

    blocks = [f'<script type="text/plain" data-part="{escape(n)}">{text}</script>' for n, text in parts.items()]
    about = {
        "live": live, "version": __version__, "dark": figures.editions(), "colours": figures.LIGHT,
        "symbols": figures.SYMBOLS, "muted": figures.MUTED[0],
    }  # fmt: skip
    # in this order: text that users wrote must not be searched for marks
    found = asset("page.html").replace("/*STYLE*/", asset("page.css"))
    found = found.replace("/*SCRIPT*/", "\n".join(asset(n) for n in _SCRIPTS))
    found = found.replace("/*ABOUT*/", json.dumps(about).replace("<", "\\u003c"))
    found = found.replace("<!--TITLE-->", escape(title))
    return found.replace("<!--PLOTLY-->", _packed(get_plotlyjs().encode())).replace("<!--PARTS-->", "".join(blocks))


def packed(part: dict[str, Any]) -> str:
    """Return plain data as compressed JSON in letters."""
    return _packed(dumps(part))


def _packed(data: bytes) -> str:
    # mtime: the same runs make the same file
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def dumps(part: dict[str, Any]) -> bytes:
    """Return plain data as JSON that a browser reads: what is not finite becomes null."""
    try:
        text = json.dumps(part, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(part), separators=(",", ":"), allow_nan=False)
    return text.encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def asset(name: str) -> str:
    """Return a file that comes with this package."""
    return (resources.files("espalier.report") / "assets" / name).read_text(encoding="utf-8")

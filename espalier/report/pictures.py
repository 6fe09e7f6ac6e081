"""Figures as PNG, SVG and PDF. Drawn by the Chromium or Chrome that is on this machine; nothing is downloaded."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from espalier.core.errors import ConfigError, RunError
from espalier.report.curves import axes_of, curves
from espalier.report.figures import Figure
from espalier.report.groups import compare
from espalier.report.heatmaps import similarity
from espalier.report.page import asset, dumps, finals
from espalier.report.reading import Reading, run_of
from espalier.report.sections import spread_section
from espalier.report.spread import over_time
from espalier.report.timeline import timeline
from espalier.report.tree import dressed, tree
from espalier.report.verdict import lead, verdicts

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
FORMATS = ("png", "svg", "pdf")
#: pixels of a figure's width, and how many of the picture's pixels make one of them
WIDTH_PIXELS, DENSITY = 900, 2


def browser() -> str:
    """Return the browser that draws: ``$ESPALIER_BROWSER``, else the first known one on the path."""
    wanted = os.environ.get("ESPALIER_BROWSER")
    for name in (wanted,) if wanted else BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return found
    where = f"ESPALIER_BROWSER = {wanted!r} is not a program" if wanted else "none was found"
    raise RunError(
        f"Pictures are drawn by Chromium or Chrome, but {where}. Install one (Debian: apt-get install chromium) or "
        "set ESPALIER_BROWSER to its path. The HTML, Markdown, LaTeX and CSV formats need no browser."
    )


def write_pictures(readings: Sequence[Reading], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write every figure of a report into a folder, in every format; return their paths."""
    images = draw(figures_of(readings), formats)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, image in images.items():
            (folder / name).write_bytes(image)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}.") from error
    return [folder / name for name in images]


def write_picture(figure: Figure, path: Path) -> None:
    """Write one figure in the format that the file's name ends with.

    Raises:
        ConfigError: It ends with none that is known.
    """
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ConfigError(f"{path}: a figure's file ends with {', '.join(f'.{f}' for f in FORMATS)}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(draw({"figure": figure}, [kind])[f"figure.{kind}"])


def figures_of(readings: Sequence[Reading]) -> dict[str, Figure]:
    """Return the figures of a report that make sense on paper, by name."""
    comparison = compare(readings)
    judged = verdicts(comparison)
    found: dict[str, Figure | None] = {f"verdict{f'-{i + 1}' if i else ''}": lead(v) for i, v in enumerate(judged)}
    found |= {f"score-by-{x}": curves(comparison, x) for x in axes_of(comparison)}
    spread = spread_section(comparison, *finals(comparison))["figures"]
    found |= {f"spread-{scope}": figure for scope, figure in spread.items()}
    for group in comparison.groups:
        face = group.face
        if not len(face.frame):
            continue
        name = re.sub(r"[^a-z0-9]+", "-", group.label.lower()).strip("-") or f"method-{group.number}"
        with run_of(face) as run:
            last = tree(run)
            looks = "cluster" if "cluster" in last["looks"] else "label"
            found[f"tree-{name}"] = _last_frame(dressed(last, looks))
            if run.query("SELECT 1 FROM spans WHERE stop > start LIMIT 1"):
                found[f"timeline-{name}"] = timeline(run)
            found[f"devices-{name}"] = over_time(run, face.score)
            found[f"similarity-{name}"] = similarity(run)
    return {name: figure for name, figure in found.items() if figure is not None}


def _last_frame(figure: Figure) -> Figure:
    frame = figure["frames"][-1]
    data = list(figure["data"])
    for trace, change in zip(frame["traces"], frame["data"], strict=True):
        marker = {**data[trace].get("marker", {}), **change.get("marker", {})}
        data[trace] = {**data[trace], **change, **({"marker": marker} if marker else {})}
    return {"data": data, "layout": figure["layout"]}


def draw(figures: Mapping[str, Figure], formats: Sequence[str]) -> dict[str, bytes]:
    """Return figures as files, by their names (``verdict.svg``)."""
    from plotly.offline import get_plotlyjs

    plain = {n: {"data": f["data"], "layout": f["layout"]} for n, f in figures.items()}
    settings = {"formats": list(formats), "width": WIDTH_PIXELS, "density": DENSITY}
    facts = dumps({"figures": plain, **settings}).decode().replace("<", "\\u003c")
    page = asset("pictures.html").replace("/*FIGURES*/", facts).replace("/*PDF*/", asset("pdf.js"))
    page = page.replace("/*PLOTLY*/", get_plotlyjs().replace("</script", "<\\/script"))
    program = browser()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "figures.html"
        source.write_text(page, encoding="utf-8")
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            f"--user-data-dir={folder}/profile", "--virtual-time-budget=120000", "--dump-dom", source.as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"{program} did not draw the pictures within three minutes.") from error
    found = dict(re.findall(r'<data data-file="([^"]*)" value="([^"]+)"', done.stdout))
    wanted = [f"{name}.{kind}" for name in figures for kind in formats]
    if set(found) != set(wanted):
        missing = ", ".join(sorted(set(wanted) - set(found)))
        words = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise RunError(f"{program} did not draw {missing}: {words[0]}.")
    return {name: base64.b64decode(found[name]) for name in wanted}

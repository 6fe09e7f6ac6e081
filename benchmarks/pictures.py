"""README's pictures: the report of the demo, light and dark, and CSAHFL's timeline in it.

    python benchmarks/pictures.py [--runs DIRECTORY]      (make pictures)

Runs that are given are used, else the demo is run first (some minutes). The report is photographed by Chromium.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from espalier.report.page import write_report
from espalier.report.pictures import browser

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
#: pixels of the page, and how many of the picture's make one of them
WIDTH, DENSITY = 1280, 1.25
TIMELINE_RUN = "CSAHFL, seed 0"


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--runs", type=Path, help="Runs of the demo.")
    given = options.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        runs, page = given or Path(folder) / "runs", Path(folder) / "report.html"
        if given is None:
            subprocess.run([sys.executable, "-m", "espalier", "run", "demo", "--out", runs], check=True)
        write_report([runs], page)
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                opened = chromium.new_page(
                    viewport={"width": WIDTH, "height": 1600}, device_scale_factor=DENSITY, color_scheme=scheme
                )
                _photograph(opened, page, scheme)
            chromium.close()


def _photograph(opened: Any, page: Path, scheme: str) -> None:
    opened.goto(page.as_uri())
    opened.wait_for_selector("body[data-ready=yes]", timeout=120_000)
    opened.wait_for_timeout(1000)
    last = opened.locator("#verdict :is(.warning, .wide)").locator("visible=true").last.bounding_box()
    part = {"x": 0, "y": 0, "width": WIDTH, "height": last["y"] + last["height"] + 6}
    opened.screenshot(path=FIGURES / f"report-{scheme}.png", clip=part)
    if scheme == "light":
        opened.locator("#run").select_option(label=TIMELINE_RUN)
        opened.wait_for_timeout(3000)
        opened.locator("#plot-timeline").screenshot(path=FIGURES / "demo-timeline.png")


if __name__ == "__main__":
    main()

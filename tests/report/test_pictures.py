from __future__ import annotations

import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from espalier.core.errors import ConfigError, RunError
from espalier.report.pictures import DENSITY, WIDTH_PIXELS, browser, write_picture, write_pictures
from espalier.report.reading import read_all
from tests.report.made import write_run


def test_every_figure_becomes_a_png_an_svg_and_a_pdf(tmp_path: Path, chromium: Any) -> None:
    write_run(tmp_path / "runs" / "a", clusters=2, rounds=4)
    found = write_pictures(read_all([tmp_path / "runs"]), tmp_path / "figures")
    names = {
        "verdict", "score-by-round", "score-by-time", "score-by-bytes", "spread-device", "spread-edge",
        "tree-hierfavg", "timeline-hierfavg", "devices-hierfavg",
    }  # fmt: skip
    assert {p.name for p in found} == {f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")}
    for path in found:
        data = path.read_bytes()
        if path.suffix == ".svg":
            assert data.startswith(b"<svg") and ElementTree.fromstring(data).get("width") == str(WIDTH_PIXELS)
            continue
        if path.suffix == ".pdf":
            assert data.startswith(b"%PDF-1.") and data.rstrip().endswith(b"%%EOF")
            continue
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", data[16:24])
        assert width == WIDTH_PIXELS * DENSITY and height > 200 and len(data) > 4000


def test_one_figure_goes_where_its_name_says(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a figure's file ends with \.png, \.svg, \.pdf"):
        write_picture({}, tmp_path / "slopes.jpg")


def test_without_a_browser_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ESPALIER_BROWSER", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RunError, match=r"none was found. Install one \(Debian: apt-get install chromium\)"):
        browser()
    monkeypatch.setenv("ESPALIER_BROWSER", "/no/such/program")
    with pytest.raises(RunError, match="ESPALIER_BROWSER = '/no/such/program' is not a program"):
        browser()


def test_a_browser_that_draws_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\necho broken >&2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("ESPALIER_BROWSER", str(fake))
    write_run(tmp_path / "runs" / "a", rounds=2)
    with pytest.raises(RunError, match=r"did not draw devices-hierfavg.pdf, devices-hierfavg.png.*: broken"):
        write_pictures(read_all([tmp_path / "runs"]), tmp_path / "png")

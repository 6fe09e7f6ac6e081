"""What all figures have in common: titles and units on axes, plain numbers, and Plotly takes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from espalier.core.errors import ConfigError
from espalier.report import figures
from espalier.report.curves import AXES, curves, measures
from espalier.report.figures import Figure, byte_unit, numbers, thin, time_unit, to_plotly
from espalier.report.groups import compare
from espalier.report.page import dumps, finals
from espalier.report.pictures import figures_of
from espalier.report.reading import opened, read_all
from espalier.report.sections import Room, detail, spread_section


@pytest.fixture(scope="module")
def every(runs: Path) -> dict[str, Figure]:
    readings = read_all([runs])
    comparison = compare(readings)
    found = dict(figures_of(readings))
    found |= {f"{x}/{m}": curves(comparison, x, m) for x in AXES for m in measures(comparison)}
    found |= spread_section(comparison, *finals(comparison))["figures"]
    for name in ("a", "b", "c"):
        with opened(runs / name / "seed-0") as run:
            part = detail(run, "acc", Room())
        found |= {f"{name}/{k}": v for k, v in part["figures"].items()}
        found |= {f"{name}/{n['title']}": n["figure"] for n in part["notes"]}
    return found


#: what axes show that has a unit; the others are names, plain numbers and shares
QUANTITIES = ("virtual time", "bytes", "training data")


def test_every_axis_has_a_title_and_every_quantity_a_unit(every: dict[str, Figure]) -> None:
    assert len(every) > 40
    for name, figure in every.items():
        for side in ("xaxis", "yaxis"):
            axis = figure["layout"][side]
            if axis.get("visible") is False:
                assert "tree" in name
                continue
            title = axis["title"]["text"]
            if side == "yaxis" and not title:  # a long one stands above the figure
                title = figure["layout"].get("title", {}).get("text", "")
            assert title or axis.get("type") == "category", (name, side)  # names of methods explain themselves
            if title.startswith(QUANTITIES):
                assert "(" in title and title.endswith(")"), (name, side, title)
            else:  # a stand-in for a unit tells nobody anything
                assert not title.endswith(("(number)", "(name)", "(label)", "(count)", "unit)")), (name, side, title)
        for trace in figure["data"]:
            if "colorbar" in trace:
                assert trace["colorbar"]["title"]["text"], name


def test_figures_are_plain_json_and_plotly_takes_them(every: dict[str, Figure]) -> None:
    for name, figure in every.items():
        json.loads(dumps(figure))
        if not name.startswith(("steps/", "time/", "bytes/")):  # the same traces as by round
            assert to_plotly(figure).to_plotly_json()["data"], name


def test_sliders_of_figures_with_frames(every: dict[str, Figure]) -> None:
    shown = to_plotly(every["a/tree"])
    assert len(shown.layout.sliders[0].steps) == len(shown.frames) == len(every["a/tree"]["frames"])


def test_only_the_palette_s_colours_are_used(every: dict[str, Figure]) -> None:
    from espalier.report.figures import AWAY, LIGHT, MUTED, WAITING

    known = {*LIGHT, MUTED[0], WAITING[0], AWAY[0], "#ffffff"}
    for name, figure in every.items():
        text = json.dumps(figure)
        found = {text[i : i + 7] for i in range(len(text)) if text[i - 1] == '"' and text[i] == "#"}
        assert found <= known, name


def test_numbers_keep_digits_and_lose_what_is_not_finite() -> None:
    assert numbers([0.123456789, 123456.789, float("nan"), float("inf"), 0.0, -1e-9]) == [
        0.12346, 123460.0, None, None, 0.0, -1e-9,
    ]  # fmt: skip
    assert numbers(np.array([1 / 3]), 2) == [0.33]


def test_units_suit_the_size() -> None:
    assert time_unit(100) == ("s", 1.0) and time_unit(181) == ("min", 60.0) and time_unit(4e5) == ("d", 86400.0)
    assert byte_unit(0) == ("B", 1.0) and byte_unit(2.5e6) == ("MB", 1e6)


def test_thinning_keeps_the_ends() -> None:
    assert thin(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert thin(101, 3).tolist() == [0, 50, 100]


def test_wrong_names_are_refused(runs: Path) -> None:
    comparison = compare(read_all([runs]))
    with pytest.raises(ConfigError, match=r"x = 'rounds'.*time, round, steps, bytes.*Did you mean 'round'"):
        curves(comparison, "rounds")
    with pytest.raises(ConfigError, match=r"measure = 'acc_edges'.*Did you mean 'acc_edge'"):
        curves(comparison, "round", "acc_edges")


def test_curves_carry_every_seed(runs: Path) -> None:
    figure = curves(compare(read_all([runs])), "round", "acc_device")
    lines = [t for t in figure["data"] if t.get("showlegend") is not False]
    assert [t["name"] for t in lines] == ["HierFAVG", "CSAHFL", "Flat &lt;i&gt;"]
    assert len(figure["data"]) == 9 and len(lines[0]["x"]) == 11
    for line in lines:
        seeds = line["meta"]["seeds"]
        assert list(seeds) == ["0", "1"]
        assert np.allclose(np.mean([seeds["0"], seeds["1"]], axis=0), line["y"], atol=2e-5)
    assert len({(t["line"]["color"], t["marker"]["symbol"]) for t in lines}) == 3


#: what is left of linear RGB for full protanopes, deuteranopes and tritanopes
SIGHTS = {
    "normal": np.eye(3),
    "protan": np.reshape(
        [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998], (3, 3)
    ),
    "deutan": np.reshape(
        [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881], (3, 3)
    ),
    "tritan": np.reshape(
        [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900], (3, 3)
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ rgb / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(np.maximum(xyz, 1e-9)), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    a, b = sorted((float(TO_XYZ[1] @ linear(c)) for c in (one, other)), reverse=True)
    return (a + 0.05) / (b + 0.05)


@pytest.mark.parametrize("edition", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_every_reader_can_tell_the_colours_apart(edition: int, sight: str) -> None:
    colours = (figures.LIGHT, figures.DARK)[edition]
    seen = [lab(np.clip(SIGHTS[sight] @ linear(c), 0, 1)) for c in colours]
    assert len(seen) == 12
    for count, apart in ((6, 25 if sight == "tritan" else 30), (12, 19)):
        nearest = min(np.linalg.norm(a - b) for i, a in enumerate(seen[:count]) for b in seen[:i])
        assert nearest >= apart, count


@pytest.mark.parametrize("edition", [0, 1], ids=["light", "dark"])
def test_colours_stand_out_from_the_page(edition: int) -> None:
    for colour in (*(figures.LIGHT, figures.DARK)[edition], figures.MUTED[edition]):
        assert contrast(colour, figures.PAPER[edition]) >= 3


def test_contrast_is_measured_as_the_web_does() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


def test_twelve_things_can_be_told_in_grey() -> None:
    assert len({figures.symbol(i) for i in range(12)}) == 12 and len({figures.symbol(i) for i in range(24)}) == 24
    assert all(figures.dash(i) != figures.dash(i + 1) for i in range(24))
    assert len({(figures.colour(i), figures.dash(i)) for i in range(24)}) == 24


def test_every_colour_has_its_dark_edition_also_when_faded() -> None:
    found = figures.editions()
    assert found["#397af8"] == "#73adf3"
    # 0x39 = 57, 0x7a = 122, 0xf8 = 248 becomes 0x73 = 115, 0xad = 173, 0xf3 = 243
    assert figures.faded("#397af8", 0.18) == "rgba(57,122,248,0.18)"
    assert found["rgba(57,122,248,"] == "rgba(115,173,243,"

"""The palette's promises, measured: colour-blind sight after Machado et al. (2009), distances in CIELAB."""

from __future__ import annotations

import numpy as np
import pytest

from espalier.report import palette

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
    colours = (palette.LIGHT, palette.DARK)[edition]
    seen = [lab(np.clip(SIGHTS[sight] @ linear(c), 0, 1)) for c in colours]
    assert len(seen) == 12
    for count, apart in ((6, 25 if sight == "tritan" else 30), (12, 19)):
        nearest = min(np.linalg.norm(a - b) for i, a in enumerate(seen[:count]) for b in seen[:i])
        assert nearest >= apart, count


@pytest.mark.parametrize("edition", [0, 1], ids=["light", "dark"])
def test_colours_stand_out_from_the_page(edition: int) -> None:
    for colour in (*(palette.LIGHT, palette.DARK)[edition], palette.MUTED[edition]):
        assert contrast(colour, palette.PAPER[edition]) >= 3


def test_contrast_is_measured_as_the_web_does() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


def test_twelve_things_can_be_told_in_grey() -> None:
    assert len({palette.symbol(i) for i in range(12)}) == 12 and len({palette.symbol(i) for i in range(24)}) == 24
    assert all(palette.dash(i) != palette.dash(i + 1) for i in range(24))
    assert len({(palette.colour(i), palette.dash(i)) for i in range(24)}) == 24


def test_every_colour_has_its_dark_edition_also_when_faded() -> None:
    found = palette.editions()
    assert found["#397af8"] == "#73adf3"
    # 0x39 = 57, 0x7a = 122, 0xf8 = 248 becomes 0x73 = 115, 0xad = 173, 0xf3 = 243
    assert palette.faded("#397af8", 0.18) == "rgba(57,122,248,0.18)"
    assert found["rgba(57,122,248,"] == "rgba(115,173,243,"

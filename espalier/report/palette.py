"""Colours that colour-blind readers can tell apart, in a light and a dark edition.

The first six colours of an edition differ by at least 30 units of CIELAB for normal sight, protanopes, deuteranopes and
(25 units) tritanopes, all twelve by 19, and they stand out from the page by a contrast of at least 3
(tests/report/test_palette.py measures it). Twelve things also have twelve symbols, so that they can be told in grey;
dashes change from one to the next. Figures are drawn in the light edition; the page puts the dark one in its place,
colour by colour.
"""

from __future__ import annotations

LIGHT = ("#397af8", "#c98500", "#0d4038", "#ef2f98", "#4b0080", "#71420a",
         "#91915e", "#911dbe", "#397256", "#e55cd2", "#5317f3", "#8b0972")  # fmt: skip
DARK = ("#73adf3", "#ffde2d", "#4cf988", "#e688a1", "#8764ff", "#dc6416",
        "#7db470", "#ff26c6", "#2b6f96", "#ebf4f8", "#93553c", "#756263")  # fmt: skip
#: the page behind figures, light and dark
PAPER = ("#ffffff", "#15181d")
#: lines and text that carry no meaning of their own, light and dark
MUTED = ("#6b7280", "#9aa4b2")
#: a node that waits, and one that is away, light and dark
WAITING = ("#e6e8ec", "#2a2f37")
AWAY = ("#a7adb8", "#5c6470")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = (
    "circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon2",
    "hourglass", "bowtie",
)  # fmt: skip
#: for figures with a scale; even in lightness, so that it can be read without colours
SCALE = "Cividis"


def colour(number: int) -> str:
    """Return the colour of the thing with a number."""
    return LIGHT[number % len(LIGHT)]


def dash(number: int) -> str:
    """Return the dash of the thing with a number: another one than its neighbours', and after every twelve."""
    return DASHES[(number + number // len(LIGHT)) % len(DASHES)]


def symbol(number: int) -> str:
    """Return the symbol of the thing with a number; after twelve, hollow ones, then again."""
    return SYMBOLS[number % len(SYMBOLS)] + ("-open" if number // len(SYMBOLS) % 2 else "")


def faded(hex_colour: str, alpha: float) -> str:
    """Return a colour as rgba with an opacity."""
    red, green, blue = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def editions() -> dict[str, str]:
    """Return which light colour becomes which dark one, for solid colours and ``rgba(`` prefixes."""
    pairs = [*zip(LIGHT, DARK, strict=True), MUTED, WAITING, AWAY]
    solid = dict(pairs)
    mixed = {faded(a, 1)[:-2]: faded(b, 1)[:-2] for a, b in pairs}
    return solid | mixed

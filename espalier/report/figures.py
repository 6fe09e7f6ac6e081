"""Figures as plain Plotly tables (``data``, ``layout``, ``frames``): the page, notebooks and pictures share them.

Colours can be told apart by colour-blind readers, in a light and a dark edition. The first six of an edition differ by
at least 30 units of CIELAB for normal sight, protanopes, deuteranopes and (25 units) tritanopes, all twelve by 19, and
they stand out from the page by a contrast of at least 3 (tests/report/test_figures.py measures it). Twelve things also
have twelve symbols, so that they can be told in grey; dashes change from one to the next. Figures are drawn in the
light edition; the page puts the dark one in its place, colour by colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


Figure = dict[str, Any]

_SECONDS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))
_BYTES = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))


def numbers(values: Iterable[float] | NDArray[Any], digits: int = 5) -> list[float | None]:
    """Return numbers with so many significant digits; what is not finite becomes None."""
    array = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=float)
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in array.tolist()]


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit for times up to ``longest`` seconds, and its seconds."""
    return _unit(longest, _SECONDS, 3.0)


def byte_unit(largest: float) -> tuple[str, float]:
    """Return the unit for amounts up to ``largest`` bytes, and its bytes."""
    return _unit(largest, _BYTES, 1.0)


def _unit(largest: float, units: Sequence[tuple[str, float]], at_least: float) -> tuple[str, float]:
    found = units[0]
    if math.isfinite(largest):
        for name, size in units:
            if largest >= at_least * size:
                found = (name, size)
    return found


def axis(title: str, unit: str | None, **more: Any) -> dict[str, Any]:
    """Return an axis; its title ends with its unit (None: numbers without a unit, or names)."""
    text = escape(title) if unit is None else f"{escape(title)} ({escape(unit)})"
    # "200µ" on an axis without a unit says nothing
    return {"title": {"text": text}, "automargin": True, "zeroline": False, "exponentformat": "power", **more}


def figure(
    data: list[dict[str, Any]],
    x: dict[str, Any],
    y: dict[str, Any],
    *,
    height: int = 420,
    frames: list[dict[str, Any]] | None = None,
    **layout: Any,
) -> Figure:
    """Return a figure with the house's layout. Colours of text and paper are the page's."""
    own = {
        "xaxis": x, "yaxis": y, "height": height, "margin": {"l": 56, "r": 16, "t": 24, "b": 48},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        "hovermode": "closest", "hoverlabel": {"align": "left", "namelength": -1},
    }  # fmt: skip
    return {"data": data, "layout": own | layout, **({"frames": frames} if frames else {})}


def thin(count: int, most: int) -> NDArray[np.int64]:
    """Return at most ``most`` positions out of ``count``, evenly spread, with the first and the last."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.round(np.linspace(0, count - 1, most)).astype(np.int64))


def to_plotly(found: Figure) -> Any:
    """Return a figure as ``plotly.graph_objects.Figure``, with a slider where it has frames."""
    import plotly.graph_objects as go

    frames = [{k: f[k] for k in ("name", "data", "traces")} for f in found.get("frames", [])]
    out = go.Figure(data=found["data"], layout=found["layout"], frames=frames)
    out.update_layout(template="plotly_white")
    if frames:
        at_once = {"mode": "immediate", "frame": {"duration": 0}}
        steps = [{"label": f["name"], "method": "animate", "args": [[f["name"]], at_once]} for f in frames]
        out.update_layout(sliders=[{"steps": steps, "active": 0, "pad": {"t": 40}}])
    return out

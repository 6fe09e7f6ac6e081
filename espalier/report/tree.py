"""The tree, drawn: the root in the middle, aggregators around it, devices outside; a slider goes through time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from espalier.core.address import Address, host_of
from espalier.core.errors import ConfigError, nearest
from espalier.record.measures import human_seconds
from espalier.record.run import Run
from espalier.report.figures import LIGHT, MUTED, Figure, colour, figure, symbol
from espalier.report.reading import Names
from espalier.report.tree_history import Moment, moments

Point = tuple[float, float]
#: fleets beyond this are drawn as aggregators only, their size showing how many devices they have
MOST_DEVICES = 1500


def place(parents: dict[Address, Address], devices: int) -> dict[Address, Point]:
    """Return where each node of a tree (or of several) is drawn: depth outwards, one slot per leaf around.

    The root is at (0, 0), the deepest nodes at distance 1.
    """
    children: dict[Address, list[Address]] = {}
    for node, parent in parents.items():
        children.setdefault(parent, []).append(node)
    for below in children.values():
        below.sort(key=lambda n: (n < devices, n))
    roots = sorted(n for n in children if n not in parents)
    order: list[tuple[Address, int]] = []
    stack = [(r, 0 if len(roots) == 1 else 1) for r in reversed(roots)]
    while stack:
        node, depth = stack.pop()
        order.append((node, depth))
        stack += [(c, depth + 1) for c in reversed(children.get(node, []))]
    leaves = [n for n, _ in order if n not in children]
    slots = {n: (i, i) for i, n in enumerate(leaves)}
    for node, _ in reversed(order):
        if node in children:
            inner = [slots[c] for c in children[node]]
            slots[node] = (min(a for a, _ in inner), max(b for _, b in inner))
    deepest = max((d for _, d in order), default=0) or 1
    found = {}
    for node, depth in order:
        first, last = slots[node]
        angle = math.pi / 2 - 2 * math.pi * ((first + last) / 2 + 0.5) / max(1, len(leaves))
        radius = depth / deepest
        found[node] = (radius * math.cos(angle), radius * math.sin(angle))
    return found


def tree(run: Run, most: int = 60) -> Figure:
    """Draw a run's tree at its moments (one frame each).

    The figure's ``looks`` say how devices may be coloured: by their main ``label``, by their ``cluster`` or by the
    edge that was their ``home``. :func:`dressed` puts one on.
    """
    names = Names.of(run)
    fleet = run.query("SELECT node, edge, samples, histogram FROM devices ORDER BY node")
    drawn = len(fleet) <= MOST_DEVICES
    steps = moments(run, most)
    frames = [_frame(m, names, fleet, drawn) for m in steps]
    looks = _looks(steps, fleet, names) if drawn else {}
    blank = {"visible": False, "range": [-1.15, 1.15]}
    first = [_merged(t, u) for t, u in zip(_traces(), frames[0]["data"], strict=True)]
    found = figure(
        first, blank, {**blank, "range": [-1.42, 1.15], "scaleanchor": "x"}, height=560, frames=frames,
        margin={"l": 8, "r": 8, "t": 24, "b": 8},
    )  # fmt: skip
    found["looks"] = looks
    return found


def _merged(trace: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    marker = {**trace.get("marker", {}), **change.get("marker", {})}
    return {**trace, **change, **({"marker": marker} if marker else {})}


def dressed(found: Figure, by: str = "label") -> Figure:
    """Return a tree with its devices coloured by one of its looks."""
    looks = found["looks"]
    if not looks:
        return found
    if by not in looks:
        raise ConfigError(f"by = {by!r}: this run's devices can be coloured by {', '.join(looks)}.{nearest(by, looks)}")
    markers = looks[by]["markers"]
    frames = []
    for number, frame in enumerate(found.get("frames", [])):
        marker = markers[number if len(markers) > 1 else 0]
        frames.append(
            {**frame, "data": [{**t, "marker": marker} if i == 1 else t for i, t in enumerate(frame["data"])]}
        )
    data = [*found["data"], *looks[by]["legend"]]
    data[1] = {**data[1], "marker": markers[0]}
    return {**found, "data": data, "frames": frames}


def _traces() -> list[dict[str, Any]]:
    line = {"color": MUTED[0], "width": 0.7}
    ring = {"symbol": "circle-open", "size": 15, "color": LIGHT[3], "line": {"width": 2}}
    square = {"symbol": "square", "color": MUTED[0], "opacity": 1, "line": {"width": 1, "color": "#ffffff"}}
    about = {"type": "scatter", "showlegend": False}
    return [
        {**about, "mode": "lines", "line": line, "hoverinfo": "skip", "name": "reports to"},
        {**about, "mode": "markers", "hovertemplate": "%{text}<extra></extra>", "name": "devices"},
        {
            **about,
            "mode": "markers",
            "marker": square,
            "hovertemplate": "%{text}<extra></extra>",
            "name": "aggregators",
        },
        {
            **about,
            "mode": "markers",
            "marker": ring,
            "hoverinfo": "skip",
            "name": "changed just now",
            "showlegend": True,
        },
    ]


def _frame(moment: Moment, names: Names, fleet: Sequence[tuple[Any, ...]], drawn: bool) -> dict[str, Any]:
    """Return the tree at a moment; of a fleet that is too large the devices are not ``drawn``."""
    parents = {c: p for c, p in moment.parents.items() if drawn or c >= names.devices}
    spots = place(parents, names.devices)
    lines = _lines(parents, spots)
    outside = [d for d, *_ in fleet if d not in spots] if drawn else []
    for i, device in enumerate(outside):  # rows of forty below the tree
        spots[device] = (-1 + 2 * (i % 40 + 0.5) / 40, -1.2 - 0.07 * (i // 40))
    devices = fleet if drawn else []
    told = ", ".join(f"{v} {k}" for k, v in moment.counts.items())
    absent = f"; {len(outside)} away" if outside else ""
    return {
        "name": f"{moment.time:.6g} s",
        "caption": f"{human_seconds(moment.time)}{': ' + told if told else ''}{absent}",
        "traces": [0, 1, 2, 3],
        "data": [
            lines,
            {**_xy([spots[d] for d, *_ in devices]), "text": [_device_text(row, moment, names) for row in devices]},
            _aggregators(moment, names, spots, None if drawn else len(fleet)),
            _xy([spots[d] for d in sorted(moment.changed) if d in spots]),
        ],
    }


def _lines(parents: dict[Address, Address], spots: dict[Address, Point]) -> dict[str, list[float | None]]:
    """Return a line from every node to its parent."""
    x: list[float | None] = []
    y: list[float | None] = []
    for node, parent in parents.items():
        (x0, y0), (x1, y1) = spots[node], spots[parent]
        x += [round(x0, 3), round(x1, 3), None]
        y += [round(y0, 3), round(y1, 3), None]
    return {"x": x, "y": y}


def _aggregators(moment: Moment, names: Names, spots: dict[Address, Point], devices: int | None) -> dict[str, Any]:
    """Return the aggregators; where there are ``devices`` that are not drawn, their size shows their share of them."""
    below: dict[Address, int] = {}
    for child, parent in moment.parents.items():
        below[parent] = below.get(parent, 0) + names.is_device(child)
    shown = [a for a in spots if not names.is_device(a)]
    texts = [
        f"{names.name(a)}: {below.get(a, 0)} devices" + (", not there" if host_of(a) in moment.away else "")
        for a in shown
    ]
    sizes = [9.0 if devices is None else 8 + 30 * math.sqrt(below.get(a, 0) / max(1, devices)) for a in shown]
    return {**_xy([spots[a] for a in shown]), "text": texts, "marker": {"size": sizes}}


def _xy(points: Sequence[Point]) -> dict[str, list[float]]:
    return {"x": [round(x, 3) for x, _ in points], "y": [round(y, 3) for _, y in points]}


def _device_text(row: tuple[Any, ...], moment: Moment, names: Names) -> str:
    device, edge, samples, histogram = row
    parent, group = moment.parents.get(device), moment.groups.get(device)
    where = "reports to nobody" if parent is None else f"reports to {names.name(parent)}"
    cluster = f"<br>cluster {escape(group)}" if group else ""
    label = names.label(main_label(histogram))
    return f"{names.device(device)}, home {names.edge(edge)}<br>{where}{cluster}<br>{samples} samples, most of {label}"


def main_label(histogram: bytes) -> int:
    """Return the label a device has most samples of."""
    return int(np.frombuffer(histogram, dtype="<i4").argmax()) if histogram else 0


def _looks(steps: Sequence[Moment], fleet: Sequence[tuple[Any, ...]], names: Names) -> dict[str, Any]:
    """Return the ways to colour devices: markers (one for all frames, or one per frame) and a legend."""
    looks: dict[str, Any] = {}
    labels = [main_label(h) for *_, h in fleet]
    looks["label"] = _look([labels], names.label)
    clusters = sorted({g for m in steps for g in m.groups.values()}, key=lambda g: (len(g), g))
    if clusters:
        number = {g: i for i, g in enumerate(clusters)}
        per_frame = [[number.get(m.groups.get(d, ""), -1) for d, *_ in fleet] for m in steps]
        looks["cluster"] = _look(per_frame, lambda k: f"cluster {escape(clusters[k])}")
    looks["home"] = _look([[e for _, e, *_ in fleet]], lambda e: f"home {names.edge(e)}")
    return looks


def _look(per_frame: Sequence[Sequence[int]], called: Callable[[int], str]) -> dict[str, Any]:
    markers = [
        {
            "size": 8, "opacity": 1, "color": [MUTED[0] if k < 0 else colour(k) for k in kinds],
            "symbol": ["circle-open" if k < 0 else symbol(k) for k in kinds],
        }
        for kinds in per_frame
    ]  # fmt: skip
    present = sorted({k for kinds in per_frame for k in kinds if k >= 0})
    legend = [
        {
            "type": "scatter", "x": [None], "y": [None], "mode": "markers", "hoverinfo": "skip",
            "name": called(k), "marker": {"size": 8, "color": colour(k), "symbol": symbol(k)},
        }
        for k in present
    ]  # fmt: skip
    return {"markers": markers, "legend": legend if len(legend) <= 24 else []}

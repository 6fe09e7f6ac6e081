"""Read off a run's record: how nodes spend their time (EASF's Table V), and what its analysis is about."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np

from espalier.core.seeds import stream
from espalier.methods.easf.dsf.messages import STATISTIC_EVENT
from espalier.methods.easf.theory import DISCREPANCY_EVENT, label_correlation
from espalier.record.run import Run

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals that cover the same time, ascending."""
    found: list[Interval] = []
    for start, stop in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def within(intervals: Iterable[Interval], window: Interval) -> float:
    """Return the seconds of disjoint intervals that lie in a window."""
    return sum(max(0.0, min(stop, window[1]) - max(start, window[0])) for start, stop in intervals)


def closings(run: Run) -> list[float]:
    """Return when the root's rounds closed, as far as they were evaluated (every round, unless told otherwise)."""
    return [t for (t,) in run.query("SELECT min(time) FROM metrics WHERE round > 0 GROUP BY round ORDER BY round")]


def seconds_per_round(run: Run) -> float:
    """Return the mean seconds of a root's round (NaN if none closed)."""
    found = closings(run)
    return found[-1] / len(found) if found else float("nan")


def shares(run: Run) -> tuple[float, float, float]:
    """Return a device's mean shares of time: training, transmitting, waiting.

    Of the root's rounds only those count in which a device took part from end to end: it was there all the while and
    trained. Who trains while one of its messages is under way trains; several messages at once count once.
    """
    ends = closings(run)
    windows = list(zip([0.0, *ends], ends, strict=False))
    training: dict[int, list[Interval]] = {}
    carrying: dict[int, list[Interval]] = {}
    for node, kind, start, stop, other in run.query("SELECT node, kind, start, stop, other FROM spans"):
        if kind == "train":
            training.setdefault(node, []).append((start, stop))
        elif kind == "send":
            for end in (node, other):
                carrying.setdefault(end, []).append((start, stop))
    steps: dict[int, list[float]] = {}
    for kind in ("gone", "came"):
        for event in run.events(kind):
            steps.setdefault(event["node"], []).append(event["time"])
    totals = [0.0, 0.0, 0.0]
    for device, spans in training.items():
        works = merged(spans)
        busy = merged([*works, *carrying.get(device, [])])
        changes = sorted(steps.get(device, []))
        for window in windows:
            trained = within(works, window)
            there = bisect.bisect(changes, window[0]) == bisect.bisect(changes, window[1])
            if trained > 0 and there:
                occupied, length = within(busy, window), window[1] - window[0]
                for i, value in enumerate((trained, occupied - trained, length - occupied)):
                    totals[i] += value
    whole = sum(totals)
    if whole == 0:
        return (float("nan"),) * 3
    return totals[0] / whole, totals[1] / whole, totals[2] / whole


def balance_correlation(run: Run) -> float | None:
    """Return how far the distances that DSF lowers go with distances in labels (None: the run does not balance)."""
    told = {int(event["node"]): event["values"] for event in run.events(STATISTIC_EVENT)}
    if not told:
        return None
    counts = {int(d): np.frombuffer(raw, "<i4") for d, raw in run.query("SELECT node, histogram FROM devices")}
    labels = [counts[d] / counts[d].sum() for d in sorted(told)]
    found = label_correlation([told[d] for d in sorted(told)], labels, stream(run.seed, "label_correlation"))
    return None if np.isnan(found) else round(found, 4)


def mean_discrepancy(run: Run) -> float | None:
    """Return the mean over the root's rounds of Δ_r, Eq. (15)."""
    found = [float(event["value"]) for event in run.events(DISCREPANCY_EVENT)]
    return float(np.mean(found)) if found else None

"""What every node did when, as a picture of rows and moments: the arithmetic behind the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.record.run import Run
from espalier.report.figures import thin
from espalier.report.reading import Names

#: what a node can be doing; a moment's state is its number here
STATES = ("waits", "trains", "measures", "sends", "receives", "is away")
WAITS, TRAINS, MEASURES, SENDS, RECEIVES, AWAY = range(6)
#: rows of a timeline; of larger fleets every k-th device is shown
MOST_ROWS = 420


@dataclass(frozen=True)
class Spans:
    """Spans of work, [S] each, by start: who (row of the timeline), what, from, until (s), and to whom (row or -1)."""

    row: NDArray[np.int32]
    state: NDArray[np.uint8]
    start: NDArray[np.float64]
    stop: NDArray[np.float64]
    other: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.row)

    def within(self, start: float, stop: float) -> Spans:
        """Return the spans that touch a window."""
        return self.only((self.stop > start) & (self.start < stop))

    def only(self, which: NDArray[np.bool_] | slice) -> Spans:
        """Return some of the spans."""
        return Spans(self.row[which], self.state[which], self.start[which], self.stop[which], self.other[which])


def hosts_shown(run: Run, names: Names) -> list[int]:
    """Return the hosts of a timeline from top to bottom: the cloud, other servers, each edge with its devices."""
    homes = run.query("SELECT node, edge FROM devices ORDER BY edge, node")
    servers = [h for (h,) in run.query("SELECT DISTINCT node FROM spans WHERE node > ? ORDER BY node", names.cloud)]
    room = max(1, MOST_ROWS - names.edges - 1 - len(servers))
    kept = [homes[i] for i in thin(len(homes), room).tolist()]
    found = [names.cloud, *servers]
    for edge in range(names.edges):
        found.append(names.devices + edge)
        found += [node for node, home in kept if home == edge]
    return found


def read_spans(run: Run, hosts: Sequence[int], start: float = 0.0, stop: float = float("inf")) -> Spans:
    """Read the spans of some hosts that touch a window (those that take no time are no spans)."""
    rows = run.query(
        "SELECT node, CASE kind WHEN 'train' THEN 1 WHEN 'measure' THEN 2 ELSE 3 END, start, stop, "
        "coalesce(other, -1) FROM spans WHERE stop > start AND stop > ? AND start < ? ORDER BY start",
        start, min(stop, 1e300),
    )  # fmt: skip
    table = np.array(rows, dtype=float) if rows else np.zeros((0, 5))
    top = int(max(max(hosts, default=0), table[:, [0, 4]].max(initial=0))) + 1
    place = np.full(top + 1, -1, dtype=np.int32)  # the last entry answers -1, "nobody"
    place[list(hosts)] = np.arange(len(hosts), dtype=np.int32)
    node, other = place[table[:, 0].astype(np.int64)], place[table[:, 4].astype(np.int64)]
    found = Spans(node, table[:, 1].astype(np.uint8), table[:, 2], table[:, 3], other)
    return found.only((node >= 0) | (other >= 0))


def raster(
    spans: Spans, away: Sequence[tuple[int, float, float]], rows: int, start: float, stop: float, bins: int
) -> NDArray[np.uint8]:
    """Return what each row did for most of each of ``bins`` equal parts of a window, [rows, bins].

    A part in which a row was idle longer than it did any one thing shows as waiting. Of two that took equally long,
    the one that comes first in :data:`STATES` after waiting is shown.
    """
    sent = spans.state == SENDS
    doing = {
        s: (spans.row[m], spans.start[m], spans.stop[m])
        for s in (TRAINS, MEASURES, SENDS)
        if (m := spans.state == s).any()
    }
    doing[RECEIVES] = (spans.other[sent], spans.start[sent], spans.stop[sent])
    if away:
        who, since, until = (np.array(column) for column in zip(*away, strict=True))
        doing[AWAY] = (who.astype(np.int32), since.astype(float), until.astype(float))
    share = np.zeros((len(STATES), rows, bins))
    for state, (row, since, until) in doing.items():
        share[state] = _covered(row, since, until, rows, start, stop, bins)
    row, since, until = (np.concatenate(column) for column in zip(*doing.values(), strict=True))
    # a little less, so that of two equal shares waiting is the one that is not shown
    share[WAITS] = (1.0 - _covered(row, since, until, rows, start, stop, bins)) * (1 - 1e-9)
    order = [TRAINS, MEASURES, SENDS, RECEIVES, AWAY, WAITS]
    found: NDArray[np.uint8] = np.array(order, dtype=np.uint8)[share[order].argmax(0)]
    return found


def _covered(
    row: NDArray[np.int32], since: NDArray[np.float64], until: NDArray[np.float64],
    rows: int, start: float, stop: float, bins: int,
) -> NDArray[np.float64]:  # fmt: skip
    """Return the share of every bin that spans cover; what several cover at once counts once, [rows, bins].

    A span covers of bin b what its stop covers of it minus what its start does; a point x covers all bins before the
    one it lies in, and of that one the part before it.
    """
    row, since, until = _union(row, since, until)
    total = np.zeros(rows * (bins + 1))
    for sign, point in ((1.0, until), (-1.0, since)):
        x = np.clip((point - start) * (bins / (stop - start)), 0.0, bins)
        at = np.minimum(x.astype(np.int64), bins)
        flat = row.astype(np.int64) * (bins + 1) + at
        whole = np.bincount(flat, minlength=rows * (bins + 1)).reshape(rows, bins + 1)
        before = whole[:, ::-1].cumsum(1)[:, ::-1] - whole
        part = np.bincount(flat, weights=x - at, minlength=rows * (bins + 1))
        total += sign * (before.reshape(-1) + part)
    return np.clip(total.reshape(rows, bins + 1)[:, :bins], 0.0, 1.0)


def _union(
    row: NDArray[np.int32], since: NDArray[np.float64], until: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """Return the rows' spans with those that overlap put together; rows below 0 are nobody's."""
    known = row >= 0
    row, since, until = row[known], since[known], until[known]
    if not len(row):
        return row, since, until
    order = np.lexsort((since, row))
    row, since, until = row[order], since[order], until[order]
    shift = row * (float(until.max()) - min(0.0, float(since.min())) + 1.0)  # rows one after another, never touching
    latest = np.maximum.accumulate(until + shift)
    first = np.append(True, since[1:] + shift[1:] > latest[:-1])
    last = np.append(first[1:], True)
    return row[first], since[first], (latest - shift)[last]

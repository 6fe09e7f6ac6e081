"""Eq. (4) and (5): the round time of a cluster and the head that achieves it.

A member's report reaches head j after ``t'_i + t''_ij``; the head merges when the last one is in, and
the best head is the one for which that is earliest. A missing link is infinitely slow, so a cluster in
which nobody hears everybody has an infinite round time. The broadcast back is not counted (D10).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from espalier.core.errors import WorldError
from espalier.methods.d2d.clusters import Floats, Ints


def arrivals(compute: ArrayLike, links: ArrayLike) -> Floats:
    """Time until device i's report is at device j: ``t'_i + t''_ij``, and ``t'_i`` at home.

    Args:
        compute: ``[N]`` seconds t' a device computes in one round.
        links: ``[N, N]`` seconds t'' from row to column, ``inf`` where there is no link; the diagonal is
            not read.

    Returns:
        ``[N, N]`` seconds.
    """
    own, pair = np.asarray(compute, dtype=np.float64), np.asarray(links, dtype=np.float64)
    total = own[:, None] + pair
    np.fill_diagonal(total, own)
    if np.isnan(total).any() or (total < 0).any():
        raise WorldError("Compute and link times must be numbers ≥ 0 (inf for an absent link).")
    return total


def head_and_time(times: Floats, members: Ints) -> tuple[int, float]:
    """Eq. (4) and (5): the head of a cluster and its round time in seconds.

    Ties go to the lowest device number. Where the time is infinite no head can serve and the first
    member is named.
    """
    last = times[np.ix_(members, members)].max(axis=0)
    best = int(last.argmin())
    return int(members[best]), float(last[best])


def exchange_times(times: Floats, first: Ints, second: Ints) -> tuple[Floats, Floats]:
    """Round times of two clusters after every exchange between them.

    Args:
        times: ``[N, N]`` from `arrivals`.
        first: ``[n1]`` members.
        second: ``[n2]`` members.

    Returns:
        Two arrays ``[n1 + 1, n2 + 1]`` laid out as in `espalier.methods.d2d.alignment.Alignment.exchanges`.
        The work is proportional to their size: no exchange re-reads its cluster's times.
    """
    return _after(times, first, second), _after(times, second, first).T


def intra_rounds(global_time: float, cluster_times: ArrayLike) -> Ints:
    """Rounds a cluster fits into a global round, r_c = ⌊T_g/T_c⌋, zero where it does not fit (D7)."""
    seconds = np.asarray(cluster_times, dtype=np.float64)
    # 0.3/0.1 is 2.9999…: a round that fits exactly must not be lost to rounding.
    return np.floor(global_time / seconds * (1 + 1e-12)).astype(np.int64)


def _after(times: Floats, own: Ints, others: Ints) -> Floats:
    """Round times of ``own`` once its i-th member is replaced by the j-th of ``others``."""
    n, m = own.size, others.size
    inside = times[np.ix_(own, own)]
    slowest, last, without = _last_two(inside)
    coming = np.full((m + 1, n), -np.inf)
    coming[:m] = times[np.ix_(others, own)]

    # Heads that stay. One head is best for a newcomer j whoever leaves, unless the leaver is that head or
    # the member it waits for: two cases per newcomer, evaluated by themselves.
    waiting = np.maximum(last, coming)
    best = waiting.argmin(axis=1)
    result = np.repeat(waiting.min(axis=1)[None, :], n + 1, axis=0)
    for leaver in (best, slowest[best]):
        changed = (np.arange(n) == leaver[:, None]) | (slowest == leaver[:, None])
        result[leaver, np.arange(m + 1)] = np.where(changed, np.inf, waiting).min(axis=1)
    # Heads that no longer wait for their slowest member because it left.
    relieved = np.flatnonzero(slowest != np.arange(n))
    np.minimum.at(result, slowest[relieved], np.maximum(without, coming)[:, relieved].T)

    # The newcomer as head.
    outward, at_newcomer, without_slowest = _last_two(times[np.ix_(own, others)])
    arrived = np.repeat(at_newcomer[None, :], n + 1, axis=0)
    arrived[outward, np.arange(m)] = without_slowest
    result[:, :m] = np.minimum(result[:, :m], np.maximum(arrived, times[others, others]))
    return result


def _last_two(block: Floats) -> tuple[Ints, Floats, Floats]:
    """Per column: the row of the largest entry, that entry, and the largest of the other rows."""
    columns = np.arange(block.shape[1])
    row = block.argmax(axis=0)
    largest = block[row, columns]
    rest = block.copy()
    rest[row, columns] = -np.inf
    return row, largest, rest.max(axis=0, initial=-np.inf)

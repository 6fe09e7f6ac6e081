"""Devices that lie about their links: found by comparing what two sides of a link say.

A link's two ends must report one time; where they differ, one end lies. An honest device is in dispute
with liars only, so whoever is in dispute with more peers than there can be liars is one. What remains
stays open: neither end is named, the slower claim is believed.

A device that reported its links truly but later holds its reports back is seen by its head, which knows
when each member's report was due.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.methods.d2d.clusters import Floats, Ints


@dataclass(frozen=True, eq=False)
class LinkAudit:
    """What a comparison of both ends' reports shows.

    Attributes:
        disputed: ``[N, N]`` symmetric; True where the two ends disagree.
        liars: Ascending numbers of the devices that are named.
        open_pairs: ``[k, 2]`` disputes in which neither end can be named.
        links: ``[N, N]`` the links to believe: symmetric, the slower claim where ends disagree, and
            absent (infinite) wherever a liar is an end.
    """

    disputed: NDArray[np.bool_]
    liars: Ints
    open_pairs: Ints
    links: Floats


def audit_links(reports: ArrayLike, tolerance: float = 0.05, most_liars: int | None = None) -> LinkAudit:
    """Compare the two reports on every link.

    Args:
        reports: ``[N, N]`` seconds; row i is what device i says about its links to the others, ``inf`` for
            no link. The diagonal is not read.
        tolerance: Relative difference that measuring may cause.
        most_liars: How many devices may lie, colluding or not; None for any minority. As long as that
            holds no honest device is named. The smaller it is, the fewer lies are enough to be named.
    """
    claims = np.array(reports, dtype=np.float64)
    np.fill_diagonal(claims, 0.0)
    # What is no time at all needs no second opinion: its author is named.
    invalid = np.isnan(claims) | (claims < 0)
    claims[invalid] = np.inf
    slower, faster = np.maximum(claims, claims.T), np.minimum(claims, claims.T)
    disputed = (slower > faster * (1 + tolerance)) | invalid | invalid.T
    rest = disputed.copy()
    liars: list[int] = []
    left = (len(claims) - 1) // 2 if most_liars is None else most_liars
    named = np.flatnonzero(invalid.any(axis=1))
    while True:
        liars.extend(named.tolist())
        left -= named.size
        rest[named, :] = rest[:, named] = False
        named = np.flatnonzero(rest.sum(axis=1) > left)
        # With nobody left to be a liar the remaining disputes contradict most_liars: accuse no one.
        if named.size == 0 or left <= 0:
            break
    links = slower
    links[liars, :] = links[:, liars] = np.inf
    np.fill_diagonal(links, 0.0)
    return LinkAudit(
        disputed, np.array(sorted(liars), dtype=np.int64), np.argwhere(np.triu(rest)).astype(np.int64), links
    )


def throttling(due: ArrayLike, observed: ArrayLike, tolerance: float = 0.2) -> NDArray[np.bool_]:
    """Members whose reports keep coming later than they said.

    Args:
        due: ``[n]`` seconds after which each member's report should reach the head.
        observed: ``[n]`` or ``[rounds, n]`` seconds it really took, ``inf`` if it never came.
        tolerance: Relative lateness that a true report may show.

    Returns:
        ``[n]``; True where the median over the rounds is late, so that one bad round accuses nobody.
    """
    expected = np.asarray(due, dtype=np.float64)
    seen = np.atleast_2d(np.asarray(observed, dtype=np.float64))
    # The lower of two middle rounds: a median between a finite time and inf would be inf.
    middle = np.sort(seen, axis=0)[(len(seen) - 1) // 2]
    return np.asarray(middle > expected * (1 + tolerance))

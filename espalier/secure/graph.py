"""Who shares masks with whom: a random k-regular graph (SecAgg+), so that a sum costs O(n·k) and not O(n²).

Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020, Section 3: clients are put on a
ring in random order, and each is joined to the k/2 next ones on either side (a Harary graph). Small groups are complete
graphs, which is Bonawitz et al.'s protocol.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from scipy.stats import hypergeom


@dataclass(frozen=True, slots=True)
class Degree:
    """How closely clients are tied.

    Attributes:
        neighbours: Of each client (k).
        threshold: Shares that give a secret (t); the holders are the neighbours and the client itself.
    """

    neighbours: int
    threshold: int


@lru_cache(maxsize=1024)
def degree(clients: int, threshold: int, dropouts: float, liars: float, failure: float) -> Degree:
    """Return the smallest k, and t, with which the sum is safe and comes about, but for a small probability.

    With n clients of which a share δ is lost and γ lies (and helps the server), of the k neighbours of a client
    X ~ Hypergeometric(n − 1, ⌈γn⌉, k) lie and Y ~ Hypergeometric(n − 1, ⌈(γ + δ)n⌉, k) lie or are lost. Wanted is

        n · P(X ≥ 2t − (k + 1)) ≤ p     nobody gets both secrets of a client, whatever each honest one is told
        n · P(k + 1 − Y < t) ≤ p        enough good shares are left
        n · (γ + δ)^(k/2) ≤ p           those who are left hang together (else the server gets two sums)

    Args:
        clients: n.
        threshold: t of the complete graph, which it is if no smaller k will do.
        dropouts: δ, the share that may be lost.
        liars: γ, the share that may lie.
        failure: p.
    """
    bad = dropouts + liars
    for k in range(2, clients - 1, 2):
        if clients * bad ** (k / 2) > failure:
            continue
        lying = hypergeom(clients - 1, min(clients - 1, _ceil(liars * clients)), k)
        missing = hypergeom(clients - 1, min(clients - 1, _ceil(bad * clients)), k)
        # the smallest t with which nobody gets both secrets leaves most room for those who are lost
        t = next((t for t in range(k // 2 + 1, k + 2) if clients * lying.sf(2 * t - k - 2) <= failure), None)
        if t is not None and clients * missing.sf(k + 1 - t) <= failure:
            return Degree(k, t)
    return Degree(max(0, clients - 1), threshold)


def _ceil(value: float) -> int:
    return -int(-value // 1)


def ring(clients: Iterable[int], neighbours: int) -> dict[int, set[int]]:
    """Return each client's neighbours: a complete graph, or those next to it on a ring in random order."""
    order = list(clients)
    if neighbours >= len(order) - 1:
        return {c: {*order} - {c} for c in order}
    secrets.SystemRandom().shuffle(order)
    steps = [s for d in range(1, neighbours // 2 + 1) for s in (d, -d)]
    return {c: {order[(at + s) % len(order)] for s in steps} for at, c in enumerate(order)}

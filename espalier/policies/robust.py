"""Merges that a minority of wrong or hostile updates cannot steer.

Every merge takes updates ``[K, P]`` (one flat vector per child) and returns one vector ``[P]`` of their
dtype; equal updates come back unchanged. Arithmetic is in double precision, in blocks of coordinates,
so the extra memory stays bounded however large the model is. Pass finite, floating entries only: counters are
not averaged. Weights are positive, and claims of the children: where sample counts may be false, merge without them.

=====================  ======================================  ============================================
merge                  survives                                source
=====================  ======================================  ============================================
`coordinate_median`    less than half of the weight            Yin et al., ICML 2018
`trimmed_mean`         ``trim`` updates                        Yin et al., ICML 2018
`krum`, `multi_krum`   f of K ≥ 2f + 3 updates                 Blanchard et al., NeurIPS 2017
`clipped_mean`         bounded pull, not a wrong direction     Sun et al., 2019 (norm bounding)
`geometric_median`     less than half of the weight            Pillutla et al., IEEE TSP 2022 (RFA)
=====================  ======================================  ============================================
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from espalier.core.errors import TrainingError

#: numbers that are computed on in double precision at once
_BLOCK = 1 << 22
#: of the geometric median: the shortest distance, as a share of the typical one (an update may itself be the median),
#: and the most steps, if the point does not stand still sooner
SMOOTHING, MOST_STEPS = 1e-6, 1000


def coordinate_median(updates: Tensor, weights: Tensor | None = None) -> Tensor:
    """Median of every coordinate; of the weight, if weights ``[K]`` are given.

    Where exactly half of the weight lies on either side the two middle values are averaged, so equal
    weights give the ordinary median.
    """
    w = _weights(updates, weights)
    k, half = len(updates), w.sum() / 2
    result = torch.empty_like(updates[0])
    for at, block in _blocks(updates):
        if weights is None:
            middle = _sorted(block)[[(k - 1) // 2, k // 2]]
        else:
            order = _order(block)
            below = w[order].cumsum(dim=0)
            low = (below < half * (1 - 1e-12)).sum(dim=0)
            high = (below <= half * (1 + 1e-12)).sum(dim=0).clamp(max=k - 1)
            middle = block.gather(0, order.gather(0, torch.stack([low, high])))
        result[at : at + block.shape[1]] = middle.mean(dim=0)
    return result


def trimmed_mean(updates: Tensor, trim: int, weights: Tensor | None = None) -> Tensor:
    """Mean of every coordinate without its ``trim`` smallest and ``trim`` largest values.

    With weights ``[K]`` the values that remain are averaged by them.
    """
    w = _weights(updates, weights)
    k = len(updates)
    result = torch.empty_like(updates[0])
    for at, block in _blocks(updates):
        if weights is None:
            mean = _sorted(block)[trim : k - trim].mean(dim=0)
        else:
            order = _order(block)[trim : k - trim]
            kept = w[order]
            mean = (block.gather(0, order) * kept).sum(dim=0) / kept.sum(dim=0)
        result[at : at + block.shape[1]] = mean
    return result


def krum_scores(updates: Tensor, byzantine: int) -> Tensor:
    """Sum of squared distances ``[K]`` to the K − f − 2 nearest other updates; small is trustworthy."""
    apart = squared_distances(updates)
    apart.fill_diagonal_(float("inf"))
    return apart.sort(dim=1).values[:, : len(updates) - byzantine - 2].sum(dim=1)


def krum(updates: Tensor, byzantine: int) -> Tensor:
    """The one update that lies closest to its neighbours; f of K ≥ 2f + 3 may be hostile."""
    return updates[int(krum_scores(updates, byzantine).argmin())].clone()


def multi_krum(updates: Tensor, byzantine: int, weights: Tensor | None = None) -> Tensor:
    """Mean of the K − f − 2 updates with the best Krum scores, by weights ``[K]`` if given.

    Up to so many the merge is proven to converge.
    """
    w = _weights(updates, weights)
    share = torch.zeros_like(w)
    best = krum_scores(updates, byzantine).argsort(stable=True)[: len(updates) - byzantine - 2]
    share[best] = w[best]
    return weighted_sum(updates, share / share.sum())


def clipped_mean(updates: Tensor, centre: Tensor, bound: float | None = None, weights: Tensor | None = None) -> Tensor:
    """Centre plus the mean of the changes, none longer than ``bound``.

    Args:
        updates: ``[K, P]``.
        centre: ``[P]`` what the children started from.
        bound: Longest change; None takes the median length, which no minority can raise. A fixed bound
            shorter than what all agree on holds the merge back.
        weights: ``[K]``.
    """
    w = _weights(updates, weights)
    square = torch.zeros(len(updates), dtype=torch.float64)
    for at, block in _blocks(updates):
        square += (block - centre[at : at + block.shape[1]]).square().sum(dim=1)
    lengths = square.sqrt()
    longest = coordinate_median(lengths[:, None], w)[0] if bound is None else torch.tensor(bound)
    share = w / w.sum() * torch.where(lengths > longest, longest / lengths, 1.0)
    return weighted_sum(updates, share, centre, 1.0 - float(share.sum()))


def geometric_median(updates: Tensor, weights: Tensor | None = None) -> Tensor:
    """The point with the least weighted sum of distances to the updates (smoothed Weiszfeld).

    The median is a weighted mean of the updates, so the iteration runs on the K weights and the updates'
    inner products; the updates themselves are read twice, not once per iteration.

    Args:
        updates: ``[K, P]``.
        weights: ``[K]``.
    """
    w = _weights(updates, weights)
    return weighted_sum(updates, _weiszfeld(_centred_products(updates), w / w.sum()))


def squared_distances(updates: Tensor) -> Tensor:
    """Squared distances ``[K, K]`` between updates, in double precision."""
    return _squared_distances(_centred_products(updates))


def _squared_distances(products: Tensor) -> Tensor:
    own = products.diagonal()
    return (own[:, None] + own - 2 * products).clamp(min=0.0).fill_diagonal_(0.0)


def weighted_sum(updates: Tensor, share: Tensor, base: Tensor | None = None, base_share: float = 0.0) -> Tensor:
    """Sum of updates ``[K, P]`` by shares ``[K]``, plus a share of a base vector ``[P]``."""
    result = torch.empty_like(updates[0])
    for at, block in _blocks(updates):
        part = share.to(torch.float64) @ block
        if base is not None:
            part += base_share * base[at : at + block.shape[1]]
        result[at : at + block.shape[1]] = part
    return result


def _weiszfeld(products: Tensor, w: Tensor) -> Tensor:
    """Shares ``[K]`` of the geometric median, from centred inner products and normalised weights."""
    own = products.diagonal()
    # Distances from the centre, which no minority moves; a scale that an attacker sets would undo the merge.
    typical = float(coordinate_median(own.sqrt()[:, None], w)[0])
    if typical == 0:
        # At least half of the weight lies in one point: that point is the median.
        share = torch.where(own == 0, w, 0.0)
        return share / share.sum()
    # An update that the others cannot pull the median away from is the median; the iteration would near it ever more
    # slowly.
    far = _squared_distances(products).sqrt()
    cheapest = int((far @ w).argmin())
    here = far[cheapest] <= SMOOTHING * typical
    pulls = torch.where(here, 0.0, w / far[cheapest].clamp(min=SMOOTHING * typical))
    whole = pulls.sum()
    pull = pulls @ products @ pulls - 2 * whole * (pulls @ products[cheapest]) + whole**2 * own[cheapest]
    if pull.clamp(min=0.0).sqrt() <= w[here].sum():
        share = torch.where(here, w, 0.0)
        return share / share.sum()
    share = w
    for _ in range(MOST_STEPS):
        along = products @ share
        distance = (own - 2 * along + share @ along).clamp(min=0.0).sqrt().clamp(min=SMOOTHING * typical)
        new = w / distance
        step = new / new.sum() - share
        share = share + step
        if float(step @ products @ step) <= (1e-9 * typical) ** 2:
            break
    return share


def _centred_products(updates: Tensor) -> Tensor:
    """Inner products ``[K, K]`` of the updates less their coordinate median.

    Distances between honest updates keep their digits, however far away a hostile one lies: centred at
    the mean, or not at all, they would drown in its square.
    """
    k = len(updates)
    total = torch.zeros(k, k, dtype=torch.float64)
    for _, block in _blocks(updates):
        block -= _sorted(block)[k // 2]
        total += block @ block.T
    if not total.isfinite().all():
        raise TrainingError("The updates are too far apart for their distances to be computed; bound their norms.")
    return total


def _sorted(block: Tensor) -> Tensor:
    """Sort every column. NumPy's sort is several times faster than torch's on short columns."""
    return torch.from_numpy(np.sort(block.numpy(), axis=0))


def _order(block: Tensor) -> Tensor:
    """Order of every column's entries, equal ones by row."""
    return torch.from_numpy(np.argsort(block.numpy(), axis=0, kind="stable"))


def _blocks(updates: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Walk over the coordinates in double-precision copies ``[K, b]`` of bounded size."""
    step = max(1, _BLOCK // len(updates))
    for at in range(0, updates.shape[1], step):
        yield at, updates[:, at : at + step].detach().to(torch.float64, copy=True)


def _weights(updates: Tensor, weights: Tensor | None) -> Tensor:
    """Return weights ``[K]`` in double precision; all alike where none are given."""
    return torch.ones(len(updates), dtype=torch.float64) if weights is None else weights.to(torch.float64)

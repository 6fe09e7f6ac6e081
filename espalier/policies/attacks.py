"""What hostile children send, to test what defends against them. Pure functions, nothing is sent.

Model attacks work on a change ``update − start``: flipping or scaling a whole model would be an attack on
its initial weights. ``a_little_is_enough`` follows Baruch et al., NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from torch import Tensor

from espalier.core.errors import ConfigError, nearest

Claim = Literal["reversed", "uniform", "single"]
_CLAIMS: tuple[Claim, ...] = ("reversed", "uniform", "single")


def sign_flip(update: Tensor, start: Tensor, scale: float = 1.0) -> Tensor:
    """Go ``scale`` times as far in the opposite direction: ``start − scale·(update − start)``."""
    return start - scale * (update - start)


def scaled_noise(update: Tensor, start: Tensor, rng: np.random.Generator, scale: float = 1.0) -> Tensor:
    """Replace the change by noise of ``scale`` times its length, in a random direction."""
    noise = torch.from_numpy(rng.standard_normal(update.numel())).reshape(update.shape)
    change = (update - start).to(torch.float64)
    noise *= scale * change.norm() / noise.norm()
    return (start.to(torch.float64) + noise).to(update.dtype)


def little_is_enough_z(n_updates: int, n_attackers: int) -> float:
    """Largest z at which colluders still hide among the honest updates.

    They need ⌊n/2⌋ + 1 − m honest updates to be further out than they are; z is the standard normal
    quantile that leaves that many outside, 0 where even the mean would not.
    """
    honest = n_updates - n_attackers
    supporters = n_updates // 2 + 1 - n_attackers
    if n_attackers < 1 or honest < 1 or supporters < 1:
        raise ConfigError(f"n_attackers is {n_attackers} of {n_updates} updates; accepted: 1 to {n_updates // 2}.")
    return max(0.0, float(norm.ppf((honest - supporters) / honest)))


def a_little_is_enough(
    honest: Tensor, n_updates: int, n_attackers: int, z: float | None = None, block: int = 1 << 20
) -> Tensor:
    """The update that all colluders send: the honest mean less z standard deviations per coordinate.

    Args:
        honest: ``[H, P]`` updates the colluders know: all honest ones, or their own.
        n_updates: Updates in the merge, theirs included.
        n_attackers: Colluders among them.
        z: Standard deviations; None takes `little_is_enough_z`.
        block: Coordinates worked on at a time.

    Returns:
        ``[P]``.
    """
    away = little_is_enough_z(n_updates, n_attackers) if z is None else z
    result = torch.empty_like(honest[0])
    for at in range(0, honest.shape[1], block):
        part = honest[:, at : at + block].to(torch.float64)
        result[at : at + block] = part.mean(dim=0) - away * part.std(dim=0, correction=0)
    return result


def label_flip(n_classes: int, swaps: Mapping[int, int] | None = None) -> NDArray[np.int64]:
    """Map ``[C]`` from true to false label: ``y → C − 1 − y``, or only the given ones.

    Args:
        n_classes: Number of labels.
        swaps: False label for each label to falsify, e.g. ``{7: 1}``; None reverses all labels.
    """
    if swaps is None:
        return np.arange(n_classes - 1, -1, -1, dtype=np.int64)
    wrong = [y for pair in swaps.items() for y in pair if not 0 <= y < n_classes]
    if wrong:
        raise ConfigError(f"swaps names label {wrong[0]}; accepted are 0 to {n_classes - 1}.")
    table = np.arange(n_classes, dtype=np.int64)
    table[list(swaps)] = list(swaps.values())
    return table


def false_histogram(counts: ArrayLike, claim: Claim = "reversed", inflate: float = 1.0) -> NDArray[np.int64]:
    """A label histogram that is not the device's.

    Args:
        counts: ``[…, C]`` true samples per label.
        claim: "reversed" mirrors the labels, "uniform" pretends a balanced set, "single" pretends that
            everything is the label the device has least of.
        inflate: Factor on the number of samples, for more weight in a merge.

    Returns:
        ``[…, C]`` counts that sum to the true total times ``inflate``, rounded.
    """
    true = np.asarray(counts, dtype=np.float64)
    if claim not in _CLAIMS:
        raise ConfigError(f"claim is {claim!r}; accepted: {', '.join(_CLAIMS)}.{nearest(claim, _CLAIMS)}")
    if claim == "reversed":
        mix = true[..., ::-1]
    elif claim == "uniform":
        mix = np.broadcast_to(true.sum(axis=-1, keepdims=True) / true.shape[-1], true.shape)
    else:
        least = np.arange(true.shape[-1]) == true.argmin(axis=-1, keepdims=True)
        mix = np.where(least, true.sum(axis=-1, keepdims=True), 0.0)
    # Rounding running totals keeps the sum whole: single counts rounded one by one would drift from it.
    running = np.rint(np.cumsum(mix * inflate, axis=-1))
    return np.diff(running, axis=-1, prepend=0.0).astype(np.int64)


def false_timings(seconds: ArrayLike, liars: NDArray[Any], factor: float) -> NDArray[np.float64]:
    """Times ``[N]`` as reported when the liars (indices or mask) scale theirs."""
    reported = np.array(seconds, dtype=np.float64)
    reported[liars] *= factor
    return reported


def false_links(links: ArrayLike, liars: NDArray[Any], factor: float) -> NDArray[np.float64]:
    """Link times ``[N, N]`` as reported by the row's device when the liars scale all of theirs.

    Colluders back each other: a link between two liars is scaled in both reports.
    """
    reported = np.array(links, dtype=np.float64)
    reported[liars] *= factor
    return reported

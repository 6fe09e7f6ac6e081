"""One-shot clustering by the angles between the subspaces that devices' data span.

Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning via
Principal Angles Between Client Data Subspaces (PACFL), AAAI 2023; as CSAHFL uses it, its Eq. (4) to (6).

A device sends the first p left singular vectors of its data (features × samples, not centred); the cloud
takes the smallest principal angle of each pair, in degrees, and merges the closest clusters until the
smallest distance exceeds beta. One round trip, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import eigh
from scipy.spatial.distance import squareform
from torch import Tensor

from espalier.core.address import Address
from espalier.core.bounds import PositiveInt
from espalier.core.policies import Arrangement, Structure, Survey
from espalier.core.statistics import LABEL_HISTOGRAMS, LocalData, label_histogram, register_statistic
from espalier.core.view import Arrival, View
from espalier.policies.dendrogram import note_similarity
from espalier.policies.privacy import noisy_second_moments

Floats = NDArray[np.float64]
Measure = Literal["smallest", "trace", "repository"]
Linkage = Literal["weighted", "average"]
#: a cut, or "auto": in the largest gap of the merge heights
Beta = float | Literal["auto"]


def leading_vectors(samples: NDArray[Any], count: int) -> Floats:
    """Eq. (5): the first ``count`` left singular vectors of the data matrix (features × samples).

    Args:
        samples: One sample per row, [n, d].
        count: How many vectors, p.

    Returns:
        Orthonormal columns, [d, p]; columns beyond the rank are zero.
    """
    x = np.asarray(samples, dtype=np.float64)
    n, d = x.shape
    kept = min(count, n, d)
    # The smaller Gram matrix has the same leading subspace and is the cheaper one to decompose.
    gram = x @ x.T if n <= d else x.T @ x
    top = len(gram)
    values, found = eigh(gram, subset_by_index=[top - kept, top - 1])
    values, found = np.maximum(values[::-1], 0.0), found[:, ::-1]
    real = values > 1e-12 * max(values[0], 1e-300)
    if n <= d:
        found = x.T @ found / np.sqrt(np.where(real, values, 1.0))
    out = np.zeros((d, count))
    out[:, :kept] = np.where(real, found, 0.0)
    return out


def principal_angles(left: Floats, right: Floats, measure: Measure = "smallest") -> Floats:
    """Eq. (4): angles in degrees between each subspace of ``left`` and each of ``right``.

    ``smallest`` is the smallest principal angle ``arccos(sigma_max(U_i^T U_j))``, whatever the signs of
    the vectors; ``trace`` sums all principal angles; ``repository`` is what PACFL's code computes, the
    smallest angle between single vectors with their signs (which depends on the arbitrary signs of an SVD).

    Args:
        left: Orthonormal columns, [n, d, p].
        right: Orthonormal columns, [m, d, p].
        measure: Which angle.

    Returns:
        Degrees, [n, m].
    """
    n, d, p = left.shape
    m, _, q = right.shape
    rows = left.transpose(0, 2, 1).reshape(n * p, d)
    columns = right.transpose(1, 0, 2).reshape(d, m * q)
    products = (rows @ columns).reshape(n, p, m, q).transpose(0, 2, 1, 3)
    if measure == "repository":
        return np.asarray(np.degrees(np.arccos(np.clip(products.max((2, 3)), -1.0, 1.0))))
    cosines = np.clip(np.linalg.svd(products, compute_uv=False), 0.0, 1.0)
    if measure == "smallest":
        return np.asarray(np.degrees(np.arccos(cosines[..., 0])))
    return np.asarray(np.degrees(np.arccos(cosines).sum(-1)))


def proximity(signatures: Floats, measure: Measure = "smallest", block: int = 128) -> Floats:
    """Eq. (6): the matrix of angles between all subspaces, symmetric, zero on the diagonal.

    Args:
        signatures: One subspace per device, [N, d, p].
        measure: Which angle.
        block: Devices per block of rows: memory is O(block · N · p²).

    Returns:
        Degrees, [N, N].
    """
    total = len(signatures)
    out = np.zeros((total, total))
    for start in range(0, total, block):
        rows = slice(start, min(start + block, total))
        out[rows, start:] = principal_angles(signatures[rows], signatures[start:], measure)
        out[start:, rows] = out[rows, start:].T
    np.fill_diagonal(out, 0.0)
    return np.asarray((out + out.T) / 2)


@dataclass(frozen=True)
class Cut:
    """Clusters: each device's number (in order of first appearance), the cut in degrees, and why there."""

    labels: NDArray[np.int64]
    beta: float
    why: str = ""

    @property
    def count(self) -> int:
        """How many clusters."""
        return int(self.labels.max()) + 1


def cluster(
    angles: Floats, beta: Beta, method: Linkage = "weighted", rescue: bool = True, count: int | None = None
) -> Cut:
    """Merge the closest clusters until the smallest distance exceeds ``beta``, or until ``count`` are left.

    With ``rescue`` a cut below 90 degrees that leaves one cluster, or every device alone, is replaced by
    the middle of the largest gap between merge heights, which is what ``beta="auto"`` means.

    Args:
        angles: Degrees, symmetric, [N, N].
        beta: The cut in degrees.
        method: Linkage: ``weighted`` (WPGMA, as PACFL's code) or ``average`` (UPGMA).
        rescue: Whether a useless cut is replaced.
        count: How many clusters there shall be (as many as there are devices at most), in place of ``beta``.
    """
    total = len(angles)
    if total < 2:
        return Cut(np.zeros(total, dtype=np.int64), 0.0 if beta == "auto" else float(beta))
    tree = linkage(squareform(angles, checks=False), method)
    heights = tree[:, 2]
    if count is not None:
        return _at_count(tree, min(count, total))
    cut, why = (0.0, "") if beta == "auto" else (float(beta), "")
    found = int((heights > cut).sum()) + 1
    if beta == "auto" or (rescue and cut < 90.0 and found in (1, total)):
        if beta != "auto":
            why = f"beta = {cut:g} gives {found} cluster(s) of {total} devices"
        at = int(np.argmax(np.diff(heights))) if total > 2 else 0
        cut = float(heights[at : at + 2].mean())
    return Cut(_numbered(fcluster(tree, cut, "distance")), cut, why)


def _at_count(tree: Floats, count: int) -> Cut:
    """Cut a tree so that ``count`` clusters are left; the height is between the last merge and the next."""
    heights = np.concatenate([[0.0], tree[:, 2], [tree[-1, 2]]])
    at = len(tree) + 1 - count
    return Cut(_numbered(fcluster(tree, count, "maxclust")), float(heights[at : at + 2].mean()))


def _numbered(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Number clusters by their first appearance."""
    _, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return np.asarray(order[place.reshape(-1)], dtype=np.int64)


# The decomposition is charged as one epoch over the data.
@register_statistic("subspace", lambda n_batches, n_models: float(n_batches), models=False)
def subspace(
    local: LocalData,
    vectors: Sequence[Tensor],
    count: int,
    per_label: bool = False,
    histogram: bool = False,
    noise: float = 0.0,
) -> dict[str, Any]:
    """Return the device's ``signature [d, p]``, and how many samples of each label it has if asked.

    ``per_label`` stacks the vectors of each label's samples, as PACFL's code does: [d, p · n_cells]. With ``noise``
    the vectors are those of noisy second moments (of all samples together).
    """
    x = local.arrays()[0].flatten(1).numpy()
    found: dict[str, Any] = {}
    if noise:
        moments = noisy_second_moments(x, noise, local.rng)
        found["signature"] = np.linalg.eigh(moments)[1][:, ::-1][:, :count].astype(np.float32)
    elif per_label:
        cells = local.cells()
        stacks = [leading_vectors(x[cells == c], count) for c in np.unique(cells).tolist()]
        found["signature"] = np.concatenate(stacks, axis=1).astype(np.float32)
    else:
        found["signature"] = leading_vectors(x, count).astype(np.float32)
    return found | label_histogram(local, []) if histogram else found


@dataclass(frozen=True)
class OneShot(Structure, kind="subspace"):
    """Groups of devices whose data span similar subspaces, found once; newcomers join the nearest group.

    ``clusters`` asks for that many groups in place of a cut at ``beta``. With ``clustering`` off only the label
    histograms are asked for (they are what a merge by distribution needs); with ``histograms`` off only the vectors
    leave a device.
    """

    provides = (LABEL_HISTOGRAMS,)

    @dataclass(slots=True)
    class State:
        """The devices that have answered, and what their data span."""

        known: set[Address] = field(default_factory=set)
        signatures: dict[Address, NDArray[Any]] = field(default_factory=dict)

    vectors: PositiveInt = 3
    beta: Beta = 20.0
    linkage: Linkage = "weighted"
    measure: Measure = "smallest"
    rescue: bool = True
    clusters: int | None = None
    clustering: bool = True
    histograms: bool = True

    def check(self) -> None:
        """Refuse a negative angle."""
        self.require(self.beta == "auto" or self.beta >= 0, "beta", 'degrees, 0 or more, or "auto"')

    def survey(self, view: View) -> Survey | None:
        """Ask the devices that are not known yet, unless they are at work."""
        if not (self.clustering or self.histograms):
            return None
        known = view.state(self).known
        new = [d for d in view.env.devices() if d not in known and not view.env.busy(d)]
        if not new:
            return None
        if not self.clustering:
            return Survey("label_histogram", devices=new)
        args = {"count": self.vectors, "per_label": self.measure == "repository", "histogram": self.histograms}
        return Survey("subspace", args, devices=new)

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        """Cluster at the first answers; put later ones into the nearest group."""
        if not answers:
            return None
        state = view.state(self)
        state.known |= set(answers)
        stats = {d: answers[d].report.stats for d in sorted(answers)}
        if self.histograms:
            view.product(LABEL_HISTOGRAMS).update({d: s["histogram"] for d, s in stats.items()})
        if not self.clustering:
            return None
        old = state.signatures
        fresh = _stacked([s["signature"] for s in stats.values()])
        if old:
            groups = self._nearest(view, list(stats), fresh)
            note: dict[str, Any] = {"newcomers": len(groups)}
        else:
            angles = proximity(fresh, self.measure)
            note_similarity(view, list(stats), angles, "principal angle (°)")
            cut = cluster(angles, self.beta, self.linkage, self.rescue, self.clusters)
            groups = {d: f"c{k}" for d, k in zip(stats, cut.labels.tolist(), strict=True)}
            sizes = np.bincount(cut.labels).tolist()
            note = {"clusters": cut.count, "beta": cut.beta, "sizes": sizes, "why": cut.why}
        old.update({d: s["signature"] for d, s in stats.items()})
        return Arrangement(groups=groups, note=note)

    def _nearest(self, view: View, devices: Sequence[Address], fresh: Floats) -> dict[Address, str]:
        """Return for each newcomer the group with the smallest mean angle to it."""
        old = view.state(self).signatures
        names = np.array([view.env.group(d) for d in old])
        both = _stacked([*fresh, *old.values()])
        angles = principal_angles(both[: len(fresh)], both[len(fresh) :], self.measure)
        groups = sorted(set(names.tolist()))
        means = np.stack([angles[:, names == g].mean(1) for g in groups], axis=1)
        return {d: groups[k] for d, k in zip(devices, means.argmin(1).tolist(), strict=True)}


def _stacked(signatures: Sequence[NDArray[Any]]) -> Floats:
    """Stack signatures [d, p_i] into [N, d, max p], with columns of zeros where one has fewer."""
    width = max(s.shape[1] for s in signatures)
    out = np.zeros((len(signatures), signatures[0].shape[0], width))
    for i, s in enumerate(signatures):
        out[i, :, : s.shape[1]] = s
    return out

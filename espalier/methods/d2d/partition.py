"""D2D co-optimisation's controlled split: a given spread of sizes, a given number of classes per device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, linprog
from scipy.sparse import coo_array

from espalier.core.bounds import Bound, PositiveInt
from espalier.core.errors import PartitionError
from espalier.data.dataset import IntArray
from espalier.data.partitions.base import PartitionSpec, Request, RowAssignment
from espalier.data.partitions.fill import draw_cells
from espalier.data.rows import FloatArray, apportion, deal

MOST_DRAWS = 400


@dataclass(frozen=True, kw_only=True)
class Sized(PartitionSpec, kind="sized"):
    """Sizes with mean N⁻¹·total and standard deviation σ, each device with exactly ``classes`` cells (§5.1).

    Stage one: sizes are ``max(floor, a + b·z)`` for a Gaussian draw z, with a and b solved such that the
    sizes sum to the total and have the standard deviation σ. Stage two: each device draws ``classes`` cells,
    every cell somewhere; a linear programme fills them such that sizes and cell totals are met exactly and
    the smallest share of a device's cell, relative to an even split, is as large as possible. If the drawn
    cells cannot meet the totals, they are drawn again, at most 400 times.

    Attributes:
        sigma: Standard deviation of the devices' sizes, in samples (paper: 750, 1250).
        classes: Cells per device, I_c (paper: 4, 7).
        min_samples: The least size of a device.
    """

    weighted: ClassVar[bool] = False

    sigma: Annotated[float, Bound(ge=0, le=1e9)] = 750.0
    classes: PositiveInt = 4
    min_samples: PositiveInt = 200

    def assign(self, request: Request) -> RowAssignment:
        """Fix the sizes, draw the cells, fill them."""
        if self.classes > request.n_cells:
            raise PartitionError(
                f"A device shall hold classes={self.classes} cells, the data has {request.n_cells}; lower it."
            )
        least = max(self.min_samples, self.classes)
        request.need(least)
        normal = request.rng("sizes").standard_normal(request.n_devices)
        sizes = spread_sizes(len(request.rows), self.sigma, least, normal)
        pools = request.pools()
        totals = np.array([len(p) for p in pools])
        for attempt in range(MOST_DRAWS):
            held = draw_cells(
                request.rng("cells", attempt),
                request.n_devices,
                self.classes,
                np.arange(request.n_cells),
                request.n_cells,
                cover=True,
            )
            counts = fill(held, sizes, totals)
            if counts is not None:
                return RowAssignment(deal(counts, pools), request.edge)
        raise PartitionError(
            f"In {MOST_DRAWS} draws of {self.classes} cells per device none could use up every cell with sizes of "
            f"{sizes.min()}…{sizes.max()} samples; raise classes, lower sigma, or use more devices."
        )


def spread_sizes(total: int, sigma: float, least: int, normal: FloatArray) -> IntArray:
    """Sizes of sum ``total``, standard deviation ``sigma`` and at least ``least``, shaped by normal draws.

    ``size = max(least, a + b·z)``: for each b one a gives the sum, and the deviation grows with b.

    Raises:
        PartitionError: No such sizes: with the rest at the least size, even the widest spread is below σ.
    """
    n = len(normal)
    if sigma == 0.0 or n == 1:
        return apportion(total, np.ones(n))
    z = (normal - normal.mean()) / normal.std()
    mean = total / n

    def at(b: float) -> FloatArray:
        # Clipping only raises the mean, so the wanted a is at most `mean`; at `low` every device is clipped.
        low = least - b * float(z.max()) - 1.0
        a = brentq(lambda a: float(np.maximum(least, a + b * z).mean()) - mean, low, mean + 1e-9, xtol=1e-9)
        return np.asarray(np.maximum(least, a + b * z))

    # Past this b one device alone is above the floor: the widest spread there is.
    gap = np.sort(z)
    widest = (total - n * least) / max(float(gap[-1] - gap[-2]), 1e-9) + 1.0
    if float(at(widest).std()) < sigma:
        raise PartitionError(
            f"Sizes of {total} samples over {n} devices with at least {least} each cannot have a standard deviation "
            f"of {sigma:g}; the most is {at(widest).std():.0f}. Lower sigma or min_samples."
        )
    b = brentq(lambda b: float(at(b).std()) - sigma, 0.0, widest, xtol=1e-9)
    extra = at(float(b)) - least
    return least + apportion(total - n * least, extra) if extra.sum() > 0 else apportion(total, np.ones(n))


def fill(held: NDArray[np.bool_], sizes: IntArray, totals: IntArray) -> IntArray | None:
    """Whole numbers of rows by device and cell that meet sizes and totals exactly, or None if there are none.

    Two linear programmes. The first maximises t such that each held cell has at least t of an even split of
    its device's rows. The second takes these lower bounds rounded down; a transport problem with whole
    margins and bounds has whole corner solutions, so nothing is left to round.

    Args:
        held: Who holds what, bool ``[n, n_cells]``.
        sizes: Rows of each device, ``[n]``.
        totals: Rows of each cell, ``[n_cells]``, of the same sum.
    """
    device, cell = np.nonzero(held)
    n_vars, n = len(device), len(sizes)
    places = np.arange(n_vars)
    margins: Any = coo_array(
        (np.ones(2 * n_vars), (np.concatenate([device, n + cell]), np.concatenate([places, places]))),
        shape=(n + held.shape[1], n_vars),
    )
    wanted = np.concatenate([sizes, totals]).astype(np.float64)
    even = (sizes / held.sum(1))[device]
    # Variables: the counts, then t.
    with_t: Any = coo_array((margins.data, margins.coords), shape=(n + held.shape[1], n_vars + 1))
    floors: Any = coo_array(
        (
            np.concatenate([-np.ones(n_vars), even]),
            (np.concatenate([places, places]), np.concatenate([places, np.full(n_vars, n_vars)])),
        ),
        shape=(n_vars, n_vars + 1),
    )
    cost = np.zeros(n_vars + 1)
    cost[-1] = -1.0
    best = linprog(cost, A_ub=floors, b_ub=np.zeros(n_vars), A_eq=with_t, b_eq=wanted, bounds=(0, None))
    if best.status != 0 or best.x is None:
        return None
    t = min(1.0, float(best.x[-1]))
    # The solver's t is off by its tolerance, either way: a bound just below a whole number is taken for that
    # number first, and for the number below if that is too much.
    for nudge in (1e-6, -1e-6):
        low = np.maximum(1.0, np.floor(t * even + nudge))
        whole = linprog(np.zeros(n_vars), A_eq=margins, b_eq=wanted, bounds=[(v, None) for v in low])
        if whole.status == 0 and whole.x is not None:
            return _exact(whole.x, held, sizes, totals)
    return None


def _exact(solution: FloatArray, held: NDArray[np.bool_], sizes: IntArray, totals: IntArray) -> IntArray | None:
    """The solution as whole numbers, if they meet sizes and totals."""
    counts = np.zeros(held.shape, np.int64)
    counts[held] = np.rint(solution).astype(np.int64)
    met = bool((counts.sum(1) == sizes).all() and (counts.sum(0) == totals).all())
    return counts if met else None

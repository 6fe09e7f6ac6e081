"""Partitions by label: IID, a Dirichlet draw per cell, k cells per device, two levels of cells."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import Bound, PositiveInt, Share
from espalier.core.errors import PartitionError
from espalier.data.dataset import IntArray
from espalier.data.partitions.base import PartitionSpec, Request, RowAssignment
from espalier.data.partitions.fill import deal_evenly, draw_cells, share
from espalier.data.rows import FloatArray, Rows, apportion, by_cell, deal, offsets_of


@dataclass(frozen=True, kw_only=True)
class Classes(PartitionSpec, kind="classes"):
    """Each device draws ``k`` cells; each cell's rows are shared by its holders in near equal amounts.

    With ``overlap`` a device draws its rows from the whole pools of its cells instead, evenly over its cells,
    so that different devices may hold the same row. EASF's fleets need that: they ask for more rows (400–600
    for each of up to 200 devices of 20 newsgroups) than there are.

    Attributes:
        k: Cells of a device.
        coverage: Every cell is at some device (refused if the devices are too few for it).
        overlap: Devices may share rows; then ``samples_per_device`` must be given.
    """

    k: PositiveInt = 2
    coverage: bool = True
    overlap: bool = False

    def check(self) -> None:
        """Refuse values that no data can meet."""
        super().check()
        given = self.samples_per_device is not None
        self.require(given or not self.overlap, "overlap", "false unless samples_per_device says how many to draw")

    def assign(self, request: Request) -> RowAssignment:
        """Draw the devices' cells, then share the rows or draw them."""
        if self.k > request.n_cells:
            raise PartitionError(f"A device shall hold k={self.k} cells, the data has {request.n_cells}; lower k.")
        held = draw_cells(
            request.rng("cells"),
            request.n_devices,
            self.k,
            np.arange(request.n_cells),
            request.n_cells,
            cover=self.coverage,
        )
        if self.overlap:
            return RowAssignment(self._draw(request, held), request.edge, capped=True)
        request.need(1)
        pools = request.pools()
        counts = share(held, request.weights, np.array([len(p) for p in pools]))
        return RowAssignment(deal(counts, pools), request.edge)

    def _draw(self, request: Request, held: NDArray[np.bool_]) -> Rows:
        pools = by_cell(request.rows, request.cells, request.n_cells, request.rng("rows"))
        low, high = self.cap
        rng = request.rng("draws")
        wanted = np.rint(rng.integers(low, high + 1, size=request.n_devices) * request.weights)
        parts = []
        for device in range(request.n_devices):
            mine = np.flatnonzero(held[device])
            quota = apportion(max(self.k, int(wanted[device])), np.ones(self.k))
            for cell, n in zip(mine, quota, strict=True):
                if n > len(pools[cell]):
                    raise PartitionError(
                        f"Device {device} shall draw {n} different samples of cell {cell}, which has "
                        f"{len(pools[cell])}; lower samples_per_device or raise k."
                    )
            draws = [rng.choice(pools[c], n, replace=False) for c, n in zip(mine, quota, strict=True)]
            parts.append(np.concatenate(draws))
        return Rows.of(parts)


@dataclass(frozen=True, kw_only=True)
class Iid(PartitionSpec, kind="iid"):
    """Every device gets a random part of all rows; parts are even unless ``imbalance`` says otherwise."""

    def assign(self, request: Request) -> RowAssignment:
        """Shuffle and cut."""
        request.need(1)
        sizes = 1 + apportion(len(request.rows) - request.n_devices, request.weights)
        rows = Rows(offsets_of(sizes), request.rng("rows").permutation(request.rows))
        return RowAssignment(rows, request.edge)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(PartitionSpec, kind="dirichlet"):
    """Each cell's rows are spread over the devices in proportions drawn from Dirichlet(α), or each device draws a mix.

    A draw per cell leaves devices of very different sizes. A draw per device (Hsu, Qi, Brown, Measuring the Effects of
    Non-Identical Data Distribution for Federated Visual Classification, 2019) gives all the same amount: devices take
    rows by their mix in turns, and who finds a cell empty takes of its others.

    Many implementations redraw until the smallest device has enough, which need not end. Here there is one
    draw; devices below ``min_samples`` are then filled up from the largest ones, out of the donor's largest
    cell.

    Attributes:
        alpha: Concentration, of each cell's share or each device's; small is skewed (0.1), large is nearly IID (100).
        min_samples: The least number of rows of a device.
        per: What a draw is made for.
    """

    alpha: Annotated[float, Bound(gt=0, le=1e9, words="more than 0, and at most 1e9 (which is IID)")] = 0.5
    min_samples: PositiveInt = 1
    per: Literal["cell", "device"] = "cell"

    def assign(self, request: Request) -> RowAssignment:
        """Draw the proportions, round them, fill up the smallest devices, deal the rows."""
        request.need(self.min_samples)
        pools = request.pools()
        totals = np.array([len(p) for p in pools])
        rng = request.rng("dirichlet")
        if self.per == "device":
            mixes = np.stack([self._draw(rng, request.n_cells) for _ in range(request.n_devices)])
            counts = take_turns(rng, mixes, apportion(int(totals.sum()), request.weights), totals)
        else:
            shares = [self._draw(rng, request.n_devices, request.weights) for _ in pools]
            counts = np.stack([apportion(n, s) for n, s in zip(totals.tolist(), shares, strict=True)], axis=1)
        fill_up(counts, self.min_samples)
        return RowAssignment(deal(counts, pools), request.edge)

    def _draw(self, rng: np.random.Generator, n: int, weights: FloatArray | float = 1.0) -> FloatArray:
        """Return n shares before their normalisation: a gamma draw each, times a weight."""
        shares: FloatArray = rng.standard_gamma(self.alpha, n) * weights
        if not shares.sum() > 0:
            # For tiny α every value may underflow to 0: one then gets all, which is the limit of small α.
            shares[rng.integers(n)] = 1.0
        return shares


#: in how many turns devices take their rows, so that none of them finds only what others have left
TURNS = 10


def take_turns(rng: np.random.Generator, mixes: FloatArray, sizes: IntArray, totals: IntArray) -> IntArray:
    """Let devices take rows by their own mixes until each has its size; return rows by device and cell.

    Args:
        rng: Draws who is next and what it takes.
        mixes: What each device is after, any scale, ``[n, n_cells]``.
        sizes: Rows of each device, ``[n]``, at most as many as there are.
        totals: Rows of each cell, ``[n_cells]``.
    """
    left = totals.astype(np.int64)
    counts = np.zeros(mixes.shape, dtype=np.int64)
    for turn in range(1, TURNS + 1):
        for device in rng.permutation(len(sizes)):
            wanted = int(sizes[device]) * turn // TURNS - int(counts[device].sum())
            while wanted > 0:
                odds = mixes[device] * (left > 0)
                odds = odds if odds.sum() > 0 else left.astype(np.float64)
                taken = np.minimum(rng.multinomial(wanted, odds / odds.sum()), left)
                counts[device] += taken
                left -= taken
                wanted -= int(taken.sum())
    return counts


def fill_up(counts: IntArray, least: int) -> None:
    """Move rows from the largest devices to those with fewer than ``least``, in place.

    Each move takes from the donor's largest cell; a donor never falls below ``least``. Ends because every
    move shortens the total shortfall.

    Args:
        counts: Rows by device and cell, int64 ``[n, n_cells]``, with at least ``n · least`` rows in all.
        least: The least number of rows of a device.
    """
    sizes = counts.sum(1)
    donors = [(-int(size), i) for i, size in enumerate(sizes) if size > least]
    heapq.heapify(donors)
    for device in np.flatnonzero(sizes < least):
        while (short := int(least - sizes[device])) > 0:
            size, donor = heapq.heappop(donors)
            cell = int(counts[donor].argmax())
            moved = min(short, -size - least, int(counts[donor, cell]))
            counts[donor, cell] -= moved
            counts[device, cell] += moved
            sizes[donor] -= moved
            sizes[device] += moved
            if sizes[donor] > least:
                heapq.heappush(donors, (-int(sizes[donor]), donor))


@dataclass(frozen=True, kw_only=True)
class TwoLevel(PartitionSpec, kind="two_level"):
    """CSAHFL's dual-layer non-IID split (§4.1).

    Each edge draws ``edge_fraction`` of the cells, each of its devices draws ``device_fraction`` of *all*
    cells out of the edge's. EIID is 1.0, ENIID50 is 0.5, ENIID30 is 0.3; the paper's devices hold 0.2. A cell is
    dealt evenly among its holders, and nobody gets more than an equal part of all rows ("the approximate amount of
    training data"): the rows of a cell that few devices hold are left out beyond that. With ``samples_per_device`` a
    device's cells are as equal as their rows allow. A device's rarest cell has at least a fifth of an equal part: of
    two cells, a tenth of its samples.

    Attributes:
        edge_fraction: Share of the cells that an edge knows (at least one cell).
        device_fraction: Share of the cells that a device holds (at least one, at most what its edge knows).
        coverage: Every cell is at some edge and every cell of an edge is at some device of it, so that the
            whole problem can be learnt; without it the draws are independent, as the paper's text has it.
    """

    #: what a device's rarest cell has at least, as a share of an equal part
    LEAST: ClassVar[float] = 0.2

    edge_fraction: Share = 0.5
    device_fraction: Share = 0.2
    coverage: bool = True

    def assign(self, request: Request) -> RowAssignment:
        """Draw the edges' cells, then the devices', then share the rows."""
        request.need(1)
        n_cells = request.n_cells
        per_edge = max(1, round(self.edge_fraction * n_cells))
        per_device = max(1, round(self.device_fraction * n_cells))
        if per_device > per_edge:
            raise PartitionError(
                f"A device shall hold {per_device} cells (device_fraction={self.device_fraction}), its edge knows "
                f"only {per_edge} (edge_fraction={self.edge_fraction}); lower device_fraction or raise edge_fraction."
            )
        everything = np.arange(n_cells)
        edges = draw_cells(request.rng("edges"), request.n_edges, per_edge, everything, n_cells, cover=self.coverage)
        held = np.zeros((request.n_devices, n_cells), dtype=np.bool_)
        for e in range(request.n_edges):
            mine = np.flatnonzero(request.edge == e)
            known = np.flatnonzero(edges[e])
            try:
                held[mine] = draw_cells(
                    request.rng("devices", e), len(mine), per_device, known, n_cells, cover=self.coverage
                )
            except PartitionError as error:
                raise PartitionError(f"Edge {e} with {len(mine)} devices: {error}") from None
        pools = request.pools()
        totals = np.array([len(p) for p in pools])
        limits = self.caps(request.n_devices, request.rng("cap"))
        if limits is None:
            limits = np.ceil(request.weights * totals[held.any(0)].sum() / request.weights.sum())
        counts = deal_evenly(held, request.weights, totals, limits, self.LEAST)
        return RowAssignment(deal(counts, pools), request.edge, capped=self.samples_per_device is not None)

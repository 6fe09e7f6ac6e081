"""Async-HFL: nobody waits, neither edges nor the cloud; devices are chosen and placed by what their updates add.

Yu, Cherkasova, Vardhan, Zhao, Ekaireb, Zhang, Mazumdar, Rosing. Async-HFL: Efficient and Robust Asynchronous Federated
Learning in Hierarchical IoT Networks. IoTDI 2023.

1. A gateway (here: an edge) mixes each device's report into its model as it comes: ``w <- (1 - a) w + a w_k`` with
   ``a = alpha0 (1 + s)^-power``, s its merges since the device's order. Devices are pulled to what they got (``mu``).
2. After ``kappa2`` reports it sends its model up; the cloud mixes it in by the same rule and answers with its own.
3. Learning utility, with g_i the devices' last updates and g their average by samples, all of length one:
   ``u_i = <g, g_i> - sum_{j != i} <g_i, g_j> / (n - 1)``: in the direction of all, unlike the others.
4. An edge that has room chooses among its free devices: of u_i scaled to [0, 1], it maximises the sum of
   ``u_i / delay_i^slowness`` while the sum of ``1 / delay_i`` (the bandwidth that a device takes, in models per
   second) of all at work stays within its own.
5. Every ``every`` merges the cloud associates devices with edges anew: it maximises
   ``min_j sum_i u_i x_ij - phi max_j sum_i x_ij r_ij / R``, r_ij the bandwidth at edge j, R an edge's.

Formulas and defaults are those of the authors' code, which has variants: of 3 with and without length one and times the
loss, of 4 solved exactly or greedily. In its count a report at once has staleness 1, here 0.

Differences: an update is the change of a model (in the code the last mini-batch's gradient, and this for recurrent
models). What edges tell the cloud of an update is a random projection of it (count sketch), in which inner products
stay; the paper's principal components need a warm-up in which everybody trains. So who has not reported yet is chosen
first. 4 is solved greedily, 5 within a tenth of the best as in the code, in large fleets for devices that may be split.
Each edge keeps a device. An edge's bandwidth is ``fraction`` of what its devices would take together; in 5 edges are
equals. Devices at work when the cloud answers go on (in the code their work is lost), and are not moved. ``kappa2`` is
20 for 30 devices per gateway in the code, and ``every`` 1 where the paper says several.
With ``fraction = 1`` and ``reach = "own"`` every report is mixed in by FedAsync's rule at every tier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from espalier.core.address import Address
from espalier.core.bounds import NonNegativeFloat, PositiveInt, Share
from espalier.core.codec import register
from espalier.core.environment import estimate
from espalier.core.memory import Memory, Product
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Arrangement, HandDown, Local, Pace, Rules, Selection, Structure
from espalier.core.view import Arrival, View
from espalier.policies.association import hosts_and_reach
from espalier.policies.asynchronous import Mixing

Floats = NDArray[np.float64]
TINY = 1e-12
#: numbers of an update's sketch
SKETCH_LENGTH = 512
#: pairs of a device and an edge within its reach up to which each device is placed as a whole
MOST_WHOLE_PAIRS = 5000


# -- equations -----------------------------------------------------------------------------------------------------


def utilities(updates: Floats, samples: Floats) -> Floats:
    """Return the learning utilities ``[n]`` of devices with these updates ``[n, d]`` and samples ``[n]``."""
    units = updates / np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), TINY)
    whole = samples @ updates / max(float(samples.sum()), TINY)
    alike = units @ units.T
    others = (alike.sum(axis=1) - np.diag(alike)) / max(1, len(units) - 1)
    return np.asarray(units @ (whole / max(float(np.linalg.norm(whole)), TINY)) - others)


def scaled(values: Floats) -> Floats:
    """Return values moved and stretched to [0, 1]; ones, if they are all the same."""
    least, most = (float(v) for v in (values.min(), values.max()))
    return (values - least) / (most - least) if most > least else np.ones_like(values)


def fitting(gains: Sequence[float], sizes: Sequence[float], room: float) -> list[int]:
    """Return whom to take so that gains are great and sizes together fit: greedily by gain per size, or the best one.

    That is worth at least half of the best choice.
    """
    able = [i for i, size in enumerate(sizes) if size <= room + TINY]
    taken, left = [], room + TINY
    for i in sorted(able, key=lambda i: (-gains[i] / sizes[i], i)):
        if sizes[i] <= left:
            taken.append(i)
            left -= sizes[i]
    best = max(able, key=lambda i: gains[i], default=None)
    return [best] if best is not None and gains[best] > sum(gains[i] for i in taken) else sorted(taken)


def associated(gains: Floats, loads: Floats, reach: NDArray[np.bool_], phi: float) -> NDArray[np.int64] | None:
    """Return each device's edge ``[n]``, by step 5, within a tenth of the best (None: an edge cannot have one).

    With more than :data:`MOST_WHOLE_PAIRS` pairs devices may be split: each is then where most of it is.

    Args:
        gains: Utilities, [n].
        loads: The share of each edge's bandwidth that a device would take there, [n, edges].
        reach: Where devices may be, [n, edges].
        phi: Weight of the bandwidth.
    """
    row, column = np.nonzero(reach)
    n, edges, pairs = *reach.shape, len(row)
    last = np.arange(edges)
    # s - sum u x <= 0;  sum r x - t <= 0;  -sum x <= -1 at every edge that anybody may be at
    rows = np.concatenate([column, last, edges + column, edges + last, 2 * edges + column])
    columns = np.concatenate([np.arange(pairs), np.full(edges, pairs), np.arange(pairs), np.full(edges, pairs + 1),
                              np.arange(pairs)])  # fmt: skip
    values = np.concatenate([-gains[row], np.ones(edges), loads[row, column], -np.ones(edges), -np.ones(pairs)])
    least = np.zeros(3 * edges)
    least[2 * edges + np.flatnonzero(reach.any(axis=0))] = -1.0
    above = csr_array((values, (rows, columns)), shape=(3 * edges, pairs + 2))
    once = csr_array((np.ones(pairs), (row, np.arange(pairs))), shape=(n, pairs + 2))
    found: Any = milp(
        np.concatenate([np.zeros(pairs), [-1.0, phi]]),
        integrality=np.concatenate([np.full(pairs, pairs <= MOST_WHOLE_PAIRS), [0, 0]]).astype(int),
        bounds=Bounds(
            np.concatenate([np.zeros(pairs), [-np.inf, 0.0]]), np.concatenate([np.ones(pairs), [np.inf] * 2])
        ),
        constraints=[LinearConstraint(above, -np.inf, least), LinearConstraint(once, 1.0, 1.0)],
        options={"mip_rel_gap": 0.1, "node_limit": 1000},
    )
    if found.x is None:
        return None
    shares: Floats = np.full(reach.shape, -1.0)
    shares[row, column] = found.x[:pairs]
    return np.asarray(shares.argmax(axis=1), dtype=np.int64)


@lru_cache(maxsize=4)
def _places(size: int) -> tuple[NDArray[np.int64], Floats]:
    """Return where each number of an update is added up, and with which sign: the same at every node."""
    rng = np.random.default_rng(0)
    return rng.integers(0, SKETCH_LENGTH, size), rng.choice([-1.0, 1.0], size)


def sketched(update: Floats) -> Floats:
    """Return the count sketch ``[SKETCH_LENGTH]`` of an update ``[d]``: inner products stay about the same."""
    places, signs = _places(len(update))
    return np.asarray(np.bincount(places, weights=signs * update, minlength=SKETCH_LENGTH), dtype=np.float64)


# -- policies ------------------------------------------------------------------------------------------------------


@register
@dataclass(slots=True)
class Sketches:
    """Devices' last updates, sketched, and those that the parent has not been sent."""

    known: dict[Address, Floats] = field(default_factory=dict)
    fresh: set[Address] = field(default_factory=set)


SKETCHES = Product("update sketches", Sketches)


def reported_sketches(view: View, arrivals: Sequence[Arrival]) -> dict[Address, Floats]:
    """Return what reports say of updates: those of devices by their models, those of servers by their statistics."""
    found: dict[Address, Floats] = {}
    for arrival in arrivals:
        report = arrival.report
        for group, model in report.models.items():
            if view.env.is_device(report.sender) and group in arrival.start:
                start, end = view.store.vectors([arrival.start[group], model])[:, : view.store.spec.n_params].double()
                found[report.sender] = sketched((start - end).numpy())
        devices, rows = (np.asarray(report.stats.get(k, ())) for k in ("devices", "sketches"))
        if len(devices) and rows.shape == (len(devices), SKETCH_LENGTH) and np.isfinite(rows).all():
            found |= {Address(d): row.astype(np.float64) for d, row in zip(devices.tolist(), rows, strict=True)}
    return found


@dataclass(frozen=True)
class ByAge(Mixing, kind="async_hfl"):
    """Mix each report in as it comes, the staler the less; where a child started is known, for its update."""

    compares_with_start: ClassVar[bool] = True

    alpha0: Share = 0.9


@dataclass(frozen=True)
class DiverseAndFast(Selection, kind="async_hfl"):
    """Free devices whose updates add much in little time, as many as the edge's bandwidth allows.

    Attributes:
        fraction: The bandwidth, as a share of what all devices would take together.
        count: Not used.
        slowness: How much a device's delay matters.
        updates: Local updates of an order, for the expected delays.
    """

    provides = (SKETCHES,)

    slowness: NonNegativeFloat = 1.0
    updates: PositiveInt = 1

    def pick(self, view: View) -> list[Address]:
        """Return those at work and those to begin now; of servers, all."""
        if not all(map(view.env.is_device, view.children)):
            return list(view.children)
        expected = ((c, estimate(view.env, view.me, c, self.updates, view.now)) for c in view.children)
        delays = {c: max(TINY, found.total) for c, found in expected}
        working = [c for c in view.children if c in set(view.absent)]
        free = [c for c in view.children if c not in working and not view.env.busy(c)]
        room = self.fraction * sum(1 / s for s in delays.values()) - sum(1 / delays[c] for c in working)
        worth = self._worth(view)
        gains = [worth[c] / delays[c] ** self.slowness for c in free]
        chosen = [free[i] for i in fitting(gains, [1 / delays[c] for c in free], room)]
        if free and not chosen and not working:
            chosen = [free[int(np.argmax(gains))]]
        return sorted([*working, *chosen])

    def _worth(self, view: View) -> dict[Address, float]:
        """Return the scaled utilities of the edge's devices; who is not known yet has the highest."""
        known = view.product(SKETCHES).known
        heard = [c for c in view.children if c in known]
        found = dict.fromkeys(view.children, 1.0)
        if len(heard) > 1:
            samples = np.asarray([view.env.samples(c) for c in heard], dtype=np.float64)
            found |= dict(zip(heard, scaled(utilities(np.stack([known[c] for c in heard]), samples)), strict=True))
        return found

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Remember updates."""
        reported, sketches = reported_sketches(view, arrivals), view.product(SKETCHES)
        sketches.known |= reported
        sketches.fresh |= reported.keys()

    def forget(self, memory: Memory, child: Address) -> None:
        """Forget a child's update."""
        sketches = memory.product(SKETCHES)
        sketches.known.pop(child, None)
        sketches.fresh.discard(child)


@dataclass(frozen=True)
class TellSketches(HandDown, kind="async_hfl"):
    """Replace; tell the parent which updates are new."""

    uses = (SKETCHES,)

    def statistics(self, view: View) -> dict[str, Any]:
        """Return the new sketches."""
        sketches = view.product(SKETCHES)
        new = sorted(sketches.fresh & sketches.known.keys())
        sketches.fresh.clear()
        if not new:
            return {}
        return {"devices": np.asarray(new), "sketches": np.stack([sketches.known[d] for d in new]).astype(np.float32)}


@dataclass(frozen=True)
class ByUpdates(Structure, kind="async_hfl"):
    """Associates devices with edges so that every edge has much to learn and bandwidth for it.

    Attributes:
        reach: Which edges a device may be at: its own, also the neighbouring ones on the ring, or all.
        phi: Weight of the bandwidth against the learning utility.
        every: Merges at the cloud per arrangement.
        updates: Local updates of an order, for the expected delays.
    """

    @dataclass(slots=True)
    class State:
        """Devices' sketches, and the merges so far."""

        known: dict[Address, Floats] = field(default_factory=dict)
        merges: int = 0

    reach: Literal["own", "neighbours", "all"] = "all"
    phi: NonNegativeFloat = 0.1
    every: PositiveInt = 5
    updates: PositiveInt = 1

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Remember what edges tell."""
        state = view.state(self)
        state.merges += 1
        if self.reach != "own":
            state.known |= reported_sketches(view, arrivals)

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        """Search when it is time; return the new parents."""
        env, state = view.env, view.state(self)
        if self.reach == "own" or not state.merges or state.merges % self.every:
            return None
        state.known = {d: s for d, s in state.known.items() if d in set(env.devices())}
        hosts, devices, place, reach = hosts_and_reach(env, [d for d in env.devices() if d in state.known], self.reach)
        if len(devices) < 2 or len(hosts) < 2:
            return None
        samples = np.asarray([env.samples(d) for d in devices], dtype=np.float64)
        gains = utilities(np.stack([state.known[d] for d in devices]), samples)
        rates = np.zeros(reach.shape)
        for edge, at in hosts.items():
            rates[:, at] = [1 / max(TINY, estimate(env, edge, d, self.updates, view.now).total) for d in devices]
        loads = rates / max(TINY, float(rates[np.arange(len(devices)), place].sum()) / len(hosts))
        back = {i: e for e, i in hosts.items()}
        found = associated(gains, loads, reach, self.phi)
        if found is None:
            return None
        parents = {d: back[e] for d, e, at in zip(devices, found.tolist(), place.tolist(), strict=True) if e != at}
        return Arrangement(parents=parents, note={"moved": len(parents)}) if parents else None


@dataclass(frozen=True)
class AsyncHFL(SampledMethod, kind="async_hfl"):
    """Asynchronous edges and cloud; devices chosen and placed by utility, delay and bandwidth.

    Attributes:
        kappa2: Reports that an edge mixes in per report to the cloud.
        alpha0: Share of a fresh report in the new model, at edges and at the cloud.
        power: How fast the share falls with staleness.
        mu: Pull of devices to the model they received.
        slowness: How much a device's delay matters in selection.
        phi: Weight of bandwidth against utility in association.
        every: Merges at the cloud per association.
        reach: Which edges a device may be associated with.
        fraction: An edge's bandwidth, as a share of what its devices would take together (default: the experiment's).
    """

    title: ClassVar[str] = "Async-HFL"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = (
        "Yu et al., Async-HFL: Efficient and Robust Asynchronous Federated Learning in Hierarchical IoT Networks, "
        "IoTDI 2023"
    )

    kappa2: PositiveInt = 5
    alpha0: Share = 0.9
    power: NonNegativeFloat = 0.5
    mu: NonNegativeFloat = 0.1
    slowness: NonNegativeFloat = 1.0
    phi: NonNegativeFloat = 0.1
    every: PositiveInt = 5
    reach: Literal["own", "neighbours", "all"] = "all"

    def plan(self, setting: Setting) -> Plan:
        """A merge per report at every tier."""
        merge, tell = ByAge(self.alpha0, self.power), TellSketches()
        devices = DiverseAndFast(self.share(setting), slowness=self.slowness, updates=setting.updates)
        return Plan(
            root=Rules(
                structure=ByUpdates(reach=self.reach, phi=self.phi, every=self.every, updates=setting.updates),
                pace=Pace(self.kappa2, buffer=1, admits=True),
                merge=merge,
            ),
            middle=Rules(selection=devices, pace=Pace(1, buffer=1, admits=True), merge=merge, hand_down=tell),
            edge=Rules(
                selection=devices, pace=Pace(setting.updates, buffer=1, admits=True), merge=merge, hand_down=tell
            ),
            local=Local(self.mu),
        )

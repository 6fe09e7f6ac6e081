"""A merge by secure aggregation: the aggregator learns the weighted sum of its children's models, no single one.

    { name = "hierfavg", edge = { merge = { kind = "secure" } } }

The protocol is really run (see ``espalier.secure``): every child's model goes in masked, children that were ordered
to work and did not report are lost clients whose masks are recovered. The result is HierFAVG's average, rounded to
fixed point. Nobody can look at single models then: no robust merge and no guard that does goes with it.

In a simulation both sides of the protocol are played here. On a real fleet the children hide their models themselves,
and the aggregator's store (:class:`HiddenModels`) has nothing but masked words: it is asked for the sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.address import Address
from espalier.core.bounds import Bound, Decay
from espalier.core.errors import ConfigError, ProtocolError
from espalier.core.policies import Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


@dataclass(frozen=True, eq=False)
class Total:
    """What came of a sum.

    Attributes:
        clients: Children that were ordered to work.
        reports: Those of them whose numbers are in the sum.
        threshold: How many there must be.
        numbers: ``[weight · model | weight]`` summed, or None if there is no sum.
        rest: The models' integer buffers, which are no secret, in the models' type.
        why: Why there is no sum, if not for too few reports.
    """

    clients: int
    reports: int
    threshold: int
    numbers: NDArray[np.float64] | None
    rest: Tensor
    why: str = ""


@runtime_checkable
class HiddenModels(Protocol):
    """A store to which children's models come masked, each times the samples that its report names."""

    def masked_sum(self, models: Mapping[Address, Ref]) -> Total:
        """Return the sum over those children, which was awaited (:class:`~espalier.core.messages.AwaitSum`)."""
        ...


@contextmanager
def _installed() -> Iterator[None]:
    """Say what to do if the protocol's package is not there."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            "Secure aggregation needs the package cryptography: pip install 'espalier-hfl[privacy]'."
        ) from error


def secure_sum(
    values: Mapping[int, NDArray[np.float64]], absent: Sequence[int], threshold: int, neighbours: int | None = None
) -> NDArray[np.float64]:
    """Run the protocol among clients with values and clients that are lost after they shared their keys.

    Args:
        values: Numbers by client.
        absent: Clients that are lost.
        threshold: Shares that give a secret.
        neighbours: With how many each client shares masks (None: with all).

    Raises:
        ProtocolError: Too many neighbours of a client are lost.
    """
    with _installed():
        from espalier.secure import Client, Server, ring
    members = sorted({*values, *absent})
    graph = ring(members, len(members) if neighbours is None else neighbours)
    server, clients = Server(graph, threshold), {n: Client(n, graph[n], threshold) for n in members}
    for n, client in clients.items():
        server.advertise(n, client.advertise())
    for n, client in clients.items():
        server.deal(n, client.share(server.introductions(n)))
    server.route()
    for n, client in clients.items():
        client.receive(server.parcels(n))
    masked = {n: clients[n].hide(x) for n, x in values.items()}
    server.there = set(masked)
    for n in masked:
        server.help(n, clients[n].unmask(server.present(n)))
    return server.sum(masked)


def to_hide(vectors: Sequence[Tensor], floats: int, weight: float) -> NDArray[np.float64] | None:
    """Return what a child hides, ``[weight · model | weight · auxiliary … | weight]``; None if it finds no sense there.

    Auxiliary vectors follow the model in the order of their names.
    """
    numbers = torch.cat([vector[:floats] for vector in vectors]).to(torch.float64).numpy()
    return np.append(weight * numbers, weight) if weight > 0 and np.isfinite(numbers).all() else None


@dataclass(frozen=True)
class SecureMerge(Merge, kind="secure"):
    """The average weighted by samples, by secure aggregation.

    Attributes:
        threshold: The share of a round's children that must report; with fewer the model stays as it is.
        dropouts: The share of children that may be lost in a round. Where there are many children, each shares masks
            with as many others as this, ``liars`` and ``failure`` ask for (Bell et al., CCS 2020); in small groups
            with all others.
        liars: The share of children that may lie, or tell the aggregator what they know.
        failure: The probability that it goes wrong although no more than those are lost or lie.
    """

    @dataclass(slots=True)
    class State:
        """The auxiliary vectors of the sums that were taken last."""

        beside: dict[str, Ref] = field(default_factory=dict)

    threshold: Annotated[float, Bound(gt=0.5, le=1)] = 0.67
    dropouts: Decay = 0.1
    liars: Decay = 0.05
    failure: Annotated[float, Bound(gt=0, lt=1)] = 1e-9

    def needed(self, members: int) -> int:
        """Return how many of a round's children must report: more than half, and two, as a sum of one hides nothing."""
        return max(2, members // 2 + 1, math.ceil(self.threshold * members - 1e-9))

    def degree(self, members: int) -> tuple[int, int]:
        """Return with how many others each of a round's children shares masks, and how many shares give a secret."""
        with _installed():
            from espalier.secure import degree
        found = degree(members, self.needed(members), self.dropouts, self.liars, self.failure)
        return found.neighbours, found.threshold

    def sums(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, dict[Address, Ref]]:
        """Wait for the sums, where children mask their models themselves."""
        if not isinstance(view.store, HiddenModels):
            return {}
        return {
            group: {child: a.report.models[group] for child, a in found.items()}
            for group, found in _by_group(arrivals).items()
        }

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new models per group; a group with too few reports keeps its model."""
        merged: dict[str, Ref] = {}
        for group, found in _by_group(arrivals).items():
            if isinstance(view.store, HiddenModels):
                total = view.store.masked_sum({child: a.report.models[group] for child, a in found.items()})
            else:
                total = self._played(view, group, found)
            noted = {"clients": total.clients, "reports": total.reports, "threshold": total.threshold}
            view.note("secure", group=group, **noted, **({"why": total.why} if total.why else {}))
            if total.numbers is not None:
                means = torch.from_numpy(total.numbers[:-1] / total.numbers[-1]).to(total.rest.dtype)
                rows = means.reshape(-1, view.store.spec.n_float)
                merged[group], *beside = (view.store.put(torch.cat([row, total.rest])) for row in rows)
                names = _names(found)
                view.state(self).beside = dict(zip(names, beside, strict=True)) if len(names) == len(beside) else {}
        return merged

    def auxiliary(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the averages that came out of the same sums (where there are several groups: of the last)."""
        found, view.state(self).beside = view.state(self).beside, {}
        return found

    def _played(self, view: View, group: str, found: dict[Address, Arrival]) -> Total:
        """Play all parts of the protocol: a simulation's store has the children's models."""
        names = _names(found)
        children = sorted(a for a, arrival in found.items() if arrival.report.auxiliary.keys() >= set(names))
        members = [*children, *({*found, *view.absent} - {*children})]
        floats = view.store.spec.n_float
        reports = [found[a].report for a in children]
        rows = [view.store.vectors([r.models[group], *map(r.auxiliary.__getitem__, names)]) for r in reports]
        weights = [self.weight(view, found[a], group) for a in children]
        hidden = {n: to_hide(list(rows[n]), floats, weights[n]) for n in range(len(children))}
        values = {n: numbers for n, numbers in hidden.items() if numbers is not None}
        needed = self.needed(len(members))
        total, why = None, ""
        if len(values) >= needed:
            neighbours, threshold = self.degree(len(members))
            absent = [n for n in range(len(members)) if n not in values]
            try:
                total = secure_sum(values, absent, threshold, neighbours)
            except ProtocolError as error:
                why = str(error)
        # Counters are not secret sums: they come from the first report.
        return Total(len(members), len(values), needed, total, rows[0][0, floats:], why)


def _names(found: Mapping[Address, Arrival]) -> tuple[str, ...]:
    """Return the names of the auxiliary vectors that most reports have: no single child decides."""
    return Counter(tuple(sorted(a.report.auxiliary)) for a in found.values()).most_common(1)[0][0]


def _by_group(arrivals: Sequence[Arrival]) -> dict[str, dict[Address, Arrival]]:
    """Return the newest report of each child, per group."""
    groups: dict[str, dict[Address, Arrival]] = {}
    for arrival in arrivals:
        for group in arrival.report.models:
            groups.setdefault(group, {})[arrival.report.sender] = arrival
    return groups

"""Clusters that live at the cloud: one model and one barrier per group of devices (CFL, ICFL, FL+HC).

Every cluster runs rounds at its own speed; after every ``meet`` rounds all clusters wait for each other and a
:class:`Regrouping` may put devices into other clusters. It does so by what the devices learnt, so it keeps the last
update of each: the models it started from and ended with, by reference, looked at only when clusters are formed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from espalier.core.address import Address
from espalier.core.bounds import PositiveInt
from espalier.core.memory import Product
from espalier.core.messages import ALL
from espalier.core.policies import Arrangement, HandDown, Merge, Pace, Rules, Selection, Structure, normalised
from espalier.core.store import ModelStore, Ref
from espalier.core.view import Arrival, View

#: the largest group, which takes in devices whose own is gone
MAIN_GROUP = Product("main group", str)


def group_of(view: View, device: Address) -> str:
    """Return a device's group; one that came with a group that is gone belongs to the largest."""
    group = view.env.group(device)
    return group if group in view.models else view.product(MAIN_GROUP)


@dataclass(frozen=True)
class ClusterPace(Pace, kind="clusters"):
    """A barrier for each group of devices, each at its own speed."""

    uses = (MAIN_GROUP,)

    def cohorts(self, view: View) -> Mapping[str, Sequence[Address]]:
        """Split the children by their groups."""
        found: dict[str, list[Address]] = {}
        for child in view.children:
            found.setdefault(group_of(view, child), []).append(child)
        return found


@dataclass(frozen=True)
class ClusterHandDown(HandDown, kind="clusters"):
    """A device gets the model of its group."""

    uses = (MAIN_GROUP,)

    def send(self, view: View, child: Address) -> dict[str, Ref]:
        """Return the group's model."""
        group = group_of(view, child)
        return {group: view.models[group]}


@dataclass(frozen=True)
class EqualMerge(Merge, kind="equal"):
    """The plain average of the reports, per group."""

    def weight(self, view: View, arrival: Arrival, group: str) -> float:
        """Return one for everybody."""
        return 1.0


def blend(store: ModelStore, terms: Iterable[tuple[float, Ref]]) -> Ref:
    """Return the weighted average of models, or the model itself if there is only one."""
    total: dict[Ref, float] = {}
    for weight, ref in terms:
        total[ref] = total.get(ref, 0.0) + weight
    if len(total) == 1:
        return next(iter(total))
    return store.combine(normalised([(weight, ref) for ref, weight in total.items()]))


def samples_of(view: View, device: Address) -> float:
    """Return a device's weight in an average: its samples."""
    return float(view.env.samples(device))


@dataclass(frozen=True)
class Regrouping(Structure):
    """Devices report to the cloud; every ``every`` rounds they may be put into other groups."""

    provides = (MAIN_GROUP,)

    @dataclass(slots=True)
    class State:
        """What the devices learnt, and how often they were grouped.

        Attributes:
            start: The model that each group's round began with.
            updates: Each device's last update: the models it began and ended with, and the round.
            stage: Clusterings that were due so far.
            names: Names given to groups so far.
        """

        start: dict[str, Ref] | None = None
        updates: dict[Address, tuple[Ref, Ref, int]] = field(default_factory=dict)
        stage: int = 0
        names: int = 0

    flat: bool = True
    every: PositiveInt = 10

    def rules(self, updates: int, fraction: float, merge: Merge | None = None) -> Rules:
        """Return the cloud's policies: a barrier per cluster over a share of its devices, all meet to be regrouped."""
        pace, draw = ClusterPace(updates, meet=self.every), Selection(fraction)
        return Rules(draw, pace, merge or Merge(), hand_down=ClusterHandDown(), structure=self)

    @abstractmethod
    def regroup(
        self, view: View, answers: Mapping[Address, Arrival]
    ) -> tuple[dict[str, list[Address]], dict[str, Ref]] | None:
        """Return the new groups' members and models, or None to leave everything as it is."""

    def due(self, view: View) -> bool:
        """Tell whether clusters are formed now."""
        return view.clock // self.every > view.state(self).stage

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        """Form clusters if it is time; else only take in devices whose group is gone."""
        state, found = view.state(self), None
        if state.start is None:
            state.start = dict(view.models)
        if self.due(view):
            found = self.regroup(view, answers)
            state.stage = view.clock // self.every
        if found is None:
            stray = [d for d in view.env.devices() if view.env.group(d) not in view.models]
            return Arrangement(groups={d: group_of(view, d) for d in stray}) if stray else None
        members, models = found
        if len(members) == 1:
            # One cluster is no cluster: its model is everybody's.
            members, models = {ALL: next(iter(members.values()))}, {ALL: next(iter(models.values()))}
        state.start = dict(models)
        view.provide(MAIN_GROUP, max(members, key=lambda g: (len(members[g]), g)))
        groups = {d: g for g, inside in members.items() for d in inside}
        note = {"round": view.clock, "clusters": {g: sorted(inside) for g, inside in members.items()}}
        return Arrangement(groups=groups, models=models, note=note)

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Remember what the devices learnt."""
        state = view.state(self)
        start, updates = state.start, state.updates
        assert start is not None  # it was arranged before
        for arrival in arrivals:
            for group, model in arrival.report.models.items():
                updates[arrival.report.sender] = (start[group], model, view.round)
        for group in {g for a in arrivals for g in a.report.models}:
            start[group] = view.models[group]

    def members(self, view: View) -> dict[str, list[Address]]:
        """Return the devices of each group that the cloud has ever heard of, ascending."""
        known = {*view.env.devices(), *view.state(self).updates}
        found: dict[str, list[Address]] = {}
        for device in sorted(known):
            found.setdefault(group_of(view, device), []).append(device)
        return found

    def fresh_name(self, view: View) -> str:
        """Return a name that no group has had."""
        state = view.state(self)
        state.names += 1
        return str(state.names)

    def last_updates(self, view: View, devices: Iterable[Address]) -> tuple[list[Address], Tensor]:
        """Return the devices whose update is known, and their updates ``[n, n_params]`` (this computes them)."""
        known = view.state(self).updates
        seen = [d for d in devices if d in known]
        refs = sorted({r for d in seen for r in known[d][:2]})
        if not refs:
            return [], Tensor()
        place = {ref: i for i, ref in enumerate(refs)}
        vectors = view.store.vectors(refs)[:, : view.store.spec.n_params]
        return seen, vectors[[place[known[d][1]] for d in seen]] - vectors[[place[known[d][0]] for d in seen]]

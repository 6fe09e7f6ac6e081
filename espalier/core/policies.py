"""The decisions that make a method, with no IO in any of them.

An aggregator's round asks its policies in this order::

    structure   (root only) survey the devices?  then arrange the tree and the groups
    selection   which children work in this round
    pace        which cohorts run side by side; how much work for each child; when the round closes;
                what becomes of late reports; (at the child) whether it has done enough
    hand-down   which models a child gets; what an aggregator makes of the models it receives
    merge       the new models out of the reports

and a device asks its *local* policy (:mod:`espalier.core.local`) where to start, towards what it is pulled, and what
it reports.
Every base class here is the plainest published choice (HierFAVG's), so a method overrides only what it
changes. Policies are frozen: what one must remember is its ``State``, reached with ``view.state(self)``; what it
provides for another is a declared product (:mod:`espalier.core.memory`). Both are saved with the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from espalier.core.address import Address
from espalier.core.guard import Guard
from espalier.core.local import Contribution as Contribution
from espalier.core.local import Local as Local
from espalier.core.local import LocalView as LocalView
from espalier.core.memory import Memory, Policy, Remembering
from espalier.core.messages import ALL, Order
from espalier.core.params import ParamSpec, Spans
from espalier.core.store import ModelStore, Ref
from espalier.core.view import Arrival, View, with_auxiliary


@dataclass(frozen=True, slots=True)
class Assignment:
    """How much work a child gets, within which time, with which extra arguments."""

    updates: int
    budget: float | None = None
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress(Remembering):
    """How far a node is with an order: updates done, seconds spent, the last update's seconds.

    What the node remembers outlives the order.
    """

    order: Order
    done: int
    spent: float
    last: float
    memory: Memory = field(default_factory=Memory)


#: a fraction of children that misses a whole number by this much or less is that number
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Selection(Policy, family="selection", kind="uniform"):
    """Every available child works in every round, or a share of them that is drawn uniformly.

    At least one is drawn. A share that is no whole number of children is rounded up in as many rounds as it takes to
    be met in the long run, so that small edges together work as much as one large one.

    Attributes:
        fraction: The share of the children that works in a round.
        count: How many work in a round, in place of a share.
    """

    fraction: float = 1.0
    count: int | None = None

    def wanted(self, view: View, total: int) -> int:
        """Return how many of ``total`` children work in this round."""
        if self.count is not None:
            return max(1, min(total, self.count))
        whole, rest = divmod(self.fraction * total + _ROUNDING, 1.0)
        if rest > 2 * _ROUNDING:
            # the phase differs between aggregators: they do not all round up in the same rounds
            phase = float(view.env.rng("share", view.me, view.cohort).random())
            whole += math.floor((view.round + 1) * rest + phase) - math.floor(view.round * rest + phase)
        return max(1, min(total, int(whole)))

    def pick(self, view: View) -> list[Address]:
        """Return the children that work in this round, ascending."""
        total = len(view.children)
        want = self.wanted(view, total)
        if want >= total:
            return list(view.children)
        rng = view.env.rng("select", view.me, view.cohort, view.round)
        return [view.children[i] for i in np.sort(rng.choice(total, size=want, replace=False))]

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Look at a closed round's arrivals: the place to remember losses (``view.loss``) and times (``seconds``)."""


@dataclass(frozen=True)
class Pace(Policy, family="pace", kind="barrier"):
    """A barrier: every selected child does ``updates`` updates and the round waits for all of them.

    ============================  =================================  ============================================
    question                      fields                             hooks
    ============================  =================================  ============================================
    who has rounds together?      ``cohort_per_child``, ``meet``     :meth:`cohorts`, :meth:`members`
    how much work?                ``updates``, ``child_decides``     :meth:`assign`; at the child :meth:`enough`
    when does a round close?      ``until_deadline``, ``buffer``     :meth:`deadline`
    what of those who come late?  ``late``, ``admits``
    what is remembered?           its ``State``                      :meth:`learn`, :meth:`forget`
    ============================  =================================  ============================================

    Attributes:
        updates: How many updates a child does before it reports.
        child_decides: Whether the child decides after each update if it goes on; else it does ``updates`` of them.
        late: What becomes of a report that answers an earlier round, or another aggregator's order: it is dropped
            (``drop``); it counts in the round that is open (``keep``); or it is dropped and the child gets work at
            once, with the model of now (``renew``).
        admits: Whether a child that comes (or comes back) while a round is open gets work at once.
        buffer: After so many reports the round closes, and those who still work go on. As many children as the
            selection draws are at work: the place of one that has reported is filled after the merge, or (``admits``,
            FedBuff) at once.
        meet: After every so many of their rounds the root's cohorts wait for each other, and only then the structure is
            asked.
    """

    updates: int = 1
    child_decides: bool = False
    late: Literal["drop", "keep", "renew"] = "drop"
    admits: bool = False
    buffer: int | None = None
    meet: int | None = None

    #: whether every child is a cohort of its own, named by its address (then :meth:`cohorts` need not list them)
    cohort_per_child: ClassVar[bool] = False
    #: whether a round lasts until its deadline even when everybody has reported earlier, or nobody has at all
    until_deadline: ClassVar[bool] = False

    @property
    def keeps_late(self) -> bool:
        """Whether a report that answers an earlier round counts in the one that is open."""
        return self.late == "keep" or self.buffer is not None

    def cohorts(self, view: View) -> Mapping[str, Sequence[Address]]:
        """Split the children into cohorts whose rounds run side by side (default: one cohort)."""
        return {"": view.children}

    def members(self, view: View, cohort: str) -> Sequence[Address]:
        """Return the children of one cohort (none if it is gone)."""
        return self.cohorts(view).get(cohort, ())

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return each chosen child's work."""
        work = Assignment(self.updates)
        return dict.fromkeys(chosen, work)

    def enough(self, progress: Progress) -> bool:
        """Tell, at the child, whether it reports now."""
        return progress.done >= progress.order.updates

    def deadline(self, view: View, work: Mapping[Address, Assignment]) -> float | None:
        """Return the seconds after which the round closes with what has arrived (None: wait for all)."""
        return None

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Look at a closed round's arrivals; remember what the next round needs."""


@dataclass(frozen=True)
class Merge(Policy, family="merge", kind="samples"):
    """The average of the reports, weighted by samples: ``w = sum(n_k w_k) / sum(n_k)``, per group."""

    #: whether it merges changes and so must know where each child started (:attr:`Arrival.start`)
    compares_with_start: ClassVar[bool] = False

    def around(self, own: Merge) -> Merge:
        """Return what is put in the place of a method's own merge: this one, or (an optimiser) this one around it."""
        return self

    def present(self, view: View, arrivals: Sequence[Arrival], group: str) -> float:
        """Return how much of a round's weight a group's reports have; the rest stays with the current model."""
        return 1.0

    def weights(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, list[tuple[float, Ref]]]:
        """Return, per group, coefficients that sum to one and the models they belong to."""
        return {group: normalised(terms) for group, terms in self.claims(view, arrivals).items()}

    def claims(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, list[tuple[float, Ref]]]:
        """Return, per group, the reports' models with their weights before normalisation."""
        found: dict[str, list[tuple[float, Ref]]] = {}
        for arrival in arrivals:
            for group, model in arrival.report.models.items():
                found.setdefault(group, []).append((self.weight(view, arrival, group), model))
        return found

    def weight(self, view: View, arrival: Arrival, group: str) -> float:
        """Return one report's weight before normalisation (default: its samples)."""
        return float(arrival.report.samples.get(group, 0))

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new models per group; a group without reports keeps its model."""
        return {
            group: view.store.combine(terms, fallback=view.models.get(group))
            for group, terms in self.weights(view, arrivals).items()
        }

    def auxiliary(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new auxiliary vectors by name: by default averages with the weights that models have."""
        auxiliary = with_auxiliary(arrivals)
        if not auxiliary:
            return {}
        own = view.of_auxiliary()
        return {
            name: view.store.combine(terms, fallback=own.models.get(name))
            for name, terms in self.weights(own, auxiliary).items()
        }

    def sums(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, dict[Address, Ref]]:
        """Return the masked models, per group and child, whose sums must be there before :meth:`merge` is called."""
        return {}

    def served(self, view: View) -> dict[str, Ref]:
        """Return the models that are used from now on, after a merge: by default those that training goes on from."""
        return dict(view.models)

    def samples(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, int]:
        """Return how many samples each merged model stands for: all that are registered below."""
        return {group: view.env.samples(view.me) for group in view.models}


#: what an aggregator closes only when its parent's next order has come, so that devices are measured with the models
#: that came with it: nothing; an order with all its rounds, as one round of the run; or the last round of an order
Completion = Literal["nothing", "order", "last round"]


@dataclass(frozen=True)
class HandDown(Policy, family="hand_down", kind="replace"):
    """Replace: an aggregator takes over what it receives, and hands its models on as they are."""

    #: which rounds end when the parent's next models have come, not with the merge (then ``Plan.clock`` is ``edge``)
    closed_by_next_order: ClassVar[Completion] = "nothing"

    def receive(self, view: View, order: Order) -> dict[str, Ref]:
        """Return the aggregator's models after an order arrived."""
        return dict(order.models)

    def send(self, view: View, child: Address) -> dict[str, Ref]:
        """Return the models that a child gets: a device its group's, an aggregator all."""
        if not view.env.is_device(child):
            return dict(view.models)
        group = view.env.group(child)
        return {group: view.models[group]} if group in view.models else {ALL: view.models[ALL]}

    def anchor(self, view: View, child: Address) -> Ref | None:
        """Return the model that a child's training is pulled to, if not the one it starts from."""
        return None

    def up(self, view: View) -> dict[str, Ref]:
        """Return the models that go to the parent."""
        return dict(view.models)

    def auxiliary(self, view: View, to: Address) -> dict[str, Ref]:
        """Return the auxiliary vectors that go down to a child, or up to the parent: by default all there are."""
        return dict(view.auxiliary)

    def statistics(self, view: View) -> dict[str, Any]:
        """Return the plain numbers, names and arrays that go to the parent with :meth:`up`'s models."""
        return {}

    def shares(self, spec: ParamSpec) -> Spans | None:
        """Return which places of a model go between this aggregator and its parent at all; None: what devices share.

        It is for models as :meth:`Local.shares` is for devices: the rest costs no bytes above here, and is not sent.
        """
        return None


@dataclass(frozen=True)
class Survey:
    """A question to devices before a round: a statistic (``ask``), or a training (``ask=None``).

    Attributes:
        ask: The statistic's name.
        args: Its arguments.
        updates: How long the training is.
        devices: Who is asked; everybody by default.
        models: What goes out with the question; by default nothing, and with a training what the device would
            get in a round.
        seconds: The survey ends after so many seconds with the answers that are there, not sooner, not later; by
            default when all have answered.
    """

    ask: str | None
    args: dict[str, Any] = field(default_factory=dict)
    updates: int = 1
    devices: Sequence[Address] | None = None
    models: dict[str, Ref] | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Arrangement:
    """What a structure policy decided: new parents, new groups, new models, and a note of why.

    ``again``: the structure wants to be asked once more before the round opens (a survey about the new models, say).
    """

    parents: Mapping[Address, Address | None] = field(default_factory=dict)
    groups: Mapping[Address, str] = field(default_factory=dict)
    models: Mapping[str, Ref] | None = None
    note: dict[str, Any] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True)
class Structure(Policy, family="structure", kind="given"):
    """The given tree: every device reports to the edge it is at (or, ``flat``, to the root).

    Attributes:
        flat: Whether devices report to the root, past their edges.
        orphans: What becomes of a dead edge's devices: the nearest live edge takes them over, or they wait for their
            own.
    """

    #: whether devices lead clusters of other devices, which must be able to reach them
    peers: ClassVar[bool] = False

    flat: bool = False
    orphans: Literal["nearest", "wait"] = "nearest"

    def survey(self, view: View) -> Survey | None:
        """Return the question to ask before this round, if any."""
        return None

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        """Return a new arrangement before this round, if any (``answers`` is empty without a survey)."""
        return None

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Look at the arrivals of a round that the root has just closed."""

    def follows_moves(self) -> bool:
        """Tell whether a device that moves to another edge reports there from then on."""
        return not self.flat

    def places_newcomers(self) -> bool:
        """Tell whether the runtime gives a device that comes its parent; else the nodes agree on one themselves."""
        return True


@dataclass(frozen=True)
class Rules:
    """The policies of one aggregator."""

    selection: Selection = field(default_factory=Selection)
    pace: Pace = field(default_factory=Pace)
    merge: Merge = field(default_factory=Merge)
    hand_down: HandDown = field(default_factory=HandDown)
    structure: Structure = field(default_factory=Structure)
    #: the models that the root starts with
    initial: Callable[[ModelStore], dict[str, Ref]] = lambda store: {ALL: store.initial()}
    guard: Guard = field(default_factory=Guard)

    @cached_property
    def forgetful(self) -> tuple[Policy, ...]:
        """Those that remember something of single children, and forget who leaves."""
        own = (self.selection, self.pace, self.merge, self.hand_down, self.structure, self.guard)
        return tuple(part for policy in own for part in policy.parts() if type(part).forget is not Policy.forget)


def normalised(terms: Sequence[tuple[float, Ref]]) -> list[tuple[float, Ref]]:
    """Scale coefficients to sum one; if all are zero, make them equal."""
    total = sum(c for c, _ in terms)
    if total <= 0.0:
        return [(1.0 / len(terms), ref) for _, ref in terms]
    return [(c / total, ref) for c, ref in terms]

"""What a device decides: where its trainings start, towards what they are pulled, what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from espalier.core.address import Address
from espalier.core.environment import Environment
from espalier.core.memory import Memory, Policy, Remembering
from espalier.core.messages import Order, Train
from espalier.core.params import ParamSpec, Spans
from espalier.core.store import Ref


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a device reports when an order's trainings are done.

    Attributes:
        models: Models by group, which are merged, served and evaluated.
        stats: Plain numbers, names and arrays for the parent's policies.
        auxiliary: Vectors of a model's size beside the models, by name: they travel, cost bytes and are merged
            (:meth:`Merge.auxiliary`), and are neither served nor evaluated.
        uses: The model that the device itself uses from now on, where the plan ``serves`` the device's own.
    """

    models: dict[str, Ref] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    auxiliary: dict[str, Ref] = field(default_factory=dict)
    uses: Ref | None = None


@dataclass(frozen=True)
class Local(Policy, family="local", kind="plain"):
    """Plain local training from the received model; ``mu`` adds FedProx's pull towards it.

    ==========================  ========================================================================================
    a device gets               and calls
    ==========================  ========================================================================================
    an order to train           :meth:`train`, then :meth:`then` after each training until there is no further one, at
                                last :meth:`done`
    the same, where a           :meth:`question` and :meth:`question_models`; the device computes the statistic;
    statistic decides           :meth:`answer`; from :meth:`train` on as above
    a survey's question         :meth:`arguments`; the device computes the statistic; :meth:`reply`
    ==========================  ========================================================================================

    The time of an order is the sum of its trainings'. A :class:`~espalier.core.messages.Train` says where a training
    starts, what it is pulled to (``anchor``, ``mu``), what is added to each gradient (``correction``), which parameters
    move (``trains``), how long it is and its ``name``. All of these vectors are references: new ones are made with
    ``view.env.store.combine``, also with negative coefficients and of models that are not computed yet. SCAFFOLD's new
    control variate, for example, needs no look at a number:
    ``combine([(1, c_k), (-1, c), (1 / (K * lr), start), (-1 / (K * lr), trained)])`` with ``K = view.steps(updates)``
    and ``lr = view.lr(order)``.

    Attributes:
        mu: Strength of FedProx's pull towards the received model; 0 is none.
    """

    #: names of the statistics of the device's data that go out with its reports: privacy hides them, or refuses
    reported_statistics: ClassVar[tuple[str, ...]] = ()

    mu: float = 0.0

    def around(self, own: Local) -> Local:
        """Return what is put in the place of a method's own policy: this one, or (a wrapper) this one around it."""
        return self

    def train(self, view: LocalView, order: Order) -> Train:
        """Return the training that an order means (its token is set by the device)."""
        start = next(iter(order.models.values()))
        anchor = order.anchor if order.anchor is not None else (start if self.mu else None)
        return Train(start=start, updates=order.updates, clock=order.clock, anchor=anchor, mu=self.mu, args=order.args)

    def question(self, view: LocalView, order: Order) -> str | None:
        """Return the statistic that the device must know before it trains, if any."""
        return None

    def question_models(self, view: LocalView, order: Order) -> tuple[Ref, ...]:
        """Return the models that :meth:`question` is about: by default those that have come."""
        return tuple(order.models.values())

    def answer(self, view: LocalView, order: Order, values: Mapping[str, Any]) -> Order:
        """Return the order as it stands after :meth:`question` was answered."""
        return order

    def arguments(self, view: LocalView, order: Order) -> dict[str, Any]:
        """Return the arguments with which a statistic that was asked for is computed."""
        return order.args

    def reply(self, view: LocalView, order: Order, values: dict[str, Any]) -> dict[str, Any]:
        """Return what goes out in answer to a survey, given the statistic's values; the place to remember them."""
        return values

    def then(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Train | None:
        """Return the order's next training, given the models of those so far by name; None: there is none."""
        return None

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Look at the trained models, by the trainings' names; return what is reported.

        The place to remember (in the policy's ``State``) what stays at the device: a model of its own, say.
        """
        return Contribution({next(iter(order.models)): next(iter(models.values()))})

    def shares(self, spec: ParamSpec) -> Spans | None:
        """Return which places of a model leave a device at all; None: the whole.

        What is not shared costs no bytes, on any link of the run, and is not sent on a fleet: its place in a model that
        travels holds the initial model's numbers. The policy `espalier.policies.local_policies.Parts` keeps the rest.
        """
        return None

    def shared_bytes(self, spec: ParamSpec) -> int:
        """Return the bytes of a model on a link."""
        return spec.link_bytes(self.shares(spec))

    def model_bytes(self, spec: ParamSpec) -> int:
        """Return the bytes of a model in a report to the node that gave the order."""
        return self.shared_bytes(spec)


@dataclass(slots=True)
class LocalView(Remembering):
    """What a device's local policy may look at; what it remembers outlives the order.

    ``done`` are the updates that the order's trainings have made so far.
    """

    now: float
    me: Address
    memory: Memory
    env: Environment
    done: int = 0

    def steps(self, updates: int) -> int:
        """Return how many mini-batch steps the device makes in so many updates."""
        return updates * self.env.speeds.update_batches(self.me)

    def lr(self, order: Order) -> float:
        """Return the learning rate of the round that an order belongs to."""
        return self.env.training.lr_at(order.clock)

"""What nodes say (messages), what happens to them (events), and what they ask for (actions).

All are frozen plain data: a message in flight, an event in the queue and a node's state can be written
to a checkpoint or a wire as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar, get_args

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.objectives import Calibration as Calibration
from espalier.core.objectives import Objective
from espalier.core.store import Ref

Model = TypeVar("Model")
Other = TypeVar("Other")

#: The group of a model that everybody shares.
ALL = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What a parent hands a child: models, how much work, until when, which objective.

    Attributes:
        id: Its number at the sender, which the report repeats.
        sender: Who gives it.
        to: Who is to do it.
        models: The models to work on, by group.
        updates: The child's updates: local epochs (or steps) at a device, collect-and-merge cycles at an aggregator.
        round: How many rounds the sender had closed.
        clock: The root's round, which decides the learning rate.
        sent: When it was sent.
        budget: The seconds that the parent recommends for the updates.
        anchor: The model that trainings are pulled to, if not the one that they start from.
        ask: The name of a statistic: the order is a question, and no training.
        args: What a method says beside this: plain numbers, names, arrays.
        back: The report goes to the sender, even if the child has another parent by then.
        auxiliary: Vectors of a model's size that go with the models, by name, and are neither served nor evaluated.
    """

    id: int
    sender: Address
    to: Address
    models: dict[str, Ref]
    updates: int
    round: int
    clock: int
    sent: float
    budget: float | None = None
    anchor: Ref | None = None
    ask: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    back: bool = False
    auxiliary: dict[str, Ref] = field(default_factory=dict)

    def supersedes(self, other: Order | None) -> bool:
        """Tell whether it takes the place of the order under way: not if the same sender sent that one later."""
        return other is None or other.sender != self.sender or other.id < self.id


@dataclass(frozen=True, slots=True)
class Part:
    """Some numbers of a model, sent among the statistics of a report in place of the whole model.

    Attributes:
        model: The model.
        spans: Where they lie in its flat vector: (start, stop) pairs.
    """

    model: Ref
    spans: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(stop - start for start, stop in self.spans)


@dataclass(frozen=True, slots=True)
class Report:
    """What a child hands its parent.

    Neither models nor statistics: the child has no device to work with (an empty edge); it will send the word ``awake``
    when it has.

    Attributes:
        order: The number of the order that it answers.
        dispatcher: Who gave that order.
        sender: Who reports.
        to: Who gets it: the sender's parent of now, or who asked.
        models: What was made of the order's models, by group.
        samples: How many samples stand behind each of them.
        updates: How many updates were made.
        round: The order's.
        sent: When it was sent.
        download: Seconds that the order was on its way.
        compute: Seconds of work: a device's trainings and statistics; at an aggregator, from the order to the report.
        stats: Plain numbers, names and arrays for the parent's policies.
        auxiliary: Vectors beside the models (SCAFFOLD's control variate), as in an order.
        loss: The mean training loss, where it is known without computing anything (None: ask
            :meth:`~espalier.core.view.View.loss`).
    """

    order: int
    dispatcher: Address
    sender: Address
    to: Address
    models: dict[str, Ref]
    samples: dict[str, int]
    updates: int
    round: int
    sent: float
    download: float = 0.0
    compute: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)
    auxiliary: dict[str, Ref] = field(default_factory=dict)
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """A control message between nodes: a kind and plain data."""

    kind: str
    sender: Address
    to: Address
    sent: float
    data: dict[str, Any] = field(default_factory=dict)


Message = Order | Report | Word


# -- events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins (sent to the root), or a server is back and has lost its state.

    Then ``models`` are those it served last, which outlive it, ``progress`` the rounds it had closed, and
    ``incarnation`` how often it has died.
    """

    models: dict[str, Ref] = field(default_factory=dict)
    progress: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message arrived."""

    message: Message


@dataclass(frozen=True, slots=True)
class BeginRound:
    """Wake up to begin a round at the root: survey, arrange, open."""


@dataclass(frozen=True, slots=True)
class OpenCohorts:
    """Wake up to open a round of every cohort that rests."""


@dataclass(frozen=True, slots=True)
class OpenChild:
    """Wake up to open the next round of a child that is a cohort of its own."""

    child: Address


@dataclass(frozen=True, slots=True)
class MeetCohorts:
    """Wake up to see whether all cohorts have met: then begin, else open those that may go on."""


@dataclass(frozen=True, slots=True)
class CloseCohort:
    """Wake up when a cohort's round is due."""

    cohort: str
    round: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """Wake up for a purpose of a method's own node, or of the runtime's: a key and a number."""

    key: str
    number: int = 0


Wake = BeginRound | OpenCohorts | OpenChild | MeetCohorts | CloseCohort | Alarm


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline that the node set has come."""

    wake: Wake


@dataclass(frozen=True, slots=True)
class ChildJoined:
    """A child reports to this node from now on."""

    child: Address


@dataclass(frozen=True, slots=True)
class ChildLeft:
    """A child no longer reports to this node (moved, left, or noticed to be dead)."""

    child: Address


@dataclass(frozen=True, slots=True)
class Trained:
    """The training that the node asked for is done."""

    token: int
    model: Ref
    seconds: float
    updates: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The statistic that the node asked for is there."""

    token: int
    values: dict[str, Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Lost:
    """A host that the node watches is gone: it said so, or its silence was noticed."""

    host: int


@dataclass(frozen=True, slots=True)
class Summed:
    """The sums that a cohort's merge waited for (:class:`AwaitSum`) are there, or never will be."""

    cohort: str


Event = Started | Arrived | Deadline | ChildJoined | ChildLeft | Trained | Measured | Lost | Summed


# -- actions -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message."""

    message: Message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalWork(Generic[Model]):
    """What a device is to train: the one description of it, from a node's action to the trainer.

    Models are references while a training is only ordered, and flat vectors where it is computed.

    Attributes:
        start: The model it starts from.
        updates: Local epochs, or mini-batch steps (the run's ``training.unit`` says which).
        clock: The root's round: it decides the learning rate.
        anchor: The model that it is pulled to: the loss gains ``mu/2 * ||w - anchor||^2``.
        mu: Strength of that pull.
        correction: A vector that is added to the gradient of every step (its numbers of parameters count).
        trains: Patterns of the names of the parameters that move (``"fc.*"``); empty: all do.
        calibration: What the loss knows of the device's labels, if anything.
        objective: What else is learnt, with a look at another model (``beside``); None: the loss alone.
        beside: That model: a device's last one, the shared one, prototypes.
        optimizer_state: The optimiser state to carry on from; by reference, that of the training which made this model.
        keep_optimizer_state: Keep the optimiser's state for a training that carries on from this one.
        args: What the method's order said beside this.
    """

    start: Model
    updates: int = 1
    clock: int = 0
    anchor: Model | None = None
    mu: float = 0.0
    correction: Model | None = None
    trains: tuple[str, ...] = ()
    calibration: Calibration | None = None
    objective: Objective | None = None
    beside: Model | None = None
    optimizer_state: Model | None = None
    keep_optimizer_state: bool = False
    args: dict[str, Any] = field(default_factory=dict)

    def resolved(
        self, vector: Callable[[Model], Other], optimizer_state: Callable[[Model], Other | None]
    ) -> LocalWork[Other]:
        """Return it with models, and the optimiser state, looked up."""
        found: dict[str, Any] = {name: vector(ref) for name, ref in self.models.items()}
        if self.optimizer_state is not None:
            found["optimizer_state"] = optimizer_state(self.optimizer_state)
        return LocalWork(**{**self.fields(), **found})

    @property
    def models(self) -> dict[str, Model]:
        """The models that it needs, by field."""
        found = {"start": self.start, "anchor": self.anchor, "correction": self.correction, "beside": self.beside}
        return {name: model for name, model in found.items() if model is not None}

    def fields(self) -> dict[str, Any]:
        """Return the description by field, without what a subclass adds."""
        return {name: getattr(self, name) for name in _WORK_FIELDS}


_WORK_FIELDS = tuple(f.name for f in fields(LocalWork))


@dataclass(frozen=True, slots=True, kw_only=True)
class Train(LocalWork[Ref]):
    """Train on the device's own data. ``token`` comes back in :class:`Trained`.

    ``name`` tells the trainings of one order apart; those that follow the first have random streams of their own, so
    that the first sees the same batches whether others follow or not. ``again``: it sees the first one's batches.
    """

    token: int = 0
    name: str = ""
    follows: bool = False
    again: bool = False

    @property
    def inputs(self) -> list[int]:
        """Names of the models that must be there first."""
        refs = (self.start, self.anchor, self.correction, self.beside, self.optimizer_state)
        return [int(ref) for ref in refs if ref is not None]


@dataclass(frozen=True, slots=True)
class Measure:
    """Compute a statistic of the device's own data. ``token`` comes back in :class:`Measured`."""

    token: int
    what: str
    models: tuple[Ref, ...]
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """Ask for a :class:`Deadline` after some seconds."""

    seconds: float
    wake: Wake


@dataclass(frozen=True, slots=True)
class Serve:
    """These models are in use at this node from now on."""

    models: dict[str, Ref]


@dataclass(frozen=True, slots=True)
class Closed:
    """A round of this node is over; ``progress`` counts whole rounds of all its cohorts."""

    progress: int


@dataclass(frozen=True, slots=True)
class Arrange:
    """Change the tree and the groups: new parents (None: leaves the tree) and new groups."""

    parents: Mapping[Address, Address | None]
    groups: Mapping[Address, str]
    root: Address | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Write something into the run's record: a kind and plain data."""

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AwaitSum:
    """Sum up models that came masked, per group and child; :class:`Summed` says when, and nothing happens till then."""

    cohort: str
    groups: dict[str, dict[Address, Ref]]


Action = Send | Train | Measure | SetDeadline | Serve | Closed | Arrange | Record | AwaitSum

for _kind in (
    Order, Report, Part, Word, Started, Arrived, Deadline, ChildJoined, ChildLeft, Trained, Measured, Lost, Summed,
    Train, *get_args(Wake),
):  # fmt: skip
    register(_kind)

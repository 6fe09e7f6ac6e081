"""A method: a named bundle of policies, with its hyper-parameters as typed fields.

    @dataclass(frozen=True)
    class HierFAVG(SampledMethod, kind="hierfavg"):
        '''Citation, the algorithm in a few lines, where we read the paper differently.'''
        kappa2: int = 1

        def plan(self, setting):
            return Plan(root=Rules(pace=Pace(self.kappa2)), edge=Rules(pace=Pace(setting.updates)))

Subclassing registers it: the command line, the comparison, the report and the conformance suite know it
from then on. Other packages announce theirs through the entry-point group ``espalier.methods``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from espalier.core.address import Address
from espalier.core.aggregator import Aggregator
from espalier.core.bounds import PositiveInt, Share
from espalier.core.device import Device
from espalier.core.environment import Environment
from espalier.core.errors import ConfigError, nearest, raised
from espalier.core.guard import Guard
from espalier.core.learning import TrainingFacts
from espalier.core.memory import Policy, check_products
from espalier.core.messages import Action, Event
from espalier.core.policies import HandDown, Local, Merge, Pace, Rules, Selection, Structure
from espalier.core.serving import Serving
from espalier.core.spec import Spec


class Node(Protocol):
    """A state machine with no clock, no socket, no thread."""

    me: Address
    state: Any

    @property
    def idle(self) -> bool:
        """Whether the node may be forgotten until the next event."""
        ...

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A node that wants an event (:class:`~espalier.core.messages.Lost`) when certain hosts are gone."""

    def watches(self, host: int) -> bool:
        """Tell whether it matters to the node that a host is gone."""
        ...


#: who may say a word to a node: nodes of its own host only, the coordinator, or any device
Speaker = Literal["own", "coordinator", "device"]


@runtime_checkable
class Listener(Protocol):
    """A node that takes words of its method's own; on a fleet, others' words to it are refused."""

    @property
    def hears(self) -> Mapping[str, Speaker]:
        """The kinds of words that it takes, and who may say them."""
        ...


@dataclass(frozen=True)
class Setting:
    """What a method knows of the experiment when it makes its plan.

    Attributes:
        n_devices: Devices in the fleet.
        n_edges: Edge servers.
        n_classes: Classes of the task.
        updates: Local updates (epochs or steps) per order that the experiment asks for.
        fraction: The share of an edge's devices (for flat methods: of all devices) in each round.
        stay: The mobility's staying probability (1 without mobility, 0 where devices follow a trace).
        message_seconds: What a control message may take beyond the links' own time: 0 where time is simulated.
        training: How devices train: optimiser, learning rate and its schedule, batch size, unit. At run time policies
            find the same in ``view.env.training``, and a device's own steps in ``LocalView.steps``.
        classifies: Whether the task is to name a sample's class, so that devices have label priors.
    """

    n_devices: int
    n_edges: int
    n_classes: int
    updates: int = 1
    fraction: float = 1.0
    stay: float = 1.0
    message_seconds: float = 0.0
    training: TrainingFacts = field(default_factory=TrainingFacts)
    classifies: bool = True


Level = Literal["root", "edge", "device"]
#: what a method is about, by which lists are ordered
Category = Literal["global", "personal", "clustered", "asynchronous", "hierarchical", "selection"]


@dataclass(frozen=True)
class Plan:
    """The policies of every node.

    Attributes:
        root: Of the root.
        edge: Of every aggregator over devices.
        middle: Of every server between the edges and the root, if the tree is that deep.
        local: Of every device.
        child: The pace by which a device decides whether it has done enough.
        serves: Whose model the method means a device to use: the root's, its edge's, or its own.
        serve: How a device uses the models it has.
        clock: Whose rounds count as the run's rounds (the slowest of them).
        starts: Who is sent `Started` when the run begins: the root, or every device.
        node: Makes a method's own node for an address, or None for the usual one.
        aggregator: The class of the usual aggregator.
        device: The class of the usual device.
    """

    root: Rules = field(default_factory=Rules)
    edge: Rules = field(default_factory=Rules)
    middle: Rules = field(default_factory=Rules)
    local: Local = field(default_factory=Local)
    child: Pace = field(default_factory=Pace)
    serves: Level = "root"
    serve: Serving = field(default_factory=Serving)
    clock: Level = "root"
    starts: Literal["root", "device"] = "root"
    node: Callable[[Address, Environment], Node | None] | None = None
    aggregator: Callable[[Address, Rules, Environment], Node] = Aggregator
    device: Callable[[Address, Local, Pace, Environment], Node] = Device


@dataclass(frozen=True)
class Method(Spec, family="method"):
    """The base of every method."""

    #: how tables and pictures name it
    title: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    #: what it is about: one model for all, unless it says otherwise
    category: ClassVar[Category] = "global"
    #: empty, or what of it is reconstructed because the original text leaves it open
    reconstruction: ClassVar[str] = ""
    #: what not every experiment has and it refuses to do without, in a few words
    needs: ClassVar[str] = ""

    def demand(self, met: bool, what: str, given: str) -> None:
        """Refuse an experiment without something that the method ``needs``, in a sentence that says what is given."""
        if not met:
            raise ConfigError(f"method {self.kind!r} needs {what}; {given}.")

    def merge(self) -> Merge:
        """Return how the root merges, where that is all that a method changes."""
        return Merge()

    def plan(self, setting: Setting) -> Plan:
        """Return the policies for a fleet; by default two barriers, as HierFAVG's, with :meth:`merge` at the root."""
        return Plan(
            root=Rules(merge=self.merge()),
            edge=Rules(selection=Selection(setting.fraction), pace=Pace(setting.updates)),
        )


@dataclass(frozen=True)
class SampledMethod(Method):
    """The base of methods in whose rounds a share of the devices is drawn.

    Attributes:
        fraction: The share; by default the experiment's.
    """

    fraction: Share | None = field(default=None, kw_only=True)

    def share(self, setting: Setting) -> float:
        """Return the share of the devices in each round of an experiment."""
        return setting.fraction if self.fraction is None else self.fraction


@dataclass(frozen=True)
class TwoBarriers(SampledMethod):
    """The base of methods with HierFAVG's barriers: an edge's over a share of its devices, the cloud's over the edges.

    Attributes:
        kappa2: Edge rounds per cloud round.
    """

    #: whose model a device is meant to use
    serves: ClassVar[Level] = "root"

    kappa2: PositiveInt = field(default=1, kw_only=True)

    def local(self, setting: Setting) -> Local:
        """Return how devices train: by default plainly."""
        return Local()

    def rules(self) -> Rules:
        """Return what the aggregators of all levels do besides waiting: by default, average."""
        return Rules()

    def plan(self, setting: Setting) -> Plan:
        """Return the barriers with :meth:`rules` and :meth:`local`."""
        rules = self.rules()
        return Plan(
            root=replace(rules, pace=Pace(self.kappa2)),
            middle=rules,
            edge=replace(rules, selection=Selection(self.share(setting)), pace=Pace(setting.updates)),
            local=self.local(setting),
            serves=self.serves,
        )


@dataclass(frozen=True)
class PersonalModels(TwoBarriers):
    """The base of those after whose barriers a device uses a model of its own."""

    category: ClassVar[Category] = "personal"
    serves: ClassVar[Level] = "device"


#: what a method's table may replace
PARTS = ("root", "edge", "middle", "local", "serve")

_POLICIES: dict[str, type[Policy]] = {
    "selection": Selection,
    "pace": Pace,
    "merge": Merge,
    "hand_down": HandDown,
    "structure": Structure,
    "guard": Guard,
}


def override(plan: Plan, changes: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Replace policies of a plan by name: ``{"edge": {"merge": {"kind": "median"}}, "local": {…}}``.

    Raises:
        ConfigError: An unknown policy, or one that needs what no other policy of its node provides.
    """
    for part, table in changes.items():
        if part == "local":
            local = Local.build(table, "local")
            plan = replace(plan, local=local.around(plan.local))
            continue
        if part == "serve":
            plan = _serving(plan, Serving.build(table, "serve"))
            continue
        if part not in ("root", "edge", "middle"):
            raise ConfigError(f"{part}: unknown part of a method; accepted: {', '.join(PARTS)}.")
        rules: Rules = getattr(plan, part)
        for name, value in table.items():
            if name not in _POLICIES:
                raise ConfigError(f"{part}.{name}: unknown policy; accepted: {', '.join(_POLICIES)}.")
            policy: Any = _POLICIES[name].build(value, f"{part}.{name}")
            if isinstance(policy, Merge):
                policy = policy.around(rules.merge)
            rules = replace(rules, **{name: policy})
        changed: dict[str, Any] = {part: rules}
        plan = replace(plan, **changed)
    _check(plan)
    return plan


def _serving(plan: Plan, serve: Serving) -> Plan:
    """Return a plan with another way of serving; whose models the edges are judged by follows from it."""
    levels: dict[str, Level] = {"global": "root", "cluster": "root", "edge": "edge"}
    return replace(plan, serve=serve, serves=levels.get(serve.model, plan.serves))


def _check(plan: Plan) -> None:
    """Refuse a node whose policies need what none of them provides."""
    for part in ("root", "edge", "middle"):
        rules = getattr(plan, part)
        check_products(part, {name: getattr(rules, name) for name in _POLICIES})
    check_products("device", {"local": plan.local, "pace": plan.child})


@cache
def load_methods() -> tuple[Any, ...]:
    """Import what packages announce: this one its bundled methods, policies and partitions, others theirs."""
    found = []
    for point in entry_points(group="espalier.methods"):
        try:
            found.append(point.load())
        except Exception as error:  # whatever another package's code raises
            who = point.dist.name if point.dist else point.module
            raise ConfigError(
                f"The package {who}, which announces methods ({point.name} = {point.value}), cannot be imported: "
                f"{raised(error)}."
            ) from error
    return tuple(found)


def available() -> dict[str, type[Method]]:
    """Return every registered method by name."""
    load_methods()
    return {name: cls for name, cls in sorted(Method.kinds.items()) if issubclass(cls, Method)}


def make(name: str, **options: Any) -> Method:
    """Make a method by name with its options."""
    if name not in (known := available()):
        own = "your own: --plugin FILE"
        raise ConfigError(f"There is no method {name!r}; see `espalier methods` ({own}).{nearest(name, known)}")
    return Method.build({"kind": name, **options}, f"method {name!r}")

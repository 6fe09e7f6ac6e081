"""The manifest: what a fleet does. The cloud writes it, every node gets it with its parent's welcome.

It names methods, policies and models; it carries no code. A user's own (``package.module:name`` of a model, a loss, an
optimiser, a schedule) is imported on a node only if that node's operator allowed it by name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from espalier.core.code import is_own
from espalier.core.errors import ConfigError, ProtocolError
from espalier.core.guard import Guard
from espalier.core.method import Plan, Setting
from espalier.core.params import Entry, ParamSpec, first_names, numel
from espalier.core.policies import Structure
from espalier.experiment import Experiment
from espalier.fleet.links.encoding import Compress
from espalier.fleet.links.limits import Limits
from espalier.policies.local_policies import Quantised
from espalier.policies.secure_sum import SecureMerge

#: what a control message may take in a fleet: servers relay it, busy processes handle it
MESSAGE_SECONDS = 0.5
#: seconds that a round waits for its slowest child, at least
ROUND_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Card:
    """The task as a node must know it: the model's name and shape, and what its data must look like.

    ``entries`` are the tensors in the order of the flat vector, ``order`` their names in that of the state dict.
    """

    model: str
    options: dict[str, Any]
    input_shape: tuple[int, ...]
    n_classes: int
    n_cells: int
    kind: str
    loss: str | None
    entries: tuple[tuple[str, tuple[int, ...], str], ...]
    n_params: int
    order: tuple[str, ...] = ()

    @property
    def spec(self) -> ParamSpec:
        """Names and places of the model's tensors."""
        entries, at = [], 0
        for name, shape, dtype in self.entries:
            stop = at + numel(shape)
            entries.append(Entry(name, shape, at, stop, dtype))
            at = stop
        floats = sum(e.stop - e.start for e in entries if e.dtype.startswith(("float", "bfloat")))
        return ParamSpec(tuple(entries), self.n_params, floats, at)


@dataclass(frozen=True)
class Script:
    """Times that a fleet pretends to, so that it can be compared with its simulation.

    What happens to a node happens at its scripted time: a message arrives when its way is over, a training is done when
    its batches are, a deadline strikes when it says, and a node that is given something late is told the scripted time.
    So the time that this machine needs for handling does not count, as long as it is shorter than a message's way.

    Attributes:
        batch: Seconds of a mini-batch on every device.
        hop: Seconds of any message over one link: between devices, a device and its edge, an edge and the cloud.
        slowdown: Real seconds per second of the fleet's time.
    """

    batch: float
    hop: float
    slowdown: float = 1.0


@dataclass(frozen=True)
class Manifest:
    """Everything that a node is told.

    Attributes:
        run: The run's name; a node with another run's state forgets it.
        experiment: Of one method and one seed.
        card: The task.
        limits: Of every node.
        patience: Seconds that a parent waits for a lost child before it counts as gone.
        compress: How models travel.
        script: Times that devices report instead of what they measure (None: they measure).
        round_deadline: Seconds that a round waits for its slowest child, at least (None: for ever).
        standing: Whether nodes wait for another run when this one is over; else they end.
    """

    run: str
    experiment: Experiment
    card: Card
    limits: Limits = field(default_factory=Limits)
    patience: float = 10.0
    compress: Compress = "none"
    script: Script | None = None
    round_deadline: float | None = ROUND_DEADLINE_SECONDS
    standing: bool = False

    @property
    def cloud(self) -> int:
        """The cloud's address: after the devices, the edges and the servers between."""
        fleet = self.experiment.fleet
        return fleet.devices + fleet.edges + sum(fleet.tiers)

    def role_of(self, host: int) -> str:
        """Return what a host of that number is."""
        return "device" if host < self.experiment.fleet.devices else "cloud" if host == self.cloud else "edge"

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.experiment.seeds[0]

    @property
    def slowdown(self) -> float:
        """Real seconds per second of the fleet's time."""
        return 1.0 if self.script is None else self.script.slowdown

    @property
    def bounds(self) -> Limits:
        """The limits, with what follows from the model's size."""
        return self.limits.fitted(self.card.spec.size)

    @property
    def code(self) -> dict[str, str]:
        """Import paths of the user's own code that a training calls, and the keys that name them."""
        training = self.experiment.training
        named = [("task.model", self.card.model), ("task.loss", self.card.loss or "")]
        named += [("training.schedule", path) for path in training.schedule.code]
        named.append(("training.optimizer", training.optimizer))
        return {path: key for key, path in named if ":" in path}

    def plan(self) -> Plan:
        """Return the policies of every node."""
        seconds = MESSAGE_SECONDS if self.script is None else 0.0
        return plan_of(self.experiment, self.card.n_classes, self.compress, seconds)

    def to_bytes(self) -> bytes:
        """Write it down."""
        card = {name: getattr(self.card, name) for name in Card.__dataclass_fields__}
        table = {
            "run": self.run,
            "experiment": self.experiment.to_plain(),
            "card": card,
            "limits": self.limits.to_plain(),
            "patience": self.patience,
            "compress": self.compress,
            "script": None if self.script is None else asdict(self.script),
            "round_deadline": self.round_deadline,
            "standing": self.standing,
        }
        return json.dumps(table, sort_keys=True).encode()

    @staticmethod
    def of_bytes(data: bytes) -> Manifest:
        """Read it.

        Raises:
            ProtocolError: It is damaged, or names a method that this node does not have.
        """
        try:
            table = json.loads(data)
            card = dict(table["card"])
            card["input_shape"] = tuple(card["input_shape"])
            card["entries"] = tuple((n, tuple(s), d) for n, s, d in card["entries"])
            card["order"] = tuple(card["order"])
            return Manifest(
                str(table["run"]), Experiment.build(table["experiment"]), Card(**card),
                Limits.build(table["limits"]), float(table["patience"]), table["compress"],
                None if table["script"] is None else Script(**table["script"]), table["round_deadline"],
                bool(table.get("standing", False)),
            )  # fmt: skip
        except ConfigError as error:
            raise ProtocolError(f"The fleet's manifest cannot be followed here: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"The fleet's manifest cannot be read: {type(error).__name__}: {error}.") from error


def card_of(experiment: Experiment, input_shape: tuple[int, ...], n_classes: int, **known: Any) -> Card:
    """Describe an experiment's task: ``known`` are vocabulary, n_cells and kind."""
    from espalier.training.models import build

    options = dict(experiment.task.model_options)
    if known.get("vocabulary") is not None:
        options.setdefault("vocabulary", known["vocabulary"])
    # nobody needs its numbers here: one that is too large for any machine is still described
    with torch.device("cpu" if is_own(experiment.task.model) else "meta"):
        module = build(experiment.task.model, input_shape=input_shape, n_classes=n_classes, **options)
    spec = ParamSpec.of(module)
    return Card(
        experiment.task.model, options, tuple(input_shape), n_classes, int(known.get("n_cells") or n_classes),
        str(known.get("kind") or "classification"), experiment.task.loss,
        tuple((e.name, e.shape, e.dtype) for e in spec.entries), spec.n_params,
        tuple(first_names(module).values()),
    )  # fmt: skip


def rounds_reports(experiment: Experiment, n_classes: int) -> bool:
    """Tell whether an experiment asks for 8-bit reports (``local = { kind = "q8" }``)."""
    return isinstance(_whole_plan(experiment, n_classes).local, Quantised)


def plan_of(
    experiment: Experiment, n_classes: int, compress: Compress = "none", message_seconds: float = MESSAGE_SECONDS
) -> Plan:
    """Return the policies of an experiment's (only) method; 8-bit reports are left to whoever sends them."""
    plan = _whole_plan(experiment, n_classes, message_seconds)
    _can_be_hidden(plan, compress)
    if plan.serve.model == "mixture":
        raise ConfigError("serve.model = 'mixture': a fleet's devices hold one model each. Choose another model.")
    local = plan.local
    return replace(plan, local=local.inner) if isinstance(local, Quantised) else plan


def _can_be_hidden(plan: Plan, compress: Compress) -> None:
    """Refuse what would have to look at single models that a secure merge hides, or could not be in its sums."""
    tiers = {"root": plan.root, "edge": plan.edge, "middle": plan.middle}
    secure = {name: rules for name, rules in tiers.items() if isinstance(rules.merge, SecureMerge)}
    if not secure:
        return
    for name, rules in secure.items():
        guard, pace, structure = rules.guard, rules.pace, plan.root.structure
        wrong = {
            f"{name}.guard.kind = {guard.kind!r} looks at single models": type(guard).sift is not Guard.sift,
            f"{name}.pace.late = 'keep': a late model is in no sum": pace.late == "keep",
            f"{name}.pace.late = 'renew': who comes late is in no sum": pace.late == "renew",
            f"{name}.pace.admits = true: who comes late is in no sum": pace.admits,
            f"structure.kind = {structure.kind!r} looks at single models": (
                name == "root" and type(structure).learn is not Structure.learn
            ),
        }
        for why, holds in wrong.items():
            if holds:
                raise ConfigError(f"{name}.merge.kind = 'secure': {why}. Change one of the two.")
    name = next(iter(secure))
    if plan.root.structure.peers or plan.node is not None:
        raise ConfigError(
            f"{name}.merge.kind = 'secure': the devices of this method send each other single models. Use another "
            "merge, or a method whose devices report to servers."
        )
    if isinstance(plan.local, Quantised) or compress == "q8":
        raise ConfigError(
            f"{name}.merge.kind = 'secure': 8-bit differences (q8) cannot be masked. Use one of the two, or zstd."
        )


def _whole_plan(experiment: Experiment, n_classes: int, message_seconds: float = MESSAGE_SECONDS) -> Plan:
    fleet, mobility = experiment.fleet, experiment.world.mobility
    setting = Setting(
        fleet.devices, fleet.edges, n_classes, experiment.training.updates, fleet.fraction,
        mobility.staying, message_seconds, experiment.training,
    )  # fmt: skip
    return experiment.methods[0].plan(setting)

"""A world: everything a method cannot choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, Self, get_type_hints

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import Seconds
from espalier.core.coerce import coerce
from espalier.core.errors import ConfigError, nearest
from espalier.core.method import load_methods
from espalier.core.spec import Spec
from espalier.world.attackers import Attackers
from espalier.world.capability import Capability, Everyone
from espalier.world.churn import BoundChurn, Churn, NoChurn
from espalier.world.compute import BoundCompute, Compute, Constant, Noise, TruncatedNormal
from espalier.world.drift import BoundDrift, Drift, NoDrift
from espalier.world.faults import BoundFaults, Faults, NoFaults
from espalier.world.links import BoundLinks, Links, PerTier, TierLink, Uniform
from espalier.world.mobility import BoundMobility, Markov, Mobility, Static
from espalier.world.shape import Shape

_P = ParamSpec("_P")


@dataclass(frozen=True)
class World(Spec, family="world"):
    """The parts of a world. Each part that is not given is ideal: no delay, nobody moves, leaves or drifts.

    An experiment without a world has the preset ``everyday``, and a table that gives neither ``compute`` nor ``links``
    has its speeds and links; ``preset = "ideal"`` costs no time.

    A table may begin with a preset and change parts of it::

        [world]
        preset = "csahfl"                          # or {name = "csahfl", stay = 0.5}
        churn = {kind = "two_state", silent = 0.1}

    Attributes:
        compute: How long devices train: ``espalier config compute``.
        links: How long messages take, and who can talk to whom: ``espalier config links``.
        mobility: Which edge a device is at, and when it moves: ``espalier config mobility``.
        churn: Who leaves, dies and comes back: ``espalier config churn``.
        drift: How devices' data change: ``espalier config drift``.
        capability: Which devices may aggregate for others: ``espalier config capability``.
        faults: Messages that are lost or damaged, links that are gone: ``espalier config faults``.
        attackers: Devices that send what they should not: ``espalier config attackers``.
        notice: Seconds after which the others notice that a host is silently gone.
    """

    compute: Compute = field(default_factory=Constant)
    links: Links = field(default_factory=Uniform)
    mobility: Mobility = field(default_factory=Static)
    churn: Churn = field(default_factory=NoChurn)
    drift: Drift = field(default_factory=NoDrift)
    capability: Capability = field(default_factory=Everyone)
    faults: Faults = field(default_factory=NoFaults)
    attackers: Attackers = field(default_factory=Attackers)
    notice: Seconds = 10.0

    @classmethod
    def build(cls, value: object, where: str = "") -> Self:
        """Build a world from a table of its parts, or from a preset's name."""
        value = {"preset": value} if isinstance(value, str) else value
        if isinstance(value, Mapping) and not {"preset", "compute", "links"} & value.keys():
            value = {"preset": "everyday", **value}
        if isinstance(value, Mapping) and "preset" in value:
            parts = {name: part for name, part in value.items() if name != "preset"}
            value = {**preset(value["preset"]).to_plain(), **parts}
        return super().build(value, where)

    def bind(self, shape: Shape) -> BoundWorld:
        """Return this world for one fleet under one seed: the same for every method."""
        return BoundWorld(
            shape=shape,
            compute=self.compute.bind(shape),
            links=self.links.bind(shape),
            mobility=self.mobility.bind(shape),
            churn=self.churn.bind(shape),
            drift=self.drift.bind(shape),
            may_aggregate=self.capability.mask(shape),
            faults=self.faults.bind(shape),
            attack=self.attackers,
            hostile=self.attackers.hostile(shape),
            notice=self.notice,
        )


@dataclass(frozen=True, eq=False)
class BoundWorld:
    """A world for one fleet under one seed.

    Its parts are pure functions of the seed and the address asked for: they keep no state that a checkpoint would have
    to keep, and answer in any order.

    Attributes:
        may_aggregate: Which devices can head others, [N].
        attack: What hostile devices do.
        hostile: Which devices those are, [N].
        notice: Seconds until a silent failure is noticed.
    """

    shape: Shape
    compute: BoundCompute
    links: BoundLinks
    mobility: BoundMobility
    churn: BoundChurn
    drift: BoundDrift
    may_aggregate: NDArray[np.bool_]
    faults: BoundFaults
    attack: Attackers
    hostile: NDArray[np.bool_]
    notice: float

    @property
    def changes_in_time(self) -> bool:
        """Whether anything happens at a time of its own: hosts come and go, devices move, data drift."""
        return not self.churn.still or self.mobility.when == "time" or self.drift.clock == "time"


#: worlds by name; each can be made without arguments
PRESETS: dict[str, Callable[..., World]] = {"ideal": World}


def register_preset(name: str) -> Callable[[Callable[_P, World]], Callable[_P, World]]:
    """Make a function that returns a world known by a name: ``preset = "name"``, with its arguments as options."""

    def register(build: Callable[_P, World]) -> Callable[_P, World]:
        if name in PRESETS:
            raise ConfigError(f"There is a world preset {name!r} already.")
        PRESETS[name] = build
        return build

    return register


def preset(value: object) -> World:
    """Return a preset by its name, or by a table of its ``name`` and its arguments.

    Raises:
        ConfigError: There is no such preset or argument, or the argument has a wrong value.
    """
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = options.pop("name", None)
    load_methods()
    if not isinstance(name, str) or name not in PRESETS:
        known = ", ".join(PRESETS)
        raise ConfigError(f"world.preset = {name!r}: unknown; known: {known}.{nearest(str(name), PRESETS)}")
    hints = {} if name == "ideal" else get_type_hints(PRESETS[name])
    hints.pop("return", None)
    for key in options:
        if key not in hints:
            accepted = ", ".join(hints) or "none besides name"
            raise ConfigError(
                f"world.preset.{key}: unknown key for {name!r}; accepted: {accepted}.{nearest(str(key), hints)}"
            )
    checked = {key: coerce(v, hints[key], f"world.preset.{key}") for key, v in options.items()}
    return PRESETS[name](**checked)


@register_preset("everyday")
def everyday() -> World:
    """What an experiment has that names no world: phones of mixed speed behind edges that share a link to the cloud.

    A mini-batch takes a device 20 to 400 ms, whatever the model. Devices have 4 to 40 Mbit/s down and half of that up,
    and reach each other directly; an edge has 100 Mbit/s to the cloud, shared by its devices where they pass it.
    """
    return World(
        compute=TruncatedNormal(mean=0.1, std=0.08, low=0.02, high=0.4),
        links=PerTier(
            TierLink((0.5e6, 5e6), latency=(0.01, 0.05), up=0.5),
            TierLink(12.5e6, latency=0.04),
            TierLink((1e6, 10e6), latency=0.005),
            shared_backhaul=True,
        ),
    )


@register_preset("demo")
def demo() -> World:
    """The demonstration: some slow devices, links of mixed quality, one device in five on the move."""
    delay = TruncatedNormal(mean=0.1, std=0.08, low=0.02, high=0.4)
    return World(
        compute=Noise(delay, 0.2),
        links=PerTier(
            TierLink((0.5e6, 5e6), latency=(0.01, 0.05), up=0.5),
            TierLink(50e6, latency=0.04),
            TierLink((1e6, 10e6), latency=0.005),
        ),
        mobility=Markov(stay=0.8),
    )

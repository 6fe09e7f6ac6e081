"""The world: what a method cannot choose. Compute, links, mobility, churn, drift, capability, faults.

Config objects describe a world (``World(compute=…, links=…)`` or a TOML table); ``World.bind(shape)`` makes
it answer for one fleet and one seed. Every draw is a pure function of the seed and its address (`draws`). Begin at
`world`; each part is a family of its own, in the module or the package of its name. May import `core` alone.
"""

from espalier.world.capability import Capability
from espalier.world.churn import BoundChurn, Churn
from espalier.world.churn.base import Transitions
from espalier.world.compute import BoundCompute, Compute
from espalier.world.drift import ORDINARY, BoundDrift, Concept, Drift
from espalier.world.faults import BoundFaults, Fate, Faults
from espalier.world.links import BoundLinks, Links, Uplink
from espalier.world.mobility import BoundMobility, Mobility, Moves
from espalier.world.shape import Hop, Shape, Tier
from espalier.world.world import BoundWorld, World, demo, everyday, register_preset

__all__ = [
    "ORDINARY",
    "BoundChurn",
    "BoundCompute",
    "BoundDrift",
    "BoundFaults",
    "BoundLinks",
    "BoundMobility",
    "BoundWorld",
    "Capability",
    "Churn",
    "Compute",
    "Concept",
    "Drift",
    "Fate",
    "Faults",
    "Hop",
    "Links",
    "Mobility",
    "Moves",
    "Shape",
    "Tier",
    "Transitions",
    "Uplink",
    "World",
    "demo",
    "everyday",
    "register_preset",
]

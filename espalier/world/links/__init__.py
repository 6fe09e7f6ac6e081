"""How long messages take, and which way they go."""

from espalier.world.links.base import BoundLinks, Links, Signal, Uplink
from espalier.world.links.graph import BoundGraph, Graph, MeasuredGraph, RandomGraph
from espalier.world.links.pairs import Pairs
from espalier.world.links.shared import Shared
from espalier.world.links.tiers import PerTier, TierLink, Trace, Uniform

__all__ = [
    "BoundGraph",
    "BoundLinks",
    "Graph",
    "Links",
    "MeasuredGraph",
    "Pairs",
    "PerTier",
    "RandomGraph",
    "Shared",
    "Signal",
    "TierLink",
    "Trace",
    "Uniform",
    "Uplink",
]

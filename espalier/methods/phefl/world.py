"""The world that PHE-FL describes, as the preset ``phefl``."""

from __future__ import annotations

from espalier.world.compute import Constant
from espalier.world.links import PerTier, TierLink
from espalier.world.world import World, register_preset


@register_preset("phefl")
def paper_world() -> World:
    """PHE-FL §IV: rounds are what counts; equal devices and equal links give them a time axis.

    The paper has no clock. 10 ms per batch, 10 MB/s to the edge and 100 MB/s to the cloud are ours.
    """
    return World(compute=Constant(0.01), links=PerTier(TierLink(10e6), TierLink(100e6)))

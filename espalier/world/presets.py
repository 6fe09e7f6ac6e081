"""The world of the demonstration. The papers' worlds lie beside their methods (``methods/*/world.py``)."""

from __future__ import annotations

from espalier.world.compute import Noise, TruncatedNormal
from espalier.world.links import PerTier, TierLink
from espalier.world.mobility import Markov
from espalier.world.world import World, register_preset


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

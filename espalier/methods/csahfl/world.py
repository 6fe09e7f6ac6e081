"""The world that CSAHFL describes, as the preset ``csahfl``."""

from __future__ import annotations

from espalier.world.compute import Noise, TruncatedNormal
from espalier.world.links import PerTier, TierLink
from espalier.world.mobility import Markov, Static
from espalier.world.world import World, register_preset


@register_preset("csahfl")
def paper_world(stay: float = 1.0, noise: float = 0.0, epochs: int = 10) -> World:
    """CSAHFL §4.1: slow and fast clients, static (``stay`` = 1) or mobile (0.5).

    Delays N(63, 40) cut to [2, 128] s for a training of E_max = 10 epochs, drawn once per client and resampled (C8).
    Run-time noise is off, as the paper has none; at its alpha nobody is ever late then (C7). Mobility over the ring
    of edges (§0). The bandwidth B_w is not given; 10 MB/s and 100 MB/s leave communication small beside the delays, as
    the published times have it (1780 s ≈ 15 rounds of the slowest).

    Args:
        stay: Probability p_s of staying at the edge.
        noise: Standard deviation of the logarithm of the run-time noise.
        epochs: Epochs that the delay covers, E_max.
    """
    delay = TruncatedNormal(mean=63.0, std=40.0, low=2.0, high=128.0, per="training", epochs=epochs)
    return World(
        compute=Noise(delay, noise) if noise else delay,
        links=PerTier(TierLink(10e6), TierLink(100e6)),
        mobility=Static() if stay == 1.0 else Markov(stay=stay),
    )

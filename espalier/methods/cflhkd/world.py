"""The world that CFLHKD describes, as the preset ``cflhkd``."""

from __future__ import annotations

from typing import Literal

from espalier.core.errors import ConfigError, nearest
from espalier.world.compute import Uniform
from espalier.world.drift import Drift, Gradual, LabelSwitch, NoDrift
from espalier.world.links import PerTier, TierLink
from espalier.world.world import World, register_preset


@register_preset("cflhkd")
def paper_world(drift: Literal["none", "labels", "features"] = "none") -> World:
    """CFLHKD §5 and A.1: static, labels that switch at round 50 (K21), or features that drift.

    ``labels``: digits 0 to 4, then 5 to 9. ``features``: Cityscapes' day to night as brightness falling
    by .5 between rounds 50 and 100. Compute and links are not given; devices within a factor of 4 of
    each other, 1 to 10 MB/s to the edge and 100 MB/s to the cloud are ours.
    """
    drifts: dict[str, Drift] = {
        "none": NoDrift(),
        "labels": LabelSwitch(at_round=50),
        "features": Gradual("brightness", start=50, end=100, amount=-0.5),
    }
    if drift not in drifts:
        raise ConfigError(f"drift = {drift!r}: must be one of {', '.join(drifts)}.{nearest(drift, drifts)}")
    return World(
        compute=Uniform(0.01, 0.04),
        links=PerTier(TierLink((1e6, 10e6), latency=0.02), TierLink(100e6, latency=0.05)),
        drift=drifts[drift],
    )

"""How fast devices train."""

from espalier.world.compute.base import Compute
from espalier.world.compute.drawn import Constant, Rate, TruncatedNormal, Uniform
from espalier.world.compute.modifiers import Busy, Fluctuating, Noise, Redrawn, Throttled
from espalier.world.compute.trace import Trace

__all__ = [
    "Busy",
    "Compute",
    "Constant",
    "Fluctuating",
    "Noise",
    "Rate",
    "Redrawn",
    "Throttled",
    "Trace",
    "TruncatedNormal",
    "Uniform",
]

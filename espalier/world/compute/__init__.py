"""How fast devices train."""

from espalier.world.compute.modifiers import Busy, Fluctuating, Noise, Redrawn, Throttled
from espalier.world.compute.speeds import BoundCompute, Compute, Constant, Rate, Trace, TruncatedNormal, Uniform

__all__ = [
    "BoundCompute",
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

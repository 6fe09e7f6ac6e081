"""How data change while training goes on."""

from espalier.world.drift.abrupt import ExchangeLabels, LabelSwitch, PermuteLabels
from espalier.world.drift.concept import ORDINARY, BoundDrift, Clock, Concept, Drift, NoDrift
from espalier.world.drift.gradual import Gradual, RotatePrior

__all__ = [
    "ORDINARY",
    "BoundDrift",
    "Clock",
    "Concept",
    "Drift",
    "ExchangeLabels",
    "Gradual",
    "LabelSwitch",
    "NoDrift",
    "PermuteLabels",
    "RotatePrior",
]

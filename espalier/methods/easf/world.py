"""The world that EASF describes, as the preset ``easf``."""

from __future__ import annotations

from espalier.world.capability import Everyone, Fraction
from espalier.world.churn import NoChurn, TwoState
from espalier.world.compute import Busy, Fluctuating, Uniform
from espalier.world.links import Graph, Signal
from espalier.world.world import World, register_preset


@register_preset("easf")
def paper_world(case_study: bool = False, dynamic: bool = True) -> World:
    """EASF §V: a dynamic network of devices without servers.

    Random connected geometric graph, bandwidth U[1, 10] MB/s per link; devices work with probability .7
    in stays of 60 s; power × U[.5, 1.5] every 20 s; busy spells Exp(10 s), one per 100 s (E16). Seconds
    per batch are not given; with U[.05, .5] an epoch of 4 batches takes 1.1 s on average, and a model of
    6.6 MB over 2 hops there and 2 back 4 · 1.7 s: Syn's nodes train about a sixth of the time they
    transmit, as their row of Table V has it.

    Args:
        case_study: §V-D: half the devices may not aggregate, and signal strength shapes the bandwidth.
        dynamic: False keeps everybody there. The paper's "relatively stable" network is not that: its working status
            still "fluctuates gradually" (the study of Figure 4 has stays of 240 s instead).
    """
    return World(
        compute=Busy(Fluctuating(Uniform(0.05, 0.5), 0.5, 1.5, period=20.0), mean=10.0, every=100.0),
        links=Graph(bandwidth=(1e6, 10e6), signal=Signal() if case_study else None),
        churn=TwoState(working=0.7, mean_stay=60.0) if dynamic else NoChurn(),
        capability=Fraction(0.5) if case_study else Everyone(),
    )

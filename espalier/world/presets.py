"""The worlds that the five papers describe, and the one of the demonstration.

Where a paper leaves a value open, the decision's number in the papers' reading (C…, E…, D…, K…, P…) or
the reason for our value stands beside it. One step of the D2D paper is one virtual second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_type_hints

from espalier.core.coerce import coerce
from espalier.core.errors import ConfigError, nearest
from espalier.world.capability import Everyone, Fraction
from espalier.world.churn import NoChurn, TwoState
from espalier.world.compute import (
    Busy,
    Compute,
    Constant,
    Fluctuating,
    Noise,
    Rate,
    Redrawn,
    TruncatedNormal,
    Uniform,
)
from espalier.world.drift import Drift, Gradual, LabelSwitch, NoDrift
from espalier.world.links import Graph, Pairs, PerTier, Signal, TierLink
from espalier.world.mobility import Markov, Static
from espalier.world.world import World


def csahfl(stay: float = 1.0, noise: float = 0.3, epochs: int = 10) -> World:
    """CSAHFL §4.1: slow and fast clients, static (``stay`` = 1) or mobile (0.5).

    Delays N(63, 40) cut to [2, 128] s for a training of E_max = 10 epochs, drawn once per client and
    resampled (C8); run-time noise lognormal(0, .3) so that anyone is ever late (C7). Mobility over the
    ring of edges (§0). The bandwidth B_w is not given; 10 MB/s and 100 MB/s leave communication small
    beside the delays, as the published times have it (1780 s ≈ 15 rounds of the slowest).

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


def easf(case_study: bool = False, dynamic: bool = True) -> World:
    """EASF §V: a dynamic network of devices without servers.

    Random connected geometric graph, bandwidth U[1, 10] MB/s per link; devices work with probability .7
    in stays of 60 s; power × U[.5, 1.5] every 20 s; busy spells Exp(10 s), one per 100 s (E16). Seconds
    per batch are not given; with U[.05, .5] an epoch of 4 batches takes 1.1 s on average, and a model of
    6.6 MB over 2 hops there and 2 back 4 · 1.7 s: Syn's nodes train about a sixth of the time they
    transmit, as their row of Table V has it.

    Args:
        case_study: §V-D: half the devices may not aggregate, and signal strength shapes the bandwidth.
        dynamic: False gives the "relatively stable" network of the structure's experiment: nobody leaves.
    """
    return World(
        compute=Busy(Fluctuating(Uniform(0.05, 0.5), 0.5, 1.5, period=20.0), mean=10.0, every=100.0),
        links=Graph(bandwidth=(1e6, 10e6), signal=Signal() if case_study else None),
        churn=TwoState(working=0.7, mean_stay=60.0) if dynamic else NoChurn(),
        capability=Fraction(0.5) if case_study else Everyone(),
    )


def d2d(
    experiment: Literal["1a", "1b", "2", "3"] = "1b",
    task: Literal["image", "magnet"] = "image",
    intermittent: bool = False,
) -> World:
    """The D2D paper's Table 4: links and compute drawn anew per global round, the server's links ideal.

    A model is m = 30 units; λ in whole units per step, so that a model takes 6 to 30 steps (D11). The
    times to and from the server are not simulated (D9).

    Args:
        experiment: Set 1a has equal links, 1b and 2 links of 1 to 5, 3 also varies the compute.
        task: The magnet task runs 80 batches per step, images 10 (Set 3: 5 to 15).
        intermittent: Set 3's "0/1": λ from 0 on, so that a sixth of the links are absent.
    """
    low, high = (3.0, 3.0) if experiment == "1a" else (1.0, 5.0)
    compute: Compute = Rate(10.0, 10.0) if task == "image" else Rate(80.0, 80.0)
    if experiment == "3" and task == "image":
        compute = Redrawn(Rate(5.0, 15.0, whole=True))
    throughput = (0.0 if intermittent else low, high)
    return World(compute=compute, links=Pairs(throughput, whole=True, model_units=30.0))


def phefl() -> World:
    """PHE-FL §IV: rounds are what counts; equal devices and equal links give them a time axis.

    The paper has no clock. 10 ms per batch, 10 MB/s to the edge and 100 MB/s to the cloud are ours.
    """
    return World(compute=Constant(0.01), links=PerTier(TierLink(10e6), TierLink(100e6)))


def cflhkd(drift: Literal["none", "labels", "features"] = "none") -> World:
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


#: The presets by name; each can be called without arguments.
PRESETS: dict[str, Callable[..., World]] = {
    "ideal": World,
    "csahfl": csahfl,
    "easf": easf,
    "d2d": d2d,
    "phefl": phefl,
    "cflhkd": cflhkd,
    "demo": demo,
}


def preset(value: object) -> World:
    """Return a preset by its name, or by a table of its ``name`` and its arguments.

    Raises:
        ConfigError: There is no such preset or argument, or the argument has a wrong value.
    """
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in PRESETS:
        known = ", ".join(PRESETS)
        raise ConfigError(f"world.preset = {name!r}: unknown; known: {known}.{nearest(str(name), PRESETS)}")
    hints = {} if name == "ideal" else get_type_hints(PRESETS[name])
    hints.pop("return", None)
    for key in options:
        if key not in hints:
            accepted = ", ".join(hints) or "none besides name"
            raise ConfigError(
                f"world.preset.{key}: unknown key for {name!r}; accepted: {accepted}.{nearest(str(key), hints)}"
            )
    checked = {key: coerce(v, hints[key], f"world.preset.{key}") for key, v in options.items()}
    return PRESETS[name](**checked)

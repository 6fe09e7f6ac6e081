"""Hostile devices: which they are, and what they do.

A device that attacks takes part like any other. It trains on false labels, or sends another model than it
trained, or tells lies about its data, times and links. Who attacks is drawn once from the world's seed, so every
method meets the same attackers. The arithmetic of the attacks is in ``espalier.simulator.attacks``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import UnitFloat
from espalier.core.seeds import stream
from espalier.core.spec import Spec
from espalier.world.shape import Shape


@dataclass(frozen=True)
class Attackers(Spec, family="attackers", kind="none"):
    """Nobody attacks."""

    def hostile(self, shape: Shape) -> NDArray[np.bool_]:
        """Tell which devices attack, [N]."""
        return np.zeros(shape.n_devices, dtype=np.bool_)


@dataclass(frozen=True)
class Some(Attackers):
    """The base of all attacks: who takes part.

    Attributes:
        fraction: The share of the devices that attack, rounded to the nearest number …
        devices: … or these, by number.
        spread: ``random`` draws them from all devices; ``even`` from every edge alike; ``packed`` fills one edge
            after the other.
    """

    fraction: UnitFloat = 0.2
    devices: tuple[int, ...] = ()
    spread: Literal["random", "even", "packed"] = "random"

    def check(self) -> None:
        """Refuse what is no share."""
        self.require(all(d >= 0 for d in self.devices), "devices", "a list of devices' numbers")

    def hostile(self, shape: Shape) -> NDArray[np.bool_]:
        """Tell which devices attack, [N]."""
        found = np.zeros(shape.n_devices, dtype=np.bool_)
        if self.devices:
            self.require(max(self.devices) < shape.n_devices, "devices", f"below {shape.n_devices}")
            found[list(self.devices)] = True
            return found
        count = math.floor(self.fraction * shape.n_devices + 0.5)
        drawn = stream(shape.seed, "world", "attackers").permutation(shape.n_devices)
        if self.spread != "random" and shape.n_edges:
            home = np.arange(shape.n_devices) % shape.n_edges if shape.home is None else np.asarray(shape.home)
            edges = home[drawn]
            # The place of each device among those of its edge; even: first places first, packed: first edges first.
            order = np.argsort(edges, kind="stable")
            starts = np.searchsorted(edges[order], np.arange(shape.n_edges))
            place = np.empty(shape.n_devices, dtype=np.int64)
            place[order] = np.arange(shape.n_devices) - starts[edges[order]]
            drawn = drawn[np.lexsort((place, edges) if self.spread == "packed" else (edges, place))]
        found[drawn[:count]] = True
        return found


@dataclass(frozen=True)
class SignFlip(Some, kind="sign_flip"):
    """They send the opposite of their change, ``scale`` times as long."""

    scale: float = 1.0


@dataclass(frozen=True)
class Noise(Some, kind="noise"):
    """They send noise ``scale`` times as long as their change."""

    scale: float = 1.0


@dataclass(frozen=True)
class Little(Some, kind="little"):
    """They collude: all send their mean less ``z`` standard deviations, "a little is enough" (None: fitted)."""

    z: float | None = None


@dataclass(frozen=True)
class LabelFlip(Some, kind="label_flip"):
    """They train on false labels: ``y → C − 1 − y``, or as ``swaps`` say (``[[7, 1], …]``)."""

    swaps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Broken(Some, kind="broken"):
    """They send what makes no sense: numbers that are not finite, or huge ones, or claims of ``samples``."""

    what: Literal["nan", "huge", "samples"] = "nan"


@dataclass(frozen=True)
class FalseHistogram(Some, kind="false_histogram"):
    """They lie about their labels, and claim ``inflate`` times as many samples."""

    claim: Literal["reversed", "uniform", "single"] = "reversed"
    inflate: float = 1.0


@dataclass(frozen=True)
class FalseTimes(Some, kind="false_times"):
    """They say that they took ``factor`` times as long as they did."""

    factor: float = 0.1


@dataclass(frozen=True)
class FalseLinks(Some, kind="false_links"):
    """They say that their links take ``factor`` times as long as they do."""

    factor: float = 0.1

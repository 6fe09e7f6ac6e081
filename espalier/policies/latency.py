"""What a parent may expect of a device: seconds down, of training, and up again.

The estimate is what the device itself would say after trying one mini-batch (its nominal speed, no noise)
and what the links take for one model each way.
"""

from __future__ import annotations

from dataclasses import dataclass

from espalier.core.address import Address
from espalier.core.environment import Environment


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one order: the model's way down, ``updates`` local updates, the model's way up."""

    down: float
    update: float
    updates: int
    up: float

    @property
    def communication(self) -> float:
        """Seconds on the links, t_com."""
        return self.down + self.up

    @property
    def ready(self) -> float:
        """Seconds from dispatch until the device could send its model."""
        return self.down + self.updates * self.update

    @property
    def total(self) -> float:
        """Seconds from dispatch until the report is in."""
        return self.ready + self.up


def estimate(env: Environment, server: Address, device: Address, updates: int, now: float) -> Latency:
    """Return the latency to expect of a device that ``server`` orders to do ``updates`` updates at ``now``."""
    down = env.links.model_time(server, device, now)
    up = env.links.model_time(device, server, now)
    return Latency(down, env.speeds.update_time(device, now), updates, up)

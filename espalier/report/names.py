"""What people call a node."""

from __future__ import annotations

from dataclasses import dataclass

from espalier.core.address import Address, host_of, level_of
from espalier.record.run import Run


@dataclass(frozen=True)
class Names:
    """The fleet's numbering: devices ``0 … N-1``, edges from ``N``, the cloud, servers of other tiers after it."""

    devices: int
    edges: int
    cloud: int

    @staticmethod
    def of(run: Run) -> Names:
        """Return the numbering of a run's fleet."""
        fleet = run.meta("fleet")
        return Names(int(fleet["devices"]), int(fleet["edges"]), int(fleet["cloud"]))

    def name(self, address: Address) -> str:
        """Return a node's name; a role that a host plays besides its own names the host."""
        host, level = host_of(address), level_of(address)
        if host < self.devices:
            own = f"device {host}"
        elif host < self.devices + self.edges:
            own = f"edge {host - self.devices}"
        elif host == self.cloud:
            own = "cloud"
        else:
            own = f"server {host - self.cloud - 1}"
        return own if level == 0 else f"{own} as aggregator, level {level}"

    def is_device(self, address: Address) -> bool:
        """Tell whether an address is a leaf device's own."""
        return address < self.devices

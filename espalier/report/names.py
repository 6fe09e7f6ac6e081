"""What people call a node."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from espalier.core.address import Address, host_of, level_of
from espalier.record.run import Run


@dataclass(frozen=True)
class Names:
    """The fleet's numbering: devices ``0 … N-1``, edges from ``N``, the cloud, servers of other tiers after it."""

    devices: int
    edges: int
    cloud: int
    device_names: tuple[str, ...] = ()
    edge_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @staticmethod
    def of(run: Run) -> Names:
        """Return what a run's nodes and labels are called; the data's own names are escaped for pages and figures."""
        fleet, given, task = run.meta("fleet"), run.meta("names") or {}, run.meta("task") or {}
        told = (given.get("devices"), given.get("edges"), task.get("classes"))
        names = (tuple(escape(str(name)) for name in some or ()) for some in told)
        return Names(int(fleet["devices"]), int(fleet["edges"]), int(fleet["cloud"]), *names)

    def device(self, number: int) -> str:
        """Return a device's name: its owner's, where the data have names for owners."""
        if number >= len(self.device_names):
            return f"device {number}"
        name = self.device_names[number]
        return f"owner {name}" if name.isdigit() else name

    def edge(self, number: int) -> str:
        """Return an edge's name: the data's own, where they have one."""
        return f"edge {self.edge_names[number] if number < len(self.edge_names) else number}"

    def label(self, number: int) -> str:
        """Return a class's name: the data's own, where labels were text."""
        return self.classes[number] if number < len(self.classes) else f"label {number}"

    def name(self, address: Address) -> str:
        """Return a node's name; a role that a host plays besides its own names the host."""
        host, level = host_of(address), level_of(address)
        if host < self.devices:
            own = self.device(host)
        elif host < self.devices + self.edges:
            own = self.edge(host - self.devices)
        elif host == self.cloud:
            own = "cloud"
        else:
            own = f"server {host - self.cloud - 1}"
        return own if level == 0 else f"{own} as aggregator, level {level}"

    def is_device(self, address: Address) -> bool:
        """Tell whether an address is a leaf device's own."""
        return address < self.devices

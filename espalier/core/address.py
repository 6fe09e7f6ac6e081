"""Who is who: one integer names a node.

The low 32 bits are the *host* (the machine): devices ``0 … N-1``, servers from ``N`` on. The bits above
are the *level* of a role that the host plays besides its own: ``role(7, 1)`` is the aggregator that
device 7 runs over other devices. A device's own training role is level 0, so its address is its number.
"""

from __future__ import annotations

Address = int

_SHIFT = 32
_MASK = (1 << _SHIFT) - 1


def role(host: int, level: int) -> Address:
    """Return the address of a host's role at a level (0 is the host itself)."""
    return (level << _SHIFT) | host


def host_of(address: Address) -> int:
    """Return the machine that plays a role."""
    return address & _MASK


def level_of(address: Address) -> int:
    """Return the level of a role; 0 for a device or a server as itself."""
    return address >> _SHIFT

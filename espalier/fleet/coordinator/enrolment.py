"""The cloud's register: which name has which number, and who may join at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from espalier.core.errors import ConfigError

#: devices and servers of one run: a name costs the cloud room in its register for good, a number every node in its tree
MOST_DEVICES, MOST_SERVERS = 1_000_000, 10_000


class RunFull(ConfigError):
    """All numbers are taken: this run has no place for another device; the next one may."""


class Registry:
    """Numbers devices ``0 … N-1`` and servers from ``N`` on, once and for all of a run."""

    def __init__(
        self,
        n_devices: int,
        cloud: int,
        known: dict[str, tuple[int, str]] | None = None,
        before: Mapping[str, int] | None = None,
    ) -> None:
        """Go on with the ``known`` names of a run; who had a number ``before`` gets it again if it is free."""
        self.n_devices, self.cloud, self._before = n_devices, cloud, before or {}
        #: name -> (address, role)
        self.known: dict[str, tuple[int, str]] = dict(known or {})
        #: the names that may join; None: everybody with a certificate of this fleet
        self.allowed: frozenset[str] | None = None

    def enrol(self, name: str, role: str, wish: int = -1) -> int:
        """Return the address of a name, giving it one if it has none.

        Args:
            name: From its certificate.
            role: ``"device"`` or ``"edge"``.
            wish: The number it would like among devices, or among edges; it gets it if it is free.

        Raises:
            ConfigError: It may not join, or all numbers are taken.
        """
        if self.allowed is not None and name not in self.allowed:
            raise ConfigError(f"{name} is not on the list of nodes that may join.")
        if name in self.known:
            address, before = self.known[name]
            if before != role:
                raise ConfigError(f"{name} was enrolled as a {before} and comes back as a {role}.")
            return address
        if role not in ("device", "edge"):
            raise ConfigError(f"{name} comes as {role!r}; devices and edges may join.")
        wish = wish if wish >= 0 else self._before.get(name, -1)
        taken = {address for address, _ in self.known.values()}
        if role == "device":
            numbers = [wish] if 0 <= wish < self.n_devices and wish not in taken else range(self.n_devices)
            free = next((n for n in numbers if n not in taken), None)
            if free is None:
                raise RunFull(
                    f"All {self.n_devices} devices of fleet.devices have enrolled; raise it for a larger fleet, or "
                    "issue one of their names a new certificate to replace it."
                )
        else:
            places = map(self.server, [wish, *range(MOST_SERVERS)] if 0 <= wish < MOST_SERVERS else range(MOST_SERVERS))
            free = next((n for n in places if n not in taken), None)
            if free is None:
                raise ConfigError(f"{MOST_SERVERS} edges have enrolled; more are not accepted.")
        self.known[name] = (free, role)
        return free

    def numbers(self) -> dict[str, int]:
        """Return everybody's number among devices, or among servers."""
        first = self.n_devices
        return {
            name: address if role == "device" else address - first - (address > self.cloud)
            for name, (address, role) in self.known.items()
        }

    def server(self, number: int) -> int:
        """Return the address of the server of a number: edges, those above them, and (after the cloud) any more."""
        address = self.n_devices + number
        return address if address < self.cloud else address + 1


def read_names(path: Path) -> frozenset[str]:
    """Read a list of names, one per line; ``#`` begins a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--allow {path}: cannot be read ({error}); give a file with one name per line.") from error
    return frozenset(name for line in lines if (name := line.partition("#")[0].strip()))

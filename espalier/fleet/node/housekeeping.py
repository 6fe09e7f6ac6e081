"""What a host looks at now and then: the bytes it has sent, and lists on disk that may have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.core.errors import EspalierError
from espalier.fleet.coordinator.enrolment import read_names
from espalier.fleet.links.transport import Link, Traffic
from espalier.fleet.node.events import Call

if TYPE_CHECKING:
    from espalier.fleet.node.host import Host


class Housekeeping:
    """Counts bytes, reads lists again."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._past: dict[tuple[str, str, str], int] = {}
        self._open: dict[Link, tuple[str, str]] = {}
        self._allow_read = 0.0

    # -- bytes -------------------------------------------------------------------------------------------------

    def sent(self) -> dict[tuple[str, str, str], int]:
        """Return the bytes that this host has sent: (tier, direction, kind) -> bytes."""
        host, routes = self._host, self._host.routes
        now: dict[Link, tuple[str, str]] = {}
        if routes.parent is not None:
            tier = "dev-edge" if host.identity.role == "device" else "edge-cloud"
            now[routes.parent] = (tier, "up")
        for child in routes.children.values():
            now[child.link] = ("dev-edge" if child.role == "device" else "edge-cloud", "down")
        for link in routes.peers.values():
            now[link] = ("dev-dev", "peer")
        for link, key in list(self._open.items()):
            if link not in now:
                self._add(self._past, key, link.traffic)
                del self._open[link]
        self._open |= now
        total = dict(self._past)
        for link, key in self._open.items():
            self._add(total, key, link.traffic)
        return total

    def _add(self, total: dict[tuple[str, str, str], int], key: tuple[str, str], traffic: Traffic) -> None:
        for kind, count in (("model", traffic.models_out), ("ctrl", traffic.control_out)):
            if count:
                total[*key, kind] = total.get((*key, kind), 0) + count

    # -- now and then ------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look after everything that changes by itself."""
        host = self._host
        if host.engine is None or host.steward is None:
            return
        sent, steward = self.sent(), host.steward
        self._look_at_lists()

        host.put(Call(lambda: steward.counted(sent)))

    def _look_at_lists(self) -> None:
        """The cloud's lists may be changed while it runs: revoked certificates, names that may join."""
        host = self._host
        if host.registry is None:
            return
        path = host.settings.crl
        try:
            if path is not None and path.is_file():
                host.child_links.revocations(path.read_bytes())
            allow = host.settings.allow
            if allow is not None and allow.stat().st_mtime != self._allow_read:
                self._allow_read = allow.stat().st_mtime
                host.registry.allowed = read_names(allow)
        except (OSError, EspalierError) as error:
            host.log("a list cannot be read", level="error", why=str(error))

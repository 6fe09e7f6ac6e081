"""Reaching Ray: a cluster at an address, or one of this machine's own.

Ray is an extra (`espalier-hfl[ray]`); nothing outside this package imports it. It is never told to phone home, and a
Ray that we start listens on the loopback interface only.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from espalier.core.errors import ClusterError, ConfigError

_LOG = logging.getLogger("espalier.scale")

LOCALHOST = "127.0.0.1"
PATIENCE_SECONDS = 15.0
"""Seconds within which a cluster must answer."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Workers ask for no accelerator: Ray shall leave their environment as it is, and not warn about it.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


_TRIAL = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"

_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for clusters across machines, whatever the system: without them it stays on 127.0.0.1."""


def ray(loopback: bool = False) -> Any:
    """Return Ray's module; ``loopback`` keeps a Ray that is not imported yet on this machine.

    Raises:
        ConfigError: Ray is not installed.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if loopback:
        os.environ.setdefault(_LOOPBACK, "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ConfigError("backend = 'ray': Ray is not installed. Run: pip install \"espalier-hfl[ray]\"") from error


def connect(address: str | None, cpus: int | None) -> None:
    """Be a driver of the cluster at ``HOST:PORT``, or of one started here with so many CPUs (None: all).

    A process that is connected already stays so.

    Raises:
        ConfigError: Ray is not installed, or the address is none.
        ClusterError: Nobody answers at the address, or Ray does not start.
    """
    host, port = (LOCALHOST, 0) if address is None else parse(address)
    found = ray(loopback=host in (LOCALHOST, "localhost"))
    if found.is_initialized():
        return
    _hush()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        where: dict[str, Any] = {
            "address": "local", "num_cpus": cpus, "include_dashboard": False, "_node_ip_address": LOCALHOST
        }  # fmt: skip
    else:
        _probe(address, host, port)
        where = {"address": f"{host}:{port}"}
    try:
        with _same_signals():
            found.init(**where, **quiet)
    except (OSError, RuntimeError) as error:
        raise ClusterError(f"Ray does not start{'' if address is None else f' at {address}'}: {error}.") from error


def _probe(address: str, host: str, port: int) -> None:
    """Find out within :data:`PATIENCE_SECONDS` seconds whether a cluster answers and this machine is a node of it.

    Raises:
        ClusterError: It does not, or is not.
    """
    began = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=PATIENCE_SECONDS / 3).close()
    except OSError as error:
        raise ClusterError(
            f"--address {address}: nobody answers there ({error.strerror or error}). Start a cluster "
            f"(ray start --head --port {port}), or leave the option out to use this machine alone."
        ) from error
    # In a process of its own: Ray waits much longer than anybody likes, and then ends the process it is in.
    command = [sys.executable, "-c", _TRIAL, f"{host}:{port}"]
    try:
        left = PATIENCE_SECONDS - (time.monotonic() - began)
        done = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
        why = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        why = f"no answer within {PATIENCE_SECONDS:.0f} s"
    if why:
        raise ClusterError(
            f"--address {address}: no Ray cluster answers there, or this machine is no node of it ({why.rstrip('.')}). "
            f"Join it first: ray start --address {address}"
        )


def parse(address: str) -> tuple[str, int]:
    """Return the host and the port of an address.

    Raises:
        ConfigError: It is none.
    """
    host, sign, port = address.rpartition(":")
    if not sign or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"--address {address!r}: must be HOST:PORT, the address of a Ray head node (ray start).")
    return host.strip("[]"), int(port)


def _hush() -> None:
    """Send to the log what Ray prints about lost workers: standard output may be someone's JSON.

    Ray has no setting for it; where its inside has changed, the messages stay where they are.
    """
    inside: Any = importlib.import_module("ray._private.worker")
    if hasattr(inside, "print_to_stdstream"):
        inside.print_to_stdstream = lambda data, *_, **__: _LOG.info("%s", "\n".join(data.get("lines", ())))


@contextlib.contextmanager
def _same_signals() -> Iterator[None]:
    """Leave with the signal handlers that were there: a stop by Ctrl-C or SIGTERM is ours to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)

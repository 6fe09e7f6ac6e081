"""Networks that can be cut: a namespace of the kernel's with one slow cable to this machine's own network.

A node in a space reaches the others over the cable alone. Cutting it drops every packet without a word, as a radio link
does that is out of reach: neither end's connection is closed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from espalier.fleet.local import LocalFleet, run_node
from espalier.fleet.node.launch import Options

_NEW_NETWORK = 0x40000000


class NotAllowed(Exception):
    """This process may not make network namespaces."""


class Space:
    """A namespace and its cable: ``host`` is this machine's end of it, ``guest`` the other.

    With ``rate`` (bits per second) whatever is sent from inside is held back to it.
    """

    def __init__(self, number: int = 0, rate: str | None = None) -> None:
        self.name = f"espalier-{os.getpid()}-{number}"
        # interface names have at most 15 letters
        self._cable, self._end = f"es{os.getpid() % 10**6}h{number}", f"es{os.getpid() % 10**6}g{number}"
        net = f"10.{213 + os.getpid() % 40}.{number}"
        self.host, self.guest = f"{net}.1", f"{net}.2"
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", self._end, "netns", self.name)
            _ip("addr", "add", f"{self.host}/30", "dev", self._cable)
            _ip("link", "set", self._cable, "up")
            _ip("-n", self.name, "addr", "add", f"{self.guest}/30", "dev", self._end)
            _ip("-n", self.name, "link", "set", "lo", "up")
            self.mend()
            if rate is not None:
                shape = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "1s"]
                _run("tc", "-n", self.name, "qdisc", "add", "dev", self._end, *shape)
        except NotAllowed:
            self.close()
            raise

    def cut(self) -> float:
        """Cut the cable; return when."""
        # the guest's end: this one keeps its address, so nodes on this machine still reach each other by it
        _ip("-n", self.name, "link", "set", self._end, "down")
        return time.time()

    def mend(self) -> float:
        """Make the cable whole again; return when."""
        _ip("-n", self.name, "link", "set", self._end, "up")
        return time.time()

    def close(self) -> None:
        """Take everything away again."""
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)
        # the kernel takes its time with what was in a namespace
        subprocess.run(["ip", "link", "del", self._cable], check=False, capture_output=True)

    def __enter__(self) -> Space:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    try:
        subprocess.run(words, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or error
        raise NotAllowed(f"Network namespaces need root and the program ip: {' '.join(words)}: {why}") from error


class SpacedFleet(LocalFleet):
    """A local fleet some of whose nodes live in spaces: name -> space. Their parents listen at the space's ``host``."""

    def __init__(self, *args: Any, spaces: dict[str, Space], **options: Any) -> None:
        super().__init__(*args, **options)
        self.spaces = spaces

    def _begin(self, name: str, options: Options, cloud: dict[str, Any] | None) -> BaseProcess:
        space = self.spaces.get(name)
        if space is None:
            return super()._begin(name, options, cloud)
        where = Path("/run/netns") / space.name
        process = self._context.Process(target=_inside, args=(where, options, cloud), name=name, daemon=False)
        process.start()
        return process


def _inside(space: Path, options: Options, cloud: dict[str, Any] | None) -> None:
    handle = os.open(space, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(handle, _NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    os.close(handle)
    run_node(options, cloud)

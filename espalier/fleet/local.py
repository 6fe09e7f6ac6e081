"""A whole fleet on this machine, every node a process of its own with its own certificate: for trying out and testing.

Whatever happens, its processes end with the block::

    with LocalFleet(experiment, directory) as fleet:
        fleet.start()
        fleet.wait()
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from espalier.core.code import plug_in
from espalier.core.errors import ConfigError, EspalierError, RunError
from espalier.data.partition import Partition
from espalier.experiment import Experiment
from espalier.fleet import certs
from espalier.fleet.coordinator.manifest import plan_of
from espalier.fleet.coordinator.submission import RunOptions
from espalier.fleet.node.launch import CloudOptions, Options, run
from espalier.fleet.operator import Operator
from espalier.fleet.status import ask
from espalier.world.shape import Shape

LOCAL = "127.0.0.1"
#: seconds that a node may take to start, or to stop
START_SECONDS = 60.0
#: imported once by the process from which nodes are forked: they start in milliseconds, not seconds (torch imports
#: symbolic_shapes, and sympy with it, only when a gradient is first computed)
PRELOADED = [
    "sklearn.datasets", "torch.fx.experimental.symbolic_shapes", "espalier.fleet.node.launch",
    "espalier.simulator.dataviews", "espalier.methods.bundled",
]  # fmt: skip
#: signals that nobody sends: the process itself went wrong
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_PARENT_DEATH = 1


@dataclass(frozen=True)
class Planned:
    """One node of a local fleet: its name, how it is started, and under whom."""

    name: str
    options: Options
    parent: str | None = None


class LocalFleet:
    """Starts, watches and ends the nodes of an experiment's fleet: cloud, servers between, edges, devices."""

    def __init__(
        self,
        experiment: Experiment,
        directory: Path,
        *,
        ca: Path | None = None,
        device: Callable[[int], Mapping[str, Any]] = lambda number: {},
        edge: Callable[[int], Mapping[str, Any]] = lambda number: {},
        plugins: tuple[str, ...] = (),
        data_dir: Path | None = None,
        log_level: str = "info",
        standing: bool = False,
        **cloud: Any,
    ) -> None:
        """Plan a fleet.

        Args:
            experiment: Of one method and one seed.
            directory: Every node has a directory of its own in it; the cloud's is the run directory.
            ca: The certificate authority's directory (default: one is made in ``directory/ca``).
            device: What a device's :class:`~espalier.fleet.node.launch.Options` should have besides, by its number.
            edge: The same for edges.
            plugins: Modules that every node imports first: methods and policies of the user's own.
            data_dir: Where dataset files are looked for first.
            log_level: Of every node's log, ``directory/NAME/node.log``.
            standing: Whether the fleet stays up and takes the runs that are submitted (:meth:`operator`): then the
                experiment only says how many nodes there are.
            cloud: What :class:`~espalier.fleet.coordinator.submission.RunOptions` and
                :class:`~espalier.fleet.node.launch.CloudOptions` should have besides.
        """
        self.experiment, self.directory = experiment, directory
        self._ca = ca or directory / "ca"
        conducting(None, cloud)  # a wrong name is told here, not by a process that ends
        self._cloud, self._standing = cloud, standing
        self._common = {"data": "share", "data_dir": data_dir, "log_level": log_level, "plugins": plugins}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self.processes: dict[str, BaseProcess] = {}
        self.members: dict[str, Planned] = {}
        fleet = experiment.fleet
        self._add("cloud", "cloud", None, listen=f"{LOCAL}:0", ops="0")
        above = ["cloud"]
        for tier in reversed(range(len(fleet.tiers))):
            names = [f"server-{tier}-{i}" for i in range(fleet.tiers[tier])]
            first = fleet.edges + sum(fleet.tiers[:tier])
            for i, name in enumerate(names):
                self._add(name, "edge", above[i * len(above) // len(names)], listen=f"{LOCAL}:0", number=first + i)
            above = names
        for i in range(fleet.edges):
            options = {"listen": f"{LOCAL}:0", "number": i, **edge(i)}
            self._add(f"edge-{i}", "edge", above[i * len(above) // fleet.edges], **options)
        # places and heads are the simulated fleet's
        data = experiment.dataset(data_dir)
        parted = experiment.split(data, experiment.seeds[0])
        heads = _heads(experiment, data.n_classes, parted)
        for i in range(fleet.devices):
            able = {"aggregates": True, "listen": f"{LOCAL}:0"} if i in heads else {}
            self._add(f"device-{i}", "device", f"edge-{parted.edge[i]}", **{"number": i, **able, **device(i)})

    def _add(self, name: str, role: str, parent: str | None, **options: Any) -> None:
        where = self.directory / name
        common = {**self._common, "log_file": where / "node.log", "directory": where}
        found = Options(certs=self._ca / name, **{**common, **options})
        self.members[name] = Planned(name, found, parent)
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self._ca / "ca.key").exists():
            certs.init(self._ca)
        if not (self._ca / name / "node.pem").exists():
            certs.issue(self._ca, name, role, [LOCAL, "localhost"])

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start all nodes (or some), parents before children."""
        waves: dict[int, list[str]] = {}
        for name in names or self.members:
            waves.setdefault(self._depth(name), []).append(name)
        for depth in sorted(waves):
            for name in waves[depth]:
                self.launch(name)
            for name in waves[depth]:
                if self.members[name].options.listen is not None:
                    self.endpoint(name)

    def launch(self, name: str, **changes: Any) -> None:
        """Start one node (again), with other options if need be."""
        member = self.members[name]
        options = replace(member.options, **changes)
        if member.parent is not None and not options.parents:
            options = replace(options, parents=(self.address(member.parent),))
        (self.directory / name / "endpoint").unlink(missing_ok=True)
        before = self.directory / name / "port"
        if options.listen is not None and options.listen.endswith(":0") and before.is_file():
            # children look for a node where it was
            options = replace(options, listen=f"{LOCAL}:{before.read_text()}")
        table = None if self._standing else self.experiment.to_plain()
        cloud = {"table": table, **self._cloud} if name == "cloud" else None
        self.processes[name] = self._begin(name, options, cloud)

    def _begin(self, name: str, options: Options, cloud: dict[str, Any] | None) -> BaseProcess:
        process = self._context.Process(target=run_node, args=(options, cloud), name=name, daemon=False)
        process.start()
        return process

    def endpoint(self, name: str) -> str:
        """Return where a node listens, as soon as it does."""
        process = self.processes[name]
        text = _read_when_there(self.directory / name / "endpoint", process.is_alive)
        if text is None:
            fate = "does not listen" if process.is_alive() else f"ended with code {process.exitcode}"
            raise RunError(f"{name} {fate}; look at {self.directory}/{name}/node.log.")
        (self.directory / name / "port").write_text(text.rpartition(":")[2])
        return text

    def address(self, name: str) -> str:
        """Return a node as a child's ``--parent`` names it."""
        return f"{name}@{self.endpoint(name)}"

    def _depth(self, name: str) -> int:
        parent = self.members[name].parent
        return 0 if parent is None else 1 + self._depth(parent)

    def wait(self, seconds: float = 3600.0, progress: Callable[[LocalFleet], None] | None = None) -> None:
        """Wait until the run is over.

        Raises:
            RunError: It is not over in time, or a node failed (one that was killed may be started again).
        """
        until = time.monotonic() + seconds
        while self.processes["cloud"].is_alive():
            if time.monotonic() > until:
                raise RunError(f"The fleet is not done after {seconds:g} s; look at {self.directory}/*/node.log.")
            if progress is not None:
                progress(self)
            self._notice_failures()
            self.processes["cloud"].join(0.05 if progress is None else 0.5)
        self._notice_failures()
        for name, process in self.processes.items():
            process.join(max(0.0, min(15.0, until - time.monotonic())))
            if process.is_alive():
                raise RunError(f"{name} goes on although the run is over.")

    def _notice_failures(self) -> None:
        for name, process in self.processes.items():
            if (process.exitcode or 0) > 0 or -(process.exitcode or 0) in CRASHES:
                raise RunError(f"{name} ended with code {process.exitcode}; look at {self.directory}/{name}/node.log.")

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a node; wait for its end if it is a deadly one."""
        process = self.processes[name]
        assert process.pid is not None
        os.kill(process.pid, number)
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
            process.join(START_SECONDS)

    def operator(self) -> Operator:
        """Return somebody who may submit runs to a standing fleet, and stop and fetch them."""
        if not (self._ca / "operator" / "node.pem").exists():
            certs.issue(self._ca, "operator", "operator")
        return Operator(certs.Bundle.read(self._ca / "operator"), self.address("cloud"))

    def status(self, name: str) -> dict[str, Any]:
        """Ask a node how it is."""
        return ask(self.directory / name, do="status")

    def move(self, name: str, parent: str) -> None:
        """Tell a node to go to another parent."""
        ask(self.directory / name, do="move", parent=self.address(parent))

    def until(self, name: str, holds: Callable[[dict[str, Any]], bool], seconds: float = 30.0) -> dict[str, Any]:
        """Wait until a node's status is as wished."""
        end = time.monotonic() + seconds
        found: dict[str, Any] = {}
        while time.monotonic() < end:
            try:
                found = self.status(name)
                if holds(found):
                    return found
            except (ConfigError, OSError, ValueError):
                pass  # it is not there yet, or not any more
            time.sleep(0.02)
        raise RunError(f"{name} is not as wished after {seconds:g} s: {found}.")

    def stop(self) -> None:
        """End every node: in good order, and by force if that takes too long."""
        alive = [p for p in self.processes.values() if p.is_alive()]
        for process in alive:
            process.terminate()
        until = time.monotonic() + 10
        for process in alive:
            process.join(max(0.1, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(5)

    def __enter__(self) -> LocalFleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _heads(experiment: Experiment, n_classes: int, parted: Partition) -> set[int]:
    """Return the devices that may be heads of others, where the method has such: those that the world says."""
    if not plan_of(experiment, n_classes).root.structure.peers:
        return set()
    shape = Shape(parted.n_devices, parted.n_edges, experiment.seeds[0], home=parted.edge)
    return {int(d) for d in np.flatnonzero(experiment.world.capability.mask(shape))}


def _read_when_there(path: Path, goes_on: Callable[[], bool]) -> str | None:
    """Return the text of a file as soon as it is there; None if that takes too long or has become pointless."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and goes_on():
        with contextlib.suppress(OSError):
            return path.read_text()
        time.sleep(0.01)
    return None


def conducting(experiment: Experiment | None, given: Mapping[str, Any]) -> CloudOptions:
    """Return a cloud's options: of its only run, and others."""
    of_run = {name: value for name, value in given.items() if name in RunOptions.__dataclass_fields__}
    others = {name: value for name, value in given.items() if name not in of_run}
    return CloudOptions(experiment, RunOptions(**of_run), **others)


def run_node(options: Options, cloud: dict[str, Any] | None) -> None:
    """Run one node in a process of its own."""
    die_with_parent()
    conducts = None
    try:
        plug_in(options.plugins)
        if cloud is not None:
            table = cloud.pop("table")
            conducts = conducting(None if table is None else Experiment.build(table), cloud)
        run(options, conducts)
    except EspalierError as error:
        print(f"espalier: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the process that started this one ends, however it ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGTERM)

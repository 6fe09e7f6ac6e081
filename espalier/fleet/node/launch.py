"""Start one node: from what its operator says to a running host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from espalier.core.code import plug_in
from espalier.core.errors import ConfigError, EspalierError, RunError
from espalier.experiment import Experiment
from espalier.fleet.certs import Bundle
from espalier.fleet.coordinator.manifest import Manifest
from espalier.fleet.coordinator.queue import RunQueue
from espalier.fleet.coordinator.submission import JudgingData, RunOptions, Submissions, describe_run, prepare
from espalier.fleet.links.admission import HandshakeWatch, parse_parent
from espalier.fleet.links.hub import Settings
from espalier.fleet.links.limits import Limits
from espalier.fleet.links.wire import VERSIONS, WireVersions
from espalier.fleet.node.data import Holdings, from_arrays, read_arrays, share
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.log import Log
from espalier.fleet.node.operators import Operators
from espalier.fleet.node.service import Service
from espalier.fleet.node.trainer import ArrayTrainer, NodeTrainer
from espalier.fleet.overview import overview
from espalier.fleet.status import Ops

#: shows the fleet while a block lasts: gets a function that looks at it, gives the page's address
Page = Callable[[Callable[[], dict[str, Any]]], contextlib.AbstractContextManager[str]]
#: seconds that a page waits for the node's answer
PAGE_SECONDS = 5.0

#: files that a node may have open, if its hard limit allows it
OPEN_FILES = 65_536


@dataclass(frozen=True)
class Options:
    """What the command line says of any node.

    Attributes:
        certs: The directory of its certificates.
        directory: Where it keeps its state.
        listen: ``host:port``, or None.
        advertise: ``host:port`` under which others reach it.
        parents: ``host:port`` or ``name@host:port`` each.
        data: A file, a function, ``"share"``, or None.
        data_dir: Where dataset files are looked for first.
        client: A user's own client, ``package.module:factory``.
        flower_client: A Flower client, ``package.module:client_fn``.
        plugins: Modules to import first: methods and policies of the user's own.
        allow_models: Code of the user's own (models, losses, optimisers, schedules) that may be imported.
        number: The number it would like.
        aggregates: Whether it may be head of a cluster of devices.
        ops: ``[host:]port`` of health and metrics, or None.
        log_file: Where its log goes; standard error by default.
        log_level: The least level that is written.
        versions: Of the protocol that it speaks. Only tests of older and newer nodes give others.
    """

    certs: Path
    directory: Path | None = None
    listen: str | None = None
    advertise: str | None = None
    parents: tuple[str, ...] = ()
    data: str | None = None
    data_dir: Path | None = None
    client: str | None = None
    flower_client: str | None = None
    plugins: tuple[str, ...] = ()
    allow_models: tuple[str, ...] = ()
    number: int = -1
    aggregates: bool = False
    ops: str | None = None
    log_file: Path | None = None
    log_level: str = "info"
    versions: WireVersions = VERSIONS


@dataclass(frozen=True)
class CloudOptions:
    """What the command line says of a cloud besides.

    Attributes:
        experiment: Of one method and one seed; None: the cloud takes runs that are submitted.
        run: How that experiment is run.
        limits: Of every node.
        allow: A file with the names that may join.
        classes: Classes of the task, where the data do not show them all.
    """

    experiment: Experiment | None = None
    run: RunOptions = field(default_factory=RunOptions)
    limits: Limits = field(default_factory=Limits)
    allow: Path | None = None
    classes: int | None = None


def run(options: Options, cloud: CloudOptions | None = None, page: Page | None = None) -> None:
    """Run a node until the fleet is done or a signal ends it; a cloud's ``page`` shows the fleet meanwhile.

    Raises:
        EspalierError: What the operator must mend.
    """
    plug_in(options.plugins)
    bundle = Bundle.read(options.certs)
    role = bundle.identity.role
    if (role == "cloud") != (cloud is not None) or role == "operator":
        raise ConfigError(f"--certs {options.certs}: the certificate is a {role}'s; issue one for this node's role.")
    for folder in (options.directory, options.log_file and options.log_file.parent):
        try:
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder} cannot be made: {error.strerror}; choose another directory.") from error
    raise_file_limit()
    log = Log(bundle.identity.name, options.log_file, options.log_level)
    log("starting", role=role, pid=os.getpid())
    claim = _claim(options.directory)
    try:
        with log.crashes():
            asyncio.run(_run(bundle, options, cloud, page, log))
    except EspalierError as error:
        log("failed", level="error", why=str(error))
        raise
    except Exception as error:
        log("failed", level="error", why=repr(error), trace=traceback.format_exc())
        raise
    finally:
        if claim is not None:
            claim.release()
        log.close()


def _claim(directory: Path | None) -> FileLock | None:
    """Hold a node's directory as long as this process lives.

    Raises:
        RunError: Another process has it.
    """
    if directory is None:
        return None
    lock = FileLock(directory / "node.pid.lock")
    try:
        lock.acquire(timeout=0.5)
    except Timeout:
        raise RunError(f"{directory} is in use by another process; a directory belongs to one node.") from None
    return lock


def raise_file_limit() -> None:
    """Let this process open more files than a shell or a service manager lets it by default: each link is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run(bundle: Bundle, options: Options, cloud: CloudOptions | None, page: Page | None, log: Log) -> None:
    settings = Settings(
        lambda manifest, address: make_trainer(manifest, address, options, bundle.identity.role),
        options.directory, options.listen, options.advertise, tuple(parse_parent(p) for p in options.parents),
        options.number, options.aggregates, versions=options.versions,
    )  # fmt: skip
    if cloud is None and not settings.parents:
        raise ConfigError("--parent: must be given for every node but the cloud.")
    service = Service(bundle, settings, log) if cloud is None else _conducting(bundle, settings, options, cloud, log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop, f"signal {number.name}")
    # a service manager that restarts the node says so
    loop.add_signal_handler(signal.SIGHUP, partial(service.stop, "to be started again", returns=True))

    # what gRPC itself refuses must not go unseen
    def told(why: str) -> None:
        loop.call_soon_threadsafe(service.host.refused, "somebody at the door", why)

    handshakes = HandshakeWatch(told) if options.listen is not None else None
    ops = Ops(service)
    await ops.start(options.ops, options.directory)
    pages = contextlib.ExitStack()
    watch = asyncio.create_task(_publish(service, ops, options.directory))
    try:
        if page is not None:
            ops.page = pages.enter_context(page(lambda: _overview_from_afar(service, loop)))
            log("status page", address=ops.page.partition("?")[0])
        await service.run()
    finally:
        watch.cancel()
        # in a thread: whoever asks for the page at this moment is answered by this loop
        await asyncio.to_thread(pages.close)
        await ops.stop()
        if handshakes is not None:
            handshakes.close()
        if service.queue is not None:
            service.queue.close()


def _conducting(bundle: Bundle, settings: Settings, options: Options, cloud: CloudOptions, log: Log) -> Service:
    """Return the service of a cloud: with one run, or with a queue that operators may put runs into."""
    if options.directory is None or options.listen is None:
        raise ConfigError("--dir and --listen: must be given for a cloud.")
    settings = replace(settings, allow=cloud.allow, crl=options.certs / "crl.pem")
    if cloud.experiment is not None:
        manifest = _kept(options, cloud, cloud.experiment, options.directory)
        start = cloud.run.devices(cloud.experiment)
        return Service(bundle, replace(settings, manifest=manifest, start_with=start), log)
    queue = RunQueue(options.directory)
    service = Service(bundle, settings, log, queue)
    submissions = Submissions(queue, _judged(options, cloud), cloud.limits, options.allow_models)
    service.door.operators = Operators(service, submissions).take
    return service


def _overview_from_afar(service: Service, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """Look at the fleet from another thread than the event loop's."""

    async def look() -> dict[str, Any]:
        return overview(service)

    return asyncio.run_coroutine_threadsafe(look(), loop).result(PAGE_SECONDS)


async def _publish(service: Service, ops: Ops, directory: Path | None) -> None:
    """Write down where the node listens, for whoever started it."""
    if directory is None:
        return
    while service.host.settings.listen is not None and not service.host.endpoint:
        await asyncio.sleep(0.01)
    with contextlib.suppress(OSError):
        for name, text in (("endpoint", service.host.endpoint), ("ops", str(ops.port or ""))):
            path = directory / f"{name}.tmp"
            path.write_text(text)
            path.replace(directory / name)


# -- trainers --------------------------------------------------------------------------------------------------


def make_trainer(manifest: Manifest, address: int, options: Options, role: str) -> NodeTrainer:
    """Make what a node learns with."""
    if options.flower_client is not None or options.client is not None:
        from espalier.fleet.node import clients

        if options.flower_client is not None:
            return clients.flower(manifest, address, options.flower_client)
        assert options.client is not None
        return clients.plain(manifest, address, options.client)
    held = _holdings(manifest, address, options)
    lacks = set(manifest.code) - set(options.allow_models)
    if role == "edge" and held.test is None and held.personal is None and lacks:
        return NodeTrainer()  # it merges and passes on, which takes none of the run's code
    if role == "device" and not held.samples:
        raise ConfigError("--data: a device needs samples to train on (x and y).")
    # the cloud's operator wrote the manifest of its only run: what it names is the operator's own
    own = role == "cloud" and not manifest.standing
    task = manifest.experiment.task
    metrics, sample_metrics = (task.metrics, task.sample_metrics) if role == "cloud" else ((), ())
    allowed = (*options.allow_models, *manifest.code, *metrics, *sample_metrics) if own else options.allow_models
    return ArrayTrainer(manifest, held, allowed, metrics, sample_metrics)


def _holdings(manifest: Manifest, address: int, options: Options) -> Holdings:
    if options.data is None:
        return Holdings()
    if options.data == "share":
        experiment = manifest.experiment
        dataset = experiment.dataset(options.data_dir)
        return share(experiment, dataset, experiment.split(dataset, manifest.seed), address)
    arrays = read_arrays(options.data)
    return from_arrays(arrays, f"--data {options.data}", manifest.card.kind, manifest.card.n_classes)


# -- the cloud ---------------------------------------------------------------------------------------------------


def _kept(options: Options, cloud: CloudOptions, experiment: Experiment, directory: Path) -> Manifest:
    """Return the manifest of a cloud's only run, kept from an earlier incarnation if there was one."""
    manifest = prepare(experiment.name, experiment, cloud.run, _judged(options, cloud), cloud.limits, standing=False)
    journal = Journal(directory)
    try:
        kept = journal.get("manifest")
        if kept is None:
            describe_run(directory, experiment, options.data_dir)
            journal.put("manifest", manifest.to_bytes())
            return manifest
    finally:
        journal.close()
    before = Manifest.of_bytes(kept)
    if replace(manifest, run=before.run).to_bytes() != kept:
        raise RunError(
            f"{directory} holds the state of another fleet: its experiment or options differ. Choose another "
            "directory, or start the cloud as before."
        )
    return before


def _judged(options: Options, cloud: CloudOptions) -> JudgingData:
    return JudgingData(options.data, options.data_dir, cloud.classes)

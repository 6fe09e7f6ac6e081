"""Start one node: from what its operator says to a running host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import signal
import tomllib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from espalier.core.coerce import imported
from espalier.core.errors import ConfigError, EspalierError, RunError
from espalier.experiment import Experiment
from espalier.fleet.certs import Bundle
from espalier.fleet.coordinator.manifest import ROUND_DEADLINE_SECONDS, Card, Manifest, Script, card_of, rounds_reports
from espalier.fleet.links.admission import HandshakeWatch, parse_parent
from espalier.fleet.links.encoding import Compress
from espalier.fleet.links.hub import Settings
from espalier.fleet.links.limits import Limits
from espalier.fleet.links.wire import VERSIONS, WireVersions
from espalier.fleet.node.data import Holdings, from_arrays, read_arrays, shape_of, share
from espalier.fleet.node.host import Host
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.log import Log
from espalier.fleet.node.trainer import ArrayTrainer, NodeTrainer, NoTrainer
from espalier.fleet.overview import overview
from espalier.fleet.status import Ops
from espalier.privacy.accountant import require_library
from espalier.privacy.budget import is_private
from espalier.simulator.checkpoint import atomic_write
from espalier.simulator.directory import DirectoryLock, describe

#: the format of a real run's description: `espalier resume` refuses it instead of simulating over the record
REAL = "of a real fleet, which the command espalier node cloud goes on with"

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
        experiment: Of one method and one seed.
        start_with: Devices that must be there (None: all of fleet.devices).
        patience: Seconds that a lost child is waited for.
        compress: How models travel (None: as the experiment says).
        limits: Of every node.
        script: Times that every node pretends to.
        allow: A file with the names that may join.
        classes: Classes of the task, where the data do not show them all.
        round_deadline: Seconds that a round waits for its slowest child, at least (0: for ever).
    """

    experiment: Experiment
    start_with: int | None = None
    patience: float = 10.0
    compress: Compress | None = None
    limits: Limits = field(default_factory=Limits)
    script: Script | None = None
    allow: Path | None = None
    classes: int | None = None
    round_deadline: float = ROUND_DEADLINE_SECONDS


def run(options: Options, cloud: CloudOptions | None = None, page: Page | None = None) -> None:
    """Run a node until the fleet is done or a signal ends it; a cloud's ``page`` shows the fleet meanwhile.

    Raises:
        EspalierError: What the operator must mend.
    """
    plug_in(options.plugins)
    bundle = Bundle.read(options.certs)
    role = bundle.identity.role
    if (role == "cloud") != (cloud is not None):
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
    # a cloud's directory is a run directory: whoever watches it sees by the lock that the run goes on
    where = options.directory if cloud is not None else None
    claim = None if where is None else DirectoryLock(where, shared=True)
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


def raise_file_limit() -> None:
    """Let this process open more files than a shell or a service manager lets it by default: each link is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def plug_in(modules: Sequence[str]) -> None:
    """Import a user's methods and policies, before an experiment that names them is read."""
    for name in modules:
        imported(f"{name}:__name__", "--plugin")


async def _run(bundle: Bundle, options: Options, cloud: CloudOptions | None, page: Page | None, log: Log) -> None:
    settings = Settings(
        lambda manifest, address: make_trainer(manifest, address, options, bundle.identity.role),
        options.directory, options.listen, options.advertise, tuple(parse_parent(p) for p in options.parents),
        options.number, options.aggregates, versions=options.versions,
    )  # fmt: skip
    if cloud is not None:
        settings = _conducted(settings, options, cloud)
    elif not settings.parents:
        raise ConfigError("--parent: must be given for every node but the cloud.")
    host = Host(bundle, settings, log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, host.stop, f"signal {number.name}")
    # a service manager that restarts the node says so
    loop.add_signal_handler(signal.SIGHUP, partial(host.stop, "to be started again", returns=True))
    # what gRPC itself refuses must not go unseen

    def told(why: str) -> None:
        loop.call_soon_threadsafe(host.refused, "somebody at the door", why)

    handshakes = HandshakeWatch(told) if options.listen is not None else None
    ops = Ops(host)
    await ops.start(options.ops, options.directory)
    pages = contextlib.ExitStack()
    watch = asyncio.create_task(_publish(host, ops, options.directory))
    try:
        if page is not None:
            ops.page = pages.enter_context(page(lambda: _overview_from_afar(host, loop)))
            log("status page", address=ops.page.partition("?")[0])
        await host.run()
    finally:
        watch.cancel()
        # in a thread: whoever asks for the page at this moment is answered by this loop
        await asyncio.to_thread(pages.close)
        await ops.stop()
        if handshakes is not None:
            handshakes.close()


def _overview_from_afar(host: Host, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """Look at the fleet from another thread than the event loop's."""

    async def look() -> dict[str, Any]:
        return overview(host)

    return asyncio.run_coroutine_threadsafe(look(), loop).result(PAGE_SECONDS)


async def _publish(host: Host, ops: Ops, directory: Path | None) -> None:
    """Write down where the node listens, for whoever started it."""
    if directory is None:
        return
    while host.settings.listen is not None and not host.endpoint:
        await asyncio.sleep(0.01)
    with contextlib.suppress(OSError):
        for name, text in (("endpoint", host.endpoint), ("ops", str(ops.port or ""))):
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
    if role == "edge" and held.test is None and held.personal is None:
        return NoTrainer()
    if role == "device" and not held.samples:
        raise ConfigError("--data: a device needs samples to train on (x and y).")
    # the cloud's operator wrote the manifest: what it names is the operator's own
    allowed = (*options.allow_models, *manifest.code) if role == "cloud" else options.allow_models
    return ArrayTrainer(manifest, held, allowed, manifest.experiment.task.metrics if role == "cloud" else ())


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


def _conducted(settings: Settings, options: Options, cloud: CloudOptions) -> Settings:
    """Add what only a cloud has: a manifest, kept from an earlier incarnation if there was one."""
    if options.directory is None or options.listen is None:
        raise ConfigError("--dir and --listen: must be given for a cloud.")
    manifest = _manifest(options, cloud, options.directory)
    start = cloud.experiment.fleet.devices if cloud.start_with is None else cloud.start_with
    return replace(settings, manifest=manifest, start_with=start, allow=cloud.allow, crl=options.certs / "crl.pem")


def _manifest(options: Options, cloud: CloudOptions, directory: Path) -> Manifest:
    card = _card(options, cloud)
    compress = cloud.compress or ("q8" if rounds_reports(cloud.experiment, card.n_classes) else "none")
    manifest = Manifest(
        f"{cloud.experiment.name}-{secrets.token_hex(4)}", cloud.experiment, card, cloud.limits, cloud.patience,
        compress, cloud.script, cloud.round_deadline or None,
    )  # fmt: skip
    # what cannot be run is told before anything is written
    if is_private(manifest.plan()):
        require_library()
    journal = Journal(directory)
    try:
        kept = journal.get("manifest")
        if kept is None:
            _describe(directory / "run.toml", cloud.experiment, options.data_dir)
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


def _describe(path: Path, experiment: Experiment, data_dir: Path | None) -> None:
    """Write the experiment as a simulated run does, but so that nobody goes on with it in a simulation."""
    describe(path, experiment, data_dir)
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    table["about"]["format"] = REAL
    atomic_write(path, tomli_w.dumps(table).encode())


def _card(options: Options, cloud: CloudOptions) -> Card:
    experiment = cloud.experiment
    if options.data in (None, "share"):
        data = experiment.dataset(options.data_dir)
        return card_of(
            experiment, data.input_shape, data.n_classes, n_cells=data.n_cells, kind=data.kind,
            vocabulary=data.vocabulary,
        )  # fmt: skip
    assert options.data is not None
    arrays = read_arrays(options.data)
    held = from_arrays(arrays, f"--data {options.data}", None, cloud.classes)
    found = held.test
    if found is None:
        raise ConfigError(f"--data {options.data}: a cloud needs test data, x_test and y_test.")
    labels = arrays["y_test"]
    kind = "classification" if labels.dtype.kind in "iubUS" and labels.ndim == 1 else "regression"
    outputs = int(found.cells.max()) + 1 if kind == "classification" else int(labels.reshape(len(labels), -1).shape[1])
    return card_of(experiment, shape_of(arrays), cloud.classes or outputs, n_cells=cloud.classes or outputs, kind=kind)

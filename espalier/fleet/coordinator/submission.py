"""From an experiment to a run of the fleet: what is checked before anybody is told of it.

The cloud's operator says what its models are judged on; whoever submits a run says what is done. A submitted
experiment may name code to import only if the cloud's operator allowed it by name, as on every other node.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from espalier.core.code import is_own as is_code
from espalier.core.errors import ConfigError
from espalier.data.registry import is_own
from espalier.experiment import Experiment
from espalier.fleet.coordinator.enrolment import MOST_DEVICES, MOST_SERVERS
from espalier.fleet.coordinator.manifest import ROUND_DEADLINE_SECONDS, Card, Manifest, Script, card_of, rounds_reports
from espalier.fleet.coordinator.queue import QueuedRun, RunQueue, run_token
from espalier.fleet.links.encoding import Compress
from espalier.fleet.links.limits import Limits
from espalier.fleet.links.transport import FRAME_BYTES
from espalier.fleet.node.data import from_arrays, read_arrays, shape_of
from espalier.privacy import is_private, require_library
from espalier.simulator.checkpoint import atomic_write
from espalier.simulator.directory import describe

#: the format of a real run's description: `espalier resume` refuses it instead of simulating over the record
REAL = "of a real fleet, which the command espalier node cloud goes on with"
#: of what every node is told, in one frame
MANIFEST_BYTES = FRAME_BYTES - (64 << 10)


@dataclass(frozen=True)
class RunOptions:
    """How a run is conducted.

    Attributes:
        start_with: Devices that must be there (None: all of fleet.devices).
        patience: Seconds that a lost child is waited for.
        compress: How models travel (None: as the experiment says).
        script: Times that every node pretends to.
        round_deadline: Seconds that a round waits for its slowest child, at least (0: for ever).
    """

    start_with: int | None = None
    patience: float = 10.0
    compress: Compress | None = None
    script: Script | None = None
    round_deadline: float = ROUND_DEADLINE_SECONDS

    def devices(self, experiment: Experiment) -> int:
        """Return with how many devices the run begins."""
        return experiment.fleet.devices if self.start_with is None else self.start_with


@dataclass(frozen=True)
class JudgingData:
    """What a cloud's models are judged on.

    Attributes:
        source: A file, a function, or None and ``"share"``: the experiment's own dataset.
        data_dir: Where dataset files are looked for first.
        classes: Classes of the task, where the data do not show them all.
    """

    source: str | None = None
    data_dir: Path | None = None
    classes: int | None = None

    def card(self, experiment: Experiment) -> Card:
        """Describe an experiment's task.

        Raises:
            EspalierError: The data and the experiment do not fit.
        """
        if self.source in (None, "share"):
            data = experiment.dataset(self.data_dir)
            return card_of(
                experiment, data.input_shape, data.n_classes, n_cells=data.n_cells, kind=data.kind,
                vocabulary=data.vocabulary,
            )  # fmt: skip
        assert self.source is not None
        arrays = read_arrays(self.source)
        found = from_arrays(arrays, f"--data {self.source}", None, self.classes).test
        if found is None:
            raise ConfigError(f"--data {self.source}: a cloud needs test data, x_test and y_test.")
        labels = arrays["y_test"]
        kind = "classification" if labels.dtype.kind in "iubUS" and labels.ndim == 1 else "regression"
        wide = int(labels.reshape(len(labels), -1).shape[1])
        outputs = self.classes or (int(found.cells.max()) + 1 if kind == "classification" else wide)
        return card_of(experiment, shape_of(arrays), outputs, n_cells=outputs, kind=kind)


def prepare(
    name: str, experiment: Experiment, options: RunOptions, judged: JudgingData, limits: Limits, *, standing: bool
) -> Manifest:
    """Make the manifest of a run; what cannot be run is told here, before anything is written.

    Raises:
        EspalierError: It cannot be run.
    """
    fleet = experiment.fleet
    servers = fleet.edges + sum(fleet.tiers)
    if fleet.devices > MOST_DEVICES or servers > MOST_SERVERS:
        raise ConfigError(
            f"fleet: {fleet.devices:,} devices and {servers:,} servers; at most {MOST_DEVICES:,} and {MOST_SERVERS:,} "
            "are accepted."
        )
    card = judged.card(experiment)
    if card.spec.model_bytes > limits.letter_bytes:
        raise ConfigError(
            f"task.model = {card.model!r}: a model of {card.spec.model_bytes:,} bytes; letters of this fleet take "
            f"{limits.letter_bytes:,} (letter_bytes): raise it at the cloud, or choose a smaller model."
        )
    compress = options.compress or ("q8" if rounds_reports(experiment, card.n_classes) else "none")
    manifest = Manifest(
        run_token(name), experiment, card, limits, options.patience, compress, options.script,
        options.round_deadline or None, standing,
    )  # fmt: skip
    if is_private(manifest.plan()):
        require_library()
    if (size := len(manifest.to_bytes())) > MANIFEST_BYTES:
        raise ConfigError(
            f"What every node must be told of this experiment has {size:,} bytes; {MANIFEST_BYTES:,} are accepted. "
            "Choose a model of fewer layers, or a shorter experiment."
        )
    return manifest


def describe_run(directory: Path, experiment: Experiment, data_dir: Path | None) -> None:
    """Write the experiment as a simulated run does, but so that nobody goes on with it in a simulation."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / "run.toml"
    describe(path, experiment, data_dir)
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    table["about"]["format"] = REAL
    atomic_write(path, tomli_w.dumps(table).encode())


@dataclass(frozen=True)
class Submissions:
    """Takes runs into the queue of a standing cloud.

    Attributes:
        queue: Where they go.
        judged: What the cloud's models are judged on.
        limits: Of every node.
        allowed: Code that an experiment may name.
    """

    queue: RunQueue
    judged: JudgingData
    limits: Limits = field(default_factory=Limits)
    allowed: tuple[str, ...] = ()

    def submit(self, request: Mapping[str, Any], submitter: str) -> QueuedRun:
        """Check a run and put it into the queue.

        Raises:
            EspalierError: It cannot be run; one sentence says why.
        """
        for key, path in _code_in(request["experiment"], ""):
            if path not in self.allowed:
                raise ConfigError(
                    f"{key} = {path!r}: this cloud imports no code but its operator's; start it with --allow-model "
                    f"{path}, or use what is bundled."
                )
        experiment = Experiment.build(request["experiment"])
        for key, file in _files_in(experiment):
            # whoever cannot read it is told why, and so what is in it
            raise ConfigError(
                f"{key} = {file!r}: names a file of the fleet's machines, which are their operators'; start its nodes "
                "with --data, or name what is bundled."
            )
        if len(experiment.methods) != 1 or len(experiment.seeds) != 1:
            raise ConfigError(
                f"methods, seeds: a fleet runs one method with one seed; this has {len(experiment.methods)} and "
                f"{len(experiment.seeds)}. Choose with --method and --seed."
            )
        given = {k: request[k] for k in ("start_with", "patience", "compress", "round_deadline") if k in request}
        options = RunOptions(**given)
        wanted = request.get("name")
        name = self.queue.free_name(wanted or experiment.name, exactly=wanted is not None)
        manifest = prepare(name, experiment, options, self.judged, self.limits, standing=True)
        directory = self.queue.directory_of(name)
        describe_run(directory, experiment, self.judged.data_dir)
        return self.queue.add(name, manifest, options.devices(experiment), submitter)


def _files_in(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the files of its own that a fleet's nodes would read for an experiment, with their keys.

    The files of a simulated world are not among them: no node of a fleet looks at them.
    """
    task = experiment.task
    if is_own(task.dataset, task.dataset_options.get("kind")):
        yield "task.dataset", task.dataset
    for name, value in vars(experiment.partition_spec()).items():
        if isinstance(value, Path):
            yield f"partition.{name}", str(value)


def _code_in(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield every text of an experiment's table that could name code, with its key: whatever has a colon."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "label" and (key or name != "name"):  # people's words
                yield from _code_in(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _code_in(inner, key)
    elif isinstance(value, str) and is_code(value):
        yield key, value
